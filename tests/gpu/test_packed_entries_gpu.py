"""The packed attention entry points with their contracts on a GPU: no wait for the device, capture, host values."""

import pytest
import torch

import tensorpact
from tensorpact_kernels import fused_infer_attention_varlen, fused_infer_attention_varlen_causal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]
BOUNDS = [0, 130, 130, 400, 433]


@pytest.fixture(params=[fused_infer_attention_varlen, fused_infer_attention_varlen_causal], ids=["full", "causal"])
def entry(request):
    return request.param


@pytest.fixture
def arguments():
    q, k, v = (torch.randn(433, heads, 128, device="cuda").bfloat16() for heads in (8, 2, 2))
    ends = torch.tensor(BOUNDS, dtype=torch.int32, device="cuda")
    return {"q": q, "k": k, "v": v, "cu_seqlens_q": ends, "cu_seqlens_k": ends}


def check(entry, out, arguments):
    with tensorpact.use_backend("naive"):
        right = entry(**arguments)
    assert (out.double() - right.double()).norm() / right.double().norm() < 1e-2


def test_no_call_waits_for_the_device(entry, arguments):
    entry(**arguments)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(30):
            out = entry(**arguments)
        entry(**arguments, cu_seqlens_q_host=BOUNDS, cu_seqlens_k_host=tuple(BOUNDS))
        with pytest.raises(ValueError, match="must end at the packed token count 433, got 400"):
            entry(**arguments, cu_seqlens_k_host=[0, 130, 130, 390, 400])
        # Numbers that are on the device alone are not read: nothing is said, and nothing outside the tensors is read.
        entry(**{**arguments, "cu_seqlens_q": arguments["cu_seqlens_q"].flip(0)})
    finally:
        torch.cuda.set_sync_debug_mode("default")
    check(entry, out, arguments)


def test_boundaries_may_lie_on_the_cpu_and_are_checked_there(entry, arguments):
    wanted = entry(**arguments)
    ends = torch.tensor(BOUNDS)
    assert torch.equal(entry(**{**arguments, "cu_seqlens_q": ends, "cu_seqlens_k": ends}), wanted)
    with pytest.raises(ValueError, match="cu_seqlens_q must be non-decreasing"):
        entry(**{**arguments, "cu_seqlens_q": torch.tensor([0, 300, 130, 400, 433])})


def test_passing_and_failing_calls_inside_a_capture(entry, arguments):
    entry(**arguments, return_softmax_lse=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = entry(**arguments, return_softmax_lse=True)
        with pytest.raises(ValueError, match="matching K/V token and head counts"):
            entry(**{**arguments, "v": arguments["v"][:, :1]})
    for bounds in (BOUNDS, [0, 1, 2, 300, 433]):
        arguments["cu_seqlens_q"].copy_(torch.tensor(bounds))
        out.fill_(float("nan"))
        lse.fill_(float("nan"))
        graph.replay()
        check(entry, out, arguments)
        assert lse.isfinite().all()


def test_compiled_by_torch(entry, arguments):
    compiled = torch.compile(lambda **given: entry(**given) * 1, fullgraph=True)
    check(entry, compiled(**arguments), arguments)


def test_several_streams(entry, arguments):
    streams = [torch.cuda.Stream() for _ in range(4)]
    outs = []
    torch.cuda.synchronize()
    for stream in streams * 5:
        with torch.cuda.stream(stream):
            outs.append(entry(**arguments))
    torch.cuda.synchronize()
    for out in outs:
        check(entry, out, arguments)


def test_a_copy_is_compared_where_calls_wait(entry, arguments):
    last = arguments["cu_seqlens_q"].tolist()
    stale = [0, *(n - (n == last[1]) for n in last[1:])]
    assert entry(**arguments, cu_seqlens_q_host=last) is not None
    with tensorpact.value_checks("sync"), pytest.raises(ValueError, match="its host copy hold different boundaries"):
        entry(**arguments, cu_seqlens_q_host=stale)
