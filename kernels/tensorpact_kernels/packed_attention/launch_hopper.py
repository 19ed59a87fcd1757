"""Torch side of the Hopper kernel: when it applies, how it is cut, and its launch."""

# Gluon has no stubs, and the launch options are no parameters of the kernel.
# pyright: reportMissingTypeStubs=false, reportCallIssue=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tensorpact_kernels._launching import multiprocessors, runs_on_hopper

MAX_HEAD_DIM = 256
ROWS = 64
"""Query rows of one warpgroup."""

REGISTERS = {2: (168, 240, 24), 3: (128, 160, 32)}
"""By warpgroups that compute: registers of a thread when the program starts, then of one that computes or copies."""

# The kernel, and what describes tensors to its copy unit.
_MODULES = ("tensorpact_kernels.packed_attention.device_hopper", "triton.experimental.gluon.nvidia.hopper")
_LOG2_E = 1.4426950408889634
_PIECE = 8
_PIECE_BYTES = 16
_SHARED_BYTES = 227 * 1024
_CACHE_BYTES = 24 << 20
_MIN_COLUMNS = 64


@dataclass(frozen=True, slots=True)
class HopperConfig:
    """How one program of the Hopper kernel is cut.

    Attributes:
        consumers: Warpgroups that compute, 64 query rows each; 2 or 3.
        block_n: Keys of one loop step; a power of two.
        num_stages: Key tiles in flight, and as many value tiles.
        own_out: Whether results leave through shared memory of their own, or through the queries' place.
        in_turn: Whether the warpgroups issue their products in turn, or as they come.
    """

    consumers: int
    block_n: int
    num_stages: int
    own_out: bool
    in_turn: bool


def hopper_config(head_dim: int, value_dim: int, *, causal: bool) -> HopperConfig:
    """Choose the tile: as many rows as registers hold accumulators for, and two or more key tiles.

    Args:
        head_dim: Columns of queries and keys.
        value_dim: Columns of values.
        causal: Whether keys behind a query are hidden.
    """
    widest = max(columns(head_dim), columns(value_dim))
    # Products in turn pay off where the softmax is a large part of the work: narrow heads, and masks.
    if widest == 64:
        return HopperConfig(3, 64 if causal else 128, 4 if causal else 3, own_out=True, in_turn=True)
    if widest == 128:
        return HopperConfig(2, 128, 2, own_out=True, in_turn=causal)
    # Where the two head sizes differ, one of them is small enough to leave room; else queries give their place up.
    return HopperConfig(2, 64, 2, own_out=columns(head_dim) != columns(value_dim), in_turn=False)


def columns(size: int) -> int:
    """Return the columns that a tile of this head size takes; those behind it are zero."""
    return max(_MIN_COLUMNS, 1 << (size - 1).bit_length())


def applies(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the Hopper kernel can run on these tensors.

    Its copy unit wants 16-byte pieces and strides, and torch.compile cannot trace a Gluon kernel.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
    """
    return (
        q.is_cuda
        and q.dtype in (torch.bfloat16, torch.float16)
        and k.shape[0] > 0
        and max(q.shape[2], v.shape[2]) <= MAX_HEAD_DIM
        and not torch.compiler.is_compiling()
        and all(runs_on_hopper(module, q.device.index) for module in _MODULES)
        and all(_copies_in_pieces(tensor) for tensor in (q, k, v))
    )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    softmax_scale: float,
    out: Tensor,
    lse: Tensor | None,
    *,
    causal: bool,
    config: HopperConfig | None = None,
) -> None:
    """List the query tiles and launch the kernel.

    Args:
        q: Queries of all sequences, back to back.
        k: Keys of all sequences, back to back.
        v: Values, one for each key.
        cu_seqlens_q: Where each sequence's queries begin, and the last one's end.
        cu_seqlens_k: As ``cu_seqlens_q``, for keys and values.
        softmax_scale: Positive factor on the scores.
        out: Result, written.
        lse: Natural log of the softmax denominators, written where given.
        causal: Hide from a query the keys behind it, where the last query sees the last key.
        config: Cut to use instead of the chosen one.
    """
    from tensorpact_kernels.packed_attention import device_hopper
    from tensorpact_kernels.packed_attention.launch import plan_tiles

    tokens, heads, dim = q.shape
    value_dim = v.shape[2]
    cut = config or hopper_config(dim, value_dim, causal=causal)
    plan = plan_tiles(q, k, cu_seqlens_q, cu_seqlens_k, ROWS * cut.consumers, causal=causal)
    group = heads // k.shape[1]
    capped, consumer, producer = REGISTERS[cut.consumers]
    device_hopper.hopper_attention_kernel[(min(multiprocessors(q.device), plan.capacity * heads),)](
        _described(q, ROWS),
        _described(k, cut.block_n),
        _described(v, cut.block_n),
        _described(out, ROWS),
        v,
        out,
        lse,
        plan.tiles,
        plan.count,
        float(softmax_scale) * _LOG2_E,
        tokens,
        group * team_of_key_heads(k.shape[0], k.shape[1], dim + value_dim),
        v.stride(0) // _PIECE,
        v.stride(1) // _PIECE,
        out.stride(0) // _PIECE,
        out.stride(1) // _PIECE,
        HEADS=heads,
        GROUP=group,
        VALUE_DIM=value_dim,
        BLOCK_N=cut.block_n,
        CAUSAL=causal,
        CONSUMERS=cut.consumers,
        STAGES=cut.num_stages,
        OWN_OUT=cut.own_out,
        IN_TURN=cut.in_turn,
        CONSUMER_REGISTERS=consumer,
        PRODUCER_REGISTERS=producer,
        num_warps=4,
        maxnreg=capped,
    )


def team_of_key_heads(tokens: int, heads: int, dims: int) -> int:
    """Choose how many key heads are worked on at a time: as many as fit the level-2 cache, and a divisor of all.

    Args:
        tokens: Keys of all sequences.
        heads: Key heads.
        dims: Columns of a key and of a value, together.
    """
    fitting = _CACHE_BYTES // (2 * tokens * dims)
    return max((count for count in range(1, heads + 1) if heads % count == 0 and count <= fitting), default=1)


def _described(tensor: Tensor, rows: int) -> Any:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    tokens, heads, dim = tensor.shape
    strides = [tensor.stride(0), tensor.stride(1) if heads > 1 else _PIECE, 1]
    if tokens == 1:
        strides[0] = _PIECE
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
    return TensorDescriptor(tensor, [tokens, heads, dim], strides, [rows, 1, columns(dim)], layout)


def _copies_in_pieces(tensor: Tensor) -> bool:
    tokens, heads, dim = tensor.shape
    by_token, by_head, by_dim = tensor.stride()
    return (
        (by_dim == 1 or dim == 1)
        and dim % _PIECE == 0
        and tensor.data_ptr() % _PIECE_BYTES == 0
        and (tokens == 1 or (by_token > 0 and by_token % _PIECE == 0))
        and (heads == 1 or (by_head > 0 and by_head % _PIECE == 0))
    )
