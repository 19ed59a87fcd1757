"""Statements about callables and scopes of jaxtyping, each a small program, judged by stock and both modes of ours."""

import asyncio
import functools
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple, no_type_check

import pytest
import torch
from jaxtyping import Float, Int, Shaped, jaxtyped, print_bindings
from torch import Tensor

Program = Callable[[Any], Callable[[], Any]]
PROGRAMS: list[Any] = []
#: The closed list of SEMANTICS.md and docs/design.md, as far as callables and scopes are concerned.
DIVERGENCES = {
    "default": "an omitted default and the same value given are judged alike",
    "items": "every item of a container is checked, and every time",
    "awaited": "a coroutine stays one, and what is awaited or yielded is what the return annotation speaks of",
    "string": "a hint that cannot be resolved fails loudly, and for its function alone",
    "fields": "the methods of a contracted dataclass see its fields",
    "lambda": "a lambda works, where stock raises a SyntaxError",
    "mutated": "what the body does to its arguments is not judged after it",
}
T = torch.zeros


#: Stock takes the coroutine for the value, and nobody awaits it.
UNAWAITED = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


def says(text: str, verdict: str = "accepts", *, ours: str | None = None, divergence: str = "") -> Any:
    """State what stock says of a program; ours says the same, or what a deliberate divergence has it say."""

    def keep(program: Program) -> Program:
        marks = UNAWAITED if "awaited" in text else ()
        PROGRAMS.append(pytest.param(program, verdict, ours or verdict, divergence, id=text, marks=marks))
        return program

    return keep


def matmul(check: Any) -> Any:
    @check
    def product(x: Float[Tensor, "n k"], y: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
        return x @ y

    return product


# Returned values ------------------------------------------------------------------------------------------------------


@says("a returned value is compared with the dims of the arguments")
def _(check: Any) -> Any:
    return lambda: matmul(check)(T(2, 3), T(3, 4))


@says("a returned value of another size is refused", "refuses")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, "n m"]) -> Float[Tensor, "m n"]:
        return x

    return lambda: f(T(2, 3))


@says("a returned value of another dtype is refused", "refuses")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        return x

    return lambda: f(T(2))


@says("a dim of the returned value alone takes any size")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"]) -> Float[Tensor, "n more"]:
        return x[:, None].expand(-1, 7)

    return lambda: f(T(2))


@says("an expression of the returned value is computed")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"], y: Float[Tensor, " m"]) -> Float[Tensor, " n+m"]:
        return torch.cat([x, y])

    return lambda: f(T(2), T(3))


@says("an expression of the returned value that does not come out is refused", "refuses")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n-1"]:
        return x

    return lambda: f(T(2))


@says("braces in the returned shape read an argument")
def _(check: Any) -> Any:
    @check
    def full(size: int) -> Float[Tensor, " {size}"]:
        return T(size)

    return lambda: full(3)


@says("braces in the returned shape that do not come out are refused", "refuses")
def _(check: Any) -> Any:
    @check
    def full(size: int) -> Float[Tensor, " {size}"]:
        return T(size + 1)

    return lambda: full(3)


@says("braces read an attribute of self")
def _(check: Any) -> Any:
    class Some:
        size = 5

        @check
        def full(self) -> Float[Tensor, " {self.size}+3"]:
            return T(self.size + 3)

    return lambda: Some().full()


@says("a tuple of returned tensors is one scope", "refuses")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        return x, x[:-1]

    return lambda: f(T(3))


@says("None returned where a tensor is said", "refuses")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return None  # type: ignore[return-value]

    return lambda: f(T(3))


@says("what the body resizes is judged as it came", "refuses", ours="accepts", divergence="mutated")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        y.resize_(5)
        return x

    return lambda: f(T(3), T(3))


# Scopes ---------------------------------------------------------------------------------------------------------------


