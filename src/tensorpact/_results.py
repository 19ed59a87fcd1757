"""What a contracted function hands back, by kind: a value, something awaited, something yielded."""

import inspect
import typing
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Literal

Kind = Literal["plain", "coroutine", "generator", "async generator"]
#: Looks at a value and gives it back, or raises.
Check = Callable[[Any], Any]


def kind_of(function: Callable[..., Any]) -> Kind:
    """What calling a function gives."""
    if inspect.iscoroutinefunction(function):
        return "coroutine"
    if inspect.isgeneratorfunction(function):
        return "generator"
    return "async generator" if inspect.isasyncgenfunction(function) else "plain"


def result_hint(kind: Kind, returns: Any) -> Any:
    """The hint of a single result: what is yielded for a generator, else the return annotation."""
    arguments = typing.get_args(returns)
    return arguments[0] if kind.endswith("generator") and arguments else returns


def wrap(kind: Kind, result: Any, check: Check) -> Any:
    """A result that is checked when it is there: at once, when awaited, or when yielded."""
    if kind == "coroutine":
        return _awaited(result, check)
    if kind == "generator":
        return _yielded(result, check)
    if kind == "async generator":
        return _yielded_async(result, check)
    return check(result)


async def _awaited(result: Awaitable[Any], check: Check) -> Any:
    __tracebackhide__ = True
    return check(await result)


def _yielded(source: Generator[Any, Any, Any], check: Check) -> Generator[Any, Any, Any]:
    __tracebackhide__ = True
    try:
        item = next(source)
        while True:
            try:
                checked = check(item)
            except BaseException:
                # The violation belongs to the caller; the body must not get it thrown in.
                source.close()
                raise
            try:
                sent = yield checked
            except GeneratorExit:
                source.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - whatever is thrown in belongs to the body
                item = source.throw(thrown)
            else:
                item = source.send(sent)
    except StopIteration as stop:
        return stop.value


async def _yielded_async(source: AsyncGenerator[Any, Any], check: Check) -> AsyncGenerator[Any, Any]:
    __tracebackhide__ = True
    try:
        item = await anext(source)
        while True:
            try:
                checked = check(item)
            except BaseException:
                await source.aclose()
                raise
            try:
                sent = yield checked
            except GeneratorExit:
                await source.aclose()
                raise
            except BaseException as thrown:  # noqa: BLE001 - whatever is thrown in belongs to the body
                item = await source.athrow(thrown)
            else:
                item = await source.asend(sent)
    except StopAsyncIteration:
        return
