"""Packed attention: inputs from public bug reports, refused or accepted as they must be.

R and A ids are those of the collected reports; a longer id names the public thread.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tensorpact
from tensorpact import ContractViolation
from tensorpact_contracts import packed_attention as documented
from tensorpact_kernels import fused_infer_attention_varlen, fused_infer_attention_varlen_causal
from tensorpact_kernels.packed_attention.naive import naive_packed_attention

pytestmark = pytest.mark.usefixtures("both_modes")
Call = Callable[..., Any]


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


def case(name: str, **changed: Any) -> Any:
    return pytest.param(changed, id=name)


@pytest.fixture(params=[fused_infer_attention_varlen, fused_infer_attention_varlen_causal], ids=["full", "causal"])
def attend(request: pytest.FixtureRequest) -> Call:
    """E4 of the reports: five tokens in two sequences, four heads of 16 columns."""
    arguments = {
        "q": half(5, 4, 16),
        "k": half(5, 4, 16),
        "v": half(5, 4, 16),
        "cu_seqlens_q": ints(0, 3, 5),
        "cu_seqlens_k": ints(0, 3, 5),
    }
    return lambda **changed: request.param(**{**arguments, **changed})


def ends(*values: int) -> dict[str, torch.Tensor]:
    return {"cu_seqlens_q": ints(*values), "cu_seqlens_k": ints(*values)}


def rows(*shape: int) -> dict[str, torch.Tensor]:
    return {"q": half(*shape), "k": half(*shape), "v": half(*shape)}


END = "{} must end at the packed token count {}, got {}"
START = "{} must start with 0 and contain at least one sequence"
REFUSED = {
    "R03": (
        documented.BATCH,
        "cu_seqlens_q and cu_seqlens_k must describe the same batch",
        {"cu_seqlens_k": ints(0, 5)},
    ),
    "R03-four-axes": (
        documented.LAYOUT,
        "NPU packed attention requires q, k, and v in [T, N, D] layout; invalid tensors: q",
        {"q": half(1, 5, 4, 16), "cu_seqlens_q": ints(0, 5)},
    ),
    "R13-only-q": (
        documented.BOUNDARIES_END,
        END.format("cu_seqlens_q", 4, 5),
        {"q": half(4, 5, 16)},
    ),
    "R13-all": (documented.BOUNDARIES_END, END.format("cu_seqlens_q", 4, 5), rows(4, 5, 16)),
    "R29": (documented.BOUNDARIES_START, START.format("cu_seqlens_q"), {"cu_seqlens_q": ints(1, 3, 5)}),
    "R31": (documented.BOUNDARIES_END, END.format("cu_seqlens_q", 5, 15), ends(0, 5, 10, 15)),
    "R33": (
        documented.BOUNDARIES_END,
        END.format("cu_seqlens_k", 2, 5),
        {"k": half(5, 4, 16)[:2], "v": half(5, 4, 16)[:2]},
    ),
    "R01": (
        documented.HEAD_GROUPS,
        "q has 5 heads and k and v have 2: the query heads must be a multiple, and neither may be 0",
        {"q": half(5, 5, 16), "k": half(5, 2, 16), "v": half(5, 2, 16)},
    ),
    "A05-without-a-padded-mode": (documented.BOUNDARIES_END, END.format("cu_seqlens_q", 5, 3), ends(0, 3)),
    "flash-attention-2562-empty-queries": (
        documented.EMPTY_ON_ONE_SIDE,
        "NPU packed attention does not support a sequence that is empty only on the query or key/value side",
        {
            **rows(5, 4, 16),
            "cu_seqlens_q": ints(0, 0, 2, 3, 5),
            "cu_seqlens_k": ints(0, 1, 2, 3, 5),
        },
    ),
    "flash-attention-1661-rows-behind-the-last-boundary": (
        documented.BOUNDARIES_END,
        END.format("cu_seqlens_q", 5, 3),
        {"cu_seqlens_q": ints(0, 1, 3)},
    ),
    "flash-attention-742-lengths": (documented.BOUNDARIES_START, START.format("cu_seqlens_q"), ends(3, 2)),
    "flash-attention-1857-ends": (documented.BOUNDARIES_START, START.format("cu_seqlens_q"), ends(3, 5)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_reported_mistake_is_refused(attend: Call, name: str):
    error, text, changed = REFUSED[name]
    with pytest.raises(error.documented) as caught:
        attend(**changed)
    assert isinstance(caught.value, ContractViolation)
    assert (caught.value.error, str(caught.value)) == (error, text)


def test_R03_both_counts_are_on_the_exception(attend: Call):  # noqa: N802 - the id of the report
    with pytest.raises(ContractViolation) as caught:
        attend(cu_seqlens_k=ints(0, 5))
    error = caught.value
    assert (error.bindings["B"].size, error.bindings["B"].source) == (2, "cu_seqlens_q axis 0, B+1 = 3")
    assert error.arguments["cu_seqlens_k"].shape == (2,)


X = half(5, 12, 16)


@pytest.mark.parametrize(
    "changed",
    [
        case("A01-no-sequence-has-a-row", **rows(0, 4, 16), **ends(0, 0, 0)),
        case("A03", **rows(1, 4, 16), **ends(0, 0, 0, 0, 1)),
        case("A03-between", **ends(0, 0, 3, 3, 5, 5)),
        case("A09", **dict(zip("qkv", X.split(4, 1), strict=True))),
        case("A13", k=half(5, 1, 16).expand(5, 4, 16), v=half(5, 1, 16).expand(5, 4, 16)),
        case("A15", **rows(5, 3, 24)),
        case("A17", **rows(1, 4, 16), **ends(0, 1)),
        case("A25-parameter", v=torch.nn.Parameter(half(5, 4, 16), requires_grad=False)),
        case("A27-whole-number", softmax_scale=1),
        case("A27-numpy-scale", softmax_scale=np.float64(0.25)),
        case("A27-numpy-host", cu_seqlens_q_host=[np.int64(0), np.int32(3), 5]),
        case("R19-strided-boundaries", cu_seqlens_q=ints(0, 99, 3, 99, 5, 99)[::2]),
        case("R21-strided-columns", q=half(5, 4, 32)[..., ::2]),
        case("int64-and-int32", cu_seqlens_q=torch.tensor([0, 3, 5])),
        case("host-copies", cu_seqlens_q_host=(0, 3, 5), cu_seqlens_k_host=[0, 3, 5]),
        case("sglang-33569-padding-is-a-sequence", **rows(8, 4, 16), **ends(0, 3, 5, 8)),
        case(
            "flash-attention-1619-fewer-tokens-than-sequences",
            q=half(1, 21, 120),
            k=half(1, 7, 120),
            v=half(1, 7, 120),
            **ends(0, 0, 0, 0, 1),
        ),
        case("P12-cross-attention", k=half(9, 4, 16), v=half(9, 4, 16), cu_seqlens_k=ints(0, 4, 9)),
        case("P3-narrow-values", v=half(5, 4, 8)),
        case("fp32", **{n: t.float() for n, t in rows(5, 4, 16).items()}),
    ],
)
def test_what_is_unusual_but_right_is_accepted(attend: Call, changed: dict[str, Any]):
    with torch.no_grad():
        out, lse = attend(**changed, return_softmax_lse=True)
    q, v = changed.get("q", torch.empty(5, 4, 16)), changed.get("v", torch.empty(5, 4, 16))
    assert out.shape == (*q.shape[:2], v.shape[2])
    assert lse.shape == (q.shape[1], q.shape[0])
    assert lse.is_contiguous()
    assert lse.dtype == torch.float32
    assert out.isfinite().all()
    assert lse.isfinite().all()


def test_flash_attention_1537_sequences_of_at_most_one_query(attend: Call):
    q, k, v = half(2, 9, 64), half(8, 3, 64), half(8, 3, 64)
    with pytest.raises(NotImplementedError):
        attend(q=q, k=k, v=v, cu_seqlens_q=ints(0, 1, 1, 2), cu_seqlens_k=ints(0, 3, 3 + 1, 8), softmax_scale=1.0)
    out, lse = attend(
        q=q,
        k=k,
        v=v,
        cu_seqlens_q=ints(0, 1, 1, 2),
        cu_seqlens_k=ints(0, 3, 3, 8),
        softmax_scale=1.0,
        return_softmax_lse=True,
    )
    wanted, wanted_lse = naive_packed_attention(q.double(), k.double(), v.double(), [0, 1, 2], [0, 3, 8], 1.0)
    torch.testing.assert_close(out.double(), wanted, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-4, rtol=1e-4)


def test_R47_new_numbers_in_the_same_tensor_are_seen(attend: Call):  # noqa: N802 - the id of the report
    boundaries = ints(0, 3, 5)
    attend(cu_seqlens_q=boundaries)
    boundaries.copy_(ints(0, 4, 3))
    with pytest.raises(ValueError, match="must end at the packed token count 5, got 3"):
        attend(cu_seqlens_q=boundaries)


def test_A13_a_shared_head_gives_what_its_copy_gives(attend: Call):  # noqa: N802 - the id of the report
    k, v = half(5, 1, 16).expand(5, 4, 16), half(5, 1, 16).expand(5, 4, 16)
    q = half(5, 4, 16)
    assert torch.equal(attend(q=q, k=k, v=v), attend(q=q, k=k.contiguous(), v=v.contiguous()))


def test_A25_a_fake_tensor_has_no_numbers_to_check(attend: Call):  # noqa: N802 - the id of the report
    with FakeTensorMode() as mode:
        tensors = {n: mode.from_tensor(t.to("meta")) for n, t in rows(5, 4, 16).items()}
        boundaries = {n: mode.from_tensor(t.to("meta")) for n, t in ends(0, 3, 5).items()}
        assert attend(**tensors, **boundaries).shape == (5, 4, 16)


def test_the_public_signature():
    assert list(inspect.signature(fused_infer_attention_varlen).parameters) == [
        "q",
        "k",
        "v",
        "cu_seqlens_q",
        "cu_seqlens_k",
        "cu_seqlens_q_host",
        "cu_seqlens_k_host",
        "softmax_scale",
        "return_softmax_lse",
    ]


def test_off_runs_the_body_unchecked(attend: Call):
    with tensorpact.enforcement("off"):
        assert attend(cu_seqlens_q_host=(0, 2, 5)).shape == (5, 4, 16)
