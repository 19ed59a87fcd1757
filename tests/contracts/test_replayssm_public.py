"""KDA decode on generated mistakes: class and text are those of the public checks, written out by hand here.

Left out is one corner: a last axis of size 1 with a stride other than 1, where the public code looks at the stride that
flattening leaves, and ours at that of the argument.
"""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

import tensorpact
from tensorpact import ContractViolation
from tensorpact_contracts import replayssm as documented
from tensorpact_kernels import fused_recurrent_kda_packed_decode, fused_recurrent_kda_replayssm_decode

Arguments = dict[str, Any]
Verdict = tuple[type[Exception], str] | None

#: Sizes of the valid calls that are then damaged: no two dims alike, then dims that can be mistaken for each other.
SIZES = [
    {"B": 3, "H": 2, "HV": 4, "K": 5, "V": 7, "L": 6, "slots": 9},
    {"B": 2, "H": 2, "HV": 4, "K": 16, "V": 16, "L": 4, "slots": 5},
    {"B": 2, "H": 3, "HV": 3, "K": 4, "V": 8, "L": 2, "slots": 3},
]


def valid(packed: bool, B: int, H: int, HV: int, K: int, V: int, L: int, slots: int) -> Arguments:
    given: Arguments = {
        "mixed_qkv": torch.zeros(B, 2 * H * K + HV * V),
        "a": torch.zeros(B, HV * K) if packed or B == 3 else torch.zeros(B, HV, K),
        "b": torch.zeros(B, HV),
        "A_log": torch.zeros(HV),
        "dt_bias": torch.zeros(HV * K) if packed or B == 3 else torch.zeros(HV, K),
        "scale": 0.25,
        "initial_state": torch.zeros(slots, HV, V, K),
    }
    if not packed:
        given |= {
            "d_cache": torch.zeros(slots, HV, L, V),
            "k_cache": torch.zeros(slots, H, L, K),
            "g_cache": torch.zeros(slots, HV, L, K),
        }
    given |= {
        "out": torch.zeros(B, 1, HV, V),
        "ssm_state_indices": torch.full((B,), -1, dtype=torch.int32),
    }
    if not packed:
        given |= {"write_pos": torch.zeros(B, dtype=torch.int32), "force_flush": torch.zeros(B, dtype=torch.int32)}
    return given


def damaged(given: Arguments, rng: random.Random) -> Arguments:
    """One to three changes of the kind that callers make."""
    given = dict(given)
    names = [name for name, x in given.items() if isinstance(x, Tensor)]
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice(names)
        given[name] = _changed(given[name], rng)
    return given


