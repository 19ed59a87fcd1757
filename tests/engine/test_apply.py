"""Contracts on functions of somebody else: put on before and after the import, found everywhere, taken off again."""

import asyncio
import functools
import importlib
import inspect
import itertools
import pickle
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import tensorpact
from tensorpact import Contract, ContractDefinitionError, ContractViolation, DocumentedError, apply
from tensorpact.clauses import require
from tensorpact.integrations import (
    AlreadyAppliedError,
    ApplyError,
    LeftInPlaceWarning,
    NotCallableError,
    OperatorTargetError,
    StubMismatchError,
    TargetNotFoundError,
    install_import_hook,
    judge,
    overlay,
)

UNEQUAL = DocumentedError("unequal", ValueError, "x has {x.size(0)} rows, y {y.size(0)}")
SUM = Contract("add", clauses=[require(lambda x, y: x.size(0) == y.size(0), error=UNEQUAL)])
SOURCE = '''
import torch

def add(x, y, alpha=1):
    """Add."""
    return x + alpha * y

async def add_later(x, y):
    return x + y

def adds(x, y):
    yield x + y

async def adds_later(x, y):
    yield x + y

def annotated(x: "torch.Tensor", n: int) -> "torch.Tensor":
    return x * n

class Base:
    def inherited(self, x, y):
        return x + y

class Adder(Base):
    factor = 2
    @property
    def size(self):
        return 1
    def plus(self, x, y):
        return self.factor * (x + y)
    @staticmethod
    def static(x, y):
        return x + y
    @classmethod
    def on_class(cls, x, y):
        return cls.factor * (x + y)

number = 3
'''
ROWS_3, ROWS_2 = torch.ones(3, 2), torch.ones(2, 2)
_names = itertools.count()


def stub(x: Float[Tensor, "n m"], y: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]: ...


def method_stub(self: Any, x: Float[Tensor, "n m"], y: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]: ...


