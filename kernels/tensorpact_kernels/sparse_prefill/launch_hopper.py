"""Torch side of the Hopper kernels: when they apply, and their launch."""

# Gluon has no stubs, and the launch options are no parameters of the kernel.
# pyright: reportMissingTypeStubs=false, reportCallIssue=false, reportUnknownVariableType=false

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tensorpact.reporting import NO_FLAG, Flag
from tensorpact_kernels._launching import multiprocessors, runs_on_hopper
from tensorpact_kernels.sparse_prefill.launch_split import choose_splits, combine, partials

BLOCK_K = 64
NARROW_HEADS = 16


@dataclass(frozen=True, slots=True)
class HopperTile:
    """How one program of the Hopper kernels is cut, and how it shares a multiprocessor.

    Attributes:
        block_h: Heads of one token that a program handles.
        num_warps: Warps of a program; eight are two warpgroups that share the columns.
        registers: Most registers of a thread, so that as many programs as meant fit; None leaves it to the compiler.
        together: Programs on one multiprocessor from which the choice of splits expects anything.
        crowding: What each of them after the first adds to the time of one, as a share of it.
    """

    block_h: int
    num_warps: int
    registers: int | None
    together: int = 1
    crowding: float = 0.6


#: For few heads, by head dim. At 512 columns the rest of the registers is for waiting combine programs. The crowding is
#: fitted to decodes of 16 to 256 tokens with 1 to 32 splits.
NARROW = {
    128: HopperTile(NARROW_HEADS, 4, 96, together=4, crowding=0.24),
    256: HopperTile(NARROW_HEADS, 4, 128, together=4, crowding=0.3),
    512: HopperTile(NARROW_HEADS, 4, 168, together=2),
}
#: For many heads, by head dim. More programs fit at 128 and 256 columns, but the partial results of 64 heads cost what
#: they gain: two splits of 64 tokens by 4096 keys of 128 columns are faster than four and eight.
WIDE = {128: HopperTile(64, 4, 128), 256: HopperTile(64, 4, None), 512: HopperTile(64, 8, None)}

_LOG2_E = 1.4426950408889634
_VECTOR_BYTES = 16
_STRIDE_MULTIPLE = 16
# The last step of a look may count on by so many.
_MOST_ENTRIES = (1 << 31) - 1024


def hopper_tile(heads: int, head_dim: int) -> HopperTile:
    """Choose the program; of 512 columns, two for few heads still beat one for many with half of its heads missing.

    Of fewer columns one for many takes less than two for few: with 128, the prefill of 4096 tokens takes 188 µs with 64
    heads and 141 with 16.
    """
    narrow = NARROW[head_dim]
    return narrow if heads <= (2 if head_dim == 512 else 1) * narrow.block_h else WIDE[head_dim]


def applies(q: Tensor, *rows: Tensor, entries: int = 0) -> bool:
    """Whether the Hopper kernels can run on these queries and rows.

    They copy rows in 16-byte pieces, and torch.compile cannot trace a Gluon kernel.

    Args:
        q: Queries.
        rows: Pools of rows; key and value at once.
        entries: Length of the longest index list, in which a kernel counts its steps with 32 bits.
    """
    return (
        q.is_cuda
        and q.dtype in (torch.bfloat16, torch.float16)
        and q.shape[2] in WIDE
        and entries < _MOST_ENTRIES
        and not torch.compiler.is_compiling()
        and runs_on_hopper("tensorpact_kernels.sparse_prefill.device_hopper_narrow", q.device.index)
        and all(_copies_in_vectors(tensor, q.dtype) for tensor in (q, *rows))
    )


def attend(
    q: Tensor,
    pool: Tensor,
    prefix: tuple[Tensor, Tensor],
    kv: Tensor | None,
    extend: tuple[Tensor, Tensor] | None,
    attn_sink: Tensor,
    softmax_scale: float,
    out: Tensor,
    lse: Tensor | None,
    splits: int | None,
    flag: Flag = NO_FLAG,
) -> None:
    """Launch the kernel for this number of heads, and the combine kernel after a split one.

    Args:
        q: Queries.
        pool: Paged pool; a row is both key and value.
        prefix: Pool rows of all tokens, and where each token's rows begin and end.
        kv: New rows of this forward; None in a decode.
        extend: As ``prefix``, for ``kv``.
        attn_sink: Natural-log logit per head that joins the denominator and carries no value.
        softmax_scale: Positive factor on the scores, not on the sink.
        out: Result, written.
        lse: Natural log of the denominator, written where given.
        splits: Programs that share a token's rows; None chooses.
        flag: What the kernel reports with.
    """
    tokens, heads, dim = q.shape
    tile = hopper_tile(heads, dim)
    blocks = tokens * math.ceil(heads / tile.block_h)
    if splits is None:
        steps = math.ceil(prefix[0].shape[0] / (tokens * BLOCK_K))
        count = multiprocessors(q.device)
        splits = choose_splits(blocks, steps, count, together=tile.together, crowding=tile.crowding)
    partial = partials(q, splits)
    lists = (*prefix, *(extend or prefix))
    new_rows = pool if kv is None else kv
    _kernel(narrow=tile.block_h == NARROW_HEADS)[(blocks * splits,)](
        q,
        pool,
        *lists[:2],
        new_rows,
        *lists[2:],
        attn_sink,
        out,
        lse,
        *partial,
        *flag,
        float(softmax_scale) * _LOG2_E,
        pool.shape[0],
        new_rows.shape[0],
        lists[0].shape[0],
        lists[2].shape[0],
        splits,
        *q.stride()[:2],
        pool.stride(0),
        new_rows.stride(0),
        *out.stride()[:2],
        *(entries.stride(0) for entries in lists),
        attn_sink.stride(0),
        HEADS=heads,
        BLOCK_H=tile.block_h,
        BLOCK_D=dim,
        BLOCK_K=BLOCK_K,
        EXTEND=extend is not None,
        SPLIT=splits > 1,
        num_warps=tile.num_warps,
        maxnreg=tile.registers,
    )
    combine(partial, attn_sink, out, lse, early=True)


def _kernel(*, narrow: bool) -> Any:
    from tensorpact_kernels.sparse_prefill import device_hopper, device_hopper_narrow

    return device_hopper_narrow.sparse_narrow_kernel if narrow else device_hopper.sparse_wide_kernel


def _copies_in_vectors(tensor: Tensor, dtype: torch.dtype) -> bool:
    *outer, last = tensor.stride()
    # Triton compiles for pointers that are multiples of 16 bytes and for strides that are multiples of 16 elements.
    return (
        tensor.dtype == dtype
        and last == 1
        and tensor.data_ptr() % _VECTOR_BYTES == 0
        and all(stride % _STRIDE_MULTIPLE == 0 for stride in outer)
    )
