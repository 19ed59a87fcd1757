"""What the causal KV caches do: the published traces bit for bit, moving windows, growth, gradients, packing."""

from typing import Any

import pytest
import torch

from tensorpact_kernels import CausalSelfAttentionKVCache, QVGPackedCausalKVCache
from tensorpact_kernels.causal_kv_cache import rolling
from tensorpact_kernels.causal_kv_cache.naive import naive_update_and_get_attention_kv

HEADROOMS = pytest.mark.parametrize("headroom", [None, 0, 1, 3, 50])


def made(slots: int, heads: int = 1, dim: int = 1, fill: float = 0.0, **settings: Any) -> CausalSelfAttentionKVCache:
    k, v = (torch.full((1, slots, heads, dim), fill) for _ in range(2))
    index = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    return CausalSelfAttentionKVCache(k, v, *index, 0, 0, **settings)


def tokens(*values: float, heads: int = 1) -> torch.Tensor:
    return torch.tensor(values).float().view(1, -1, 1, 1).expand(1, len(values), heads, 1)


def step(cache: CausalSelfAttentionKVCache, values: list[float], start: int, **other: Any) -> Any:
    chunk = tokens(*values)
    return cache.update_and_get_attention_kv(key=chunk, value=-chunk, current_chunk_start=start, **other)


def shown(view: Any) -> list[float]:
    assert torch.equal(view.v, -view.k)
    return view.k.flatten().tolist()


def slots(cache: CausalSelfAttentionKVCache) -> list[float]:
    assert torch.equal(cache.v, -cache.k)
    return cache.k.flatten().tolist()


def ends(cache: CausalSelfAttentionKVCache) -> tuple[int, int]:
    assert (cache.global_end_index_int, cache.local_end_index_int) == (
        int(cache.global_end_index),
        int(cache.local_end_index),
    )
    return int(cache.global_end_index), int(cache.local_end_index)


@HEADROOMS
def test_trace_a(headroom: int | None):
    cache = made(4, headroom=headroom)
    view = step(cache, [1, 2, 3], 0)
    assert (view[2:4], shown(view), ends(cache)) == ((0, 3), [1, 2, 3], (3, 3))
    view = step(cache, [4, 5, 6], 3)
    assert (view[2:4], shown(view), slots(cache), ends(cache)) == ((1, 4), [3, 4, 5, 6], [3, 4, 5, 6], (6, 4))
    cache.attention_window_size = 2
    view = step(cache, [50], 4)
    assert (view[2:4], shown(view), slots(cache), ends(cache)) == ((2, 3), [50, 6], [3, 4, 50, 6], (6, 4))


@HEADROOMS
def test_trace_b(headroom: int | None):
    cache = made(6, sink_tokens=2, headroom=headroom)
    wanted = [[1, 1, 1], [1, 1, 1, 2, 2, 2], [1, 1, 2, 3, 3, 3], [1, 1, 3, 4, 4, 4]]
    assert [shown(step(cache, [i + 1.0] * 3, 3 * i)) for i in range(4)] == wanted
    assert ends(cache) == (12, 6)


@HEADROOMS
def test_trace_c(headroom: int | None):
    cache = made(8, sink_tokens=2, attention_window_size=8, headroom=headroom)
    for i in range(2):
        step(cache, [i + 1.0] * 3, 3 * i, recent_window_tokens=1)
    view = step(cache, [3.0] * 3, 6, recent_window_tokens=1)
    assert view[2:4] == (5, 8)
    assert slots(cache) == [1, 1, 2, 2, 2, 3, 3, 3]
    assert shown(view) == [1, 1, 2, 3, 3, 3]


def test_trace_d():
    cache = made(2, allow_growth=True)
    step(cache, [1, 2], 0)
    view = step(cache, [3, 4], 2)
    assert (cache.cache_size, cache.attention_window_size, slots(cache), view[2:4]) == (4, 4, [1, 2, 3, 4], (2, 4))