def class_stub(cls: Any, x: Float[Tensor, "n m"], y: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]: ...


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package on the path that nothing has imported yet."""
    name = f"foreign_package_{next(_names)}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("imported = True\n", encoding="utf-8")
    (folder / "ops.py").write_text(textwrap.dedent(SOURCE), encoding="utf-8")
    (folder / "user.py").write_text(
        f"from {name}.ops import add, add as plus\nimport {name}.ops as ops\n"
        "def total(x, y):\n    return add(x, y)\n"
        "class Layer:\n    combine = staticmethod(add)\n    direct = add\n    class Inner:\n        add = add\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield name
    assert sys.meta_path == finders, "a finder stays behind"
    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
        del sys.modules[module]


@pytest.fixture
def ops(package: str) -> ModuleType:
    return importlib.import_module(f"{package}.ops")


def broken(call: Callable[[], Any], says: str = "x has 3 rows, y 2") -> None:
    with pytest.raises(ContractViolation) as caught:
        call()
    assert (type(caught.value).__bases__[1], str(caught.value)) == (ValueError, says)


def test_after_the_import(ops: ModuleType):
    before = ops.add
    with apply(SUM, f"{ops.__name__}:add", stub=stub) as applied:
        assert (applied.active, applied.pending) == (True, False)
        assert applied.places == (f"{ops.__name__}.add",)
        assert torch.equal(ops.add(ROWS_3, ROWS_3, alpha=2), 3 * ROWS_3)
        broken(lambda: ops.add(ROWS_3, ROWS_2))
    assert ops.add is before
    assert not applied.active
    assert repr(applied) == f"<contract on {ops.__name__}:add, removed>"


def test_before_the_import(package: str):
    with apply(SUM, f"{package}.ops:add", stub=stub) as applied:
        assert applied.pending
        assert package not in sys.modules
        user = importlib.import_module(f"{package}.user")
        assert applied.active
        broken(lambda: user.total(ROWS_3, ROWS_2))
        broken(lambda: user.Layer.combine(ROWS_3, ROWS_2))
    # What took the contracted function by name goes straight to the foreign one.
    with pytest.raises(RuntimeError, match="must match the size"):
        user.total(ROWS_3, ROWS_2)
    assert user.add is not user.ops.add


def test_a_handle_that_is_removed_before_the_import_does_nothing(package: str):
    applied = apply(SUM, f"{package}.ops:add", stub=stub)
    assert applied.remove() == ()
    assert not hasattr(importlib.import_module(f"{package}.ops").add, "__tensorpact__")


@pytest.mark.parametrize("order", ["hook first", "contract first"])
def test_before_the_import_beside_the_import_hook(package: str, order: str):
    name = f"{package}.ops"
    if order == "hook first":
        with install_import_hook(package), apply(SUM, f"{name}:add", stub=stub):
            ops = importlib.import_module(name)
            broken(lambda: ops.add(ROWS_3, ROWS_2))
    else:
        with apply(SUM, f"{name}:add", stub=stub), install_import_hook(package):
            ops = importlib.import_module(name)
            broken(lambda: ops.add(ROWS_3, ROWS_2))
    # The function that the hook has contracted is there too.
    with pytest.raises(TypeError, match="n"):
        ops.annotated(ROWS_3, "3")


def test_a_contract_takes_the_place_of_what_the_hook_made_and_gives_it_back(package: str):
    with install_import_hook(package):
        ops = importlib.import_module(f"{package}.ops")
    hooked = ops.annotated
    with apply(Contract("annotated", clauses=[require(lambda n: n > 0)]), f"{package}.ops:annotated"):
        assert ops.annotated is not hooked
        with pytest.raises(ValueError, match=r"^requirement 0 of annotated does not hold: n=0"):
            ops.annotated(ROWS_3, 0)
    assert ops.annotated is hooked


def test_a_finder_in_front_does_not_hide_the_module(package: str, monkeypatch: pytest.MonkeyPatch):
    from importlib.machinery import PathFinder

    class Greedy:
        @staticmethod
        def find_spec(name: str, path: Any, target: Any = None) -> Any:
            return PathFinder.find_spec(name, path, target) if name.startswith(package) else None

    with apply(SUM, f"{package}.ops:add", stub=stub) as applied:
        monkeypatch.setattr(sys, "meta_path", [Greedy, *sys.meta_path])
        ops = importlib.import_module(f"{package}.ops")
        assert applied.active
        broken(lambda: ops.add(ROWS_3, ROWS_2))
        monkeypatch.undo()


def test_a_reloaded_module_is_contracted_again(ops: ModuleType):
    with apply(SUM, f"{ops.__name__}:add", stub=stub) as applied:
        importlib.reload(ops)
        broken(lambda: ops.add(ROWS_3, ROWS_2))
        assert applied.active
    assert not hasattr(ops.add, "__tensorpact__")


def test_everywhere_in_the_packages_named(package: str):
    user = importlib.import_module(f"{package}.user")
    before = user.add
    with apply(SUM, f"{package}.ops:add", stub=stub, packages=package) as applied:
        assert set(applied.places) == {
            f"{package}.{place}"
            for place in (
                "ops.add", "user.add", "user.plus", "user.Layer.combine", "user.Layer.direct", "user.Layer.Inner.add",
            )
        }  # fmt: skip
        for call in (user.total, user.plus, user.Layer.combine, user.Layer.direct, user.Layer.Inner.add):
            broken(functools.partial(call, ROWS_3, ROWS_2))
        assert isinstance(inspect.getattr_static(user.Layer, "combine"), staticmethod)
        # One more name, taken while the contract is on.
        user.late = user.ops.add
    names = (user.add, user.plus, user.Layer.combine, user.Layer.direct, user.Layer.Inner.add, user.late, user.ops.add)
    assert all(name is before for name in names)


def test_elsewhere_only_where_asked(package: str):
    user = importlib.import_module(f"{package}.user")
    with apply(SUM, f"{package}.ops:add", stub=stub):
        with pytest.raises(RuntimeError, match="must match the size"):
            user.total(ROWS_3, ROWS_2)
        broken(lambda: user.ops.add(ROWS_3, ROWS_2))


def test_what_is_exchanged_beside_it(ops: ModuleType):
    class Asking:
        @classmethod
        def own(cls, function: Any) -> bool:
            return function is ops.add

    def beside(foreign: Any) -> Iterator[tuple[Any, str, Any]]:
        yield Asking, "own", lambda cls, function: function is foreign

    before = vars(Asking)["own"]
    made = overlay(f"{ops.__name__}:add", SUM, beside=beside)(stub)
    bare = ops.add
    with apply(made) as applied:
        assert Asking.own(bare)
        assert not Asking.own(ops.add)
        assert applied.places[1].endswith("Asking.own")
        importlib.reload(ops)
        assert not Asking.own(bare)
        assert len(applied.places) == 2
        broken(lambda: ops.add(ROWS_3, ROWS_2))
    assert vars(Asking)["own"] is before
    assert Asking.own(ops.add)


def test_methods_of_every_kind(ops: ModuleType):
    name, adder = ops.__name__, ops.Adder()
    kinds = {n: vars(ops.Adder)[n] for n in ("plus", "static", "on_class")}
    with (
        apply(SUM, f"{name}:Adder.plus", stub=method_stub),
        apply(SUM, f"{name}:Adder.static", stub=stub),
        apply(SUM, f"{name}:Adder.on_class", stub=class_stub),
        apply(SUM, f"{name}:Adder.inherited", stub=method_stub),
    ):
        for call in (adder.plus, adder.static, adder.on_class, adder.inherited, ops.Adder.static, ops.Adder.on_class):
            broken(functools.partial(call, ROWS_3, ROWS_2))
            assert call(ROWS_3, ROWS_3).shape == (3, 2)
        with pytest.raises(RuntimeError, match="must match the size"):
            ops.Base().inherited(ROWS_3, ROWS_2)
    assert {n: vars(ops.Adder)[n] for n in kinds} == kinds
    assert "inherited" not in vars(ops.Adder)


def test_coroutines_and_generators_stay_what_they_are(ops: ModuleType):
    name = ops.__name__

    async def first(source: Any) -> Any:
        return await anext(source)

    async def plain_stub(x: Float[Tensor, "n m"], y: Float[Tensor, "k m"]) -> Any: ...

    with (
        apply(SUM, f"{name}:add_later", stub=plain_stub),
        apply(SUM, f"{name}:adds", stub=plain_stub),
        apply(SUM, f"{name}:adds_later", stub=plain_stub),
    ):
        assert inspect.iscoroutinefunction(ops.add_later)
        assert inspect.isgeneratorfunction(ops.adds)
        assert inspect.isasyncgenfunction(ops.adds_later)
        assert asyncio.run(ops.add_later(ROWS_3, ROWS_3)).shape == (3, 2)
        assert next(ops.adds(ROWS_3, ROWS_3)).shape == (3, 2)
        assert asyncio.run(first(ops.adds_later(ROWS_3, ROWS_3))).shape == (3, 2)
        broken(lambda: asyncio.run(ops.add_later(ROWS_3, ROWS_2)))
        broken(lambda: next(ops.adds(ROWS_3, ROWS_2)))
        broken(lambda: asyncio.run(first(ops.adds_later(ROWS_3, ROWS_2))))


def test_annotations_of_the_function_itself(ops: ModuleType):
    with apply(None, f"{ops.__name__}:annotated"):
        assert ops.annotated(ROWS_3, 2).sum() == 12
        with pytest.raises(TypeError, match="n"):
            ops.annotated(ROWS_3, "2")


def test_what_functools_and_pickle_see(ops: ModuleType):
    before = ops.add
    with apply(SUM, f"{ops.__name__}:add", stub=stub):
        made = ops.add
        assert (made.__name__, made.__qualname__, made.__module__) == ("add", "add", ops.__name__)
        assert made.__doc__ == "Add."
        assert inspect.unwrap(made) is before
        assert list(inspect.signature(made).parameters) == ["x", "y", "alpha"]
        assert inspect.signature(made).parameters["alpha"].default == 1
        assert pickle.loads(pickle.dumps(made)) is made
        assert pickle.loads(pickle.dumps(functools.partial(made, ROWS_3)))(ROWS_3).shape == (3, 2)
    assert pickle.loads(pickle.dumps(ops.add)) is before


def test_a_function_that_is_exported_elsewhere_is_pickled_by_the_name_it_was_given(package: str):
    user = importlib.import_module(f"{package}.user")
    with apply(SUM, f"{package}.user:plus", stub=stub):
        assert pickle.loads(pickle.dumps(user.plus)) is user.plus


def test_compile_in_one_graph(ops: ModuleType):
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def model(x: Tensor, y: Tensor) -> Tensor:
        return 2 * ops.add(x, y)

    with apply(SUM, f"{ops.__name__}:add", stub=stub):
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        assert torch.equal(compiled(ROWS_3, ROWS_3), 4 * ROWS_3)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="x has 3 rows, y 2"):
            compiled(ROWS_3, ROWS_2)
        assert len(graphs) == 1
    assert torch.equal(compiled(ROWS_3, ROWS_3), 4 * ROWS_3)
    torch.compiler.reset()


@pytest.mark.parametrize("mode", ["compiled", "beartype"])
def test_both_modes(ops: ModuleType, mode: Any):
    with apply(SUM, f"{ops.__name__}:add", stub=stub, check_returns=True), tensorpact.enforcement(mode):
        assert ops.add(ROWS_3, ROWS_3).shape == (3, 2)
        broken(lambda: ops.add(ROWS_3, ROWS_2))
        with pytest.raises(ValueError, match="y: axis 1"):
            ops.add(ROWS_3, torch.ones(3, 4))


def test_nesting_in_any_order(ops: ModuleType):
    first = apply(SUM, f"{ops.__name__}:add", stub=stub)
    second = apply(SUM, f"{ops.__name__}:Adder.static", stub=stub)
    first.remove()
    broken(lambda: ops.Adder.static(ROWS_3, ROWS_2))
    third = apply(SUM, f"{ops.__name__}:add", stub=stub)
    second.remove()
    broken(lambda: ops.add(ROWS_3, ROWS_2))
    third.remove()
    assert first.remove() == ()
    assert not hasattr(ops.add, "__tensorpact__")


def test_what_somebody_else_put_there_later_stays(ops: ModuleType, monkeypatch: pytest.MonkeyPatch):
    applied = apply(SUM, f"{ops.__name__}:add", stub=stub)
    ours = ops.add

    @functools.wraps(ours)
    def theirs(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(ops, "add", theirs)
        with pytest.raises(AlreadyAppliedError, match="behind what now wraps it"):
            apply(SUM, f"{ops.__name__}:add", stub=stub)
        with pytest.warns(LeftInPlaceWarning, match=rf"somebody else has changed {ops.__name__}\.add since"):
            assert applied.remove() == (f"{ops.__name__}.add",)
        assert ops.add is theirs
        with pytest.raises(RuntimeError, match="must match the size"):
            ops.add(ROWS_3, ROWS_2)
    # Their patch is off and ours is back, as they found it: it checks nothing any more, and can be replaced.
    assert ops.add is ours
    with pytest.raises(RuntimeError, match="must match the size"):
        ops.add(ROWS_3, ROWS_2)
    with apply(SUM, f"{ops.__name__}:add", stub=stub):
        broken(lambda: ops.add(ROWS_3, ROWS_2))


def test_a_checked_return_retires_too(ops: ModuleType):
    def wrong(x: Float[Tensor, "n m"], y: Any) -> Float[Tensor, "n 7"]: ...

    applied = apply(None, f"{ops.__name__}:add", stub=wrong, check_returns=True)
    held = ops.add
    with pytest.raises(ValueError, match="7"):
        held(ROWS_3, ROWS_3)
    applied.remove()
    assert held(ROWS_3, ROWS_3).shape == (3, 2)


def test_a_method_that_was_never_called_retires_too(ops: ModuleType):
    applied = apply(SUM, f"{ops.__name__}:Adder.plus", stub=method_stub)
    held = ops.Adder.plus
    applied.remove()
    with pytest.raises(RuntimeError, match="must match the size"):
        held(ops.Adder(), ROWS_3, ROWS_2)


def refused(error: type[Exception], says: str, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(error) as caught:
        apply(*args, **kwargs)
    assert says in str(caught.value)


def test_a_name_that_is_not_there(ops: ModuleType):
    name = ops.__name__
    refused(
        TargetNotFoundError,
        f"{name}:ad: {name} has no 'ad' although the module is imported; near it: add",
        SUM,
        f"{name}:ad",
        stub=stub,
    )
    refused(TargetNotFoundError, f"{name}.Adder has no 'pluss'; near it: plus", SUM, f"{name}:Adder.pluss", stub=stub)


def test_a_module_that_is_not_there(package: str):
    refused(
        TargetNotFoundError,
        f"no module '{package[:-1]}x' is installed; near it: {package}",
        SUM,
        f"{package[:-1]}x.ops:add",
    )
    with pytest.raises(TargetNotFoundError) as caught:
        apply(SUM, "jsonn:loads", stub=stub)
    assert str(caught.value).split("near it: ")[1].split(", ").count("json") == 1
    refused(TargetNotFoundError, f"{package} has no module 'opps'; near it: ops", SUM, f"{package}.opps:add")
    refused(TargetNotFoundError, f"{package}.ops is a module, not a package", SUM, f"{package}.ops.inner:add")
    assert package not in sys.modules


def test_a_name_that_is_gone_when_the_module_comes(package: str):
    applied = apply(SUM, f"{package}.ops:added", stub=stub)
    with pytest.raises(TargetNotFoundError, match="has no 'added' although the module is imported; near it: add"):
        importlib.import_module(f"{package}.ops")
    applied.remove()
    importlib.import_module(f"{package}.ops")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("number", "is a int, and not callable"),
        ("Adder", "is a class; name a method of it, or its __init__"),
        ("Adder.size", "is a property"),
    ],
)
def test_what_is_no_function(ops: ModuleType, name: str, says: str):
    refused(NotCallableError, says, SUM, f"{ops.__name__}:{name}", stub=stub)


def test_a_kernel_is_not_taken_for_a_function(ops: ModuleType):
    class Kernel:
        def __getitem__(self, grid: Any) -> Any:
            return self

        def __call__(self, *args: Any) -> None: ...

    ops.kernel = Kernel()
    refused(NotCallableError, "subscripted before it is called; name its launcher", SUM, f"{ops.__name__}:kernel")


def test_twice_on_one_function(ops: ModuleType):
    with apply(SUM, f"{ops.__name__}:add", stub=stub):
        kept = ops.add
        refused(AlreadyAppliedError, "has a contract already: add, on", SUM, f"{ops.__name__}:add", stub=stub)
        assert ops.add is kept


@pytest.mark.parametrize("text", ["no_colon", "a.b:", ":f", "a b:f", "a:f g"])
def test_a_name_that_is_none(text: str):
    refused(ValueError, "write pkg.mod:function", SUM, text)


def test_what_is_no_contract(ops: ModuleType):
    refused(TypeError, "neither a contract nor an overlay", ops.add, f"{ops.__name__}:add")
    refused(TypeError, "needs a target", SUM)
    refused(TypeError, "a stub is a function", SUM, f"{ops.__name__}:add", stub=len)


def test_a_stub_with_a_renamed_parameter(ops: ModuleType):
    def old(x: Float[Tensor, "n m"], yy: Float[Tensor, "k m"]) -> Any: ...

    kept = ops.add
    refused(
        StubMismatchError,
        "the stub names what the function does not have: yy; near it: y; it has (x, y, alpha=1)",
        Contract("add"),
        f"{ops.__name__}:add",
        stub=old,
    )
    assert ops.add is kept


def test_a_stub_without_a_parameter_that_a_call_must_give(ops: ModuleType):
    def short(x: Float[Tensor, "n m"]) -> Any: ...

    refused(
        StubMismatchError,
        "a call must give y, which the stub does not name",
        Contract("add"),
        f"{ops.__name__}:add",
        stub=short,
    )


def test_a_contract_that_does_not_fit_changes_nothing(ops: ModuleType):
    kept = ops.add
    wrong = Contract("add", clauses=[require(lambda z: z > 0)])
    refused(ContractDefinitionError, "z", wrong, f"{ops.__name__}:add", stub=stub)
    assert ops.add is kept
    assert not [f for f in sys.meta_path if getattr(f, "stays_first", False)]


def test_a_new_optional_parameter_passes_unchecked_and_defaults_are_the_functions(ops: ModuleType):
    def other_default(x: Float[Tensor, "n m"], y: Float[Tensor, "k m"], alpha: int = 7) -> Any: ...

    with apply(SUM, f"{ops.__name__}:add", stub=stub):
        assert ops.add(ROWS_3, ROWS_3, 4).max() == 5
    with apply(SUM, f"{ops.__name__}:add", stub=other_default):
        assert ops.add(ROWS_3, ROWS_3).max() == 2
        with pytest.raises(TypeError, match="alpha"):
            ops.add(ROWS_3, ROWS_3, "1")


def test_order_and_stars_are_the_functions(ops: ModuleType):
    def swapped(y: Float[Tensor, "k m"], x: Float[Tensor, "n m"], more: int = 3) -> Any: ...

    def real(x: Any, /, y: Any, *rest: Any, **names: Any) -> Any:
        return x, y, rest, names

    ops.real = real
    with apply(SUM, f"{ops.__name__}:real", stub=swapped):
        x, y, rest, names = ops.real(ROWS_3, 2 * ROWS_3, 5, 6, more=4, other=8)
        assert (float(x.max()), float(y.max()), rest, names) == (1, 2, (5, 6), {"more": 4, "other": 8})
        with pytest.raises(TypeError, match="more"):
            ops.real(ROWS_3, ROWS_3, more="4")


def test_a_function_of_bare_stars_takes_the_parameters_of_the_stub(ops: ModuleType):
    ops.real = lambda *args, **kwargs: (args, kwargs)
    with apply(SUM, f"{ops.__name__}:real", stub=stub):
        args, kwargs = ops.real(ROWS_3, y=ROWS_3)
        assert (len(args), kwargs) == (2, {})
        broken(lambda: ops.real(ROWS_3, ROWS_2))


def test_a_callable_object_keeps_what_else_it_offers(ops: ModuleType):
    ops.cached = functools.lru_cache(ops.add)
    with apply(SUM, f"{ops.__name__}:cached", stub=stub):
        ops.cached(ROWS_3, ROWS_3)
        ops.cached(ROWS_3, ROWS_3)
        assert ops.cached.cache_info().hits == 1
    assert type(ops.cached) is functools._lru_cache_wrapper


def test_a_builtin_without_a_stub(ops: ModuleType):
    ops.cached = functools.lru_cache(ops.add)
    refused(ApplyError, "is a _lru_cache_wrapper without annotations; give stub=", SUM, f"{ops.__name__}:cached")


def mm_stub(input: Float[Tensor, "n k"], mat2: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]: ...  # noqa: A002


def test_a_builtin_of_torch():
    before = torch.mm
    with apply(Contract("mm"), "torch:mm", stub=mm_stub):
        assert torch.mm(ROWS_3, torch.ones(2, 5)).shape == (3, 5)
        assert torch.mm(ROWS_3, mat2=torch.ones(2, 5)).shape == (3, 5)
        with pytest.raises(ValueError, match=r"^mat2: axis 0 \(k\) is 3, but k is 2"):
            torch.mm(ROWS_3, ROWS_3)
        assert pickle.loads(pickle.dumps(torch.mm)) is torch.mm
    assert torch.mm is before


def test_a_method_of_the_tensor():
    def add_stub(self: Float[Tensor, "n m"], other: Float[Tensor, "n m"]) -> Any: ...

    before = vars(torch.Tensor).get("matmul")
    with (
        apply(Contract("matmul"), "torch:Tensor.matmul", stub=add_stub),
        pytest.raises(ValueError, match=r"^other: axis 0"),
    ):
        ROWS_3.matmul(ROWS_2)
    assert vars(torch.Tensor).get("matmul") is before


def test_a_class_that_cannot_be_changed(ops: ModuleType):
    def append(self: Any, object: Any) -> Any: ...  # noqa: A002

    refused(ApplyError, "append of <class 'list'> cannot be exchanged", None, "builtins:list.append", stub=append)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (
            "torch.ops.aten.mm",
            "torch.ops.aten.mm is one of torch's own operators, which torch.compile looks up by these",
        ),
        ("torch.ops:aten.mm.default", "torch.ops.aten.mm.default is one of torch's own operators"),
        ("torch:ops.prims.add", "torch.ops.prims.add is one of torch's own operators"),
        ("torch.ops.inductor.any", "; put the contract on the Python function that calls it"),
        (
            "torch.ops.mine.scale.default",
            "torch.ops.mine.scale.default is one overload of an operator, and torch.compile traces no function in its "
            "place; name the operator, torch.ops.mine.scale, or put the contract on the Python function that calls it",
        ),
    ],
)
def test_an_operator_that_torch_needs_as_it_is(target: str, says: str):
    before = torch.ops.aten.mm
    refused(OperatorTargetError, says, SUM, target, stub=stub)
    assert torch.ops.aten.mm is before


def test_every_namespace_that_torch_brings_is_its_own():
    code = """
        import torch
        from tensorpact.integrations import OperatorTargetError, apply
        from tensorpact import Contract

        missed = set()
        for namespace in {schema.name.split("::")[0] for schema in torch._C._jit_get_all_schemas()}:
            try:
                apply(Contract("any"), f"torch.ops.{namespace}.any_that_is_not_there")
            except OperatorTargetError:
                continue
            except LookupError:
                missed.add(namespace)
        print(sorted(missed))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


