"""Sharing a token's rows between programs: how many, the room for their results, and the launch that merges them."""

# Triton has no stubs, and the launch options are no parameters of the kernel.
# pyright: reportMissingTypeStubs=false, reportCallIssue=false, reportUnknownVariableType=false

import math

import torch
from torch import Tensor

from tensorpact_kernels._launching import padded

MAX_SPLITS = 64

# Costs in loop steps: a program's start until its first rows arrive, its share of the partial results, and the merge.
_START_STEPS = 3
_PARTIAL_STEPS = 1
_COMBINE_STEPS = 2
_COMBINE_ELEMENTS = 8192


def choose_splits(blocks: int, steps: int, multiprocessors: int, *, together: int = 1, crowding: float = 0.6) -> int:
    """Choose how many programs share the rows of one token and block of heads.

    Args:
        blocks: Programs of an unsplit launch.
        steps: Loop steps of such a program, on average.
        multiprocessors: Multiprocessors of the device.
        together: Programs that a multiprocessor runs at a time.
        crowding: What each of them after the first adds to the time of one, as a share of it.
    """

    def time(programs: int) -> float:
        return 1 + crowding * (programs - 1) if programs else 0

    def cost(splits: int) -> float:
        rounds = math.ceil(blocks * splits / multiprocessors)
        busy = rounds // together * time(together) + time(rounds % together)
        own = math.ceil(steps / splits) + _START_STEPS
        return busy * own if splits == 1 else busy * (own + _PARTIAL_STEPS) + _COMBINE_STEPS

    return min(range(1, max(1, min(steps, MAX_SPLITS)) + 1), key=cost)


def partials(q: Tensor, splits: int) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return float32 room for each split's accumulator, maximum and sum; none for a single split."""
    if splits == 1:
        return None, None, None
    tokens, heads, dim = q.shape
    acc = torch.empty((tokens, heads, splits, dim), dtype=torch.float32, device=q.device)
    statistics = torch.empty((2, tokens, heads, splits), dtype=torch.float32, device=q.device)
    return acc, statistics[0], statistics[1]


def combine_columns(splits: int, head_dim: int) -> int:
    """Return the columns of one combine program: as many as fit its registers beside all of the splits."""
    return min(padded(head_dim), max(16, _COMBINE_ELEMENTS // padded(splits)))


def combine(
    partial: tuple[Tensor | None, Tensor | None, Tensor | None],
    attn_sink: Tensor,
    out: Tensor,
    lse: Tensor | None,
    *,
    early: bool,
) -> None:
    """Merge the splits of every token and head into ``out``.

    Args:
        partial: What ``partials`` gave, filled.
        attn_sink: Natural-log logit per head that joins the denominator and carries no value.
        out: Result, written.
        lse: Natural log of the denominator, written where given.
        early: Let the programs take their places before the split kernel ends; they wait for its stores.
    """
    from tensorpact_kernels.sparse_prefill import device_split

    acc, row_max, row_sum = partial
    if acc is None:
        return
    tokens, heads, splits, dim = acc.shape
    columns = combine_columns(splits, dim)
    # Not every backend of Triton knows the option.
    options: dict[str, bool] = {"launch_pdl": True} if early else {}
    device_split.sparse_combine_kernel[(tokens * heads * math.ceil(dim / columns),)](
        acc,
        row_max,
        row_sum,
        attn_sink,
        out,
        lse,
        splits,
        *out.stride(),
        *attn_sink.stride(),
        HEADS=heads,
        HEAD_DIM=dim,
        BLOCK_S=1 << (splits - 1).bit_length(),
        BLOCK_C=columns,
        EARLY=early,
        num_warps=4,
        **options,
    )
