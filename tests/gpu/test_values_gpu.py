"""Asynchronous checks of values on a GPU: no synchronisation, graphs, streams, threads, a context that stays usable."""

import gc
import threading

import pytest
import torch
from drained import drained
from jaxtyping import Float, Int
from reported_values import REPORTED, called, right_call
from torch import Tensor

import tensorpact
from tensorpact import Contract, ContractViolation, contract
from tensorpact._values import counts, pending
from tensorpact.clauses import (
    at_most,
    distinct,
    finite,
    less_than,
    live,
    nondecreasing,
    starts_at,
    upto,
    values,
    within,
)
from tensorpact_contracts import flash_attention, replayssm, sparse_prefill
from tensorpact_kernels import (
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    fused_infer_attention_varlen,
    fused_recurrent_kda_replayssm_decode,
    sparse_attn_v4_paged_decode,
    sparse_attn_v4_paged_prefill,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]


@contract(
    Contract(
        "gather",
        clauses=[
            values("indptr", starts_at(0), nondecreasing(), at_most("N")),
            values("indices", less_than("P"), active="indptr", padding="negative"),
        ],
    )
)
def gather(pool: Float[Tensor, "P D"], indices: Int[Tensor, " N"], indptr: Int[Tensor, " T+1"]) -> Tensor:
    return pool * 2


@contract(
    Contract(
        "paged",
        clauses=[
            values("lens", within(0, lambda M, page: M * page + 1)),
            values("table", within(0, "P"), active=upto("lens", per="page")),
            values("slots", distinct(), padding=-1),
            values("cursor", within(0, "page"), active=live("slots")),
            values("pool", finite()),
        ],
    )
)
def paged(
    pool: Float[Tensor, "P D"],
    table: Int[Tensor, "B M"],
    lens: Int[Tensor, " B"],
    slots: Int[Tensor, " B"],
    cursor: Int[Tensor, " B"],
    page: int,
) -> Tensor:
    return pool * 2


def ints(*numbers, dtype=torch.int32):
    return torch.tensor(numbers, dtype=dtype, device="cuda")


def page_arguments(rows=257, columns=33, page=16):
    lens = torch.randint(0, columns * page + 1, (rows,), device="cuda", dtype=torch.int32)
    return {
        "pool": torch.randn(1000, 64, device="cuda").bfloat16(),
        "table": torch.randint(0, 1000, (rows, columns), device="cuda", dtype=torch.int32),
        "lens": lens,
        "slots": torch.randperm(1000, device="cuda")[:rows].int(),
        "cursor": torch.randint(0, page, (rows,), device="cuda", dtype=torch.int32),
        "page": page,
    }


@pytest.fixture
def pool():
    return torch.randn(8, 4, device="cuda")


@pytest.fixture(autouse=True)
def checks():
    pending.forget()
    counts.clear()
    with tensorpact.value_checks("async"):
        yield
    torch.cuda.synchronize()
    pending.forget()


def test_a_violation_is_told_at_the_poll(pool):
    gather(pool, ints(0, 7, -1), ints(0, 2, 3))
    tensorpact.synchronize()
    gather(pool, ints(0, 9, -1), ints(0, 2, 3))
    with pytest.raises(ContractViolation, match=r"^indices\[1\] is 9, expected below P = 8") as caught:
        tensorpact.synchronize()
    assert caught.value.arguments["indices"].shape == (3,)
    assert (pool * 2).isfinite().all()
    assert drained() == []


