"""Flash attention: what is refused for positions, chunks and pages, against what a call really reads and writes."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import tensorpact
from tensorpact import ContractViolation
from tensorpact_contracts import flash_attention as documented
from tensorpact_kernels import flash_attn_with_kvcache
from tensorpact_kernels.flash_attention.naive_attend import Rules, hides_keys, visible

HEADS, DIM, CAPACITY = 2, 16, 6


@pytest.fixture(params=[("sync", 0), ("async", 1)], ids=["sync", "async"])
def rng(request: pytest.FixtureRequest) -> Iterator[random.Random]:
    """Chance, of another seed in each mode of value checks; tensors in host memory are looked at in both."""
    mode, seed = request.param
    with tensorpact.value_checks(mode):
        yield random.Random(seed)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def ends(*counts: int) -> torch.Tensor:
    return ints(*(sum(counts[:i]) for i in range(len(counts) + 1)))


@dataclass
class Drawn:
    """A call by its sequences.

    Attributes:
        given: Arguments.
        lengths: Tokens in the cache.
        queries: Queries of each sequence.
        new: New tokens of each sequence.
        starts: First positions.
    """

    given: dict[str, Any]
    lengths: list[int]
    queries: list[int]
    new: list[int]
    starts: list[int]


def draw(rng: random.Random, batch: int, *, appends: bool, most_new: int = 2) -> Drawn:
    """A call whose lengths, boundaries and sizes are in range."""
    new = [rng.randint(0, most_new) for _ in range(batch)]
    packed_new, packed_queries, one_length = (rng.random() < 0.6 for _ in range(3))
    new = new if packed_new else new[:1] * batch
    new = new if appends else [0] * batch
    queries = [rng.randint(0, 2) for _ in range(batch)]
    queries = queries if packed_queries else queries[:1] * batch
    room = CAPACITY - max(new)
    lengths = [rng.randint(0, room)] * batch if one_length else [rng.randint(0, CAPACITY - n) for n in new]
    given: dict[str, Any] = {
        "q": half(sum(queries), HEADS, DIM) if packed_queries else half(batch, queries[0], HEADS, DIM),
        "k_cache": half(batch, CAPACITY, HEADS, DIM),
        "v_cache": half(batch, CAPACITY, HEADS, DIM),
        "cache_seqlens": lengths[0] if one_length else ints(*lengths),
        "causal": rng.random() < 0.6,
    }
    if packed_queries:
        given |= {"cu_seqlens_q": ends(*queries), "max_seqlen_q": rng.choice([max(queries), 2, 5])}
    if appends:
        tokens = (sum(new),) if packed_new else (batch, new[0])
        given |= {name: half(*tokens, HEADS, DIM) for name in "kv"}
        given |= {"cu_seqlens_k_new": ends(*new)} if packed_new else {}
    return Drawn(given, lengths, queries, new, lengths)


def refusal(given: dict[str, Any]) -> ContractViolation | None:
    try:
        flash_attn_with_kvcache(**given)
    except ContractViolation as error:
        return error
    return None


def test_positions_are_refused_where_a_rotated_token_has_none(rng: random.Random):
    seen: dict[str, int] = {}
    for _ in range(150):
        drawn = draw(rng, rng.choice([1, 3]), appends=True)
        given, batch = drawn.given, len(drawn.new)
        rows = rng.randint(1, 9)
        given |= {name: half(rows, 8) for name in ("rotary_cos", "rotary_sin")}
        given["window_size"] = rng.choice([(-1, -1), (2, 0), (CAPACITY, -1)])
        if rng.random() < 0.3:
            drawn.starts = [rng.randint(-1, 8) for _ in drawn.new]
            given["rotary_seqlens"] = ints(*drawn.starts)
        if rng.random() < 0.3:
            given |= {"only_qv": True, "qv": given["q"], "q": None}
            given |= {"k_cache": None} if rng.random() < 0.5 else {}
        keys_turn = given.get("k_cache") is not None
        longest = given.get("max_seqlen_q", drawn.queries[0])
        counts = hides_keys(given["window_size"], given["causal"], 0, CAPACITY, longest)
        broken, quiet, open_rows = False, False, 0
        for start, queries, new in zip(drawn.starts, drawn.queries, drawn.new, strict=True):
            turned = 0 if given.get("only_qv") else queries if counts else min(queries, 1)
            tokens = max(new if keys_turn else 0, turned)
            open_rows += not tokens
            broken |= tokens > 0 and not (start >= 0 and start + tokens <= rows)
            # Queries that all stand at the first position, without new keys in front of them.
            quiet |= turned > 0 and not counts and not (new if keys_turn else 0)
        error = refusal(given)
        assert error is None or broken, (str(error), given)
        if error is not None:
            assert error.error in (documented.ROTARY_RANGE, documented.ROTARY_ROWS)
        padded = max(
            drawn.new[0] if keys_turn and "cu_seqlens_k_new" not in given else 0,
            drawn.queries[0] if "cu_seqlens_q" not in given and not given.get("only_qv") else 0,
        )
        # What a contract can see: one length, rows of tables for every length, or a token in every sequence.
        one = isinstance(given["cache_seqlens"], int) and "rotary_seqlens" not in given
        sees = one or padded > 0 or (batch == 1 and not open_rows)
        sees |= "rotary_seqlens" not in given and rows >= CAPACITY
        kind = "one" if one else "each"
        if broken and sees and (one or not quiet):
            assert error is not None, given
            seen[f"{kind}-refused"] = seen.get(f"{kind}-refused", 0) + 1
        elif not broken:
            seen[f"{kind}-right"] = seen.get(f"{kind}-right", 0) + 1
    assert min(seen.get(k, 0) for k in ("one-refused", "each-refused", "one-right", "each-right")) >= 5, seen


def test_queries_of_values_are_not_rotated_and_new_keys_are():
    given = {"q": None, "qv": half(2, 3, HEADS, DIM), "only_qv": True, "causal": True, "cache_seqlens": ints(4, 2)}
    given |= {name: half(2, 1, HEADS, DIM) for name in "kv"}
    keys, values = half(2, 2, CAPACITY, HEADS, DIM)
    tables = {name: half(5, 8) for name in ("rotary_cos", "rotary_sin")}
    caches = {"k_cache": keys.clone(), "v_cache": values.clone()}
    # The last of three queries behind four tokens would stand at a position that the tables lack.
    turned = flash_attn_with_kvcache(**given, **tables, **caches)
    plain = {"k_cache": keys.clone(), "v_cache": values.clone()}
    assert torch.equal(turned, flash_attn_with_kvcache(**given, **plain))
    assert torch.equal(caches["v_cache"], plain["v_cache"])
    assert torch.equal(plain["k_cache"][0, 4], given["k"][0, 0])
    assert not torch.equal(caches["k_cache"][0, 4], given["k"][0, 0])


def test_chunks_are_refused_where_a_query_stands_before_the_first_key(rng: random.Random):
    seen = [0, 0]
    for _ in range(150):
        drawn = draw(rng, 3, appends=rng.random() < 0.6)
        given = {**drawn.given, "attention_chunk": 2}
        if "k" not in given and rng.random() < 0.3:
            given["cache_seqlens"], drawn.lengths = None, [CAPACITY] * 3
        if given.get("max_seqlen_q", 0) == 5 and rng.random() < 0.5:
            drawn.queries = [5, 2, 0]
            given |= {"q": half(7, HEADS, DIM), "cu_seqlens_q": ends(5, 2, 0)}
        sequences = zip(drawn.lengths, drawn.new, drawn.queries, strict=True)
        broken = any(length + new < queries for length, new, queries in sequences)
        error = refusal(given)
        assert error is None or broken, (str(error), given)
        if error is not None:
            assert error.error in (documented.CHUNK_KEYS, documented.CHUNK_QUERIES)
        # Padded queries are not compared with packed new tokens behind one length.
        hidden = "cu_seqlens_q" not in given and "cu_seqlens_k_new" in given and isinstance(given["cache_seqlens"], int)
        assert error is not None or not broken or hidden, given
        seen[broken] += not hidden
    assert min(seen) >= 10


def test_a_negative_page_is_refused_where_no_front_of_a_row_can_be_hidden(rng: random.Random):
    seen = {"refused": 0, "right": 0, "unsaid": 0}
    for _ in range(150):
        drawn = draw(rng, 3, appends=rng.random() < 0.6)
        page = rng.choice([2, 3, 6])
        columns = CAPACITY // page
        given = {n: x for n, x in drawn.given.items() if n not in ("k_cache", "v_cache")}
        given |= {name: half(3 * columns, page, HEADS, DIM) for name in ("k_cache", "v_cache")}
        table = torch.arange(3 * columns, dtype=torch.int32).view(3, columns)
        window = (rng.choice([-1, 0, 1, 3, 4, 9]), -1)
        chunk = rng.choice([None, None, 2, 8])
        padding = [rng.randint(0, length) for length in drawn.lengths] if rng.random() < 0.2 else [0] * 3
        row, column = rng.randrange(3), rng.randrange(columns)
        table[row, column] = -1
        given |= {"page_table": table, "window_size": window, "attention_chunk": chunk}
        given |= {"cache_leftpad": ints(*padding)} if any(padding) else {}
        keys = drawn.lengths[row] + drawn.new[row] - padding[row]
        queries = drawn.queries[row]
        if chunk and any(
            length + new < count for length, new, count in zip(drawn.lengths, drawn.new, drawn.queries, strict=True)
        ):
            continue
        rules = Rules(1.0, window[0], 0 if given["causal"] else -1, chunk or 0, 0.0)
        mask = visible(torch.arange(queries), queries, keys, keys, rules).any(dim=0)
        read = {padding[row] + int(key) for key in mask.nonzero()}
        written = set(range(drawn.lengths[row], drawn.lengths[row] + drawn.new[row]))
        held = range(drawn.lengths[row] + drawn.new[row])
        error = refusal(given)
        needed = any(slot // page == column for slot in read | written)
        if error is not None:
            # Without a query nothing is read: the pages of a row are looked at all the same.
            assert needed or (queries == 0 and any(slot // page == column for slot in held)), (str(error), given)
            assert error.error is documented.PAGE_RANGE
            assert str(error).startswith(f"page_table[{row}, {column}] is -1, ")
            seen["refused"] += 1
        elif needed:
            may_hide = window[0] >= 0 or chunk or any(padding)
            assert may_hide, given
            seen["unsaid"] += 1
        else:
            seen["right"] += 1
    assert seen["refused"] > 2 * seen["unsaid"], seen
    assert seen["right"] >= 10