def _changed(x: Tensor, rng: random.Random) -> Tensor:
    sizes = list(x.shape)
    kind = rng.choice(("size", "size", "size", "drop", "add", "transpose", "step", "dtype", "device", "merge"))
    if kind == "device":
        return x.to("meta")
    if kind == "dtype":
        return x.to(rng.choice((torch.float16, torch.int32, torch.int64, torch.float32)))
    if kind == "add":
        return x.unsqueeze(rng.randrange(x.ndim + 1))
    if not sizes:
        return x
    axis = rng.randrange(x.ndim)
    if kind == "drop":
        return x.select(axis, 0).contiguous() if sizes[axis] else x[..., :0]
    if kind == "transpose" and x.ndim > 1:
        # A last axis of size 1 with another stride is the corner that stays out.
        turned = x.transpose(-1, -2)
        return turned if rng.random() < 0.5 and turned.shape[-1] > 1 else turned.contiguous()
    if kind == "step" and sizes[-1] > 1:
        return torch.zeros(*sizes[:-1], 2 * sizes[-1], dtype=x.dtype, device=x.device)[..., ::2]
    if kind == "merge" and x.ndim > 1:
        return x.flatten(0, 1)
    old = sizes[axis]
    sizes[axis] = rng.choice((0, old + 1, old + 2, max(old - 1, 0), 2 * old, max(old // 2, 1)))
    return torch.zeros(sizes, dtype=x.dtype, device=x.device)


def public_verdict(x: Arguments, packed: bool) -> Verdict:
    """The public checks, one after the other; where the public code fails by accident, what stands in their place."""
    qkv, a, b, A_log, dt, state = (x[n] for n in ("mixed_qkv", "a", "b", "A_log", "dt_bias", "initial_state"))
    out, indices = x["out"], x["ssm_state_indices"]
    a_shape, a_flat, dt_flat = tuple(a.shape), a, dt
    if not packed:
        if a.ndim not in (2, 3) or not a.is_contiguous():
            return ValueError, "KDA `a` must be a contiguous 2D or 3D tensor."
        if dt.ndim not in (1, 2) or not dt.is_contiguous():
            return ValueError, "KDA `dt_bias` must be a contiguous 1D or 2D tensor."
        if qkv.ndim:
            rows = qkv.size(0)
            if a.numel() % max(rows, 1):
                text = f"KDA `a` has {a.numel()} elements, which do not divide into the {rows} rows of `mixed_qkv`."
                return RuntimeError, text
            a_shape = (rows, a.numel() // max(rows, 1))
            a_flat = a if not rows else a.view(rows, -1)
            dt_flat = dt.view(-1)
    if qkv.ndim != 2:
        return ValueError, f"`mixed_qkv` must be a 2D tensor (got ndim={qkv.ndim})."
    if qkv.stride(-1) != 1:
        return ValueError, "`mixed_qkv` must be contiguous in the last dim."
    if len(a_shape) != 2 or b.ndim != 2:
        return ValueError, f"`a` and `b` must be 2D tensors (got a.ndim={len(a_shape)}, b.ndim={b.ndim})."
    if a_flat.stride(-1) != 1 or b.stride(-1) != 1:
        return ValueError, "`a`/`b` must be contiguous in the last dim."
    if A_log.ndim != 1 or dt_flat.ndim != 1:
        return ValueError, "`A_log`/`dt_bias` must be 1D tensors."
    if A_log.stride(0) != 1 or dt_flat.stride(0) != 1:
        return ValueError, "`A_log`/`dt_bias` must be contiguous."
    if indices.ndim != 1:
        return ValueError, f"`ssm_state_indices` must be 1D for packed decode (got ndim={indices.ndim})."
    if not out.is_contiguous():
        return ValueError, "`out` must be contiguous."
    if any(t.device != qkv.device for t in (a, b, A_log, dt, state, out, indices)):
        return ValueError, "All inputs must be on the same device."
    B = qkv.shape[0]
    if a_shape[0] != B or b.shape[0] != B:
        text = f"mixed_qkv.shape[0]={B}, a.shape[0]={a_shape[0]}, b.shape[0]={b.shape[0]}."
        return ValueError, f"Mismatched batch sizes: {text}"
    if indices.shape[0] != B:
        text = f"`ssm_state_indices` must have shape [B] (got {tuple(indices.shape)}; expected ({B},))."
        return ValueError, text
    if state.ndim != 4:
        return ValueError, f"`initial_state` must be a 4D tensor (got ndim={state.ndim})."
    if state.stride(-1) != 1:
        return ValueError, "`initial_state` must be contiguous in the last dim."
    HV, V, K = state.shape[1:]
    if a_shape[1] != HV * K:
        return ValueError, f"`a` must have shape [B, HV*K] with HV={HV}, K={K} (got a.shape={a_shape})."
    if b.shape[1] != HV:
        return ValueError, f"`b` must have shape [B, HV] with HV={HV} (got b.shape={tuple(b.shape)})."
    if A_log.numel() != HV:
        return ValueError, f"`A_log` must have {HV} elements (got {A_log.numel()})."
    if dt.numel() != HV * K:
        return ValueError, f"`dt_bias` must have {HV * K} elements (got {dt.numel()})."
    if tuple(out.shape) != (B, 1, HV, V):
        return ValueError, f"`out` must have shape {(B, 1, HV, V)} (got out.shape={tuple(out.shape)})."
    width = qkv.shape[1]
    rest = width - HV * V
    if rest <= 0 or rest % 2:
        return ValueError, f"Invalid packed `mixed_qkv` last dim={width} for HV={HV}, V={V}."
    if K == 0:
        text = f"`initial_state` must have sizes above 0 behind its slots (got HV={HV}, V={V}, K=0)."
        return ValueError, text
    if rest // 2 % K:
        text = "KDA packed decode requires num_q_heads == num_k_heads and head_q_dim == head_k_dim."
        return ValueError, f"Invalid packed Q size {rest // 2}: must be divisible by K={K}. {text}"
    H = rest // 2 // K
    if HV % H:
        return ValueError, f"Invalid head config inferred from mixed_qkv: H={H}, HV={HV}."
    return None if packed else _ring_verdict(x, B, H, HV, K, V)


def _ring_verdict(x: Arguments, B: int, H: int, HV: int, K: int, V: int) -> Verdict:
    cursor, flush, d, k, g = (x[n] for n in ("write_pos", "force_flush", "d_cache", "k_cache", "g_cache"))
    device = x["mixed_qkv"].device
    if cursor.ndim != 1 or cursor.dtype != torch.int32:
        return ValueError, "`write_pos` must be a 1D int32 tensor."
    if tuple(cursor.shape) != (B,):
        return ValueError, f"`write_pos` must have shape {(B,)}."
    if flush is not None and (flush.ndim != 1 or flush.dtype != torch.int32 or flush.shape[0] != B):
        return ValueError, "`force_flush` must be a length-B int32 tensor or None."
    if d.ndim < 3:
        return ValueError, "`d_cache` must have shape [slots, HV, L, V]."
    L = d.size(2)
    if L < 1:
        return ValueError, "ReplaySSM cache length must be at least 1."
    for name, ring, wanted, axes in (
        ("d_cache", d, (HV, L, V), "HV, L, V"),
        ("k_cache", k, (H, L, K), "H, L, K"),
        ("g_cache", g, (HV, L, K), "HV, L, K"),
    ):
        if tuple(ring.shape[1:]) != wanted:
            return ValueError, f"`{name}` must have shape [slots, {axes}]."
    if g.dtype != torch.float32:
        return ValueError, "`g_cache` must have dtype torch.float32."
    if any(t.device != device for t in (d, k, g, cursor)):
        return ValueError, "ReplaySSM inputs must be on the same device."
    if flush is not None and flush.device != device:
        return ValueError, "`force_flush` must be on the same device as the inputs."
    return None


#: What may be raised where the public checks have nothing to say.
BEYOND = {
    documented.EMPTY_HEADS,
    documented.SLOT_COUNTS,
    documented.A_SHAPE,
    documented.DT_BIAS_SHAPE,
    documented.ACTIVATION_DTYPE,
    documented.HALF_FORMATS,
    documented.GATE_PARAMETER_DTYPE,
    documented.STATE_DTYPE,
    documented.RING_DTYPE,
    documented.INDICES_DTYPE,
    # Damaged vectors hold zeros.
    documented.SLOT_REPEATED,
}


def ours(given: Arguments, packed: bool) -> ContractViolation | None:
    function = fused_recurrent_kda_packed_decode if packed else fused_recurrent_kda_replayssm_decode
    try:
        function(**given)
    except ContractViolation as error:
        return error
    return None


@pytest.mark.parametrize(("mode", "count"), [("compiled", 1500), ("beartype", 60)])
@pytest.mark.parametrize("packed", [False, True], ids=["replay", "packed"])
def test_generated_mistakes(packed: bool, mode: Any, count: int):
    rng = random.Random(f"{packed} {mode}")
    seen: dict[str, int] = {}
    with tensorpact.enforcement(mode):
        for i in range(count):
            given = damaged(valid(packed, **SIZES[i % 3]), rng)
            public, error = public_verdict(given, packed), ours(given, packed)
            if public is None:
                assert error is None or error.error in BEYOND, str(error)
                continue
            assert error is not None, public
            assert error.error is not None, str(error)
            assert (error.error.documented, str(error)) == public, {n: _shown(x) for n, x in given.items()}
            seen[error.error.slug] = seen.get(error.error.slug, 0) + 1
    assert sum(seen.values()) > count // 2
    if mode == "compiled":
        contract = documented.PACKED_DECODE if packed else documented.REPLAYSSM_DECODE
        last = documented.HEAD_CONFIG if packed else documented.FORCE_FLUSH_DEVICE
        public_errors = contract.errors[: contract.errors.index(last) + 1]
        assert {e.slug for e in public_errors} - set(seen) <= {"empty-heads"}


def _shown(x: Any) -> Any:
    return f"{list(x.shape)} {x.stride()} {x.dtype} {x.device}" if isinstance(x, Tensor) else x
