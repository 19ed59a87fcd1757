"""What a benchmark of checking needs to know of one signature."""

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import beartype
import torch
from jaxtyping import jaxtyped

from tensorpact import Contract, contract
from tensorpact.constraints import OneOf

HALF = OneOf(torch.bfloat16, torch.float16)
BF16, F32, I32 = torch.bfloat16, torch.float32, torch.int32
HALVES = (torch.bfloat16, torch.float16)
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def as_it_is(function: Any) -> Callable[..., Any]:
    """A function that is called as it was defined."""
    return function


@dataclass(frozen=True)
class Case:
    """One signature, checked in every way.

    Attributes:
        name: As the tables call it.
        none: The function without a check.
        annotated: A fresh copy of the annotated function at each call: stock and contract both start from it.
        by_hand: The checks of a careful author: as many as the contract's, every attribute read once.
        floor: Every attribute that the checks need, read once, and the call. None where a loop would have to read.
        arguments: Valid arguments for n tokens; of an extended case also for larger caches.
        contract: Clauses, where there are any.
        wrong: Makes valid arguments wrong in one size.
        awaited: Whether the result is a coroutine, to be awaited.
        bind: Turns a function into what is called: a method is looked up on its instance.
        extended: Whether to time changing shapes too.
    """

    name: str
    none: Callable[..., Any]
    annotated: Callable[[], Any]
    by_hand: Callable[..., Any]
    floor: Callable[..., Any] | None
    arguments: Callable[..., tuple[Any, ...]]
    wrong: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    contract: Contract | None = None
    awaited: bool = False
    bind: Callable[[Any], Callable[..., Any]] = as_it_is
    extended: bool = False

    def stock(self) -> Callable[..., Any]:
        """The annotated function under jaxtyping and beartype."""
        return self.bind(jaxtyped(self.annotated(), typechecker=beartype.beartype))

    def stock_without_result(self) -> Callable[..., Any]:
        """Stock on the same function without a result hint: with one, it checks the arguments a second time."""
        function = self.annotated()
        copy = types.FunctionType(function.__code__, function.__globals__, function.__name__)
        copy.__qualname__ = function.__qualname__
        copy.__annotations__ = {k: v for k, v in function.__annotations__.items() if k != "return"}
        return self.bind(jaxtyped(copy, typechecker=beartype.beartype))

    def ours(self) -> Callable[..., Any]:
        """The annotated function under its contract."""
        return self.bind(self.decorated())

    def decorated(self) -> Any:
        """The annotated function with its contract, not bound to an instance yet."""
        return contract(self.contract)(self.annotated()) if self.contract else contract(self.annotated())


def narrower(index: int) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Take the last column from one argument."""
    return lambda arguments: (*arguments[:index], arguments[index][..., :-1], *arguments[index + 1 :])
