"""KDA decode in plain torch: what the Triton kernels are compared with.

Half and float32 inputs are computed in float32 and float64 inputs in float64, so that upcasting gives the reference.
A name that ends with an underscore writes into its arguments; the one without returns new tensors.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

NORM_EPSILON = 1e-6
"""Added to the sum of squares before a query or key is normalised."""


class ReplaySSMResult(NamedTuple):
    """What one replayed decode step leaves behind."""

    out: Tensor
    initial_state: Tensor
    d_cache: Tensor
    k_cache: Tensor
    g_cache: Tensor


class PackedResult(NamedTuple):
    """What one packed decode step leaves behind."""

    out: Tensor
    initial_state: Tensor


class _Tokens(NamedTuple):
    """The new tokens of the rows that are no padding, in the dtype of the computation."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


def kda_gate(a: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:
    """Natural log of the decay of each key channel.

    Args:
        a: Raw forget-gate logits, ``[..., HV, K]``.
        A_log: Log decay rate of each value head.
        dt_bias: Bias of the logits, ``[HV, K]``.
        lower_bound: Smallest log decay of the bounded sigmoid gate, or None for the softplus gate.
    """
    rate = A_log.exp()[:, None]
    logits = a + dt_bias
    if lower_bound is None:
        return -rate * softplus(logits, threshold=20.0)
    return lower_bound * torch.sigmoid(rate * logits)


def naive_replayssm_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    d_cache: Tensor,
    k_cache: Tensor,
    g_cache: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    write_pos: Tensor,
    force_flush: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
    *,
    round_beta: bool = False,
) -> ReplaySSMResult:
    """One decode step on copies; the arguments are those of the entry point and stay as they are.

    A slot at or beyond the end of the pool and a cursor outside the ring count as padding, like a negative slot.
    """
    written = ReplaySSMResult(*(x.clone() for x in (out, initial_state, d_cache, k_cache, g_cache)))
    naive_replayssm_decode_(
        mixed_qkv,
        a,
        b,
        A_log,
        dt_bias,
        scale,
        written.initial_state,
        written.d_cache,
        written.k_cache,
        written.g_cache,
        written.out,
        ssm_state_indices,
        write_pos,
        force_flush,
        use_qk_l2norm_in_kernel,
        lower_bound,
        round_beta=round_beta,
    )
    return written


@torch.no_grad()
def naive_replayssm_decode_(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    d_cache: Tensor,
    k_cache: Tensor,
    g_cache: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    write_pos: Tensor,
    force_flush: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
    *,
    round_beta: bool = False,
) -> tuple[Tensor, Tensor]:
    """One decode step in place, with the arguments of the entry point.

    Returns:
        ``out`` and ``initial_state``, the objects that were passed in.
    """
    dim_k, length = initial_state.shape[3], d_cache.shape[2]
    live = (ssm_state_indices >= 0) & (ssm_state_indices < initial_state.shape[0])
    rows = (live & (write_pos >= 0) & (write_pos < length)).nonzero()[:, 0]
    slot, cursor = ssm_state_indices[rows].long(), write_pos[rows].long()
    compute = _compute_dtype(mixed_qkv, a, b, A_log, dt_bias, initial_state, d_cache, k_cache, g_cache, out)
    tokens = _tokens(
        mixed_qkv[rows],
        a.reshape(*b.shape, dim_k)[rows],
        b[rows],
        A_log,
        dt_bias,
        initial_state,
        use_qk_l2norm_in_kernel,
        lower_bound,
        round_beta,
        compute,
    )
    group = b.shape[1] // k_cache.shape[1]

    # Rows of the ring at or behind the cursor may hold anything, NaN included.
    position = torch.arange(length, device=cursor.device)
    buffered = (position < cursor[:, None])[:, None, :, None]
    d, k, g = (torch.where(buffered, x[slot].to(compute), 0) for x in (d_cache, k_cache, g_cache))
    state = _replayed(initial_state[slot].to(compute), d, k.repeat_interleave(group, dim=1), g)

    value, correction, state = _decoded(state, tokens, group, float(scale))
    out.zero_()
    out[rows, 0] = value.to(out.dtype)
    flushed = cursor == length - 1
    if force_flush is not None:
        flushed |= force_flush[rows] != 0
    initial_state[slot[flushed]] = state[flushed].to(initial_state.dtype)
    kept, at = slot[~flushed], cursor[~flushed]
    d_cache[kept, :, at] = correction[~flushed].to(d_cache.dtype)
    k_cache[kept, :, at] = tokens.k[~flushed].to(k_cache.dtype)
    g_cache[kept, :, at] = tokens.g[~flushed].to(g_cache.dtype)
    return out, initial_state


