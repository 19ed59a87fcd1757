"""Flash attention with a key-value cache: the public checks in firing order, the kernel's, and the holes of both."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tensorpact
from tensorpact import ContractViolation, DocumentedError
from tensorpact_contracts import flash_attention as documented
from tensorpact_kernels import flash_attn_with_kvcache

pytestmark = pytest.mark.usefixtures("both_modes")
Call = Callable[..., Any]
META = torch.device("meta")


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def half(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float32).to(dtype)


def turned(*shape: int) -> torch.Tensor:
    """Dense but for the last two axes, which lie the other way round."""
    return half(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)


def case(name: str, error: DocumentedError, text: str, **changed: Any) -> Any:
    return pytest.param(error, text, changed, id=name)


def arguments() -> dict[str, Any]:
    """Three sequences of four queries in six heads; rows of eleven slots with two heads; columns of 32 and 24."""
    return {
        "q": half(3, 4, 6, 32),
        "k_cache": half(3, 11, 2, 32),
        "v_cache": half(3, 11, 2, 24),
        "cache_seqlens": ints(5, 0, 9),
    }


def paged() -> dict[str, Any]:
    return {"k_cache": half(13, 4, 2, 32), "v_cache": half(13, 4, 2, 24), "page_table": ints(*range(9)).view(3, 3)}


def packed(*ends: int) -> dict[str, Any]:
    return {"q": half(7, 6, 32), "cu_seqlens_q": ints(*ends), "max_seqlen_q": 5}


def new(*tokens: int) -> dict[str, Any]:
    return {"k": half(*tokens, 2, 32), "v": half(*tokens, 2, 24), "cache_seqlens": 3}


def rotary(rows: int = 12, pairs: int = 16) -> dict[str, Any]:
    return {"rotary_cos": half(rows, pairs), "rotary_sin": half(rows, pairs)}


def values_alone() -> dict[str, Any]:
    return {"q": None, "k_cache": None, "qv": half(3, 4, 6, 24), "only_qv": True}


def attend(**changed: Any) -> Any:
    return flash_attn_with_kvcache(**{**arguments(), **changed})


def refused(call: Call, error: DocumentedError, text: str, changed: dict[str, Any]) -> None:
    with pytest.raises(error.documented) as caught:
        call(**changed)
    assert isinstance(caught.value, ContractViolation)
    assert (caught.value.error, str(caught.value)) == (error, text)


# Each of these breaks one public check and, as far as they can be broken with it, the later ones.
PUBLIC = [
    case("1", documented.V_CACHE_MISSING, "v_cache must be provided", v_cache=None, k_cache=None, q=None),
    case(
        "2",
        documented.V_CACHE_LAYOUT,
        "v_cache must have contiguous last dimension",
        v_cache=turned(3, 11, 2, 24),
        k_cache=None,
        q=None,
    ),
    case("3", documented.K_CACHE_MISSING, "k_cache can only be None when only_qv=True", k_cache=None, q=None),
    case(
        "4",
        documented.K_CACHE_LAYOUT,
        "k_cache must have contiguous last dimension",
        k_cache=turned(3, 11, 2, 32),
        q=None,
    ),
    case("5", documented.Q_MISSING, "q can only be None when only_qv=True", q=None, qv=half(3, 4, 6, 24)),
    case(
        "6",
        documented.NO_QUERIES,
        "q must be provided unless qv is provided with only_qv=True",
        q=None,
        k_cache=None,
        only_qv=True,
    ),
    case("7", documented.QV_MISSING, "only_qv=True requires qv to be provided", k_cache=None, only_qv=True),
    case(
        "7-with-scale",
        documented.QV_MISSING,
        "only_qv=True requires qv to be provided",
        only_qv=True,
        softmax_scale=0.5,
        k_cache=half(2, 11, 2, 32),
    ),
]

HALF = "FlashAttention only supports fp16 and bf16 data type; of another: "
ONE_DTYPE = "{} and {} must have the same dtype"
CACHES = (
    "k_cache has the axes [rows, slots, kv heads, D] with the D of q, v_cache the same with a head dim of its own; "
    "does not fit: "
)
LAYOUTS = (
    "with cu_seqlens_q, queries have shape (total_q, num_heads, head_size), without it (batch_size, seqlen_q, "
    "num_heads, head_size); another number of axes: "
)
BATCH = "batch_size must be equal to batch_size_k: 3 sequences, {} rows of {}, and no cache_batch_idx"
GROUPS = "Number of heads in key/value must divide number of heads in query, got {} and {} in v_cache, q"
WIDE = "FlashAttention forward only supports head dimension at most 256, and 512 for values; wider: "
RESULT = "qv and out have the tokens and heads of the queries and the head dim of the values, 24; does not fit: "
NEW = (
    "k and v to append have 3 sequences and 2 heads, [B, Sn, heads, head dim], or [Tn, heads, head dim] with "
    "cu_seqlens_k_new; does not fit: "
)
LONG = "If k is supplied, it must have seqlen <= the seqlen of the KV cache, got {} new tokens and {} slots"
TABLES = "rotary_cos and rotary_sin have shape (seqlen_ro, rotary_dim / 2), both the same; does not fit: "
SINKS = "sinks must have shape (num_heads,), here (6,), in bf16, fp16 or fp32, got {} {}"
KERNEL = [
    case("2-float32", documented.HALF_ONLY, HALF + "q", q=torch.zeros(3, 4, 6, 32)),
    case("2-fp8", documented.HALF_ONLY, HALF + "q", q=half(3, 4, 6, 32).to(torch.float8_e4m3fn)),
    case("2-ints", documented.HALF_ONLY, HALF + "q", q=half(3, 4, 6, 32).int()),
    case(
        "2-no-q",
        documented.HALF_ONLY,
        HALF + "v_cache",
        **{**values_alone(), "qv": torch.zeros(3, 4, 6, 24), "v_cache": torch.zeros(3, 11, 2, 24)},
    ),
    case("3-key", documented.SAME_DTYPE, ONE_DTYPE.format("q", "k_cache"), k_cache=half(3, 11, 2, 32).half()),
    case("3-value", documented.SAME_DTYPE, ONE_DTYPE.format("q", "v_cache"), v_cache=half(3, 11, 2, 24).half()),
    case(
        "3-no-q",
        documented.SAME_DTYPE,
        ONE_DTYPE.format("v_cache", "k_cache"),
        **{**values_alone(), "k_cache": half(3, 11, 2, 32).half()},
    ),
    case("5", documented.INT32, "page_table must have dtype torch.int32", **paged() | {"page_table": ints(0).long()}),
    case("6-dtype", documented.INT32, "cu_seqlens_q must have dtype torch.int32", cu_seqlens_q=ints(0, 2).long()),
    case(
        "6-max",
        documented.MAX_LENGTH_Q,
        "max_seqlen_q must be provided if cu_seqlens_q is provided",
        **packed(0, 2, 2, 7) | {"max_seqlen_q": None},
    ),
    case("6-rank", documented.QUERY_RANK, LAYOUTS + "q", q=half(3, 6, 32)),
    case("6-rank-packed", documented.QUERY_RANK, LAYOUTS + "q", **packed(0, 7) | {"q": half(1, 7, 6, 32)}),
    case("6-rank-qv", documented.QUERY_RANK, LAYOUTS + "qv", qv=half(12, 6, 24)),
    case(
        "6-empty",
        documented.BOUNDARIES,
        "cu_seqlens_q must be a vector of batch_size + 1 boundaries, here 1",
        **packed(),
    ),
    case(
        "6-matrix",
        documented.BOUNDARIES,
        "cu_seqlens_q must be a vector of batch_size + 1 boundaries, here 1",
        **packed() | {"cu_seqlens_q": ints(0, 7)[None]},
    ),
    case(
        "7",
        documented.CACHE_BATCH,
        BATCH.format(11, "k_cache and v_cache"),
        k_cache=half(11, 3, 2, 32),
        v_cache=half(11, 3, 2, 24),
    ),
    case(
        "7-table",
        documented.CACHE_BATCH,
        BATCH.format(2, "page_table"),
        **paged() | {"page_table": ints(0, 1).view(2, 1)},
    ),
    case(
        "7-packed",
        documented.CACHE_BATCH,
        BATCH.replace("3 s", "2 s").format(3, "k_cache and v_cache"),
        **packed(0, 2, 7),
    ),
    case("8-width", documented.HEAD_DIM, WIDE + "q, k_cache", q=half(3, 4, 6, 264), k_cache=half(3, 11, 2, 264)),
    case("8-value-width", documented.HEAD_DIM, WIDE + "v_cache", v_cache=half(3, 11, 2, 520)),
    case("8-groups", documented.HEAD_GROUPS, GROUPS.format(2, 5), q=half(3, 4, 5, 32)),
    case(
        "8-more",
        documented.HEAD_GROUPS,
        GROUPS.format(4, 2),
        q=half(3, 4, 2, 32),
        k_cache=half(3, 11, 4, 32),
        v_cache=half(3, 11, 4, 24),
    ),
    case("10-rank", documented.CACHE_SHAPE, CACHES + "k_cache", k_cache=half(3, 22, 32)),
    case("10-slots", documented.CACHE_SHAPE, CACHES + "k_cache", k_cache=half(3, 12, 2, 32)),
    case("10-heads", documented.CACHE_SHAPE, CACHES + "k_cache", k_cache=half(3, 11, 3, 32)),
    case("10-columns", documented.CACHE_SHAPE, CACHES + "k_cache", k_cache=half(3, 11, 2, 16)),
    case("10-both", documented.CACHE_SHAPE, CACHES + "k_cache, v_cache", k_cache=half(3, 11, 2), v_cache=half(2, 24)),
    case(
        "10-table",
        documented.PAGE_TABLE_RANK,
        "page_table must have one row a sequence and one column a page, got 1 axes",
        **paged() | {"page_table": ints(0, 1, 2)},
    ),
    case("11-dtype", documented.INT32, "cache_seqlens must have dtype torch.int32", cache_seqlens=ints(5, 0, 9).long()),
    case(
        "11-shape",
        documented.ONE_A_SEQUENCE,
        "cache_seqlens must have shape (batch_size,), here (3,)",
        cache_seqlens=ints(0, 5, 5, 9),
    ),
    case(
        "11-rank",
        documented.ONE_A_SEQUENCE,
        "cache_seqlens must have shape (batch_size,), here (3,)",
        cache_seqlens=ints(5, 0, 9)[None],
    ),
    case(
        "11-leftpad-dtype", documented.INT32, "cache_leftpad must have dtype torch.int32", cache_leftpad=torch.zeros(3)
    ),
    case(
        "11-leftpad",
        documented.ONE_A_SEQUENCE,
        "cache_leftpad must have shape (batch_size,), here (3,)",
        cache_leftpad=ints(0),
    ),
    case("13-dtype", documented.SAME_DTYPE, ONE_DTYPE.format("q", "out"), out=torch.zeros(3, 4, 6, 24)),
    case("13-layout", documented.OUT_LAYOUT, "out must have contiguous last dimension", out=turned(3, 4, 6, 24)),
    case("13-shape", documented.QUERY_SHAPE, RESULT + "out", out=half(3, 4, 6, 32)),
    case("13-packed", documented.QUERY_SHAPE, RESULT + "out", **packed(0, 2, 2, 7), out=half(6, 6, 24)),
    case("14-no-value", documented.NEW_PAIR, "k and v are appended together; missing: v", k=half(3, 2, 2, 32)),
    case("14-no-key", documented.NEW_PAIR, "k and v are appended together; missing: k", v=half(3, 2, 2, 24)),
    case(
        "14-no-lengths",
        documented.NEW_LENGTHS,
        "If k is supplied, cache_seqlens must also be passed in",
        **new(3, 2) | {"cache_seqlens": None},
    ),
    case(
        "14-key-dtype", documented.SAME_DTYPE, ONE_DTYPE.format("q", "k"), **new(3, 2) | {"k": torch.zeros(3, 2, 2, 32)}
    ),
    case(
        "14-value-dtype",
        documented.SAME_DTYPE,
        ONE_DTYPE.format("q", "v"),
        **new(3, 2) | {"v": torch.zeros(3, 2, 2, 24)},
    ),
    case(
        "14-boundaries-dtype",
        documented.INT32,
        "cu_seqlens_k_new must have dtype torch.int32",
        **new(5),
        cu_seqlens_k_new=ints(0, 2, 2, 5).long(),
    ),
    case(
        "14-boundaries",
        documented.BOUNDARIES,
        "cu_seqlens_k_new must be a vector of batch_size + 1 boundaries, here 4",
        **new(5),
        cu_seqlens_k_new=ints(0, 2, 5),
    ),
    case("14-batch", documented.NEW_SHAPE, NEW + "k, v", **new(2, 2)),
    case("14-layout", documented.NEW_SHAPE, NEW + "k, v", **new(6)),
    case("14-packed-layout", documented.NEW_SHAPE, NEW + "k, v", **new(3, 2), cu_seqlens_k_new=ints(0, 2, 4, 6)),
    case("14-heads", documented.NEW_SHAPE, NEW + "k", **new(3, 2) | {"k": half(3, 2, 6, 32)}),
    case("14-columns", documented.NEW_SHAPE, NEW + "v", **new(3, 2) | {"v": half(3, 2, 2, 32)}),
    case("14-tokens", documented.NEW_SHAPE, NEW + "v", **new(3, 2) | {"v": half(3, 1, 2, 24)}),
    case("14-long", documented.NEW_TOO_LONG, LONG.format(12, 11), **new(3, 12)),
    case("14-long-pages", documented.NEW_TOO_LONG, LONG.format(13, 12), **paged(), **new(3, 13)),
    case(
        "14-long-packed", documented.NEW_TOO_LONG, LONG.format(34, 11), **new(34), cu_seqlens_k_new=ints(0, 11, 22, 34)
    ),
    case("16-dtype", documented.SAME_DTYPE, ONE_DTYPE.format("q", "qv"), qv=half(3, 4, 6, 24).half()),
    case(
        "16-no-q",
        documented.SAME_DTYPE,
        ONE_DTYPE.format("v_cache", "qv"),
        **values_alone() | {"qv": half(3, 4, 6, 24).half()},
    ),
    case("16-shape", documented.QUERY_SHAPE, RESULT + "qv", qv=half(3, 4, 6, 32)),
    case(
        "17-no-sine",
        documented.ROTARY_PAIR,
        "rotary_cos and rotary_sin are given together; missing: rotary_sin",
        **new(3, 2),
        rotary_cos=half(12, 16),
    ),
    case(
        "17-no-cosine",
        documented.ROTARY_PAIR,
        "rotary_cos and rotary_sin are given together; missing: rotary_cos",
        **new(3, 2),
        rotary_sin=half(12, 16),
    ),
    case(
        "17-no-keys",
        documented.ROTARY_WITHOUT_KEYS,
        "If rotary_cos and rotary_sin are provided, new k and v to be appended to the cache must also be provided",
        **rotary(),
    ),
    case(
        "17-dtype",
        documented.SAME_DTYPE,
        ONE_DTYPE.format("q", "rotary_cos"),
        **new(3, 2),
        **rotary() | {"rotary_cos": torch.zeros(12, 16)},
    ),
    case(
        "17-sine-dtype",
        documented.SAME_DTYPE,
        ONE_DTYPE.format("q", "rotary_sin"),
        **new(3, 2),
        **rotary() | {"rotary_sin": torch.zeros(12, 16)},
    ),
    case(
        "17-shape",
        documented.ROTARY_SHAPE,
        TABLES + "rotary_sin",
        **new(3, 2),
        **rotary() | {"rotary_sin": half(12, 8)},
    ),
    case(
        "17-rank",
        documented.ROTARY_SHAPE,
        TABLES + "rotary_cos, rotary_sin",
        **new(3, 2),
        rotary_cos=half(1, 12, 16),
        rotary_sin=half(1, 12, 16),
    ),
    case(
        "17-wide",
        documented.ROTARY_DIM,
        "rotary_dim must be <= headdim and divisible by 16, got 48 for 32",
        **new(3, 2),
        **rotary(12, 24),
    ),
    case(
        "17-steps",
        documented.ROTARY_DIM,
        "rotary_dim must be <= headdim and divisible by 16, got 24 for 32",
        **new(3, 2),
        **rotary(12, 12),
    ),
    case(
        "17-starts-dtype",
        documented.INT32,
        "rotary_seqlens must have dtype torch.int32",
        **new(3, 2),
        **rotary(),
        rotary_seqlens=ints(0, 1, 2).long(),
    ),
    case(
        "17-starts",
        documented.ONE_A_SEQUENCE,
        "rotary_seqlens must have shape (batch_size,), here (3,)",
        **new(3, 2),
        **rotary(),
        rotary_seqlens=ints(0, 1),
    ),
    case(
        "18-dtype",
        documented.INT32,
        "cache_batch_idx must have dtype torch.int32",
        cache_batch_idx=ints(0, 1, 2).long(),
    ),
    case(
        "18-shape",
        documented.ONE_A_SEQUENCE,
        "cache_batch_idx must have shape (batch_size,), here (3,)",
        cache_batch_idx=ints(0, 1),
    ),
    case("19", documented.SPLITS, "num_splits > 256 not supported, got 257", num_splits=257),
    case(
        "21-dtype", documented.SINKS, SINKS.format("torch.float64", "(6,)"), sinks=torch.zeros(6, dtype=torch.float64)
    ),
    case("21-shape", documented.SINKS, SINKS.format("torch.bfloat16", "(2,)"), sinks=half(2)),
]

DEVICES = "all tensors of one call must be on one device; on another: "
UNSUPPORTED = "not supported by this kernel, leave the default: "
EMPTY = "head counts and head dims must be at least 1; empty in: "
ALONE = "rotary_seqlens acts through rotary_cos, and cu_seqlens_k_new through k; missing: "
DESCALES = "descales belong to fp8 tensors, and fp16 and bf16 have none; given: "
WINDOW = "window_size must be two integers, each -1 for no bound or a number of keys, got {}"
RANGE = "cache_seqlens and the new tokens must fit the {} slots of a row, got {} and {}"
HOLES = [
    case(
        "f5",
        documented.ONE_A_SEQUENCE,
        "cache_batch_idx must have shape (batch_size,), here (3,)",
        cache_batch_idx=ints(0, 1, 2, 3),
    ),
    case(
        "f9-one",
        documented.DEVICES,
        DEVICES + "k_cache",
        k_cache=torch.zeros(3, 11, 2, 32, dtype=torch.bfloat16, device=META),
    ),
    case("f9-lengths", documented.DEVICES, DEVICES + "cache_seqlens", cache_seqlens=ints(5, 0, 9).to(META)),
    case(
        "f9-values",
        documented.DEVICES,
        DEVICES + "q, k_cache, cache_seqlens",
        v_cache=torch.zeros(3, 11, 2, 24, dtype=torch.bfloat16, device=META),
    ),
    case("f10-starts", documented.COMPANIONS, ALONE + "rotary_cos", rotary_seqlens=ints(0, 1, 2)),
    case("f10-boundaries", documented.COMPANIONS, ALONE + "k", cu_seqlens_k_new=ints(0, 1, 2, 2)),
    case("f10-descale", documented.DESCALES, DESCALES + "k_descale", k_descale=torch.ones(3, 2)),
    case(
        "f10-descales",
        documented.DESCALES,
        DESCALES + "q_descale, v_descale",
        q_descale=torch.ones(3, 2),
        v_descale=torch.ones(1),
    ),
    case("f10-score-mod", documented.UNSUPPORTED, UNSUPPORTED + "score_mod", score_mod=len),
    case("f10-aux", documented.UNSUPPORTED, UNSUPPORTED + "aux_tensors", aux_tensors=[]),
    case("f10-version", documented.UNSUPPORTED, UNSUPPORTED + "ver", ver=4),
    case("f33", documented.UNSUPPORTED, UNSUPPORTED + "scheduler_metadata", scheduler_metadata=ints(1, 2)),
    case(
        "f12",
        documented.LENGTHS_TYPE,
        "cache_seqlens must be an int or an int32 tensor, got a bool",
        cache_seqlens=True,
    ),
    case(
        "f15",
        documented.QUERY_IGNORED,
        "only_qv=True scores qv against v_cache alone: q and k_cache must not both be given",
        qv=half(3, 4, 6, 24),
        only_qv=True,
    ),
    case(
        "f16",
        documented.SAME_DTYPE,
        ONE_DTYPE.format("v_cache", "k"),
        **values_alone() | new(3, 2) | {"k": torch.zeros(3, 2, 2, 32)},
    ),
    case("f17-negative", documented.SOFTCAP, "softcap must be 0 or a finite cap above 0, got -0.5", softcap=-0.5),
    case("f17-nan", documented.SOFTCAP, "softcap must be 0 or a finite cap above 0, got nan", softcap=float("nan")),
    case(
        "f17-infinite", documented.SOFTCAP, "softcap must be 0 or a finite cap above 0, got inf", softcap=float("inf")
    ),
    case("f18-side", documented.WINDOW, WINDOW.format("(-5, 3)"), window_size=(-5, 3)),
    case(
        "f18-causal",
        documented.CAUSAL_WINDOW,
        "causal=True hides every key on the right: window_size[1] must be -1 or 0, got 3",
        causal=True,
        window_size=(2, 3),
    ),
    case("f19", documented.CHUNK, "attention_chunk must be at least 0, got -1", attention_chunk=-1),
    case(
        "f19-queries",
        documented.CHUNK_QUERIES,
        "attention_chunk counts from the first key, but 4 queries end at 3 keys",
        attention_chunk=2,
        cache_seqlens=3,
    ),
    case(
        "f19-appended",
        documented.CHUNK_QUERIES,
        "attention_chunk counts from the first key, but 4 queries end at 2 keys",
        attention_chunk=2,
        **new(3, 2) | {"cache_seqlens": 0},
    ),
    case(
        "f21-heads",
        documented.EMPTY_HEADS,
        EMPTY + "k_cache, v_cache",
        k_cache=half(3, 11, 0, 32),
        v_cache=half(3, 11, 0, 24),
    ),
    case("f21-columns", documented.EMPTY_HEADS, EMPTY + "q, k_cache", q=half(3, 4, 6, 0), k_cache=half(3, 11, 2, 0)),
    case(
        "f21-values",
        documented.EMPTY_HEADS,
        EMPTY + "v_cache, qv",
        **values_alone() | {"qv": half(3, 4, 6, 0), "v_cache": half(3, 11, 2, 0)},
    ),
    case("f27-none", documented.WINDOW, WINDOW.format("None"), window_size=None),
    case("f27-one", documented.WINDOW, WINDOW.format("(1,)"), window_size=(1,)),
    case("f27-int", documented.WINDOW, WINDOW.format("4"), window_size=4),
    case("f27-float", documented.WINDOW, WINDOW.format("(1.0, 0)"), window_size=(1.0, 0)),
    case("f27-bool", documented.WINDOW, WINDOW.format("(True, 0)"), window_size=(True, 0)),
    case("f27-text", documented.WINDOW, WINDOW.format("11"), window_size="11"),
    case("f31-zero", documented.SCALE, "softmax_scale must be None, or finite and above 0, got 0", softmax_scale=0),
    case(
        "f31-negative",
        documented.SCALE,
        "softmax_scale must be None, or finite and above 0, got -0.5",
        softmax_scale=-0.5,
    ),
    case(
        "f31-nan",
        documented.SCALE,
        "softmax_scale must be None, or finite and above 0, got nan",
        softmax_scale=float("nan"),
    ),
    case(
        "f31-infinite",
        documented.SCALE,
        "softmax_scale must be None, or finite and above 0, got inf",
        softmax_scale=float("inf"),
    ),
    case(
        "f32-lengths",
        documented.INT32,
        "cache_seqlens must have dtype torch.int32",
        cache_seqlens=torch.tensor([5, 0, 9]),
    ),
    case(
        "f32-table",
        documented.INT32,
        "page_table must have dtype torch.int32",
        **paged() | {"page_table": torch.zeros(3, 3).long()},
    ),
    case("f1-int", documented.LENGTH_RANGE, RANGE.format(11, 12, 0), cache_seqlens=12),
    case("f1-pages", documented.LENGTH_RANGE, RANGE.format(12, 13, 0), **paged() | {"cache_seqlens": 13}),
    case("f2-int", documented.LENGTH_RANGE, RANGE.format(11, 10, 2), **new(3, 2) | {"cache_seqlens": 10}),
    case("f3-int", documented.LENGTH_RANGE, RANGE.format(11, -1, 0), cache_seqlens=-1),
    case(
        "f13-int",
        documented.ROTARY_ROWS,
        "rotary_cos has 4 rows, and positions below 5 are rotated",
        **new(3, 2),
        **rotary(4),
    ),
    case(
        "f13-tokens",
        documented.ROTARY_ROWS,
        "rotary_cos has 1 row, and positions below 2 are rotated",
        **new(3, 2) | {"cache_seqlens": ints(0, 0, 0)},
        **rotary(1),
    ),
]


@pytest.mark.parametrize(("error", "text", "changed"), PUBLIC)
def test_public_checks(error: DocumentedError, text: str, changed: dict[str, Any]):
    refused(attend, error, text, changed)


@pytest.mark.parametrize(("error", "text", "changed"), KERNEL)
def test_checks_of_the_kernel(error: DocumentedError, text: str, changed: dict[str, Any]):
    refused(attend, error, text, changed)


@pytest.mark.parametrize(("error", "text", "changed"), HOLES)
def test_what_the_public_checks_let_through(error: DocumentedError, text: str, changed: dict[str, Any]):
    refused(attend, error, text, changed)


def test_written_tensors_that_repeat_themselves():
    text = "what a call may write needs an address for each element; an axis has stride 0 in: "
    for name, shape in (("k_cache", (3, 11, 2, 32)), ("v_cache", (3, 11, 2, 24)), ("out", (3, 4, 6, 24))):
        repeated = half(1, *shape[1:]).expand(shape)
        refused(attend, documented.EXPANDED, text + name, {name: repeated})


def test_f30_out_shares_memory():
    given = {**arguments(), "v_cache": half(3, 11, 2, 32)}
    text = "out must have memory of its own, and shares some with: "
    refused(attend, documented.OUT_OVERLAP, text + "q", {**given, "out": given["q"]})
    for name in ("k_cache", "v_cache"):
        inside = half(3000)
        given[name] = inside[: 3 * 11 * 2 * 32].view(3, 11, 2, 32)
        refused(
            attend, documented.OUT_OVERLAP, text + name, {**given, "out": inside[-3 * 4 * 6 * 32 :].view(3, 4, 6, 32)}
        )
        given = {**arguments(), "v_cache": half(3, 11, 2, 32)}


def test_caches_that_share_memory():
    text = "k_cache and v_cache are appended to, and must share no memory with one another or with what is read: "
    both = half(3, 11, 2, 32)
    refused(attend, documented.CACHE_OVERLAP, text + "v_cache", {"k_cache": both, "v_cache": both})
    refused(attend, documented.CACHE_OVERLAP, text + "v_cache", {"k_cache": both, "v_cache": both[..., :24]})
    appended = new(3, 2)
    refused(attend, documented.CACHE_OVERLAP, text + "k", {**appended, "k_cache": both, "k": both[:, 4:6]})
    refused(attend, documented.CACHE_OVERLAP, text + "v", {**appended, "v_cache": both, "v": both[:, 4:6]})
    few = both[:, :2, :, None].expand(3, 2, 2, 3, 32).flatten(2, 3)
    assert not few.is_contiguous() or few.data_ptr() != both.data_ptr()
    refused(attend, documented.CACHE_OVERLAP, text + "q", {**appended, "k_cache": both, "q": both[:, :4]})


def test_triton_needs_tensors_on_a_gpu():
    text = "v_cache must be on CUDA for the Triton kernel"
    with tensorpact.use_backend("triton"):
        refused(attend, documented.ON_CUDA, text, {})


def test_the_first_broken_check_fires():
    """Of any two mistakes the one whose check stands first is reported."""
    chosen = [PUBLIC[1], KERNEL[0], KERNEL[10], *(c for c in KERNEL if c.id in ("14-batch", "19")), HOLES[9], HOLES[-1]]
    for first, second in itertools.pairwise(chosen):
        error, text, changed = first.values
        refused(attend, error, text, {**second.values[2], **changed})


def test_classes_are_the_documented_ones():
    errors = {error.slug: error for error in documented.KVCACHE.errors}
    assert len(errors) == 61
    assert {e.documented for e in errors.values()} == {
        ValueError,
        AssertionError,
        RuntimeError,
        TypeError,
        NotImplementedError,
    }
    assert [e.slug for e in errors.values() if e.documented is AssertionError] == [
        "v-cache-last-dim",
        "k-cache-last-dim",
    ]


def same(one: Any, other: Any) -> bool:
    pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
    return all(torch.equal(a, b) for a, b in pairs)


def test_any_strides_of_what_is_only_read():
    given = arguments() | paged() | {"cache_seqlens": ints(7, 6, 9), "qv": half(3, 4, 6, 24), "sinks": half(6)}
    given |= {"cache_leftpad": ints(1, 0, 2), "return_softmax_lse": True}
    strided = dict(given)
    for name in ("q", "qv", "sinks", "cache_leftpad", "cache_seqlens", "page_table"):
        x = given[name]
        strided[name] = torch.stack((x, torch.zeros_like(x)), dim=-1)[..., 0]
        assert strided[name].stride(-1) == 2
    assert same(flash_attn_with_kvcache(**strided), flash_attn_with_kvcache(**given))


def test_f22_axes_of_one_are_dense():
    given = {"q": half(3, 4, 6, 1), "k_cache": half(3, 11, 2, 1), "v_cache": half(3, 11, 2, 1)}
    strided = {name: torch.cat((x, x), dim=-1)[..., ::2] for name, x in given.items()}
    out = torch.empty(3, 4, 6, 2, dtype=torch.bfloat16)[..., ::2]
    assert strided["v_cache"].stride(-1) == out.stride(-1) == 2
    assert same(attend(**strided, out=out), attend(**given))


def test_f11_one_length_for_packed_queries():
    given = arguments() | packed(0, 2, 2, 7)
    one, three = (flash_attn_with_kvcache(**given | {"cache_seqlens": n}) for n in (9, ints(9, 9, 9)))
    assert same(one, three)


@pytest.mark.parametrize("length", [np.int32(7), np.int64(7), np.uint8(7)])
def test_f12_numpy_lengths(length: Any):
    given = arguments()
    assert same(
        flash_attn_with_kvcache(**given | {"cache_seqlens": length}),
        flash_attn_with_kvcache(**given | {"cache_seqlens": 7}),
    )


def test_f28_empty_rows_and_empty_batches():
    for lengths in (ints(0, 0, 0), 0, ints(5, 0, 9)):
        out, lse = attend(cache_seqlens=lengths, return_softmax_lse=True)
        empty = lengths == 0
        assert torch.isneginf(lse[empty]).all()
        assert not out[empty].any()
        assert out.isfinite().all()


def test_f29_queries_in_front_of_the_first_key():
    out, lse = attend(cache_seqlens=2, causal=True, return_softmax_lse=True)
    assert torch.isneginf(lse[..., :2]).all()
    assert lse[..., 2:].isfinite().all()
    assert not out[:, :2].any()


def test_hints_of_performance_change_nothing():
    given = arguments()
    hints = {"num_splits": 7, "pack_gqa": True, "sm_margin": 5}
    assert same(flash_attn_with_kvcache(**given, **hints), flash_attn_with_kvcache(**given))
    assert same(flash_attn_with_kvcache(**given, num_splits=-1), flash_attn_with_kvcache(**given, num_splits=256))


def test_a_cache_with_more_rows():
    given = arguments() | {"k_cache": half(7, 11, 2, 32), "v_cache": half(7, 11, 2, 24)}
    rows = ints(6, 0, 3)
    chosen = given | {name: given[name][rows.long()] for name in ("k_cache", "v_cache")}
    assert same(flash_attn_with_kvcache(**given, cache_batch_idx=rows), flash_attn_with_kvcache(**chosen))


def test_latent_and_rotated_columns_of_one_buffer():
    latent = half(3, 11, 1, 56)
    given = {"q": half(3, 4, 6, 32), "qv": half(3, 4, 6, 24), "k_cache": latent[..., 24:], "v_cache": latent[..., :24]}
    assert attend(**given, **{**new(3, 2), "k": half(3, 2, 1, 32), "v": half(3, 2, 1, 24)}).isfinite().all()


def test_keys_that_are_values():
    shared, q = half(3, 11, 2, 32), half(3, 4, 6, 32)
    alone = attend(q=None, k_cache=None, v_cache=shared, qv=q, only_qv=True, softmax_scale=0.2)
    torch.testing.assert_close(alone, attend(q=q, k_cache=shared.clone(), v_cache=shared, softmax_scale=0.2))


def test_nothing_is_written_by_a_refused_call():
    given = arguments() | new(3, 2)
    before = {name: given[name].clone() for name in ("k_cache", "v_cache")}
    with pytest.raises(ContractViolation):
        flash_attn_with_kvcache(**given, softcap=-1.0)
    assert all(torch.equal(given[name], kept) for name, kept in before.items())
