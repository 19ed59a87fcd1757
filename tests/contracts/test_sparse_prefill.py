"""Sparse prefill and decode: every public check in order, every hole closed, reports accepted or refused as they must be.

The basic call is E2 of the case sheet: 3 tokens, 6 heads, rows of 16 columns, a pool of 8 rows, 3 new rows. Contents of
index tensors are the business of value checks and stay out of this file.
"""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tensorpact
from tensorpact import ContractViolation, DocumentedError
from tensorpact_contracts import sparse_prefill as documented
from tensorpact_kernels import sparse_attn_v4_paged_decode, sparse_attn_v4_paged_prefill

HALF, FP8 = torch.bfloat16, torch.float8_e4m3fn
META = torch.device("meta")


@pytest.fixture(params=["compiled", "beartype"], autouse=True)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with tensorpact.enforcement(request.param):
        yield request.param


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=HALF)


def prefill(**changed: Any) -> Any:
    arguments = {
        "q": half(3, 6, 16),
        "unified_kv": half(8, 16),
        "kv_indices_prefix": ints(0, 7, -1, 3),
        "kv_indptr_prefix": ints(0, 2, 2, 4),
        "kv": half(3, 16),
        "kv_indices_extend": ints(0, 0, 1, 0, 1, 2),
        "kv_indptr_extend": ints(0, 1, 3, 6),
        "attn_sink": torch.randn(6),
        "softmax_scale": 0.25,
    }
    assert changed.keys() <= {*arguments, "return_lse"}
    return sparse_attn_v4_paged_prefill(**{**arguments, **changed})


def decode(**changed: Any) -> Any:
    arguments = {
        "q": half(3, 6, 128),
        "unified_kv": half(8, 128),
        "kv_indices": ints(0, 7, 3, 1),
        "kv_indptr": ints(0, 2, 2, 4),
        "attn_sink": torch.randn(6),
        "softmax_scale": 0.25,
    }
    assert changed.keys() <= {*arguments, "kv_scales", "return_lse"}
    return sparse_attn_v4_paged_decode(**{**arguments, **changed})