BROKEN = {
    "lens": ((3,), 33 * 16 + 1, "lens[3] is 529, expected below 529"),
    "table": ((5, 0), 1000, "table[5, 0] is 1000, expected below P = 1000"),
    "cursor": ((256,), -1, "cursor[256] is -1, expected at least 0"),
    "pool": ((999, 63), float("nan"), "pool[999, 63] is nan, expected a finite number"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_kind_of_check(name):
    right = page_arguments()
    right["lens"][5] = 1
    paged(**right)
    assert drained() == []
    place, number, text = BROKEN[name]
    right[name][place] = number
    paged(**right)
    assert [str(e) for e in drained()] == [text]


def test_a_repeat_and_what_is_padding():
    right = page_arguments()
    right["slots"][40:60] = -1
    right["cursor"][40:60] = 99
    paged(**right)
    assert drained() == []
    right["slots"][200] = right["slots"][3]
    paged(**right)
    number = right["slots"][3].item()
    assert [str(e) for e in drained()] == [f"slots[200] is {number}, expected no number twice"]


def test_sync_raises_in_the_call(pool):
    with tensorpact.value_checks("sync"):
        gather(pool, ints(0, 7, -1), ints(0, 2, 3))
        with pytest.raises(ContractViolation, match=r"^indices\[1\] is 9") as caught:
            gather(pool, ints(0, 9, -1), ints(0, 2, 3))
        assert caught.value.call_number is None
    assert tensorpact.value_report().sync == 1


def test_off_reads_nothing(pool):
    with tensorpact.value_checks("off"):
        gather(pool, ints(9, 9, 9), ints(5, 2, 3))
    assert drained() == []
    assert tensorpact.value_report().launched == 0


@pytest.mark.parametrize("mode", ["off", "async"])
def test_no_call_synchronises(pool, mode):
    indices, indptr = ints(0, 7, -1), ints(0, 2, 3)
    gather(pool, indices, indptr)
    torch.cuda.synchronize()
    with tensorpact.value_checks(mode):
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(30):
                gather(pool, indices, indptr)
                tensorpact.poll()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert drained() == []


def test_a_replay_is_checked(pool):
    indices, indptr = ints(0, 7, -1), ints(0, 2, 3)
    gather(pool, indices, indptr)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gather(pool, indices, indptr)
    for _ in range(3):
        graph.replay()
    assert drained() == []
    indices[0] = 12
    graph.replay()
    (error,) = drained()
    assert str(error) == "indices[0] is 12, expected below P = 8"
    assert "in run 4 of the launch captured" in error.__notes__[-1]
    indices[0] = 2
    graph.replay()
    gather(pool, indices, indptr)
    assert drained() == []


def test_sync_leaves_a_capture_alone(pool):
    indices, indptr = ints(9, 7, -1), ints(0, 2, 3)
    graph = torch.cuda.CUDAGraph()
    with tensorpact.value_checks("sync"), torch.cuda.graph(graph):
        gather(pool, indices, indptr)
    graph.replay()
    assert tensorpact.value_report().skipped == {"a graph is being captured": 1}


def test_streams_and_threads(pool):
    gather(pool, ints(0, 7, -1), ints(0, 2, 3))
    assert drained() == []
    found, count = [], 25
    offsets = ints(0, 1, 1)

    def work(rows):
        stream, mine = torch.cuda.Stream(), torch.zeros(rows, 2, device="cuda")
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            for i in range(count):
                number = torch.full((1,), rows + i, dtype=torch.int32, device="cuda")
                for _ in range(50):
                    try:
                        gather(mine, number, offsets)
                        break
                    except ContractViolation as error:
                        found.append(error)
        stream.synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(rows,)) for rows in (100, 1000, 10000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found += drained()
    report = tensorpact.value_report()
    assert len(found) + report.dropped == report.launched - 1
    assert len({e.call_number for e in found}) == len(found)
    for error in found:
        rows = error.arguments["pool"].shape[0]
        number = int(str(error).split(" is ")[1].split(",")[0])
        assert rows <= number < rows + count


def test_many_violations_fill_the_mailbox_and_no_more(pool):
    from tensorpact._values.mailbox import RING

    gather(pool, ints(0, 7, -1), ints(0, 2, 3))
    assert drained() == []
    indices, indptr = ints(0, 9, -1), ints(0, 2, 3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gather(pool, indices, indptr)
    for _ in range(RING + 30):
        graph.replay()
    found = drained()
    assert (len(found), tensorpact.value_report().dropped) == (RING, 30)
    indices[1] = 3
    graph.replay()
    assert drained() == []


def test_tensors_may_die_before_the_poll(pool):
    for _ in range(20):
        gather(torch.zeros(8, 2, device="cuda"), ints(0, 9, -1), ints(0, 2, 3))
        break
    gc.collect()
    torch.cuda.synchronize()
    (error,) = drained()
    assert "indices[1] is 9" in str(error)


def prefill_arguments():
    tokens, heads, dim, rows, keys = 8, 16, 512, 64, 20
    return {
        "q": torch.randn(tokens, heads, dim, device="cuda").bfloat16(),
        "unified_kv": torch.randn(rows, dim, device="cuda").bfloat16(),
        "kv_indices_prefix": torch.randint(0, rows, (tokens * keys,), device="cuda", dtype=torch.int32),
        "kv_indptr_prefix": torch.arange(0, tokens * keys + 1, keys, device="cuda", dtype=torch.int32),
        "kv": torch.randn(tokens, dim, device="cuda").bfloat16(),
        "kv_indices_extend": torch.arange(tokens, device="cuda", dtype=torch.int32),
        "kv_indptr_extend": torch.arange(tokens + 1, device="cuda", dtype=torch.int32),
        "attn_sink": torch.randn(heads, device="cuda"),
        "softmax_scale": dim**-0.5,
    }


def decode_arguments():
    given = prefill_arguments()
    return {
        "q": given["q"],
        "unified_kv": given["unified_kv"],
        "kv_indices": given["kv_indices_prefix"],
        "kv_indptr": given["kv_indptr_prefix"],
        "attn_sink": given["attn_sink"],
        "softmax_scale": given["softmax_scale"],
    }


def replay_arguments():
    rows, heads, dim, length, slots = 16, 8, 128, 16, 40
    cuda = {"device": "cuda"}
    return {
        "mixed_qkv": torch.randn(rows, 3 * heads * dim, **cuda),
        "a": torch.randn(rows, heads, dim, **cuda),
        "b": torch.randn(rows, heads, **cuda),
        "A_log": torch.zeros(heads, **cuda),
        "dt_bias": torch.zeros(heads, dim, **cuda),
        "scale": dim**-0.5,
        "initial_state": torch.zeros(slots, heads, dim, dim, **cuda),
        "d_cache": torch.zeros(slots, heads, length, dim, **cuda),
        "k_cache": torch.zeros(slots, heads, length, dim, **cuda),
        "g_cache": torch.zeros(slots, heads, length, dim, **cuda),
        "out": torch.empty(rows, 1, heads, dim, **cuda),
        "ssm_state_indices": torch.randperm(slots, **cuda)[:rows].int(),
        "write_pos": torch.randint(0, length, (rows,), dtype=torch.int32, **cuda),
    }


def packed_arguments():
    ends = ints(0, 30, 100)
    return {**{n: torch.randn(100, 8, 64, device="cuda").bfloat16() for n in "qkv"}, "cu_seqlens_q": ends,
            "cu_seqlens_k": ends.clone()}  # fmt: skip


def cached_arguments():
    """Sixteen sequences with up to 80 tokens in pages of sixteen."""
    pages = torch.randperm(96, device="cuda").int()
    return {
        "q": torch.randn(16, 1, 8, 128, device="cuda").bfloat16(),
        "k_cache": torch.randn(96, 16, 2, 128, device="cuda").bfloat16(),
        "v_cache": torch.randn(96, 16, 2, 128, device="cuda").bfloat16(),
        "page_table": torch.nn.functional.pad(pages[:80].view(16, 5), (0, 3), value=-1),
        "cache_seqlens": torch.randint(65, 80, (16,), device="cuda", dtype=torch.int32),
        "k": torch.randn(16, 1, 2, 128, device="cuda").bfloat16(),
        "v": torch.randn(16, 1, 2, 128, device="cuda").bfloat16(),
        "causal": True,
    }


def sequence_arguments():
    return {**packed_arguments(), "max_seqlen_q": 70, "max_seqlen_k": 70, "causal": True}


ENTRIES = {
    "R35": (flash_attn_with_kvcache, cached_arguments, "cache_seqlens", 7, 129, flash_attention.LENGTHS_RANGE),
    "R35-new-rows": (flash_attn_with_kvcache, cached_arguments, "cache_seqlens", 7, 128, flash_attention.APPEND_RANGE),
    "R37": (flash_attn_with_kvcache, cached_arguments, "page_table", (3, 4), 96, flash_attention.PAGE_RANGE),
    "R37-negative": (flash_attn_with_kvcache, cached_arguments, "page_table", (15, 0), -1, flash_attention.PAGE_RANGE),
    "R29": (flash_attn_varlen_func, sequence_arguments, "cu_seqlens_q", 0, 1, flash_attention.BOUNDARIES_ORDER),
    "R31": (flash_attn_varlen_func, sequence_arguments, "cu_seqlens_k", 2, 300, flash_attention.BOUNDARIES_END),
    "R34": (flash_attn_varlen_func, sequence_arguments, "cu_seqlens_q", 1, 20, flash_attention.LONGER),
    "R39": (sparse_attn_v4_paged_prefill, prefill_arguments, "kv_indices_prefix", 7, 64, sparse_prefill.INDEX_RANGE),
    "R38": (sparse_attn_v4_paged_decode, decode_arguments, "kv_indptr", 8, 161, sparse_prefill.INDPTR_VALUES),
    "R40": (
        fused_recurrent_kda_replayssm_decode, replay_arguments, "ssm_state_indices", 2, 40, replayssm.SLOT_RANGE
    ),
    "R41": (fused_recurrent_kda_replayssm_decode, replay_arguments, "write_pos", 2, 16, replayssm.WRITE_POS_RANGE),
}  # fmt: skip


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_point_survives_what_it_reports(name):
    function, make, tensor, place, number, error = ENTRIES[name]
    given = make()
    function(**given)
    assert drained() == []
    given[tensor][place] = number
    function(**given)
    (found,) = drained()
    assert found.error is error
    given = make()
    function(**given)
    assert drained() == []


def test_packed_attention_is_checked_in_device_memory():
    given = packed_arguments()
    fused_infer_attention_varlen(**given)
    assert drained() == []
    given["cu_seqlens_k"][0] = 1
    fused_infer_attention_varlen(**given)
    (found,) = drained()
    assert str(found) == "cu_seqlens_k must start with 0 and contain at least one sequence"


@pytest.mark.parametrize("mode", ["off", "async"])
@pytest.mark.parametrize("name", ["R39", "R38", "R40", "R35", "R31"])
def test_no_entry_point_synchronises(name, mode):
    function, make, *_ = ENTRIES[name]
    given = make()
    function(**given)
    torch.cuda.synchronize()
    with tensorpact.value_checks(mode):
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(20):
                function(**given)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert drained() == []


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", REPORTED)
def test_a_reported_number_in_device_memory(name, mode):
    _, _, error, text = REPORTED[name]
    function, given = called(name, "cuda")
    with tensorpact.value_checks(mode):
        if mode == "sync" and error is not None:
            with pytest.raises(ContractViolation) as caught:
                function(**given)
            found = [caught.value]
        else:
            function(**given)
            found = drained()
        assert [(e.error, str(e), e.call_number is None) for e in found] == (
            [] if error is None else [(error, text, mode == "sync")]
        )
        function, given = right_call(name, "cuda")
        function(**given)
        assert drained() == []
    assert tensorpact.value_report().skipped == {}


def test_a_replay_of_a_decode_is_checked():
    """Lengths grow by one in every replay, as in a decode loop, until a row is full."""
    given = cached_arguments()
    given["page_table"] = torch.arange(16 * 6, device="cuda", dtype=torch.int32).view(16, 6)
    given["cache_seqlens"].fill_(90)
    flash_attn_with_kvcache(**given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flash_attn_with_kvcache(**given)
        given["cache_seqlens"] += 1
    for _ in range(6):
        graph.replay()
    assert drained() == []
    graph.replay()
    (error,) = drained()
    assert error.error is flash_attention.APPEND_RANGE
    assert str(error) == "sequence 0 would have 97 tokens with its new ones, but a row has 96 slots"
    assert "in run 7 of the launch captured" in error.__notes__[-1]
