"""Every kind of callable: what it is stays what it is, and its arguments and results are checked."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import tensorpact
from tensorpact import contract

MODES = ("compiled", "beartype")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both enforcing modes."""
    with tensorpact.enforcement(request.param):
        yield request.param


@contract(check_returns=True)
async def awaited(x: Float[Tensor, " n"], size: int) -> Float[Tensor, " n"]:
    """Give a tensor later."""
    await asyncio.sleep(0)
    return torch.zeros(size)


@contract(check_returns=True)
def yielding(x: Float[Tensor, " n"], sizes: list[int]) -> Generator[Float[Tensor, " n"], Any, str]:
    """Give tensors one after the other; send replaces the next size."""
    for size in sizes:
        sent = yield torch.zeros(size)
        if sent is not None:
            yield torch.zeros(sent)
    return "done"


@contract(check_returns=True)
async def yielding_later(x: Float[Tensor, " n"], sizes: list[int]) -> AsyncIterator[Float[Tensor, " n"]]:
    """Give tensors one after the other, later."""
    for size in sizes:
        await asyncio.sleep(0)
        yield torch.zeros(size)


def test_coroutine_functions_stay_so() -> None:
    assert inspect.iscoroutinefunction(awaited)
    assert inspect.isgeneratorfunction(yielding)


def test_d1_awaited_value_is_checked(mode: str) -> None:
    assert asyncio.run(awaited(torch.zeros(3), 3)).shape == (3,)
    with pytest.raises(ValueError, match=r"^return: axis 0 \(n\) is 4, but n is 3 \(x axis 0\)"):
        asyncio.run(awaited(torch.zeros(3), 4))
    with pytest.raises(ValueError, match=r"^x: expected 1 axis"):
        asyncio.run(awaited(torch.zeros(3, 1), 3))


def test_interleaved_coroutines_keep_their_own_dims(mode: str) -> None:
    async def both() -> list[Tensor]:
        return await asyncio.gather(*(awaited(torch.zeros(n), n) for n in (2, 3, 4, 5)))

    assert [t.shape[0] for t in asyncio.run(both())] == [2, 3, 4, 5]


def test_yielded_values_are_checked(mode: str) -> None:
    assert [t.shape[0] for t in yielding(torch.zeros(3), [3, 3])] == [3, 3]
    items = yielding(torch.zeros(3), [3, 4])
    next(items)
    with pytest.raises(ValueError, match=r"^return: axis 0 \(n\) is 4"):
        next(items)


def test_generators_keep_send_throw_close_and_return(mode: str) -> None:
    items = yielding(torch.zeros(3), [3])
    next(items)
    assert items.send(3).shape == (3,)
    with pytest.raises(StopIteration) as stop:
        next(items)
    assert stop.value.value == "done"
    items = yielding(torch.zeros(3), [3])
    next(items)
    with pytest.raises(KeyError):
        items.throw(KeyError("in"))
    items = yielding(torch.zeros(3), [3])
    next(items)
    items.close()
    assert list(items) == []


def test_async_generators_are_checked(mode: str) -> None:
    async def collect(sizes: list[int]) -> list[int]:
        return [t.shape[0] async for t in yielding_later(torch.zeros(3), sizes)]

    assert asyncio.run(collect([3, 3])) == [3, 3]
    with pytest.raises(ValueError, match=r"^return: axis 0 \(n\) is 5"):
        asyncio.run(collect([3, 5]))


def test_async_generators_close() -> None:
    closed: list[str] = []

    @contract(check_returns=True)
    async def source(x: Float[Tensor, " n"]) -> AsyncIterator[Float[Tensor, " n"]]:
        try:
            while True:
                yield x
        finally:
            closed.append("closed")

    async def first() -> None:
        async with contextlib.aclosing(source(torch.zeros(2))) as items:
            async for _ in items:
                break

    asyncio.run(first())
    assert closed == ["closed"]