def test_an_operator_of_a_library():
    library = torch.library.Library("tensorpact_test_apply", "DEF")
    try:
        library.define("scale(Tensor x, float factor, *, bool flip=False) -> Tensor")
        library.impl("scale", lambda x, factor, flip=False: (-x if flip else x) * factor, "CompositeExplicitAutograd")

        def scale(x: Float[Tensor, "n m"], factor: float) -> Float[Tensor, "n m"]: ...

        def wrong(x: Float[Tensor, "n m"], factors: float) -> Any: ...

        name = "torch.ops.tensorpact_test_apply.scale"
        op = torch.ops.tensorpact_test_apply.scale
        refused(StubMismatchError, f"{name}: the stub names what", None, name, stub=wrong)
        refused(TargetNotFoundError, f"{name}d: torch.ops.tensorpact_test_apply has no", None, f"{name}d", stub=scale)
        with apply(None, name, stub=scale, check_returns=True) as applied:
            assert applied.target == name
            call = torch.ops.tensorpact_test_apply.scale
            # The packet's overloads stay reachable, themselves.
            assert call is not op
            assert call.default is op.default
            assert call.overloads() == ["default"]
            assert call(ROWS_3, 2.0).sum() == 12
            assert call(ROWS_3, 2.0, flip=True).sum() == -12  # not in the stub, handed on
            with pytest.raises(ValueError, match=r"^x: expected 2 axes"):
                call(torch.ones(3), 2.0)
        with apply(None, name, stub=scale):
            compiled = torch.compile(
                lambda x: torch.ops.tensorpact_test_apply.scale(x, 2.0) + 1, backend="eager", fullgraph=True
            )
            assert torch.equal(compiled(ROWS_3), torch.full((3, 2), 3.0))
        assert torch.ops.tensorpact_test_apply.scale is op
    finally:
        library._destroy()
        torch.compiler.reset()