def naive_packed_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
    *,
    round_beta: bool = False,
) -> PackedResult:
    """One decode step without rings, on copies; the arguments are those of the entry point and stay as they are."""
    written = PackedResult(out.clone(), initial_state.clone())
    naive_packed_decode_(
        mixed_qkv,
        a,
        b,
        A_log,
        dt_bias,
        scale,
        written.initial_state,
        written.out,
        ssm_state_indices,
        use_qk_l2norm_in_kernel,
        lower_bound,
        round_beta=round_beta,
    )
    return written


@torch.no_grad()
def naive_packed_decode_(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
    *,
    round_beta: bool = False,
) -> tuple[Tensor, Tensor]:
    """One decode step without rings, in place, with the arguments of the entry point.

    Returns:
        ``out`` and ``initial_state``, the objects that were passed in.
    """
    dim_k = initial_state.shape[3]
    rows = ((ssm_state_indices >= 0) & (ssm_state_indices < initial_state.shape[0])).nonzero()[:, 0]
    slot = ssm_state_indices[rows].long()
    compute = _compute_dtype(mixed_qkv, a, b, A_log, dt_bias, initial_state, out)
    tokens = _tokens(
        mixed_qkv[rows],
        a.reshape(*b.shape, dim_k)[rows],
        b[rows],
        A_log,
        dt_bias,
        initial_state,
        use_qk_l2norm_in_kernel,
        lower_bound,
        round_beta,
        compute,
    )
    group = b.shape[1] // tokens.k.shape[1]
    value, _, state = _decoded(initial_state[slot].to(compute), tokens, group, float(scale))
    out.zero_()
    out[rows, 0] = value.to(out.dtype)
    initial_state[slot] = state.to(initial_state.dtype)
    return out, initial_state


def _compute_dtype(*tensors: Tensor) -> torch.dtype:
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


def _tokens(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    initial_state: Tensor,
    normalise: bool,
    lower_bound: float | None,
    round_beta: bool,
    compute: torch.dtype,
) -> _Tokens:
    """Cut packed rows apart and evaluate the gates."""
    heads, dim_v, dim_k = initial_state.shape[1:]
    width = (mixed_qkv.shape[1] - heads * dim_v) // 2
    packed, rows = mixed_qkv.to(compute), mixed_qkv.shape[0]
    q = packed[:, :width].reshape(rows, width // dim_k, dim_k)
    k = packed[:, width : 2 * width].reshape(rows, width // dim_k, dim_k)
    v = packed[:, 2 * width :].reshape(rows, heads, dim_v)
    if normalise:
        q, k = (x / (x.square().sum(-1, keepdim=True) + NORM_EPSILON).sqrt() for x in (q, k))
    g = kda_gate(a.to(compute), A_log.to(compute), dt_bias.to(compute).reshape(heads, dim_k), lower_bound)
    beta = torch.sigmoid(b.to(compute))
    return _Tokens(q, k, v, g, beta.to(b.dtype).to(compute) if round_beta else beta)


def _replayed(state: Tensor, d: Tensor, k: Tensor, g: Tensor) -> Tensor:
    """The state that a checkpoint and the tokens in its ring stand for."""
    # Decay that a token has seen since it was buffered: the gates behind it, summed from the end without subtracting.
    inclusive = g.flip(2).cumsum(2).flip(2)
    behind = torch.cat([inclusive[:, :, 1:], torch.zeros_like(g[:, :, :1])], dim=2)
    decayed = state * inclusive[:, :, 0].exp()[:, :, None, :]
    return decayed + torch.einsum("nhlv,nhlk->nhvk", d, k * behind.exp())


def _decoded(state: Tensor, tokens: _Tokens, group: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Output, corrected value and next state of one token on its state."""
    k, q = (x.repeat_interleave(group, dim=1) for x in (tokens.k, tokens.q * scale))
    state = state * tokens.g.exp()[:, :, None, :]
    d = tokens.beta[:, :, None] * (tokens.v - torch.einsum("nhvk,nhk->nhv", state, k))
    state = state + d[:, :, :, None] * k[:, :, None, :]
    return torch.einsum("nhvk,nhk->nhv", state, q), d, state
