"""Entry points with their contracts on a GPU: no synchronisation, CUDA graphs, devices named."""

import pytest
import torch

import tensorpact
from tensorpact_kernels import sparse_attn_v4_paged_decode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]


@pytest.fixture
def arguments():
    tokens, heads, dim, keys, rows = 8, 16, 512, 20, 64
    return {
        "q": torch.randn(tokens, heads, dim, device="cuda").bfloat16(),
        "unified_kv": torch.randn(rows, dim, device="cuda").bfloat16(),
        "kv_indices": torch.randint(0, rows, (tokens * keys,), device="cuda", dtype=torch.int32),
        "kv_indptr": torch.arange(0, tokens * keys + 1, keys, device="cuda", dtype=torch.int32),
        "attn_sink": torch.randn(heads, device="cuda"),
        "softmax_scale": dim**-0.5,
    }


def error_of(out, arguments):
    with tensorpact.use_backend("naive"):
        right = sparse_attn_v4_paged_decode(**arguments).double()
    return ((out.double() - right).norm() / right.norm()).item()


def test_no_call_synchronises_remembered_or_not(arguments):
    sparse_attn_v4_paged_decode(**arguments)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(30):
            out = sparse_attn_v4_paged_decode(**arguments)
        with pytest.raises(ValueError, match=r"^attn_sink must hold one logit for each of the 16 heads"):
            sparse_attn_v4_paged_decode(**{**arguments, "attn_sink": arguments["attn_sink"][:4]})
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert error_of(out, arguments) < 1e-2


def test_passing_and_failing_calls_inside_a_capture(arguments):
    sparse_attn_v4_paged_decode(**arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = sparse_attn_v4_paged_decode(**arguments)
        with pytest.raises(ValueError, match=r"^attn_sink must hold"):
            sparse_attn_v4_paged_decode(**{**arguments, "attn_sink": arguments["attn_sink"][:4]})
    out.fill_(float("nan"))
    graph.replay()
    assert error_of(out, arguments) < 1e-2


def test_a_tensor_on_another_device_is_named(arguments):
    with pytest.raises(ValueError, match=r"on the device of q, cuda:0; elsewhere: attn_sink\n"):
        sparse_attn_v4_paged_decode(**{**arguments, "attn_sink": arguments["attn_sink"].cpu()})


def test_compiled_by_torch(arguments):
    compiled = torch.compile(sparse_attn_v4_paged_decode, fullgraph=True)
    assert error_of(compiled(**arguments), arguments) < 1e-2


@pytest.mark.parametrize("heads", [3, 64])
def test_no_columns_still_give_the_log_denominators(heads):
    arguments = {
        "q": torch.randn(2, heads, 0, device="cuda").half(),
        "unified_kv": torch.randn(4, 0, device="cuda").half(),
        "kv_indices": torch.tensor([0, 1, 3], device="cuda", dtype=torch.int32),
        "kv_indptr": torch.tensor([0, 1, 3], device="cuda", dtype=torch.int32),
        "attn_sink": torch.randn(heads, device="cuda"),
        "softmax_scale": 0.5,
        "return_lse": True,
    }
    lse = sparse_attn_v4_paged_decode(**arguments)[1]
    with tensorpact.use_backend("naive"):
        torch.testing.assert_close(lse, sparse_attn_v4_paged_decode(**arguments)[1])
