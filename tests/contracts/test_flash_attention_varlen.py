"""Flash attention over packed sequences: the public check, the kernel's in order, and what they let through."""

from typing import Any

import numpy as np
import pytest
import torch

import tensorpact
from tensorpact import ContractViolation, DocumentedError
from tensorpact_contracts import flash_attention as documented
from tensorpact_kernels import flash_attn_varlen_func

pytestmark = pytest.mark.usefixtures("both_modes")


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


def case(name: str, error: DocumentedError, text: str, **changed: Any) -> Any:
    return pytest.param(error, text, changed, id=name)


def arguments() -> dict[str, Any]:
    """Seven queries and nine keys in three sequences, one of them empty; six heads over two; columns of 32 and 24."""
    return {
        "q": half(7, 6, 32),
        "k": half(9, 2, 32),
        "v": half(9, 2, 24),
        "cu_seqlens_q": ints(0, 3, 3, 7),
        "cu_seqlens_k": ints(0, 4, 4, 9),
        "max_seqlen_q": 4,
        "max_seqlen_k": 5,
    }


def padded() -> dict[str, Any]:
    shapes = {"q": half(3, 4, 6, 32), "k": half(3, 5, 2, 32), "v": half(3, 5, 2, 24)}
    return {**shapes, "cu_seqlens_q": None, "cu_seqlens_k": None}


def attend(**changed: Any) -> Any:
    return flash_attn_varlen_func(**{**arguments(), **changed})


def refused(error: DocumentedError, text: str, changed: dict[str, Any]) -> None:
    with pytest.raises(error.documented) as caught:
        attend(**changed)
    assert isinstance(caught.value, ContractViolation)
    assert (caught.value.error, str(caught.value)) == (error, text)