class Holder:
    """Methods of every kind."""

    scale = 2

    @contract
    def plain(self, x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> int:
        """Plain."""
        return self.scale

    @contract
    @staticmethod
    def static(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> int:
        """Static, decorated from above."""
        return 3

    @staticmethod
    @contract
    def static_below(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> int:
        """Static, decorated from below."""
        return 4

    @contract
    @classmethod
    def of_class(cls, x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> int:
        """Class method."""
        return cls.scale

    @contract
    def __call__(self, x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> int:
        """Called."""
        return 5

    @contract
    async def later(self, x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> int:
        """Awaited."""
        return 6

    @contract
    @property
    def size(self) -> int:
        """Property."""
        return 7


def _await(call: Callable[..., Awaitable[int]]) -> Callable[..., int]:
    async def run(*arguments: Any) -> int:
        return await call(*arguments)

    return lambda *arguments: asyncio.run(run(*arguments))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        pytest.param(Holder().plain, 2, id="method"),
        pytest.param(Holder().static, 3, id="static"),
        pytest.param(Holder.static_below, 4, id="static-below"),
        pytest.param(Holder.of_class, 2, id="class"),
        pytest.param(Holder(), 5, id="call"),
        pytest.param(_await(Holder().later), 6, id="async"),
    ],
)
def test_methods_of_every_kind(call: Callable[..., int], expected: int, mode: str) -> None:
    assert call(torch.zeros(2), torch.zeros(2)) == expected
    with pytest.raises(ValueError, match=r"^y: axis 0 \(n\) is 3, but n is 2 \(x axis 0\)"):
        call(torch.zeros(2), torch.zeros(3))


def test_properties_and_bound_methods_keep_their_type() -> None:
    assert Holder().size == 7
    assert inspect.ismethod(Holder().plain)
    assert inspect.ismethod(Holder.of_class)
    assert inspect.iscoroutinefunction(Holder.later)


def test_a_violation_is_not_thrown_into_the_body(mode: str) -> None:
    swallowed: list[BaseException] = []

    @contract(check_returns=True)
    def source(x: Float[Tensor, " n"]) -> Iterator[Float[Tensor, " n"]]:
        try:
            yield torch.zeros(5)
        except ValueError as error:
            swallowed.append(error)
            yield x

    with pytest.raises(ValueError, match=r"^return: axis 0"):
        list(source(torch.zeros(2)))
    assert swallowed == []


def test_return_checks_use_the_dims_from_before_the_body(mode: str) -> None:
    @contract(check_returns=True)
    def f(x: Float[Tensor, "n m"], size: int) -> Float[Tensor, " n"]:
        x.resize_(1)
        return torch.zeros(size)

    assert f(torch.zeros(3, 2), 3).shape == (3,)
    with pytest.raises(ValueError, match=r"^return: axis 0 \(n\) is 1, but n is 3"):
        f(torch.zeros(3, 2), 1)


def test_none_is_a_return_annotation(mode: str) -> None:
    @contract(check_returns=True)
    def f(x: Float[Tensor, " n"], result: object) -> None:
        return result  # type: ignore[return-value]

    assert f(torch.zeros(2), None) is None
    with pytest.raises(TypeError, match=r"^return: expected None, got int 5"):
        f(torch.zeros(2), 5)


def test_parameters_called_like_builtins(mode: str) -> None:
    @contract
    def f(type: Float[Tensor, "*b n"], isinstance: Float[Tensor, " n"], len: int = 3, float: float = 1.0) -> int:  # noqa: A002
        return len

    entry = f.__tensorpact__  # type: ignore[attr-defined]
    forgiven: list[Any] = []
    f.__globals__["_diagnose"] = lambda values: forgiven.append(values) or entry.diagnose(values)  # type: ignore[attr-defined]
    assert f(torch.zeros(5, 2), torch.zeros(2), 4) == 4
    assert forgiven == []
    with pytest.raises(ValueError, match=r"^isinstance: axis 0 \(n\) is 3"):
        f(torch.zeros(5, 2), torch.zeros(3))


class Streams:
    """Async generators as methods, with names that the text around them might take for its own."""

    @contract
    async def run(
        self, source: Float[Tensor, " n"], item: Float[Tensor, " n"], _checked: int = 0
    ) -> AsyncIterator[Float[Tensor, " n"]]:
        """Says what it is sent and what is thrown in."""
        while True:
            try:
                sent = yield source + item
            except KeyError:
                sent = 10.0
            source = source + (sent or 1.0)


def test_async_generator_functions_stay_that(mode: str) -> None:
    assert inspect.isasyncgenfunction(yielding_later)
    assert inspect.isasyncgenfunction(Streams.run)
    assert inspect.isasyncgenfunction(Streams().run)
    assert list(inspect.signature(Streams.run).parameters) == ["self", "source", "item", "_checked"]

    async def drive() -> list[float]:
        stream: Any = Streams().run(torch.zeros(2), item=torch.ones(2))
        out = [await anext(stream), await stream.asend(5.0), await stream.athrow(KeyError()), await anext(stream)]
        await stream.aclose()
        return [float(t[0]) for t in out]

    assert asyncio.run(drive()) == [1.0, 6.0, 16.0, 17.0]

    async def wrong() -> None:
        async for _ in Streams().run(torch.zeros(2), torch.zeros(3)):
            pass

    with pytest.raises(ValueError, match=r"^item: axis 0 \(n\) is 3, but n is 2 \(source axis 0\)"):
        asyncio.run(wrong())