@says("a function called inside another has a scope of its own")
def _(check: Any) -> Any:
    @check
    def inner(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x

    @check
    def outer(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        inner(T(9))
        return x

    return lambda: outer(T(3))


@says("a function defined inside another has a scope of its own")
def _(check: Any) -> Any:
    @check
    def outer(x: Float[Tensor, " n"]) -> None:
        @check
        def inner(y: Float[Tensor, " n"]) -> None: ...

        inner(T(x.shape[0] + 1))

    return lambda: outer(T(3))


@says("a function that calls itself has a scope a call")
def _(check: Any) -> Any:
    @check
    def shrink(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        if x.shape[0] > 1:
            shrink(x[1:])
        return x

    return lambda: shrink(T(4))


@says("a scope ends with an exception as it ends with a value")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"]) -> None:
        raise KeyError

    def call() -> None:
        for size in (2, 3):
            with pytest.raises(KeyError):
                f(T(size))

    return call


@says("isinstance in a body sees the dims of the call", "fails")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"]) -> None:
        if not isinstance(T(4), Float[Tensor, " n"]):
            raise TypeError

    return lambda: f(T(3))


@says("isinstance in a body with the right size")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, "n m"]) -> None:
        if not isinstance(x.sum(1), Float[Tensor, " n"]):
            raise TypeError

    return lambda: f(T(3, 4))


@says("isinstance in a body binds what it passes", "fails")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"]) -> None:
        isinstance(T(5), Float[Tensor, " new"])
        if not isinstance(T(6), Float[Tensor, " new"]):
            raise TypeError

    return lambda: f(T(3))


@says("isinstance in a body that fails binds nothing")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"]) -> None:
        isinstance(T(5, 9), Float[Tensor, "new n"])
        if not isinstance(T(6), Float[Tensor, " new"]):
            raise TypeError

    return lambda: f(T(3))


@says("isinstance in a body computes with names and arguments", "fails")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, "n m"], size: int) -> None:
        if not isinstance(T(10), Float[Tensor, " n+m+{size}"]):
            raise KeyError
        if not isinstance(T(11), Float[Tensor, " n+m+{size}"]):
            raise TypeError

    return lambda: f(T(3, 4), 3)


@says("isinstance in a body sees starred names", "fails")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, "*v n"]) -> None:
        if not isinstance(T(2, 3), Float[Tensor, "*v"]):
            raise KeyError
        if not isinstance(T(3, 2), Float[Tensor, "*v"]):
            raise TypeError

    return lambda: f(T(2, 3, 4))


@says("isinstance in a body starts anew in the next call")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"]) -> bool:
        return isinstance(x * 2, Float[Tensor, " n"]) and isinstance(T(x.shape[0]), Float[Tensor, " own"])

    def call() -> None:
        if not (f(T(2)) and f(T(3))):
            raise TypeError

    return call


@says("isinstance outside any function compares with nothing")
def _(check: Any) -> Any:
    def call() -> None:
        if not (isinstance(T(2), Float[Tensor, " n"]) and isinstance(T(3), Float[Tensor, " n"])):
            raise TypeError

    return call


@says("a context opened in a body knows no dims of the call")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"]) -> None:
        with jaxtyped("context"):
            if not isinstance(T(4), Float[Tensor, " n"]):
                raise TypeError

    return lambda: f(T(3))


@says("a context compares what stands in it", "fails")
def _(check: Any) -> Any:
    def call() -> None:
        with jaxtyped("context"):
            if not (isinstance(T(2), Float[Tensor, " n"]) and isinstance(T(3), Float[Tensor, " n"])):
                raise TypeError

    return call


@says("a checked function called in a context has a scope of its own")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"]) -> None: ...

    def call() -> None:
        with jaxtyped("context"):
            isinstance(T(2), Float[Tensor, " n"])
            f(T(3))

    return call


