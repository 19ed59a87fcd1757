"""Flash attention: the numbers inside its tensors, refused and accepted, in firing order behind the metadata."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorpact import ContractViolation
from tensorpact._guard.memory import repeats
from tensorpact_contracts import flash_attention as documented
from tensorpact_kernels import flash_attn_varlen_func, flash_attn_with_kvcache

pytestmark = pytest.mark.usefixtures("both_modes")


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


def table(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def paged(**changed: Any) -> dict[str, Any]:
    """E5 of the reports: three sequences of one query, eight heads over two, seven pages of four slots."""
    pages = table([0, 1, -1, -1, -1], [2, -1, -1, -1, -1], [3, 4, 5, -1, -1])
    given = {"q": half(3, 1, 8, 16), "k_cache": half(7, 4, 2, 16), "v_cache": half(7, 4, 2, 16), "page_table": pages}
    return {**given, "cache_seqlens": ints(5, 3, 9), "causal": True, **changed}


def rows(**changed: Any) -> dict[str, Any]:
    """Three sequences of two queries, five rows of eleven slots."""
    given = {"q": half(3, 2, 6, 32), "k_cache": half(5, 11, 2, 32), "v_cache": half(5, 11, 2, 24)}
    return {**given, "cache_batch_idx": ints(4, 0, 2), "cache_seqlens": ints(5, 0, 9), **changed}


def new(*tokens: int, wide: int = 32) -> dict[str, Any]:
    return {"k": half(*tokens, 2, wide), "v": half(*tokens, 2, 24 if wide == 32 else wide)}


def queries(*ends: int) -> dict[str, Any]:
    return {"q": half(7, 6, 32), "cu_seqlens_q": ints(*ends), "max_seqlen_q": 4}


def rotary(length: int = 12) -> dict[str, Any]:
    return {"rotary_cos": half(length, 16), "rotary_sin": half(length, 16)}


def alone(*tokens: int) -> dict[str, Any]:
    """Queries of values alone."""
    return {"q": None, "qv": half(*tokens, 6, 24), "only_qv": True, "causal": True}


def packed(**changed: Any) -> dict[str, Any]:
    """E4 of the reports: five tokens in two sequences, four heads of 16 columns."""
    ends = ints(0, 3, 5)
    given = {"q": half(5, 4, 16), "k": half(5, 4, 16), "v": half(5, 4, 16)}
    bounds = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 3, "max_seqlen_k": 3, "causal": True}
    return {**given, **bounds, **changed}


def padded(**changed: Any) -> dict[str, Any]:
    shapes = {"q": half(2, 3, 4, 16), "k": half(2, 5, 4, 16), "v": half(2, 5, 4, 16)}
    bounds = {"cu_seqlens_q": None, "cu_seqlens_k": None, "max_seqlen_q": 3, "max_seqlen_k": 5}
    return {**shapes, **bounds, **changed}


def run(given: dict[str, Any]) -> Any:
    return (flash_attn_with_kvcache if "v_cache" in given else flash_attn_varlen_func)(**given)


def both(**ends: Any) -> dict[str, Any]:
    return dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), *ends.values())


ORDER = "{} is {}, expected {}: boundaries begin at 0 and never decrease"
END = "{} is {}, but there are {} tokens to cut"
SHORT = END + "; only allow_padded_tail=True lets some over at the end"
LONG = "sequence {} of {} has {} tokens, but the longest was said to have {}"
LENGTH = "cache_seqlens[{}] is {}, but a row holds 0 to {} tokens"
APPENDED = "sequence {} would have {} tokens with its new ones, but a row has {} slots"
LEFTPAD = "cache_leftpad[{}] is {}, expected {}: padding is counted in the length of the row"
ROW = "cache_batch_idx[{}] is {}, expected {}: a row for each sequence"
PAGE = "page_table[{}] is {}, but the cache has 7 pages, and tokens lie in this one"
USED = "{} is {}, expected {}: no more tokens can be used than there are"
ROTARY = "{} leads sequence {} to {}, but rotary_cos has {} rows: positions are its rows, from 0 on"
CHUNK = "attention_chunk counts from the first key, but sequence {} has {} and {}"
BEFORE = "at least the entry before it, {}"
R37_TOKENS = table([0, 4, 8, 12, 16], [2, -1, -1, -1, -1], [3, 4, 5, -1, -1])
REFUSED = {
    "R29": (documented.BOUNDARIES_ORDER, ORDER.format("cu_seqlens_q[0]", 1, "0 at the start"),
        packed(cu_seqlens_q=ints(1, 3, 5))),
    "R29-keys": (documented.BOUNDARIES_ORDER, ORDER.format("cu_seqlens_k[0]", 1, "0 at the start"),
        packed(cu_seqlens_k=ints(1, 3, 5))),
    "R30": (documented.BOUNDARIES_ORDER, ORDER.format("cu_seqlens_q[2]", 3, BEFORE.format(4)),
        packed(cu_seqlens_q=ints(0, 4, 3, 5), cu_seqlens_k=ints(0, 4, 4, 5))),
    "R31": (documented.BOUNDARIES_END, END.format("cu_seqlens_q[3]", 15, 5), packed(**both(e=ints(0, 5, 10, 15)))),
    "R31-a-padded-tail": (documented.BOUNDARIES_END, END.format("cu_seqlens_q[2]", 10, 5),
        packed(**both(e=ints(0, 5, 10, 15)), allow_padded_tail=True)),
    "R33": (documented.BOUNDARIES_END, END.format("cu_seqlens_k[2]", 5, 2),
        packed(k=half(5, 4, 16)[:2], v=half(5, 4, 16)[:2])),
    "R33-a-padded-tail": (documented.BOUNDARIES_END, END.format("cu_seqlens_k[1]", 3, 2),
        packed(k=half(5, 4, 16)[:2], v=half(5, 4, 16)[:2], allow_padded_tail=True)),
    "R13-all": (documented.BOUNDARIES_END, END.format("cu_seqlens_q[2]", 5, 4),
        packed(q=half(4, 5, 16), k=half(4, 5, 16), v=half(4, 5, 16))),
    "R32": (documented.BOUNDARIES_END, SHORT.format("cu_seqlens_q[1]", 3, 5), packed(**both(e=ints(0, 3)))),
    "R34": (documented.LONGER, LONG.format(0, "cu_seqlens_q", 3, 2), packed(max_seqlen_q=2)),
    "R34-one-token": (documented.LONGER, "sequence 0 of cu_seqlens_q has 1 token, but the longest was said to have 0",
        packed(cu_seqlens_q=ints(0, 1, 5), max_seqlen_q=0)),
    "R33-one-token": (documented.BOUNDARIES_END, "cu_seqlens_k[2] is 5, but there is 1 token to cut",
        packed(k=half(1, 4, 16), v=half(1, 4, 16))),
    "R34-keys": (documented.LONGER, LONG.format(0, "cu_seqlens_k", 3, 2), packed(max_seqlen_k=2)),
    "R34-used": (documented.LONGER, LONG.format(1, "seqused_q", 2, 1),
        packed(max_seqlen_q=1, seqused_q=ints(1, 2), max_seqlen_k=3)),
    "R34-used-keys": (documented.LONGER, LONG.format(0, "seqused_k", 3, 2),
        packed(max_seqlen_k=2, seqused_k=ints(3, 2))),
    "used-negative": (documented.USED_RANGE, USED.format("seqused_q[1]", -1, "at least 0"),
        packed(seqused_q=ints(3, -1))),
    "used-too-many": (documented.USED_RANGE,
        USED.format("seqused_k[1]", 3, "at most the 2 rows of sequence 1 in cu_seqlens_k"),
        packed(seqused_k=ints(3, 3))),
    "used-too-many-queries": (documented.USED_RANGE,
        USED.format("seqused_q[1]", 3, "at most the 2 rows of sequence 1 in cu_seqlens_q"),
        packed(seqused_q=ints(3, 3))),
    "used-too-many-padded": (documented.USED_RANGE, USED.format("seqused_k[0]", 6, "at most 5"),
        padded(seqused_k=ints(6, 5))),
    "used-too-many-padded-queries": (documented.USED_RANGE, USED.format("seqused_q[1]", 4, "at most 3"),
        padded(seqused_q=ints(3, 4))),
    "f7": (documented.LONGER, LONG.format(2, "cu_seqlens_q", 5, 4), rows(**queries(0, 2, 2, 7))),
    "f8-start": (documented.BOUNDARIES_ORDER, ORDER.format("cu_seqlens_q[0]", 1, "0 at the start"),
        rows(**queries(1, 2, 4, 7))),
    "f8-order": (documented.BOUNDARIES_ORDER, ORDER.format("cu_seqlens_q[2]", 2, BEFORE.format(3)),
        rows(**queries(0, 3, 2, 7))),
    "f8-end": (documented.BOUNDARIES_END, SHORT.format("cu_seqlens_q[3]", 6, 7), rows(**queries(0, 3, 3, 6))),
    "new-start": (documented.BOUNDARIES_ORDER, ORDER.format("cu_seqlens_k_new[0]", -1, "0 at the start"),
        rows(**new(4), cu_seqlens_k_new=ints(-1, 2, 2, 4))),
    "new-end": (documented.BOUNDARIES_END, END.format("cu_seqlens_k_new[3]", 5, 4),
        rows(**new(4), cu_seqlens_k_new=ints(0, 2, 2, 5))),
    "R35": (documented.LENGTHS_RANGE, LENGTH.format(0, 21, 20), paged(cache_seqlens=ints(21, 3, 9))),
    "sglang-34239": (documented.LENGTHS_RANGE, LENGTH.format(0, 5, 4),
        paged(q=half(1, 1, 8, 16), k_cache=half(7, 1, 2, 16), v_cache=half(7, 1, 2, 16), page_table=table([0, 1, 2, 3]),
            cache_seqlens=ints(5))),
    "f1": (documented.LENGTHS_RANGE, LENGTH.format(2, 12, 11), rows(cache_seqlens=ints(5, 0, 12))),
    "f2": (documented.APPEND_RANGE, APPENDED.format(2, 12, 11), rows(**new(3, 3))),
    "f2-pages": (documented.APPEND_RANGE, APPENDED.format(1, 21, 20),
        paged(**new(3, 1, wide=16), cache_seqlens=ints(5, 20, 9))),
    "f2-packed": (documented.APPEND_RANGE, APPENDED.format(2, 12, 11),
        rows(**new(5), cu_seqlens_k_new=ints(0, 2, 2, 5))),
    "f2-packed-behind-one-length": (documented.APPEND_RANGE, APPENDED.format(2, 12, 11),
        rows(**new(5), cu_seqlens_k_new=ints(0, 2, 2, 5), cache_seqlens=9)),
    "flash-attention-638": (documented.APPEND_RANGE, APPENDED.format(0, 13, 12),
        {"q": half(1, 1, 32, 128), "k_cache": half(1, 12, 32, 128), "v_cache": half(1, 12, 32, 128),
            "k": half(1, 1, 32, 128), "v": half(1, 1, 32, 128), "cache_seqlens": ints(12)}),
    "f3": (documented.LENGTHS_RANGE, LENGTH.format(1, -1, 11), rows(cache_seqlens=ints(5, -1, 9))),
    "f3-leftpad-negative": (documented.LEFTPAD_RANGE, LEFTPAD.format(1, -1, "at least 0"),
        rows(cache_leftpad=ints(0, -1, 0))),
    "f3-leftpad": (documented.LEFTPAD_RANGE, LEFTPAD.format(1, 1, "at most cache_seqlens[1] = 0"),
        rows(cache_leftpad=ints(5, 1, 9))),
    "f3-leftpad-of-one-length": (documented.LEFTPAD_RANGE, LEFTPAD.format(0, 5, "at most cache_seqlens = 4"),
        rows(cache_leftpad=ints(5, 1, 9), cache_seqlens=4)),
    "f3-leftpad-of-full-rows": (documented.LEFTPAD_RANGE, LEFTPAD.format(2, 12, "at most capacity = 11"),
        rows(cache_leftpad=ints(5, 11, 12), cache_seqlens=None)),
    "R37": (documented.PAGE_RANGE, PAGE.format("0, 0", 7),
        paged(page_table=table([7, 1, -1, -1, -1], [2, -1, -1, -1, -1], [3, 4, 5, -1, -1]))),
    "R37-token-numbers": (documented.PAGE_RANGE, PAGE.format("0, 2", 8),
        paged(page_table=R37_TOKENS, cache_seqlens=ints(9, 3, 9))),
    "R37-negative": (documented.PAGE_RANGE, PAGE.format("1, 1", -1), paged(cache_seqlens=ints(5, 5, 9))),
    "R37-a-window": (documented.PAGE_RANGE, PAGE.format("0, 0", 7),
        paged(page_table=table([7, 1, -1, -1, -1], [2, -1, -1, -1, -1], [3, 4, 5, -1, -1]), window_size=(2, 0))),
    "f4-a-page-for-new-tokens": (documented.PAGE_RANGE, PAGE.format("2, 3", -1),
        paged(**new(3, 1, wide=16), cache_seqlens=ints(5, 3, 12))),
    "f4-a-page-for-packed-new-tokens": (documented.PAGE_RANGE, PAGE.format("1, 1", -1),
        paged(**new(4, wide=16), cu_seqlens_k_new=ints(0, 0, 4, 4))),
    "f4-one-length": (documented.PAGE_RANGE, PAGE.format("1, 1", -1), paged(cache_seqlens=5)),
    "f4-full-rows": (documented.PAGE_RANGE, PAGE.format("0, 2", -1), paged(cache_seqlens=None)),
    "f4-a-window-over-the-whole-row": (documented.PAGE_RANGE, PAGE.format("2, 0", -1),
        paged(page_table=table([0, 1, -1, -1, -1], [2, -1, -1, -1, -1], [-1, 4, 5, -1, -1]), window_size=(19, 0))),
    "f4-a-window-within-the-first-page": (documented.PAGE_RANGE, PAGE.format("1, 1", -1),
        paged(cache_seqlens=5, window_size=(1, 0))),
    "f4-a-chunk-as-long-as-the-row": (documented.PAGE_RANGE, PAGE.format("0, 0", -1),
        paged(page_table=table([-1, 1, -1, -1, -1], [2, -1, -1, -1, -1], [3, 4, 5, -1, -1]), attention_chunk=20)),
    "f4-a-page-for-new-tokens-in-a-window": (documented.PAGE_RANGE, PAGE.format("1, 1", -1),
        paged(**new(3, 3, wide=16), cache_seqlens=3, window_size=(0, 0))),
    "f4-a-page-for-new-tokens-behind-padding": (documented.PAGE_RANGE, PAGE.format("0, 0", -1),
        paged(**new(3, 1, wide=16), cache_seqlens=3, cache_leftpad=ints(3, 0, 0),
            page_table=table([-1] * 5, [2, -1, -1, -1, -1], [3, -1, -1, -1, -1]))),
    "f5": (documented.CACHE_ROW_RANGE, ROW.format(1, 5, "below rows = 5"), rows(cache_batch_idx=ints(4, 5, 2))),
    "f5-negative": (documented.CACHE_ROW_RANGE, ROW.format(0, -1, "at least 0"), rows(cache_batch_idx=ints(-1, 0, 2))),
    "f5-table": (documented.CACHE_ROW_RANGE, ROW.format(2, 3, "below table = 3"), paged(cache_batch_idx=ints(0, 1, 3))),
    "f6": (documented.CACHE_ROW_REPEATED,
        "cache_batch_idx[2] is 4, as for a sequence before it; both would append to one row at once",
        rows(**new(3, 1), cache_batch_idx=ints(4, 0, 4))),
    "f13": (documented.ROTARY_RANGE, ROTARY.format("cache_seqlens", 2, 11, 10),
        rows(**new(3, 2), **rotary(10))),
    "f13-causal-queries": (documented.ROTARY_RANGE, ROTARY.format("cache_seqlens", 2, 11, 10),
        rows(**new(3, 1), **rotary(10), causal=True)),
    "f13-starts": (documented.ROTARY_RANGE, ROTARY.format("rotary_seqlens", 0, 13, 12),
        rows(**new(3, 2), **rotary(), rotary_seqlens=ints(11, 0, 0))),
    "f13-negative-starts": (documented.ROTARY_RANGE, ROTARY.format("rotary_seqlens", 1, -1, 12),
        rows(**new(3, 2), **rotary(), rotary_seqlens=ints(9, -1, 0))),
    "f13-packed-keys": (documented.ROTARY_RANGE, ROTARY.format("cu_seqlens_k_new", 2, 11, 10),
        rows(**new(2), **rotary(10), cu_seqlens_k_new=ints(0, 0, 0, 2))),
    "f13-packed-queries": (documented.ROTARY_RANGE, ROTARY.format("cu_seqlens_q", 2, 12, 11),
        rows(**queries(0, 2, 4, 7), **new(3, 1), **rotary(11), causal=True)),
    "f13-packed-queries-from-starts": (documented.ROTARY_RANGE,
        ROTARY.format("rotary_seqlens", 2, 12, 11),
        rows(**queries(0, 2, 4, 7), **new(3, 1), **rotary(11), causal=True, rotary_seqlens=ints(0, 0, 9))),
    "f13-one-length-packed-queries": (documented.ROTARY_RANGE, ROTARY.format("cu_seqlens_q", 2, 12, 11),
        rows(**queries(0, 2, 4, 7), **new(3, 1), **rotary(11), causal=True, cache_seqlens=9)),
    "f13-one-length-packed-keys": (documented.ROTARY_RANGE, ROTARY.format("cu_seqlens_k_new", 2, 11, 10),
        rows(**new(2), **rotary(10), cu_seqlens_k_new=ints(0, 0, 0, 2), cache_seqlens=9)),
    "f13-one-length-past-the-tables": (documented.ROTARY_RANGE, ROTARY.format("cu_seqlens_k_new", 1, 11, 8),
        rows(**queries(0, 0, 3, 7), **new(2), **rotary(8), cu_seqlens_k_new=ints(0, 0, 2, 2), cache_seqlens=9)),
    "f13-queries-at-a-length-past-the-tables": (documented.ROTARY_RANGE, ROTARY.format("cu_seqlens_q", 1, 12, 9),
        rows(**queries(0, 0, 3, 7), **new(0), **rotary(9), cu_seqlens_k_new=ints(0, 0, 0, 0), cache_seqlens=9)),
    "f13-one-sequence": (documented.ROTARY_RANGE, ROTARY.format("cu_seqlens_q", 0, 11, 10),
        rows(q=half(2, 6, 32), cu_seqlens_q=ints(0, 2), max_seqlen_q=2, **new(1), cu_seqlens_k_new=ints(0, 1),
            **rotary(10), causal=True, cache_batch_idx=ints(3), cache_seqlens=ints(9))),
    "f13-keys-of-values-alone": (documented.ROTARY_RANGE, ROTARY.format("cache_seqlens", 2, 10, 9),
        rows(**alone(3, 2), **new(3, 1), **rotary(9))),
    "f19": (documented.CHUNK_KEYS, CHUNK.format(1, "2 queries", "0 keys"), rows(attention_chunk=4)),
    "f19-new": (documented.CHUNK_KEYS, CHUNK.format(1, "2 queries", "1 key"), rows(attention_chunk=4, **new(3, 1))),
    "f19-packed": (documented.CHUNK_KEYS, CHUNK.format(1, "2 queries", "0 keys"),
        rows(attention_chunk=4, **queries(0, 3, 5, 7))),
    "f19-one-length-packed": (documented.CHUNK_KEYS, CHUNK.format(0, "3 queries", "2 keys"),
        rows(attention_chunk=4, **queries(0, 3, 5, 7), cache_seqlens=2)),
    "f19-one-length-packed-new": (documented.CHUNK_KEYS, CHUNK.format(1, "4 queries", "3 keys"),
        rows(attention_chunk=4, **queries(0, 3, 7, 7), **new(3, 1), cache_seqlens=2)),
    "f19-full-rows-packed": (documented.CHUNK_KEYS, CHUNK.format(2, "3 queries", "2 keys"),
        rows(attention_chunk=4, **queries(0, 2, 4, 7), k_cache=half(5, 2, 2, 32), v_cache=half(5, 2, 2, 24),
            cache_seqlens=None)),
    "f19-packed-on-both-sides": (documented.CHUNK_KEYS, CHUNK.format(1, "2 queries", "1 key"),
        rows(attention_chunk=4, **queries(0, 3, 5, 7), **new(3), cu_seqlens_k_new=ints(0, 2, 2, 3), cache_seqlens=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_number_that_cannot_be_is_refused(name: str):
    error, text, given = REFUSED[name]
    with pytest.raises(error.documented) as caught:
        run(given)
    assert isinstance(caught.value, ContractViolation)
    assert (caught.value.error, str(caught.value)) == (error, text)


def test_every_error_about_numbers_has_a_case():
    from tensorpact._terms import flat
    from tensorpact._values.clauses import Values

    contracts = (documented.KVCACHE, documented.VARLEN)
    found = {c.error for contract in contracts for c in contract.clauses if any(isinstance(m, Values) for m in flat(c))}
    assert {error for error, _, _ in REFUSED.values()} == found
    assert len(found) == 12


ROTATED = {**new(3, 1), **rotary()}
ACCEPTED = {
    "A03": packed(**both(e=ints(0, 0, 3, 3, 5, 5))),
    "A05": packed(**both(e=ints(0, 3)), allow_padded_tail=True),
    "A05-no-tail": packed(allow_padded_tail=True),
    "A05-cache": rows(**queries(0, 3, 3, 6), allow_padded_tail=True),
    "A06": paged(cache_seqlens=ints(0, 0, 0), page_table=torch.full((3, 5), -1, dtype=torch.int32)),
    "A08": paged(page_table=table([0, 1, 99, 99, 99], [2, 99, 99, 99, 99], [3, 4, 5, -9, 99])),
    "A28": packed(max_seqlen_q=500, max_seqlen_k=4096),
    "a-full-table": paged(
        cache_seqlens=ints(20, 3, 9), page_table=table([6] * 5, [2, -1, -1, -1, -1], [3, 4, 5, 0, 0])),
    "a-shared-prefix": paged(page_table=table([0, 1, -1, -1, -1], [0, -1, -1, -1, -1], [0, 1, 5, -1, -1])),
    "pages-behind-a-window": paged(
        page_table=table([-1, 1, -1, -1, -1], [2, -1, -1, -1, -1], [-1, -1, 5, -1, -1]), window_size=(2, 0)),
    "pages-of-padding": paged(
        page_table=table([-1, 1, -1, -1, -1], [2, -1, -1, -1, -1], [3, 4, 5, -1, -1]), cache_leftpad=ints(4, 0, 1)),
    "rows-of-the-table-by-number": paged(
        page_table=table([2, 99, 99, 99, 99], [0, 1, -1, -1, -1], [3, 4, 5, -1, -1], [-1] * 5),
        cache_batch_idx=ints(1, 0, 2)),
    "rows-that-are-read-twice": rows(cache_batch_idx=ints(4, 4, 4)),
    "filled-to-the-last-slot": rows(**new(3, 2)),
    "packed-to-the-last-slot": rows(**new(4), cu_seqlens_k_new=ints(0, 2, 2, 4)),
    "all-of-a-row-is-padding": rows(cache_leftpad=ints(5, 0, 9)),
    "the-last-position": rows(**new(3, 2), **rotary(11)),
    "queries-at-one-position": rows(**new(3, 1), **rotary(10)),
    "queries-of-values-are-not-rotated": rows(**alone(3, 2), **new(3, 1), **rotary(10)),
    "behind-one-length": rows(**alone(3, 2), **new(3, 1), **rotary(10), cache_seqlens=9),
    "packed-queries-of-values": rows(
        **alone(7), cu_seqlens_q=ints(0, 2, 4, 7), max_seqlen_q=4, **new(3, 1), **rotary(10), cache_seqlens=9),
    "keys-that-go-nowhere": rows(**alone(3, 2), k_cache=None, **new(3, 1), **rotary(1)),
    "a-row-without-tokens": rows(
        **queries(0, 3, 7, 7), **new(2), cu_seqlens_k_new=ints(0, 1, 2, 2), **rotary(6), causal=True,
        cache_seqlens=ints(0, 1, 9)),
    "a-row-without-tokens-and-position": rows(
        **queries(0, 3, 7, 7), **new(2), cu_seqlens_k_new=ints(0, 1, 2, 2), **rotary(6), causal=True,
        rotary_seqlens=ints(3, 2, -1)),
    "axes-without-tokens": rows(q=half(3, 0, 6, 32), **new(3, 0), **rotary(2)),
    "no-tokens-behind-one-length": rows(
        q=half(3, 0, 6, 32), **new(0), cu_seqlens_k_new=ints(0, 0, 0, 0), **rotary(2), cache_seqlens=9),
    "one-length-and-the-last-position": rows(
        **queries(0, 2, 4, 7), **new(3, 1), **rotary(12), causal=True, cache_seqlens=9),
    "all-of-a-row-of-pages-is-padding": paged(
        page_table=table([0, 1, -1, -1, -1], [-1] * 5, [3, 4, 5, -1, -1]), cache_leftpad=ints(0, 3, 0)),
    "one-key-to-a-packed-query": rows(**queries(0, 4, 5, 7), attention_chunk=4, cache_seqlens=4),
    "one-key-to-a-query": rows(cache_seqlens=ints(5, 2, 9), attention_chunk=4),
    "used": packed(seqused_q=ints(3, 0), seqused_k=ints(0, 2)),
    "a-bound-of-what-is-used": packed(max_seqlen_q=2, seqused_q=ints(2, 2)),
    "strided": packed(cu_seqlens_q=ints(0, 99, 3, 99, 5, 99)[::2], seqused_k=ints(3, 99, 2, 99)[::2]),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_unusual_but_right_is_accepted(name: str):
    assert run(ACCEPTED[name]).isfinite().all()


def test_A05_rows_behind_the_last_boundary_are_zero():  # noqa: N802 - the id of the report
    out, lse = run(packed(**both(e=ints(0, 3)), allow_padded_tail=True, return_softmax_lse=True))
    assert out[:3].any()
    assert not out[3:].any()
    assert torch.isneginf(lse[:, 3:]).all()


def test_R47_new_numbers_in_the_same_tensor_are_seen():  # noqa: N802 - the id of the report
    ends = ints(0, 3, 5)
    given = packed(**both(e=ends))
    for _ in range(12):
        run(given)
    ends.copy_(ints(0, 4, 3))
    with pytest.raises(ValueError, match=r"^cu_seqlens_q\[2\] is 3, expected at least the entry before it, 4"):
        run(given)


@pytest.mark.parametrize("function", [flash_attn_with_kvcache, flash_attn_varlen_func])
def test_the_signature_of_a_decode_loop_is_remembered(function: Any):
    assert repeats(function.__tensorpact__.built.plan) is not None


def test_what_tensors_are_comes_before_the_numbers_in_them():
    given = paged(cache_seqlens=ints(21, 3, 9), page_table=table([9] * 5, [9] * 5, [9] * 5))
    for changed, error in (
        ({"softcap": -1.0}, documented.SOFTCAP),
        ({"out": given["q"]}, documented.OUT_OVERLAP),
        ({}, documented.LENGTHS_RANGE),
        ({"cache_seqlens": ints(5, 3, 9)}, documented.PAGE_RANGE),
    ):
        with pytest.raises(ContractViolation) as caught:
            run({**given, **changed})
        assert caught.value.error is error


def test_nothing_is_appended_by_a_refused_call():
    given = rows(**new(3, 3))
    before = given["k_cache"].clone()
    with pytest.raises(ContractViolation):
        run(given)
    assert torch.equal(given["k_cache"], before)


def test_tensors_without_numbers_pass():
    meta = {n: x.to("meta") if isinstance(x, torch.Tensor) else x for n, x in paged().items()}
    assert run(meta).shape == (3, 1, 8, 16)
    with FakeTensorMode() as mode:
        fake = {n: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for n, x in meta.items()}
        assert run(fake).shape == (3, 1, 8, 16)
