"""The causal KV caches: every public check in firing order, and every hole of the public checks closed.

A refused call changes nothing: each case compares buffers, ends and pin, and then makes the right call.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensorpact import ContractViolation, DocumentedError
from tensorpact_contracts import causal_kv_cache as documented
from tensorpact_kernels import (
    CausalAttentionKVCache,
    CausalSelfAttentionKVCache,
    CrossAttentionKVCache,
    QVGPackedCausalKVCache,
)

pytestmark = pytest.mark.usefixtures("both_modes")
BF16, FP16 = torch.bfloat16, torch.float16
NAME = "causal KV cache"


def index(value: int = 0) -> torch.Tensor:
    return torch.tensor([value])


def cache(
    slots: int = 8, ends: tuple[int, int] = (0, 0), heads: int = 4, dtype: torch.dtype = torch.float32, **settings: Any
) -> CausalSelfAttentionKVCache:
    """Buffers whose every number says where it is."""
    k = torch.arange(2 * slots * heads * 3).reshape(2, slots, heads, 3).to(dtype)
    v = torch.arange(2 * slots * heads * 5).reshape(2, slots, heads, 5).to(dtype)
    return CausalSelfAttentionKVCache(k, v, index(ends[0]), index(ends[1]), *ends, **settings)


def chunk(n: int, start: int, heads: int = 4, dtype: torch.dtype = torch.float32, **other: Any) -> dict[str, Any]:
    key, value = torch.ones(2, n, heads, 3, dtype=dtype), torch.ones(2, n, heads, 5, dtype=dtype)
    return {"key": key, "value": value, "current_chunk_start": start, **other}


def state(some: CausalSelfAttentionKVCache) -> list[Any]:
    tensors = (some.k, some.v, some.global_end_index, some.local_end_index)
    return [t.tolist() for t in tensors] + [
        *(some.global_end_index_int, some.local_end_index_int, some.cache_size, some.attention_window_size),
        *(some.pinned_start, some.pinned_len, some.head_slice),
    ]


def refused(some: Any, error: DocumentedError, text: str, arguments: dict[str, Any]) -> None:
    before = state(some)
    with pytest.raises(error.documented) as caught:
        some.update_and_get_attention_kv(**arguments)
    assert isinstance(caught.value, ContractViolation)
    assert (caught.value.error, str(caught.value)) == (error, text)
    assert state(some) == before


def case(name: str, made: Callable[[], Any], arguments: dict[str, Any], error: DocumentedError, text: str) -> Any:
    return pytest.param(made, arguments, error, text, id=name)


META = torch.empty(2, 2, 4, 3, device="meta")
RANGE = (
    "Invalid {} write range: local=[{}, {}), global_end={}, prev_local_end={}, kv_cache_size={}, num_new_tokens={}, "
    "current_start={}, current_end={}"
)
# Each of these breaks one public check and, as far as they can be broken with it, the later ones.
PUBLIC = [
    case(
        "1-head-start",
        cache,
        chunk(9, 30, heads=2, recent_window_tokens=-1, value=torch.ones(1)),
        documented.HEAD_START,
        f"{NAME} requires cache_head_start when cache heads (4) differ from input heads (2).",
    ),
    case(
        "1-more-heads-than-the-cache",
        cache,
        chunk(2, 0, heads=6, debug_name="layer 3"),
        documented.HEAD_START,
        "layer 3 requires cache_head_start when cache heads (4) differ from input heads (6).",
    ),
    case(
        "2-rewrite-before-the-oldest",
        lambda: cache(ends=(20, 8)),
        chunk(2, 11, recent_window_tokens=-1, value=torch.ones(2, 1, 4, 5)),
        documented.WRITE_RANGE,
        RANGE.format(NAME, -1, 1, 20, 8, 8, 2, 11, 13),
    ),
    case(
        "2-chunk-larger-than-the-cache",
        lambda: cache(4, ends=(4, 4)),
        chunk(5, 0),
        documented.WRITE_RANGE,
        RANGE.format(NAME, -1, 4, 4, 4, 4, 5, 0, 5),
    ),
    case(
        "2-size-after-growth",
        lambda: cache(4, ends=(4, 4), allow_growth=True),
        chunk(12, -7, debug_name="grown"),
        documented.WRITE_RANGE,
        RANGE.format("grown", -7, 5, 4, 4, 8, 12, -7, 5),
    ),
    case("2-end-beyond-int64", lambda: cache(4, ends=(2**63 - 2, 4)), chunk(2, 2**63 - 2), documented.WRITE_RANGE,
         RANGE.format(NAME, 2, 4, 2**63 - 2, 4, 4, 2, 2**63 - 2, 2**63)),
    case("4-recent-window", cache, chunk(2, 9, recent_window_tokens=-1), documented.RECENT_WINDOW,
         "recent_window_tokens must be non-negative or None"),
]  # fmt: skip
SLICE = {"heads": 2, "cache_head_start": 0}
HOLES = [
    case("H1", cache, chunk(2, 0, heads=2, cache_head_start=3), documented.HEAD_RANGE,
         f"{NAME}: cache_head_start must be between 0 and 2 for 2 of 4 heads, got 3"),
    case("H1-one-head", cache, chunk(2, 0, heads=1, cache_head_start=4), documented.HEAD_RANGE,
         f"{NAME}: cache_head_start must be between 0 and 3 for 1 of 4 heads, got 4"),
    case("H2", cache, chunk(2, 0, heads=2, cache_head_start=-3), documented.HEAD_RANGE,
         f"{NAME}: cache_head_start must be between 0 and 2 for 2 of 4 heads, got -3"),
    case("H2-one-head", cache, chunk(2, 0, heads=1, cache_head_start=-1), documented.HEAD_RANGE,
         f"{NAME}: cache_head_start must be between 0 and 3 for 1 of 4 heads, got -1"),
    case("H3", cache, chunk(2, 0, heads=5, cache_head_start=0), documented.MORE_HEADS,
         f"{NAME}: key has 5 heads, more than the 4 of the cache, and no cache_head_start can place them"),
    *(
        case(f"H4-{name}", cache, chunk(2, 0, value=torch.ones(shape)), documented.VALUE_SHAPE,
             f"{NAME}: value must have shape (2, 2, 4, 5) to go with this key, got {shape}")
        for name, shape in {
            "token": (2, 1, 4, 5), "head": (2, 2, 1, 5), "batch": (1, 2, 4, 5), "width": (2, 2, 4, 1),
            "width-of-key": (2, 2, 4, 3),
        }.items()
    ),
    case("H5-batch", cache, chunk(2, 0, key=torch.ones(1, 2, 4, 3)), documented.CHUNK_SHAPE,
         f"{NAME}: key has batch and head dim 1 and 3, the cache has 2 and 3"),
    case("H5-width", cache, chunk(2, 0, key=torch.ones(2, 2, 4, 1)), documented.CHUNK_SHAPE,
         f"{NAME}: key has batch and head dim 2 and 1, the cache has 2 and 3"),
    case("H5-dtype", lambda: cache(dtype=FP16), chunk(2, 0), documented.CHUNK_DTYPE,
         f"{NAME}: the cache holds torch.float16 on cpu, got key torch.float32 on cpu and value torch.float32 on cpu"),
    case("H5-device", cache, chunk(2, 0, key=META), documented.CHUNK_DTYPE,
         f"{NAME}: the cache holds torch.float32 on cpu, got key torch.float32 on meta and value torch.float32 on cpu"),
    case("H6", lambda: cache(ends=(2, 2)), chunk(2, 4), documented.GAP,
         f"{NAME}: the chunk starts at position 4, but the cache ends at 2: positions in between were never written"),
    case("H6-over-the-end", lambda: cache(4, ends=(4, 4)), chunk(2, 8), documented.GAP,
         f"{NAME}: the chunk starts at position 8, but the cache ends at 4: positions in between were never written"),
    case("H7", lambda: cache(6, ends=(9, 6), sink_tokens=2), chunk(3, 3), documented.SINK_REWRITE,
         f"{NAME}: position 3 would be written to slot 0, which holds one of 2 sink tokens since the first eviction"),
    case("H8", lambda: cache(4, ends=(3, 3), sink_tokens=2), chunk(3, 3), documented.SINK_OVERRUN,
         f"{NAME}: 3 new tokens and 2 sink tokens do not fit into 4 slots"),
    case("H9", lambda: cache(4, ends=(4, 4)), chunk(5, 0), documented.WRITE_RANGE,
         RANGE.format(NAME, -1, 4, 4, 4, 4, 5, 0, 5)),
    case("H10", lambda: cache(4, ends=(4, 4)), chunk(2, 4, recent_window_tokens=-1), documented.RECENT_WINDOW,
         "recent_window_tokens must be non-negative or None"),
    case("H14", lambda: cache(6, attention_window_size=2), chunk(3, 0), documented.WINDOW,
         f"{NAME}: an attention window of 2 tokens hides part of a chunk of 3"),
    case("H16", lambda: cache(ends=(8, 8), attention_window_size=4, global_sink_tokens=2), chunk(3, 8),
         documented.CROWDED,
         f"{NAME}: sink and pin take 2 of the 4 tokens of the attention window, which leaves less than the 3 of the "
         "chunk"),
    case("H18", lambda: cache(ends=(8, 8), sink_tokens=2, global_sink_tokens=1, pinned_start=2, pinned_len=2),
         chunk(3, 8), documented.PIN_LOST,
         f"{NAME}: evicting 3 tokens moves the 2 pinned tokens to slot -1, into or past the 1 sink tokens"),
    case("H20", cache, chunk(0, 0), documented.EMPTY_CHUNK,
         f"{NAME}: a chunk holds at least one token and one head, got key of shape (2, 0, 4, 3)"),
    case("no-heads", cache, chunk(2, 0, heads=0, cache_head_start=0), documented.EMPTY_CHUNK,
         f"{NAME}: a chunk holds at least one token and one head, got key of shape (2, 2, 0, 3)"),
    case("H21", lambda: cache(ends=(20, 8)), chunk(2, -3), documented.WRITE_RANGE,
         RANGE.format(NAME, -15, -13, 20, 8, 8, 2, -3, -1)),
    case("H22-three", cache, chunk(2, 0, value=torch.ones(2, 4, 5)), documented.CHUNK_RANK,
         f"{NAME}: key and value have the axes [batch, tokens, heads, head dim]; wrong number of axes: value"),
    case("H22-two", cache, chunk(2, 0, key=torch.ones(2, 4)), documented.CHUNK_RANK,
         f"{NAME}: key and value have the axes [batch, tokens, heads, head dim]; wrong number of axes: key"),
    case("H22-five", cache, chunk(2, 0, key=torch.ones(2, 2, 4, 3, 1), value=torch.ones(2, 2, 4, 5, 1)),
         documented.CHUNK_RANK,
         f"{NAME}: key and value have the axes [batch, tokens, heads, head dim]; wrong number of axes: key, value"),
    case("H25", cache, chunk(2, 0, cache_head_start=2), documented.UNUSED_START,
         f"{NAME}: key has all 4 heads of the cache, so cache_head_start must be None or 0, got 2"),
    case("H25-negative", cache, chunk(2, 0, cache_head_start=-1), documented.UNUSED_START,
         f"{NAME}: key has all 4 heads of the cache, so cache_head_start must be None or 0, got -1"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "arguments", "error", "text"), PUBLIC)
def test_public_checks(made: Any, arguments: dict[str, Any], error: DocumentedError, text: str):
    refused(made(), error, text, arguments)


def test_public_checks_stand_in_order_before_the_state():
    slugs = [e.slug for e in documented.UPDATE.errors]
    public = list(dict.fromkeys(c.values[2].slug for c in PUBLIC))
    assert sorted(public, key=slugs.index) == public
    assert {e: e.documented for e in documented.UPDATE.errors if e.documented is not ValueError} == {
        documented.WRITE_RANGE: RuntimeError
    }


@pytest.mark.parametrize(("made", "arguments", "error", "text"), HOLES)
def test_holes_are_closed(made: Any, arguments: dict[str, Any], error: DocumentedError, text: str):
    refused(made(), error, text, arguments)


def test_H11_one_slice_for_one_cache():  # noqa: N802 - the id of the hole
    some = cache()
    some.update_and_get_attention_kv(**chunk(2, 0, heads=2, cache_head_start=0))
    text = f"{NAME}: since its last reset this cache holds heads [0, 2), got heads [2, 4)"
    refused(some, documented.HEAD_SLICE, text, chunk(2, 0, heads=2, cache_head_start=2))
    text = f"{NAME}: since its last reset this cache holds heads [0, 2), got heads [0, 4)"
    refused(some, documented.HEAD_SLICE, text, chunk(2, 2))
    some.reset_indices()
    some.update_and_get_attention_kv(**chunk(2, 0, heads=2, cache_head_start=2))


@pytest.mark.parametrize("start", [torch.tensor(0), True, 0.0, "0"])
def test_H21_a_position_is_a_plain_integer(start: Any):  # noqa: N802 - the id of the hole
    with pytest.raises(TypeError, match=r"^current_chunk_start: expected int, got "):
        cache().update_and_get_attention_kv(**chunk(2, start))


def made(**changed: Any) -> CausalSelfAttentionKVCache:
    fields = {
        "k": torch.zeros(2, 8, 4, 3),
        "v": torch.zeros(2, 8, 4, 5),
        "global_end_index": index(),
        "local_end_index": index(),
    }
    return CausalSelfAttentionKVCache(**{**fields, **changed})


STATES = {
    "H12-slots": ({"v": torch.zeros(2, 7, 4, 5)}, documented.BUFFERS),
    "H12-heads": ({"v": torch.zeros(2, 8, 1, 5)}, documented.BUFFERS),
    "H12-batch": ({"v": torch.zeros(1, 8, 4, 5)}, documented.BUFFERS),
    "H12-dtype": ({"v": torch.zeros(2, 8, 4, 5, dtype=BF16)}, documented.BUFFERS),
    "H12-device": ({"v": torch.zeros(2, 8, 4, 5, device="meta")}, documented.BUFFERS),
    "H12-rank": ({"k": torch.zeros(2, 8, 4), "v": torch.zeros(2, 8, 4)}, documented.BUFFERS),
    "H12-capacity": ({"cache_size": 9}, documented.CACHE_SIZE),
    "H13-sink": ({"sink_tokens": 9}, documented.SETTINGS),
    "H13-negative-sink": ({"sink_tokens": -1}, documented.SETTINGS),
    "H13-global-sink": ({"global_sink_tokens": 13}, documented.SETTINGS),
    "H13-window": ({"attention_window_size": -2}, documented.SETTINGS),
    "H13-pin": ({"pinned_start": 7, "pinned_len": 2}, documented.SETTINGS),
    "H13-headroom": ({"headroom": -1}, documented.SETTINGS),
    "H19-lone-integer": ({"global_end_index_int": 0}, documented.HOST_ENDS),
    "H19-other-lone-integer": ({"local_end_index_int": 0}, documented.HOST_ENDS),
    "H19-disagreement": ({"global_end_index_int": 2, "local_end_index_int": 2}, documented.HOST_ENDS),
    "R23": ({"k": torch.zeros(1, 8, 4, 3).expand(2, 8, 4, 3)}, documented.OVERLAPPING),
    "same-buffer": ({"k": (same := torch.zeros(2, 8, 4, 3)), "v": same}, documented.OVERLAPPING),
    "rows-that-meet": ({"k": (rows := torch.zeros(2, 8, 4, 7))[..., :3], "v": rows[..., 2:]}, documented.OVERLAPPING),
    "index-dtype": ({"global_end_index": torch.zeros(1)}, documented.INDEX),
    "index-size": ({"local_end_index": torch.zeros(2, dtype=torch.int64)}, documented.INDEX),
    "one-index-for-both-ends": (
        {"global_end_index": (both := index()), "local_end_index": both},
        documented.INDEX,
    ),
    "two-views-of-one-index": (
        {"global_end_index": (ends := index()), "local_end_index": ends[0]},
        documented.INDEX,
    ),
    "R43": ({"global_end_index": index(5), "local_end_index": index(3)}, documented.ENDS),
    "local-past-the-slots": ({"global_end_index": index(9), "local_end_index": index(9)}, documented.ENDS),
    "negative-end": ({"global_end_index": index(0), "local_end_index": index(-1)}, documented.ENDS),
}


@pytest.mark.parametrize("name", STATES)
def test_the_constructor_validates(name: str):
    changed, error = STATES[name]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the documented error is compared
        made(**changed)
    assert caught.value.error is error


@pytest.mark.parametrize("name", STATES)
def test_every_update_validates_the_state_again(name: str):
    changed, error = STATES[name]
    some = made()
    for field, value in changed.items():
        setattr(some, field, value)
    with pytest.raises(ContractViolation) as caught:
        some.update_and_get_attention_kv(**chunk(2, int(some.global_end_index)))
    # What the chunk is held against comes before what the buffers are held against.
    early = {
        "same-buffer": documented.VALUE_SHAPE,
        "negative-end": documented.WRITE_RANGE,
        "local-past-the-slots": documented.ENDS,
    }
    assert caught.value.error is early.get(name, error), str(caught.value)


def test_texts_of_the_state():
    for changed, text in (
        ({"cache_size": 9}, "cache_size is 9, but the buffers hold 8 slots"),
        (
            {"sink_tokens": 9},
            "causal KV cache setting out of range: sink_tokens must be between 0 and cache_size 8, got 9",
        ),
        (
            {"global_end_index_int": 2},
            "global_end_index_int and local_end_index_int are given together and say what the tensors say, "
            "got 2 and None beside 0 and 0",
        ),
        (
            {"global_end_index": index(5), "local_end_index": index(3)},
            "local end 3 cannot go with global end 5 and 8 slots: before the first eviction the two are equal, "
            "afterwards every slot is in use",
        ),
        (
            {"global_end_index": torch.zeros(1)},
            "global_end_index and local_end_index must each hold one int64 in memory of its own, got 1 of "
            "torch.float32 and 1 of torch.int64",
        ),
        (
            {"global_end_index": (both := index()), "local_end_index": both},
            "global_end_index and local_end_index must each hold one int64 in memory of its own, got 1 of torch.int64 "
            "and 1 of torch.int64 at one address",
        ),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared
            made(**changed)
        assert str(caught.value) == text


def test_a_pin_is_no_longer_than_the_cache():
    some = cache(ends=(2, 2), sink_tokens=2)
    with pytest.raises(ValueError, match=r"^pin_current_chunk: 3 tokens are to be pinned, but the cache holds 2\n"):
        some.pin_current_chunk(3)
    assert (some.pinned_start, some.pinned_len) == (-1, 0)
    some.pin_current_chunk(2)
    assert (some.pinned_start, some.pinned_len) == (0, 2)
    some.pin_current_chunk(0)
    assert (some.pinned_start, some.pinned_len) == (-1, 0)


REPORTED = {
    "R09": (lambda: made(k=torch.zeros(2, 8, 4, 32)), chunk(3, 0), documented.CHUNK_SHAPE, "2 and 3, the cache has 2"),
    "R11": (
        lambda: made(),
        chunk(3, 0, key=torch.ones(2, 4, 3, 3), value=torch.ones(2, 4, 3, 5)),
        documented.HEAD_START,
        "cache heads (4) differ from input heads (3)",
    ),
    "R15": (lambda: cache(dtype=FP16), chunk(3, 0, dtype=BF16), documented.CHUNK_DTYPE, "torch.float16"),
    "R45": (
        lambda: cache(ends=(8, 8), sink_tokens=2),
        chunk(7, 8),
        documented.SINK_OVERRUN,
        "7 new tokens and 2 sink tokens do not fit into 8 slots",
    ),
    "scope-924-a-write-behind-the-last-token": (
        lambda: cache(ends=(30, 8)),
        chunk(2, 31),
        documented.GAP,
        "position 31, but the cache ends at 30",
    ),
}


@pytest.mark.parametrize("name", REPORTED)
def test_a_reported_mistake_is_refused(name: str):
    make, arguments, error, part = REPORTED[name]
    with pytest.raises(error.documented) as caught:
        make().update_and_get_attention_kv(**arguments)
    assert caught.value.error is error
    assert part in str(caught.value)


def interleaved() -> CausalSelfAttentionKVCache:
    both = torch.zeros(2, 8, 2, 4, 3)
    return made(k=both[:, :, 0], v=both[:, :, 1])


def one_row() -> CausalSelfAttentionKVCache:
    rows = torch.zeros(2, 8, 4, 8)
    return made(k=rows[..., :3], v=rows[..., 3:])


ACCEPTED = {
    "E1": (lambda: cache(ends=(5, 5), sink_tokens=2), chunk(3, 5)),
    "A01-no-sequences": (
        lambda: made(k=torch.zeros(0, 8, 4, 3), v=torch.zeros(0, 8, 4, 5)),
        chunk(2, 0, key=torch.ones(0, 2, 4, 3), value=torch.ones(0, 2, 4, 5)),
    ),
    "A11-keys-and-values-take-turns": (interleaved, chunk(2, 0, value=torch.ones(2, 2, 4, 3))),
    "keys-and-values-in-one-row": (one_row, chunk(2, 0)),
    "A11-layer-of-a-shared-buffer": (lambda: made(k=torch.zeros(2, 8, 3, 4, 3)[:, :, 1]), chunk(2, 0)),
    "A13-expanded-chunk": (cache, chunk(2, 0, key=torch.ones(1, 1, 1, 3).expand(2, 2, 4, 3))),
    "A09-slice-of-a-projection": (cache, chunk(2, 0, key=torch.ones(2, 2, 12, 3)[:, :, 4:8])),
    "A15": (lambda: made(k=torch.zeros(2, 8, 4, 24)), chunk(3, 0, key=torch.ones(2, 3, 4, 24))),
    "A17-one-token": (cache, chunk(1, 0)),
    "A25-parameter": (cache, chunk(2, 0, key=torch.nn.Parameter(torch.ones(2, 2, 4, 3)))),
    "A27-numpy-integer": (cache, {**chunk(2, 0), "current_chunk_start": pytest.importorskip("numpy").int64(0)}),
    "partial-overlap": (lambda: cache(ends=(5, 5)), chunk(3, 4)),
    "rewrite-of-a-resident-chunk": (lambda: cache(ends=(20, 8)), chunk(3, 13)),
    "rewrite-of-the-sink-before-an-eviction": (lambda: cache(ends=(8, 8), sink_tokens=3), chunk(2, 0)),
    "growth": (lambda: cache(4, ends=(4, 4), allow_growth=True), chunk(2, 4)),
    "pin-at-the-global-sink": (
        lambda: cache(ends=(8, 8), sink_tokens=2, global_sink_tokens=1, pinned_start=4, pinned_len=2),
        chunk(3, 8),
    ),
    "window-beyond-the-cache": (lambda: cache(attention_window_size=100), chunk(2, 0)),
    "0-head-start": (cache, chunk(2, 0, cache_head_start=0)),
    "window-not-consulted": (lambda: cache(attention_window_size=1), chunk(3, 0, recent_window_tokens=0)),
    "ends-in-one-tensor": (
        lambda: made(global_end_index=(ends := torch.zeros(2, dtype=torch.int64))[:1], local_end_index=ends[1:]),
        chunk(2, 0),
    ),
    "scalar-index": (lambda: made(global_end_index=torch.tensor(0), local_end_index=torch.tensor(0)), chunk(2, 0)),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_unusual_but_right_is_accepted(name: str):
    make, arguments = ACCEPTED[name]
    some = make()
    view = some.update_and_get_attention_kv(**arguments)
    rows = view.k[:, view.k.shape[1] - 1 :]
    assert view.k.shape[:3] == view.v.shape[:3]
    assert not view.k.requires_grad
    if name not in ("rewrite-of-a-resident-chunk", "rewrite-of-the-sink-before-an-eviction"):
        assert bool((rows == 1).all())


def test_a_view_that_the_window_has_left_is_no_chunk():
    some = CausalSelfAttentionKVCache(torch.zeros(1, 4, 1, 1), torch.zeros(1, 4, 1, 1), index(), index(), 0, 0)

    def feed(position: int) -> Any:
        token = torch.full((1, 1, 1, 1), float(position))
        return some.update_and_get_attention_kv(key=token, value=token, current_chunk_start=position)

    view = [feed(i) for i in range(5)][-1]
    held = {"key": view.k[:, :1], "value": view.v[:, :1]}
    for i in range(5, 9):
        feed(i)
    text = f"{NAME}: key and value must not be views of the buffers that this call writes"
    fresh = torch.ones(1, 1, 1, 1)
    for part in ({}, {"key": fresh}, {"value": fresh}):
        refused(some, documented.ALIASED, text, {**held, **part, "current_chunk_start": 9})
    copies = {name: t.clone() for name, t in held.items()}
    some.update_and_get_attention_kv(**copies, current_chunk_start=9)
    # Other buffers: nothing writes to the storage that they replace.
    some.k, some.v = some.k.clone(), some.v.clone()
    last = some.update_and_get_attention_kv(**held, current_chunk_start=10)
    assert last.k[0, -1].item() == held["key"].item()


def packed(**changed: Any) -> QVGPackedCausalKVCache:
    fields: dict[str, Any] = {
        "batch_size": 2,
        "cache_size": 9,
        "num_heads": 4,
        "head_dim": 3,
        "dtype": torch.float32,
        "device": "cpu",
        "global_end_index": index(),
        "local_end_index": index(),
        "sink_tokens": 2,
    }
    some = QVGPackedCausalKVCache(**{**fields, **changed})
    some.update_and_get_attention_kv(**packed_chunk(3, 0))
    return some


def packed_chunk(n: int, start: int, heads: int = 4, **other: Any) -> dict[str, Any]:
    ones = torch.ones(2, n, heads, 3)
    return {"key": ones, "value": ones.clone(), "current_chunk_start": start, **other}


QVG = "QVG packed KV cache"
PACKED = {
    "1": (
        packed_chunk(2, 9, heads=2, recent_window_tokens=-1),
        documented.PACKED_HEAD_START,
        f"{QVG}: cache_head_start required for head slice",
    ),
    "2": (
        packed_chunk(2, 0, recent_window_tokens=-1),
        documented.PACKED_REWRITE,
        f"{QVG}: current-chunk rewrite size changed",
    ),
    "4": (
        packed_chunk(2, 5, recent_window_tokens=-1),
        documented.PACKED_ORDER,
        f"{QVG}: non-sequential write current_start=5 global_end=3 cur=0",
    ),
    "5": (
        packed_chunk(2, 3, recent_window_tokens=-1),
        documented.PACKED_RECENT,
        "recent_window_tokens must be >= 0 or None",
    ),
    "H4": (
        packed_chunk(2, 3, value=torch.ones(2, 2, 4, 1)),
        documented.VALUE_SHAPE,
        f"{QVG}: value must have shape (2, 2, 4, 3) to go with this key, got (2, 2, 4, 1)",
    ),
    "H8": (
        packed_chunk(7, 3),
        documented.SINK_OVERRUN,
        f"{QVG}: 7 new tokens and 3 sink tokens do not fit into 9 slots",
    ),
    "H20": (
        packed_chunk(0, 3),
        documented.EMPTY_CHUNK,
        f"{QVG}: a chunk holds at least one token and one head, got key of shape (2, 0, 4, 3)",
    ),
    "no-heads": (
        packed_chunk(3, 3, heads=0, cache_head_start=0),
        documented.EMPTY_CHUNK,
        f"{QVG}: a chunk holds at least one token and one head, got key of shape (2, 3, 0, 3)",
    ),
    "H25": (
        packed_chunk(2, 3, cache_head_start=1),
        documented.UNUSED_START,
        f"{QVG}: key has all 4 heads of the cache, so cache_head_start must be None or 0, got 1",
    ),
}


@pytest.mark.parametrize("name", PACKED)
def test_the_packed_cache_has_its_own_public_errors(name: str):
    arguments, error, text = PACKED[name]
    some = packed()
    before = some.update_and_get_attention_kv(**packed_chunk(3, 0))
    with pytest.raises(error.documented) as caught:
        some.update_and_get_attention_kv(**arguments)
    assert (caught.value.error, str(caught.value)) == (error, text)
    assert (int(some.global_end_index), int(some.local_end_index), some.spans) == (3, 3, [(0, 3)])
    after = some.update_and_get_attention_kv(**packed_chunk(3, 0))
    assert torch.equal(before.k, after.k)


def test_a_packed_cache_before_its_first_chunk_and_its_pin():
    some = QVGPackedCausalKVCache(
        batch_size=2,
        cache_size=9,
        num_heads=4,
        head_dim=3,
        dtype=torch.float32,
        device="cpu",
        global_end_index=index(),
        local_end_index=index(),
    )
    with pytest.raises(NotImplementedError) as caught:
        some.update_and_get_attention_kv(**packed_chunk(2, 4), debug_name="x")
    assert str(caught.value) == "x: non-sequential write current_start=4 global_end=0 cur=None"
    with pytest.raises(NotImplementedError) as caught:
        some.pin_current_chunk(1)
    assert str(caught.value) == (
        "QVGPackedCausalKVCache does not support pinned-sink (longlive2); packed KV quant is scoped to the LingBot "
        "realtime path."
    )


def test_names():
    assert CausalAttentionKVCache is CausalSelfAttentionKVCache
    cross = CrossAttentionKVCache(torch.zeros(1), torch.zeros(1))
    k = torch.ones(2, 7, 4, 3, requires_grad=True)
    cross.store(k, torch.ones(2, 7, 4, 5))
    assert cross.is_init
    assert cross.k is not None
    assert (cross.k.data_ptr(), cross.k.requires_grad) == (k.data_ptr(), False)
    cross.reset()
    assert not cross.is_init
    assert cross.k.shape == (2, 7, 4, 3)
    with pytest.raises(ValueError, match=r"^v: axis 1 \(T\) is 6, but T is 7 \(k axis 1\)"):
        cross.store(torch.ones(2, 7, 4, 3), torch.ones(2, 6, 4, 5))
