"""Packed attention: every public check in firing order, and every hole of the public checks closed."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tensorpact
from tensorpact import ContractViolation, DocumentedError
from tensorpact_contracts import packed_attention as documented
from tensorpact_kernels import fused_infer_attention_varlen, fused_infer_attention_varlen_causal
from tensorpact_kernels.packed_attention.npu import heads_first_lse

pytestmark = pytest.mark.usefixtures("both_modes")
Call = Callable[..., Any]
META = torch.device("meta")


def ints(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


def case(name: str, error: DocumentedError, text: str, **changed: Any) -> Any:
    return pytest.param(error, text, changed, id=name)


@pytest.fixture(params=[fused_infer_attention_varlen, fused_infer_attention_varlen_causal], ids=["full", "causal"])
def attend(request: pytest.FixtureRequest) -> Call:
    """Seven queries and nine keys in two sequences, four heads over two, columns of 16 and 8."""
    arguments = {
        "q": half(7, 4, 16),
        "k": half(9, 2, 16),
        "v": half(9, 2, 8),
        "cu_seqlens_q": ints(0, 3, 7),
        "cu_seqlens_k": ints(0, 4, 9),
    }
    return lambda **changed: request.param(**{**arguments, **changed})


def refused(call: Call, error: DocumentedError, text: str, changed: dict[str, Any]) -> None:
    with pytest.raises(error.documented) as caught:
        call(**changed)
    assert isinstance(caught.value, ContractViolation)
    assert (caught.value.error, str(caught.value)) == (error, text)


def test_classes_are_the_documented_ones():
    classes: dict[type[Exception], set[str]] = {}
    for error in documented.PACKED_ATTENTION.errors:
        classes.setdefault(error.documented, set()).add(error.slug)
    assert classes.pop(NotImplementedError) == {"sequence-empty-on-one-side"}
    assert classes.pop(RuntimeError) == {"no-backward"}
    assert classes.pop(TypeError) == {"dtype-not-supported", "host-copy-not-integers"}
    assert set(classes) == {ValueError}
    assert documented.PACKED_ATTENTION.errors == documented.PACKED_ATTENTION_CAUSAL.errors


LAYOUT = "NPU packed attention requires q, k, and v in [T, N, D] layout; invalid tensors: "
ONE_NPU = "NPU packed attention requires q, k, and v on the same NPU; invalid tensors: "
COUNTS = "NPU packed attention requires matching K/V token and head counts"
# Each of these breaks one public check and, as far as they can be broken with it, the later ones.
PUBLIC = [
    case("1-one", documented.LAYOUT, LAYOUT + "v", v=torch.zeros(9, 16, device=META), q=half(7, 4, 8)),
    case(
        "1-all",
        documented.LAYOUT,
        LAYOUT + "q, k, v",
        q=half(1, 7, 4, 16),
        k=torch.zeros(9),
        v=half(9, 2, 1, 8),
        cu_seqlens_q=None,
    ),
    case("2-one", documented.SAME_NPU, ONE_NPU + "k", k=torch.zeros(9, 2, 8, device=META), v=half(8, 2, 8)),
    case("2-two", documented.SAME_NPU, ONE_NPU + "k, v", q=torch.zeros(7, 4, 16, device=META)),
    case(
        "3",
        documented.SAME_DTYPE,
        "NPU packed attention requires q, k, and v with the same dtype",
        v=half(8, 2, 8).half(),
        cu_seqlens_q=None,
    ),
    case("4-tokens", documented.KEY_VALUE_COUNTS, COUNTS, v=half(8, 2, 8), q=half(7, 4, 8)),
    case("4-heads", documented.KEY_VALUE_COUNTS, COUNTS, v=half(9, 4, 8), q=half(7, 4, 8), cu_seqlens_k=None),
    case(
        "5",
        documented.HEAD_DIMS,
        "NPU packed attention requires matching Q/K head dimensions",
        q=half(7, 4, 8),
        cu_seqlens_q=None,
    ),
]


@pytest.mark.parametrize(("error", "text", "changed"), PUBLIC)
def test_public_checks(attend: Call, error: DocumentedError, text: str, changed: dict[str, Any]):
    refused(attend, error, text, changed)


# The boundaries of one side, as arguments that break this check and the later ones; {} is the name.
BOUNDARIES = [
    ("6a", documented.BOUNDARIES_MISSING, "{} is required for NPU packed attention", None, [0, 1]),
    ("6b-rank", documented.BOUNDARIES_FORM, "{} must be a 1D int32 or int64 tensor", ints(1, 3)[None], [1]),
    ("6b-dtype", documented.BOUNDARIES_FORM, "{} must be a 1D int32 or int64 tensor", torch.ones(3), [1]),
    ("6b-int16", documented.BOUNDARIES_FORM, "{} must be a 1D int32 or int64 tensor", ints(1, 3).short(), [1]),
    ("6c-short", documented.HOST_LENGTH, "{} and its host copy must have the same length", ints(1, 2, 3), [1.5]),
    ("6c-tensor", documented.HOST_LENGTH, "{} and its host copy must have the same length", ints(1, 3), ints(1)),
    ("6d", documented.BOUNDARIES_START, "{} must start with 0 and contain at least one sequence", ints(1, 0, 3), None),
    ("6d-none", documented.BOUNDARIES_START, "{} must start with 0 and contain at least one sequence", ints(), None),
    ("6d-one", documented.BOUNDARIES_START, "{} must start with 0 and contain at least one sequence", ints(0), (0,)),
    (
        "6d-host",
        documented.BOUNDARIES_START,
        "{} must start with 0 and contain at least one sequence",
        ints(0, 9),
        [2, 1],
    ),
    ("6e-low", documented.BOUNDARIES_END, "{} must end at the packed token count {}, got 3", ints(0, 5, 3), None),
    ("6e-high", documented.BOUNDARIES_END, "{} must end at the packed token count {}, got 12", ints(0, 4, 12), None),
    ("6e-host", documented.BOUNDARIES_END, "{} must end at the packed token count {}, got 3", ints(0, 7), (0, 3)),
    ("6f", documented.BOUNDARIES_ORDER, "{} must be non-decreasing", "backwards", None),
]


@pytest.mark.parametrize("side", ["q", "k"])
@pytest.mark.parametrize(
    ("error", "text", "tensor", "host"), [b[1:] for b in BOUNDARIES], ids=[b[0] for b in BOUNDARIES]
)
def test_public_checks_of_boundaries(
    attend: Call, side: str, error: DocumentedError, text: str, tensor: Any, host: Any
):
    total = {"q": 7, "k": 9}[side]
    if isinstance(tensor, str):
        tensor = ints(0, 5, 3, total)
    changed: dict[str, Any] = {f"cu_seqlens_{side}": tensor, f"cu_seqlens_{side}_host": host}
    if side == "q":
        changed |= {"cu_seqlens_k": None}
    refused(attend, error, text.format(f"cu_seqlens_{side}", total), changed)


def test_the_end_comes_before_the_order(attend: Call):
    q, k, v = half(3, 4, 16), half(3, 2, 16), half(3, 2, 8)
    wrong = {"q": q, "k": k, "v": v, "cu_seqlens_q": ints(0, 5, 3)}
    refused(attend, documented.BOUNDARIES_ORDER, "cu_seqlens_q must be non-decreasing", wrong)
    text = "cu_seqlens_q must end at the packed token count 5, got 3"
    refused(attend, documented.BOUNDARIES_END, text, wrong | {"q": half(5, 4, 16)})


def test_8_another_count_of_sequences(attend: Call):
    text = "cu_seqlens_q and cu_seqlens_k must describe the same batch"
    refused(attend, documented.BATCH, text, {"cu_seqlens_q": ints(0, 0, 3, 7)})
    refused(attend, documented.BATCH, text, {"cu_seqlens_k": ints(0, 9, dtype=torch.int64), "softmax_scale": math.nan})


EMPTY = "NPU packed attention does not support a sequence that is empty only on the query or key/value side"


@pytest.mark.parametrize(
    "changed",
    [
        {"cu_seqlens_q": ints(0, 0, 7)},
        {"cu_seqlens_k": ints(0, 9, 9)},
        {"cu_seqlens_q": ints(0, 0, 7), "cu_seqlens_k": ints(0, 9, 9)},
        {"cu_seqlens_q_host": (0, 0, 7)},
        {"cu_seqlens_q": ints(0, 0, 7), "q": half(7, 3, 16)},
    ],
)
def test_9_empty_on_one_side(attend: Call, changed: dict[str, Any]):
    refused(attend, documented.EMPTY_ON_ONE_SIDE, EMPTY, changed)


def test_10_the_shape_of_the_log_denominators():
    out = torch.zeros(7, 4, 8)
    for wrong in (torch.zeros(1), torch.zeros(4, 7), torch.zeros(4, 7, 1), torch.zeros(7, 4)):
        text = f"Unexpected Ascend TND softmax LSE shape: expected (7, 4, 1), got {tuple(wrong.shape)}"
        refused(heads_first_lse, documented.LSE_SHAPE, text, {"softmax_lse": wrong, "out": out})
    right = torch.randn(7, 4, 1)
    turned = heads_first_lse(right, out)
    assert turned.is_contiguous()
    assert torch.equal(turned, right[:, :, 0].t())


def test_under_the_npu_backend_every_tensor_must_be_on_one(attend: Call):
    with tensorpact.use_backend("npu"):
        refused(attend, documented.SAME_NPU, ONE_NPU + "q, k, v", {})
        refused(attend, documented.LAYOUT, LAYOUT + "q", {"q": half(7, 16)})


HEADS = "q has {} heads and k and v have {}: the query heads must be a multiple, and neither may be 0"
COLUMNS = "head dims must be at least 1, got D={} for q and k and Dv={} for v"
FLOATING = "q, k and v must be float16, bfloat16 or float32, got {}"
SCALE = "softmax_scale must be None or a finite number above 0, got {}"
GRADIENT = "packed attention has no backward pass, but a gradient is asked for: "
ELSEWHERE = "boundaries must be on the CPU or on the device of q, cpu; elsewhere: "


def as_dtype(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {"q": half(7, 4, 16).to(dtype), "k": half(9, 2, 16).to(dtype), "v": half(9, 2, 8).to(dtype)}


# The number is that of the hole in the spec.
HOLES = [
    case("P1-uneven", documented.HEAD_GROUPS, HEADS.format(5, 2), q=half(7, 5, 16)),
    case("P1-fewer", documented.HEAD_GROUPS, HEADS.format(1, 2), q=half(7, 1, 16)),
    case("P1-no-key-head", documented.HEAD_GROUPS, HEADS.format(4, 0), k=half(9, 0, 16), v=half(9, 0, 8)),
    case("P14-no-query-head", documented.HEAD_GROUPS, HEADS.format(0, 2), q=half(7, 0, 16)),
    case("P2", documented.NO_COLUMNS, COLUMNS.format(0, 8), q=half(7, 4, 0), k=half(9, 2, 0)),
    case("P2-values", documented.NO_COLUMNS, COLUMNS.format(16, 0), v=half(9, 2, 0)),
    *(
        case(f"P4-{dtype}", documented.FLOATING, FLOATING.format(dtype), **as_dtype(dtype))
        for dtype in (torch.int32, torch.bool, torch.float8_e4m3fn, torch.float64)
    ),
    case(
        "P5",
        documented.HOST_DIFFERS,
        "cu_seqlens_q and its host copy hold different boundaries",
        cu_seqlens_q_host=(0, 2, 7),
    ),
    case(
        "P5-keys",
        documented.HOST_DIFFERS,
        "cu_seqlens_k and its host copy hold different boundaries",
        cu_seqlens_k_host=[0, 5, 9],
        cu_seqlens_q_host=[0, 3, 7],
    ),
    case("P8-elsewhere", documented.BOUNDARIES_DEVICE, ELSEWHERE + "cu_seqlens_k", cu_seqlens_k=ints(0, 4, 9).to(META)),
    case(
        "P8-both",
        documented.BOUNDARIES_DEVICE,
        ELSEWHERE + "cu_seqlens_q, cu_seqlens_k",
        cu_seqlens_q=ints(0, 3, 7).to(META),
        cu_seqlens_k=ints(0, 4, 9).to(META),
    ),
    *(
        case(f"P10-{scale}", documented.SCALE, SCALE.format(scale), softmax_scale=scale)
        for scale in (math.nan, math.inf, 0.0, -0.25, 0)
    ),
    case("P10-no-float", documented.SCALE, SCALE.format(10**400), softmax_scale=10**400),
    case("P13", documented.NO_BACKWARD, GRADIENT + "q", q=half(7, 4, 16).requires_grad_()),
    case(
        "P13-keys",
        documented.NO_BACKWARD,
        GRADIENT + "k, v",
        k=half(9, 2, 16).requires_grad_(),
        v=half(9, 2, 8).requires_grad_(),
    ),
]


@pytest.mark.parametrize(("error", "text", "changed"), HOLES)
def test_holes(attend: Call, error: DocumentedError, text: str, changed: dict[str, Any]):
    refused(attend, error, text, changed)


@pytest.mark.parametrize(
    "host",
    [
        (0, 2.9, 7),
        (0, 3.0, 7),
        (False, 3, 7),
        ["0", "3", "7"],
        "037",
        ints(0, 3, 7),
        np.array([0, 3, 7]),
        iter((0, 3, 7)),
        7,
        [0, torch.tensor(3), 7],
        (0, None, 7),
        {0, 3, 7},
    ],
    ids=lambda host: type(host).__name__,
)
@pytest.mark.parametrize("side", ["q", "k"])
def test_p6_p7_a_host_copy_is_a_sequence_of_integers(attend: Call, side: str, host: Any):
    name = f"cu_seqlens_{side}_host"
    refused(attend, documented.HOST_INTS, f"{name} must be a plain sequence of integers", {name: host})


@pytest.mark.parametrize("width", [np.int8, np.uint32, np.uint64])
def test_p6_integers_of_numpy_count_as_their_numbers(attend: Call, width: type[np.integer[Any]]):
    # The first sequence has fewer keys than queries: a negative number, and a step that takes int8 beyond its largest.
    torch.manual_seed(1)
    q, k, v = torch.randn(120, 4, 16), torch.randn(9, 2, 16), torch.randn(9, 2, 8)
    bounds = {"cu_seqlens_q": ints(0, 100, 120), "cu_seqlens_k": ints(0, 4, 9)}
    hosts: dict[str, Any] = {f"{name}_host": list(ends.numpy().astype(width)) for name, ends in bounds.items()}
    expected = attend(q=q, k=k, v=v, **bounds)
    torch.testing.assert_close(attend(q=q, k=k, v=v, **bounds, **hosts), expected, rtol=0, atol=0)


def test_p6_every_entry_of_a_long_host_copy_is_looked_at(attend: Call):
    count = 200
    tensors = {"q": half(count, 4, 16), "k": half(count, 2, 16), "v": half(count, 2, 8)}
    ends = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), torch.arange(count + 1))
    attend(**tensors, **ends, cu_seqlens_q_host=range(count + 1))
    for at in (1, 57, 199):
        host: list[Any] = list(range(count + 1))
        host[at] = float(at)
        text = "cu_seqlens_q_host must be a plain sequence of integers"
        refused(attend, documented.HOST_INTS, text, {**tensors, **ends, "cu_seqlens_q_host": host})


def test_p8_a_list_is_refused_by_its_type(attend: Call):
    with pytest.raises(TypeError, match="cu_seqlens_q: expected a Tensor") as caught:
        attend(cu_seqlens_q=[0, 3, 7])
    assert isinstance(caught.value, ContractViolation)


def test_p11_a_bool_is_no_scale(attend: Call):
    with pytest.raises(TypeError, match="softmax_scale: expected float or None, got bool") as caught:
        attend(softmax_scale=True)
    assert isinstance(caught.value, ContractViolation)


def test_p13_without_recording_a_gradient_is_no_matter(attend: Call):
    leaf = half(7, 4, 16).requires_grad_()
    with torch.no_grad():
        assert not attend(q=leaf).requires_grad


@pytest.mark.parametrize(("queries", "keys"), [(2**30 + 1, 9), (7, 2**30 + 1)])
def test_p17_rows_are_numbered_with_32_bits(attend: Call, queries: int, keys: int):
    meta = {
        "q": torch.empty(queries, 4, 16, device=META),
        "k": torch.empty(keys, 2, 16, device=META),
        "v": torch.empty(keys, 2, 8, device=META),
        **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), torch.empty(3, dtype=torch.int64, device=META)),
    }
    text = f"at most 2**30 packed tokens, got {queries} for q and {keys} for k and v"
    refused(attend, documented.TOO_MANY_TOKENS, text, meta)


def test_meta_tensors_are_checked_but_for_their_values(attend: Call):
    meta = {
        "q": torch.empty(7, 4, 16, device=META, dtype=torch.float16),
        "k": torch.empty(9, 2, 16, device=META, dtype=torch.float16),
        "v": torch.empty(9, 2, 8, device=META, dtype=torch.float16),
        **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), torch.empty(3, dtype=torch.int64, device=META)),
    }
    out, lse = attend(**meta, return_softmax_lse=True)
    assert (out.shape, out.dtype, out.device.type) == ((7, 4, 8), torch.float16, "meta")
    assert (lse.shape, lse.dtype, lse.device.type) == ((4, 7), torch.float32, "meta")
    # A host copy has values wherever the tensors are.
    text = "cu_seqlens_k must end at the packed token count 9, got 8"
    refused(attend, documented.BOUNDARIES_END, text, {**meta, "cu_seqlens_k_host": (0, 4, 8)})


def test_a_verdict_holds_for_one_call_only(attend: Call):
    ends = ints(0, 3, 7)
    for _ in range(20):
        attend(cu_seqlens_q=ends)
    ends.copy_(ints(0, 8, 7))
    refused(attend, documented.BOUNDARIES_ORDER, "cu_seqlens_q must be non-decreasing", {"cu_seqlens_q": ends})
    ends.copy_(ints(0, 3, 7))
    attend(cu_seqlens_q=ends)


def test_a_raising_call_changes_nothing(attend: Call):
    host = [0, 3, 8]
    ends = ints(0, 3, 7)
    refused(
        attend,
        documented.BOUNDARIES_END,
        "cu_seqlens_q must end at the packed token count 7, got 8",
        {"cu_seqlens_q": ends, "cu_seqlens_q_host": host},
    )
    assert (host, ends.tolist()) == ([0, 3, 8], [0, 3, 7])


def test_a_copy_is_compared_with_device_memory_where_calls_wait_for_it(monkeypatch: pytest.MonkeyPatch):
    # What a CUDA tensor says of itself: it is in no host memory, and can be waited for.
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda self: False))
    rule: Any = next(c for c in documented.PACKED_ATTENTION.clauses if c.error is documented.HOST_DIFFERS)
    tensor = ints(0, 3, 7)
    with tensorpact.value_checks("off"):
        assert rule.rule(tensor, (0, 2, 7))
    with tensorpact.value_checks("sync"):
        assert not rule.rule(tensor, (0, 2, 7))
        assert rule.rule(tensor, (0, 3, 7))
