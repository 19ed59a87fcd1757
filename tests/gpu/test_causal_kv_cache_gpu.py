"""The causal KV cache on a GPU: the kernel beside the reference, no race, no stall, graphs, 64-bit addresses."""

import itertools

import pytest
import torch

import tensorpact
from tensorpact_kernels import CausalSelfAttentionKVCache, QVGPackedCausalKVCache
from tensorpact_kernels.causal_kv_cache.launch import ALONE, SHARED, Tile, shift_and_write_triton
from tensorpact_kernels.causal_kv_cache.naive import naive_update_and_get_attention_kv

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]
CUDA = torch.device("cuda")
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]


def numbers(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device=CUDA).to(dtype)


def bits(tensor):
    """Numbers as integers, so that NaN equals NaN and fp8 can be compared."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.contiguous().view(kinds[tensor.element_size()])


def made(slots, heads, dim, value_dim, dtype=torch.bfloat16, *, host=True, batch=2, **settings):
    return CausalSelfAttentionKVCache(
        torch.zeros(batch, slots, heads, dim, device=CUDA, dtype=dtype),
        torch.zeros(batch, slots, heads, value_dim, device=CUDA, dtype=dtype),
        torch.zeros(1, dtype=torch.int64, device=CUDA),
        torch.zeros(1, dtype=torch.int64, device=CUDA),
        *((0, 0) if host else (None, None)),
        **settings,
    )


@pytest.mark.parametrize("tile", [SHARED, ALONE, Tile(64, 32, 8), Tile(16, 128, 4), Tile(256, 16, 8)], ids=str)
@pytest.mark.parametrize("shift", [1, 2, 31, 32, 33, 100, 1000])
def test_a_move_in_place_is_the_copy_made_first(tile, shift):
    """Large enough that programs and warps run at different speeds; repeated, because a race need not show at once."""
    kept, tokens, heads, dims = 5003, 70, 5, (24, 40)
    slots = kept + shift + tokens + 3
    for _ in range(3):
        k, v = (numbers(2, slots, heads, d) for d in dims)
        key, value = (numbers(2, tokens, heads, d) for d in dims)
        wanted = [b.clone() for b in (k, v)]
        for buffer, old, fresh in zip(wanted, (k.clone(), v.clone()), (key, value), strict=True):
            buffer[:, 2 : 2 + kept] = old[:, 2 + shift : 2 + shift + kept]
            buffer[:, 2 + kept : 2 + kept + tokens] = fresh
        shift_and_write_triton(k, v, first=2, shift=shift, kept=kept, key=key, value=value, tile=tile)
        assert torch.equal(k, wanted[0])
        assert torch.equal(v, wanted[1])


@pytest.mark.parametrize("shift", [1, 7, 64, 500])
def test_a_move_to_the_right(shift):
    k, v = numbers(1, 4000, 8, 128), numbers(1, 4000, 8, 64)
    wanted = [b.clone() for b in (k, v)]
    for buffer in wanted:
        buffer[:, 3 + shift : 3 + shift + 3000] = buffer[:, 3:3003].clone()
    shift_and_write_triton(k, v, first=3 + shift + 2999, shift=shift, kept=3000, backward=True)
    assert torch.equal(k, wanted[0])
    assert torch.equal(v, wanted[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("headroom", [None, 0, 40, 300])
@pytest.mark.parametrize(("chunk", "sink"), [(1, 0), (9, 0), (9, 5), (40, 20), (70, 3)])
def test_updates_beside_the_reference(dtype, headroom, chunk, sink):
    settings = {"sink_tokens": sink, "global_sink_tokens": sink // 2}
    ours = made(150, 3, 24, 40, dtype, headroom=headroom, **settings)
    plain = made(150, 3, 24, 40, dtype, headroom=0, **settings)
    position = 0
    for i in range(12):
        n = 50 if i < 3 else chunk
        key, value = numbers(2, n, 3, 24, dtype=dtype), numbers(2, n, 3, 40, dtype=dtype)
        arguments = {"key": key, "value": value, "current_chunk_start": position}
        got, wanted = ours.update_and_get_attention_kv(**arguments), None
        wanted = naive_update_and_get_attention_kv(plain, **arguments)
        position += n
        assert got[2:] == wanted[2:]
        assert torch.equal(bits(got.k), bits(wanted.k))
        assert torch.equal(bits(got.v), bits(wanted.v))
    assert torch.equal(bits(ours.k), bits(plain.k))
    assert (int(ours.global_end_index), int(ours.local_end_index)) == (position, 150)


@pytest.mark.parametrize("headroom", [0, 500])
def test_a_slice_of_heads_and_free_strides(headroom):
    ours = made(64, 6, 32, 32, headroom=headroom)
    ours.k = torch.zeros(2, 6, 64, 32, device=CUDA, dtype=torch.bfloat16).transpose(1, 2)
    plain = made(64, 6, 32, 32, headroom=0)
    for cache in (ours, plain):
        cache.k.fill_(9)
    for i in range(8):
        key = numbers(2, 20, 12, 32)[:, :, 3:5]
        value = numbers(2, 2, 20, 32).transpose(1, 2)
        arguments = {"key": key, "value": value, "current_chunk_start": 20 * i, "cache_head_start": 3}
        got = ours.update_and_get_attention_kv(**arguments)
        wanted = naive_update_and_get_attention_kv(plain, **arguments)
        assert torch.equal(got.k, wanted.k)
        assert torch.equal(got.v, wanted.v)
    assert bool((ours.k[:, :, [0, 1, 2, 5]] == 9).all())


def test_slots_beyond_32_bits():
    """A buffer of more than 2**31 elements: the last slots, moved and written."""
    free, _ = torch.cuda.mem_get_info()
    slots, heads, dim = 2**31 // 1024 + 4096, 8, 128
    if free < 3 * slots * heads * dim:
        pytest.skip("needs 7 GB of free memory")
    k = torch.empty(1, slots, heads, dim, device=CUDA, dtype=torch.uint8).view(torch.float8_e4m3fn)
    v = torch.empty(1, slots, heads, 1, device=CUDA, dtype=torch.float8_e4m3fn)
    tail = torch.randint(0, 255, (1, 4096, heads, dim), device=CUDA, dtype=torch.uint8)
    k.view(torch.uint8)[:, -4096:] = tail
    key = torch.randint(0, 255, (1, 100, heads, dim), device=CUDA, dtype=torch.uint8)
    value = torch.zeros(1, 100, heads, 1, device=CUDA, dtype=torch.float8_e4m3fn)
    arguments = {"key": key.view(torch.float8_e4m3fn), "value": value}
    shift_and_write_triton(k, v, first=slots - 4096, shift=100, kept=3996, **arguments)
    got = k.view(torch.uint8)[:, -4096:]
    assert torch.equal(got[:, :3996], tail[:, 100:])
    assert torch.equal(got[:, 3996:], key)


@pytest.mark.parametrize("headroom", [None, 0])
def test_no_update_synchronises(headroom):
    cache = made(64, 4, 64, 64, headroom=headroom)
    chunk = numbers(2, 16, 4, 64)
    for i in range(6):
        cache.update_and_get_attention_kv(key=chunk, value=chunk, current_chunk_start=16 * i)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for i in range(6, 30):
            cache.update_and_get_attention_kv(key=chunk, value=chunk, current_chunk_start=16 * i)
        with pytest.raises(ValueError, match=r"^causal KV cache: the chunk starts at position 999"):
            cache.update_and_get_attention_kv(key=chunk, value=chunk, current_chunk_start=999)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_ends_on_the_card_are_read_once():
    cache = made(64, 4, 64, 64, host=False)
    chunk = numbers(2, 16, 4, 64)
    cache.update_and_get_attention_kv(key=chunk, value=chunk, current_chunk_start=0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        cache.update_and_get_attention_kv(key=chunk, value=chunk, current_chunk_start=16)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (cache.global_end_index_int, int(cache.global_end_index)) == (32, 32)


def test_without_headroom_a_step_can_be_captured():
    """The steady state writes the same slots in every step, so a graph of one step may be replayed."""
    ours, plain = made(64, 4, 64, 64, headroom=0), made(64, 4, 64, 64, headroom=0)
    chunk = numbers(2, 16, 4, 64)
    static = chunk.clone()
    position = 0
    for _ in range(6):
        for cache in (ours, plain):
            cache.update_and_get_attention_kv(key=chunk, value=chunk, current_chunk_start=position)
        position += 16
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view = ours.update_and_get_attention_kv(key=static, value=static, current_chunk_start=position)
    for _ in range(3):
        fresh = numbers(2, 16, 4, 64)
        static.copy_(fresh)
        graph.replay()
        wanted = plain.update_and_get_attention_kv(key=fresh, value=fresh, current_chunk_start=position)
        position += 16
        assert torch.equal(view.k, wanted.k)
        assert torch.equal(view.v, wanted.v)


def test_both_backends_in_turn():
    cache, plain = made(48, 4, 64, 64, headroom=20), made(48, 4, 64, 64, headroom=0)
    for i, backend in zip(range(12), itertools.cycle(("auto", "naive", "triton")), strict=False):
        key, value = numbers(2, 9, 4, 64), numbers(2, 9, 4, 64)
        with tensorpact.use_backend(backend):
            got = cache.update_and_get_attention_kv(key=key, value=value, current_chunk_start=9 * i)
        wanted = naive_update_and_get_attention_kv(plain, key=key, value=value, current_chunk_start=9 * i)
        assert torch.equal(got.k, wanted.k)
        assert torch.equal(got.v, wanted.v)


def test_the_packed_cache():
    some = QVGPackedCausalKVCache(
        batch_size=2,
        cache_size=40,
        num_heads=4,
        head_dim=64,
        dtype=torch.bfloat16,
        device="cuda",
        global_end_index=torch.zeros(1, dtype=torch.int64, device=CUDA),
        local_end_index=torch.zeros(1, dtype=torch.int64, device=CUDA),
        sink_tokens=8,
    )
    chunks = [numbers(2, 8, 4, 64) for _ in range(8)]
    for i, chunk in enumerate(chunks):
        view = some.update_and_get_attention_kv(key=chunk, value=chunk, current_chunk_start=8 * i)
    wanted = torch.cat([chunks[0], *chunks[4:]], 1)
    assert float((view.k - wanted).abs().max()) <= float(wanted.abs().max()) / 100
    assert torch.equal(view.k[:, -8:], chunks[-1])


def test_a_chunk_on_another_device_is_named():
    with pytest.raises(ValueError, match=r"^causal KV cache: the cache holds torch.bfloat16 on cuda:0, got key "):
        made(8, 2, 8, 8).update_and_get_attention_kv(
            key=torch.zeros(2, 1, 2, 8).bfloat16(), value=numbers(2, 1, 2, 8), current_chunk_start=0
        )
