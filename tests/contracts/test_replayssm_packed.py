"""Packed KDA decode: the shared checks with the values of a two-dimensional `a`, and the holes behind them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tensorpact
from tensorpact import ContractViolation, DocumentedError, name_axes
from tensorpact_contracts import replayssm as documented

pytestmark = pytest.mark.usefixtures("both_modes")
Call = Callable[..., Any]


def T(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:  # noqa: N802 - as the cases write it
    return torch.zeros(sizes, dtype=dtype)


def case(name: str, error: DocumentedError, text: str, **changed: Any) -> Any:
    return pytest.param(error, text, changed, id=name)


AB = "`a` and `b` must be 2D tensors "
BATCH = "Mismatched batch sizes: mixed_qkv.shape[0]=3, "
GATES = "`A_log`/`dt_bias` must be "
HEADS = "KDA packed decode requires num_q_heads == num_k_heads and head_q_dim == head_k_dim."
# B 3, H 1, HV 2, K 16, V 32, slots 6; each breaks later checks too where it can.
CHECKS = [
    case("v1", documented.MIXED_QKV_RANK, "`mixed_qkv` must be a 2D tensor (got ndim=1).", mixed_qkv=T(96), b=T(2)),
    case(
        "v2",
        documented.MIXED_QKV_LAYOUT,
        "`mixed_qkv` must be contiguous in the last dim.",
        mixed_qkv=T(96, 3).T,
        a=T(3, 2, 16),
    ),
    case("v3-a", documented.AB_RANK, AB + "(got a.ndim=3, b.ndim=2).", a=T(3, 2, 16), A_log=T(1, 2)),
    case("v3-b", documented.AB_RANK, AB + "(got a.ndim=2, b.ndim=3).", b=T(3, 2, 1)),
    case("v3-both", documented.AB_RANK, AB + "(got a.ndim=1, b.ndim=0).", a=T(96), b=T()),
    case("v4-a", documented.AB_LAYOUT, "`a`/`b` must be contiguous in the last dim.", a=T(32, 3).T, out=T(3)),
    case("v4-b", documented.AB_LAYOUT, "`a`/`b` must be contiguous in the last dim.", b=T(3, 4)[:, ::2]),
    case("v5-A_log", documented.GATE_PARAMETER_RANK, GATES + "1D tensors.", A_log=T(2, 1)),
    case("v5-dt_bias", documented.GATE_PARAMETER_RANK, GATES + "1D tensors.", dt_bias=T(2, 16), A_log=T(4)[::2]),
    case("v6-A_log", documented.GATE_PARAMETER_LAYOUT, GATES + "contiguous.", A_log=T(4)[::2]),
    case("v6-dt_bias", documented.GATE_PARAMETER_LAYOUT, GATES + "contiguous.", dt_bias=T(32, 2)[:, 0]),
    case(
        "v7",
        documented.INDICES_RANK,
        "`ssm_state_indices` must be 1D for packed decode (got ndim=0).",
        ssm_state_indices=T(dtype=torch.int32),
        out=T(3, 1, 2, 64)[..., ::2],
    ),
    case("v8", documented.OUT_LAYOUT, "`out` must be contiguous.", out=T(3, 1, 2, 64)[..., ::2], b=T(4, 2)),
    case("v9", documented.DEVICES, "All inputs must be on the same device.", dt_bias=T(32).to("meta"), b=T(4, 2)),
    case("v10-a", documented.BATCH_SIZES, BATCH + "a.shape[0]=4, b.shape[0]=3.", a=T(4, 32)),
    case("v10-b", documented.BATCH_SIZES, BATCH + "a.shape[0]=3, b.shape[0]=6.", b=T(6, 2)),
    case("v10-both", documented.BATCH_SIZES, BATCH + "a.shape[0]=1, b.shape[0]=1.", a=T(1, 32), b=T(1, 2)),
    case(
        "v11",
        documented.INDICES_SHAPE,
        "`ssm_state_indices` must have shape [B] (got (8,); expected (3,)).",
        ssm_state_indices=T(8, dtype=torch.int32),
    ),
    case("v12", documented.STATE_RANK, "`initial_state` must be a 4D tensor (got ndim=2).", initial_state=T(6, 1024)),
    case(
        "v13",
        documented.STATE_LAYOUT,
        "`initial_state` must be contiguous in the last dim.",
        initial_state=T(6, 2, 16, 32).transpose(2, 3),
    ),
    case(
        "v15",
        documented.A_WIDTH,
        "`a` must have shape [B, HV*K] with HV=2, K=16 (got a.shape=(3, 16)).",
        a=T(3, 16),
        dt_bias=T(16),
    ),
    case("v16", documented.B_WIDTH, "`b` must have shape [B, HV] with HV=2 (got b.shape=(3, 1)).", b=T(3, 1)),
    case("v17", documented.A_LOG_LENGTH, "`A_log` must have 2 elements (got 1).", A_log=T(1)),
    case("v18", documented.DT_BIAS_LENGTH, "`dt_bias` must have 32 elements (got 16).", dt_bias=T(16)),
    case(
        "v19",
        documented.OUT_SHAPE,
        "`out` must have shape (3, 1, 2, 32) (got out.shape=(1, 3, 2, 32)).",
        out=T(1, 3, 2, 32),
    ),
    case(
        "v20",
        documented.QKV_WIDTH,
        "Invalid packed `mixed_qkv` last dim=97 for HV=2, V=32.",
        mixed_qkv=T(3, 97),
    ),
    case(
        "v21", documented.Q_SIZE, f"Invalid packed Q size 24: must be divisible by K=16. {HEADS}", mixed_qkv=T(3, 112)
    ),
    case("v22", documented.HEAD_CONFIG, "Invalid head config inferred from mixed_qkv: H=4, HV=2.", mixed_qkv=T(3, 192)),
    case(
        "10-out",
        documented.ACTIVATION_DTYPE,
        "`mixed_qkv`, `a`, `b` and `out` are fp32, bf16 or fp16; of another dtype: out.",
        out=T(3, 1, 2, 32, dtype=torch.int8),
    ),
    case(
        "10-halves",
        documented.HALF_FORMATS,
        "bf16 and fp16 must not stand side by side: mixed_qkv=torch.bfloat16, a=torch.bfloat16, b=torch.float16,"
        " out=torch.bfloat16.",
        b=T(3, 2, dtype=torch.float16),
    ),
    case(
        "10-gates",
        documented.GATE_PARAMETER_DTYPE,
        "`A_log` and `dt_bias` are fp64, fp32, bf16 or fp16; of another dtype: A_log, dt_bias.",
        A_log=T(2, dtype=torch.int64),
        dt_bias=T(32, dtype=torch.bool),
    ),
    case(
        "10-state",
        documented.STATE_DTYPE,
        "`initial_state` must be fp32, bf16 or fp16 (got torch.int32).",
        initial_state=T(6, 2, 32, 16, dtype=torch.int32),
    ),
    case(
        "10-slots",
        documented.INDICES_DTYPE,
        "`ssm_state_indices` must be int32 or int64 (got torch.int16).",
        ssm_state_indices=T(3, dtype=torch.int16),
    ),
    case(
        "8",
        documented.STATE_AXES,
        "`initial_state` must have the axes [slots, HV, V, K] (named [slots, HV, value, key]).",
        initial_state=name_axes(T(6, 2, 32, 16), "slots HV value key"),
    ),
    case("14-no-float", documented.SCALE, f"`scale` must be finite (got {10**400}).", scale=10**400),
    case("14-scale", documented.SCALE, "`scale` must be finite (got inf).", scale=math.inf),
    case(
        "14-bound",
        documented.LOWER_BOUND,
        "`lower_bound` must be finite and below 0, or None (got 5.0).",
        lower_bound=5.0,
    ),
    case(
        "12-state",
        documented.EXPANDED,
        "A tensor that is written needs memory for each of its elements; several share an address in: initial_state.",
        initial_state=T(1, 2, 32, 16).expand(6, -1, -1, -1),
    ),
    case(
        "2",
        documented.SLOT_RANGE,
        "`ssm_state_indices[1]` is 6, but the pool has 6 slots; a negative slot is padding.",
        ssm_state_indices=torch.tensor([1, 6, 5]),
    ),
    case(
        "3",
        documented.SLOT_REPEATED,
        "`ssm_state_indices[2]` is 1, as in a row before it; two rows would write one slot at once.",
        ssm_state_indices=torch.tensor([1, -1, 1]),
    ),
]


def refused(call: Call, error: DocumentedError, text: str, changed: dict[str, Any]) -> None:
    with pytest.raises(error.documented) as caught:
        call(**changed)
    assert isinstance(caught.value, ContractViolation)
    assert (caught.value.error, str(caught.value)) == (error, text)


@pytest.mark.parametrize(("error", "text", "changed"), CHECKS)
def test_each_check(packed: Call, error: DocumentedError, text: str, changed: dict[str, Any]):
    refused(packed, error, text, changed)


def test_the_output_over_the_input(packed: Call):
    row = T(3, 96)
    text = "`out` must have memory of its own; it shares some with: mixed_qkv."
    refused(packed, documented.OUT_OVERLAP, text, {"mixed_qkv": row, "out": row.view(-1)[:192].view(3, 1, 2, 32)})


@pytest.mark.parametrize(
    ("name", "sizes", "dtype"),
    [
        ("mixed_qkv", (3, 96), torch.float32),
        ("a", (3, 32), torch.float32),
        ("b", (3, 2), torch.float32),
        ("A_log", (2,), torch.float32),
        ("dt_bias", (32,), torch.float32),
        ("ssm_state_indices", (3,), torch.int32),
    ],
)
def test_an_input_in_the_state(packed: Call, name: str, sizes: tuple[int, ...], dtype: torch.dtype):
    state = T(6, 2, 32, 16)
    value = state.view(-1)[: math.prod(sizes)].view(dtype).view(sizes)
    text = f"State and rings must share no memory with one another or an input; overlapped by one of them: {name}."
    refused(packed, documented.POOL_OVERLAP, text, {"initial_state": state, name: value})


def test_triton_is_refused_without_a_gpu(packed: Call):
    with tensorpact.use_backend("triton"):
        refused(packed, documented.REQUIRES_CUDA, "Triton KDA decode requires CUDA/HIP tensors (got cpu).", {})


def test_each_error_of_the_contract_is_in_the_table():
    elsewhere = {documented.OUT_OVERLAP, documented.POOL_OVERLAP, documented.REQUIRES_CUDA}
    tested = {case.values[0] for case in CHECKS} | elsewhere
    assert set(documented.PACKED_DECODE.errors) - tested == {documented.EMPTY_HEADS}


@pytest.mark.parametrize(("HV", "V"), [(2, 0), (0, 32)])
def test_empty_heads(packed: Call, HV: int, V: int):
    changed = {
        "mixed_qkv": T(3, 32 + HV * V),
        "a": T(3, HV * 16),
        "b": T(3, HV),
        "A_log": T(HV),
        "dt_bias": T(HV * 16),
        "initial_state": T(6, HV, V, 16),
        "out": T(3, 1, HV, V),
    }
    text = f"`initial_state` must have sizes above 0 behind its slots (got HV={HV}, V={V}, K=16)."
    refused(packed, documented.EMPTY_HEADS, text, changed)


def test_no_key_columns(packed: Call):
    state = torch.empty_strided((6, 2, 32, 0), (0, 0, 0, 1))
    text = "`initial_state` must have sizes above 0 behind its slots (got HV=2, V=32, K=0)."
    refused(packed, documented.EMPTY_HEADS, text, {"initial_state": state, "a": T(3, 0), "dt_bias": T(0)})


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_valid_batches(packed: Call, batch: int):
    changed = {
        "mixed_qkv": T(batch, 96),
        "a": T(batch, 32),
        "b": T(batch, 2),
        "out": torch.full((batch, 1, 2, 32), math.nan),
        "ssm_state_indices": torch.arange(batch),
    }
    out, state = packed(**changed)
    assert out is changed["out"]
    assert out.isfinite().all()
    assert state.shape == (6, 2, 32, 16)