BOUNDS = "max_seqlen_q and max_seqlen_k are required for FA3"
HALF = "FlashAttention only supports fp16 and bf16 data type; of another: q"
ONE_DTYPE = "q and {} must have the same dtype"
QUERIES = (
    "with cu_seqlens_q, queries have shape (total_q, num_heads, head_size), without it (batch_size, seqlen_q, "
    "num_heads, head_size); another number of axes: q"
)
KEYS = (
    "k has the tokens and heads of v and the head dim of q, in 3 axes with cu_seqlens_k and in 4 without; "
    "does not fit: "
)
BATCH = "the key side must hold the 3 sequences of the query side; another number in: "
EMPTY = "head counts and head dims must be at least 1; empty in: "
WIDE = "FlashAttention forward only supports head dimension at most 256, and 512 for values; wider: "
RESULT = "qv and out have the tokens and heads of the queries and the head dim of the values, 24; does not fit: "
SINKS = "sinks must have shape (num_heads,), here (6,), in bf16, fp16 or fp32, got torch.bfloat16 (2,)"
DEVICES = "all tensors of one call must be on one device; on another: "
CASES = [
    case("public-q", documented.MAX_LENGTHS, BOUNDS, max_seqlen_q=None, q=torch.zeros(7, 6, 32)),
    case("public-k", documented.MAX_LENGTHS, BOUNDS, max_seqlen_k=None),
    case("public-padded", documented.MAX_LENGTHS, BOUNDS, **padded(), max_seqlen_k=None),
    case("2", documented.HALF_ONLY, HALF, q=torch.zeros(7, 6, 32), k=half(9, 2, 32).half()),
    case("3-key", documented.SAME_DTYPE, ONE_DTYPE.format("k"), k=half(9, 2, 32).half()),
    case("3-value", documented.SAME_DTYPE, ONE_DTYPE.format("v"), v=torch.zeros(9, 2, 24)),
    case(
        "f10-table",
        documented.PAGE_TABLE_UNUSED,
        "flash_attn_varlen_func reads k and v as they lie: page_table must be None",
        page_table=ints(0, 1, 2)[:, None],
    ),
    case("6-q", documented.INT32, "cu_seqlens_q must have dtype torch.int32", cu_seqlens_q=ints(0, 3, 3, 7).long()),
    case("6-k", documented.INT32, "cu_seqlens_k must have dtype torch.int32", cu_seqlens_k=torch.zeros(4)),
    case("6-rank-q", documented.QUERY_RANK, QUERIES, q=half(1, 7, 6, 32), cu_seqlens_k=ints(0, 9)),
    case("6-rank-padded-q", documented.QUERY_RANK, QUERIES, cu_seqlens_q=None),
    case("6-rank-k", documented.KEY_SHAPE, KEYS + "k", k=half(1, 9, 2, 32)),
    case("6-rank-padded-k", documented.KEY_SHAPE, KEYS + "k, v", cu_seqlens_k=None),
    case(
        "6-empty",
        documented.BOUNDARIES,
        "cu_seqlens_q must be a vector of batch_size + 1 boundaries, here 1",
        cu_seqlens_q=ints(),
    ),
    case(
        "6-matrix",
        documented.BOUNDARIES,
        "cu_seqlens_k must be a vector of batch_size + 1 boundaries, here 4",
        cu_seqlens_k=ints(0, 4, 4, 9)[None],
    ),
    case("7", documented.SEQUENCE_COUNT, BATCH + "cu_seqlens_k", cu_seqlens_k=ints(0, 4, 9)),
    case(
        "7-padded",
        documented.SEQUENCE_COUNT,
        BATCH + "k",
        **padded() | {"k": half(2, 5, 2, 32), "v": half(2, 5, 2, 24)},
    ),
    case("8-width", documented.HEAD_DIM, WIDE + "q", q=half(7, 6, 264), k=half(9, 2, 264)),
    case("8-value-width", documented.HEAD_DIM, WIDE + "v", v=half(9, 2, 520)),
    case(
        "8-groups",
        documented.HEAD_GROUPS,
        "Number of heads in key/value must divide number of heads in query, got 4 and 6 in v, q",
        k=half(9, 4, 32),
        v=half(9, 4, 24),
    ),
    case("10-tokens", documented.KEY_SHAPE, KEYS + "v", v=half(8, 2, 24)),
    case("10-heads", documented.KEY_SHAPE, KEYS + "v", v=half(9, 6, 24)),
    case("10-columns", documented.KEY_SHAPE, KEYS + "k", k=half(9, 2, 24)),
    case("11-dtype", documented.INT32, "seqused_k must have dtype torch.int32", seqused_k=ints(1, 0, 2).long()),
    case(
        "11",
        documented.ONE_A_SEQUENCE,
        "seqused_q must have shape (batch_size,), here (3,)",
        seqused_q=ints(0, 3, 3, 7),
    ),
    case("13-dtype", documented.SAME_DTYPE, ONE_DTYPE.format("out"), out=torch.zeros(7, 6, 24)),
    case(
        "13-layout",
        documented.OUT_LAYOUT,
        "out must have contiguous last dimension",
        out=half(7, 24, 6).transpose(1, 2),
    ),
    case("13-shape", documented.QUERY_SHAPE, RESULT + "out", out=half(7, 6, 32)),
    case("16-dtype", documented.SAME_DTYPE, ONE_DTYPE.format("qv"), qv=half(7, 6, 24).half()),
    case("16-shape", documented.QUERY_SHAPE, RESULT + "qv", qv=half(7, 6, 32)),
    case("16-missing", documented.QV_MISSING, "only_qv=True requires qv to be provided", only_qv=True),
    case("19", documented.SPLITS, "num_splits > 256 not supported, got 300", num_splits=300),
    case("21", documented.SINKS, SINKS, sinks=half(2)),
    case("f9", documented.DEVICES, DEVICES + "seqused_k", seqused_k=ints(0, 0, 0).to("meta")),
    case(
        "f10-descale",
        documented.DESCALES,
        "descales belong to fp8 tensors, and fp16 and bf16 have none; given: v_descale",
        v_descale=torch.ones(3, 2),
    ),
    case(
        "f10-inert",
        documented.UNSUPPORTED,
        "not supported by this kernel, leave the default: score_mod, aux_tensors, ver",
        score_mod=len,
        aux_tensors=(),
        ver=2,
    ),
    case("f17", documented.SOFTCAP, "softcap must be 0 or a finite cap above 0, got -1", softcap=-1),
    case(
        "f18",
        documented.CAUSAL_WINDOW,
        "causal=True hides every key on the right: window_size[1] must be -1 or 0, got 1",
        causal=True,
        window_size=(-1, 1),
    ),
    case("f19", documented.CHUNK, "attention_chunk must be at least 0, got -2", attention_chunk=-2),
    case("f21-heads", documented.EMPTY_HEADS, EMPTY + "k, v", k=half(9, 0, 32), v=half(9, 0, 24)),
    case("f21-columns", documented.EMPTY_HEADS, EMPTY + "q, k", q=half(7, 6, 0), k=half(9, 2, 0)),
    case(
        "f27",
        documented.WINDOW,
        "window_size must be two integers, each -1 for no bound or a number of keys, got [1, 2, 3]",
        window_size=[1, 2, 3],
    ),
    case("f31", documented.SCALE, "softmax_scale must be None, or finite and above 0, got -1.0", softmax_scale=-1.0),
    case(
        "f30-expanded",
        documented.EXPANDED,
        "what a call may write needs an address for each element; an axis has stride 0 in: out",
        out=half(1, 6, 24).expand(7, 6, 24),
    ),
]


