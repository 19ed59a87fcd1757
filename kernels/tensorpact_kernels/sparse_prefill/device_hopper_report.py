"""What the Hopper kernels report: the offsets and indices of a share, which their loops have seen.

A number that is wrong is told by the last thing a program does. In front of the loop the atomics of ``tell`` would have
the assembler keep the loop's descriptors of shared memory in registers, where there is no room for them.
"""

# Gluon has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tensorpact.reporting.device import tell
from tensorpact_kernels.sparse_prefill.device_lists import EXTEND as EXTEND_LIST
from tensorpact_kernels.sparse_prefill.device_lists import (
    INDEX,
    PREFIX,
    SCAN,
    clamp_span,
    is_wrong,
    load_span,
    report_span,
)


@no_type_check
@gluon.jit
def tiles_of(begin, end, BLOCK_K: gl.constexpr):
    """Return how many tiles of keys a list takes."""
    return ((end - begin + BLOCK_K - 1) // BLOCK_K).to(gl.int32)


@no_type_check
@gluon.jit
def _load_list(given, token):
    """Return a token's list, clamped into the indices that there are, and whether its offsets are wrong as they are."""
    indptr_ptr, indptr_stride, indices_ptr, indices_stride, num_indices, num_rows = given
    begin, end = load_span(indptr_ptr, indptr_stride, token)
    wrong = is_wrong(begin, end, num_indices)
    begin, end = clamp_span(begin, end, num_indices)
    return (indices_ptr, indices_stride, begin, end, num_rows), wrong


@no_type_check
@gluon.jit
def load_lists(prefix, extend, token, EXTEND: gl.constexpr, BLOCK_K: gl.constexpr):
    """Return a token's lists as the loop takes them, how many tiles they have, and whether their offsets are wrong.

    Args:
        prefix: Offsets with their stride, indices with their stride and number, and rows in the pool.
        extend: The same of the list of new rows.
        token: The token.
        EXTEND: Whether there is the second list.
        BLOCK_K: Indices of a tile.
    """
    prefix_list, wrong = _load_list(prefix, token)
    extend_list = prefix_list
    if EXTEND:
        extend_list, extend_wrong = _load_list(extend, token)
        wrong = wrong | extend_wrong
    prefix_tiles = tiles_of(prefix_list[2], prefix_list[3], BLOCK_K)
    tiles = prefix_tiles
    if EXTEND:
        tiles += tiles_of(extend_list[2], extend_list[3], BLOCK_K)
    return (prefix_tiles, prefix_list, extend_list), tiles, wrong


@no_type_check
@gluon.jit
def share_of(split, num_splits, tiles, SPLIT: gl.constexpr):
    """Return the first tile of a split, and the one behind its last."""
    first = tiles * 0
    last = tiles
    if SPLIT:
        share = (tiles + num_splits - 1) // num_splits
        first = gl.minimum(split * share, tiles)
        last = gl.minimum(first + share, tiles)
    return first, last


@no_type_check
@gluon.jit
def _part(source, first, last, BLOCK_K: gl.constexpr):
    """Return where the tiles of a list from ``first`` to ``last`` lie in memory, their place, and their indices."""
    indices_ptr, stride, begin, end, _ = source
    low = gl.minimum(begin + gl.maximum(first, 0).to(gl.int64) * BLOCK_K, end)
    high = gl.minimum(begin + gl.maximum(last, 0).to(gl.int64) * BLOCK_K, end)
    return indices_ptr + low * stride, low, (high - low).to(gl.int32)


@no_type_check
@gluon.jit
def _report_index(
    flag_memory,
    flag_counters,
    flag_call,
    check,
    source,
    first,
    last,
    BLOCK_K: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    """Report the first index of some tiles that is past the rows, where there is one."""
    part_ptr, low, count = _part(source, first, last, BLOCK_K)
    _, stride, _, _, num_rows = source
    found = count
    for start in range(0, count, SCAN):
        place = start + gl.arange(0, SCAN, layout=LAYOUT)
        index = gl.load(part_ptr + place.to(gl.int64) * stride, mask=place < count, other=-1)
        found = gl.minimum(found, gl.min(gl.where(index >= num_rows, place, count), axis=0))
    if found < count:
        value = gl.load(part_ptr + found.to(gl.int64) * stride).to(gl.int64)
        tell(flag_memory, flag_counters, flag_call, check, low + found, value, num_rows - 1)


@no_type_check
@gluon.jit(noinline=True)
def report_lists(
    flag_memory,
    flag_counters,
    flag_call,
    token,
    split,
    num_splits,
    prefix,
    extend,
    EXTEND: gl.constexpr,
    SPLIT: gl.constexpr,
    BLOCK_K: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Report what is wrong with a token's lists: the offsets by its first split, an index by the split that has it.

    Everything is read once more, so that nothing has to be kept for it.

    Args:
        flag_memory: The mailbox.
        flag_counters: Its counters.
        flag_call: Number of the call.
        token: The token.
        split: Which split of its tiles.
        num_splits: How many there are.
        prefix: Offsets with their stride, indices with their stride and number, and rows in the pool.
        extend: The same of the list of new rows.
        EXTEND: Whether there is the second list.
        SPLIT: Whether there are several splits.
        BLOCK_K: Indices of a tile.
        num_warps: Warps of the program.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
    indptr_ptr, indptr_stride, indices_ptr, indices_stride, num_indices, num_rows = prefix
    begin, end = load_span(indptr_ptr, indptr_stride, token)
    if split == 0:
        report_span(flag_memory, flag_counters, flag_call, PREFIX, begin, end, token, num_indices)
    begin, end = clamp_span(begin, end, num_indices)
    prefix_tiles = tiles_of(begin, end, BLOCK_K)
    tiles = prefix_tiles
    prefix_source = (indices_ptr, indices_stride, begin, end, num_rows)
    extend_source = prefix_source
    if EXTEND:
        indptr_ptr, indptr_stride, indices_ptr, indices_stride, num_indices, num_rows = extend
        begin, end = load_span(indptr_ptr, indptr_stride, token)
        if split == 0:
            report_span(flag_memory, flag_counters, flag_call, EXTEND_LIST, begin, end, token, num_indices)
        begin, end = clamp_span(begin, end, num_indices)
        tiles += tiles_of(begin, end, BLOCK_K)
        extend_source = (indices_ptr, indices_stride, begin, end, num_rows)
    first, last = share_of(split, num_splits, tiles, SPLIT)
    _report_index(flag_memory, flag_counters, flag_call, PREFIX + INDEX, prefix_source, first, last, BLOCK_K, LAYOUT)
    if EXTEND:
        first, last = first - prefix_tiles, last - prefix_tiles
        _report_index(
            flag_memory, flag_counters, flag_call, EXTEND_LIST + INDEX, extend_source, first, last, BLOCK_K, LAYOUT
        )