@HEADROOMS
def test_other_heads_stay_as_they_are(headroom: int | None):
    cache = made(4, heads=4, fill=99.0, headroom=headroom)
    for i in range(3):
        chunk = torch.arange(4.0).view(1, 2, 2, 1) + 4 * i + 1
        view = cache.update_and_get_attention_kv(key=chunk, value=chunk, current_chunk_start=2 * i, cache_head_start=1)
    assert view.k.flatten().tolist() == list(range(5, 13))
    assert view.k.shape == (1, 4, 2, 1)
    assert bool((cache.k[:, :, [0, 3]] == 99).all())


@HEADROOMS
@pytest.mark.parametrize("sink", [0, 2])
def test_blocks_with_their_positions(headroom: int | None, sink: int):
    """Ten blocks of 24 tokens through six blocks of slots: the sink and the newest stay."""
    block, heads, dim = 24, 2, 4
    cache = CausalSelfAttentionKVCache(
        *(torch.zeros(1, 6 * block, heads, dim) for _ in range(2)),
        *(torch.zeros(1, dtype=torch.int64) for _ in range(2)),
        sink_tokens=sink * block,
        headroom=headroom,
    )
    positions = torch.arange(10.0 * block)
    for i in range(10):
        chunk = positions[i * block : (i + 1) * block].view(1, -1, 1, 1).expand(1, -1, heads, dim)
        cache.update_and_get_attention_kv(key=chunk, value=chunk, current_chunk_start=i * block)
    wanted = torch.cat([positions[: sink * block], positions[(4 + sink) * block :]])
    assert torch.equal(cache.k, wanted.view(1, -1, 1, 1).expand(1, -1, heads, dim))


def test_reset_forgets_and_leaves_the_numbers():
    cache = made(4, sink_tokens=1)
    step(cache, [1, 2, 3], 0)
    cache.pin_current_chunk(2)
    cache.reset_indices()
    assert (ends(cache), cache.pinned_start, cache.pinned_len, slots(cache)) == ((0, 0), -1, 0, [1, 2, 3, 0])
    assert shown(step(cache, [7], 0)) == [7]


def test_a_cache_that_may_be_skipped():
    assert made(4).can_direct_current_attention(4)
    assert not made(4).can_direct_current_attention(3)
    assert not made(4, sink_tokens=1).can_direct_current_attention(4)
    assert not made(4, attention_window_size=3).can_direct_current_attention(4)


def test_a_sink_outside_the_window_is_not_attended_to():
    """H15, as documented: ``global_sink_tokens`` is what makes a sink visible."""
    plain = made(8, sink_tokens=2, attention_window_size=4)
    asked = made(8, sink_tokens=2, attention_window_size=4, global_sink_tokens=2)
    for i in range(3):
        views = [step(cache, [i + 1.0] * 2, 2 * i) for cache in (plain, asked)]
    assert [shown(view) for view in views] == [[2, 2, 3, 3], [1, 1, 3, 3]]


def test_a_pin_that_reaches_into_the_recent_tokens_counts_once():
    """H17: the pinned slice ends where the recent one begins."""
    cache = made(8, sink_tokens=3)
    step(cache, [1, 2, 3, 4], 0)
    cache.pin_current_chunk(3)
    assert shown(step(cache, [5, 6], 4, recent_window_tokens=2)) == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("headroom", [0, 20])
def test_one_range_is_a_view_and_several_are_a_copy(headroom: int):
    """H23: a view shows what later updates write, a copy does not."""
    cache = made(6, headroom=headroom, attention_window_size=3)
    for i in range(4):
        step(cache, [i + 1.0] * 2, 2 * i)
    view = step(cache, [9.0], 8)
    assert view.k.untyped_storage().data_ptr() == cache.k.untyped_storage().data_ptr()
    step(cache, [5.0], 8)
    assert shown(view) == [4, 4, 5]
    asked = made(6, global_sink_tokens=1, attention_window_size=3, headroom=headroom)
    for i in range(4):
        view = step(asked, [i + 1.0] * 2, 2 * i)
    assert view.k.untyped_storage().data_ptr() != asked.k.untyped_storage().data_ptr()


def test_no_gradient_enters_the_cache():
    cache = made(4)
    key = tokens(1, 2).clone().requires_grad_()
    view = cache.update_and_get_attention_kv(key=key, value=key, current_chunk_start=0)
    assert not any(t.requires_grad for t in (view.k, cache.k, cache.v))
    cache.update_and_get_attention_kv(key=key, value=key, current_chunk_start=0)


