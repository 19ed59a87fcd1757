"""Operators of contracted functions under tracers: one node behind the checks, sizes that stay unknown."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import AotEagerAndRecordGraphs
from torch.export import Dim, export

from tensorpact import Contract, ContractViolation, DocumentedError, contract, torch_op
from tensorpact.clauses import same_dim
from tensorpact.constraints import SameDtype

HEADS = DocumentedError("heads", RuntimeError, "heads mismatch: out={out.size(-1)}, q={q.size(1)}")
CONTRACT = Contract("pool", clauses=[same_dim("H", "q", "out", error=HEADS)], mutates=("out",))


@contract(CONTRACT)
def pool(
    q: Annotated[Float[Tensor, "T H D"], SameDtype("q")],
    offsets: Int[Tensor, " B+1"],
    out: Float[Tensor, "T H"],
    scale: float = 1.0,
    *,
    more: bool = False,
) -> (
    Annotated[Float[Tensor, "B H*D"], SameDtype("q")]
    | tuple[Annotated[Float[Tensor, "B H*D"], SameDtype("q")], Float32[Tensor, " T"]]
):
    out.copy_(q.sum(-1) * scale)
    rows = torch.stack([part.sum(0).flatten() for part in q.tensor_split(offsets[1:-1])])
    return (rows, q.float().sum((1, 2))) if more else rows


@pytest.fixture(scope="module")
def op() -> Iterator[Any]:
    made = torch_op("tensorpact_test::pool", pool, form="more")
    yield made
    made.unregister()


def arguments(tokens: int = 5, rows: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    q = torch.randn(tokens, 2, 8, generator=generator)
    return q, torch.arange(rows + 1) * tokens // rows, torch.full((tokens, 2), torch.nan)


@pytest.mark.parametrize("more", [False, True])
def test_opcheck(op: Any, more: bool):
    result = torch.library.opcheck(op.overload, (*arguments(), 0.5), {"more": more})
    assert set(result.values()) == {"SUCCESS"}


def test_opcheck_of_an_operator_with_a_backward():
    @contract
    def f(x: Float[Tensor, "n m"], w: Float[Tensor, " m"]) -> Float[Tensor, "n m"]:
        return x * w

    made = torch_op(
        "tensorpact_test::product",
        f,
        dtypes="x",
        backward=lambda ctx, grad: (grad * ctx.saved_tensors[1], (grad * ctx.saved_tensors[0]).sum(0)),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    try:
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
        assert set(torch.library.opcheck(made.overload, (x, w)).values()) == {"SUCCESS"}
        compiled = torch.compile(lambda x, w: made(x, w).sum(), backend="aot_eager", fullgraph=True)
        compiled(x, w).backward()
        assert x.grad is not None
        assert x.grad.equal(w.detach().expand(3, 4))
    finally:
        made.unregister()


def test_an_operator_that_writes_returns_no_list(op: Any):
    assert op.schema.endswith("bool more=False) -> (Tensor, Tensor)")
    rows, empty = op.overload(*arguments())
    assert (rows.shape, empty.shape) == ((3, 16), (0,))
    assert op(*arguments()).equal(rows)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_call_is_one_node_and_writes_what_it_writes(op: Any, dynamic: bool):
    torch._dynamo.reset()
    backend = AotEagerAndRecordGraphs()

    @torch.compile(backend=backend, fullgraph=True, dynamic=dynamic)
    def run(q: Tensor, offsets: Tensor, out: Tensor) -> Tensor:
        return op(q * 2, offsets, out) + out.sum()

    for tokens, rows in [(5, 3), (7, 4), (9, 5)] if dynamic else [(5, 3)]:
        q, offsets, out = arguments(tokens, rows)
        expected_out = torch.empty_like(out)
        expected = pool(q * 2, offsets, expected_out) + expected_out.sum()
        assert run(q, offsets, out).equal(expected)
        assert out.equal(expected_out)
    # With unknown sizes torch compiles an empty graph beside it.
    called = [str(n.target) for graph in backend.graphs for n in graph.graph.nodes if n.op == "call_function"]
    assert called.count("tensorpact_test.pool.default") == 1
    wrong = arguments()[2].expand(5, 2)[:, :1]
    with pytest.raises(Unsupported, match="ContractRuntimeError: heads mismatch: out=1, q=2"):
        run(*arguments()[:2], wrong)


def test_a_graph_break_keeps_the_documented_error(op: Any):
    run = torch.compile(lambda *args: op(*args) + 1, backend="eager")
    with pytest.raises(ContractViolation) as error:
        run(*arguments()[:2], torch.zeros(5, 3))
    assert error.value.error is HEADS


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_call_keeps_its_sizes_unknown(op: Any, strict: bool):
    class Pooled(torch.nn.Module):
        def forward(self, q: Tensor, offsets: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
            return op(q, offsets, out, more=True)

    tokens, rows = Dim("tokens", min=3, max=64), Dim("rows", min=3, max=64)
    shapes = {"q": {0: tokens}, "offsets": {0: rows}, "out": {0: tokens}}
    program = export(Pooled(), arguments(), dynamic_shapes=shapes, strict=strict)
    q, offsets, out = arguments(8, 6)
    result, sums = program.module()(q, offsets, out)
    expected_out = torch.empty_like(out)
    expected, expected_sums = pool(q, offsets, expected_out, more=True)
    assert result.equal(expected)
    assert sums.equal(expected_sums)
    assert out.equal(expected_out)


def test_a_gradient_is_refused_while_tracing(op: Any):
    q, offsets, out = arguments()
    with pytest.raises(RuntimeError, match="has no backward"):
        torch.compile(lambda *args: op(*args), backend="eager")(q.requires_grad_(), offsets, out)
    with torch.no_grad():
        assert torch.compile(lambda *args: op(*args), backend="eager", fullgraph=True)(q, offsets, out).shape == (3, 16)