def quantised(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(FP8)


def refused(call: Any, error: DocumentedError, kind: type[Exception], text: str, **changed: Any) -> ContractViolation:
    with pytest.raises(kind) as caught:
        call(**changed)
    assert isinstance(caught.value, ContractViolation)
    assert (str(caught.value), caught.value.error) == (text, error)
    return caught.value


# Each entry breaks one public check and every later one that can be broken at the same time.
PREFILL_PUBLIC = [
    (
        documented.EXPECTS_HALF,
        {"q": torch.zeros(3, 6, 16), "kv": torch.zeros(3, 8, dtype=torch.float16), "softmax_scale": math.nan},
        "sparse_attn_v4_paged_prefill expects fp16/bf16 q, got torch.float32",
    ),
    (
        documented.UNIFIED_KV_DTYPE,
        {"unified_kv": torch.zeros(8, 16), "kv": torch.zeros(3, 8), "attn_sink": torch.zeros(128)},
        "unified_kv dtype mismatch: kv=torch.float32, q=torch.bfloat16",
    ),
    (
        documented.KV_DTYPE,
        {"kv": torch.zeros(3, 8, dtype=torch.float16), "kv_indptr_prefix": ints(0, 2)},
        "kv dtype mismatch: kv=torch.float16, q=torch.bfloat16",
    ),
    (
        documented.HEAD_DIM_MISMATCH,
        {"unified_kv": half(8, 128), "kv": half(3, 64), "q": half(3, 16), "attn_sink": torch.zeros(5)},
        "head_dim mismatch: unified_kv=128, kv=64",
    ),
]

DECODE_PUBLIC = [
    (
        documented.DECODE_EXPECTS_HALF,
        {"q": torch.zeros(3, 6, 128, dtype=torch.float64), "kv_scales": torch.zeros(8, 2)},
        "sparse_attn_v4_paged_decode expects fp16/bf16 q, got torch.float64",
    ),
    (
        documented.SCALES_WITHOUT_FP8,
        {"kv_scales": torch.zeros(8, 9, dtype=HALF), "attn_sink": torch.zeros(128)},
        "kv_scales supplied but unified_kv is torch.bfloat16, expected torch.float8_e4m3fn",
    ),
    (
        documented.SCALES_DTYPE,
        {"unified_kv": quantised(8, 96), "kv_scales": torch.zeros(8, 9, dtype=HALF)},
        "kv_scales must be fp32, got torch.bfloat16",
    ),
    (
        documented.GROUP_SIZE_DIVIDES,
        {"q": half(1, 16, 96), "unified_kv": quantised(4, 96), "kv_scales": torch.zeros(4, 3)},
        "D=96 must be divisible by GROUP_SIZE=64",
    ),
    (
        documented.SCALES_SHAPE,
        {"unified_kv": quantised(8, 128), "kv_scales": torch.zeros(8, 1), "q": half(3, 128)},
        "kv_scales shape (8, 1) does not match expected (8, 2)",
    ),
    (
        documented.UNIFIED_KV_DTYPE,
        {"unified_kv": quantised(8, 64), "kv_indptr": ints(0, 2, 2)},
        "unified_kv dtype mismatch: kv=torch.float8_e4m3fn, q=torch.bfloat16",
    ),
]


def test_the_basic_calls_are_accepted():
    assert prefill().shape == (3, 6, 16)
    assert decode().shape == (3, 6, 128)
    assert decode(unified_kv=quantised(8, 128), kv_scales=torch.ones(8, 2)).shape == (3, 6, 128)


@pytest.mark.parametrize(("error", "changed", "text"), PREFILL_PUBLIC, ids=lambda value: getattr(value, "slug", ""))
def test_prefill_public_checks_in_order(error: DocumentedError, changed: dict[str, Any], text: str):
    refused(prefill, error, RuntimeError, text, **changed)


@pytest.mark.parametrize(("error", "changed", "text"), DECODE_PUBLIC, ids=lambda value: getattr(value, "slug", ""))
def test_decode_public_checks_in_order(error: DocumentedError, changed: dict[str, Any], text: str):
    refused(decode, error, RuntimeError, text, **changed)


def test_the_device_check_comes_first():
    everything = {
        "q": torch.zeros(2, 2),
        "unified_kv": torch.zeros(1),
        "attn_sink": torch.zeros(0),
        "softmax_scale": -1.0,
    }
    with tensorpact.use_backend("triton"):
        text = "Triton sparse_attn_v4_paged_prefill requires CUDA/HIP tensors"
        refused(prefill, documented.REQUIRES_CUDA, RuntimeError, text, kv=torch.zeros(1), **everything)
        text = "Triton sparse_attn_v4_paged_decode requires CUDA/HIP tensors"
        refused(decode, documented.DECODE_REQUIRES_CUDA, RuntimeError, text, kv_scales=torch.zeros(0), **everything)


def test_the_contracts_hold_the_public_checks_first():
    prefill_order = [error.slug for error, _, _ in PREFILL_PUBLIC]
    decode_order = [error.slug for error, _, _ in DECODE_PUBLIC]
    assert [e.slug for e in documented.SPARSE_PREFILL.errors[1:5]] == prefill_order
    assert [e.slug for e in documented.SPARSE_DECODE.errors[1:7]] == decode_order
    assert all(e.documented is RuntimeError for e in documented.SPARSE_PREFILL.errors[:5])
    assert all(e.documented is RuntimeError for e in documented.SPARSE_DECODE.errors[:7])


RANKS = "q has the axes [T, H, D], a pool of rows has [rows, D]; wrong number of axes: "
SINK = "attn_sink must hold one logit for each of the {} heads of q, got shape {}"
OFFSETS = "{} must hold T + 1 = {} offsets for the {} query tokens of q"
INTEGERS = "row indices and offsets are int32 or int64; of another dtype: "
ELSEWHERE = "every tensor must be on the device of q, cpu; elsewhere: "
SCALE = "softmax_scale must be finite and above 0, got "
ONE_TOKEN = {
    "kv_indices_prefix": ints(0),
    "kv_indptr_prefix": ints(0, 1),
    "kv_indices_extend": ints(0),
    "kv_indptr_extend": ints(0, 1),
    "attn_sink": torch.zeros(1),
}

# (hole of the spec, documented error, class, text, arguments)
PREFILL_HOLES = [
    pytest.param(error, kind, text, changed, id=hole)
    for hole, error, kind, text, changed in [
        (
            "1-q-wider",
            documented.QUERY_HEAD_DIM,
            ValueError,
            "head_dim mismatch: q=32, unified_kv=16",
            {"q": half(1, 1, 32), "unified_kv": half(4, 16), "kv": half(4, 16), **ONE_TOKEN},
        ),
        (
            "1-q-narrower",
            documented.QUERY_HEAD_DIM,
            ValueError,
            "head_dim mismatch: q=8, unified_kv=16",
            {"q": half(1, 1, 8), "unified_kv": half(4, 16), "kv": half(4, 16), **ONE_TOKEN},
        ),
        (
            "2-mla-pool",
            documented.POOL_RANK,
            ValueError,
            RANKS + "unified_kv",
            {"q": half(1, 1, 16), "unified_kv": half(4, 1, 16), "kv": half(4, 16), **ONE_TOKEN},
        ),
        (
            "2-mla-rows",
            documented.POOL_RANK,
            ValueError,
            RANKS + "unified_kv, kv",
            {
                "unified_kv": half(8, 1, 16),
                "kv": half(3, 1, 16),
            },
        ),
        ("3-q-2d", documented.POOL_RANK, ValueError, RANKS + "q", {"q": half(4, 16)}),
        ("3-q-4d", documented.POOL_RANK, ValueError, RANKS + "q", {"q": half(1, 3, 6, 16)}),
        ("4-sink-short", documented.SINK_LENGTH, ValueError, SINK.format(6, [4]), {"attn_sink": torch.zeros(4)}),
        ("4-sink-column", documented.SINK_LENGTH, ValueError, SINK.format(6, [6, 1]), {"attn_sink": torch.zeros(6, 1)}),
        (
            "4-sink-elsewhere",
            documented.DEVICES,
            ValueError,
            ELSEWHERE + "attn_sink",
            {
                "attn_sink": torch.zeros(6, device=META),
            },
        ),
        (
            "5-indptr-short",
            documented.INDPTR_LENGTH,
            ValueError,
            OFFSETS.format("kv_indptr_prefix", 5, 4),
            {"q": half(4, 6, 16), "kv_indptr_prefix": ints(0, 1, 2, 3), "kv_indptr_extend": ints(0, 1, 2, 3)},
        ),
        (
            "5-extend-indptr-short",
            documented.INDPTR_LENGTH,
            ValueError,
            OFFSETS.format("kv_indptr_extend", 4, 3),
            {
                "kv_indptr_extend": ints(0, 1, 3),
            },
        ),
        (
            "10-float-indices",
            documented.INDEX_DTYPE,
            TypeError,
            INTEGERS + "kv_indices_prefix",
            {
                "kv_indices_prefix": torch.tensor([0.0, 7.0, -1.0, 3.0]),
            },
        ),
        (
            "10-bool-indices",
            documented.INDEX_DTYPE,
            TypeError,
            INTEGERS + "kv_indices_extend",
            {
                "kv_indices_extend": torch.ones(6, dtype=torch.bool),
            },
        ),
        (
            "10-all-float",
            documented.INDEX_DTYPE,
            TypeError,
            INTEGERS + "kv_indices_prefix, kv_indptr_prefix, kv_indices_extend, kv_indptr_extend",
            {
                "kv_indices_prefix": torch.zeros(4),
                "kv_indptr_prefix": torch.zeros(4),
                "kv_indices_extend": torch.zeros(6),
                "kv_indptr_extend": torch.zeros(4),
            },
        ),
        (
            "11-pool-elsewhere",
            documented.DEVICES,
            ValueError,
            ELSEWHERE + "unified_kv",
            {
                "unified_kv": half(8, 16).to(META),
            },
        ),
        (
            "11-rows-and-indices-elsewhere",
            documented.DEVICES,
            ValueError,
            ELSEWHERE + "kv_indices_prefix, kv",
            {
                "kv": half(3, 16).to(META),
                "kv_indices_prefix": ints(0, 7, -1, 3).to(META),
            },
        ),
        ("16-nan", documented.SCALE, ValueError, SCALE + "nan", {"softmax_scale": math.nan}),
        ("16-inf", documented.SCALE, ValueError, SCALE + "inf", {"softmax_scale": math.inf}),
        ("16-zero", documented.SCALE, ValueError, SCALE + "0.0", {"softmax_scale": 0.0}),
        ("16-negative", documented.SCALE, ValueError, SCALE + "-0.25", {"softmax_scale": -0.25}),
    ]
]


@pytest.mark.parametrize(("error", "kind", "text", "changed"), PREFILL_HOLES)
def test_prefill_holes_are_closed(error: DocumentedError, kind: type[Exception], text: str, changed: dict[str, Any]):
    refused(prefill, error, kind, text, **changed)


DECODE_HOLES = [
    pytest.param(error, kind, text, changed, id=hole)
    for hole, error, kind, text, changed in [
        (
            "1-q-narrower",
            documented.QUERY_HEAD_DIM,
            ValueError,
            "head_dim mismatch: q=64, unified_kv=128",
            {
                "q": half(3, 6, 64),
            },
        ),
        (
            "1-q-narrower-fp8",
            documented.QUERY_HEAD_DIM,
            ValueError,
            "head_dim mismatch: q=64, unified_kv=128",
            {
                "q": half(3, 6, 64),
                "unified_kv": quantised(8, 128),
                "kv_scales": torch.ones(8, 2),
            },
        ),
        ("2-mla-pool", documented.POOL_RANK, ValueError, RANKS + "unified_kv", {"unified_kv": half(8, 1, 128)}),
        ("3-q-2d", documented.POOL_RANK, ValueError, RANKS + "q", {"q": half(3, 128)}),
        ("4-sink-long", documented.SINK_LENGTH, ValueError, SINK.format(6, [7]), {"attn_sink": torch.zeros(7)}),
        (
            "5-indptr-long",
            documented.INDPTR_LENGTH,
            ValueError,
            OFFSETS.format("kv_indptr", 4, 3),
            {
                "kv_indptr": ints(0, 2, 2, 4, 4),
            },
        ),
        (
            "10-int16",
            documented.INDEX_DTYPE,
            TypeError,
            INTEGERS + "kv_indices",
            {"kv_indices": ints(0, 7, 3, 1).short()},
        ),
        (
            "11-scales-elsewhere",
            documented.DEVICES,
            ValueError,
            ELSEWHERE + "kv_scales",
            {
                "unified_kv": quantised(8, 128),
                "kv_scales": torch.ones(8, 2, device=META),
            },
        ),
        ("16-nan", documented.SCALE, ValueError, SCALE + "nan", {"softmax_scale": math.nan}),
    ]
]


@pytest.mark.parametrize(("error", "kind", "text", "changed"), DECODE_HOLES)
def test_decode_holes_are_closed(error: DocumentedError, kind: type[Exception], text: str, changed: dict[str, Any]):
    refused(decode, error, kind, text, **changed)


def test_holes_fire_in_the_order_of_the_contract():
    broken = {
        "q": half(3, 6, 32),
        "attn_sink": torch.zeros(128, device=META),
        "kv_indptr_prefix": torch.zeros(7),
        "kv_indices_prefix": torch.zeros(4, 1),
        "softmax_scale": math.nan,
    }
    right = [
        ("q", half(3, 6, 16), documented.QUERY_HEAD_DIM),
        ("attn_sink", torch.zeros(6, device=META), documented.SINK_LENGTH),
        ("kv_indptr_prefix", torch.zeros(4), documented.INDPTR_LENGTH),
        ("kv_indices_prefix", torch.zeros(4), documented.INDICES_RANK),
        ("kv_indices_prefix", ints(0, 7, -1, 3), documented.INDEX_DTYPE),
        ("kv_indptr_prefix", ints(0, 2, 2, 4), documented.INDEX_DTYPE),
        ("attn_sink", torch.zeros(6), documented.DEVICES),
        ("softmax_scale", 0.25, documented.SCALE),
    ]
    for name, repaired, error in right:
        with pytest.raises(ContractViolation) as caught:
            prefill(**broken)
        assert caught.value.error is error
        broken[name] = repaired
    prefill(**broken)


@pytest.mark.parametrize("scale", [torch.tensor(0.25), True], ids=["16-zero-dim-tensor", "A27-bool"])
def test_a_scale_that_is_no_number_has_the_wrong_type(scale: Any):
    with pytest.raises(TypeError, match="^softmax_scale: expected float, got ") as caught:
        prefill(softmax_scale=scale)
    assert isinstance(caught.value, ContractViolation)


@pytest.mark.parametrize(("shape", "strides"), [((2049, 16), (2**20, 1)), ((2**22 + 1, 512), (512, 1))])
def test_12_a_pool_beyond_32_bit_offsets_is_accepted(shape: tuple[int, int], strides: tuple[int, int]):
    # On the meta device, where a pool over 4 GiB costs nothing; addresses are the kernel tests' business.
    pool = torch.empty_strided(shape, strides, dtype=HALF, device=META)
    arguments = on_meta(q=half(3, 6, shape[1]), kv=half(3, shape[1]), unified_kv=pool)
    assert prefill(**arguments).shape == (3, 6, shape[1])


def test_13_queries_beyond_32_bit_offsets_are_accepted():
    tokens = 2**15 + 1
    q = torch.empty_strided((tokens, 6, 16), (2**16, 16, 1), dtype=HALF, device=META)
    offsets = torch.empty(tokens + 1, dtype=torch.int32, device=META)
    arguments = on_meta(q=q, kv_indptr_prefix=offsets, kv_indptr_extend=offsets)
    assert prefill(**arguments).shape == (tokens, 6, 16)


def on_meta(**changed: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = {
        "q": half(3, 6, 16),
        "unified_kv": half(8, 16),
        "kv_indices_prefix": ints(0, 7, -1, 3),
        "kv_indptr_prefix": ints(0, 2, 2, 4),
        "kv": half(3, 16),
        "kv_indices_extend": ints(0, 0, 1, 0, 1, 2),
        "kv_indptr_extend": ints(0, 1, 3, 6),
        "attn_sink": torch.randn(6),
    }
    return {name: tensor.to(META) for name, tensor in {**tensors, **changed}.items()}


REFUSED_REPORTS = [
    pytest.param(
        {"q": half(3, 16, 16), "attn_sink": torch.zeros(128)}, documented.SINK_LENGTH, SINK.format(16, [128]),
        id="sglang-35092-global-sink-on-a-tp-rank",
    ),
    pytest.param(
        {"q": half(3, 64, 16), "attn_sink": torch.zeros(16)}, documented.SINK_LENGTH, SINK.format(64, [16]),
        id="sglang-32327-padded-heads-with-real-sinks",
    ),
    pytest.param(
        {"kv_indptr_prefix": ints(0, 2, 2)}, documented.INDPTR_LENGTH, OFFSETS.format("kv_indptr_prefix", 4, 3),
        id="sglang-4100-lengths-of-fewer-rows",
    ),
    pytest.param(
        {"kv_indices_prefix": torch.zeros(3, 2, dtype=torch.int32)}, documented.INDICES_RANK,
        "kv_indices_prefix must be a flat list of rows, one axis",
        id="R05",
    ),
    pytest.param(
        {"kv_indptr_prefix": ints(0, 2, 2, 4, 4)}, documented.INDPTR_LENGTH, OFFSETS.format("kv_indptr_prefix", 4, 3),
        id="R07",
    ),
    pytest.param(
        {"unified_kv": half(8, 32), "kv": half(3, 32)}, documented.QUERY_HEAD_DIM,
        "head_dim mismatch: q=16, unified_kv=32",
        id="R09",
    ),
    pytest.param(
        {"q": half(6, 3, 16)}, documented.SINK_LENGTH, SINK.format(3, [6]),
        id="R11-heads-before-tokens",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "error", "text"), REFUSED_REPORTS)
def test_reported_mistakes_are_refused(changed: dict[str, Any], error: DocumentedError, text: str):
    refused(prefill, error, ValueError, text, **changed)


def test_R15_mixed_half_precision_is_refused():
    text = "unified_kv dtype mismatch: kv=torch.float16, q=torch.bfloat16"
    refused(
        prefill, documented.UNIFIED_KV_DTYPE, RuntimeError, text, unified_kv=half(8, 16).half(), kv=half(3, 16).half()
    )


def test_R07_says_both_lengths():
    error = refused(
        prefill,
        documented.INDPTR_LENGTH,
        ValueError,
        OFFSETS.format("kv_indptr_prefix", 4, 3),
        kv_indptr_prefix=ints(0, 2, 2, 4, 4),
    )
    assert error.arguments["kv_indptr_prefix"].shape == (5,)
    assert error.bindings["T"].size == 3
    assert error.bindings["T"].source == "q axis 0"


SINKS = torch.randn(12)
ACCEPTED_REPORTS = [
    pytest.param({"q": half(3, 64, 16)[:, :6]}, id="sglang-34912-heads-of-a-padded-buffer"),
    pytest.param({"unified_kv": half(8, 24)[:, :16]}, id="vllm-47783-row-stride-of-a-packed-pool"),
    pytest.param({"unified_kv": half(2, 8, 16)[1]}, id="A11-layer-of-a-shared-pool"),
    pytest.param({"kv": half(16, 3).t()}, id="transposed-rows"),
    pytest.param({"attn_sink": SINKS[::2]}, id="4-strided-sink"),
    pytest.param({"attn_sink": SINKS[3:9]}, id="sglang-35092-slice-of-the-global-sink"),
    pytest.param({"attn_sink": torch.zeros(6, dtype=HALF)}, id="sink-in-half-precision"),
    pytest.param({"attn_sink": torch.full((6,), -math.inf)}, id="16-sink-without-weight"),
    pytest.param({"kv_indices_prefix": torch.tensor([0, 7, -1, 3])}, id="int64-indices"),
    pytest.param({"kv_indptr_extend": torch.tensor([0, 1, 3, 6])}, id="int64-offsets"),
    pytest.param({"kv_indices_prefix": ints(0, 0, 7, 0, -1, 0, 3, 0)[::2]}, id="strided-indices"),
    pytest.param({"kv_indices_prefix": ints(0, 7, -1, 3, 99, 99)}, id="A29"),
    pytest.param({"kv_indptr_prefix": ints(1, 2, 2, 4)}, id="indptr-slice-of-a-context-parallel-rank"),
    pytest.param({"kv_indices_prefix": ints(), "kv_indptr_prefix": ints(0, 0, 0, 0)}, id="no-prefix"),
    pytest.param({"kv_indices_prefix": ints(-1, -1, -1, -1)}, id="A19-all-skipped"),
    pytest.param({"kv": half(1, 16).expand(3, 16)}, id="A13-one-row-expanded"),
    pytest.param({"kv": half(5, 16)}, id="more-new-rows-than-tokens"),
    pytest.param({"softmax_scale": 1}, id="A27"),
    pytest.param({"attn_sink": torch.nn.Parameter(torch.zeros(6))}, id="A25"),
    pytest.param(
        {"q": half(0, 6, 16), "kv_indptr_prefix": ints(0), "kv_indptr_extend": ints(0)}, id="A01-no-tokens"
    ),
    pytest.param({"q": half(3, 6, 24), "unified_kv": half(8, 24), "kv": half(3, 24)}, id="A15-14-no-power-of-two"),
    pytest.param({"q": half(3, 6, 8), "unified_kv": half(8, 8), "kv": half(3, 8)}, id="14-narrow-rows"),
    pytest.param(
        {"q": half(1, 6, 16), "kv_indptr_prefix": ints(0, 2), "kv_indptr_extend": ints(0, 1)}, id="A17-fewer-tokens-than-heads"
    ),
]  # fmt: skip


@pytest.mark.parametrize("changed", ACCEPTED_REPORTS)
def test_valid_but_unusual_arguments_are_accepted(changed: dict[str, Any]):
    out = prefill(**changed)
    assert out.shape == changed.get("q", torch.empty(3, 6, 16)).shape
    assert out.isfinite().all()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"kv_scales": torch.ones(8, 4)[:, ::2], "unified_kv": quantised(8, 128)}, id="strided-scales"),
        pytest.param({"kv_indptr": ints(0, 2, 2, 2)}, id="padded-token"),
        pytest.param({"q": half(3, 6, 96), "unified_kv": half(8, 96)}, id="96-columns-without-scales"),
        pytest.param({"kv_indices": torch.tensor([0, 7, 3, 1])}, id="int64-indices"),
    ],
)
def test_decode_accepts(changed: dict[str, Any]):
    assert decode(**changed).shape == changed.get("q", torch.empty(3, 6, 128)).shape


def test_a_refused_call_changes_nothing():
    arguments = {"q": half(3, 6, 16), "unified_kv": half(8, 16), "attn_sink": torch.randn(128)}
    before = {name: tensor.clone() for name, tensor in arguments.items()}
    with pytest.raises(ContractViolation):
        prefill(**arguments)
    assert all(torch.equal(tensor, before[name]) for name, tensor in arguments.items())
