"""Dynamo, export, make_fx, fake tensors, vmap: valid calls pass without a break, invalid ones raise as documented."""

from typing import Annotated, Any

import pytest
import torch
import torch._dynamo
import torch._dynamo.testing
from jaxtyping import Float
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import tensorpact
from tensorpact import Contract, contract
from tensorpact.clauses import let, no_overlap, require, same_device, same_dtype
from tensorpact.constraints import Aligned, DenseLast, OneOf

T = torch.zeros
MODEL = Contract(
    "step",
    clauses=[
        same_dtype("q", "cache"),
        same_device("q", "cache", "state"),
        no_overlap("state", "q"),
        let(group=lambda H, HV: H // HV),
        require(lambda group, H, HV: group * HV == H),
        require(lambda scale: scale > 0),
    ],
    mutates=("state",),
)


@contract(MODEL)
def step(
    q: Annotated[Float[Tensor, "B H K"], DenseLast(), OneOf(torch.float32, torch.bfloat16), Aligned(4)],
    cache: Float[Tensor, "slots H L K"],
    state: Float[Tensor, "slots HV L V"],
    scale: float = 1.0,
    bias: Float[Tensor, "#B H"] | None = None,
    offsets: Float[Tensor, " B+1"] | None = None,
) -> Tensor:
    """A decode step."""
    return q * scale + cache.sum()


def plain(q: Tensor, cache: Tensor, state: Tensor, scale: float = 1.0) -> Tensor:
    """The same without a contract."""
    return q * scale + cache.sum()


def arguments(batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Valid arguments."""
    return T(batch, 8, 64), T(16, 8, 4, 64), T(16, 2, 4, 32)


class Model(torch.nn.Module):
    """For export."""

    def forward(self, q: Tensor, cache: Tensor, state: Tensor) -> Tensor:
        """Call the contracted function."""
        return step(q, cache, state)


@pytest.fixture(autouse=True)
def fresh() -> Any:
    """Leave no compiled code behind."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


BAD = [
    pytest.param((T(2, 8, 64), T(16, 4, 4, 64), T(16, 2, 4, 32)), ValueError, r"^cache: axis 1 \(H\) is 4", id="dim"),
    pytest.param((T(2, 8), T(16, 8, 4, 64), T(16, 2, 4, 32)), ValueError, r"^q: expected 3 axes", id="rank"),
    pytest.param((T(2, 8, 64), T(16, 8, 4, 64).bfloat16(), T(16, 2, 4, 32)), TypeError, r"^cache: dtype", id="dtype"),
    pytest.param((T(2, 8, 64), T(16, 8, 4, 64), T(16, 3, 4, 32)), ValueError, r"^requirement 4", id="relation"),
    pytest.param((T(2, 8, 64), T(16, 8, 4, 64), T(16, 2, 4, 32), -1.0), ValueError, r"^requirement 5", id="scalar"),
]


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_g1_fullgraph_has_no_break_and_no_extra_recompile(dynamic: bool | None) -> None:
    frames = []
    for function in (step, plain):
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounter()
        compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=counter)
        for batch in (5, 7, 9, 11, 13):  # none of the other sizes: Dynamo would take equal ones for one symbol
            compiled(*arguments(batch))
        frames.append(counter.frame_count)
    assert frames[0] == frames[1]


def test_fullgraph_with_every_optional_argument() -> None:
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    assert compiled(*arguments(), 2.0, T(1, 8), T(3)).shape == (2, 8, 64)


def test_a_remembered_signature_does_not_reach_the_tracer() -> None:
    for _ in range(20):
        step(*arguments())
    assert torch.compile(step, fullgraph=True, backend="eager")(*arguments()).shape == (2, 8, 64)


@pytest.mark.parametrize(("args", "error", "text"), BAD)
def test_g2_invalid_calls_keep_class_text_and_note(args: tuple[Any, ...], error: type[Exception], text: str) -> None:
    compiled = torch.compile(lambda *a: step(*a) + 1, backend="eager")
    compiled(*arguments())
    with pytest.raises(error, match=text) as caught:
        compiled(*args)
    assert isinstance(caught.value, tensorpact.ContractViolation)
    with pytest.raises(error) as eager:
        step(*args)
    assert str(eager.value) == str(caught.value)
    assert eager.value.__notes__[0] == caught.value.__notes__[0]


@pytest.mark.parametrize(("args", "error", "text"), BAD)
def test_g4_invalid_calls_under_fullgraph_do_not_pass(args: tuple[Any, ...], error: type[Exception], text: str) -> None:
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    with pytest.raises(Exception):  # noqa: B017, PT011 - Dynamo's own class or ours: torch decides
        compiled(*args)


def test_beartype_mode_is_the_guard_while_tracing() -> None:
    with tensorpact.enforcement("beartype"):
        compiled = torch.compile(step, fullgraph=True, backend="eager")
        assert compiled(*arguments()).shape == (2, 8, 64)


def test_g11_off_leaves_nothing_to_trace() -> None:
    with tensorpact.enforcement("off"):
        compiled = torch.compile(step, fullgraph=True, backend="eager")
        assert compiled(*arguments()[:2], T(3)).shape == (2, 8, 64)


def traced(function: Any) -> tuple[int, int, set[str]]:
    """Graphs, operations in them, and names that Dynamo guards on."""
    torch._dynamo.reset()
    seen = torch._dynamo.explain(function)(*arguments()[:3])
    assert seen.graph_break_count == 0
    return seen.graph_count, seen.op_count, {guard.name for guard in seen.out_guards or ()}


def test_off_adds_nothing_but_the_switch_to_what_is_guarded_on() -> None:
    graphs, operations, names = traced(plain)
    with tensorpact.enforcement("off"):
        off = traced(contract(plain))
    assert off[:2] == (graphs, operations)
    assert off[2] - names == {"G['_modes']", "G['_modes'].current", "G['_body']"}
    on = traced(contract(plain))
    assert on[:2] == (graphs, operations)


@pytest.mark.parametrize("strict", [False, True])
def test_g6_export(strict: bool) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = ({0: batch}, None, None)
    program = torch.export.export(Model(), arguments(3), dynamic_shapes=shapes, strict=strict)
    assert program.module()(*arguments(5)).shape == (5, 8, 64)


def test_g6_make_fx() -> None:
    for mode in ("real", "fake", "symbolic"):
        traced = make_fx(lambda q, c, s: step(q, c, s), tracing_mode=mode)(*arguments())
        assert traced(*arguments()).shape == (2, 8, 64)


def test_fake_tensors() -> None:
    with FakeTensorMode():
        assert step(*(T(*t.shape) for t in arguments())).shape == (2, 8, 64)
        with pytest.raises(ValueError, match=r"^cache: axis 1 \(H\) is 4"):
            step(T(2, 8, 64), T(16, 4, 4, 64), T(16, 2, 4, 32))


def test_meta_tensors() -> None:
    meta = tuple(t.to("meta") for t in arguments())
    assert step(*meta).device.type == "meta"
    with pytest.raises(ValueError, match=r"^cache: is on cpu, but q is on meta"):
        step(meta[0], arguments()[1], meta[2])


def test_vmap_sees_logical_shapes() -> None:
    q, cache, state = arguments()
    out = torch.vmap(lambda one: step(one, cache, state))(T(5, *q.shape))
    assert out.shape == (5, 2, 8, 64)
    with pytest.raises(ValueError, match=r"^q: expected 3 axes"):
        torch.vmap(lambda one: step(one, cache, state))(q)


def test_grad_transform() -> None:
    q, cache, state = arguments()
    assert torch.func.grad(lambda x: step(x, cache, state).sum())(q).shape == q.shape


def test_parameters_buffers_and_subclasses() -> None:
    class Mine(Tensor):
        pass

    q, cache, state = arguments()
    assert step(torch.nn.Parameter(q), torch.nn.Buffer(cache), state).shape == q.shape
    assert step(q.as_subclass(Mine), cache, state).shape == q.shape


def test_sparse_and_nested_tensors_are_told() -> None:
    q, cache, state = arguments()
    with pytest.raises(tensorpact.ContractViolation, match=r"^q: "):
        step(q.to_sparse(), cache, state)
    jagged = torch.nested.nested_tensor([T(2, 3), T(4, 3)], layout=torch.jagged)

    @contract
    def f(x: Float[Tensor, "b j k"], y: Float[Tensor, "b 3"]) -> str:
        return "ran"

    assert f(jagged, T(2, 3)) == "ran"
    with pytest.raises(ValueError, match=r"^y: axis 0 \(b\) is 3, but b is 2 \(x axis 0\)"):
        f(jagged, T(3, 3))


@pytest.mark.parametrize("strict", [True, False])
def test_a_size_that_is_solved_from_an_expression_stays_unknown(strict: bool) -> None:
    @contract
    def rows(offsets: Float[Tensor, " B+1"]) -> Float[Tensor, " B+1"]:
        return offsets * 2

    class Rows(torch.nn.Module):
        def forward(self, offsets: Tensor) -> Tensor:
            return rows(offsets)

    dims = {"offsets": {0: torch.export.Dim("n", min=3, max=9)}}
    program = torch.export.export(Rows(), (torch.ones(5),), dynamic_shapes=dims, strict=strict)
    assert program.module()(torch.ones(7)).tolist() == [2.0] * 7
