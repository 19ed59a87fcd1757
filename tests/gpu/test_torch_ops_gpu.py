"""The entry points as operators of torch on a GPU: torch's own check of each, and the values of the reference."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_op_cases import CASES, fresh, split

from tensorpact_kernels import torch_ops

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def no_other_compiled_calls():
    """Dynamo compiles one function so many times; the cases that one process runs are more."""
    torch.compiler.reset()


def _moved(arguments: dict[str, Any], device: str) -> dict[str, Any]:
    return {n: v.to(device) if isinstance(v, Tensor) else v for n, v in arguments.items()}


@pytest.mark.parametrize(("name", "make", "more"), CASES.values(), ids=CASES)
def test_opcheck(name: str, make: Any, more: Any):
    op = getattr(torch_ops, name)
    args, kwargs = split(op, _moved(make(**more), "cuda"))
    assert set(torch.library.opcheck(op.overload, args, kwargs).values()) == {"SUCCESS"}


@pytest.mark.parametrize(("name", "make", "more"), CASES.values(), ids=CASES)
def test_a_compiled_call_gives_the_values_of_the_reference(name: str, make: Any, more: Any):
    op = getattr(torch_ops, name)
    expected = op(**fresh(make(**more)))
    compiled = torch.compile(lambda **given: op(**given), fullgraph=True, dynamic=False)
    result = compiled(**_moved(fresh(make(**more)), "cuda"))
    assert type(result) is type(expected)
    pairs = zip(result, expected, strict=True) if isinstance(result, tuple) else [(result, expected)]
    for one, other in pairs:
        torch.testing.assert_close(one.cpu(), other, rtol=2e-2, atol=2e-2)
