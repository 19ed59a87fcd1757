"""Paged decode attention, 7 tensors: with the layouts a kernel relies on, and with shapes, dtypes and device alone."""

import math
from typing import Annotated, Any

import torch
from jaxtyping import Float, Float32, Int32
from torch import Tensor

from tensorpact import Contract
from tensorpact.clauses import require, same_device, same_dtype
from tensorpact.constraints import Contiguous, DenseLast

from .case import BF16, F32, HALF, HALVES, I32, Case, narrower


def decode_plain(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cache_seqlens: Tensor, sinks: Tensor,
    out: Tensor, softmax_scale: float,
) -> None:  # fmt: skip
    """No check."""


DECODE = Contract(
    "decode",
    clauses=[
        require(lambda H, HKV: HKV > 0 and H % HKV == 0),
        same_dtype("q", "k_cache", "v_cache", "out"),
        same_device("q", "k_cache", "v_cache", "page_table", "cache_seqlens", "sinks", "out"),
        require(lambda softmax_scale: 0 < softmax_scale < math.inf),
    ],
)


def decode_annotated(
    q: Annotated[Float[Tensor, "B H D"], HALF, DenseLast()],
    k_cache: Annotated[Float[Tensor, "pages page HKV D"], DenseLast()],
    v_cache: Annotated[Float[Tensor, "pages page HKV Dv"], DenseLast()],
    page_table: Annotated[Int32[Tensor, "B W"], DenseLast()],
    cache_seqlens: Annotated[Int32[Tensor, " B"], Contiguous()],
    sinks: Annotated[Float32[Tensor, " H"], Contiguous()],
    out: Annotated[Float[Tensor, "B H Dv"], Contiguous()],
    softmax_scale: float,
) -> None:
    """The annotations that stock and tensorpact read."""


def decode_by_hand(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cache_seqlens: Tensor, sinks: Tensor,
    out: Tensor, softmax_scale: float,
) -> None:  # fmt: skip
    """The checks of a careful kernel author: the same as the contract's, every attribute read once."""
    if not isinstance(softmax_scale, float) or not 0 < softmax_scale < math.inf:
        raise ValueError("softmax_scale must be finite and positive")
    q_shape, dtype, device = q.shape, q.dtype, q.device
    if len(q_shape) != 3:
        raise ValueError("q must have shape [B, H, D]")
    if dtype not in HALVES:
        raise TypeError("q must be bf16 or fp16")
    if q.stride()[-1] != 1:
        raise ValueError("q must be dense in its last axis")
    batch, heads, dim = q_shape
    k_shape = k_cache.shape
    if len(k_shape) != 4 or k_shape[3] != dim:
        raise ValueError("k_cache must have shape [pages, page, HKV, D]")
    pages, page, kv_heads, _ = k_shape
    if k_cache.dtype is not dtype:
        raise TypeError("k_cache must have the dtype of q")
    if k_cache.stride()[-1] != 1:
        raise ValueError("k_cache must be dense in its last axis")
    if k_cache.device != device:
        raise ValueError("k_cache must be on the device of q")
    if kv_heads <= 0 or heads % kv_heads != 0:
        raise ValueError("H must be a multiple of HKV")
    v_shape = v_cache.shape
    if len(v_shape) != 4 or v_shape[0] != pages or v_shape[1] != page or v_shape[2] != kv_heads:
        raise ValueError("v_cache must have shape [pages, page, HKV, Dv]")
    if v_cache.dtype is not dtype:
        raise TypeError("v_cache must have the dtype of q")
    if v_cache.stride()[-1] != 1:
        raise ValueError("v_cache must be dense in its last axis")
    if v_cache.device != device:
        raise ValueError("v_cache must be on the device of q")
    table_shape = page_table.shape
    if len(table_shape) != 2 or table_shape[0] != batch:
        raise ValueError("page_table must have shape [B, W]")
    if page_table.dtype is not I32:
        raise TypeError("page_table must be int32")
    if page_table.stride()[-1] != 1:
        raise ValueError("page_table must be dense in its last axis")
    if page_table.device != device:
        raise ValueError("page_table must be on the device of q")
    if cache_seqlens.shape != (batch,):
        raise ValueError("cache_seqlens must have shape [B]")
    if cache_seqlens.dtype is not I32:
        raise TypeError("cache_seqlens must be int32")
    if not cache_seqlens.is_contiguous():
        raise ValueError("cache_seqlens must be contiguous")
    if cache_seqlens.device != device:
        raise ValueError("cache_seqlens must be on the device of q")
    if sinks.shape != (heads,):
        raise ValueError("sinks must have shape [H]")
    if sinks.dtype is not F32:
        raise TypeError("sinks must be float32")
    if not sinks.is_contiguous():
        raise ValueError("sinks must be contiguous")
    if sinks.device != device:
        raise ValueError("sinks must be on the device of q")
    if out.shape != (batch, heads, v_shape[3]):
        raise ValueError("out must have shape [B, H, Dv]")
    if out.dtype is not dtype:
        raise TypeError("out must have the dtype of q")
    if not out.is_contiguous():
        raise ValueError("out must be contiguous")
    if out.device != device:
        raise ValueError("out must be on the device of q")
    decode_plain(q, k_cache, v_cache, page_table, cache_seqlens, sinks, out, softmax_scale)


def decode_floor(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cache_seqlens: Tensor, sinks: Tensor,
    out: Tensor, softmax_scale: float,
) -> None:  # fmt: skip
    """Every attribute that the checks need, read once, and the call."""
    q.shape, q.dtype, q.device, q.stride()
    k_cache.shape, k_cache.dtype, k_cache.device, k_cache.stride()
    v_cache.shape, v_cache.dtype, v_cache.device, v_cache.stride()
    page_table.shape, page_table.dtype, page_table.device, page_table.stride()
    cache_seqlens.shape, cache_seqlens.dtype, cache_seqlens.device, cache_seqlens.is_contiguous()
    sinks.shape, sinks.dtype, sinks.device, sinks.is_contiguous()
    out.shape, out.dtype, out.device, out.is_contiguous()
    decode_plain(q, k_cache, v_cache, page_table, cache_seqlens, sinks, out, softmax_scale)


