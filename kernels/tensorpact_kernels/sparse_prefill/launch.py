"""Torch side of the sparse attention kernels: tile sizes, split counts, outputs and grids.

Nothing here reads a tensor's contents, so every launcher can run inside a CUDA graph.
"""

# Triton has no stubs, and the launch options are no parameters of the kernel.
# pyright: reportMissingTypeStubs=false, reportCallIssue=false, reportUnknownVariableType=false

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tensorpact.reporting import Told, kernel_flag
from tensorpact_kernels._launching import multiprocessors, on_device, padded
from tensorpact_kernels.sparse_prefill import launch_hopper
from tensorpact_kernels.sparse_prefill.launch_split import choose_splits, combine, partials

#: Checks that the kernels make on what they mask, in the order of their device functions.
_OFFSETS = ("at_least", "nondecreasing", "at_most")
PREFILL_CHECKS = (
    *(Told("kv_indptr_prefix", kind) for kind in _OFFSETS),
    Told("kv_indices_prefix", "less_than"),
    *(Told("kv_indptr_extend", kind) for kind in _OFFSETS),
    Told("kv_indices_extend", "less_than"),
)
DECODE_CHECKS = (*(Told("kv_indptr", kind) for kind in _OFFSETS), Told("kv_indices", "within"))

LOG2_E = 1.4426950408889634

Path = Literal["portable", "hopper"]
"""Which kernels run: Triton's on any device, or the ones for Hopper's matrix instructions."""


@dataclass(frozen=True, slots=True)
class TileConfig:
    """How one kernel program is cut.

    Attributes:
        block_h: Heads of one token that a program handles; a power of two, at least 16.
        block_k: Keys of one loop step; a power of two, at least 16.
        num_warps: Warps of a program.
        num_stages: Key tiles in flight.
    """

    block_h: int
    block_k: int
    num_warps: int
    num_stages: int


def prefill_config(heads: int, head_dim: int) -> TileConfig:
    """Choose the prefill tile: as many heads as the accumulator allows, two or more key tiles in shared memory."""
    columns = padded(head_dim)
    block_h = min(padded(heads), 64)
    if columns > 512:
        return _wide_config(columns)
    if columns > 256:
        if block_h == 32:
            return TileConfig(block_h, 32, 4, 3)
        return TileConfig(block_h, 64, 8 if block_h == 64 else 4, 2)
    if columns > 128:
        return TileConfig(block_h, 64, 4, 2 if block_h == 64 else 3)
    return TileConfig(block_h, 64, 4, 3) if block_h == 32 else TileConfig(block_h, 128, 4, 2)


def decode_config(heads: int, head_dim: int, *, quantised: bool) -> TileConfig:
    """Choose the decode tile: small key tiles and several stages, because rows come from device memory."""
    columns = padded(head_dim)
    block_h = min(padded(heads), 64)
    if columns > 512:
        return _wide_config(columns)
    if block_h == 64:
        return TileConfig(block_h, 64 if columns > 256 else 128, 8, 2)
    if quantised:
        return TileConfig(block_h, 64, 4, 3)
    return TileConfig(block_h, 32 if columns > 256 else 64, 4, 3)


