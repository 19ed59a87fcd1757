"""Kernels that report what they mask, on a GPU: what is told, in calls and in replays, and that nobody waits."""

import pytest
import torch
from drained import drained

pytest.importorskip("triton")

import hostile

import tensorpact
from tensorpact._values import counts, pending
from tensorpact_contracts import flash_attention, packed_attention, replayssm, sparse_prefill
from tensorpact_kernels import (
    flash_attn_with_kvcache,
    fused_infer_attention_varlen,
    fused_recurrent_kda_packed_decode,
    fused_recurrent_kda_replayssm_decode,
    sparse_attn_v4_paged_decode,
    sparse_attn_v4_paged_prefill,
)
from tensorpact_kernels.flash_attention import launch_hopper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]
SPARSE = {"softmax_scale": 0.3}
KDA = {"scale": 0.4, "use_qk_l2norm_in_kernel": True}


def prefill(device):
    return sparse_attn_v4_paged_prefill, hostile.sparse_prefill(device).arguments | SPARSE


def decode(device):
    return sparse_attn_v4_paged_decode, hostile.sparse_decode(device).arguments | SPARSE


def wide_prefill(device):
    scenario = hostile.sparse_prefill(device, heads=64, dim=512, dtype=torch.bfloat16)
    return sparse_attn_v4_paged_prefill, scenario.arguments | SPARSE


def narrow_decode(device):
    scenario = hostile.sparse_decode(device, heads=16, dim=512, dtype=torch.bfloat16, index=torch.int64)
    return sparse_attn_v4_paged_decode, scenario.arguments | SPARSE


def prefill_of_128_columns(device):
    scenario = hostile.sparse_prefill(device, heads=64, dim=128, dtype=torch.bfloat16)
    return sparse_attn_v4_paged_prefill, scenario.arguments | SPARSE


def replay(device):
    return fused_recurrent_kda_replayssm_decode, hostile.kda(device).arguments | KDA


def staged_replay(device):
    return fused_recurrent_kda_replayssm_decode, hostile.kda(device, key_dim=64, value_dim=64).arguments | KDA


def state(device):
    return fused_recurrent_kda_packed_decode, hostile.kda(device, ring=0).arguments | KDA


def packed(device):
    return fused_infer_attention_varlen, hostile.packed(device).arguments


def packed_in_pieces(device):
    return fused_infer_attention_varlen, hostile.packed(device, dims=(64, 64), dtype=torch.bfloat16).arguments


CASES = {
    "prefix-index": (prefill, "kv_indices_prefix", 11, 23, sparse_prefill.INDEX_RANGE, "[11] is 23"),
    "extend-index": (prefill, "kv_indices_extend", 4, 2**31 - 1, sparse_prefill.INDEX_RANGE, "[4] is 2147483647"),
    "prefix-offset": (prefill, "kv_indptr_prefix", 3, 5, sparse_prefill.INDPTR_VALUES, "[3] is 5"),
    "extend-offset": (prefill, "kv_indptr_extend", 0, -1, sparse_prefill.INDPTR_VALUES, "[0] is -1"),
    "index": (decode, "kv_indices", 40, 500, sparse_prefill.DECODE_INDEX_RANGE, "[40] is 500"),
    "offset": (decode, "kv_indptr", 5, 61, sparse_prefill.INDPTR_VALUES, "[5] is 61"),
    "wide-extend-index": (wide_prefill, "kv_indices_extend", 4, 9, sparse_prefill.INDEX_RANGE, "[4] is 9"),
    "wide-extend-offset": (wide_prefill, "kv_indptr_extend", 5, 99, sparse_prefill.INDPTR_VALUES, "[5] is 99"),
    "narrow-index": (
        narrow_decode,
        "kv_indices",
        40,
        2**40,
        sparse_prefill.DECODE_INDEX_RANGE,
        "[40] is 1099511627776",
    ),
    "narrow-offset": (narrow_decode, "kv_indptr", 2, -9, sparse_prefill.INDPTR_VALUES, "[2] is -9"),
    "128-columns": (prefill_of_128_columns, "kv_indices_prefix", 11, 23, sparse_prefill.INDEX_RANGE, "[11] is 23"),
    "slot": (replay, "ssm_state_indices", 4, 13, replayssm.SLOT_RANGE, "[4]` is 13"),
    "cursor": (replay, "write_pos", 3, -1, replayssm.WRITE_POS_RANGE, "[3]` is -1"),
    "staged-slot": (staged_replay, "ssm_state_indices", 4, 13, replayssm.SLOT_RANGE, "[4]` is 13"),
    "staged-cursor": (staged_replay, "write_pos", 3, 4, replayssm.WRITE_POS_RANGE, "[3]` is 4"),
    "state-slot": (state, "ssm_state_indices", 0, 10**6, replayssm.SLOT_RANGE, "[0]` is 1000000"),
    "start": (packed, "cu_seqlens_q", 0, 1, packed_attention.BOUNDARIES_START, "cu_seqlens_q must start with 0"),
    "order": (packed, "cu_seqlens_k", 2, 0, packed_attention.BOUNDARIES_ORDER, "cu_seqlens_k must be non-decreasing"),
    "end": (packed_in_pieces, "cu_seqlens_k", 4, 51, packed_attention.BOUNDARIES_END, "got 51"),
}


