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
# Columns of a table that a program looks at in one step.
SCAN = tl.constexpr(128)


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
def load_numbers(batch_idx_ptr, used_k_ptr, sequence):
    """Return a sequence's row and length as they are; where there is none of either, zero.

    ``is_sequence_wrong`` compares them, so that nothing waits for them here.
    """
    row, length = sequence * 0, sequence * 0
    if batch_idx_ptr is not None:
        row = tl.load(batch_idx_ptr + sequence)
    if used_k_ptr is not None:
        length = tl.load(used_k_ptr + sequence)
    return row, length


@no_type_check
@triton.jit
def is_sequence_wrong(numbers, batch_idx_ptr, used_k_ptr, num_new, capacity, num_rows):
    """Return whether a sequence has a row that is not there or a length that does not fit."""
    row, length = numbers
    wrong = row < 0
    if batch_idx_ptr is not None:
        wrong = wrong | (row >= num_rows)
    if used_k_ptr is not None:
        wrong = wrong | (length < 0) | (length.to(tl.int64) + num_new > capacity)
    return wrong


@no_type_check
@triton.jit
def _bad_pages(table_ptr, table_stride_page, column, last, num_pages):
    page = tl.load(table_ptr + column.to(tl.int64) * table_stride_page, mask=column < last, other=0)
    return (column < last) & ((page < 0) | (page >= num_pages))


@no_type_check
@triton.jit
def fold_pages(wrong, table_ptr, table_stride_page, begin, end, num_pages, PAGE: tl.constexpr):
    """Fold into ``wrong``, by place in a step, whether a page of some slots is not there.

    For the end of a program, where the caches have the table, and before its results are stored, which hides what it
    takes to load it.
    """
    last = tl.cdiv(end, PAGE)
    number = tl.arange(0, SCAN)
    for start in range(begin // PAGE, last, SCAN):
        wrong = wrong | _bad_pages(table_ptr, table_stride_page, start + number, last, num_pages).to(tl.int32)
    return wrong


@no_type_check
@triton.jit(noinline=True)
def report_program(
    flag_memory,
    flag_counters,
    flag_call,
    is_first,
    batch_idx_ptr,
    used_k_ptr,
    table_ptr,
    table_stride_page,
    sequence,
    num_new,
    capacity,
    num_rows,
    row,
    begin,
    end,
    num_pages,
    CACHED: tl.constexpr,
    PAGED: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Report what is wrong with a sequence, and the first page of some of its slots that is not there.

    A function of its own, so that its code lies behind the kernel's and takes none of its registers.

    Args:
        flag_memory: The mailbox.
        flag_counters: Its counters.
        flag_call: Number of the call.
        is_first: Whether the program speaks for its sequence.
        batch_idx_ptr: Rows of the sequences, where they are not in order.
        used_k_ptr: Lengths of the sequences, where they are not one number.
        table_ptr: The sequence's row of the table.
        table_stride_page: Stride of its columns.
        sequence: The sequence.
        num_new: New tokens of each, where they are not packed.
        capacity: Slots of a row.
        num_rows: Rows that there are.
        row: The sequence's row.
        begin: First slot.
        end: The slot behind the last.
        num_pages: Pages that there are.
        CACHED: Whether keys have rows and lengths, and are not packed.
        PAGED: Whether there is a table.
        PAGE: Slots of a page.
    """
    if CACHED:
        if is_first:
            report_sequence(
                flag_memory, flag_counters, flag_call, batch_idx_ptr, used_k_ptr, sequence, num_new, capacity, num_rows
            )  # fmt: skip
    if PAGED:
        last = tl.cdiv(end, PAGE)
        found = last
        number = tl.arange(0, SCAN)
        for start in range(begin // PAGE, last, SCAN):
            bad = _bad_pages(table_ptr, table_stride_page, start + number, last, num_pages)
            found = tl.minimum(found, tl.min(tl.where(bad, start + number, last), axis=0))
        if found < last:
            page_ptr = table_ptr + found.to(tl.int64) * table_stride_page
            place = row * (capacity // PAGE) + found
            report_page(flag_memory, flag_counters, flag_call, page_ptr, place, num_pages)