def test_ends_are_read_from_the_tensors_once():
    cache = made(4)
    cache.global_end_index_int = cache.local_end_index_int = None
    cache.global_end_index.fill_(2)
    cache.local_end_index.fill_(2)
    assert step(cache, [3.0], 2)[2:4] == (2, 3)
    assert ends(cache) == (3, 3)


def test_a_buffer_without_headroom_is_written_where_it_is():
    cache = made(4, headroom=0)
    k = cache.k
    for i in range(5):
        step(cache, [i + 1.0] * 2, 2 * i)
    assert cache.k is k
    assert k.flatten().tolist() == [4, 4, 5, 5]


def test_buffers_that_are_exchanged_are_the_ones_that_are_written():
    cache = made(4, headroom=8)
    for i in range(4):
        step(cache, [i + 1.0] * 2, 2 * i)
    cache.k, cache.v = cache.k.clone(), cache.v.clone()
    assert shown(step(cache, [5.0] * 2, 8)) == [4, 4, 5, 5]
    assert shown(step(cache, [6.0] * 2, 10)) == [5, 5, 6, 6]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_without_memory_for_headroom_the_tokens_move_in_place(error: RuntimeError, monkeypatch: pytest.MonkeyPatch):
    def full(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(rolling, "allocate", full)
    cache, asked = made(4), made(4, headroom=4)
    for some in (cache, asked):
        step(some, [1.0, 2.0, 3.0, 4.0], 0)
    assert shown(step(cache, [5.0], 4)) == [2, 3, 4, 5]
    before = slots(asked)
    with pytest.raises(RuntimeError, match=str(error)):
        step(asked, [5.0], 4)
    assert (slots(asked), ends(asked)) == (before, (4, 4))


def test_what_is_allocated_in_inference_mode_serves_outside_of_it():
    evicting, growing = made(2), made(2, allow_growth=True)
    for cache in (evicting, growing):
        step(cache, [1.0, 2.0], 0)
        with torch.inference_mode():
            step(cache, [3.0, 4.0], 2)
        step(cache, [5.0, 6.0], 4)
    assert (slots(evicting), slots(growing)[:6]) == ([5, 6], [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(("settings", "spare"), [({}, 6), ({"sink_tokens": 1}, 12), ({"headroom": 3}, 3)])
def test_spare_slots(settings: dict[str, int], spare: int):
    cache = made(6, **settings)
    for start in range(0, 8, 2):
        step(cache, [1.0, 2.0], start)
    store, _ = cache.written_memory
    assert store.shape[1] == 6 + spare


@pytest.mark.parametrize("width", [1, 2, 7])
@pytest.mark.parametrize("chunk", [1, 3, 70])
@pytest.mark.parametrize("layout", ["dense", "head-major"])
def test_short_and_long_shifts_in_place(width: int, chunk: int, layout: str, monkeypatch: pytest.MonkeyPatch):
    """Pieces smaller than a shift, larger than one, and of one token, beside a clone of everything."""
    monkeypatch.setattr(rolling, "_PIECE", 4096)
    torch.manual_seed(chunk)
    size = 300
    shape = (2, size, width, 5)

    def buffer() -> torch.Tensor:
        if layout == "dense":
            return torch.zeros(shape)
        return torch.zeros(2, width, size, 5).transpose(1, 2)

    pair = [
        CausalSelfAttentionKVCache(
            buffer(),
            buffer(),
            *(torch.zeros(1, dtype=torch.int64) for _ in range(2)),
            sink_tokens=5,
            headroom=room,
        )
        for room in (0, 0, 130)
    ]
    for i in range(12):
        # The first chunks fill the cache, the others evict.
        n, start = (size // 4, i * (size // 4)) if i < 4 else (chunk, size + (i - 4) * chunk)
        key, value = torch.randn(2, n, width, 5), torch.randn(2, n, width, 5)
        arguments = {"key": key, "value": value, "current_chunk_start": start}
        wanted = naive_update_and_get_attention_kv(pair[0], **arguments)
        for cache in pair[1:]:
            got = cache.update_and_get_attention_kv(**arguments)
            assert got[2:] == wanted[2:]
            assert torch.equal(got.k, wanted.k)
            assert torch.equal(got.v, wanted.v)


def packed(bits: int, dtype: torch.dtype = torch.float32, **changed: Any) -> QVGPackedCausalKVCache:
    settings: dict[str, Any] = {"sink_tokens": 8, "attention_window_size": 40, "cache_size": 40} | changed
    return QVGPackedCausalKVCache(
        batch_size=1,
        num_heads=2,
        head_dim=16,
        dtype=dtype,
        device="cpu",
        global_end_index=torch.zeros(1, dtype=torch.int64),
        local_end_index=torch.zeros(1, dtype=torch.int64),
        use_int_indices=True,
        quant_args={"bits": bits},
        **settings,
    )


@pytest.mark.parametrize("recent", [None, 16])
@pytest.mark.parametrize("bits", [8, 16])
def test_the_packed_cache_beside_the_dense_one(bits: int, recent: int | None):
    """Eight chunks of eight tokens, three steps each: the same tokens, rounded where they are packed."""
    torch.manual_seed(bits)
    some = packed(bits)
    dense = CausalSelfAttentionKVCache(
        torch.zeros(1, 40, 2, 16),
        torch.zeros(1, 40, 2, 16),
        torch.zeros(1, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int64),
        sink_tokens=8,
        global_sink_tokens=8,
    )
    for i in range(8):
        for _ in range(3):
            key, value = torch.randn(1, 8, 2, 16), torch.randn(1, 8, 2, 16)
            arguments = {"key": key, "value": value, "current_chunk_start": 8 * i, "recent_window_tokens": recent}
            one, other = some.update_and_get_attention_kv(**arguments), dense.update_and_get_attention_kv(**arguments)
            assert one[2:] == (0, 8, min(8 * i + 8, 40), 8 * i + 8)
            for got, wanted in ((one.k, other.k), (one.v, other.v)):
                assert got.shape == wanted.shape
                if bits == 16:
                    assert torch.equal(got, wanted)
                else:
                    # Half a step of the largest magnitude of a row of normal numbers.
                    assert float((got - wanted).abs().max()) <= float(wanted.abs().max()) / 127
                    assert torch.equal(got[:, -8:], wanted[:, -8:])
    assert (some.global_end_index_int, some.local_end_index_int) == (64, 40)
    assert [s for s, _ in some.spans] == [0, 32, 40, 48, 56]


def test_a_packed_cache_takes_less_memory():
    some, whole = packed(8, torch.bfloat16), packed(16, torch.bfloat16)
    for cache in (some, whole):
        for i in range(5):
            chunk = torch.randn(1, 8, 2, 16).bfloat16()
            cache.update_and_get_attention_kv(key=chunk, value=chunk, current_chunk_start=8 * i)
    # 16 bytes of numbers and 4 of a scale in place of 32, but for the newest of five chunks.
    assert some.stored_bytes == whole.stored_bytes * (4 * 20 + 32) // (5 * 32)


def test_a_packed_cache_shows_the_heads_of_the_call():
    """H26: a slice comes back as a slice."""
    some = packed(8)
    for i in range(2):
        chunk = torch.randn(1, 8, 1, 16)
        view = some.update_and_get_attention_kv(key=chunk, value=chunk, current_chunk_start=8 * i, cache_head_start=1)
    assert view.k.shape == view.v.shape == (1, 16, 1, 16)
    some.reset_indices()
    assert (some.spans, some.head_slice, some.global_end_index_int) == ([], None, 0)


def test_packing_keeps_zeros_signs_and_the_largest_number():
    from tensorpact_kernels.causal_kv_cache.segments import pack

    rows = torch.tensor([[0.0, 0.0, 0.0], [1.0, -127.0, 64.0]]).view(1, 2, 1, 3)
    assert torch.equal(pack(rows).unpacked(0, 2, torch.float32), rows)


def test_what_the_caller_does_to_a_chunk_afterwards_is_not_seen():
    some = packed(8)
    chunk = torch.ones(1, 8, 2, 16)
    some.update_and_get_attention_kv(key=chunk, value=chunk, current_chunk_start=0)
    chunk.zero_()
    view = some.update_and_get_attention_kv(key=chunk, value=chunk, current_chunk_start=8)
    assert bool((view.k[:, :8] == 1).all())
