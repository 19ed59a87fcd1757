"""Tensors that are more than memory on one device: DTensor, nested, sparse, functorch, buffers, arrays of others."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tensorpact import Contract, ContractViolation, contract
from tensorpact.clauses import no_overlap, same_device
from tensorpact.constraints import Aligned, Contiguous, DenseLast, OnDevice, Reach32

T = torch.zeros


@contract
def pair(x: Float[Tensor, "n m"], y: Float[Tensor, " m"]) -> str:
    return "reached"


@contract(Contract("strict", clauses=[same_device("x", "out"), no_overlap("out", "x")], mutates="out"))
def strict(
    x: Annotated[Float[Tensor, "n m"], DenseLast(), Aligned(4), Reach32(), OnDevice("cpu", "meta")],
    out: Annotated[Float[Tensor, "n m"], Contiguous()],
) -> str:
    return "reached"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceMesh]:
    """One rank, with a store in a file: no socket."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


class TestG9:
    """DTensor: the shape over all devices is nothing a kernel can read; who means it says so."""

    @pytest.mark.parametrize("placement", [Shard(0), Replicate()], ids=str)
    def test_g9_refused_with_what_to_pass(self, mesh: DeviceMesh, placement: Any, modes: Any) -> None:
        x = distribute_tensor(T(4, 3), mesh, [placement])
        raised = modes.rejects(pair, x, T(3))
        assert isinstance(raised, TypeError)
        assert str(raised) == (
            "x: is a DTensor, [4, 3] over all devices; pass the local shard, `x.to_local()` of shape [4, 3],"
            " or annotate the whole with the class DTensor"
        )
        modes.accepts(pair, x.to_local(), T(3))

    def test_g9_after_a_remembered_signature(self, mesh: DeviceMesh, modes: Any) -> None:
        for _ in range(30):
            pair(T(4, 3), T(3))
        modes.rejects(pair, distribute_tensor(T(4, 3), mesh, [Shard(0)]), T(3))

    def test_g9_parameters_and_items(self, mesh: DeviceMesh, modes: Any) -> None:
        @contract
        def f(xs: list[Float[Tensor, " n"]], y: Float[torch.nn.Parameter, " n"] | None = None) -> None: ...

        whole = distribute_tensor(T(4), mesh, [Shard(0)])
        assert str(modes.rejects(f, [T(4), whole])).startswith("xs[1]: is a DTensor, [4] over all devices")
        modes.rejects(f, [], torch.nn.Parameter(whole))
        modes.accepts(f, [T(4)], torch.nn.Parameter(T(4)))

    def test_g9_declared(self, mesh: DeviceMesh, modes: Any) -> None:
        @contract
        def whole(x: Float[DTensor, "n m"], y: Float[Tensor, " m"]) -> None: ...

        @contract
        def either(x: Float[DTensor, "n m"] | Float[Tensor, "n m"], y: Float[Tensor, " m"]) -> None: ...

        x = distribute_tensor(T(4, 3), mesh, [Shard(0)])
        modes.accepts(whole, x, T(3))
        assert str(modes.rejects(whole, x, T(4))).startswith("y: axis 0 (m) is 4, but m is 3 (x axis 1)")
        assert str(modes.rejects(whole, T(4, 3), T(3))) == "x: expected a DTensor [n, m], got Tensor"
        modes.accepts(either, x, T(3))
        modes.accepts(either, T(4, 3), T(3))
        modes.rejects(either, x, T(4))

    def test_g9_under_other_hints(self, mesh: DeviceMesh, modes: Any) -> None:
        @contract
        def f(x: Float[Any, " n"], y: Tensor) -> None: ...

        x = distribute_tensor(T(4), mesh, [Shard(0)])
        modes.accepts(f, x, x)