@pytest.mark.parametrize(("error", "text", "changed"), CASES)
def test_checks(error: DocumentedError, text: str, changed: dict[str, Any]):
    refused(error, text, changed)


@pytest.mark.parametrize("name", ["q", "k", "v", "qv"])
def test_f30_out_shares_memory(name: str):
    given = {"q": half(7, 6, 24), "k": half(9, 2, 24), "v": half(9, 2, 24), "qv": half(7, 6, 24)}
    room = half(2000)
    given[name] = room[: given[name].numel()].view(given[name].shape)
    out = room[given[name].numel() - 24 :][: 7 * 6 * 24].view(7, 6, 24)
    refused(
        documented.OUT_OVERLAP, f"out must have memory of its own, and shares some with: {name}", {**given, "out": out}
    )


def test_triton_needs_tensors_on_a_gpu():
    with tensorpact.use_backend("triton"):
        refused(documented.ON_CUDA, "q must be on CUDA for the Triton kernel", {})


def test_every_error_has_a_case():
    tested = {c.values[0] for c in CASES} | {documented.OUT_OVERLAP, documented.ON_CUDA}
    numbers = {documented.BOUNDARIES_ORDER, documented.BOUNDARIES_END, documented.LONGER, documented.USED_RANGE}
    assert tested | numbers == set(documented.VARLEN.errors)


def test_parameters_are_the_public_ones():
    from inspect import signature

    names = {n: p.default for n, p in signature(flash_attn_varlen_func).parameters.items()}
    assert list(names) == [
        "q",
        "k",
        "v",
        "cu_seqlens_q",
        "cu_seqlens_k",
        "max_seqlen_q",
        "max_seqlen_k",
        "seqused_q",
        "seqused_k",
        "page_table",
        "softmax_scale",
        "causal",
        "qv",
        "q_descale",
        "k_descale",
        "v_descale",
        "window_size",
        "attention_chunk",
        "softcap",
        "num_splits",
        "pack_gqa",
        "only_qv",
        "sm_margin",
        "return_softmax_lse",
        "sinks",
        "score_mod",
        "aux_tensors",
        "ver",
        "out",
        "allow_padded_tail",
    ]
    assert (names["num_splits"], names["attention_chunk"], names["window_size"], names["ver"]) == (1, 0, (-1, -1), 3)


def test_hints_and_numpy_numbers():
    given = arguments()
    plain = flash_attn_varlen_func(**given)
    hinted = given | {"max_seqlen_q": np.int64(4), "num_splits": 0, "pack_gqa": False, "sm_margin": 3}
    assert torch.equal(flash_attn_varlen_func(**hinted), plain)
    assert torch.equal(
        flash_attn_varlen_func(**given, softmax_scale=1), flash_attn_varlen_func(**given, softmax_scale=1.0)
    )


def test_padded_and_packed_are_the_same():
    given = padded()
    flat = {name: given[name].flatten(0, 1) for name in ("q", "k", "v")}
    ends = {"cu_seqlens_q": ints(0, 4, 8, 12), "cu_seqlens_k": ints(0, 5, 10, 15)}
    apart, apart_lse = attend(**given, causal=True, return_softmax_lse=True)
    joined, joined_lse = attend(**flat, **ends, causal=True, return_softmax_lse=True)
    assert torch.equal(apart.flatten(0, 1), joined)
    assert torch.equal(apart_lse.transpose(0, 1).flatten(1), joined_lse)


def test_nothing_to_do():
    for changed in (
        {"q": half(0, 6, 32), "cu_seqlens_q": ints(0, 0, 0, 0)},
        {"k": half(0, 2, 32), "v": half(0, 2, 24), "cu_seqlens_k": ints(0, 0, 0, 0)},
        {
            "q": half(0, 6, 32),
            "cu_seqlens_q": ints(0),
            "k": half(0, 2, 32),
            "v": half(0, 2, 24),
            "cu_seqlens_k": ints(0),
        },
    ):
        out, lse = attend(**changed, return_softmax_lse=True)
        assert not out.any()
        assert torch.isneginf(lse).all()
