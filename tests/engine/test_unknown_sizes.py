"""Tracers that do not know a size: unbacked ones become assertions, proxies a node, and messages keep the text."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._dynamo.testing
import torch.fx
from jaxtyping import Float, Int
from torch import Tensor

import tensorpact
from tensorpact import Contract, ContractViolation, contract, enforcement
from tensorpact.clauses import let, require, same_dim

T = torch.zeros


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Sizes that depend on data do not break the graph; no compiled code is left behind."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield
    torch._dynamo.reset()


@contract
def gather(
    index: Int[Tensor, "n 2"], values: Float[Tensor, " n"], more: Float[Tensor, "#n k"] | None = None
) -> Float[Tensor, ""]:
    """Sum what an index names."""
    total = index.sum() + values.sum()
    return total if more is None else total + more.sum()


@contract(Contract("rows", clauses=[let(pairs=lambda n: n // 2), require(lambda n, pairs: pairs * 2 == n)]))
def rows(x: Float[Tensor, "n m"], y: Float[Tensor, " 2*m"], *zs: Float[Tensor, " n"]) -> Tensor:
    """Rules over sizes that are not known."""
    return x.sum() + y.sum()


@contract(Contract("joined", clauses=[same_dim("n", "a", "b")]))
def joined(a: Float[Tensor, "*v n"], b: Float[Tensor, "*v n"] | None = None) -> Tensor:
    """Variadic axes."""
    return a.sum()


MASK = torch.tensor([[1, 0, 1], [0, 1, 0]])


class TestUnbackedUnderCompile:
    """``nonzero`` gives as many rows as there are ones: the contract is asserted where the data shows how many."""

    @staticmethod
    def compiled(function: Any) -> tuple[Any, torch._dynamo.testing.CompileCounter]:
        counter = torch._dynamo.testing.CompileCounter()
        return torch.compile(function, fullgraph=True, backend=counter), counter

    def test_it_compiles_once_and_asserts(self) -> None:
        run, counter = self.compiled(lambda mask, values: gather(mask.nonzero(), values))
        assert run(MASK, torch.ones(3)) == 7
        with pytest.raises(RuntimeError, match="Runtime assertion failed"):
            run(torch.ones(2, 3, dtype=torch.int64), torch.ones(3))
        assert run(MASK.flip(0), torch.ones(3)) == 8
        assert counter.frame_count == 1

    @pytest.mark.parametrize("mode", ["compiled", "beartype"])
    def test_what_is_known_to_be_wrong_is_refused_at_once(self, mode: Any) -> None:
        run, _ = self.compiled(lambda mask, values: gather(mask.nonzero()[:, :1], values))
        with enforcement(mode), pytest.raises(torch._dynamo.exc.Unsupported):
            run(MASK, torch.ones(3))

    def test_a_size_that_may_be_1(self) -> None:
        run, _ = self.compiled(lambda mask, values, more: gather(mask.nonzero(), values, more[more[:, 0] > 0]))
        assert run(MASK, torch.ones(3), torch.ones(3, 4)) == 19
        assert run(MASK, torch.ones(3), torch.eye(3, 4)) == 8
        with pytest.raises(RuntimeError, match="Runtime assertion failed"):
            run(MASK, torch.ones(3), torch.tensor([[1.0], [1.0], [0.0]]))

    def test_rules_and_expressions(self) -> None:
        run, counter = self.compiled(lambda x, y: rows(x[x[:, 0] > 0], y))
        assert run(torch.ones(4, 3), T(6)) == 12
        with pytest.raises(RuntimeError, match="Runtime assertion failed"):
            run(torch.ones(5, 3), T(6))
        assert counter.frame_count <= 2

    def test_variadic_axes(self) -> None:
        run, _ = self.compiled(lambda x: joined(x[x[:, 0] > 0], x[x[:, 1] > 0]))
        assert run(torch.ones(4, 3)) == 12
        with pytest.raises(RuntimeError, match="Runtime assertion failed"):
            run(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))

    def test_a_size_from_a_scalar(self) -> None:
        def run(count: Tensor, values: Tensor) -> Tensor:
            return gather(torch.zeros(count.item(), 2, dtype=torch.int64), values)  # type: ignore[call-overload]

        compiled, _ = self.compiled(run)
        assert compiled(torch.tensor(3), torch.ones(3)) == 3
        # Dynamo may look at the number of a tensor on the CPU, and then says so itself.
        with pytest.raises(RuntimeError, match=r"Runtime assertion failed|breaks the contract of"):
            compiled(torch.tensor(4), torch.ones(3))

    def test_in_default_mode_the_documented_text_comes_where_it_is_known(self) -> None:
        run = torch.compile(lambda mask, values: gather(mask.nonzero()[:, :1], values) + 1, backend="eager")
        with pytest.raises(ContractViolation, match=r"^index: axis 1 is 1, but must be 2"):
            run(MASK, torch.ones(3))


@pytest.mark.parametrize("strict", [False, True])
def test_unbacked_under_export(strict: bool) -> None:
    class Model(torch.nn.Module):
        def forward(self, mask: Tensor, values: Tensor) -> Tensor:
            return gather(mask.nonzero(), values)

    program = torch.export.export(Model(), (MASK, torch.ones(3)), strict=strict)
    assert any("_assert_scalar" in str(node.target) for node in program.graph.nodes)
    assert program.module()(MASK, torch.ones(3)) == 7
    with pytest.raises(RuntimeError, match=r"[Rr]untime assertion failed"):
        program.module()(torch.ones(2, 3, dtype=torch.int64), torch.ones(3))


class Layer(torch.nn.Module):
    """A method, with a hint that may be None and one with two forms."""

    @contract
    def forward(
        self,
        x: Float[Tensor, "b k"],
        bias: Float[Tensor, " k"] | None = None,
        scale: Float[Tensor, " b"] | Float[Tensor, "b 1"] | None = None,
        xs: list[Float[Tensor, "b _"]] = [],  # noqa: B006 - nothing writes it
    ) -> Tensor:
        return self.plain(x, bias, scale, xs)

    def plain(self, x: Tensor, bias: Any = None, scale: Any = None, xs: Any = ()) -> Tensor:
        for other in xs:
            x = x + other.sum()
        return (x if bias is None else x + bias) * (1 if scale is None else scale.reshape(-1, 1))


@contract
def either(x: Float[Tensor, "b k"] | Float[Tensor, " b"], y: Float[Tensor, " b"]) -> Tensor:
    return x.sum() + y


def bare(x: Tensor, y: Tensor) -> Tensor:
    return x.sum() + y


LAYER = Layer()
#: A contracted function, the same without a contract, and arguments for a batch; no two axes are of one size.
SUBJECTS = {
    "method": (LAYER, LAYER.plain, lambda b: (T(b, 3),)),
    "optional": (LAYER, LAYER.plain, lambda b: (T(b, 3), T(3))),
    "union-inside": (LAYER, LAYER.plain, lambda b: (T(b, 3), None, T(b))),
    "list": (LAYER, LAYER.plain, lambda b: (T(b, 3), None, None, [T(b, 4), T(b, 2)])),
    "union": (either, bare, lambda b: (T(b, 3), T(b))),
    "union-other-form": (either, bare, lambda b: (T(b), T(b))),
    "rules": (rows, lambda x, y: x.sum() + y.sum(), lambda b: (T(2 * b, 3), T(6))),
}


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("name", SUBJECTS)
def test_five_batches_compile_as_often_as_the_bare_function(name: str, dynamic: bool | None) -> None:
    contracted, plain, arguments = SUBJECTS[name]
    frames: list[int] = []
    for function in (contracted, plain):
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounter()
        compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=counter)
        for batch in (5, 7, 9, 11, 13):
            compiled(*arguments(batch))
        frames.append(counter.frame_count)
    assert frames[0] == frames[1]


@contract(Contract("scaled", clauses=[require(lambda scale: scale > 0)]))
def scaled(
    x: Float[Tensor, "b k"], y: Float[Tensor, " b"], scale: float = 1.0, names: list[str] | None = None
) -> Tensor:
    return x * scale


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((T(5, 3), T(4)), "ContractValueError: y: axis 0 (b) is 4, but b is 5 (x axis 0); expected [b] = [5], got [4]"),
        ((T(5, 3), T(5).half(), -1.0), "ContractValueError: requirement 0 of scaled does not hold: scale=-1.0"),
        ((T(5, 3).int(), T(5)), "ContractTypeError: x: dtype is torch.int32, expected Float"),
        ((T(5), T(5)), "ContractValueError: x: expected 2 axes [b, k], got 1 axis: [5]"),
    ],
    ids=["axis", "relation", "dtype", "rank"],
)
def test_g3_fullgraph_shows_class_and_text(args: tuple[Any, ...], text: str, dynamic: bool | None) -> None:
    """Dynamo raises a class of its own there; the message is all that a contract can give it."""
    compiled = torch.compile(scaled, fullgraph=True, dynamic=dynamic, backend="eager")
    compiled(T(7, 3), T(7), 0.5)
    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        compiled(*args)
    assert f"the call breaks the contract of {__name__}.scaled: {text}" in str(caught.value)
    with pytest.raises(ContractViolation) as eager:
        scaled(*args)
    assert f"{type(eager.value).__name__}: {eager.value}" == text


def test_fullgraph_where_an_argument_cannot_be_told() -> None:
    @contract
    def f(x: Float[torch.nn.Parameter, " n"], y: Float[Tensor, " n"]) -> Tensor:
        return x + y

    x = torch.nn.Parameter(T(3))
    compiled = torch.compile(f, fullgraph=True, backend="eager")
    compiled(x, T(3))
    with pytest.raises(
        torch._dynamo.exc.Unsupported, match=r"call it outside torch\.compile to see the documented error"
    ):
        compiled(x, T(4))


class TestSymbolicTrace:
    """``torch.fx.symbolic_trace`` hands over proxies without sizes: the call becomes a node, checked when it runs."""

    @pytest.mark.parametrize("mode", ["compiled", "beartype"])
    def test_g6_a_node_that_checks(self, mode: Any) -> None:
        with enforcement(mode):
            traced = torch.fx.symbolic_trace(lambda x, y: scaled(x + 1, y, scale=2.0) * 3)
            nodes = [n for n in traced.graph.nodes if n.target is scaled]
            assert len(nodes) == 1
            assert torch.equal(traced(T(5, 3), T(5)), torch.full((5, 3), 6.0))
            with pytest.raises(ValueError, match=r"^y: axis 0 \(b\) is 4, but b is 5"):
                traced(T(5, 3), T(4))

    def test_g6_a_proxy_for_a_number(self) -> None:
        traced = torch.fx.symbolic_trace(lambda scale: scaled(T(5, 3), T(5), scale))
        assert traced(2.0).shape == (5, 3)
        with pytest.raises(ValueError, match="requirement 0 of scaled"):
            traced(-2.0)

    def test_g6_off_traces_the_body(self) -> None:
        with tensorpact.enforcement("off"):
            traced = torch.fx.symbolic_trace(lambda x, y: scaled(x, y))
        assert not [n for n in traced.graph.nodes if n.target is scaled]
