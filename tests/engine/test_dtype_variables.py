"""``SameDtype``: tensors that share a dtype by annotation, with the text, the place and the claim of any obligation."""

from typing import Annotated, Any

import pytest
import torch
import torch._dynamo.testing
from jaxtyping import Float, Float32, Int, Num
from torch import Tensor

from tensorpact import Contract, ContractDefinitionError, DocumentedError, contract, enforcement
from tensorpact.clauses import dtype, require, same_dtype, shape
from tensorpact.constraints import Contiguous, OneOf, SameDtype
from tensorpact.testing import verify
from tensorpact.testing._lint import static_lint

X = SameDtype("X")
F16, F32, BF16 = torch.float16, torch.float32, torch.bfloat16


def T(*sizes: int, dtype: torch.dtype = F32) -> Tensor:  # noqa: N802 - as the cases write it
    return torch.zeros(sizes, dtype=dtype)


@contract
def add(
    x: Annotated[Float[Tensor, " n"], X],
    y: Annotated[Float[Tensor, " n"], X],
    out: Annotated[Float[Tensor, " n"], X, Contiguous()] | None = None,
    index: Int[Tensor, " n"] | None = None,
) -> Annotated[Float[Tensor, " n"], X]:
    return x if out is None else out


def test_b18_dtype_variable(modes: Any) -> None:
    for kind in (F32, F16, BF16):
        modes.accepts(add, T(3, dtype=kind), T(3, dtype=kind), T(3, dtype=kind))
        modes.accepts(add, T(3, dtype=kind), T(3, dtype=kind), None, T(3, dtype=torch.int64))
    raised = modes.rejects(add, T(3), T(3, dtype=F16))
    assert isinstance(raised, TypeError)
    assert str(raised) == "y: dtype is torch.float16, but x has torch.float32"
    assert "`y.to(x.dtype)` would fit" in raised.__notes__[0]
    raised = modes.rejects(add, T(3), T(3), T(3, dtype=F16))
    assert str(raised) == "out: dtype is torch.float16, but x has torch.float32"


def test_the_family_and_the_shape_come_first(modes: Any) -> None:
    assert str(modes.rejects(add, T(3), T(3, dtype=torch.int32))) == "y: dtype is torch.int32, expected Float"
    assert str(modes.rejects(add, T(3), T(4, dtype=F16))).startswith("y: axis 0 (n) is 4")


def test_after_a_remembered_signature(modes: Any) -> None:
    for _ in range(30):
        add(T(3), T(3))
    modes.rejects(add, T(3), T(3, dtype=F16))
    modes.accepts(add, T(3, dtype=F16), T(3, dtype=F16))


def test_two_variables_and_a_free_one(modes: Any) -> None:
    @contract
    def f(
        a: Annotated[Num[Tensor, " n"], SameDtype("A")],
        b: Annotated[Num[Tensor, " n"], SameDtype("B")],
        c: Annotated[Num[Tensor, " n"], SameDtype("A")],
        d: Annotated[Num[Tensor, " n"], SameDtype("B")],
    ) -> None: ...

    modes.accepts(f, T(2), T(2, dtype=F16), T(2), T(2, dtype=F16))
    assert str(modes.rejects(f, T(2), T(2, dtype=F16), T(2), T(2))) == (
        "d: dtype is torch.float32, but b has torch.float16"
    )


def test_claimed_by_a_clause(modes: Any) -> None:
    error = DocumentedError("mixed", RuntimeError, "y must have the dtype of x")
    later = DocumentedError("later", RuntimeError, "too late")

    def made(*clauses: Any) -> Any:
        @contract(Contract("f", clauses=[*clauses, require(lambda n: n > 1, error=later)]))
        def f(x: Annotated[Float[Tensor, " n"], X], y: Annotated[Float[Tensor, " n"], X]) -> None: ...

        return f

    for clause in (dtype("y", error=error), same_dtype("x", "y", error=error)):
        raised = modes.rejects(made(clause), T(1), T(1, dtype=F16))
        assert str(raised) == "y must have the dtype of x"
        assert str(modes.rejects(made(clause), T(1), T(1))) == "too late"
    assert str(modes.rejects(made(shape("y")), T(1), T(1, dtype=F16))) == "too late"
    assert str(modes.rejects(made(), T(2), T(2, dtype=F16))) == "y: dtype is torch.float16, but x has torch.float32"
    assert str(modes.rejects(made(same_dtype("x", "y", error=error, when=lambda n: n > 5)), T(2), T(2).half())) == (
        "y: dtype is torch.float16, but x has torch.float32"
    )


