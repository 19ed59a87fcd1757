"""What guards call at run time where straight-line code does not reach."""

from collections.abc import Callable
from typing import Any

import torch

from tensorpact._annotations import Parameter, array_dtype
from tensorpact._dims import Dim
from tensorpact._fitting import form_fits, is_array
from tensorpact._overlap import byte_length, overlaps_itself, shares_bytes
from tensorpact.constraints import OneOf, has_strides

#: So many sets of addresses are kept for a signature: the layers of a model, in a few batches.
_PLACES = 512


class Miss(Exception):
    """Raised and caught inside a guard."""


class DtypeFits:
    """Dtype check of an array that is no torch tensor."""

    __slots__ = ("spec",)

    def __init__(self, parameter: Parameter) -> None:
        self.spec = parameter.tensor

    def __call__(self, array: Any) -> bool:
        if self.spec is None:
            return True
        name = array_dtype(array)
        return any(f.allows(name) for f in self.spec.forms) and all(
            c.holds(array) for c in self.spec.constraints if isinstance(c, OneOf)
        )


class WithArguments:
    """An expression that reads arguments, called with dims and arguments in a row."""

    __slots__ = ("arguments", "evaluate", "names")

    def __init__(self, names: tuple[str, ...], arguments: tuple[str, ...], evaluate: Callable[..., Any]) -> None:
        self.names, self.arguments, self.evaluate = names, arguments, evaluate

    def __call__(self, *values: Any) -> Any:
        split = len(self.names)
        dims = dict(zip(self.names, values[:split], strict=True))
        return self.evaluate(dims, dict(zip(self.arguments, values[split:], strict=True)))


class Solve:
    """Solver of one expression axis, called with its size, the known dims and the arguments."""

    __slots__ = ("dim", "others", "unknown")

    def __init__(self, dim: Dim, unknown: str, others: tuple[str, ...]) -> None:
        self.dim, self.unknown, self.others = dim, unknown, others

    def __call__(self, size: int, *values: Any) -> int | None:
        expression = self.dim.expression
        if expression is None:
            return None
        split = len(self.others)
        dims = dict(zip(self.others, values[:split], strict=True))
        arguments = dict(zip(expression.arguments, values[split:], strict=True))
        return expression.solve(self.unknown, size, dims, arguments)


class FormFits:
    """Whether some form of a union fits whole, called with the array, the dims (None where unbound) and arguments."""

    __slots__ = ("arguments", "names", "spec")

    def __init__(self, parameter: Parameter, names: tuple[str, ...], arguments: tuple[str, ...]) -> None:
        self.spec, self.names, self.arguments = parameter.tensor, names, arguments

    def __call__(self, array: Any, *values: Any) -> bool:
        split = len(self.names)
        dims = {n: v for n, v in zip(self.names, values[:split], strict=True) if v is not None}
        arguments = dict(zip(self.arguments, values[split:], strict=True))
        dtype, shape = array_dtype(array), tuple(array.shape)
        forms = self.spec.forms if self.spec is not None else ()
        return any(is_array(f, array) and f.allows(dtype) and form_fits(f, shape, dims, arguments) for f in forms)


def _tensors(values: tuple[Any, ...]) -> list[torch.Tensor]:
    return [v for v in values if isinstance(v, torch.Tensor)]


def one_dtype(*values: Any) -> bool:
    return len({t.dtype for t in _tensors(values)}) <= 1


def one_device(*values: Any) -> bool:
    return len({t.device for t in _tensors(values)}) <= 1


def first_overlaps(*values: Any) -> bool:
    first = values[0]
    return isinstance(first, torch.Tensor) and any(shares_bytes(first, t) for t in _tensors(values[1:]))


def apart(pairs: tuple[tuple[int, int], ...], *values: Any) -> bool:
    """Whether the values of each pair, by position, share no memory."""
    return torch.compiler.is_compiling() or still_apart(pairs, lengths_of(*values), *values)


class Reach:
    """Bytes that each value of a signature reaches over, and the addresses at which they were found apart.

    Sizes and strides settle the lengths, so the same addresses give the same answer: a model calls with the buffers of
    each of its layers again and again.
    """

    __slots__ = ("lengths", "seen")

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths = lengths
        self.seen: set[tuple[int, ...]] = set()


def lengths_of(*values: Any) -> Reach:
    """Bytes that each value reaches over, which its sizes and strides settle."""
    return Reach(tuple([byte_length(v) for v in values]))


def still_apart(pairs: tuple[tuple[int, int], ...], reach: Reach, *values: Any) -> bool:
    """As ``apart``, where the lengths are known."""
    lengths = reach.lengths
    starts = tuple([v.data_ptr() if n else 0 for v, n in zip(values, lengths, strict=True)])
    if starts in reach.seen:
        return True
    for i, j in pairs:
        one, other = starts[i], starts[j]
        if one < other + lengths[j] and other < one + lengths[i] and shares_bytes(values[i], values[j]):
            return False
    if len(reach.seen) >= _PLACES:
        reach.seen.clear()
    reach.seen.add(starts)
    return True


def writable(tensor: Any) -> bool:
    if not has_strides(tensor):
        return False
    if torch.compiler.is_compiling():
        # Sizes may be symbols, of which the search would ask far too much.
        return not tensor.numel() or all(
            size <= 1 or stride != 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
    return not overlaps_itself(tensor)
