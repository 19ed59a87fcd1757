"""Inputs that broke an earlier state of the engine, each kept as a test."""

from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
import torch
import torch._dynamo
from jaxtyping import Float, Int
from torch import Tensor

import tensorpact
from tensorpact import Contract, ContractDefinitionError, ContractViolation, DocumentedError, contract
from tensorpact.clauses import require, same_dtype, shape
from tensorpact.constraints import Aligned, DenseLast

T = torch.zeros


@pytest.fixture(params=("compiled", "beartype"))
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both enforcing modes."""
    with tensorpact.enforcement(request.param):
        yield request.param


class Both(TypedDict):
    """Two keys that must be there."""

    a: Float[Tensor, " n"]
    b: Float[Tensor, " n"]


class Either(TypedDict, total=False):
    """Two keys that may be there."""

    a: Float[Tensor, " n"]
    b: Float[Tensor, " n"]


def test_missing_and_optional_keys(mode: str) -> None:
    @contract
    def f(x: Both, y: Float[Tensor, " n"], z: Either) -> str:
        return "ran"

    assert f({"a": T(2), "b": T(2)}, T(2), {}) == "ran"
    assert f({"a": T(2), "b": T(2)}, T(2), {"b": T(2)}) == "ran"
    with pytest.raises(TypeError, match=r"^x: expected dict with the keys a, b, got dict"):
        f({"a": T(2)}, T(2), {})
    with pytest.raises(ValueError, match=r"^z\['b'\]: axis 0 \(n\) is 9"):
        f({"a": T(2), "b": T(2)}, T(2), {"b": T(9)})


def test_a_union_of_two_lists(mode: str) -> None:
    @contract
    def f(x: list[Float[Tensor, " n"]] | list[Int[Tensor, " m"]], y: Float[Tensor, " n"]) -> str:
        return "ran"

    assert f([T(2)], T(2)) == "ran"
    assert f([T(5).int()], T(2)) == "ran"
    with pytest.raises(ValueError, match=r"^y: axis 0 \(n\) is 2, but n is 3 \(x\[0\] axis 0\)"):
        f([T(3)], T(2))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_after_a_remembered_signature() -> None:
    @contract
    def f(x: Float[Tensor, "a b"], y: Float[Tensor, " b"] | None = None) -> str:
        return "ran"

    for _ in range(30):
        f(T(3, 4), T(4))
    nested = torch.nested.nested_tensor([T(2), T(4)], layout=torch.strided)
    with pytest.raises(Exception, match=r"sizes|expected"):
        f(nested)
    with pytest.raises(Exception, match=r"sizes|expected"):
        f(T(3, 4), nested)


def test_two_contracts_on_one_function_are_refused() -> None:
    @contract
    def f(x: Float[Tensor, " n"]) -> str:
        return "ran"

    assert contract(f) is f
    with pytest.raises(ContractDefinitionError, match="has a contract already"):
        contract(Contract("f", clauses=[require(lambda n: n < 5)]))(f)


def test_equalities_that_could_prove_each_other(mode: str) -> None:
    made = Contract("f", clauses=[same_dtype("q", "k"), same_dtype("k", "q")])

    @contract(made)
    def f(q: Float[Tensor, " n"], k: Float[Tensor, " n"]) -> str:
        return "ran"

    with pytest.raises(TypeError):
        f(T(2).int(), T(2).int())


def test_mistakes_in_a_method_are_found_where_it_is_defined() -> None:
    with pytest.raises(ContractDefinitionError, match="'HH' is no parameter"):

        class Layer:
            @contract(Contract("f", clauses=[require(lambda HH: HH > 0)]))
            def f(self, x: Float[Tensor, " H"]) -> None: ...


def test_a_module_compiled_before_its_first_call() -> None:
    class Scale(torch.nn.Module):
        @contract
        def forward(
            self, x: Float[Tensor, "n 3"], sizes: tuple[int, int] = (1, 2), names: list[str] | None = None
        ) -> Tensor:
            return x * 2

    torch._dynamo.reset()
    compiled = torch.compile(Scale(), fullgraph=True, backend="eager")
    assert compiled(T(2, 3), (3, 4), ["a"]).shape == (2, 3)
    torch._dynamo.reset()


def test_the_message_under_fullgraph_names_the_function() -> None:
    @contract
    def f(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Tensor:
        return x

    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"tensorpact guard .*\.f>|y: axis 0"):
        torch.compile(f, fullgraph=True, backend="eager")(T(2), T(3))
    torch._dynamo.reset()


def test_messages_hold_no_data(mode: str) -> None:
    @contract(Contract("f", clauses=[require(lambda xs: len(xs) > 5)]))
    def f(xs: Any) -> None: ...

    with pytest.raises(ValueError, match=r"requirement 0 of f does not hold: xs=<list>"):
        f([T(3)])


def test_constraints_on_other_arrays_are_refused() -> None:
    with pytest.raises(ContractDefinitionError, match="another array class"):

        @contract
        def f(x: Annotated[Float[np.ndarray, "n m"], DenseLast()]) -> None: ...


def test_sparse_tensors_under_a_layout_constraint(mode: str) -> None:
    @contract
    def f(x: Annotated[Float[Tensor, "n m"], DenseLast()]) -> None: ...

    with pytest.raises(ContractViolation, match=r"^x: "):
        f(torch.eye(3).to_sparse())


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda: shape("q", error="boo"), id="error-is-text"),  # type: ignore[arg-type]
        pytest.param(lambda: Aligned(0), id="aligned-to-nothing"),
        pytest.param(lambda: DocumentedError("two", UnicodeDecodeError, "text"), id="class-of-several-arguments"),
        pytest.param(
            lambda: Contract(
                "f",
                clauses=[
                    require(lambda n: n, error=DocumentedError("same", ValueError, "one")),
                    require(lambda n: n, error=DocumentedError("same", ValueError, "other")),
                ],
            ),
            id="one-slug-for-two",
        ),
    ],
)
def test_mistakes_of_an_author(wrong: Any) -> None:
    with pytest.raises(ContractDefinitionError):
        wrong()


def test_a_dim_called_like_a_function(mode: str) -> None:
    @contract
    def f(x: Float[Tensor, "in len max"], y: Float[Tensor, "max(len,3)"]) -> str:
        return "ran"

    assert f(T(1, 2, 3), T(3)) == "ran"
