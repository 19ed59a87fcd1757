"""Torch side of packed attention: the plan of query tiles, the choice of tile and kernel, and the launches."""

# Triton has no stubs, and the launch options are no parameters of the kernel.
# pyright: reportMissingTypeStubs=false, reportCallIssue=false, reportUnknownVariableType=false

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tensorpact.reporting import Told, kernel_flag
from tensorpact_kernels._launching import on_device, padded

LOG2_E = 1.4426950408889634
TILE_FIELDS = 8

#: Checks that the plan makes on the boundaries, in the order of its device function.
CHECKS = tuple(
    Told(name, kind) for name in ("cu_seqlens_q", "cu_seqlens_k") for kind in ("starts_at", "nondecreasing", "ends_at")
)

Path = Literal["portable", "hopper"]
"""Which kernel runs: Triton's on any device, or the one for Hopper's matrix and copy units."""


@dataclass(frozen=True, slots=True)
class TileConfig:
    """How one program of the portable kernel is cut.

    Attributes:
        block_m: Query rows of a tile; a power of two, at least 16.
        block_n: Keys of one loop step; a power of two, at least 16.
        num_warps: Warps of a program.
        num_stages: Key tiles in flight.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The query tiles of a call, as the device lists them.

    Attributes:
        tiles: Eight int32 a tile, room for as many as there can be.
        count: How many there are, and a zero.
        capacity: Room in ``tiles``.
    """

    tiles: Tensor
    count: Tensor
    capacity: int


def tile_config(head_dim: int, value_dim: int, dtype: torch.dtype) -> TileConfig:
    """Choose the portable tile: 128 query rows where the accumulator and two key tiles leave room for them."""
    columns = max(padded(head_dim), padded(value_dim))
    if dtype == torch.float32:
        # Never fewer than 32 keys: with 16 and 8 warps Triton 3.6 makes a kernel that reads past its shared memory.
        return TileConfig(64, 32, 8, 2) if columns <= 128 else TileConfig(64, 32, 8, 1)
    if columns <= 64:
        return TileConfig(128, 64, 8, 3)
    return TileConfig(128, 64, 8, 3) if columns <= 128 else TileConfig(128, 64, 8, 2)


def packed_attention_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    softmax_scale: float,
    *,
    causal: bool = False,
    return_lse: bool = False,
    config: TileConfig | None = None,
    path: Path | None = None,
    results: tuple[Tensor, Tensor | None] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attend each sequence's queries to the keys of the same sequence; the boundaries are read on the device.

    Args:
        q: Queries of all sequences, back to back.
        k: Keys of all sequences, back to back; a key head serves a group of query heads.
        v: Values, one for each key; the head size is their own.
        cu_seqlens_q: Where each sequence's queries begin, and the last one's end; on the device of ``q``.
        cu_seqlens_k: As ``cu_seqlens_q``, for keys and values.
        softmax_scale: Positive factor on the scores.
        causal: Hide from a query the keys behind it, where the last query sees the last key.
        return_lse: Also return the natural log of each softmax denominator, heads first.
        config: Tile to use instead of the chosen one; portable kernel only.
        path: Kernel to use, instead of the best that applies.
        results: Dense tensors to write the result and, where there is one, the log denominators to, not new ones.
    """
    from tensorpact_kernels.packed_attention import device

    tokens, heads, dim = q.shape
    value_dim = v.shape[2]
    if results is None:
        out = torch.empty((tokens, heads, value_dim), dtype=q.dtype, device=q.device)
        lse = torch.empty((heads, tokens), dtype=torch.float32, device=q.device) if return_lse else None
    else:
        out, lse = results
    if not tokens:
        return out, lse
    with on_device(q.device):
        if _takes_hopper(path, config, q, k, v):
            from tensorpact_kernels.packed_attention import launch_hopper

            launch_hopper.attend(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, out, lse, causal=causal)
            return out, lse
        tile = config or tile_config(dim, value_dim, q.dtype)
        plan = plan_tiles(q, k, cu_seqlens_q, cu_seqlens_k, tile.block_m, causal=causal)
        device.attention_kernel[(plan.capacity * heads,)](
            q,
            k,
            v,
            out,
            lse,
            plan.tiles,
            plan.count,
            float(softmax_scale) * LOG2_E,
            tokens,
            *q.stride(),
            *k.stride(),
            *v.stride(),
            *out.stride(),
            HEADS=heads,
            GROUP=heads // k.shape[1],
            HEAD_DIM=dim,
            VALUE_DIM=value_dim,
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            BLOCK_D=padded(dim),
            BLOCK_V=padded(value_dim),
            CAUSAL=causal,
            UPCAST=not q.is_cuda,
            STAGES=tile.num_stages,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    return out, lse


def plan_tiles(q: Tensor, k: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, block_m: int, *, causal: bool) -> Plan:
    """Cut all sequences into query tiles and order them by the keys they see, on the device.

    Rows outside every sequence get tiles without keys.

    Args:
        q: Queries, for their number.
        k: Keys, for their number.
        cu_seqlens_q: Where each sequence's queries begin, and the last one's end.
        cu_seqlens_k: As ``cu_seqlens_q``, for keys.
        block_m: Query rows of a tile.
        causal: Whether a tile sees the keys up to its last row, or all of its sequence.
    """
    from tensorpact_kernels.packed_attention import device

    segments = cu_seqlens_q.shape[0] + 1
    # Each segment ends in at most one tile that is not full.
    capacity = q.shape[0] // block_m + segments
    tiles = torch.empty((capacity, TILE_FIELDS), dtype=torch.int32, device=q.device)
    count = torch.empty(2, dtype=torch.int32, device=q.device)
    device.plan_kernel[(segments,)](
        cu_seqlens_q,
        cu_seqlens_k,
        tiles,
        count,
        *kernel_flag(q, CHECKS),
        q.shape[0],
        k.shape[0],
        segments - 2,
        capacity,
        cu_seqlens_q.stride(0),
        cu_seqlens_k.stride(0),
        CAUSAL=causal,
        BLOCK_M=block_m,
        BLOCK_T=32,
        BLOCK_S=32,
        num_warps=1,
    )
    return Plan(tiles, count, capacity)


def _takes_hopper(path: Path | None, config: TileConfig | None, q: Tensor, k: Tensor, v: Tensor) -> bool:
    from tensorpact_kernels.packed_attention import launch_hopper

    if path is None:
        return config is None and launch_hopper.applies(q, k, v)
    return path == "hopper"
