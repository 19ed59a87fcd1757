"""The entry points as operators of torch: torch's own check of each, the values of the entry point, and one node."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import EagerAndRecordGraphs
from torch_op_cases import CASES, appending, fresh, kvcache, latent, prefill, replayssm, split, varlen_func

import tensorpact_kernels
from tensorpact import ContractViolation
from tensorpact_kernels import torch_ops

each_case = pytest.mark.parametrize(("name", "make", "more"), CASES.values(), ids=CASES)


def test_every_entry_function_is_an_operator():
    exported = {n for n in tensorpact_kernels.__all__ if inspect.isfunction(getattr(tensorpact_kernels, n))}
    assert {n for n in exported if not n.startswith("helion_")} == set(torch_ops.__all__)


@each_case
def test_opcheck(name: str, make: Any, more: Any):
    op = getattr(torch_ops, name)
    args, kwargs = split(op, make(**more))
    assert set(torch.library.opcheck(op.overload, args, kwargs).values()) == {"SUCCESS"}


@each_case
def test_values_are_those_of_the_entry_point(name: str, make: Any, more: Any):
    plain, ours = fresh(make(**more)), fresh(make(**more))
    expected, result = getattr(tensorpact_kernels, name)(**plain), getattr(torch_ops, name)(**ours)
    assert type(result) is type(expected)
    pairs = zip(result, expected, strict=True) if isinstance(result, tuple) else [(result, expected)]
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    for argument, value in plain.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(ours[argument], value, rtol=0, atol=0, equal_nan=True)


def test_what_decodes_in_place_hands_back_what_it_was_given():
    arguments = replayssm()
    out, state = torch_ops.fused_recurrent_kda_replayssm_decode(**arguments)
    assert out is arguments["out"]
    assert state is arguments["initial_state"]
    assert not out.isnan().any()


WRONG = {
    "width of kv": ("sparse_attn_v4_paged_prefill", prefill(kv=torch.ones(5, 8, dtype=torch.bfloat16))),
    "length beyond the row": ("flash_attn_with_kvcache", kvcache(cache_seqlens=10)),
    "length that is a truth value": ("flash_attn_with_kvcache", kvcache(cache_seqlens=True)),
    "dtype of lengths": ("flash_attn_with_kvcache", kvcache(cache_seqlens=torch.tensor([4, 6]))),
    "window of three": ("flash_attn_with_kvcache", kvcache(window_size=(1, 2, 3))),
    "score_mod": ("flash_attn_with_kvcache", kvcache(score_mod=max)),
    "aux_tensors": ("flash_attn_with_kvcache", kvcache(aux_tensors=[torch.ones(1)])),
    "ver": ("flash_attn_with_kvcache", kvcache(ver=4)),
    "descale": ("flash_attn_with_kvcache", kvcache(k_descale=torch.ones(2, 2))),
    "shape of out": ("flash_attn_with_kvcache", kvcache(out=torch.ones(2, 3, 4, 13, dtype=torch.bfloat16))),
    "page table": ("flash_attn_varlen_func", varlen_func(page_table=torch.zeros(2, 3, dtype=torch.int32))),
    "no longest query": ("flash_attn_varlen_func", varlen_func(max_seqlen_q=None)),
    "window that is a number": ("flash_attn_varlen_func", varlen_func(window_size=3)),
}


@pytest.mark.parametrize(("name", "wrong"), WRONG.values(), ids=WRONG)
def test_documented_errors_are_those_of_the_entry_point(name: str, wrong: Any):
    with pytest.raises(ContractViolation) as plain:
        getattr(tensorpact_kernels, name)(**wrong)
    with pytest.raises(ContractViolation) as error:
        getattr(torch_ops, name)(**wrong)
    assert (type(error.value), str(error.value)) == (type(plain.value), str(plain.value))
    assert error.value.error is plain.value.error


# The operator takes one length a sequence, and what counts the sequences differs.
NUMBERS = {
    "rows": appending(cache_seqlens=5),
    "packed queries": latent(cache_seqlens=7, return_softmax_lse=True),
    "full rows": kvcache(cache_seqlens=None),
}


@pytest.mark.parametrize("arguments", NUMBERS.values(), ids=NUMBERS)
def test_lengths_may_be_a_number(arguments: Any):
    plain, ours = fresh(arguments), fresh(arguments)
    expected, result = tensorpact_kernels.flash_attn_with_kvcache(**plain), torch_ops.flash_attn_with_kvcache(**ours)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    torch.testing.assert_close(ours["v_cache"], plain["v_cache"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "arguments"), [("flash_attn_with_kvcache", kvcache()), ("flash_attn_varlen_func", varlen_func())]
)
def test_an_output_of_the_caller_is_refused(name: str, arguments: Any):
    out = torch.full((*arguments["q"].shape[:-1], arguments.get("v", arguments.get("v_cache")).shape[-1]), torch.nan)
    out = out.to(torch.bfloat16)
    with pytest.raises(TypeError, match=f"^tensorpact::{name} has no out: leave it None, as the operator does$"):
        getattr(torch_ops, name)(**arguments, out=out)
    assert out.isnan().all()


def test_the_schemas_of_flash_attention_say_what_is_written():
    written = {
        name: [a.name for a in getattr(torch_ops, name).overload._schema.arguments if a.alias_info is not None]
        for name in ("flash_attn_with_kvcache", "flash_attn_varlen_func")
    }
    assert written == {"flash_attn_with_kvcache": ["k_cache", "v_cache"], "flash_attn_varlen_func": []}


NODES = ["prefill with lse, heads first", "replayssm", "varlen with lse", "kvcache, paged, with lse"]


@pytest.mark.parametrize("name", [*NODES, "flash varlen, causal with lse"])
def test_a_compiled_call_is_one_node(name: str):
    torch._dynamo.reset()
    entry, make, more = CASES[name]
    op, backend = getattr(torch_ops, entry), EagerAndRecordGraphs()
    arguments = fresh(make(**more))
    compiled = torch.compile(lambda **given: op(**given), backend=backend, fullgraph=True, dynamic=False)
    result, expected = compiled(**arguments), getattr(tensorpact_kernels, entry)(**fresh(make(**more)))
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    (graph,) = backend.graphs
    nodes = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    assert [n for n in nodes if n.startswith("tensorpact.")] == [f"tensorpact.{entry}.default"]


def test_a_functionalised_graph_writes_the_cache():
    torch._dynamo.reset()
    arguments, plain = fresh(appending(cache_seqlens=5)), fresh(appending(cache_seqlens=5))

    def attend(**given: Any) -> Any:
        out, lse = torch_ops.flash_attn_with_kvcache(**given, causal=True, return_softmax_lse=True)
        return out * 2, lse

    out, lse = torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=False)(**arguments)
    expected = tensorpact_kernels.flash_attn_with_kvcache(**plain, causal=True, return_softmax_lse=True)
    torch.testing.assert_close((out, lse), (expected[0] * 2, expected[1]), rtol=0, atol=0)
    for cache in ("k_cache", "v_cache"):
        assert arguments[cache].equal(plain[cache])
        assert not arguments[cache].equal(appending()[cache])
