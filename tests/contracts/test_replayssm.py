"""KDA decode with replay rings: every public check in firing order, and every hole of the public checks closed.

Contents of index tensors are the business of value checks and stay out of this file.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tensorpact
from tensorpact import ContractViolation, DocumentedError, name_axes
from tensorpact_contracts import replayssm as documented
from tensorpact_kernels import (
    fused_recurrent_kda_replayssm_decode,
    helion_fused_recurrent_kda_packed_decode,
    helion_fused_recurrent_kda_replayssm_decode,
)

pytestmark = pytest.mark.usefixtures("both_modes")
Arguments = dict[str, Any]
Change = Callable[[Arguments], Arguments]


def T(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:  # noqa: N802 - as the cases write it
    return torch.zeros(sizes, dtype=dtype)


def ints(*sizes: int) -> Tensor:
    return T(*sizes, dtype=torch.int32)


def arguments(V: int = 16, flat: bool = False) -> Arguments:
    """B 2, H 2, HV 4, K 16, L 4, slots 5."""
    return {
        "mixed_qkv": T(2, 64 + 4 * V),
        "a": T(2, 64) if flat else T(2, 4, 16),
        "b": T(2, 4),
        "A_log": T(4),
        "dt_bias": T(64) if flat else T(4, 16),
        "scale": 0.25,
        "initial_state": T(5, 4, V, 16),
        "d_cache": T(5, 4, 4, V),
        "k_cache": T(5, 2, 4, 16),
        "g_cache": T(5, 4, 4, 16),
        "out": T(2, 1, 4, V),
        "ssm_state_indices": torch.tensor([4, 1], dtype=torch.int32),
        "write_pos": ints(2),
    }


def strided(tensor: Tensor) -> Tensor:
    """The same shape with every second element of the last axis."""
    return torch.zeros(*tensor.shape[:-1], tensor.shape[-1] * 2, dtype=tensor.dtype)[..., ::2]


def meta(tensor: Tensor) -> Tensor:
    return tensor.to("meta")


def refused(given: Arguments, error: DocumentedError, text: str) -> None:
    with pytest.raises(error.documented) as caught:
        fused_recurrent_kda_replayssm_decode(**given)
    assert isinstance(caught.value, ContractViolation)
    assert (caught.value.error, str(caught.value)) == (error, text)


A = "KDA `a` must be a contiguous 2D or 3D tensor."
DT = "KDA `dt_bias` must be a contiguous 1D or 2D tensor."
HEADS = "KDA packed decode requires num_q_heads == num_k_heads and head_q_dim == head_k_dim."
W3 = "`force_flush` must be a length-B int32 tensor or None."
W9 = "ReplaySSM inputs must be on the same device."
#: Id, changed arguments, documented error, its exact text; in firing order, for V = 16. Ids are those of the spec.
PUBLIC: list[tuple[str, Change, DocumentedError, str]] = [
    ("1-rank", lambda x: {"a": T(128)}, documented.A_LAYOUT, A),
    ("1-layout", lambda x: {"a": strided(x["a"])}, documented.A_LAYOUT, A),
    ("2-rank", lambda x: {"dt_bias": T(4, 4, 4)}, documented.DT_BIAS_LAYOUT, DT),
    ("2-layout", lambda x: {"dt_bias": strided(T(64))}, documented.DT_BIAS_LAYOUT, DT),
    (
        "3",
        lambda x: {"a": T(3, 3)},
        documented.A_ROWS,
        "KDA `a` has 9 elements, which do not divide into the 2 rows of `mixed_qkv`.",
    ),
    (
        "v1",
        lambda x: {"mixed_qkv": T(2, 1, 128)},
        documented.MIXED_QKV_RANK,
        "`mixed_qkv` must be a 2D tensor (got ndim=3).",
    ),
    ("0", lambda x: {"mixed_qkv": T()}, documented.MIXED_QKV_RANK, "`mixed_qkv` must be a 2D tensor (got ndim=0)."),
    (
        "v2",
        lambda x: {"mixed_qkv": strided(x["mixed_qkv"])},
        documented.MIXED_QKV_LAYOUT,
        "`mixed_qkv` must be contiguous in the last dim.",
    ),
    ("v3", lambda x: {"b": T(8)}, documented.AB_RANK, "`a` and `b` must be 2D tensors (got a.ndim=2, b.ndim=1)."),
    ("v4", lambda x: {"b": T(4, 2).T}, documented.AB_LAYOUT, "`a`/`b` must be contiguous in the last dim."),
    ("v5", lambda x: {"A_log": T(1, 4)}, documented.GATE_PARAMETER_RANK, "`A_log`/`dt_bias` must be 1D tensors."),
    (
        "v6",
        lambda x: {"A_log": strided(T(4))},
        documented.GATE_PARAMETER_LAYOUT,
        "`A_log`/`dt_bias` must be contiguous.",
    ),
    (
        "v7",
        lambda x: {"ssm_state_indices": ints(2, 1)},
        documented.INDICES_RANK,
        "`ssm_state_indices` must be 1D for packed decode (got ndim=2).",
    ),
    ("v8", lambda x: {"out": strided(x["out"])}, documented.OUT_LAYOUT, "`out` must be contiguous."),
    ("v9-b", lambda x: {"b": meta(x["b"])}, documented.DEVICES, "All inputs must be on the same device."),
    (
        "v9-state",
        lambda x: {"initial_state": meta(x["initial_state"])},
        documented.DEVICES,
        "All inputs must be on the same device.",
    ),
    (
        "v10",
        lambda x: {"b": T(3, 4)},
        documented.BATCH_SIZES,
        "Mismatched batch sizes: mixed_qkv.shape[0]=2, a.shape[0]=2, b.shape[0]=3.",
    ),
    (
        "v11",
        lambda x: {"ssm_state_indices": ints(3)},
        documented.INDICES_SHAPE,
        "`ssm_state_indices` must have shape [B] (got (3,); expected (2,)).",
    ),
    (
        "v12",
        lambda x: {"initial_state": T(5, 4, 16)},
        documented.STATE_RANK,
        "`initial_state` must be a 4D tensor (got ndim=3).",
    ),
    (
        "v13",
        lambda x: {"initial_state": strided(x["initial_state"])},
        documented.STATE_LAYOUT,
        "`initial_state` must be contiguous in the last dim.",
    ),
    (
        "v15",
        lambda x: {"a": T(2, 4, 8)},
        documented.A_WIDTH,
        "`a` must have shape [B, HV*K] with HV=4, K=16 (got a.shape=(2, 32)).",
    ),
    (
        "v16",
        lambda x: {"b": T(2, 2)},
        documented.B_WIDTH,
        "`b` must have shape [B, HV] with HV=4 (got b.shape=(2, 2)).",
    ),
    ("v17", lambda x: {"A_log": T(3)}, documented.A_LOG_LENGTH, "`A_log` must have 4 elements (got 3)."),
    ("v18", lambda x: {"dt_bias": T(4, 8)}, documented.DT_BIAS_LENGTH, "`dt_bias` must have 64 elements (got 32)."),
    (
        "v19-rank",
        lambda x: {"out": T(2, 4, 16)},
        documented.OUT_SHAPE,
        "`out` must have shape (2, 1, 4, 16) (got out.shape=(2, 4, 16)).",
    ),
    (
        "v19-axis",
        lambda x: {"out": T(2, 1, 2, 16)},
        documented.OUT_SHAPE,
        "`out` must have shape (2, 1, 4, 16) (got out.shape=(2, 1, 2, 16)).",
    ),
    (
        "v20-zero",
        lambda x: {"mixed_qkv": T(2, 64)},
        documented.QKV_WIDTH,
        "Invalid packed `mixed_qkv` last dim=64 for HV=4, V=16.",
    ),
    (
        "v20-odd",
        lambda x: {"mixed_qkv": T(2, 129)},
        documented.QKV_WIDTH,
        "Invalid packed `mixed_qkv` last dim=129 for HV=4, V=16.",
    ),
    (
        "v21-no-key-columns",
        lambda x: {
            "initial_state": T(5, 4, 16, 0).as_strided((5, 4, 16, 0), (0, 0, 0, 1)),
            "a": T(2, 0),
            "dt_bias": T(0),
        },
        documented.EMPTY_HEADS,
        "`initial_state` must have sizes above 0 behind its slots (got HV=4, V=16, K=0).",
    ),
    (
        "v21",
        lambda x: {"mixed_qkv": T(2, 144)},
        documented.Q_SIZE,
        f"Invalid packed Q size 40: must be divisible by K=16. {HEADS}",
    ),
    (
        "v22",
        lambda x: {"mixed_qkv": T(2, 160)},
        documented.HEAD_CONFIG,
        "Invalid head config inferred from mixed_qkv: H=3, HV=4.",
    ),
    ("w1-rank", lambda x: {"write_pos": ints(2, 1)}, documented.WRITE_POS, "`write_pos` must be a 1D int32 tensor."),
    (
        "w1-dtype",
        lambda x: {"write_pos": ints(2).long()},
        documented.WRITE_POS,
        "`write_pos` must be a 1D int32 tensor.",
    ),
    ("w2", lambda x: {"write_pos": ints(3)}, documented.WRITE_POS_SHAPE, "`write_pos` must have shape (2,)."),
    ("w3-rank", lambda x: {"force_flush": ints(1, 2)}, documented.FORCE_FLUSH, W3),
    ("w3-dtype", lambda x: {"force_flush": ints(2) > 0}, documented.FORCE_FLUSH, W3),
    ("w3-length", lambda x: {"force_flush": ints(3)}, documented.FORCE_FLUSH, W3),
    (
        "w4",
        lambda x: {"d_cache": T(5, 4, 0, 16)},
        documented.RING_EMPTY,
        "ReplaySSM cache length must be at least 1.",
    ),
    (
        "w5",
        lambda x: {"d_cache": T(5, 2, 4, 16)},
        documented.D_CACHE_SHAPE,
        "`d_cache` must have shape [slots, HV, L, V].",
    ),
    (
        "w5-rank",
        lambda x: {"d_cache": T(5, 4)},
        documented.D_CACHE_SHAPE,
        "`d_cache` must have shape [slots, HV, L, V].",
    ),
    (
        "w6",
        lambda x: {"k_cache": T(5, 4, 4, 16)},
        documented.K_CACHE_SHAPE,
        "`k_cache` must have shape [slots, H, L, K].",
    ),
    (
        "w7",
        lambda x: {"g_cache": T(5, 4, 4, 8)},
        documented.G_CACHE_SHAPE,
        "`g_cache` must have shape [slots, HV, L, K].",
    ),
    (
        "w8",
        lambda x: {"g_cache": x["g_cache"].half()},
        documented.G_CACHE_DTYPE,
        "`g_cache` must have dtype torch.float32.",
    ),
    ("w9", lambda x: {"write_pos": meta(ints(2))}, documented.RING_DEVICES, W9),
    ("w9-cache", lambda x: {"g_cache": meta(x["g_cache"])}, documented.RING_DEVICES, W9),
    (
        "w10",
        lambda x: {"force_flush": meta(ints(2))},
        documented.FORCE_FLUSH_DEVICE,
        "`force_flush` must be on the same device as the inputs.",
    ),
]

SLOTS = "Rings must have one row for each of the 5 slots of `initial_state`; of another length: "
ACTIVATIONS = "`mixed_qkv`, `a`, `b` and `out` are fp32, bf16 or fp16; of another dtype: "
GATES = "`A_log` and `dt_bias` are fp64, fp32, bf16 or fp16; of another dtype: "
RINGS = "`d_cache` and `k_cache` share one dtype, fp32, bf16 or fp16 (got "
STRIDE = "A tensor that is written needs memory for each of its elements; several share an address in: "
OUT = "`out` must have memory of its own; it shares some with: "
POOLS = "State and rings must share no memory with one another or an input; overlapped by one of them: "


def _half_ring(x: Arguments) -> Arguments:
    pool = T(5, 4, 6, 16)
    return {"d_cache": pool[:, :, :4], "g_cache": pool[:, :, 2:]}


def _carved(pool: Tensor, like: Tensor) -> Tensor:
    """A tensor shaped and typed as another, in the first bytes of a pool."""
    return pool.view(-1).view(like.dtype)[: like.numel()].view(like.shape)


#: What the public checks let through; the number is that of the hole in the spec.
HOLES: list[tuple[str, Change, DocumentedError, str]] = [
    (
        "1",
        lambda x: {"initial_state": T(8, 4, 16, 16)},
        documented.SLOT_COUNTS,
        SLOTS.replace("5", "8") + "d_cache, k_cache, g_cache.",
    ),
    ("1-one", lambda x: {"k_cache": T(4, 2, 4, 16)}, documented.SLOT_COUNTS, SLOTS + "k_cache."),
    (
        "6-a",
        lambda x: {"a": T(2, 16, 4)},
        documented.A_SHAPE,
        "`a` must have shape (2, 4, 16) or (2, 64) (got (2, 16, 4)).",
    ),
    (
        "7",
        lambda x: {"a": T(4, 4, 8)},
        documented.A_SHAPE,
        "`a` must have shape (2, 4, 16) or (2, 64) (got (4, 4, 8)).",
    ),
    (
        "7-flat",
        lambda x: {"a": T(4, 32)},
        documented.A_SHAPE,
        "`a` must have shape (2, 4, 16) or (2, 64) (got (4, 32)).",
    ),
    (
        "6-dt-bias",
        lambda x: {"dt_bias": T(16, 4)},
        documented.DT_BIAS_SHAPE,
        "`dt_bias` must have shape (4, 16) or (64,) (got (16, 4)).",
    ),
    (
        "16",
        lambda x: {"d_cache": T(5, 4, 65, 16), "k_cache": T(5, 2, 65, 16), "g_cache": T(5, 4, 65, 16)},
        documented.RING_LIMIT,
        "ReplaySSM cache length must be at most 64 (got 65).",
    ),
    (
        "10-ring",
        lambda x: {"d_cache": x["d_cache"].double(), "k_cache": x["k_cache"].double()},
        documented.RING_DTYPE,
        RINGS + "torch.float64 and torch.float64).",
    ),
    (
        "10-rings-differ",
        lambda x: {"k_cache": x["k_cache"].half()},
        documented.RING_DTYPE,
        RINGS + "torch.float32 and torch.float16).",
    ),
    (
        "10-fp8-ring",
        lambda x: {"d_cache": x["d_cache"].to(torch.float8_e4m3fn)},
        documented.RING_DTYPE,
        RINGS + "torch.float8_e4m3fn and torch.float32).",
    ),
    (
        "10-complex-ring",
        lambda x: {"k_cache": x["k_cache"].to(torch.complex64)},
        documented.RING_DTYPE,
        RINGS + "torch.float32 and torch.complex64).",
    ),
    (
        "8",
        lambda x: {"initial_state": name_axes(T(5, 4, 16, 16), "slots HV K V")},
        documented.STATE_AXES,
        "`initial_state` must have the axes [slots, HV, V, K] (named [slots, HV, K, V]).",
    ),
    (
        "13-no-value-heads",
        lambda x: {
            "mixed_qkv": T(2, 64),
            "a": T(2, 0),
            "b": T(2, 0),
            "A_log": T(0),
            "dt_bias": T(0),
            "initial_state": T(5, 0, 16, 16),
            "d_cache": T(5, 0, 4, 16),
            "g_cache": T(5, 0, 4, 16),
            "out": T(2, 1, 0, 16),
        },
        documented.EMPTY_HEADS,
        "`initial_state` must have sizes above 0 behind its slots (got HV=0, V=16, K=16).",
    ),
    (
        "13-no-value-columns",
        lambda x: {
            "mixed_qkv": T(2, 64),
            "initial_state": T(5, 4, 0, 16),
            "d_cache": T(5, 4, 4, 0),
            "out": T(2, 1, 4, 0),
        },
        documented.EMPTY_HEADS,
        "`initial_state` must have sizes above 0 behind its slots (got HV=4, V=0, K=16).",
    ),
    ("10-out", lambda x: {"out": x["out"].int()}, documented.ACTIVATION_DTYPE, ACTIVATIONS + "out."),
    (
        "10-double",
        lambda x: {n: x[n].double() for n in ("b", "mixed_qkv")},
        documented.ACTIVATION_DTYPE,
        ACTIVATIONS + "mixed_qkv, b.",
    ),
    (
        "10-halves",
        lambda x: {"a": x["a"].half(), "out": x["out"].bfloat16()},
        documented.HALF_FORMATS,
        "bf16 and fp16 must not stand side by side: mixed_qkv=torch.float32, a=torch.float16, b=torch.float32,"
        " out=torch.bfloat16.",
    ),
    ("10-gates", lambda x: {"A_log": x["A_log"].int()}, documented.GATE_PARAMETER_DTYPE, GATES + "A_log."),
    (
        "10-state",
        lambda x: {"initial_state": x["initial_state"].double()},
        documented.STATE_DTYPE,
        "`initial_state` must be fp32, bf16 or fp16 (got torch.float64).",
    ),
    (
        "10-float-slots",
        lambda x: {"ssm_state_indices": T(2)},
        documented.INDICES_DTYPE,
        "`ssm_state_indices` must be int32 or int64 (got torch.float32).",
    ),
    ("14-nan", lambda x: {"scale": math.nan}, documented.SCALE, "`scale` must be finite (got nan)."),
    ("14-no-float", lambda x: {"scale": 10**400}, documented.SCALE, f"`scale` must be finite (got {10**400})."),
    ("14-infinite", lambda x: {"scale": -math.inf}, documented.SCALE, "`scale` must be finite (got -inf)."),
    *(
        (
            f"14-bound-{bound}",
            lambda x, bound=bound: {"lower_bound": bound},
            documented.LOWER_BOUND,
            f"`lower_bound` must be finite and below 0, or None (got {bound}).",
        )
        for bound in (5.0, 0.0, 0, math.nan, -math.inf, -(10**400))
    ),
    (
        "12-state",
        lambda x: {"initial_state": T(1, 4, 16, 16).expand(5, -1, -1, -1)},
        documented.EXPANDED,
        STRIDE + "initial_state.",
    ),
    (
        "12-rings",
        lambda x: {"d_cache": T(5, 1, 4, 16).expand(-1, 4, -1, -1), "k_cache": T(5, 2, 1, 16).expand(-1, -1, 4, -1)},
        documented.EXPANDED,
        STRIDE + "d_cache, k_cache.",
    ),
    (
        "12-out-is-the-input",
        lambda x: {"out": x["mixed_qkv"].view(-1)[:128].view(2, 1, 4, 16)},
        documented.OUT_OVERLAP,
        OUT + "mixed_qkv.",
    ),
    (
        "12-out-is-state",
        lambda x: {"out": x["initial_state"].view(-1)[64:192].view(2, 1, 4, 16)},
        documented.OUT_OVERLAP,
        OUT + "initial_state.",
    ),
    (
        "12-two-rings",
        lambda x: {"g_cache": x["d_cache"]},
        documented.POOL_OVERLAP,
        POOLS + "g_cache.",
    ),
    ("12-shifted-rings", _half_ring, documented.POOL_OVERLAP, POOLS + "g_cache."),
    (
        "12-ring-in-the-state",
        lambda x: {"k_cache": x["initial_state"].view(-1)[:640].view(5, 2, 4, 16)},
        documented.POOL_OVERLAP,
        POOLS + "k_cache.",
    ),
    *(
        (
            f"12-{name}-in-{pool}",
            lambda x, name=name, pool=pool: {name: _carved(x[pool], x[name])},
            documented.POOL_OVERLAP,
            f"{POOLS}{name}.",
        )
        for pool in ("initial_state", "d_cache", "k_cache", "g_cache")
        for name in ("mixed_qkv", "a", "b", "A_log", "dt_bias", "ssm_state_indices", "write_pos")
    ),
    (
        "12-force_flush-in-g_cache",
        lambda x: {"force_flush": _carved(x["g_cache"], ints(2))},
        documented.POOL_OVERLAP,
        POOLS + "force_flush.",
    ),
    (
        "2",
        lambda x: {"ssm_state_indices": torch.tensor([5, 1])},
        documented.SLOT_RANGE,
        "`ssm_state_indices[0]` is 5, but the pool has 5 slots; a negative slot is padding.",
    ),
    (
        "3",
        lambda x: {"ssm_state_indices": torch.tensor([1, 1])},
        documented.SLOT_REPEATED,
        "`ssm_state_indices[1]` is 1, as in a row before it; two rows would write one slot at once.",
    ),
    (
        "4",
        lambda x: {"write_pos": torch.tensor([0, -1], dtype=torch.int32)},
        documented.WRITE_POS_RANGE,
        "`write_pos[1]` is -1, but a ring of 4 tokens is written at 0 to 3.",
    ),
    (
        "5",
        lambda x: {"write_pos": torch.tensor([4, 0], dtype=torch.int32)},
        documented.WRITE_POS_RANGE,
        "`write_pos[0]` is 4, but a ring of 4 tokens is written at 0 to 3.",
    ),
]


def cases(table: list[tuple[str, Change, DocumentedError, str]]) -> Any:
    return pytest.mark.parametrize(("change", "error", "text"), [c[1:] for c in table], ids=[c[0] for c in table])


@cases(PUBLIC)
def test_each_public_check(change: Change, error: DocumentedError, text: str):
    given = arguments()
    refused(given | change(given), error, text)


@cases(HOLES)
def test_each_hole_is_closed(change: Change, error: DocumentedError, text: str):
    given = arguments()
    refused(given | change(given), error, text)


def test_12_inputs_may_share_memory_with_one_another():
    given = arguments()
    shared = T(2, 4, 16)
    given |= {"a": shared, "b": shared.view(-1)[:8].view(2, 4), "A_log": shared[0, 0, :4], "dt_bias": shared[0]}
    fused_recurrent_kda_replayssm_decode(**given | {"force_flush": given["write_pos"]})


def test_triton_is_refused_without_a_gpu():
    text = "Triton KDA decode requires CUDA/HIP tensors (got cpu)."
    with tensorpact.use_backend("triton"):
        refused(arguments(), documented.REQUIRES_CUDA, text)
        refused(arguments() | {"scale": math.nan}, documented.SCALE, "`scale` must be finite (got nan).")


def later_pairs() -> list[Any]:
    pairs: list[Any] = []
    given = arguments()
    table = [*PUBLIC, *HOLES]
    for i, (first, change, error, text) in enumerate(table):
        for later, other, other_error, _ in table[i + 1 :]:
            distinct = not set(change(given)) & set(other(given))
            # A ring laid over the state is under an output laid over the state as well.
            named_too = error is documented.OUT_OVERLAP and other_error is documented.POOL_OVERLAP
            if distinct and error is not other_error and not named_too:
                pairs.append(pytest.param(change, other, error, text, id=f"{first}+{later}"))
    return pairs[::13]


@pytest.mark.parametrize(("change", "other", "error", "text"), later_pairs())
def test_the_earlier_of_two_fires(change: Change, other: Change, error: DocumentedError, text: str):
    given = arguments()
    refused(given | other(given) | change(given), error, text)


def test_everything_at_once_fires_the_first():
    given = arguments()
    for _, change, _, _ in reversed([*PUBLIC, *HOLES]):
        given |= change(arguments())
    refused(given, documented.A_LAYOUT, A)


def test_the_public_checks_stand_before_all_others():
    public = list(dict.fromkeys(error for _, _, error, _ in PUBLIC))
    fired = [e for e in documented.REPLAYSSM_DECODE.errors if e in public]
    assert set(fired) == set(public)
    assert list(documented.REPLAYSSM_DECODE.errors[: len(public)]) == fired


def test_classes_are_the_documented_ones():
    classes = {e.slug: e.documented for e in documented.REPLAYSSM_DECODE.errors}
    assert {slug for slug, kind in classes.items() if kind is TypeError} == {
        "activation-dtype",
        "bf16-beside-fp16",
        "a-log-dt-bias-dtype",
        "initial-state-dtype",
        "ring-dtype",
        "ssm-state-indices-dtype",
    }
    assert {slug for slug, kind in classes.items() if kind is RuntimeError} == {
        "a-rows",
        "kda-requires-cuda-or-hip-tensors",
    }
    assert set(classes.values()) == {ValueError, TypeError, RuntimeError}


@pytest.mark.parametrize("flat", [False, True], ids=["3d", "flat"])
@pytest.mark.parametrize("V", [16, 32])
@pytest.mark.parametrize("flush", [False, True], ids=["without-flush", "with-flush"])
def test_valid_call(V: int, flat: bool, flush: bool):
    given = arguments(V, flat)
    if flush:
        given["force_flush"] = ints(2)
    out, state = fused_recurrent_kda_replayssm_decode(**given)
    assert (out is given["out"], state is given["initial_state"]) == (True, True)


ORDERS = {
    "initial_state": "slots HV V K",
    "d_cache": "slots HV L V",
    "k_cache": "slots H L K",
    "g_cache": "slots HV L K",
}


def test_pools_named_as_annotated_are_accepted():
    given = arguments()
    for name, order in ORDERS.items():
        name_axes(given[name], order)
    assert fused_recurrent_kda_replayssm_decode(**given)[1] is given["initial_state"]


@pytest.mark.parametrize("name", ["d_cache", "k_cache", "g_cache"])
def test_a_ring_named_in_another_order(name: str):
    """Time before heads, which no size shows where there are as many heads as tokens."""
    slots, heads, length, columns = ORDERS[name].split()
    given = arguments()
    name_axes(given[name], f"{slots} {length} {heads} {columns}")
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        fused_recurrent_kda_replayssm_decode(**given)
    shown = f"[slots, {length}, {heads}, {columns}], expected [slots, {heads}, {length}, {columns}]"
    assert str(caught.value) == f"{name}: axes are named {shown}"


def test_8_a_swapped_state_without_names_cannot_be_seen():
    """With equal head dims the other order has the same shape: the call passes, and its result is another one."""
    state = torch.randn(5, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    given = arguments() | {"mixed_qkv": torch.ones(2, 128)}
    right = fused_recurrent_kda_replayssm_decode(**given | {"initial_state": state, "out": T(2, 1, 4, 16)})[0]
    swapped = state.transpose(2, 3).contiguous()
    wrong = fused_recurrent_kda_replayssm_decode(**given | {"initial_state": swapped, "out": T(2, 1, 4, 16)})[0]
    assert not torch.allclose(right, wrong)


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_valid_batches(batch: int):
    given = arguments(32)
    for name in ("mixed_qkv", "a", "b", "out", "ssm_state_indices", "write_pos"):
        given[name] = given[name].new_zeros((batch, *given[name].shape[1:]))
    given["ssm_state_indices"] = torch.arange(batch, dtype=torch.int32)
    assert fused_recurrent_kda_replayssm_decode(**given)[0].shape == (batch, 1, 4, 32)


@pytest.mark.parametrize("name", ["mixed_qkv", "d_cache", "out", "initial_state"])
def test_a_missing_tensor_is_a_type_error(name: str):
    with pytest.raises(TypeError) as caught:
        fused_recurrent_kda_replayssm_decode(**arguments() | {name: None})
    assert str(caught.value).startswith(f"{name}: expected a Tensor [")
    assert str(caught.value).endswith("got None")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"scale": True}, "scale: expected float, got bool True"),
        ({"scale": torch.tensor(0.25)}, "scale: expected float, got Tensor"),
        ({"lower_bound": True}, "lower_bound: expected float or None, got bool True"),
        ({"use_qk_l2norm_in_kernel": 1}, "use_qk_l2norm_in_kernel: expected bool, got int 1"),
        ({"round_beta": None}, "round_beta: expected bool, got None"),
    ],
)
def test_19_a_scalar_of_another_type(changed: Arguments, text: str):
    with pytest.raises(TypeError) as caught:
        fused_recurrent_kda_replayssm_decode(**arguments() | changed)
    assert str(caught.value) == text


def test_a_refused_call_changes_nothing():
    given = {n: torch.randn(x.shape) if n in documented.REPLAYSSM_DECODE.mutates else x for n, x in arguments().items()}
    before = {n: x.clone() for n, x in given.items() if isinstance(x, Tensor)}
    for _, change, _, _ in (*PUBLIC, *HOLES):
        with pytest.raises(ContractViolation):
            fused_recurrent_kda_replayssm_decode(**given | change(given))
    assert all(torch.equal(given[n], x) for n, x in before.items())


def test_the_guard_traces_whole():
    given = {name: x.to("meta") if isinstance(x, Tensor) else x for name, x in arguments().items()}
    compiled = torch.compile(fused_recurrent_kda_replayssm_decode, fullgraph=True, backend="eager")
    assert compiled(**given)[0].shape == (2, 1, 4, 16)


def test_a_traced_call_that_fails_keeps_class_and_text():
    compiled = torch.compile(fused_recurrent_kda_replayssm_decode, backend="eager")
    with pytest.raises(ContractViolation) as caught:
        compiled(**arguments() | {"k_cache": T(5, 4, 4, 16)})
    assert (caught.value.error, str(caught.value)) == (
        documented.K_CACHE_SHAPE,
        "`k_cache` must have shape [slots, H, L, K].",
    )


def test_the_public_names_are_the_same_functions():
    assert helion_fused_recurrent_kda_replayssm_decode is fused_recurrent_kda_replayssm_decode
    assert helion_fused_recurrent_kda_packed_decode.__name__ == "fused_recurrent_kda_packed_decode"
