"""What arguments of one entry point may be made of: dims, dtypes, scalars and the constants its rules mention."""

import contextlib
import enum
import inspect
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

import torch

from tensorpact._annotations import EMPTY, Parameter
from tensorpact._dims import Dim, DimKind
from tensorpact._entry import Entry
from tensorpact._terms import Terms
from tensorpact.constraints import OneOf

from ._hooks import Mistake, fill_of, mistakes_of
from ._plans import is_storage_float
from ._rules import constants_of

COMMON_DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.uint8,
    torch.float8_e4m3fn,
    torch.complex64,
)
_FLOATS = (0.5, 1.0, 0.25, 2.0, 0.125, 3.0)
_BAD_FLOATS = (0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e30, 1e-30)
_INTS = (1, 2, 3, 4, 5, 8, 0)
_BAD_INTS = (0, -1, 1, 2, 3, 2**31, 2**40)
_TEXTS = ("a", "")


class CannotDrawError(Exception):
    """Arguments of this signature cannot be made without help."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """Values that one argument may take.

    Attributes:
        good: Values that the hint allows, ordinary ones first.
        odd: Values that the hint allows and a rule may refuse.
        wrong: Values that the hint refuses.
    """

    good: tuple[Any, ...]
    odd: tuple[Any, ...] = ()
    wrong: tuple[Any, ...] = ()


class Space:
    """Everything that drawing and mutating read of an entry point.

    Args:
        entry: The contracted function.

    Raises:
        CannotDrawError: A parameter has a hint that no value is known for.
    """

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.terms: Terms = entry.terms
        self.parameters = [p for p in self.terms.signature.parameters if not p.is_field]
        # What an object keeps for itself is not for others to change.
        self.fields = [p for p in self.terms.signature.parameters if p.is_field and "._" not in p.name]
        kinds = inspect.Parameter
        self.starred = [p.name for p in self.parameters if p.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)]
        self.keywords = frozenset(p.name for p in self.parameters if p.kind is kinds.KEYWORD_ONLY)
        self.written = frozenset(self.terms.contract.mutates)
        self.constants = constants_of(self.terms)
        every = (*self.parameters, *self.fields)
        self.dtypes = {p.name: _dtypes(p, self.constants) for p in every if p.tensor is not None}
        self.dims = self._dims()
        self.sizes = self._sizes()
        self.mistakes: Sequence[Mistake] = mistakes_of(entry)
        # Only where rules read values: writing them costs time in every call of a search.
        self.fill = fill_of(entry) if self.mistakes else None

    @property
    def plain(self) -> list[Parameter]:
        """Parameters that take exactly one argument."""
        return [p for p in self.parameters if p.name not in self.starred]

    @property
    def tensors(self) -> list[Parameter]:
        """Tensor parameters."""
        return [p for p in self.parameters if p.tensor is not None]

    def twins(self, name: str) -> list[str]:
        """A tensor parameter and those that its dtype variables bind to it."""
        groups = [g for g in self.terms.shared_dtypes.values() if name in g]
        return list(dict.fromkeys([name, *(n for g in groups for n in g if n in self.dtypes)]))

    def scalars(self) -> dict[str, Scalar]:
        """Values of every argument that is no tensor.

        Raises:
            CannotDrawError: A hint is not known.
        """
        return {p.name: self._scalar(p) for p in self.plain if p.tensor is None}

    def known_scalars(self) -> dict[str, Scalar]:
        """Values of the arguments and fields that are no tensors, where the hint is known."""
        found: dict[str, Scalar] = {}
        for p in (*self.plain, *self.fields):
            if p.tensor is None and p.name != "self":
                with contextlib.suppress(CannotDrawError):
                    found[p.name] = self._scalar(p)
        return found

    def axes_named(self, name: str) -> list[tuple[str, int]]:
        """Parameter and place of every plain axis with this dim; none for fields, unions and axes behind a variadic."""
        return [
            (p.name, i)
            for p in self.tensors
            if p.tensor is not None and not p.tensor.union and p.tensor.forms[0].variadic is None
            for i, dim in enumerate(p.tensor.dims)
            if dim.kind is DimKind.NAMED and dim.name == name
        ]

    def _dims(self) -> dict[str, DimKind]:
        found: dict[str, DimKind] = {}
        for p in self.tensors:
            for form in p.tensor.forms if p.tensor else ():
                for i, dim in enumerate(form.dims):
                    for name in dim.names:
                        found.setdefault(name, dim.kind if dim.kind is DimKind.VARIADIC else DimKind.NAMED)
                    if dim.kind in (DimKind.ANONYMOUS, DimKind.ELLIPSIS):
                        found[free_axis(p.name, i)] = dim.kind
        return found

    def _sizes(self) -> list[int]:
        own = {n for n in self.constants if type(n) is int and 2 <= n <= 512}
        near = {m for n in own for m in (n, 2 * n, 3 * n, n + 1, n - 1)}
        return sorted({*range(2, 17), *near} - {0, 1})

    def _scalar(self, parameter: Parameter) -> Scalar:
        name, hint = parameter.name, parameter.other
        harvested = tuple(c for c in self.constants if isinstance(c, (int, float)) and not isinstance(c, bool))
        around = tuple(v for c in harvested for v in (c, c + 1, c - 1))
        default = () if parameter.default is EMPTY else (parameter.default,)
        none = (None,) if parameter.optional and parameter.hint is not EMPTY else ()
        if name in self.terms.contract.tied:
            return Scalar((*_INTS, *default), _BAD_INTS, ("text", True))
        if parameter.hint is EMPTY and not default:
            raise CannotDrawError(f"{name} has no annotation and no default")
        good, odd, wrong = list[Any](), list[Any](), list[Any]()
        for member in _members(hint):
            kind: Any = typing.get_origin(member) or member
            if kind is bool:
                good += [False, True]
                wrong += ["text", 1]
            elif kind is int:
                good += [*_INTS, *(int(v) for v in around if v > 0)]
                odd += [*_BAD_INTS, *(int(v) for v in around)]
                wrong += ["text", True, 1.5]
            elif kind is float:
                good += _FLOATS
                odd += [*_BAD_FLOATS, *(float(v) for v in around)]
                wrong += ["text", True]
            elif kind is str:
                good += [*(c for c in self.constants if isinstance(c, str)), *_TEXTS]
                odd += good
                wrong += [1, b"a"]
            elif kind is Literal:
                good += typing.get_args(member)
                wrong += ["no such choice", 7919]
            elif kind is torch.dtype:
                good += COMMON_DTYPES
                wrong += ["float32"]
            elif kind is torch.device:
                good += [torch.device("cpu")]
                odd += [torch.device("meta")]
                wrong += ["cpu"]
            elif isinstance(kind, type) and issubclass(kind, enum.Enum):
                good += list(kind)
                wrong += ["text"]
            elif member in (Any, object):
                good += [0, "a"]
            elif not default and not none:
                raise CannotDrawError(f"{name} has the hint {member!r}, for which no value is known")
        values = (*default, *(v for v in good if v not in default), *(n for n in none if n not in default))
        return Scalar(values, tuple(odd) + none, (*wrong, *(() if parameter.optional else (None,))))


def free_axis(name: str, index: int) -> str:
    """Key of the size of an anonymous axis."""
    return f"{name}@{index}"


def _members(hint: Any) -> Iterable[Any]:
    if hint is EMPTY:
        return ()
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _dtypes(parameter: Parameter, constants: Iterable[Any]) -> tuple[torch.dtype, ...]:
    spec = parameter.tensor
    allowed = spec.dtypes() if spec is not None else ()
    if spec is not None and any(isinstance(c, OneOf) for c in spec.constraints):
        return tuple(allowed or ())
    # An open family such as Float also holds storage formats; they count where the contract speaks of them.
    open_family = allowed is None or len(allowed) > 6
    ordinary = [d for d in COMMON_DTYPES if not (open_family and is_storage_float(d))]
    known = [d for d in (COMMON_DTYPES if allowed is None else allowed) if d in ordinary or d in constants]
    return tuple(known or allowed or ())


def axis_size(dim: Dim, sizes: dict[str, Any], arguments: dict[str, Any], free: str) -> tuple[int, ...]:
    """Sizes that an annotated axis takes under an assignment of the dims.

    Args:
        dim: The axis.
        sizes: Dim to size.
        arguments: Values of the arguments that are no tensors.
        free: Key of an anonymous axis.
    """
    if dim.kind is DimKind.FIXED:
        return (dim.size,)
    if dim.kind is DimKind.ANONYMOUS:
        return (sizes[free],)
    if dim.kind is DimKind.ELLIPSIS:
        return tuple(sizes[free])
    if dim.kind is DimKind.VARIADIC:
        return tuple(sizes[dim.name])
    if dim.expression is not None:
        value = dim.expression.evaluate(sizes, arguments)
        if type(value) is not int or value < 0:
            raise ValueError(f"{dim.text} is {value!r}")
        return (value,)
    return (sizes[dim.name],)
