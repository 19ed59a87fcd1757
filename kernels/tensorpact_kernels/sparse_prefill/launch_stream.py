"""Torch side of the Hopper kernel that streams rows: its splits and its launch."""

# Gluon has no stubs, and the launch options are no parameters of the kernel.
# pyright: reportMissingTypeStubs=false, reportCallIssue=false, reportUnknownVariableType=false

import math

import torch
from torch import Tensor

from tensorpact_kernels.sparse_prefill.launch_split import MAX_SPLITS, combine, multiprocessors, partials

BLOCK_H = 16
BLOCK_K = 64
BUFFERS = 3
# Leaves room for the waiting combine programs.
REGISTERS = 144

MAX_HEADS = 32
LEAST_TILES, MOST_TILES = 1e9, 0.0

# What partial results and their merge cost, in tiles.
_MERGE_TILES = 2
_LOG2_E = 1.4426950408889634
EARLY: dict[str, bool] = {}
COUNTERS: dict[int, Tensor] = {}
MERGE = False


def choose_splits(blocks: int, steps: int, multiprocessors: int) -> int:
    """Choose how many items share the rows of one token and block of heads.

    Args:
        blocks: Items without a split.
        steps: Tiles of such an item, on average.
        multiprocessors: Multiprocessors of the device, each with one program.
    """

    def cost(splits: int) -> float:
        tiles = math.ceil(blocks * splits / multiprocessors) * math.ceil(steps / splits)
        return tiles + (_MERGE_TILES if splits > 1 else 0)

    return min(range(1, max(1, min(steps, MAX_SPLITS)) + 1), key=cost)


def pays(q: Tensor, indices: Tensor) -> bool:
    """Whether this kernel is the faster one: few heads, and too few tiles to hide one another's copies."""
    blocks, steps = _size(q, indices)
    return q.shape[1] <= MAX_HEADS and LEAST_TILES <= blocks * steps / multiprocessors(q.device) <= MOST_TILES


def attend(
    q: Tensor,
    pool: Tensor,
    lists: tuple[Tensor, Tensor],
    attn_sink: Tensor,
    softmax_scale: float,
    out: Tensor,
    lse: Tensor | None,
    splits: int | None,
) -> None:
    """Launch the kernel, and the combine kernel after a split one.

    Args:
        q: Queries.
        pool: Paged pool; a row is both key and value.
        lists: Pool rows of all tokens, and where each token's rows begin and end.
        attn_sink: Natural-log logit per head that joins the denominator and carries no value.
        softmax_scale: Positive factor on the scores, not on the sink.
        out: Result, written.
        lse: Natural log of the denominator, written where given.
        splits: Items that share a token's rows; None chooses.
    """
    from tensorpact_kernels.sparse_prefill import device_hopper_stream

    tokens, heads, dim = q.shape
    if splits is None:
        splits = choose_splits(*_size(q, lists[0]), multiprocessors(q.device))
    partial = partials(q, splits)
    merge = MERGE and splits > 1
    if merge and 0 not in COUNTERS:
        COUNTERS[0] = torch.zeros(1 << 16, dtype=torch.int32, device=q.device)
    items = tokens * math.ceil(heads / BLOCK_H) * splits
    device_hopper_stream.sparse_stream_kernel[(min(items, multiprocessors(q.device)),)](
        q,
        pool,
        *lists,
        attn_sink,
        out,
        lse,
        *partial,
        COUNTERS[0] if merge else None,
        float(softmax_scale) * _LOG2_E,
        pool.shape[0],
        lists[0].shape[0],
        splits,
        items,
        *q.stride()[:2],
        pool.stride(0),
        *out.stride()[:2],
        *(entries.stride(0) for entries in lists),
        attn_sink.stride(0),
        HEADS=heads,
        BLOCK_H=BLOCK_H,
        BLOCK_D=dim,
        BLOCK_K=BLOCK_K,
        BUFFERS=BUFFERS,
        SPLIT=splits > 1,
        MERGE=merge,
        num_warps=4,
        maxnreg=REGISTERS,
        **EARLY,
    )
    if not merge:
        combine(partial, attn_sink, out, lse, early=True)


def _size(q: Tensor, indices: Tensor) -> tuple[int, int]:
    tokens, heads, _ = q.shape
    return tokens * math.ceil(heads / BLOCK_H), math.ceil(indices.shape[0] / (tokens * BLOCK_K))