def loose_annotated(
    q: Annotated[Float[Tensor, "B H D"], HALF],
    k_cache: Float[Tensor, "pages page HKV D"],
    v_cache: Float[Tensor, "pages page HKV Dv"],
    page_table: Int32[Tensor, "B W"],
    cache_seqlens: Int32[Tensor, " B"],
    sinks: Float32[Tensor, " H"],
    out: Float[Tensor, "B H Dv"],
    softmax_scale: float,
) -> None:
    """The same without layouts."""


def loose_by_hand(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cache_seqlens: Tensor, sinks: Tensor,
    out: Tensor, softmax_scale: float,
) -> None:  # fmt: skip
    """The same without layouts."""
    if not isinstance(softmax_scale, float) or not 0 < softmax_scale < math.inf:
        raise ValueError("softmax_scale must be finite and positive")
    q_shape, dtype, device = q.shape, q.dtype, q.device
    if len(q_shape) != 3:
        raise ValueError("q must have shape [B, H, D]")
    if dtype not in HALVES:
        raise TypeError("q must be bf16 or fp16")
    batch, heads, dim = q_shape
    k_shape = k_cache.shape
    if len(k_shape) != 4 or k_shape[3] != dim:
        raise ValueError("k_cache must have shape [pages, page, HKV, D]")
    pages, page, kv_heads, _ = k_shape
    if k_cache.dtype is not dtype:
        raise TypeError("k_cache must have the dtype of q")
    if k_cache.device != device:
        raise ValueError("k_cache must be on the device of q")
    if kv_heads <= 0 or heads % kv_heads != 0:
        raise ValueError("H must be a multiple of HKV")
    v_shape = v_cache.shape
    if len(v_shape) != 4 or v_shape[0] != pages or v_shape[1] != page or v_shape[2] != kv_heads:
        raise ValueError("v_cache must have shape [pages, page, HKV, Dv]")
    if v_cache.dtype is not dtype:
        raise TypeError("v_cache must have the dtype of q")
    if v_cache.device != device:
        raise ValueError("v_cache must be on the device of q")
    table_shape = page_table.shape
    if len(table_shape) != 2 or table_shape[0] != batch:
        raise ValueError("page_table must have shape [B, W]")
    if page_table.dtype is not I32:
        raise TypeError("page_table must be int32")
    if page_table.device != device:
        raise ValueError("page_table must be on the device of q")
    if cache_seqlens.shape != (batch,):
        raise ValueError("cache_seqlens must have shape [B]")
    if cache_seqlens.dtype is not I32:
        raise TypeError("cache_seqlens must be int32")
    if cache_seqlens.device != device:
        raise ValueError("cache_seqlens must be on the device of q")
    if sinks.shape != (heads,):
        raise ValueError("sinks must have shape [H]")
    if sinks.dtype is not F32:
        raise TypeError("sinks must be float32")
    if sinks.device != device:
        raise ValueError("sinks must be on the device of q")
    if out.shape != (batch, heads, v_shape[3]):
        raise ValueError("out must have shape [B, H, Dv]")
    if out.dtype is not dtype:
        raise TypeError("out must have the dtype of q")
    if out.device != device:
        raise ValueError("out must be on the device of q")
    decode_plain(q, k_cache, v_cache, page_table, cache_seqlens, sinks, out, softmax_scale)


def loose_floor(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cache_seqlens: Tensor, sinks: Tensor,
    out: Tensor, softmax_scale: float,
) -> None:  # fmt: skip
    """Every attribute but layouts."""
    q.shape, q.dtype, q.device  # noqa: B018
    k_cache.shape, k_cache.dtype, k_cache.device  # noqa: B018
    v_cache.shape, v_cache.dtype, v_cache.device  # noqa: B018
    page_table.shape, page_table.dtype, page_table.device  # noqa: B018
    cache_seqlens.shape, cache_seqlens.dtype, cache_seqlens.device  # noqa: B018
    sinks.shape, sinks.dtype, sinks.device  # noqa: B018
    out.shape, out.dtype, out.device  # noqa: B018
    decode_plain(q, k_cache, v_cache, page_table, cache_seqlens, sinks, out, softmax_scale)


def decode_arguments(n: int, pools: int = 1) -> tuple[Any, ...]:
    """Valid arguments for n tokens, the caches so many times as large."""
    b, h, hkv, d, dv, pages, page, width = n, 8, 2, 64, 32, 10 * pools, 16, 5
    return (
        torch.zeros(b, h, d, dtype=BF16), torch.zeros(pages, page, hkv, d, dtype=BF16),
        torch.zeros(pages, page, hkv, dv, dtype=BF16), torch.zeros(b, width, dtype=I32), torch.zeros(b, dtype=I32),
        torch.zeros(h), torch.zeros(b, h, dv, dtype=BF16), 0.125,
    )  # fmt: skip


DECODE_CASES = (
    Case(
        "7 tensors",
        decode_plain,
        lambda: decode_annotated,
        decode_by_hand,
        decode_floor,
        decode_arguments,
        narrower(1),
        DECODE,
        extended=True,
    ),
    Case(
        "7 tensors, no layouts",
        decode_plain,
        lambda: loose_annotated,
        loose_by_hand,
        loose_floor,
        decode_arguments,
        narrower(1),
        DECODE,
        extended=True,
    ),
)