@pytest.mark.parametrize("mode", ["compiled", "beartype"])
def test_returned_values(mode: Any) -> None:
    @contract(check_returns=True)
    def f(x: Annotated[Float[Tensor, " n"], X], half: bool) -> Annotated[Float[Tensor, " n"], X]:
        return x.half() if half else x

    with enforcement(mode):
        assert f(T(3), False).dtype is F32
        with pytest.raises(TypeError, match=r"^return: dtype is torch\.float16, but x has torch\.float32"):
            f(T(3), True)


def test_items_of_containers(modes: Any) -> None:
    @contract
    def f(x: Annotated[Float[Tensor, " n"], X] | None, ys: list[Annotated[Float[Tensor, " m"], X]]) -> None: ...

    modes.accepts(f, None, [])
    modes.accepts(f, T(2, dtype=F16), [T(3, dtype=F16), T(3, dtype=F16)])
    modes.accepts(f, None, [T(3, dtype=F16), T(3, dtype=F16)])
    assert str(modes.rejects(f, None, [T(3), T(3, dtype=F16)])) == (
        "ys[1]: dtype is torch.float16, but ys[0] has torch.float32"
    )
    assert str(modes.rejects(f, T(2, dtype=F16), [T(3, dtype=F16), T(3)])).startswith("ys[1]: dtype is torch.float32")


def test_a_union_under_a_variable(modes: Any) -> None:
    @contract
    def f(
        x: Annotated[Float[Tensor, "a b"] | Float[Tensor, " a*b"], X], y: Annotated[Float[Tensor, "a b"], X]
    ) -> None: ...

    modes.accepts(f, T(6), T(2, 3))
    modes.rejects(f, T(6, dtype=F16), T(2, 3))


def test_authors_mistakes() -> None:
    with pytest.raises(ContractDefinitionError, match="x and y have no dtype in common"):

        @contract
        def f(x: Annotated[Float32[Tensor, " n"], X], y: Annotated[Float[Tensor, " n"], OneOf(F16), X]) -> None: ...

    with pytest.raises(ContractDefinitionError, match="a dtype variable is a name"):
        SameDtype("two words")
    with pytest.raises(ContractDefinitionError, match="a dtype variable is a name"):
        SameDtype(torch.float32)  # type: ignore[arg-type]
    with pytest.raises(ContractDefinitionError, match="stands beside no tensor hint"):

        @contract
        def g(x: Annotated[int, X]) -> None: ...


def test_tracing() -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(add, fullgraph=True, backend=counter)
    assert compiled(T(3), T(3)).shape == (3,)
    assert counter.frame_count == 1
    broken = torch.compile(lambda *a: add(*a) + 1, backend="eager")
    with pytest.raises(TypeError, match=r"^y: dtype is torch\.float16, but x has torch\.float32"):
        broken(T(3), T(3, dtype=F16))
    torch._dynamo.reset()


def _added(x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    return x + y


@contract(
    Contract("verified", reference=_added, clauses=[dtype("y", error=DocumentedError("y-dtype", TypeError, "y"))])
)
def verified(
    x: Annotated[Float[Tensor, " n"], X, OneOf(F32, F16)], y: Annotated[Float[Tensor, " n"], X, OneOf(F32, F16, BF16)]
) -> Tensor:
    """For ``verify``: draws have to agree on the dtype, and the error has a witness."""
    return x + y


def test_verify_draws_equal_dtypes_and_finds_the_witness() -> None:
    (report,) = verify([verified], examples=8).entries
    assert report.ok, report
    assert [w["slug"] for w in report.witnesses] == ["y-dtype"]


def test_lint_of_a_variable_that_stands_once() -> None:
    @contract
    def f(x: Annotated[Float[Tensor, "2"], X]) -> None: ...

    @contract
    def g(x: Annotated[Float[Tensor, "2"], X]) -> Annotated[Float[Tensor, "2"], X]:
        return x

    found = [finding.message for finding in static_lint(f.__tensorpact__.terms)]  # type: ignore[attr-defined]
    assert found == ["the dtype variable X stands once: it constrains nothing"]
    assert not static_lint(g.__tensorpact__.terms)  # type: ignore[attr-defined]