def test_torch_distributed_is_not_loaded_for_it() -> None:
    script = (
        "import sys, torch; from jaxtyping import Float; import tensorpact;"
        "f = tensorpact.contract(eval('lambda x: None')); g = lambda x: None; g.__annotations__ = {'x':"
        " Float[torch.Tensor, 'n']}; tensorpact.contract(g)(torch.nn.Parameter(torch.zeros(2)));"
        "print('torch.distributed.tensor' in sys.modules, 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


class TestG8:
    """The logical shape counts, and what has no memory of the asked kind is told so."""

    def test_g8_sparse(self, modes: Any) -> None:
        x = torch.eye(3).to_sparse()
        modes.accepts(pair, x, T(3))
        assert str(modes.rejects(strict, x, T(3, 3))).startswith(
            "x: layout is torch.sparse_coo, which has none of what DenseLast("
        )

    def test_g8_sparse_where_it_is_written(self, modes: Any) -> None:
        @contract(Contract("f", mutates=("out", "x"), clauses=[no_overlap("out", "x")]))
        def f(x: Float[Tensor, "n m"], out: Float[Tensor, "n m"]) -> None: ...

        assert str(modes.rejects(f, torch.eye(3).to_sparse(), T(3, 3))) == (
            "x: is written, but its layout torch.sparse_coo has no strides"
        )

    def test_g8_jagged(self, modes: Any) -> None:
        jagged = torch.nested.nested_tensor([T(2, 3), T(4, 3)], layout=torch.jagged)

        @contract
        def f(x: Float[Tensor, "b j k"], y: Float[Tensor, "b k"], z: Float[Tensor, "b j k"] | None = None) -> None: ...

        modes.accepts(f, jagged, T(2, 3))
        modes.accepts(f, jagged, T(2, 3), jagged * 2)
        assert str(modes.rejects(f, jagged, T(3, 3))).startswith("y: axis 0 (b) is 3, but b is 2 (x axis 0)")
        modes.rejects(f, jagged, T(2, 3), T(2, 4, 3))

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # torch, of the old layout
    def test_g8_strided_nested(self, modes: Any) -> None:
        strided = torch.nested.nested_tensor([T(2, 3), T(4, 3)], layout=torch.strided)

        @contract
        def f(x: Float[Tensor, "b j k"], y: Float[Tensor, " b"]) -> None: ...

        @contract
        def rank_alone(x: Float[Tensor, "b j k"]) -> None: ...

        modes.rejects(rank_alone, strided)
        raised = modes.rejects(f, strided, T(2))
        assert isinstance(raised, TypeError)
        assert (
            str(raised) == "x: is a nested tensor of layout torch.strided, which has no sizes; layout=torch.jagged has"
        )
        for _ in range(30):
            f(T(2, 3, 4), T(2))
        modes.rejects(f, strided, T(2))

    def test_g8_buffers_parameters_subclasses(self, modes: Any) -> None:
        class Mine(Tensor):
            pass

        for kind in (torch.nn.Parameter, torch.nn.Buffer, lambda t: t.as_subclass(Mine)):
            modes.accepts(pair, kind(T(2, 3)), T(3))
            assert str(modes.rejects(pair, kind(T(2, 3)), T(2))).startswith("y: axis 0 (m) is 2")

    def test_g8_functorch(self, modes: Any) -> None:
        batched = T(5, 2, 3)
        assert torch.vmap(lambda x: x.sum() if modes(pair, x, T(3)) == "reached" else None)(batched).shape == (5,)

        def inside(x: Tensor) -> Tensor:
            modes.rejects(pair, x, T(2))
            modes.accepts(strict, x, T(2, 3))
            return x.sum()

        torch.vmap(inside)(batched)
        torch.func.grad(inside)(T(2, 3))

    def test_g8_no_axes_and_no_elements(self, modes: Any) -> None:
        @contract
        def f(x: Float[Tensor, ""], y: Float[Tensor, "0 n"], z: Int[Tensor, " n"]) -> None: ...

        modes.accepts(f, torch.tensor(1.0), T(0, 3), T(3).long())
        modes.rejects(f, torch.tensor(1.0), T(1, 3), T(3).long())
        modes.accepts(strict, T(0, 3), T(0, 3))


class TestOtherArrays:
    """Arrays of other libraries where the annotation says so, read through shape and dtype alone."""

    class ScalarType:
        """As ``jax.numpy.dtype``: the name is that of ``dtype.type``."""

        def __init__(self, name: str) -> None:
            self.type = type(name, (), {})

    class JaxLike:
        """What the engine reads of a JAX array."""

        def __init__(self, shape: tuple[int, ...], name: str) -> None:
            self.shape, self.dtype = shape, TestOtherArrays.ScalarType(name)

    def test_a_class_like_that_of_jax(self, modes: Any) -> None:
        array = self.JaxLike

        @contract
        def f(x: Float[array, "n m"], y: Float[Tensor, " n"], z: Float[Any, " m"] | None = None) -> None: ...

        modes.accepts(f, array((2, 3), "bfloat16"), T(2), array((3,), "float32"))
        modes.accepts(f, array((2, 3), "bfloat16"), T(2), np.zeros(3))
        assert str(modes.rejects(f, array((2, 3), "int32"), T(2))) == "x: dtype is int32, expected Float"
        assert str(modes.rejects(f, array((2, 3), "float32"), T(3))).startswith("y: axis 0 (n) is 3, but n is 2 (x ax")
        assert str(modes.rejects(f, T(2, 3), T(2))) == "x: expected a JaxLike [n, m], got Tensor"

    def test_jax_itself(self, modes: Any) -> None:
        jax = pytest.importorskip("jax", reason="jax is not installed; it is no dependency of this package")

        @contract
        def f(x: Float[jax.Array, "n m"], y: Float[Tensor, " n"]) -> None: ...

        modes.accepts(f, jax.numpy.zeros((2, 3)), T(2))
        modes.accepts(f, jax.numpy.zeros((2, 3), jax.numpy.bfloat16), T(2))
        modes.rejects(f, jax.numpy.zeros((2, 3), int), T(2))
        modes.rejects(f, jax.numpy.zeros((2, 3)), T(3))

    def test_constraints_stay_with_torch(self) -> None:
        with pytest.raises(Exception, match="another array class"):

            @contract
            def f(x: Annotated[Float[np.ndarray, " n"], DenseLast()]) -> None: ...


def test_violations_have_no_data(mesh: DeviceMesh) -> None:
    with pytest.raises(ContractViolation) as caught:
        pair(distribute_tensor(torch.full((4, 3), 7.25), mesh, [Shard(0)]), T(3))
    assert "7.25" not in str(caught.value) + caught.value.__notes__[0]
