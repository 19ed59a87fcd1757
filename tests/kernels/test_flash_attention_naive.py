"""The reference of flash attention against one row at a time, and against torch's own attention where that applies."""

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tensorpact_kernels import flash_attn_varlen_func, flash_attn_with_kvcache
from tensorpact_kernels.flash_attention import naive_attend
from tensorpact_kernels.flash_attention.naive import naive_kvcache, naive_varlen

HEADS, KV_HEADS, DIM, VALUE_DIM = 6, 2, 16, 12


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def wide(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape)))


def one_row(scores: list[float], values: list[torch.Tensor], sink: float | None) -> tuple[torch.Tensor, float]:
    """Softmax of a handful of numbers, written out."""
    joined = scores + ([] if sink is None else [sink])
    if not joined:
        return torch.zeros(VALUE_DIM, dtype=torch.float64), -math.inf
    top = max(joined)
    total = sum(math.exp(s - top) for s in joined)
    out = torch.zeros(values[0].shape if values else (VALUE_DIM,), dtype=torch.float64)
    for score, value in zip(scores, values, strict=True):
        out += math.exp(score - top) / total * value
    return out, top + math.log(total)


def slowly(
    q: list[torch.Tensor | None],
    qv: list[torch.Tensor | None],
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    scale: float,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int | None = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Results and log denominators of each sequence, one query and head at a time, straight from the definition."""
    outs, sums = [], []
    for query, query_v, key, value in zip(q, qv, keys, values, strict=True):
        shown = query if query is not None else query_v
        assert shown is not None
        count, heads = shown.shape[:2]
        out = torch.zeros(count, heads, value.shape[2], dtype=torch.float64)
        lse = torch.zeros(heads, count, dtype=torch.float64)
        for i in range(count):
            place = i + key.shape[0] - count
            for head in range(heads):
                own = head * value.shape[1] // heads
                scores, seen = [], []
                for j in range(key.shape[0]):
                    left, right = window_size[0], 0 if causal else window_size[1]
                    if (left >= 0 and j < place - left) or (right >= 0 and j > place + right):
                        continue
                    if attention_chunk and math.floor(place / attention_chunk) != j // attention_chunk:
                        continue
                    score = 0.0 if query is None else float(query[i, head] @ key[j, own])
                    score = scale * (score + (0.0 if query_v is None else float(query_v[i, head] @ value[j, own])))
                    scores.append(softcap * math.tanh(score / softcap) if softcap else score)
                    seen.append(value[j, own])
                sink = None if sinks is None else float(sinks[head])
                out[i, head], lse[head, i] = one_row(scores, seen, sink)
        outs.append(out)
        sums.append(lse)
    return outs, sums


MASKS = {
    "none": {},
    "causal": {"causal": True},
    "left": {"window_size": (2, -1)},
    "right": {"window_size": (-1, 1)},
    "both": {"window_size": [3, 1]},
    "causal-left": {"causal": True, "window_size": (2, 0)},
    "chunk": {"attention_chunk": 3},
    "causal-chunk": {"causal": True, "attention_chunk": 4},
    "chunk-window": {"attention_chunk": 5, "window_size": (1, 2)},
}
LENGTHS = {"one": (1, 9), "some": (4, 9), "more-queries": (7, 4), "no-keys": (3, 0), "full": (5, 11)}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(("queries", "keys"), LENGTHS.values(), ids=LENGTHS)
def test_masks(queries: int, keys: int, mask: dict[str, Any]):
    q, k, v = wide(2, queries, HEADS, DIM), wide(2, 11, KV_HEADS, DIM), wide(2, 11, KV_HEADS, VALUE_DIM)
    got, lse = naive_kvcache(q, k, v, cache_seqlens=keys, return_softmax_lse=True, **mask)
    out, sums = slowly(list(q), [None] * 2, list(k[:, :keys]), list(v[:, :keys]), DIM**-0.5, **mask)
    torch.testing.assert_close(got, torch.stack(out))
    torch.testing.assert_close(lse, torch.stack(sums))
    assert got.dtype == lse.dtype == torch.float64


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (6, 2), (5, 1), (4, 4)])
def test_against_torch(heads: int, kv_heads: int, causal: bool):
    q, k, v = wide(3, 5, heads, DIM), wide(3, 8, kv_heads, DIM), wide(3, 8, kv_heads, VALUE_DIM)
    mask = torch.ones(5, 8).tril(3).bool() if causal else torch.ones(5, 8).bool()
    wanted = scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask, enable_gqa=True
    ).transpose(1, 2)
    torch.testing.assert_close(naive_kvcache(q, k, v, causal=causal), wanted)
    torch.testing.assert_close(naive_varlen(q, k, v, None, None, 5, 8, causal=causal), wanted)


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("mode", ["keys", "both", "values"])
def test_scores(mode: str, softcap: float, with_sinks: bool):
    q, k = wide(2, 3, HEADS, DIM), wide(2, 9, KV_HEADS, DIM)
    qv, v = wide(2, 3, HEADS, VALUE_DIM), wide(2, 9, KV_HEADS, VALUE_DIM)
    sinks = wide(HEADS) if with_sinks else None
    given = {"qv": None if mode == "keys" else qv, "only_qv": mode == "values", "softcap": softcap, "sinks": sinks}
    first = (None, None) if mode == "values" else (q, k)
    got, lse = naive_kvcache(*first, v, cache_seqlens=ints(9, 0), causal=True, return_softmax_lse=True, **given)
    scale = {"keys": DIM, "both": DIM + VALUE_DIM, "values": VALUE_DIM}[mode] ** -0.5
    none = [None, None]
    out, sums = slowly(
        none if mode == "values" else list(q),
        none if mode == "keys" else list(qv),
        [k[0], k[1, :0]],
        [v[0], v[1, :0]],
        scale,
        causal=True,
        softcap=softcap,
        sinks=sinks,
    )
    torch.testing.assert_close(got, torch.stack(out))
    torch.testing.assert_close(lse, torch.stack(sums))
    assert torch.equal(got[1], torch.zeros_like(got[1]))
    empty = torch.full_like(lse[1], -math.inf) if sinks is None else sinks[:, None].expand(HEADS, 3)
    torch.testing.assert_close(lse[1], empty)


def test_a_scale_is_used_as_it_is():
    q, k, v = wide(1, 2, HEADS, DIM), wide(1, 5, KV_HEADS, DIM), wide(1, 5, KV_HEADS, VALUE_DIM)
    (out,), (sums,) = slowly([q[0]], [None], [k[0]], [v[0]], 0.7)
    got, lse = naive_kvcache(q, k, v, softmax_scale=0.7, return_softmax_lse=True)
    torch.testing.assert_close(got[0], out)
    torch.testing.assert_close(lse[0], sums)


@pytest.mark.parametrize("page", [1, 3, 4])
@pytest.mark.parametrize("indexed", [False, True])
def test_pages_padding_and_rows(page: int, indexed: bool):
    """Packed queries over pages in shuffled order, with padding on the left, and rows chosen by number."""
    rows, columns = (5 if indexed else 3), 12 // page
    pages = rows * columns + 2
    k, v = wide(pages, page, KV_HEADS, DIM), wide(pages, page, KV_HEADS, VALUE_DIM)
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(page))[: rows * columns]
    table = order.view(rows, columns).int()
    chosen = [4, 0, 2] if indexed else [0, 1, 2]
    held, padding, lengths = [10, 5, 12], [2, 0, 5], [2, 0, 4]
    q = wide(sum(lengths), HEADS, DIM)
    flat_k = [k[table[row].long()].flatten(0, 1)[p:n] for row, p, n in zip(chosen, padding, held, strict=True)]
    flat_v = [v[table[row].long()].flatten(0, 1)[p:n] for row, p, n in zip(chosen, padding, held, strict=True)]
    # Whatever lies behind a sequence must not matter, nor what the table says of it.
    poisoned = table.clone()
    for row, n in zip(chosen, held, strict=True):
        poisoned[row, -(-n // page) :] = -1
    got, lse = naive_kvcache(
        q,
        k,
        v,
        cache_seqlens=ints(*held),
        cache_leftpad=ints(*padding),
        cache_batch_idx=ints(*chosen) if indexed else None,
        page_table=poisoned,
        cu_seqlens_q=ints(0, 2, 2, 6),
        max_seqlen_q=4,
        window_size=(4, 0),
        return_softmax_lse=True,
    )
    out, sums = slowly(list(q.split(lengths)), [None] * 3, flat_k, flat_v, DIM**-0.5, window_size=(4, 0))
    torch.testing.assert_close(got, torch.cat(out))
    torch.testing.assert_close(lse, torch.cat(sums, dim=1))


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """One head rotated by complex numbers; a row of the tables each."""
    half = cos.shape[-1]
    angle = torch.complex(cos, sin)
    if interleaved:
        pairs = torch.view_as_complex(x[..., : 2 * half].reshape(*x.shape[:-1], half, 2).contiguous())
        return torch.cat((torch.view_as_real(pairs * angle).flatten(-2), x[..., 2 * half :]), dim=-1)
    pairs = torch.complex(x[..., :half], x[..., half : 2 * half]) * angle
    return torch.cat((pairs.real, pairs.imag, x[..., 2 * half :]), dim=-1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("mask", "counts"),
    [({"causal": True}, True), ({}, False), ({"window_size": (20, 9)}, False), ({"window_size": (2, -1)}, True)],
    ids=["causal", "none", "wide-window", "window"],
)
def test_append_with_rotation(mask: dict[str, Any], counts: bool, apart: bool, interleaved: bool):
    q, k, v = wide(2, 3, HEADS, 20), wide(2, 4, KV_HEADS, 20), wide(2, 4, KV_HEADS, VALUE_DIM)
    k_cache, v_cache = wide(2, 13, KV_HEADS, 20), wide(2, 13, KV_HEADS, VALUE_DIM)
    angles = wide(19, 8)
    cos, sin = angles.cos(), angles.sin()
    held, starts = [5, 8], [2, 11] if apart else [5, 8]
    keys, values, queries = [], [], []
    wanted_k, wanted_v = k_cache.clone(), v_cache.clone()
    for b in range(2):
        at = slice(starts[b], starts[b] + 4)
        slots = slice(held[b], held[b] + 4)
        wanted_k[b, slots] = turned(k[b], cos[at, None], sin[at, None], interleaved)
        wanted_v[b, slots] = v[b]
        keys.append(wanted_k[b, : held[b] + 4])
        values.append(wanted_v[b, : held[b] + 4])
        at = slice(starts[b], starts[b] + 3) if counts else slice(starts[b], starts[b] + 1)
        queries.append(turned(q[b], cos[at, None], sin[at, None], interleaved))
    before = q.clone()
    got, lse = naive_kvcache(
        q,
        k_cache,
        v_cache,
        k,
        v,
        rotary_cos=cos,
        rotary_sin=sin,
        cache_seqlens=ints(*held),
        rotary_seqlens=ints(*starts) if apart else None,
        rotary_interleaved=interleaved,
        return_softmax_lse=True,
        **mask,
    )
    out, sums = slowly(queries, [None] * 2, keys, values, 20**-0.5, **mask)
    torch.testing.assert_close(got, torch.stack(out))
    torch.testing.assert_close(lse, torch.stack(sums))
    torch.testing.assert_close(k_cache, wanted_k)
    assert torch.equal(v_cache, wanted_v)
    assert torch.equal(q, before)


@pytest.mark.parametrize("page", [0, 2, 5])
def test_packed_append(page: int):
    """A sequence with two new tokens, one with none, one with three, in rows or in pages."""
    lengths, held = [2, 0, 3], [4, 7, 6]
    k, v = wide(5, KV_HEADS, DIM), wide(5, KV_HEADS, VALUE_DIM)
    table = (
        torch.randperm(3 * 10 // page, generator=torch.Generator().manual_seed(1)).view(3, -1).int() if page else None
    )
    shape = (3 * 10 // page, page) if page else (3, 10)
    k_cache, v_cache = wide(*shape, KV_HEADS, DIM), wide(*shape, KV_HEADS, VALUE_DIM)
    k_cache = k_cache.transpose(1, 2).contiguous().transpose(1, 2)

    def row(cache: torch.Tensor, b: int) -> torch.Tensor:
        return cache[b] if table is None else cache[table[b].long()].flatten(0, 1)

    keys = [torch.cat((row(k_cache, b)[: held[b]], new)) for b, new in enumerate(k.split(lengths))]
    values = [torch.cat((row(v_cache, b)[: held[b]], new)) for b, new in enumerate(v.split(lengths))]
    untouched = [row(k_cache, b)[held[b] + lengths[b] :].clone() for b in range(3)]
    q = wide(3, 2, HEADS, DIM)
    out = torch.full((3, 2, HEADS, VALUE_DIM), math.nan, dtype=torch.float64)
    got = naive_kvcache(
        q,
        k_cache,
        v_cache,
        k,
        v,
        cache_seqlens=ints(*held),
        page_table=table,
        cu_seqlens_k_new=ints(0, 2, 2, 5),
        causal=True,
        out=out,
    )
    wanted, _ = slowly(list(q), [None] * 3, keys, values, DIM**-0.5, causal=True)
    assert got is out
    torch.testing.assert_close(out, torch.stack(wanted))
    for b in range(3):
        assert torch.equal(row(k_cache, b)[: held[b] + lengths[b]], keys[b])
        assert torch.equal(row(v_cache, b)[: held[b] + lengths[b]], values[b])
        assert torch.equal(row(k_cache, b)[held[b] + lengths[b] :], untouched[b])


def test_values_are_appended_where_no_key_is_kept():
    qv, v_cache, v = wide(2, 1, HEADS, VALUE_DIM), wide(2, 6, 1, VALUE_DIM), wide(2, 1, 1, VALUE_DIM)
    grown = torch.cat((v_cache[:, :3], v), dim=1)
    got = naive_kvcache(None, None, v_cache, wide(2, 1, 1, DIM), v, qv=qv, cache_seqlens=3, only_qv=True)
    wanted, _ = slowly([None] * 2, list(qv), list(grown), list(grown), VALUE_DIM**-0.5)
    torch.testing.assert_close(got, torch.stack(wanted))
    assert torch.equal(v_cache[:, :4], grown)


def test_what_does_not_exist_is_hidden_and_dropped():
    """Lengths, pages and rows that a contract could not see."""
    q, k, v = wide(3, 2, HEADS, DIM), wide(4, 2, KV_HEADS, DIM), wide(4, 2, KV_HEADS, VALUE_DIM)
    table = torch.tensor([[3, 9], [-1, 1], [0, 2]], dtype=torch.int32)
    got, lse = naive_kvcache(q, k, v, page_table=table, cache_seqlens=ints(4, 3, 7), return_softmax_lse=True)
    held = [k[3], k[1, :1], torch.cat((k[0], k[2]))], [v[3], v[1, :1], torch.cat((v[0], v[2]))]
    wanted, sums = slowly(list(q), [None] * 3, *held, DIM**-0.5)
    torch.testing.assert_close(got, torch.stack(wanted))
    torch.testing.assert_close(lse, torch.stack(sums))
    before = k.clone()
    new = wide(3, 2, KV_HEADS, DIM), wide(3, 2, KV_HEADS, VALUE_DIM)
    naive_kvcache(q, k, v, *new, page_table=table, cache_seqlens=ints(2, 0, 7))
    assert torch.equal(k, before)


def test_nan_behind_the_mask_stays_there():
    q, k, v = wide(1, 3, HEADS, DIM), wide(1, 11, KV_HEADS, DIM), wide(1, 11, KV_HEADS, VALUE_DIM)
    clean = naive_kvcache(q, k, v, cache_seqlens=8, causal=True, window_size=(2, 0), return_softmax_lse=True)
    for cache in (k, v):
        cache[:, 8:] = math.nan
        cache[:, :3] = math.nan
    poisoned = naive_kvcache(q, k, v, cache_seqlens=8, causal=True, window_size=(2, 0), return_softmax_lse=True)
    for one, other in zip(clean, poisoned, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("packed", ["both", "queries", "keys", "neither"])
def test_varlen(packed: str, mask: dict[str, Any]):
    queries, keys, used_q, used_k = [4, 4, 4], [7, 7, 7], [3, 0, 4], [7, 5, 2]
    q, k, v = wide(3, 4, HEADS, DIM), wide(3, 7, KV_HEADS, DIM), wide(3, 7, KV_HEADS, VALUE_DIM)
    qv, sinks = wide(3, 4, HEADS, VALUE_DIM), wide(HEADS)
    ends_q = ints(0, 4, 8, 12) if packed in ("both", "queries") else None
    ends_k = ints(0, 7, 14, 21) if packed in ("both", "keys") else None
    flat = [x.flatten(0, 1) if ends_q is not None else x for x in (q, qv)]
    given = [x.flatten(0, 1) if ends_k is not None else x for x in (k, v)]
    got, lse = naive_varlen(
        flat[0],
        *given,
        ends_q,
        ends_k,
        max(queries),
        max(keys),
        seqused_q=ints(*used_q),
        seqused_k=ints(*used_k),
        qv=flat[1],
        sinks=sinks,
        return_softmax_lse=True,
        **mask,
    )
    out, sums = slowly(
        [x[:n] for x, n in zip(q, used_q, strict=True)],
        [x[:n] for x, n in zip(qv, used_q, strict=True)],
        [x[:n] for x, n in zip(k, used_k, strict=True)],
        [x[:n] for x, n in zip(v, used_k, strict=True)],
        (DIM + VALUE_DIM) ** -0.5,
        sinks=sinks,
        **mask,
    )
    for b, n in enumerate(used_q):
        own = (got[4 * b : 4 * b + 4], lse[:, 4 * b : 4 * b + 4]) if ends_q is not None else (got[b], lse[b])
        torch.testing.assert_close(own[0][:n], out[b])
        torch.testing.assert_close(own[1][:, :n], sums[b])
        assert not own[0][n:].any()
        assert torch.isneginf(own[1][:, n:]).all()


def test_uneven_and_empty_sequences():
    lengths_q, lengths_k = [2, 0, 5, 1], [3, 4, 0, 6]
    q, k, v = wide(8, HEADS, DIM), wide(13, KV_HEADS, DIM), wide(13, KV_HEADS, VALUE_DIM)
    got, lse = naive_varlen(
        q, k, v, ints(0, 2, 2, 7, 8), ints(0, 3, 7, 7, 13), 5, 6, causal=True, return_softmax_lse=True
    )
    out, sums = slowly(
        list(q.split(lengths_q)), [None] * 4, list(k.split(lengths_k)), list(v.split(lengths_k)), DIM**-0.5, causal=True
    )
    torch.testing.assert_close(got, torch.cat(out))
    torch.testing.assert_close(lse, torch.cat(sums, dim=1))


def test_the_default_scale_of_varlen_knows_nothing_of_only_qv():
    q, k, v, qv = wide(3, HEADS, DIM), wide(5, KV_HEADS, DIM), wide(5, KV_HEADS, VALUE_DIM), wide(3, HEADS, VALUE_DIM)
    got = naive_varlen(q, k, v, ints(0, 3), ints(0, 5), 3, 5, qv=qv, only_qv=True)
    (wanted,), _ = slowly([None], [qv], [k], [v], (DIM + VALUE_DIM) ** -0.5)
    torch.testing.assert_close(got, wanted)


def test_pieces_of_queries_make_no_difference(monkeypatch: pytest.MonkeyPatch):
    q, k, v = wide(2, 9, HEADS, DIM), wide(2, 11, KV_HEADS, DIM), wide(2, 11, KV_HEADS, VALUE_DIM)
    whole = naive_kvcache(q, k, v, causal=True, return_softmax_lse=True)
    monkeypatch.setattr(naive_attend, "_SCORES_LIMIT", 2 * HEADS * 11)
    for one, other in zip(whole, naive_kvcache(q, k, v, causal=True, return_softmax_lse=True), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_entry_points_run_it_on_the_cpu(dtype: torch.dtype):
    q, k, v = (wide(2, n, h, DIM).to(dtype) for n, h in ((3, HEADS), (8, KV_HEADS), (8, KV_HEADS)))
    got, lse = flash_attn_with_kvcache(q, k, v, cache_seqlens=7, causal=True, return_softmax_lse=True)
    exact, exact_lse = naive_kvcache(
        q.double(), k.double(), v.double(), cache_seqlens=7, causal=True, return_softmax_lse=True
    )
    assert (got.dtype, lse.dtype) == (dtype, torch.float32)
    assert (got.double() - exact).norm() < {torch.bfloat16: 5e-3, torch.float16: 7e-4}[dtype] * exact.norm()
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)
    packed = flash_attn_varlen_func(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), ints(0, 3, 6), ints(0, 8, 16), 3, 8
    )
    torch.testing.assert_close(packed.view(2, 3, HEADS, DIM), flash_attn_with_kvcache(q, k, v))


@pytest.mark.parametrize("packed", [False, True])
def test_meta_tensors_give_shapes(packed: bool):
    meta = torch.device("meta")
    q = torch.empty((6, HEADS, DIM) if packed else (2, 3, HEADS, DIM), dtype=torch.bfloat16, device=meta)
    k = torch.empty(2, 8, KV_HEADS, DIM, dtype=torch.bfloat16, device=meta)
    v = torch.empty(2, 8, KV_HEADS, VALUE_DIM, dtype=torch.bfloat16, device=meta)
    ends = torch.empty(3, dtype=torch.int32, device=meta) if packed else None
    given = {"cu_seqlens_q": ends, "max_seqlen_q": 3} if packed else {}
    out, lse = flash_attn_with_kvcache(q, k, v, return_softmax_lse=True, **given)
    assert out.shape == (*q.shape[:-1], VALUE_DIM)
    assert lse.shape == ((HEADS, 6) if packed else (2, HEADS, 3))
    out, lse = flash_attn_varlen_func(q, k, v, ends, None, 3, 8, return_softmax_lse=True)
    assert (out.shape, out.is_meta) == ((*q.shape[:-1], VALUE_DIM), True)
    assert lse.shape == ((HEADS, 6) if packed else (2, HEADS, 3))


def test_a_graph_is_not_broken():
    """Checks are traced along, and a wrong call is told by the tracer in the documented words."""

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    q, k, v = empty(3, 1, HEADS, DIM), empty(7, 4, KV_HEADS, DIM), empty(7, 4, KV_HEADS, VALUE_DIM)
    given: dict[str, Any] = {
        "page_table": empty(3, 5, dtype=torch.int32),
        "cache_seqlens": empty(3, dtype=torch.int32),
        "k": empty(3, 1, KV_HEADS, DIM),
        "v": empty(3, 1, KV_HEADS, VALUE_DIM),
        "rotary_cos": empty(40, 8),
        "rotary_sin": empty(40, 8),
        "window_size": (4, 0),
        "causal": True,
    }
    decode = torch.compile(lambda q, **more: flash_attn_with_kvcache(q, k, v, **more), fullgraph=True, backend="eager")
    assert decode(q, **given).shape == (3, 1, HEADS, VALUE_DIM)
    with pytest.raises(
        torch._dynamo.exc.Unsupported, match="ContractRuntimeError: batch_size must be equal to batch_s"
    ):
        decode(empty(2, 1, HEADS, DIM), **given)
