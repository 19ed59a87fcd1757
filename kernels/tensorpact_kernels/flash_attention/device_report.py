"""Device functions that report what the kernels mask: rows and lengths of sequences, and pages of their slots."""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

import triton
import triton.language as tl

from tensorpact.reporting.device import tell

# Places of the checks that a launch names: pages, rows, then lengths: too small, too large, too large with new tokens.
PAGES = tl.constexpr(0)
ROWS = tl.constexpr(1)
LENGTHS = tl.constexpr(2)


@no_type_check
@triton.jit
def report_sequence(
    flag_memory, flag_counters, flag_call, batch_idx_ptr, used_k_ptr, sequence, num_new, capacity, num_rows
):
    """Report the row of a sequence that is not there, or its length that does not fit."""
    if batch_idx_ptr is not None:
        row = tl.load(batch_idx_ptr + sequence).to(tl.int64)
        if (row < 0) | (row >= num_rows):
            tell(flag_memory, flag_counters, flag_call, ROWS, sequence, row, tl.where(row < 0, 0, num_rows - 1))
    if used_k_ptr is not None:
        length = tl.load(used_k_ptr + sequence).to(tl.int64)
        grown = length + num_new
        if (length < 0) | (grown > capacity):
            kind = tl.where(length < 0, 0, tl.where(length > capacity, 1, 2))
            value = tl.where(kind == 2, grown, length)
            limit = tl.where(length < 0, 0, capacity)
            tell(flag_memory, flag_counters, flag_call, kind + LENGTHS, sequence, value, limit)


@no_type_check
@triton.jit
def report_page(flag_memory, flag_counters, flag_call, page_ptr, place, num_pages):
    """Report a page that is not there.

    Args:
        flag_memory: The mailbox.
        flag_counters: Its counters.
        flag_call: Number of the call.
        page_ptr: Where in the table it stands.
        place: The same, counted along both axes.
        num_pages: Pages that there are.
    """
    value = tl.load(page_ptr).to(tl.int64)
    tell(flag_memory, flag_counters, flag_call, PAGES, place, value, tl.where(value < 0, 0, num_pages - 1))


@no_type_check
@triton.jit
def report_pages(
    flag_memory,
    flag_counters,
    flag_call,
    table_ptr,
    table_stride_page,
    row,
    columns,
    begin,
    end,
    num_pages,
    PAGE: tl.constexpr,
):
    """Report the first page of some slots that is not there."""
    last = tl.cdiv(end, PAGE)
    found = last
    number = tl.arange(0, 128)
    for start in range(begin // PAGE, last, 128):
        column = start + number
        page = tl.load(table_ptr + column.to(tl.int64) * table_stride_page, mask=column < last, other=0)
        bad = (column < last) & ((page < 0) | (page >= num_pages))
        found = tl.minimum(found, tl.min(tl.where(bad, column, last), axis=0))
    if found < last:
        page_ptr = table_ptr + found.to(tl.int64) * table_stride_page
        report_page(flag_memory, flag_counters, flag_call, page_ptr, row * columns + found, num_pages)
