"""What the Hopper kernels report: sequences, and the pages that their loops look up.

A number that is wrong is told by the last thing a program does: atomics in front of the loop would change how the loop
is compiled.
"""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tensorpact_kernels.flash_attention.device_report import report_page, report_sequence


@no_type_check
@gluon.jit
def _is_bad(column, page, last, num_pages):
    return (column < last) & ((page < 0) | (page >= num_pages))


@no_type_check
@gluon.jit(noinline=True)
def report_share(
    flag_memory,
    flag_counters,
    flag_call,
    is_first,
    batch_idx_ptr,
    used_k_ptr,
    page_table_ptr,
    page_table_stride_row,
    page_table_stride_page,
    sequence,
    num_new,
    capacity,
    num_rows,
    row,
    begin,
    end,
    num_pages,
    PAGED: gl.constexpr,
    PAGE: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Report what is wrong with a sequence, and the first page of some of its slots that is not there.

    Args:
        flag_memory: The mailbox.
        flag_counters: Its counters.
        flag_call: Number of the call.
        is_first: Whether the program speaks for its sequence.
        batch_idx_ptr: Rows of the sequences, where they are not in order.
        used_k_ptr: Lengths of the sequences, where they are not one number.
        page_table_ptr: The table, where there is one.
        page_table_stride_row: Stride of its rows.
        page_table_stride_page: Stride of its columns.
        sequence: The sequence.
        num_new: New tokens of each, where they are not packed.
        capacity: Slots of a row.
        num_rows: Rows that there are.
        row: The sequence's row.
        begin: First slot.
        end: The slot behind the last.
        num_pages: Pages that there are.
        PAGED: Whether there is a table.
        PAGE: Slots of a page.
        num_warps: Warps of the program.
    """
    if is_first:
        report_sequence(
            flag_memory, flag_counters, flag_call, batch_idx_ptr, used_k_ptr, sequence, num_new, capacity, num_rows
        )  # fmt: skip
    if PAGED:
        SCAN: gl.constexpr = 32 * num_warps
        LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
        table_ptr = page_table_ptr + row.to(gl.int64) * page_table_stride_row
        last = (end + PAGE - 1) // PAGE
        found = last
        for start in range(begin // PAGE, last, SCAN):
            column = start + gl.arange(0, SCAN, layout=LAYOUT)
            page = gl.load(table_ptr + column.to(gl.int64) * page_table_stride_page, mask=column < last, other=0)
            found = gl.minimum(found, gl.min(gl.where(_is_bad(column, page, last, num_pages), column, last), axis=0))
        if found < last:
            page_ptr = table_ptr + found.to(gl.int64) * page_table_stride_page
            place = row.to(gl.int64) * (capacity // PAGE) + found
            report_page(flag_memory, flag_counters, flag_call, page_ptr, place, num_pages)