def test_bindings_can_be_printed_in_a_body(parity: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def program(check: Any) -> Any:
        @check
        def f(x: Float[Tensor, "*v n"], y: Float[Tensor, " n"]) -> None:
            print_bindings()

        return lambda: f(T(2, 3, 4), T(4))

    assert set(parity(program).values()) == {"accepts"}
    assert capsys.readouterr().out.count("n=4\nv=torch.Size([2, 3])\n") == 3


# Callables ------------------------------------------------------------------------------------------------------------


@says("arguments may come by keyword in any order", "refuses")
def _(check: Any) -> Any:
    return lambda: matmul(check)(y=T(3, 4), x=T(2, 5))


@says("a missing argument is Python's error", "fails")
def _(check: Any) -> Any:
    return lambda: matmul(check)(T(3, 4))


@says("a parameter without annotation takes anything")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"], y, z=None) -> None: ...  # type: ignore[no-untyped-def]

    return lambda: f(T(3), "text", z=object())


@says("a hint that is no tensor is beartype's", "refuses")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"], names: list[str]) -> None: ...

    return lambda: f(T(3), [1, 2])


@says("positional-only and keyword-only parameters", "refuses")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"], /, *, y: Float[Tensor, " n"]) -> None: ...

    f(T(3), y=T(3))
    return lambda: f(T(3), y=T(4))


@says("a wrong default that is not given", "accepts", ours="refuses", divergence="default")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"], y: Float[Tensor, " n"] = T(4)) -> None: ...  # noqa: B008 - on purpose

    return lambda: f(T(3))


@says("a default None that is given", "refuses", ours="accepts", divergence="default")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"] = None) -> None: ...  # type: ignore[assignment]

    return lambda: f(None)


@says("collected positional arguments are one scope", "refuses")
def _(check: Any) -> Any:
    @check
    def f(*xs: Float[Tensor, " n"]) -> None: ...

    f(T(3), T(3))
    return lambda: f(T(3), T(4))


@says("collected keyword arguments are one scope", "refuses")
def _(check: Any) -> Any:
    @check
    def f(**xs: Float[Tensor, " n"]) -> None: ...

    f(a=T(3), b=T(3))
    return lambda: f(a=T(3), b=T(4))


@says("a method")
def _(check: Any) -> Any:
    class Some:
        @check
        def f(self, x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
            return x + y

    return lambda: Some().f(T(3), T(3))


@says("a method called wrongly", "refuses")
def _(check: Any) -> Any:
    class Some:
        @check
        def f(self, x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> None: ...

    return lambda: Some().f(T(3), T(4))


@says("a static method", "refuses")
def _(check: Any) -> Any:
    class Some:
        @check
        @staticmethod
        def f(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> None: ...

    Some.f(T(3), T(3))
    return lambda: Some.f(T(3), T(4))


@says("a class method", "refuses")
def _(check: Any) -> Any:
    class Some:
        @check
        @classmethod
        def f(cls, x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> None: ...

    Some().f(T(3), T(3))
    return lambda: Some.f(T(3), T(4))


@says("a decorator below staticmethod", "refuses")
def _(check: Any) -> Any:
    class Some:
        @staticmethod
        @check
        def f(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> None: ...

    return lambda: Some.f(T(3), T(4))


@says("a property", "refuses")
def _(check: Any) -> Any:
    class Some:
        @check
        @property
        def f(self) -> Float[Tensor, " 3"]:
            return T(4)

    return lambda: Some().f


@says("an object that is called", "refuses")
def _(check: Any) -> Any:
    class Some:
        @check
        def __call__(self, x: Float[Tensor, "n n"]) -> None: ...

    return lambda: Some()(T(3, 4))


@says("the forward of a module", "refuses")
def _(check: Any) -> Any:
    class Layer(torch.nn.Module):
        @check
        def forward(self, x: Float[Tensor, "n k"], y: Float[Tensor, " n"]) -> Float[Tensor, "n k"]:
            return x

    Layer()(T(2, 3), T(2))
    return lambda: Layer()(T(2, 3), T(3))


@says("a partial of a checked function", "refuses")
def _(check: Any) -> Any:
    return lambda: functools.partial(matmul(check), T(2, 3))(T(4, 5))


@says("a lambda", "fails", ours="accepts", divergence="lambda")
def _(check: Any) -> Any:
    return lambda: check(lambda x: x)(3)


@says("a function under no_type_check still", "accepts")
def _(check: Any) -> Any:
    @check
    @no_type_check
    def f(x: Float[Tensor, " n"]) -> None: ...

    return lambda: f("text")


@says("a function decorated twice is checked once and as before", "refuses")
def _(check: Any) -> Any:
    twice = check(matmul(check))
    twice(T(2, 3), T(3, 4))
    return lambda: twice(T(2, 3), T(4, 5))


@says("what a decorated function is stays: name, module, text")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"]) -> None:
        """What it does."""

    def call() -> None:
        if (f.__name__, f.__module__, f.__doc__) != ("f", __name__, "What it does."):
            raise RuntimeError
        if not isinstance(f, FunctionType):
            raise TypeError

    return call


@says("an awaited value", "refuses", ours="accepts", divergence="awaited")
def _(check: Any) -> Any:
    @check
    async def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x

    return lambda: asyncio.run(f(T(3)))


@says("a wrong awaited value", "refuses")
def _(check: Any) -> Any:
    @check
    async def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x[1:]

    return lambda: asyncio.run(f(T(3)))


@says("arguments of a generator", "refuses")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Iterator[int]:
        yield 1

    return lambda: list(f(T(3), T(4)))


@says("yielded values", "accepts")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, "n m"]) -> Iterator[Float[Tensor, " m"]]:
        yield from x

    return lambda: list(f(T(3, 4)))


@says("a wrong yielded value", "accepts", ours="refuses", divergence="awaited")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, "n m"]) -> Iterator[Float[Tensor, " m"]]:
        yield x

    return lambda: list(f(T(3, 4)))


@says("a wrong value yielded by an async generator", "accepts", ours="refuses", divergence="awaited")
def _(check: Any) -> Any:
    @check
    async def f(x: Float[Tensor, "n m"]) -> AsyncIterator[Float[Tensor, " m"]]:
        yield x

    async def run() -> list[Any]:
        return [item async for item in f(T(3, 4))]

    return lambda: asyncio.run(run())


# Containers -----------------------------------------------------------------------------------------------------------


@says("the items of a list share the dims of the call", "refuses")
def _(check: Any) -> Any:
    @check
    def f(x: Float[Tensor, " n"], ys: list[Float[Tensor, " n"]]) -> None: ...

    f(T(3), [T(3), T(3)])
    return lambda: f(T(3), [T(4)])


@says("the items of a list agree with one another", "accepts", ours="refuses", divergence="items")
def _(check: Any) -> Any:
    # Stock looks at one random item, and at another one where there is a return annotation to look at as well.
    @check
    def f(ys: list[Float[Tensor, " n"]]): ...  # type: ignore[no-untyped-def]

    f([T(3), T(3)])
    return lambda: f([T(3), T(4)])


@says("the items of a tuple agree with one another", "refuses")
def _(check: Any) -> Any:
    @check
    def f(ys: tuple[Float[Tensor, " n"], Float[Tensor, " n"]]) -> None: ...

    f((T(3), T(3)))
    return lambda: f((T(3), T(4)))


@says("a tuple has as many items as the hint", "refuses")
def _(check: Any) -> Any:
    @check
    def f(ys: tuple[Float[Tensor, " n"], Float[Tensor, " n"]]) -> None: ...

    return lambda: f((T(3), T(3), T(3)))


@says("the values of a mapping are looked at", "refuses")
def _(check: Any) -> Any:
    @check
    def f(ys: dict[str, Float[Tensor, " 3"]]) -> None: ...

    f({"a": T(3)})
    return lambda: f({"a": T(4)})


@says("the keys of a mapping are looked at", "refuses")
def _(check: Any) -> Any:
    @check
    def f(ys: dict[str, Float[Tensor, " 3"]]) -> None: ...

    return lambda: f({1: T(3)})


@says("an empty list has nothing to refuse")
def _(check: Any) -> Any:
    @check
    def f(ys: list[Float[Tensor, " 3"]]) -> None: ...

    return lambda: f([])


@says("a tuple is no list", "refuses")
def _(check: Any) -> Any:
    @check
    def f(ys: list[Float[Tensor, " 3"]]) -> None: ...

    return lambda: f((T(3),))


class Pair(NamedTuple):
    """Two tensors by name."""

    a: Float[Tensor, " n"]
    b: Float[Tensor, " n"]


@says("the fields of a named tuple are looked at", "accepts", ours="refuses", divergence="items")
def _(check: Any) -> Any:
    @check
    def f(pair: Pair) -> None: ...

    return lambda: f(Pair(T(3), T(4)))


# Dataclasses ----------------------------------------------------------------------------------------------------------


@says("the fields of a dataclass are one scope", "refuses")
def _(check: Any) -> Any:
    @check
    @dataclass
    class Some:
        x: Float[Tensor, " n"]
        y: Float[Tensor, " n"]

    Some(T(3), T(3))
    return lambda: Some(T(3), T(4))


@says("other fields of a dataclass are looked at", "refuses")
def _(check: Any) -> Any:
    @check
    @dataclass
    class Some:
        x: Float[Tensor, " n"]
        name: str

    return lambda: Some(T(3), 4)


@says("two objects are two scopes")
def _(check: Any) -> Any:
    @check
    @dataclass
    class Some:
        x: Float[Tensor, " n"]

    return lambda: (Some(T(3)), Some(T(4)))


@says("a dataclass with a default factory of the wrong size", "accepts", ours="refuses", divergence="default")
def _(check: Any) -> Any:
    @check
    @dataclass
    class Some:
        x: Float[Tensor, " n"]
        y: Float[Tensor, " n"] = field(default_factory=lambda: T(4))

    return lambda: Some(T(3))


@says("the methods of a dataclass compare with its fields", "accepts", ours="refuses", divergence="fields")
def _(check: Any) -> Any:
    @check
    @dataclass
    class Some:
        x: Float[Tensor, " n"]

        @check
        def add(self, y: Float[Tensor, " n"]) -> None: ...

    return lambda: Some(T(3)).add(T(4))


@says("a frozen dataclass", "refuses")
def _(check: Any) -> Any:
    @check
    @dataclass(frozen=True)
    class Some:
        x: Float[Tensor, "n n"]

    Some(T(3, 3))
    return lambda: Some(T(3, 4))


@says("a dataclass that derives from a checked one", "refuses")
def _(check: Any) -> Any:
    @check
    @dataclass
    class Some:
        x: Float[Tensor, " n"]

    @check
    @dataclass
    class Other(Some):
        y: Float[Tensor, " n"]

    Other(T(3), T(3))
    return lambda: Other(T(3), T(4))


@says("a plain class is left alone by stock", "accepts", ours="is undefined", divergence="string")
def _(check: Any) -> Any:
    @check
    class Some:
        x: Float[Tensor, " n"]

    return lambda: Some()


# Text -----------------------------------------------------------------------------------------------------------------


@says("a hint may be text", "refuses")
def _(check: Any) -> Any:
    @check
    def f(x: "Float[Tensor, 'n n']") -> None: ...

    f(T(3, 3))
    return lambda: f(T(3, 4))


@says("a hint that names nothing, never called", "accepts")
def _(check: Any) -> Any:
    @check
    def f(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    return lambda: None


@says("a hint that names nothing, called", "accepts", ours="fails", divergence="string")
def _(check: Any) -> Any:
    @check
    def f(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    return lambda: f(3)


@says("a shaped tensor of any dtype")
def _(check: Any) -> Any:
    @check
    def f(x: Shaped[Tensor, "n n"]) -> None: ...

    return lambda: f(T(3, 3, dtype=torch.bool))


@pytest.mark.parametrize(("program", "stock", "ours", "divergence"), PROGRAMS)
def test_program(
    program: Program, stock: str, ours: str, divergence: str, parity: Any, request: pytest.FixtureRequest
) -> None:
    assert (stock != ours) is bool(divergence)
    assert parity(program) == {"stock": stock, "compiled": ours, "beartype": ours}
    if request.node.get_closest_marker("filterwarnings"):
        gc.collect()  # the warning comes when the coroutine goes


def test_divergences() -> None:
    assert {p.values[3] for p in PROGRAMS} == {"", *DIVERGENCES}
