"""Linear-attention decode with a replay ring: 13 tensors."""

import math
from typing import Annotated, Any

import torch
from jaxtyping import Float, Float32, Int32
from torch import Tensor

from tensorpact import Contract
from tensorpact.clauses import let, require, same_device, same_dtype
from tensorpact.constraints import Contiguous, DenseLast

from .case import BF16, F32, FLOATS, HALF, HALVES, I32, Case, narrower


def ring_plain(
    mixed_qkv: Tensor, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, initial_state: Tensor, out: Tensor,
    ssm_state_indices: Tensor, d_cache: Tensor, k_cache: Tensor, g_cache: Tensor, write_pos: Tensor,
    force_flush: Tensor, scale: float,
) -> None:  # fmt: skip
    """No check."""


RING = Contract(
    "ring",
    binds={"K": "initial_state", "HV": "initial_state"},
    clauses=[
        same_device(
            "mixed_qkv", "a", "b", "A_log", "dt_bias", "initial_state", "out", "ssm_state_indices", "d_cache",
            "k_cache", "g_cache", "write_pos", "force_flush",
        ),
        same_dtype("mixed_qkv", "a", "b", "d_cache", "k_cache", "out"),
        require(lambda C, HV, V: C > HV * V and (C - HV * V) % 2 == 0),
        require(lambda K: K > 0),
        let(H=lambda C, HV, V, K: (C - HV * V) // (2 * K)),
        require(lambda H, HV: H > 0 and HV % H == 0),
        require(lambda scale: 0 < scale < math.inf),
    ],
)  # fmt: skip


def ring_annotated(
    mixed_qkv: Annotated[Float[Tensor, "B C"], HALF, DenseLast()],
    a: Annotated[Float[Tensor, "B HV K"], Contiguous()],
    b: Annotated[Float[Tensor, "B HV"], DenseLast()],
    A_log: Annotated[Float32[Tensor, " HV"], Contiguous()],
    dt_bias: Annotated[Float32[Tensor, "HV K"], Contiguous()],
    initial_state: Annotated[Float[Tensor, "slots HV V K"], DenseLast()],
    out: Annotated[Float[Tensor, "B 1 HV V"], Contiguous()],
    ssm_state_indices: Annotated[Int32[Tensor, " B"], Contiguous()],
    d_cache: Annotated[Float[Tensor, "slots HV L V"], Contiguous()],
    k_cache: Annotated[Float[Tensor, "slots H L K"], Contiguous()],
    g_cache: Annotated[Float32[Tensor, "slots HV L K"], Contiguous()],
    write_pos: Annotated[Int32[Tensor, " slots"], Contiguous()],
    force_flush: Annotated[Int32[Tensor, " slots"], Contiguous()],
    scale: float,
) -> None:
    """The annotations that stock and tensorpact read."""


def ring_by_hand(
    mixed_qkv: Tensor, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, initial_state: Tensor, out: Tensor,
    ssm_state_indices: Tensor, d_cache: Tensor, k_cache: Tensor, g_cache: Tensor, write_pos: Tensor,
    force_flush: Tensor, scale: float,
) -> None:  # fmt: skip
    """The checks of a careful kernel author: the same as the contract's, every attribute read once."""
    if not isinstance(scale, float) or not 0 < scale < math.inf:
        raise ValueError("scale must be finite and positive")
    qkv_shape, dtype, device = mixed_qkv.shape, mixed_qkv.dtype, mixed_qkv.device
    if len(qkv_shape) != 2:
        raise ValueError("mixed_qkv must have shape [B, C]")
    if dtype not in HALVES:
        raise TypeError("mixed_qkv must be bf16 or fp16")
    if mixed_qkv.stride()[-1] != 1:
        raise ValueError("mixed_qkv must be dense in its last axis")
    batch, width = qkv_shape
    state_shape = initial_state.shape
    if len(state_shape) != 4:
        raise ValueError("initial_state must have shape [slots, HV, V, K]")
    slots, hv, v, k = state_shape
    if initial_state.dtype not in FLOATS:
        raise TypeError("initial_state must be floating point")
    if initial_state.stride()[-1] != 1:
        raise ValueError("initial_state must be dense in its last axis")
    if initial_state.device != device:
        raise ValueError("initial_state must be on the device of mixed_qkv")
    if k <= 0 or width <= hv * v or (width - hv * v) % 2 != 0:
        raise ValueError("mixed_qkv has no room for q and k")
    h = (width - hv * v) // (2 * k)
    if h <= 0 or hv % h != 0:
        raise ValueError("HV must be a multiple of H")
    if a.shape != (batch, hv, k):
        raise ValueError("a must have shape [B, HV, K]")
    if a.dtype is not dtype:
        raise TypeError("a must have the dtype of mixed_qkv")
    if not a.is_contiguous():
        raise ValueError("a must be contiguous")
    if a.device != device:
        raise ValueError("a must be on the device of mixed_qkv")
    if b.shape != (batch, hv):
        raise ValueError("b must have shape [B, HV]")
    if b.dtype is not dtype:
        raise TypeError("b must have the dtype of mixed_qkv")
    if b.stride()[-1] != 1:
        raise ValueError("b must be dense in its last axis")
    if b.device != device:
        raise ValueError("b must be on the device of mixed_qkv")
    if A_log.shape != (hv,):
        raise ValueError("A_log must have shape [HV]")
    if A_log.dtype is not F32:
        raise TypeError("A_log must be float32")
    if not A_log.is_contiguous():
        raise ValueError("A_log must be contiguous")
    if A_log.device != device:
        raise ValueError("A_log must be on the device of mixed_qkv")
    if dt_bias.shape != (hv, k):
        raise ValueError("dt_bias must have shape [HV, K]")
    if dt_bias.dtype is not F32:
        raise TypeError("dt_bias must be float32")
    if not dt_bias.is_contiguous():
        raise ValueError("dt_bias must be contiguous")
    if dt_bias.device != device:
        raise ValueError("dt_bias must be on the device of mixed_qkv")
    if out.shape != (batch, 1, hv, v):
        raise ValueError("out must have shape [B, 1, HV, V]")
    if out.dtype is not dtype:
        raise TypeError("out must have the dtype of mixed_qkv")
    if not out.is_contiguous():
        raise ValueError("out must be contiguous")
    if out.device != device:
        raise ValueError("out must be on the device of mixed_qkv")
    if ssm_state_indices.shape != (batch,):
        raise ValueError("ssm_state_indices must have shape [B]")
    if ssm_state_indices.dtype is not I32:
        raise TypeError("ssm_state_indices must be int32")
    if not ssm_state_indices.is_contiguous():
        raise ValueError("ssm_state_indices must be contiguous")
    if ssm_state_indices.device != device:
        raise ValueError("ssm_state_indices must be on the device of mixed_qkv")
    d_shape = d_cache.shape
    if len(d_shape) != 4 or d_shape[0] != slots or d_shape[1] != hv or d_shape[3] != v:
        raise ValueError("d_cache must have shape [slots, HV, L, V]")
    ring = d_shape[2]
    if d_cache.dtype is not dtype:
        raise TypeError("d_cache must have the dtype of mixed_qkv")
    if not d_cache.is_contiguous():
        raise ValueError("d_cache must be contiguous")
    if d_cache.device != device:
        raise ValueError("d_cache must be on the device of mixed_qkv")
    if k_cache.shape != (slots, h, ring, k):
        raise ValueError("k_cache must have shape [slots, H, L, K]")
    if k_cache.dtype is not dtype:
        raise TypeError("k_cache must have the dtype of mixed_qkv")
    if not k_cache.is_contiguous():
        raise ValueError("k_cache must be contiguous")
    if k_cache.device != device:
        raise ValueError("k_cache must be on the device of mixed_qkv")
    if g_cache.shape != (slots, hv, ring, k):
        raise ValueError("g_cache must have shape [slots, HV, L, K]")
    if g_cache.dtype is not F32:
        raise TypeError("g_cache must be float32")
    if not g_cache.is_contiguous():
        raise ValueError("g_cache must be contiguous")
    if g_cache.device != device:
        raise ValueError("g_cache must be on the device of mixed_qkv")
    if write_pos.shape != (slots,):
        raise ValueError("write_pos must have shape [slots]")
    if write_pos.dtype is not I32:
        raise TypeError("write_pos must be int32")
    if not write_pos.is_contiguous():
        raise ValueError("write_pos must be contiguous")
    if write_pos.device != device:
        raise ValueError("write_pos must be on the device of mixed_qkv")
    if force_flush.shape != (slots,):
        raise ValueError("force_flush must have shape [slots]")
    if force_flush.dtype is not I32:
        raise TypeError("force_flush must be int32")
    if not force_flush.is_contiguous():
        raise ValueError("force_flush must be contiguous")
    if force_flush.device != device:
        raise ValueError("force_flush must be on the device of mixed_qkv")
    ring_plain(
        mixed_qkv, a, b, A_log, dt_bias, initial_state, out, ssm_state_indices, d_cache, k_cache, g_cache, write_pos,
        force_flush, scale,
    )  # fmt: skip


def ring_floor(
    mixed_qkv: Tensor, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, initial_state: Tensor, out: Tensor,
    ssm_state_indices: Tensor, d_cache: Tensor, k_cache: Tensor, g_cache: Tensor, write_pos: Tensor,
    force_flush: Tensor, scale: float,
) -> None:  # fmt: skip
    """Every attribute that the checks need, read once, and the call."""
    mixed_qkv.shape, mixed_qkv.dtype, mixed_qkv.device, mixed_qkv.stride()
    a.shape, a.dtype, a.device, a.is_contiguous()
    b.shape, b.dtype, b.device, b.stride()
    A_log.shape, A_log.dtype, A_log.device, A_log.is_contiguous()
    dt_bias.shape, dt_bias.dtype, dt_bias.device, dt_bias.is_contiguous()
    initial_state.shape, initial_state.dtype, initial_state.device, initial_state.stride()
    out.shape, out.dtype, out.device, out.is_contiguous()
    ssm_state_indices.shape, ssm_state_indices.dtype, ssm_state_indices.device  # noqa: B018
    ssm_state_indices.is_contiguous()
    d_cache.shape, d_cache.dtype, d_cache.device, d_cache.is_contiguous()
    k_cache.shape, k_cache.dtype, k_cache.device, k_cache.is_contiguous()
    g_cache.shape, g_cache.dtype, g_cache.device, g_cache.is_contiguous()
    write_pos.shape, write_pos.dtype, write_pos.device, write_pos.is_contiguous()
    force_flush.shape, force_flush.dtype, force_flush.device, force_flush.is_contiguous()
    ring_plain(
        mixed_qkv, a, b, A_log, dt_bias, initial_state, out, ssm_state_indices, d_cache, k_cache, g_cache, write_pos,
        force_flush, scale,
    )  # fmt: skip


def ring_arguments(n: int, pools: int = 1) -> tuple[Any, ...]:
    """Valid arguments for n tokens, the caches so many times as large."""
    batch, h, hv, k, v, slots, ring = n, 2, 4, 16, 8, 5 * pools, 6
    width = 2 * h * k + hv * v
    half = {"dtype": BF16}
    return (
        torch.zeros(batch, width, **half), torch.zeros(batch, hv, k, **half), torch.zeros(batch, hv, **half),
        torch.zeros(hv), torch.zeros(hv, k), torch.zeros(slots, hv, v, k), torch.zeros(batch, 1, hv, v, **half),
        torch.zeros(batch, dtype=I32), torch.zeros(slots, hv, ring, v, **half),
        torch.zeros(slots, h, ring, k, **half), torch.zeros(slots, hv, ring, k), torch.zeros(slots, dtype=I32),
        torch.zeros(slots, dtype=I32), 0.25,
    )  # fmt: skip


RING_CASES = (
    Case(
        "13 tensors",
        ring_plain,
        lambda: ring_annotated,
        ring_by_hand,
        ring_floor,
        ring_arguments,
        narrower(1),
        RING,
        extended=True,
    ),
)
