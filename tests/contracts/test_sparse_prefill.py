"""Sparse prefill and decode: every public check in firing order, and every hole of the public checks closed.

Contents of index tensors are the business of value checks and stay out of this file.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tensorpact
from tensorpact import ContractViolation, DocumentedError
from tensorpact_contracts import sparse_prefill as documented

pytestmark = pytest.mark.usefixtures("both_modes")
Call = Callable[..., Any]
BF16, FP16, FP8, META = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.device("meta")


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=BF16)


def fp8(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(FP8)


def case(name: str, error: DocumentedError, text: str, **changed: Any) -> Any:
    return pytest.param(error, text, changed, id=name)


def refused(call: Call, error: DocumentedError, text: str, changed: dict[str, Any]) -> None:
    with pytest.raises(error.documented) as caught:
        call(**changed)
    assert isinstance(caught.value, ContractViolation)
    assert (caught.value.error, str(caught.value)) == (error, text)


def test_classes_are_the_documented_ones():
    errors = (*documented.SPARSE_PREFILL.errors, *documented.SPARSE_DECODE.errors)
    classes = {error.slug: error.documented for error in errors}
    assert {slug for slug, kind in classes.items() if kind is TypeError} == {"index-dtype"}
    assert {slug for slug, kind in classes.items() if kind is ValueError} == {
        "rank-of-q-or-pool",
        "query-head-dim-mismatch",
        "attn-sink-length",
        "indptr-length",
        "indices-rank",
        "devices-differ",
        "softmax-scale-not-positive",
        "indptr-out-of-order",
        "index-out-of-range",
        "decode-index-out-of-range",
    }
    assert set(classes.values()) == {RuntimeError, ValueError, TypeError}


# Each of these breaks one public check and, as far as they can be broken with it, the later ones.
PREFILL_PUBLIC = [
    case(
        "2-dtype-of-q",
        documented.EXPECTS_HALF,
        "sparse_attn_v4_paged_prefill expects fp16/bf16 q, got torch.float32",
        q=torch.zeros(3, 6, 16),
        kv=torch.zeros(3, 8, dtype=FP16),
        softmax_scale=math.nan,
    ),
    case(
        "3-dtype-of-the-pool",
        documented.UNIFIED_KV_DTYPE,
        "unified_kv dtype mismatch: kv=torch.float32, q=torch.bfloat16",
        unified_kv=torch.zeros(8, 16),
        kv=torch.zeros(3, 8),
        attn_sink=torch.zeros(128),
    ),
    case(
        "4-dtype-of-the-rows",
        documented.KV_DTYPE,
        "kv dtype mismatch: kv=torch.float16, q=torch.bfloat16",
        kv=torch.zeros(3, 8, dtype=FP16),
        kv_indptr_prefix=ints(0, 2),
    ),
    case(
        "5-width-of-pool-and-rows",
        documented.HEAD_DIM_MISMATCH,
        "head_dim mismatch: unified_kv=128, kv=64",
        unified_kv=half(8, 128),
        kv=half(3, 64),
        q=half(3, 16),
        attn_sink=torch.zeros(5),
    ),
    case(
        "5-width-before-rank",
        documented.HEAD_DIM_MISMATCH,
        "head_dim mismatch: unified_kv=16, kv=8",
        unified_kv=half(8, 1, 16),
        kv=half(8),
    ),
]

DECODE_PUBLIC = [
    case(
        "2-dtype-of-q",
        documented.DECODE_EXPECTS_HALF,
        "sparse_attn_v4_paged_decode expects fp16/bf16 q, got torch.float64",
        q=torch.zeros(3, 6, 128, dtype=torch.float64),
        kv_scales=torch.zeros(8, 2),
    ),
    case(
        "3a-scales-without-fp8",
        documented.SCALES_WITHOUT_FP8,
        "kv_scales supplied but unified_kv is torch.bfloat16, expected torch.float8_e4m3fn",
        kv_scales=torch.zeros(8, 9, dtype=BF16),
        attn_sink=torch.zeros(128),
    ),
    case(
        "3b-dtype-of-scales",
        documented.SCALES_DTYPE,
        "kv_scales must be fp32, got torch.bfloat16",
        unified_kv=fp8(8, 96),
        kv_scales=torch.zeros(8, 9, dtype=BF16),
    ),
    case(
        "3c-groups",
        documented.GROUP_SIZE_DIVIDES,
        "D=96 must be divisible by GROUP_SIZE=64",
        q=half(1, 16, 96),
        unified_kv=fp8(4, 96),
        kv_scales=torch.zeros(4, 3),
    ),
    case(
        "3d-shape-of-scales",
        documented.SCALES_SHAPE,
        "kv_scales shape (8, 1) does not match expected (8, 2)",
        q=half(3, 128),
        unified_kv=fp8(8, 128),
        kv_scales=torch.zeros(8, 1),
    ),
    case(
        "4-dtype-of-the-pool",
        documented.UNIFIED_KV_DTYPE,
        "unified_kv dtype mismatch: kv=torch.float8_e4m3fn, q=torch.bfloat16",
        unified_kv=fp8(8, 64),
        kv_indptr=ints(0, 2, 2),
    ),
]


@pytest.mark.parametrize(("error", "text", "changed"), PREFILL_PUBLIC)
def test_prefill_public_checks(prefill: Call, error: DocumentedError, text: str, changed: dict[str, Any]):
    refused(prefill, error, text, changed)


@pytest.mark.parametrize(("error", "text", "changed"), DECODE_PUBLIC)
def test_decode_public_checks(decode: Call, error: DocumentedError, text: str, changed: dict[str, Any]):
    refused(decode, error, text, changed)


def test_the_device_check_comes_first(prefill: Call, decode: Call):
    wrong = {"q": torch.zeros(2, 2), "unified_kv": torch.zeros(1), "attn_sink": torch.zeros(0), "softmax_scale": -1.0}
    prefill_text = "Triton sparse_attn_v4_paged_prefill requires CUDA/HIP tensors"
    decode_text = "Triton sparse_attn_v4_paged_decode requires CUDA/HIP tensors"
    with tensorpact.use_backend("triton"):
        refused(prefill, documented.REQUIRES_CUDA, prefill_text, {**wrong, "kv": torch.zeros(1)})
        refused(decode, documented.DECODE_REQUIRES_CUDA, decode_text, {**wrong, "kv_scales": torch.zeros(0)})


def test_public_checks_stand_before_all_others():
    prefill_slugs = list(dict.fromkeys(case.values[0].slug for case in PREFILL_PUBLIC))
    decode_slugs = list(dict.fromkeys(case.values[0].slug for case in DECODE_PUBLIC))
    assert [e.slug for e in documented.SPARSE_PREFILL.errors[1:5]] == prefill_slugs
    assert [e.slug for e in documented.SPARSE_DECODE.errors[1:7]] == decode_slugs


RANKS = "q has the axes [T, H, D], a pool of rows has [rows, D]; wrong number of axes: "
SINK = "attn_sink must hold one logit for each of the {} heads of q, got shape {}"
OFFSETS = "{} must hold T + 1 = {} offsets for the {} query tokens of q"
INTEGERS = "row indices and offsets are int32 or int64; of another dtype: "
ELSEWHERE = "every tensor must be on the device of q, cpu; elsewhere: "
SCALE = "softmax_scale must be finite and above 0, got "
ONE_TOKEN = {
    **dict.fromkeys(("kv_indices_prefix", "kv_indices_extend"), ints(0)),
    **dict.fromkeys(("kv_indptr_prefix", "kv_indptr_extend"), ints(0, 1)),
    "attn_sink": torch.zeros(1),
    "unified_kv": half(4, 16),
    "kv": half(4, 16),
}

# The number is that of the hole in the spec; the inputs are its smallest ones.
PREFILL_HOLES = [
    case("1-wide", documented.QUERY_HEAD_DIM, "head_dim mismatch: q=32, unified_kv=16", **ONE_TOKEN, q=half(1, 1, 32)),
    case("1-narrow", documented.QUERY_HEAD_DIM, "head_dim mismatch: q=8, unified_kv=16", **ONE_TOKEN, q=half(1, 1, 8)),
    case(
        "2-pool",
        documented.POOL_RANK,
        RANKS + "unified_kv",
        **{**ONE_TOKEN, "unified_kv": half(4, 1, 16), "q": half(1, 1, 16)},
    ),
    case("2-rows", documented.POOL_RANK, RANKS + "unified_kv, kv", unified_kv=half(8, 1, 16), kv=half(3, 1, 16)),
    case("3-two-axes", documented.POOL_RANK, RANKS + "q", q=half(4, 16)),
    case("3-four-axes", documented.POOL_RANK, RANKS + "q", q=half(1, 3, 6, 16)),
    case("4-short", documented.SINK_LENGTH, SINK.format(6, [4]), attn_sink=torch.zeros(4)),
    case("4-long", documented.SINK_LENGTH, SINK.format(16, [128]), attn_sink=torch.zeros(128), q=half(3, 16, 16)),
    case("4-column", documented.SINK_LENGTH, SINK.format(6, [6, 1]), attn_sink=torch.zeros(6, 1)),
    case("4-device", documented.DEVICES, ELSEWHERE + "attn_sink", attn_sink=torch.zeros(6, device=META)),
    case(
        "5-prefix",
        documented.INDPTR_LENGTH,
        OFFSETS.format("kv_indptr_prefix", 5, 4),
        q=half(4, 6, 16),
        kv_indptr_prefix=ints(0, 1, 2, 3),
    ),
    case(
        "5-extend", documented.INDPTR_LENGTH, OFFSETS.format("kv_indptr_extend", 4, 3), kv_indptr_extend=ints(0, 1, 3)
    ),
    case("10-float", documented.INDEX_DTYPE, INTEGERS + "kv_indices_prefix", kv_indices_prefix=torch.zeros(4)),
    case("10-bool", documented.INDEX_DTYPE, INTEGERS + "kv_indices_extend", kv_indices_extend=torch.ones(6) > 0),
    case(
        "10-all",
        documented.INDEX_DTYPE,
        INTEGERS + "kv_indices_prefix, kv_indptr_prefix, kv_indices_extend, kv_indptr_extend",
        **dict.fromkeys(("kv_indices_prefix", "kv_indptr_prefix"), torch.zeros(4)),
        kv_indices_extend=torch.zeros(6),
        kv_indptr_extend=torch.zeros(4),
    ),
    case("11-pool", documented.DEVICES, ELSEWHERE + "unified_kv", unified_kv=half(8, 16).to(META)),
    case(
        "11-several",
        documented.DEVICES,
        ELSEWHERE + "kv_indices_prefix, kv",
        kv=half(3, 16).to(META),
        kv_indices_prefix=ints(0, 7, -1, 3).to(META),
    ),
    case("16-nan", documented.SCALE, SCALE + "nan", softmax_scale=math.nan),
    case("16-infinite", documented.SCALE, SCALE + "inf", softmax_scale=math.inf),
    case("16-no-float", documented.SCALE, SCALE + str(10**400), softmax_scale=10**400),
    case("16-zero", documented.SCALE, SCALE + "0.0", softmax_scale=0.0),
    case("16-negative", documented.SCALE, SCALE + "-0.25", softmax_scale=-0.25),
]

DECODE_HOLES = [
    case("1", documented.QUERY_HEAD_DIM, "head_dim mismatch: q=64, unified_kv=128", q=half(3, 6, 64)),
    case(
        "1-fp8",
        documented.QUERY_HEAD_DIM,
        "head_dim mismatch: q=64, unified_kv=128",
        q=half(3, 6, 64),
        unified_kv=fp8(8, 128),
        kv_scales=torch.ones(8, 2),
    ),
    case("2", documented.POOL_RANK, RANKS + "unified_kv", unified_kv=half(8, 1, 128)),
    case("3", documented.POOL_RANK, RANKS + "q", q=half(3, 128)),
    case("4", documented.SINK_LENGTH, SINK.format(6, [7]), attn_sink=torch.zeros(7)),
    case("5", documented.INDPTR_LENGTH, OFFSETS.format("kv_indptr", 4, 3), kv_indptr=ints(0, 2, 2, 4, 4)),
    case("10", documented.INDEX_DTYPE, INTEGERS + "kv_indices", kv_indices=ints(0, 7, 3, 1).short()),
    case(
        "11",
        documented.DEVICES,
        ELSEWHERE + "kv_scales",
        unified_kv=fp8(8, 128),
        kv_scales=torch.ones(8, 2, device=META),
    ),
    case("16", documented.SCALE, SCALE + "nan", softmax_scale=math.nan),
]


@pytest.mark.parametrize(("error", "text", "changed"), PREFILL_HOLES)
def test_prefill_holes_are_closed(prefill: Call, error: DocumentedError, text: str, changed: dict[str, Any]):
    refused(prefill, error, text, changed)


@pytest.mark.parametrize(("error", "text", "changed"), DECODE_HOLES)
def test_decode_holes_are_closed(decode: Call, error: DocumentedError, text: str, changed: dict[str, Any]):
    refused(decode, error, text, changed)


def test_of_several_violations_the_first_documented_one_fires(prefill: Call):
    broken = {
        "q": half(3, 6, 32),
        "attn_sink": torch.zeros(128, device=META),
        "kv_indptr_prefix": torch.zeros(7),
        "kv_indices_prefix": torch.zeros(4, 1),
        "softmax_scale": math.nan,
    }
    repairs = [
        (documented.QUERY_HEAD_DIM, "q", half(3, 6, 16)),
        (documented.SINK_LENGTH, "attn_sink", torch.zeros(6, device=META)),
        (documented.INDPTR_LENGTH, "kv_indptr_prefix", torch.zeros(4)),
        (documented.INDICES_RANK, "kv_indices_prefix", torch.zeros(4)),
        (documented.INDEX_DTYPE, "kv_indices_prefix", ints(0, 7, -1, 3)),
        (documented.INDEX_DTYPE, "kv_indptr_prefix", ints(0, 2, 2, 4)),
        (documented.DEVICES, "attn_sink", torch.zeros(6)),
        (documented.SCALE, "softmax_scale", 0.25),
    ]
    for error, name, repaired in repairs:
        with pytest.raises(ContractViolation) as caught:
            prefill(**broken)
        assert caught.value.error is error
        broken[name] = repaired
    prefill(**broken)


@pytest.mark.parametrize("scale", [torch.tensor(0.25), True], ids=["16-tensor", "A27-bool"])
def test_a_scale_that_is_no_number_is_a_wrong_type(prefill: Call, scale: Any):
    with pytest.raises(TypeError, match=r"^softmax_scale: expected float, got ") as caught:
        prefill(softmax_scale=scale)
    assert isinstance(caught.value, ContractViolation)


# On the meta device, where 4 GiB cost nothing; that the addresses are right is tested with the kernels.
@pytest.mark.parametrize(
    ("name", "shape", "strides"),
    [
        pytest.param("unified_kv", (2049, 16), (2**20, 1), id="12-stride"),
        pytest.param("unified_kv", (2**27 + 1, 16), (16, 1), id="12-rows"),
        pytest.param("q", (3, 6, 16), (2**30, 16, 1), id="13"),
    ],
)
def test_offsets_beyond_32_bits_are_accepted(
    prefill: Call, prefill_arguments: dict[str, Any], name: str, shape: tuple[int, ...], strides: tuple[int, ...]
):
    tensors = {n: v.to(META) for n, v in prefill_arguments.items() if isinstance(v, torch.Tensor)}
    tensors[name] = torch.empty_strided(shape, strides, dtype=BF16, device=META)
    assert prefill(**tensors).shape == (3, 6, 16)


def test_a_refused_call_changes_nothing(prefill: Call, prefill_arguments: dict[str, Any]):
    tensors = {n: v for n, v in prefill_arguments.items() if isinstance(v, torch.Tensor)}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    with pytest.raises(ContractViolation):
        prefill(softmax_scale=math.nan)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())
