"""Named axes: an order that sizes cannot show, said where a tensor is made and compared where it is passed."""

import copy
import pickle
from typing import Annotated, Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from tensorpact import (
    Contract,
    ContractDefinitionError,
    ContractViolation,
    DocumentedError,
    axis_names,
    contract,
    name_axes,
)
from tensorpact.clauses import any_of, layout, named_axes, rank, shape
from tensorpact.constraints import Contiguous, DenseLast, NamedAxes
from tensorpact.testing import verify

ORDER = DocumentedError(
    "axis-order",
    KeyError,
    "{names}: keys come last (named {named})",
    {"named": lambda state: axis_names(state)},
    module="tests.axis_names",
)


@contract
def read(state: Annotated[Float[Tensor, "slots V K"], NamedAxes()], q: Float[Tensor, " K"] | None = None) -> str:
    return "reached"


@contract(Contract("documented", clauses=[shape("q"), named_axes("state", error=ORDER)]))
def documented(
    state: Annotated[Float[Tensor, "slots V K"], DenseLast(), NamedAxes()], q: Float[Tensor, " K"]
) -> Float[Tensor, "slots V"]:
    return state @ q


def named(axes: str, *sizes: int) -> Tensor:
    return name_axes(torch.zeros(sizes), axes)


def test_naming_gives_the_same_tensor_back():
    x = torch.nn.Parameter(torch.zeros(2, 3))
    assert name_axes(x, "rows columns") is x
    assert axis_names(x) == ("rows", "columns")
    assert axis_names(name_axes(x, " columns\trows ")) == ("columns", "rows")
    assert axis_names(name_axes(x, None)) is None
    assert axis_names(torch.zeros(2)) is None


@pytest.mark.parametrize(("axes", "count"), [("a", 1), ("a b c", 3), ("", 0)])
def test_as_many_names_as_axes(axes: str, count: int):
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=rf"^{count} names \({axes}\) for the 2 axes of a tensor \[2, 3\]$"):
        name_axes(x, axes)
    assert axis_names(x) is None


def test_only_tensors_have_axes():
    with pytest.raises(TypeError, match=r"^only a tensor has axes to name, not list$"):
        name_axes([1.0], "n")  # type: ignore[type-var]


def test_names_stay_with_the_object():
    x = named("slots V K", 2, 4, 4)
    assert [axis_names(y) for y in (x[:], x.transpose(1, 2), x + 1, x.clone(), x.to("meta"))] == [None] * 5
    assert axis_names(copy.deepcopy(x)) == ("slots", "V", "K")
    assert axis_names(pickle.loads(pickle.dumps(x))) == ("slots", "V", "K")


def test_without_names_sizes_decide(modes: Any):
    assert modes(read, torch.zeros(2, 4, 4)) == "reached"


def test_the_annotated_names_pass(modes: Any):
    assert modes(read, named("slots V K", 2, 4, 4)) == "reached"


@pytest.mark.parametrize("axes", ["slots K V", "V slots K", "s v k", "slots V k", "_ _ _"])
def test_other_names_are_refused(modes: Any, axes: str):
    raised = modes.rejects(read, named(axes, 2, 4, 4))
    shown = ", ".join(axes.split())
    assert type(raised).__name__ == "ContractValueError"
    assert str(raised) == f"state: axes are named [{shown}], expected [slots, V, K]"
    assert raised.clause is None
    assert raised.arguments["state"].description == f"float32[2, 4, 4] on cpu, axes named [{shown}]"


def test_a_documented_order(modes: Any):
    raised = modes.rejects(documented, named("slots K V", 2, 4, 4), torch.zeros(4))
    assert isinstance(raised, KeyError)
    assert (raised.error, str(raised)) == (ORDER, "state: keys come last (named ('slots', 'K', 'V'))")
    assert raised.clause == "named_axes('state')"


def test_a_documented_order_fires_in_its_place(modes: Any):
    assert modes.rejects(documented, named("slots K V", 2, 4, 4), torch.zeros(5)).clause == "shape('q')"


def test_names_are_no_layout(modes: Any):
    error = DocumentedError("state-layout", ValueError, "strided", module="tests.axis_names")

    @contract(Contract("f", clauses=[layout("x", error=error)]))
    def f(x: Annotated[Float[Tensor, "n m"], Contiguous(), NamedAxes()]) -> str:
        return "reached"

    assert modes.rejects(f, named("n m", 4, 4).t()).error is error
    assert str(modes.rejects(f, named("m n", 4, 4))) == "x: axes are named [m, n], expected [n, m]"