def test_judging_what_is_no_overlay(ops: ModuleType):
    with pytest.raises(TypeError, match="is no overlay"):
        judge(ops.add, ROWS_3, ROWS_3)


def test_an_overlay_is_called_in_place_of_a_function_of_more_parameters(package: str):
    @overlay(f"{package}.ops:add", SUM)
    def add(x: Float[Tensor, "n m"], y: Float[Tensor, "k m"], *, alpha: int = 1) -> Any:
        """Add."""

    assert f"{package}.ops" not in sys.modules
    judge(add, ROWS_3, ROWS_3)
    assert f"{package}.ops" not in sys.modules
    assert add(ROWS_3, ROWS_3, alpha=2).max() == 3
    broken(lambda: add(ROWS_3, ROWS_2))
    broken(lambda: judge(add, ROWS_3, ROWS_2))
    ops = sys.modules[f"{package}.ops"]
    with apply(add) as applied:
        broken(lambda: ops.add(ROWS_3, ROWS_2))
        assert add(ROWS_3, ROWS_3).max() == 2
        assert applied.target == f"{package}.ops:add"


def test_switched_off_at_import(ops: ModuleType, monkeypatch: pytest.MonkeyPatch):
    from tensorpact import _decorator

    monkeypatch.setattr(_decorator, "disabled", True)
    kept = ops.add
    with apply(SUM, f"{ops.__name__}:add", stub=stub) as applied:
        assert ops.add is kept
        assert (applied.active, applied.pending) == (False, False)


def test_a_module_that_is_late_and_does_not_fit_is_said(package: str):
    applied = apply(SUM, f"{package}.ops:gone", stub=stub)
    sys.modules[f"{package}.ops"] = SimpleNamespace(__spec__=None, __name__=f"{package}.ops")  # type: ignore[assignment]
    with pytest.warns(RuntimeWarning, match="has no 'gone'"), warnings.catch_warnings(record=False):
        importlib.util.find_spec("no_such_module_for_apply")
    with pytest.raises(TargetNotFoundError):
        _ = applied.active
    applied.remove()