@pytest.fixture(autouse=True)
def reports():
    pending.forget()
    counts.clear()
    with tensorpact.value_checks("off", in_kernel=True):
        yield
    torch.cuda.synchronize()
    pending.forget()


@pytest.mark.parametrize("name", CASES)
def test_what_is_masked_is_told_once(name):
    make, tensor, place, number, error, text = CASES[name]
    function, given = make("cuda")
    right = given[tensor].clone()
    # The first launch is compiled, later ones are started again.
    for _ in range(3):
        function(**given)
        assert drained() == []
        given[tensor][place] = number
        function(**given)
        (found,) = drained()
        assert found.error is error
        assert text in str(found)
        assert "found in the kernel of call" in found.__notes__[-1]
        given[tensor].copy_(right)
    assert tensorpact.value_report().in_kernel == 6
    assert tensorpact.value_report().launched == 0


@pytest.mark.parametrize("name", CASES)
def test_a_replay_tells_again_when_it_was_read(name):
    make, tensor, place, number, error, _ = CASES[name]
    function, given = make("cuda")
    right = given[tensor].clone()
    function(**given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function(**given)
    graph.replay()
    assert drained() == []
    for _ in range(2):
        given[tensor][place] = number
        for _ in range(3):
            graph.replay()
        (found,) = drained()
        assert found.error is error
        assert "captured as call 2" in found.__notes__[-1]
        given[tensor].copy_(right)
        graph.replay()
        assert drained() == []


@pytest.mark.parametrize(
    "make", [prefill, decode, wide_prefill, narrow_decode, replay, staged_replay, state, packed, packed_in_pieces]
)
def test_nobody_waits(make):
    function, given = make("cuda")
    function(**given)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            function(**given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert drained() == []


@pytest.mark.parametrize(
    ("tensor", "place", "number"),
    [("page_table", 1, 19), ("page_table", 0, -3), ("cache_seqlens", 1, 21), ("cache_seqlens", 2, -1)],
)
def test_pages_and_lengths_of_a_cache(tensor, place, number):
    given = hostile.paged("cuda").arguments
    flash_attn_with_kvcache(**given, causal=True)
    assert drained() == []
    assert tensorpact.value_report().in_kernel == 1
    given[tensor].view(-1)[place] = number
    flash_attn_with_kvcache(**given, causal=True)
    (found,) = drained()
    assert f"is {number}" in str(found)
    assert str(found).startswith(f"{tensor}[")


@pytest.mark.parametrize(("heads", "dim"), [(16, 512), (128, 512), (16, 128), (64, 128), (16, 256), (80, 256), (3, 96)])
@pytest.mark.parametrize("extends", [False, True])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_every_place_of_long_lists_is_looked_at(heads, dim, extends, index):
    """Lists of more indices than a program looks at in one step, in several splits, for one and two head blocks."""
    tokens, keys = 2, 2600
    indices = torch.randint(0, 99, (tokens * keys,), device="cuda", dtype=index)
    ends = hostile.ints(0, keys - 70, tokens * keys, dtype=index, device="cuda")
    given = {
        "q": hostile.floats(tokens, heads, dim, dtype=torch.bfloat16, device="cuda"),
        "unified_kv": hostile.floats(99, dim, dtype=torch.bfloat16, device="cuda"),
        "attn_sink": hostile.floats(heads, dtype=torch.float32, device="cuda"),
        **SPARSE,
    }
    if extends:
        function, names = sparse_attn_v4_paged_prefill, ("kv_indices_prefix", "kv_indices_extend")
        given |= {"kv_indices_prefix": indices, "kv_indptr_prefix": ends, "kv_indices_extend": indices.clone()}
        given |= {"kv": given["unified_kv"].clone(), "kv_indptr_extend": ends.clone()}
    else:
        function, names = sparse_attn_v4_paged_decode, ("kv_indices",)
        given |= {"kv_indices": indices, "kv_indptr": ends}
    function(**given)
    assert drained() == []
    for name in names:
        for place in (0, 63, 64, 1023, 1024, 2529, 2530, 3553, 3554, 5135, 5199):
            right = int(given[name][place])
            given[name][place] = 99 + place
            reported = function(**given)
            (found,) = drained()
            assert str(found).startswith(f"{name}[{place}] is {99 + place}"), str(found)
            with tensorpact.value_checks("off", in_kernel=False):
                assert torch.equal(function(**given), reported)
            given[name][place] = right


# Decode on Hopper: columns of queries and of values, query heads and key heads. The last has a kernel of its own.
DECODES = {"128": (128, 128, 8, 2), "wide-values": (64, 512, 16, 1), "many-heads": (64, 512, 64, 1)}
PAGE, COLUMNS, PAGES, LENGTHS = 64, 9, 49, (200, 560, 1, 448, 64)
FLASH_CASES = {
    "page-past": ("page_table", (1, 8), PAGES, "PAGE_RANGE", f"page_table[1, 8] is {PAGES}, but"),
    "page-far": ("page_table", (3, 0), 2**31 - 1, "PAGE_RANGE", "page_table[3, 0] is 2147483647, but"),
    "page-negative": ("page_table", (4, 0), -1, "PAGE_RANGE", "page_table[4, 0] is -1, but"),
    "length-long": ("cache_seqlens", 1, 577, "LENGTHS_RANGE", "cache_seqlens[1] is 577, but"),
    "length-negative": ("cache_seqlens", 2, -3, "LENGTHS_RANGE", "cache_seqlens[2] is -3, but"),
    "appended": ("cache_seqlens", 3, 576, "APPEND_RANGE", "sequence 3 would have 577 tokens"),
    "row-past": ("cache_batch_idx", 4, 7, "CACHE_ROW_RANGE", "cache_batch_idx[4] is 7, expected"),
    "row-negative": ("cache_batch_idx", 0, -2, "CACHE_ROW_RANGE", "cache_batch_idx[0] is -2, expected"),
}


def flash_decode(kind, *, rows=False, new=False):
    dim, value_dim, heads, key_heads = DECODES[kind]
    half, batch = torch.bfloat16, len(LENGTHS)
    shape = (7, PAGE * COLUMNS) if rows else (PAGES, PAGE)
    given = {
        "q": hostile.floats(batch, 1, heads, dim, dtype=half, device="cuda"),
        "k_cache": hostile.floats(*shape, key_heads, dim, dtype=half, device="cuda"),
        "v_cache": hostile.floats(*shape, key_heads, value_dim, dtype=half, device="cuda"),
        "cache_seqlens": hostile.ints(*LENGTHS, device="cuda"),
    }
    if rows:
        given["cache_batch_idx"] = hostile.ints(5, 0, 2, 6, 1, device="cuda")
    else:
        order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(3))[: batch * COLUMNS]
        given["page_table"] = order.view(batch, COLUMNS).int().cuda()
    if new:
        given["k"] = hostile.floats(batch, 1, key_heads, dim, dtype=half, device="cuda", seed=1)
        given["v"] = hostile.floats(batch, 1, key_heads, value_dim, dtype=half, device="cuda", seed=1)
    return given


@pytest.fixture
def on_hopper(monkeypatch):
    """Takes the Hopper kernels wherever they apply, and says how often that was."""
    if not hostile.hopper_runs():
        pytest.skip("needs a Hopper device and a Triton with the Gluon that its kernels use")
    launched, attend = [], launch_hopper.attend

    def attend_and_note(*call):
        launched.append(call)
        attend(*call)

    monkeypatch.setattr(launch_hopper, "attend", attend_and_note)
    return launched


@pytest.mark.parametrize("kind", DECODES)
@pytest.mark.parametrize("name", FLASH_CASES)
@pytest.mark.parametrize("splits", [1, 3])
def test_what_a_decode_on_hopper_masks_is_told(on_hopper, kind, name, splits):
    tensor, place, number, error, text = FLASH_CASES[name]
    given = flash_decode(kind, rows=name.startswith("row"), new=name == "appended")
    given["num_splits"] = splits
    clean = flash_attn_with_kvcache(**given)
    assert drained() == []
    given[tensor][place] = number
    masked = flash_attn_with_kvcache(**given)
    (found,) = drained()
    assert found.error is getattr(flash_attention, error)
    assert str(found).startswith(text)
    assert "found in the kernel of call" in found.__notes__[-1]
    others = [s for s in range(len(LENGTHS)) if s != (place[0] if isinstance(place, tuple) else place)]
    assert torch.equal(masked[others], clean[others])
    assert masked.isfinite().all()
    with tensorpact.value_checks("off", in_kernel=False):
        assert torch.equal(flash_attn_with_kvcache(**given), masked)
    assert len(on_hopper) == 3
    assert tensorpact.value_report().in_kernel == 2


@pytest.mark.parametrize("kind", DECODES)
def test_nobody_waits_for_a_decode_on_hopper(on_hopper, kind):
    given = flash_decode(kind)
    flash_attn_with_kvcache(**given)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            flash_attn_with_kvcache(**given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert drained() == []
    assert len(on_hopper) == 21


def test_many_bad_numbers_are_one_record():
    function, given = decode("cuda")
    given["kv_indices"].fill_(99)
    function(**given)
    assert len(drained()) == 1
    assert tensorpact.value_report().dropped == 0


def test_results_are_those_without_a_flag():
    for make in (prefill, decode, wide_prefill, narrow_decode, packed):
        function, given = make("cuda")
        given[next(n for n in given if "ind" in n or "cu_" in n)][2] = 10**6
        reported = function(**given)
        assert len(drained()) == 1
        with tensorpact.value_checks("off", in_kernel=False):
            assert torch.equal(function(**given), reported)
