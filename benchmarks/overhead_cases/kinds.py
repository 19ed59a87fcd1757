"""Other callables and annotations, three to nine tensors each: method, union, list, varargs, coroutine, dataclass."""

import dataclasses
from typing import Any

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from .case import FLOATS, I32, Case, narrower

Item = Float[Tensor, "T D"]


class Layer:
    """A linear layer, so that `self` is there."""

    def plain(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """No check."""

    def annotated(self, x: Float[Tensor, "T D"], weight: Float[Tensor, "E D"], out: Float[Tensor, "T E"]) -> None:
        """The annotations that stock and tensorpact read."""

    def by_hand(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Shapes and dtypes."""
        linear_checks(x, weight, out)
        self.plain(x, weight, out)

    def floor(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Every attribute read once, and the call."""
        x.shape, x.dtype, weight.shape, weight.dtype, out.shape, out.dtype  # noqa: B018
        self.plain(x, weight, out)


def linear_checks(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """What a careful author checks before a linear layer."""
    x_shape, weight_shape = x.shape, weight.shape
    if len(x_shape) != 2 or len(weight_shape) != 2 or weight_shape[1] != x_shape[1]:
        raise ValueError("x must have shape [T, D], weight [E, D]")
    if out.shape != (x_shape[0], weight_shape[0]):
        raise ValueError("out must have shape [T, E]")
    if x.dtype not in FLOATS or weight.dtype not in FLOATS or out.dtype not in FLOATS:
        raise TypeError("x, weight and out must be floating point")


def linear_arguments(n: int) -> tuple[Any, ...]:
    """Valid arguments for n tokens."""
    return torch.zeros(n, 16), torch.zeros(24, 16), torch.zeros(n, 24)


def union_plain(tokens: Tensor, table: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
    """No check."""


def union_annotated(
    tokens: Int32[Tensor, " T"] | Float[Tensor, "T D"],
    table: Float[Tensor, "V D"],
    out: Float[Tensor, "T D"],
    bias: Float[Tensor, " D"] | None = None,
) -> None:
    """Ids to look up, or rows that have been looked up."""


def union_by_hand(tokens: Tensor, table: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
    """The checks of a careful author."""
    table_shape, out_shape = table.shape, out.shape
    if len(table_shape) != 2 or len(out_shape) != 2 or out_shape[1] != table_shape[1]:
        raise ValueError("table must have shape [V, D], out [T, D]")
    if table.dtype not in FLOATS or out.dtype not in FLOATS:
        raise TypeError("table and out must be floating point")
    shape, dtype = tokens.shape, tokens.dtype
    if not ((dtype is I32 and shape == (out_shape[0],)) or (dtype in FLOATS and shape == out_shape)):
        raise ValueError("tokens must be int32 of shape [T] or floating point of shape [T, D]")
    if bias is not None and (bias.dtype not in FLOATS or bias.shape != (out_shape[1],)):
        raise ValueError("bias must have shape [D]")
    union_plain(tokens, table, out, bias)


def union_floor(tokens: Tensor, table: Tensor, out: Tensor, bias: Tensor) -> None:
    """Every attribute read once, and the call."""
    tokens.shape, tokens.dtype, table.shape, table.dtype, out.shape, out.dtype, bias.shape, bias.dtype  # noqa: B018
    union_plain(tokens, table, out, bias)


def union_arguments(n: int) -> tuple[Any, ...]:
    """Valid arguments for n tokens."""
    return torch.zeros(n, dtype=I32), torch.zeros(40, 16), torch.zeros(n, 16), torch.zeros(16)


def list_plain(tensors: list[Tensor], out: Tensor) -> None:
    """No check."""


def list_annotated(tensors: list[Item], out: Item) -> None:
    """The annotations that stock and tensorpact read; stock looks at one item, tensorpact at each."""


def list_by_hand(tensors: list[Tensor], out: Tensor) -> None:
    """The checks of a careful author, on every item."""
    item_checks(tensors, out)
    list_plain(tensors, out)


def item_checks(tensors: list[Tensor] | tuple[Tensor, ...], out: Tensor) -> None:
    """Each item has the shape of the result."""
    shape = out.shape
    if len(shape) != 2 or out.dtype not in FLOATS:
        raise ValueError("out must be floating point of shape [T, D]")
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor) or tensor.shape != shape or tensor.dtype not in FLOATS:
            raise ValueError(f"tensors[{i}] must be floating point of the shape of out")


def list_floor(tensors: list[Tensor], out: Tensor) -> None:
    """Every attribute of every item read once, and the call."""
    for tensor in tensors:
        tensor.shape, tensor.dtype  # noqa: B018
    out.shape, out.dtype  # noqa: B018
    list_plain(tensors, out)


def list_arguments(n: int) -> tuple[Any, ...]:
    """Eight tensors of n rows."""
    return [torch.zeros(n, 16) for _ in range(8)], torch.zeros(n, 16)


def list_wrong(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """A list with one item too narrow."""
    tensors, out = arguments
    return [*tensors[:-1], tensors[-1][..., :-1]], out


def varargs_plain(out: Tensor, *tensors: Tensor) -> None:
    """No check."""


def varargs_annotated(out: Item, *tensors: Item) -> None:
    """The annotations that stock and tensorpact read."""


def varargs_by_hand(out: Tensor, *tensors: Tensor) -> None:
    """The checks of a careful author, on every item."""
    item_checks(tensors, out)
    varargs_plain(out, *tensors)


def varargs_floor(out: Tensor, *tensors: Tensor) -> None:
    """Every attribute of every item read once, and the call."""
    for tensor in tensors:
        tensor.shape, tensor.dtype  # noqa: B018
    out.shape, out.dtype  # noqa: B018
    varargs_plain(out, *tensors)


async def async_plain(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """No check."""


async def async_annotated(x: Float[Tensor, "T D"], weight: Float[Tensor, "E D"], out: Float[Tensor, "T E"]):
    """The annotations that stock and tensorpact read; stock would hold a result hint against the coroutine."""


async def async_by_hand(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """The checks of a careful author."""
    linear_checks(x, weight, out)
    await async_plain(x, weight, out)


async def async_floor(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Every attribute read once, and the call."""
    x.shape, x.dtype, weight.shape, weight.dtype, out.shape, out.dtype  # noqa: B018
    await async_plain(x, weight, out)


@dataclasses.dataclass
class PlainBatch:
    """No check."""

    x: Tensor
    weight: Tensor
    out: Tensor


@dataclasses.dataclass
class BatchByHand(PlainBatch):
    """The checks of a careful author when an object is made."""

    def __post_init__(self) -> None:
        """Shapes and dtypes."""
        linear_checks(self.x, self.weight, self.out)


@dataclasses.dataclass
class BatchFloor(PlainBatch):
    """Every attribute read once."""

    def __post_init__(self) -> None:
        """Read."""
        x, weight, out = self.x, self.weight, self.out
        x.shape, x.dtype, weight.shape, weight.dtype, out.shape, out.dtype  # noqa: B018


def annotated_batch() -> type:
    """A class that no decorator has changed yet."""

    @dataclasses.dataclass
    class Batch:
        """The annotations that stock and tensorpact read."""

        x: Float[Tensor, "T D"]
        weight: Float[Tensor, "E D"]
        out: Float[Tensor, "T E"]

    return Batch


layer = Layer()
KIND_CASES = (
    Case(
        "method, 3 tensors",
        layer.plain,
        lambda: Layer.annotated,
        layer.by_hand,
        layer.floor,
        linear_arguments,
        narrower(1),
        bind=lambda function: function.__get__(layer),
    ),
    Case(
        "union and optional, 4 tensors",
        union_plain,
        lambda: union_annotated,
        union_by_hand,
        union_floor,
        union_arguments,
        narrower(1),
    ),
    Case(
        "list of 8, 9 tensors", list_plain, lambda: list_annotated, list_by_hand, list_floor, list_arguments, list_wrong
    ),
    Case(
        "*args of 4, 5 tensors",
        varargs_plain,
        lambda: varargs_annotated,
        varargs_by_hand,
        varargs_floor,
        lambda n: tuple(torch.zeros(n, 16) for _ in range(5)),
        narrower(1),
    ),
    Case(
        "coroutine, 3 tensors",
        async_plain,
        lambda: async_annotated,
        async_by_hand,
        async_floor,
        linear_arguments,
        narrower(1),
        awaited=True,
    ),
    Case(
        "dataclass, 3 tensors",
        PlainBatch,
        annotated_batch,
        BatchByHand,
        BatchFloor,
        linear_arguments,
        narrower(1),
    ),
)