def sparse_prefill_triton(
    q: Tensor,
    unified_kv: Tensor,
    kv_indices_prefix: Tensor,
    kv_indptr_prefix: Tensor,
    kv: Tensor,
    kv_indices_extend: Tensor,
    kv_indptr_extend: Tensor,
    attn_sink: Tensor,
    softmax_scale: float,
    *,
    return_lse: bool = False,
    config: TileConfig | None = None,
    path: Path | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend each token to its pool rows and its new rows under one softmax with a sink.

    Args:
        q: Queries.
        unified_kv: Paged pool; a row is both key and value.
        kv_indices_prefix: Pool rows of all tokens, back to back; an index outside the pool is skipped.
        kv_indptr_prefix: Where each token's pool rows begin and end.
        kv: New rows of this forward.
        kv_indices_extend: New rows of all tokens, back to back; an index outside ``kv`` is skipped.
        kv_indptr_extend: Where each token's new rows begin and end.
        attn_sink: Natural-log logit per head that joins the denominator and carries no value.
        softmax_scale: Positive factor on the scores, not on the sink.
        return_lse: Also return the natural log of the denominator, sink included.
        config: Tile to use instead of the chosen one; portable kernel only.
        path: Kernels to use, instead of the best that apply.
    """
    from tensorpact_kernels.sparse_prefill import device

    tokens, heads, dim = q.shape
    out = torch.empty_like(q)
    lse = torch.empty((tokens, heads), dtype=torch.float32, device=q.device) if return_lse else None
    if not tokens * heads:
        return out if lse is None else (out, lse)
    with on_device(q.device):
        entries = max(kv_indices_prefix.shape[0], kv_indices_extend.shape[0])
        if _takes_hopper(path, config, entries, q, unified_kv, kv):
            prefix, extend = (kv_indices_prefix, kv_indptr_prefix), (kv_indices_extend, kv_indptr_extend)
            launch_hopper.attend(
                q, unified_kv, prefix, kv, extend, attn_sink, softmax_scale, out, lse, 1, kernel_flag(q, PREFILL_CHECKS)
            )
        else:
            tile = config or prefill_config(heads, dim)
            device.sparse_prefill_kernel[(tokens * math.ceil(heads / tile.block_h),)](
                q,
                unified_kv,
                kv_indices_prefix,
                kv_indptr_prefix,
                kv,
                kv_indices_extend,
                kv_indptr_extend,
                attn_sink,
                out,
                lse,
                *kernel_flag(q, PREFILL_CHECKS),
                float(softmax_scale) * LOG2_E,
                unified_kv.shape[0],
                kv.shape[0],
                kv_indices_prefix.shape[0],
                kv_indices_extend.shape[0],
                *q.stride(),
                *unified_kv.stride(),
                *kv.stride(),
                *out.stride(),
                *kv_indices_prefix.stride(),
                *kv_indptr_prefix.stride(),
                *kv_indices_extend.stride(),
                *kv_indptr_extend.stride(),
                *attn_sink.stride(),
                HEADS=heads,
                HEAD_DIM=dim,
                BLOCK_H=tile.block_h,
                BLOCK_D=padded(dim),
                BLOCK_K=tile.block_k,
                STAGES=tile.num_stages,
                UPCAST=not q.is_cuda,
                num_warps=tile.num_warps,
                num_stages=tile.num_stages,
            )
    return out if lse is None else (out, lse)


def sparse_decode_triton(
    q: Tensor,
    unified_kv: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    attn_sink: Tensor,
    softmax_scale: float,
    kv_scales: Tensor | None = None,
    *,
    return_lse: bool = False,
    kv_splits: int | None = None,
    config: TileConfig | None = None,
    path: Path | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend each token to its pool rows under a softmax with a sink.

    Args:
        q: Queries.
        unified_kv: Paged pool, fp8 when ``kv_scales`` is given.
        kv_indices: Pool rows of all tokens, back to back; an index outside the pool is skipped.
        kv_indptr: Where each token's rows begin and end.
        attn_sink: Natural-log logit per head that joins the denominator and carries no value.
        softmax_scale: Positive factor on the scores, not on the sink.
        kv_scales: One scale per row and group of 64 columns, rounded to the dtype of ``q`` before use.
        return_lse: Also return the natural log of the denominator, sink included.
        kv_splits: Programs that share a token's rows, instead of the chosen number.
        config: Tile to use instead of the chosen one; portable kernel only. The place of the public ``block_h`` and
            ``block_k``.
        path: Kernels to use, instead of the best that apply.
    """
    from tensorpact_kernels.sparse_prefill import device

    tokens, heads, dim = q.shape
    out = torch.empty_like(q)
    lse = torch.empty((tokens, heads), dtype=torch.float32, device=q.device) if return_lse else None
    if not tokens * heads:
        return out if lse is None else (out, lse)
    with on_device(q.device):
        if kv_scales is None and _takes_hopper(path, config, kv_indices.shape[0], q, unified_kv):
            lists = kv_indices, kv_indptr
            flag = kernel_flag(q, DECODE_CHECKS)
            launch_hopper.attend(q, unified_kv, lists, None, None, attn_sink, softmax_scale, out, lse, kv_splits, flag)
            return out if lse is None else (out, lse)
        tile = config or decode_config(heads, dim, quantised=kv_scales is not None)
        blocks = tokens * math.ceil(heads / tile.block_h)
        steps = math.ceil(kv_indices.shape[0] / (tokens * tile.block_k))
        splits = kv_splits or choose_splits(
            blocks, steps, multiprocessors(q.device), together=1 if tile.block_h == 64 else 2
        )
        partial = partials(q, splits)
        device.sparse_decode_kernel[(blocks * splits,)](
            q,
            unified_kv,
            kv_indices,
            kv_indptr,
            attn_sink,
            kv_scales,
            out,
            lse,
            *partial,
            *kernel_flag(q, DECODE_CHECKS),
            float(softmax_scale) * LOG2_E,
            unified_kv.shape[0],
            kv_indices.shape[0],
            splits,
            *q.stride(),
            *unified_kv.stride(),
            *((0, 0) if kv_scales is None else kv_scales.stride()),
            *out.stride(),
            *kv_indices.stride(),
            *kv_indptr.stride(),
            *attn_sink.stride(),
            HEADS=heads,
            HEAD_DIM=dim,
            SPLIT=splits > 1,
            BLOCK_H=tile.block_h,
            BLOCK_D=padded(dim),
            BLOCK_K=tile.block_k,
            STAGES=tile.num_stages,
            UPCAST=not q.is_cuda,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
        combine(partial, attn_sink, out, lse, early=False)
    return out if lse is None else (out, lse)


def _wide_config(columns: int) -> TileConfig:
    # Two stages of 16 keys stop fitting in shared memory beyond 2048 columns.
    return TileConfig(16, 32 if columns == 1024 else 16, 8, 2 if columns <= 2048 else 1)


def _takes_hopper(path: Path | None, config: TileConfig | None, entries: int, q: Tensor, *rows: Tensor) -> bool:
    if path is None:
        return config is None and launch_hopper.applies(q, *rows, entries=entries)
    return path == "hopper"
