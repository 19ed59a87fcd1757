"""Device functions of index lists: where a token's begins and ends, its entries, and what is reported of both."""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

import triton
import triton.language as tl

from tensorpact.reporting.device import tell

# Places of the checks that a launch names: of a list three for its offsets, then one for its indices.
PREFIX = tl.constexpr(0)
EXTEND = tl.constexpr(4)
INDEX = tl.constexpr(3)
# Indices that a program looks at in one step.
SCAN = tl.constexpr(1024)


@no_type_check
@triton.jit
def load_span(indptr_ptr, indptr_stride, token):
    """Return the token's two offsets as they are."""
    begin = tl.load(indptr_ptr + token * indptr_stride).to(tl.int64)
    end = tl.load(indptr_ptr + (token + 1) * indptr_stride).to(tl.int64)
    return begin, end


@no_type_check
@triton.jit
def clamp_span(begin, end, num_indices):
    """Return where an index list begins and ends, clamped into the index buffer."""
    begin = tl.minimum(tl.maximum(begin, 0), num_indices)
    return begin, tl.maximum(begin, tl.minimum(end, num_indices))


@no_type_check
@triton.jit
def indices_at(indices_ptr, indices_stride, position, end):
    """Return one block of row indices; positions behind the list read as -1."""
    return tl.load(indices_ptr + position * indices_stride, mask=position < end, other=-1)


@no_type_check
@triton.jit
def report_span(flag_memory, flag_counters, flag_call, check, begin, end, token, num_indices):
    """Report the first of the token's two offsets that is out of range, by the second's check for one out of order."""
    first = (begin < 0) | (begin > num_indices)
    value = tl.where(first, begin, end)
    if first | (end < begin) | (end > num_indices):
        # In the order of the contract: at least zero, in order, within the list.
        unordered = (value >= 0) & (end < begin) & (begin <= num_indices)
        limit = tl.where(value < 0, 0, tl.where(unordered, begin, num_indices))
        kind = tl.where(value < 0, 0, tl.where(unordered, 1, 2))
        tell(flag_memory, flag_counters, flag_call, kind + check, tl.where(first, token, token + 1), value, limit)


@no_type_check
@triton.jit
def is_wrong(begin, end, num_indices):
    """Return whether a token's offsets, as they are, are out of range or out of order."""
    return (begin < 0) | (end < begin) | (end > num_indices)


@no_type_check
@triton.jit(noinline=True)
def report_list(
    flag_memory,
    flag_counters,
    flag_call,
    check,
    indptr_ptr,
    indptr_stride,
    token,
    num_indices,
    indices_ptr,
    indices_stride,
    begin,
    end,
    num_rows,
):
    """Report what is wrong with a token's offsets, or the first index of a part of its list that is past the rows.

    A function of its own, so that its code lies behind the kernel's and takes none of its registers.
    """
    first, last = load_span(indptr_ptr, indptr_stride, token)
    report_span(flag_memory, flag_counters, flag_call, check, first, last, token, num_indices)
    keys = tl.arange(0, SCAN)
    found = end
    for position in range(begin, end, SCAN):
        index = indices_at(indices_ptr, indices_stride, position + keys, end)
        found = tl.minimum(found, tl.min(tl.where(index >= num_rows, position + keys, end), axis=0))
    if found < end:
        value = tl.load(indices_ptr + found * indices_stride).to(tl.int64)
        tell(flag_memory, flag_counters, flag_call, check + INDEX, found, value, num_rows - 1)