@pytest.mark.parametrize(
    ("annotation", "right", "wrong"),
    [
        ("rows 1 _ n", ["rows a b n", "rows rows rows n"], ["n 1 _ rows"]),
        ("*batch n K", ["a b n K", "n n K"], ["a b K n", "batch K n"]),
        ("n ... K", ["n a b K", "n a b K"], ["K a b n"]),
        ("n 2*n #m K", ["n 2*n m K"], ["n n m K", "n 2*n K m"]),
        ("slots=2 K", ["slots K"], ["K slots"]),
    ],
)
def test_axes_without_a_plain_name(modes: Any, annotation: str, right: list[str], wrong: list[str]):
    @contract
    def f(x: Annotated[Float[Tensor, annotation], NamedAxes()]) -> str:
        return "reached"

    for names in (*right, *wrong):
        sizes = {"n 2*n #m K": (2, 4, 1, 2), "rows 1 _ n": (2, 1, 2, 2)}.get(annotation, (2,) * len(names.split()))
        x = named(names, *sizes)
        if names in right:
            assert modes(f, x) == "reached"
        else:
            assert "axes are named" in str(modes.rejects(f, x))


def test_a_union_takes_the_names_of_any_form(modes: Any):
    @contract
    def f(
        state: Float[Tensor, "HV K"],
        a: Annotated[Float[Tensor, "B HV K"] | Float[Tensor, "B HV*K"], NamedAxes()],
    ) -> str:
        return "reached"

    state = torch.zeros(3, 3)
    assert modes(f, state, named("B HV K", 2, 3, 3)) == "reached"
    assert modes(f, state, named("B HV*K", 2, 9)) == "reached"
    raised = modes.rejects(f, state, named("B K HV", 2, 3, 3))
    assert str(raised) == "a: axes are named [B, K, HV], expected [B, HV, K] or [B, HV*K]"


def test_optional_tensors_and_lists(modes: Any):
    @contract
    def f(
        x: Annotated[Float[Tensor, "n m"], NamedAxes()] | None,
        ys: list[Annotated[Float[Tensor, "n m"], NamedAxes()]],
    ) -> str:
        return "reached"

    assert modes(f, None, [named("n m", 2, 2), torch.zeros(2, 2)]) == "reached"
    raised = modes.rejects(f, None, [torch.zeros(2, 2), named("m n", 2, 2)])
    assert str(raised) == "ys[1]: axes are named [m, n], expected [n, m]"
    assert str(modes.rejects(f, named("m n", 2, 2), [])) == "x: axes are named [m, n], expected [n, m]"


def test_any_of_claims_names_too(modes: Any):
    error = DocumentedError("axes-or-rank", ValueError, "{names} are odd", module="tests.axis_names")

    @contract(Contract("f", clauses=[any_of(rank("x"), named_axes("x"), error=error)]))
    def f(x: Annotated[Float[Tensor, "n m"], NamedAxes()]) -> str:
        return "reached"

    assert str(modes.rejects(f, named("m n", 2, 2))) == "x are odd"


def test_a_clause_without_the_constraint_is_the_authors_mistake():
    with pytest.raises(ContractDefinitionError, match="the annotation of x has no named_axes constraint to claim"):

        @contract(Contract("f", clauses=[named_axes("x")]))
        def f(x: Float[Tensor, "n"]) -> None:  # noqa: F821 - one axis
            """Nothing."""


def test_a_remembered_signature_hides_no_name():
    x = torch.zeros(2, 4, 4)
    for _ in range(200):
        assert read(x) == "reached"
    name_axes(x, "slots K V")
    with pytest.raises(ContractViolation, match=r"^state: axes are named \[slots, K, V\]"):
        read(x)
    name_axes(x, "slots V K")
    assert read(x) == "reached"
    with pytest.raises(ContractViolation):
        read(named("K V slots", 2, 4, 4))
    assert read(name_axes(x, None)) == "reached"


def test_tracing_looks_at_no_names():
    compiled = torch.compile(read, fullgraph=True, backend="eager")
    x = named("slots K V", 2, 4, 4)
    assert compiled(x, torch.zeros(4)) == "reached"
    with pytest.raises(ContractViolation):
        read(x)


def test_verify_draws_names():
    report = verify([documented], seed=1, examples=4)
    assert report.ok, report.findings()
    (witness,) = report.entries[0].witnesses
    assert witness["slug"] == "axis-order"
    assert 'tensorpact.name_axes(state, "' in witness["code"]
