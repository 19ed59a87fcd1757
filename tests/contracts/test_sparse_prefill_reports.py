"""Sparse prefill and decode: shapes and layouts from public bug reports, refused or accepted as they must be.

R and A ids are those of the collected reports; a longer id names the public thread.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensorpact import ContractViolation
from tensorpact_contracts import sparse_prefill as documented

pytestmark = pytest.mark.usefixtures("both_modes")
Call = Callable[..., Any]


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


def case(name: str, **changed: Any) -> Any:
    return pytest.param(changed, id=name)


REFUSED = {
    "sglang-35092-global-sink-on-a-tp-rank": (
        documented.SINK_LENGTH,
        "attn_sink must hold one logit for each of the 16 heads of q, got shape [128]",
        {"q": half(3, 16, 16), "attn_sink": torch.zeros(128)},
    ),
    "sglang-34912-padded-heads-with-real-sinks": (
        documented.SINK_LENGTH,
        "attn_sink must hold one logit for each of the 64 heads of q, got shape [16]",
        {"q": half(3, 64, 16), "attn_sink": torch.zeros(16)},
    ),
    "sglang-4100-one-length-too-few": (
        documented.INDPTR_LENGTH,
        "kv_indptr_prefix must hold T + 1 = 4 offsets for the 3 query tokens of q",
        {"kv_indptr_prefix": ints(0, 2, 2)},
    ),
    "vllm-47648-packed-row-width": (
        documented.QUERY_HEAD_DIM,
        "head_dim mismatch: q=512, unified_kv=584",
        {"q": half(3, 6, 512), "unified_kv": half(8, 584), "kv": half(3, 584)},
    ),
    "R05": (
        documented.INDICES_RANK,
        "kv_indices_prefix must be a flat list of rows, one axis",
        {"kv_indices_prefix": torch.zeros(3, 2, dtype=torch.int32)},
    ),
    "R07": (
        documented.INDPTR_LENGTH,
        "kv_indptr_prefix must hold T + 1 = 4 offsets for the 3 query tokens of q",
        {"kv_indptr_prefix": ints(0, 2, 2, 4, 4)},
    ),
    "R09": (
        documented.QUERY_HEAD_DIM,
        "head_dim mismatch: q=16, unified_kv=32",
        {"unified_kv": half(8, 32), "kv": half(3, 32)},
    ),
    "R11-heads-before-tokens": (
        documented.SINK_LENGTH,
        "attn_sink must hold one logit for each of the 3 heads of q, got shape [6]",
        {"q": half(6, 3, 16)},
    ),
    "R38": (
        documented.INDPTR_VALUES,
        "kv_indptr_prefix[2] is 1, expected at least the entry before it, 2: offsets never decrease and stay inside the"
        " index list",
        {"kv_indptr_prefix": ints(0, 2, 1, 4)},
    ),
    "R38-past-the-list": (
        documented.INDPTR_VALUES,
        "kv_indptr_extend[3] is 9, expected at most NE = 6: offsets never decrease and stay inside the index list",
        {"kv_indptr_extend": ints(0, 1, 3, 9)},
    ),
    "R38-below-zero": (
        documented.INDPTR_VALUES,
        "kv_indptr_prefix[0] is -1, expected at least 0: offsets never decrease and stay inside the index list",
        {"kv_indptr_prefix": ints(-1, 2, 2, 4)},
    ),
    "R39": (
        documented.INDEX_RANGE,
        "kv_indices_prefix[1] is 99, but there are 8 rows to take; a negative index is skipped",
        {"kv_indices_prefix": ints(0, 99, -1, 3)},
    ),
    "R39-extend": (
        documented.INDEX_RANGE,
        "kv_indices_extend[5] is 3, but there are 3 rows to take; a negative index is skipped",
        {"kv_indices_extend": ints(0, 0, 1, 0, 1, 3)},
    ),
    "9-wider-than-32-bits": (
        documented.INDEX_RANGE,
        "kv_indices_prefix[1] is 4294967297, but there are 8 rows to take; a negative index is skipped",
        {"kv_indices_prefix": torch.tensor([0, 2**32 + 1, -1, 3])},
    ),
    "R15": (
        documented.UNIFIED_KV_DTYPE,
        "unified_kv dtype mismatch: kv=torch.float16, q=torch.bfloat16",
        {"unified_kv": half(8, 16).half(), "kv": half(3, 16).half()},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_reported_mistake_is_refused(prefill: Call, name: str):
    error, text, changed = REFUSED[name]
    with pytest.raises(error.documented) as caught:
        prefill(**changed)
    assert isinstance(caught.value, ContractViolation)
    assert (caught.value.error, str(caught.value)) == (error, text)


def test_R07_both_lengths_are_on_the_exception(prefill: Call):  # noqa: N802 - the id of the report
    with pytest.raises(ContractViolation) as caught:
        prefill(kv_indptr_prefix=ints(0, 2, 2, 4, 4))
    error = caught.value
    assert error.arguments["kv_indptr_prefix"].shape == (5,)
    assert (error.bindings["T"].size, error.bindings["T"].source) == (3, "q axis 0")
    assert "kv_indptr_prefix" in error.__notes__[0].splitlines()[0]


@pytest.mark.parametrize(
    "changed",
    [
        case("sglang-34912-heads-of-a-padded-buffer", q=half(3, 64, 16)[:, :6]),
        case("sglang-35092-slice-of-the-global-sink", attn_sink=torch.randn(128)[48:54]),
        case("vllm-47783-row-stride-of-a-packed-pool", unified_kv=half(8, 24)[:, :16]),
        case("4-strided-sink", attn_sink=torch.randn(12)[::2]),
        case("4-half-precision-sink", attn_sink=half(6)),
        case("16-sink-without-weight", attn_sink=torch.full((6,), -math.inf)),
        case("2.2-offsets-sliced-for-context-parallelism", kv_indptr_prefix=ints(1, 2, 2, 4)),
        case("no-prefix", kv_indices_prefix=ints(), kv_indptr_prefix=ints(0, 0, 0, 0)),
        case("transposed-rows", kv=half(16, 3).t()),
        case("more-new-rows-than-tokens", kv=half(5, 16)),
        case("int64-indices", kv_indices_prefix=torch.tensor([0, 7, -1, 3])),
        case("int64-offsets", kv_indptr_extend=torch.tensor([0, 1, 3, 6])),
        case("R19-strided-indices", kv_indices_prefix=ints(0, 99, 7, 99, -1, 99, 3, 99)[::2]),
        case("A01-no-tokens", q=half(0, 6, 16), kv_indptr_prefix=ints(0), kv_indptr_extend=ints(0)),
        case("A11-layer-of-a-shared-pool", unified_kv=half(8, 2, 16)[:, 1]),
        case("A13-one-row-expanded", kv=half(1, 16).expand(3, 16)),
        case("A15-no-power-of-two", q=half(3, 6, 24), unified_kv=half(8, 24), kv=half(3, 24)),
        case("14-narrow-rows", q=half(3, 6, 8), unified_kv=half(8, 8), kv=half(3, 8)),
        case("A17-one-token", q=half(1, 6, 16), kv_indptr_prefix=ints(0, 2), kv_indptr_extend=ints(0, 1)),
        case("A19-all-skipped", kv_indices_prefix=ints(-1, -1, -1, -1)),
        case("R39-any-negative", kv_indices_prefix=ints(0, -2, -1, 3)),
        case("A25-parameter", attn_sink=torch.nn.Parameter(torch.zeros(6))),
        case("A27-whole-number", softmax_scale=1),
        case("A29-over-allocated", kv_indices_prefix=ints(0, 7, -1, 3, 99, 99)),
    ],
)
def test_what_is_unusual_but_right_is_accepted(prefill: Call, changed: dict[str, Any]):
    out = prefill(**changed)
    assert out.shape == changed.get("q", torch.empty(3, 6, 16)).shape
    assert out.isfinite().all()


def test_a_strided_sink_is_read_by_its_strides(prefill: Call):
    sinks = torch.tensor([0.5, 30.0, 1.0, 30.0, 1.5, 30.0, 2.0, 30.0, 2.5, 30.0, 3.0, 30.0])
    assert torch.equal(prefill(attn_sink=sinks[::2]), prefill(attn_sink=sinks[::2].contiguous()))


@pytest.mark.parametrize(
    "changed",
    [
        case("strided-scales", unified_kv=half(8, 128).to(torch.float8_e4m3fn), kv_scales=torch.ones(8, 4)[:, ::2]),
        case("padded-token", kv_indptr=ints(0, 2, 2, 2)),
        case("no-groups-without-scales", q=half(3, 6, 96), unified_kv=half(8, 96)),
        case("int64-indices", kv_indices=torch.tensor([0, 7, 3, 1])),
        case("A01-no-tokens", q=half(0, 6, 128), kv_indptr=ints(0)),
    ],
)
def test_decode_accepts(decode: Call, changed: dict[str, Any]):
    assert decode(**changed).shape == changed.get("q", torch.empty(3, 6, 128)).shape


DECODE_REFUSED = {
    "R39-a-mark": (ints(0, -1, 3, 1), "kv_indices[1] is -1, expected at least 0"),
    "R39-past-the-pool": (ints(0, 7, 3, 8), "kv_indices[3] is 8, expected below P = 8"),
    "9-wider-than-32-bits": (torch.tensor([0, 2**32 + 1, 3, 1]), "kv_indices[1] is 4294967297, expected below P = 8"),
}


@pytest.mark.parametrize("name", DECODE_REFUSED)
def test_every_row_of_the_decode_must_exist(decode: Call, name: str):
    indices, text = DECODE_REFUSED[name]
    with pytest.raises(documented.DECODE_INDEX_RANGE.documented) as caught:
        decode(kv_indices=indices)
    assert isinstance(caught.value, ContractViolation)
    assert caught.value.error is documented.DECODE_INDEX_RANGE
    assert str(caught.value) == f"{text}: paged decode takes a row for every entry and skips none"


def test_what_no_offset_reaches_may_be_anything(decode: Call):
    assert torch.equal(decode(kv_indices=ints(0, 7, 3, 1, -1, 99)), decode(kv_indices=ints(0, 7, 3, 1)))
