"""The import hook: what it contracts, what it leaves alone, and what it refuses to be silent about."""

import asyncio
import dataclasses
import importlib
import linecache
import py_compile
import runpy
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError

from tensorpact import ContractDefinitionError, ContractViolation, install_import_hook
from tensorpact._entry import entry_of
from tensorpact.integrations import AlreadyImportedError, ImportHook, _import_hook
from tensorpact.testing import raises

T = torch.zeros
HEAD = """
    import dataclasses
    import functools
    import typing
    from typing import no_type_check
    from jaxtyping import Float
    from torch import Tensor
    import tensorpact
    from tensorpact import Contract, DocumentedError, contract
    from tensorpact.clauses import rank, same_dim
"""


class Packages:
    """Writes packages and imports them under the hook."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names: set[str] = set()

    def write(self, path: str, source: str, head: str = HEAD) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(head) + textwrap.dedent(source), encoding="utf-8")
        self.names.add(path.split("/", maxsplit=1)[0].removesuffix(".py"))
        importlib.invalidate_caches()
        return file

    def load(self, source: str, name: str = "hooked_mod", head: str = HEAD, **options: Any) -> ModuleType:
        self.write(f"{name}.py", source, head)
        with install_import_hook(name, **options):
            return importlib.import_module(name)

    def forget(self) -> None:
        for name in list(sys.modules):
            if name.split(".")[0] in self.names:
                del sys.modules[name]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Packages(tmp_path)
    yield made
    made.forget()
    assert not any(isinstance(finder, ImportHook) for finder in sys.meta_path), "a hook is left over"


def refuses(call: Callable[..., Any], *args: Any) -> ContractViolation:
    with pytest.raises(ContractViolation) as caught:
        call(*args)
    return caught.value


class TestContracts:
    """I1: every kind of definition."""

    SOURCE = """
    def function(x: Float[Tensor, "n n"]) -> int:
        return 1

    async def coroutine(x: Float[Tensor, "n n"]) -> int:
        return 1

    def generator(x: Float[Tensor, "n n"]):
        yield 1

    def outer(x):
        def inner(y: Float[Tensor, "n n"]) -> int:
            return 1
        return inner(x)

    class Methods:
        def method(self, x: Float[Tensor, "n n"]) -> int:
            return 1

        async def awaited(self, x: Float[Tensor, "n n"]) -> int:
            return 1

        @staticmethod
        def static(x: Float[Tensor, "n n"]) -> int:
            return 1

        @classmethod
        def of_class(cls, x: Float[Tensor, "n n"]) -> int:
            return 1

        @property
        def held(self) -> int:
            return 1

        @held.setter
        def held(self, x: Float[Tensor, "n n"]) -> None:
            pass

        class Within:
            def method(self, x: Float[Tensor, "n n"]) -> int:
                return 1

    if True:
        try:
            def branched(x: Float[Tensor, "n n"]) -> int:
                return 1
        finally:
            pass
    """

    @pytest.fixture(params=["evaluated", "text"])
    def module(self, packages: Packages, request: pytest.FixtureRequest) -> ModuleType:
        future = '\n"""Doc."""\nfrom __future__ import annotations\n'
        return packages.load(self.SOURCE, head=HEAD if request.param == "evaluated" else future + textwrap.dedent(HEAD))

    def test_i1_every_callable(self, module: ModuleType) -> None:
        right, wrong, made = T(2, 2), T(2, 3), module.Methods()
        calls = {
            "function": module.function,
            "coroutine": lambda x: asyncio.run(module.coroutine(x)),
            "generator": lambda x: list(module.generator(x)),
            "outer.<locals>.inner": module.outer,
            "branched": module.branched,
            "Methods.method": made.method,
            "Methods.awaited": lambda x: asyncio.run(made.awaited(x)),
            "Methods.static": module.Methods.static,
            "Methods.of_class": module.Methods.of_class,
            "Methods.held": lambda x: setattr(made, "held", x),
            "Methods.Within.method": module.Methods.Within().method,
        }
        for name, call in calls.items():
            call(right)
            assert refuses(call, wrong).entry_point == f"hooked_mod.{name}"

    def test_a_docstring_stays(self, packages: Packages) -> None:
        module = packages.load(
            "def f(x: int) -> int:\n    return x\n", head='"""Doc."""\nfrom __future__ import annotations\n'
        )
        assert module.__doc__ == "Doc."
        assert entry_of(module.f) is not None

    @pytest.mark.parametrize("text", ["", '"""Nothing but a docstring."""\n', "from __future__ import annotations\n"])
    def test_a_module_without_definitions(self, packages: Packages, text: str) -> None:
        packages.write("hooked_mod.py", text, head="")
        with install_import_hook("hooked_mod") as hook:
            importlib.import_module("hooked_mod")
        assert (hook.contracts, hook.missing) == ({"hooked_mod": 0}, ())

    def test_dataclasses(self, packages: Packages) -> None:
        module = packages.load("""
        @dataclasses.dataclass(frozen=True, slots=True)
        class Cache:
            k: Float[Tensor, "slots K"]
            v: Float[Tensor, "slots V"]

            def fill(self, row: Float[Tensor, " K"]) -> int:
                return 1

        @dataclasses.dataclass
        class Other:
            k: Float[Tensor, " n"]

        class Plain:
            k: Float[Tensor, " n"] = "unchecked"
        """)
        made = module.Cache(T(2, 3), T(2, 4))
        assert made.fill(T(3)) == 1
        assert "K is 3" in str(refuses(made.fill, T(4)))
        assert "slots" in str(refuses(module.Cache, T(2, 3), T(3, 4)))
        assert "1 axis [n]" in str(refuses(module.Other, T(2, 3)))
        assert module.Plain().k == "unchecked"

    def test_decorators_see_what_they_would_see(self, packages: Packages) -> None:
        module = packages.load("""
        order = []

        def noted(name):
            order.append(f"evaluated {name}")
            def decorate(function):
                order.append(f"applied {name} to {type(function).__name__} {function.__name__}")
                return function
            return decorate

        @noted("first")
        @noted("second")
        def f(x: Float[Tensor, " n"]) -> int:
            return 1

        @functools.cache
        def cached(n: int) -> int:
            return n

        @functools.singledispatch
        def dispatched(x: int) -> str:
            return "int"

        @dispatched.register
        def _(x: str) -> str:
            return "str"
        """)
        assert module.order == [
            "evaluated first",
            "evaluated second",
            "applied second to function f",
            "applied first to function f",
        ]
        assert module.cached(3) == 3
        assert refuses(module.cached, "3").entry_point == "hooked_mod.cached"
        assert (module.dispatched(1), module.dispatched("1")) == ("int", "str")

    def test_returns_on_request(self, packages: Packages) -> None:
        source = 'def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:\n    return x[1:]\n'
        assert packages.load(source, "hooked_loose").f(T(3)).shape == (2,)
        assert "n" in str(refuses(packages.load(source, "hooked_strict", check_returns=True).f, T(3)))

    def test_an_authors_mistake_is_loud(self, packages: Packages) -> None:
        with pytest.raises(ContractDefinitionError, match="'m', which nothing binds"):
            packages.load('def f(x: Float[Tensor, "n n+m+m*m"]) -> int:\n    return 1\n')

    def test_lines_and_sources_stay(self, packages: Packages) -> None:
        module = packages.load("\n\n@functools.cache\ndef f(x: int) -> int:\n    raise KeyError(x)\n")
        with pytest.raises(KeyError) as caught:
            module.f(1)
        last = caught.traceback[-1]
        assert linecache.getline(str(last.path), last.lineno + 1).strip() == "raise KeyError(x)"


class TestLeftAlone:
    """What says that it wants no checks."""

    def test_i1_no_type_check_on_function_and_class(self, packages: Packages) -> None:
        module = packages.load("""
        from typing import no_type_check as unchecked, overload

        @unchecked
        def f(x: Float[Tensor, "n n"]) -> int:
            def inner(y: Float[Tensor, "n n"]) -> int:
                return 1
            return inner(x)

        @typing.no_type_check
        class A:
            def method(self, x: Float[Tensor, "n n"]) -> int:
                return 1

            class Within:
                def method(self, x: Float[Tensor, "n n"]) -> int:
                    return 1

        @unchecked
        @dataclasses.dataclass
        class D:
            k: Float[Tensor, "n n"]

        @overload
        def g(x: int) -> int: ...
        @overload
        def g(x: str) -> str: ...
        def g(x): return x
        """)
        wrong = T(2, 3)
        assert [module.f(wrong), module.A().method(wrong), module.A.Within().method(wrong)] == [1, 1, 1]
        assert module.D(wrong).k is wrong
        assert module.g(wrong) is wrong

    def test_what_is_not_annotated(self, packages: Packages) -> None:
        module = packages.load("def f(x):\n    return x\n")
        assert entry_of(module.f) is None
        assert not hasattr(module.f, "__wrapped__")

    def test_other_packages(self, packages: Packages) -> None:
        packages.write("hooked_a.py", "def f(x: int) -> int:\n    return x\n")
        packages.write("hooked_ab.py", "def f(x: int) -> int:\n    return x\n")
        with install_import_hook("hooked_a") as hook:
            modules = [importlib.import_module(name) for name in ("hooked_a", "hooked_ab")]
        assert [entry_of(m.f) is not None for m in modules] == [True, False]
        assert hook.contracts == {"hooked_a": 1}

    def test_after_the_hook(self, packages: Packages) -> None:
        packages.write("hooked_pkg/__init__.py", "def f(x: int) -> int:\n    return x\n")
        packages.write("hooked_pkg/sub.py", "def f(x: int) -> int:\n    return x\n")
        hook = install_import_hook("hooked_pkg")
        first = importlib.import_module("hooked_pkg")
        hook.uninstall()
        hook.uninstall()
        second = importlib.import_module("hooked_pkg.sub")
        assert entry_of(first.f) is not None
        assert entry_of(second.f) is None

    def test_a_source_compiler_is_known_by_its_decorator(self, packages: Packages) -> None:
        module = packages.load("""
        import torch

        @torch.jit.ignore
        def f(x: int) -> int:
            return x
        """)
        assert entry_of(module.f) is None


class TestByHand:
    """D6: what is decorated by hand is contracted once, and as the hand has it."""

    SOURCE = """
    MISMATCH = DocumentedError("k-mismatch", RuntimeError, "k is {k.size(-1)}, q is {q.size(-1)}")
    CONTRACT = Contract("f", clauses=[same_dim("K", "q", "k", error=MISMATCH)])
    pact = contract

    @pact(CONTRACT)
    def direct(q: Float[Tensor, "B K"], k: Float[Tensor, "N K"]) -> int:
        return 1

    def own(function):
        return contract(CONTRACT)(function)

    @own
    def through(q: Float[Tensor, "B K"], k: Float[Tensor, "N K"]) -> int:
        return 1

    @contract(check_returns=True)
    def returning(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x[1:]

    @contract
    @dataclasses.dataclass
    class Fields:
        k: Float[Tensor, "n n"]

    @own_class if False else contract
    @dataclasses.dataclass
    class Again:
        k: Float[Tensor, "n n"]

    def wrapping(function):
        @functools.wraps(function)
        def wrapper(q, k):
            return 10 * function(q, k)
        return wrapper

    @own
    @wrapping
    def wrapped(q: Float[Tensor, "B K"], k: Float[Tensor, "N K"]) -> int:
        return 1
    """

    @pytest.mark.parametrize("name", ["direct", "through"])
    def test_d6_one_check(self, packages: Packages, name: str) -> None:
        module = packages.load(self.SOURCE)
        function = getattr(module, name)
        with raises(module.MISMATCH) as caught:
            function(T(2, 3), T(4, 5))
        assert str(caught.value) == "k is 5, q is 3"
        assert entry_of(function.__wrapped__) is None, "there is a second check inside"
        assert function(T(2, 3), T(4, 3)) == 1

    def test_d6_options_of_the_hand_win(self, packages: Packages) -> None:
        assert "n is 3" in str(refuses(packages.load(self.SOURCE).returning, T(3)))

    def test_d6_options_of_the_hook_do_not_reach_it(self, packages: Packages) -> None:
        source = """
            from tensorpact import contract

            @contract
            def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
                return x[1:]

            def g(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
                return x[1:]
        """
        module = packages.load(textwrap.dedent(source), "hooked_by_hand", check_returns=True)
        assert module.f(T(3)).shape == (2,)
        assert "n" in str(refuses(module.g, T(3)))

    def test_d6_dataclasses(self, packages: Packages) -> None:
        module = packages.load(self.SOURCE)
        for cls in (module.Fields, module.Again):
            refuses(cls, T(2, 3))
            assert not hasattr(cls.__init__.__wrapped__, "__wrapped__"), "there is a second check inside"

    def test_d6_a_wrapper_stays(self, packages: Packages) -> None:
        module = packages.load(self.SOURCE)
        assert module.wrapped(T(2, 3), T(4, 3)) == 10
        with raises(module.MISMATCH):
            module.wrapped(T(2, 3), T(4, 5))

    def test_d6_stock_by_hand(self, packages: Packages) -> None:
        module = packages.load("""
        from beartype import beartype
        from jaxtyping import jaxtyped

        @jaxtyped(typechecker=beartype)
        def f(x: Float[Tensor, "n n"]) -> int:
            return 1
        """)
        assert module.f(T(2, 2)) == 1
        with pytest.raises(TypeCheckError):
            module.f(T(2, 3))

    def test_a13_the_documented_error_wins(self, packages: Packages) -> None:
        module = packages.load("""
        NOT_3D = DocumentedError("lb-not-3d", ValueError, "lb must be 3-D")

        @contract(Contract("project", clauses=[rank("lb", error=NOT_3D)]))
        def project(lb: Float[Tensor, "B n 1"]) -> int:
            return 1

        def unstated(lb: Float[Tensor, "B n 1"]) -> int:
            if lb.ndim != 3:
                raise ValueError("lb must be 3-D")
            return 1
        """)
        with raises(module.NOT_3D) as caught:
            module.project(T(2, 3))
        assert isinstance(caught.value, ValueError)
        assert str(caught.value) == "lb must be 3-D"
        # Without a contract nothing knows the words of the body; the class is that of the body all the same.
        assert isinstance(refuses(module.unstated, T(2, 3)), ValueError)


class TestNeverSilent:
    """I3: what cannot be contracted is said."""

    def test_i3_already_imported(self, packages: Packages) -> None:
        packages.write("hooked_pkg/__init__.py", "")
        packages.write("hooked_pkg/sub.py", "")
        importlib.import_module("hooked_pkg.sub")
        with pytest.raises(
            AlreadyImportedError, match=r"unchecked: hooked_pkg, hooked_pkg\.sub; install the hook before"
        ):
            install_import_hook("hooked_pkg")

    def test_i3_a_parent_may_be_there(self, packages: Packages) -> None:
        packages.write("hooked_pkg/__init__.py", "")
        packages.write("hooked_pkg/sub.py", "def f(x: int) -> int:\n    return x\n")
        importlib.import_module("hooked_pkg")
        with install_import_hook("hooked_pkg.sub") as hook:
            importlib.import_module("hooked_pkg.sub")
        assert hook.contracts == {"hooked_pkg.sub": 1}

    def test_i3_imported_under_a_hook_alike(self, packages: Packages) -> None:
        packages.load("def f(x: int) -> int:\n    return x\n")
        with install_import_hook("hooked_mod") as hook:
            assert hook.missing == ()
        with pytest.raises(AlreadyImportedError):
            install_import_hook("hooked_mod", check_returns=True)

    def test_a_package_contracts_its_own_parts(self, packages: Packages) -> None:
        packages.write(
            "hooked_pkg/__init__.py",
            "with tensorpact.install_import_hook('hooked_pkg'):\n    from hooked_pkg import sub\n",
        )
        packages.write("hooked_pkg/sub.py", "def f(x: int) -> int:\n    return x\n")
        assert entry_of(importlib.import_module("hooked_pkg").sub.f) is not None

    def test_i4_never_imported(self) -> None:
        with install_import_hook("hooked_nowhere", "hooked_else.sub") as hook:
            assert hook.missing == ("hooked_nowhere", "hooked_else.sub")

    def test_a_loader_without_source_warns(self, packages: Packages) -> None:
        file = packages.write("hooked_mod.py", "def f(x: int) -> int:\n    return x\n")
        py_compile.compile(str(file), cfile=str(file.with_suffix(".pyc")))
        file.unlink()
        importlib.invalidate_caches()
        with (
            install_import_hook("hooked_mod"),
            pytest.warns(
                RuntimeWarning, match=r"cannot contract hooked_mod: .*SourcelessFileLoader, not from a source"
            ),
        ):
            importlib.import_module("hooked_mod")

    @pytest.mark.parametrize(
        ("names", "text"), [((), "at least one"), (("a b",), "'a b' is no name"), (("",), "no name")]
    )
    def test_names(self, names: tuple[str, ...], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            install_import_hook(*names)


class TestBytecode:
    """I1: each configuration has bytecode of its own."""

    def test_i1_switching_never_finds_the_other_bytecode(
        self, packages: Packages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "dont_write_bytecode", False)
        packages.write("hooked_mod.py", 'def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:\n    return x[1:]\n')

        def judged(check_returns: bool | None) -> str:
            sys.modules.pop("hooked_mod", None)
            if check_returns is None:
                function = importlib.import_module("hooked_mod").f
            else:
                with install_import_hook("hooked_mod", check_returns=check_returns):
                    function = importlib.import_module("hooked_mod").f
            entry = entry_of(function)
            return "plain" if entry is None else "strict" if entry.check_returns else "loose"

        modes = [None, False, True]
        names = {None: "plain", False: "loose", True: "strict"}
        for mode in [*modes, *reversed(modes), *modes]:
            assert judged(mode) == names[mode]
        cached = sorted(f.name for f in (packages.root / "__pycache__").iterdir())
        assert len(cached) == 3
        assert sum(".tensorpact-" in name for name in cached) == 2

    def test_the_cache_is_used_and_follows_the_source(
        self, packages: Packages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "dont_write_bytecode", False)
        source = "def f(x: int) -> int:\n    return x\n"
        packages.load(source)
        parsed: list[str] = []
        original = _import_hook.instrument
        monkeypatch.setattr(
            _import_hook, "instrument", lambda tree, returns: parsed.append("again") or original(tree, returns)
        )
        packages.forget()
        with install_import_hook("hooked_mod"):
            assert entry_of(importlib.import_module("hooked_mod").f) is not None
        assert parsed == []
        packages.forget()
        assert packages.load(source + "\n\ndef g(x: int) -> int:\n    return x\n").g(1) == 1
        assert parsed == ["again"]


def test_run_as_a_program(packages: Packages) -> None:
    packages.write("hooked_mod.py", "def f(x: int) -> int:\n    return x\n")
    with install_import_hook("hooked_mod"):
        assert entry_of(runpy.run_module("hooked_mod")["f"]) is not None


def test_reloading(packages: Packages) -> None:
    module = packages.load("def f(x: int) -> int:\n    return x\n")
    with install_import_hook("hooked_mod") as hook:
        assert entry_of(importlib.reload(module).f) is not None
    assert hook.contracts == {"hooked_mod": 1}


def test_the_class_of_a_dataclass_is_told_by_its_own_fields(packages: Packages) -> None:
    module = packages.load("""
    @dataclasses.dataclass
    class Base:
        k: Float[Tensor, "n n"]

    class Heir(Base):
        pass
    """)
    assert dataclasses.is_dataclass(module.Heir)
    assert "__init__" not in vars(module.Heir)
    refuses(module.Heir, T(2, 3))
