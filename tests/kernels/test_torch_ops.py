"""The entry points as operators of torch: torch's own check of each, the values of the entry point, and one node."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import EagerAndRecordGraphs
from torch_op_cases import CASES, fresh, prefill, replayssm, split

import tensorpact_kernels
from tensorpact import ContractViolation
from tensorpact_kernels import torch_ops

each_case = pytest.mark.parametrize(("name", "make", "more"), CASES.values(), ids=CASES)


def test_every_entry_function_is_an_operator():
    exported = {n for n in tensorpact_kernels.__all__ if inspect.isfunction(getattr(tensorpact_kernels, n))}
    # They hand back `out` where it is given and a new tensor where not, which no schema can say.
    either = {"flash_attn_with_kvcache", "flash_attn_varlen_func"}
    assert {n for n in exported if not n.startswith("helion_")} == set(torch_ops.__all__) | either


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


def test_documented_errors_are_those_of_the_entry_point():
    wrong = prefill(kv=torch.ones(5, 8, dtype=torch.bfloat16))
    with pytest.raises(ContractViolation) as plain:
        tensorpact_kernels.sparse_attn_v4_paged_prefill(**wrong)
    with pytest.raises(ContractViolation) as error:
        torch_ops.sparse_attn_v4_paged_prefill(**wrong)
    assert (type(error.value), str(error.value)) == (type(plain.value), str(plain.value))
    assert error.value.error is plain.value.error


@pytest.mark.parametrize("name", ["prefill with lse, heads first", "replayssm", "varlen with lse"])
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
