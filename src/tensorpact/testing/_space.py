"""What arguments of one entry point may be made of: dims, dtypes, scalars and the constants its rules mention."""

import contextlib
import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Union

import torch

from tensorpact._annotations import EMPTY, Parameter
from tensorpact._dims import Dim, DimKind
from tensorpact._entry import Entry
from tensorpact._terms import Terms
from tensorpact.constraints import OneOf

from ._plans import Opaque, is_storage_float
from ._rules import constants_of
from ._wholes import Skeleton, Whole, skeleton
from .hooks import Mistake, fill_of, mistakes_of, values_of

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
_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, enum.Enum)


class CannotDrawError(Exception):
    """Arguments of this signature cannot be made without help."""


class NothingFitsError(CannotDrawError):
    """Every argument can be made, but no valid call of them was found."""


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

    Attributes:
        made: How ``self`` is made of drawn fields, where it is; its fields then count as parameters.

    Args:
        entry: The contracted function.
        cls: The dataclass of its ``self``, where objects are to be made of drawn fields.
        known: Values of arguments that the caller brings.
    """

    def __init__(self, entry: Entry, cls: type | None = None, known: Mapping[str, Any] | None = None) -> None:
        self.entry = entry
        self.terms: Terms = entry.terms
        self.known = dict(known or {})
        every = self.terms.signature.parameters
        self.made = None if cls is None else _object_of(cls, every)
        if cls is None or self.made is None:
            self.parameters = [p for p in every if not p.is_field]
        else:
            own = [p for p in every if p.name in self.made.parts or not (p.is_field or p.name == "self")]
            self.parameters = [replace(p, default=_default_of(cls, p)) if p.is_field else p for p in own]
        names = {p.name for p in self.parameters}
        # What an object keeps for itself is not for others to change.
        self.fields = [p for p in every if p.is_field and p.name not in names and "._" not in p.name]
        kinds = inspect.Parameter
        starred = (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
        self.starred = [p.name for p in self.parameters if p.kind in starred and not p.nested]
        #: What stands in front of an argument in the text of a call.
        self.marks = {p.name: f"{p.name}=" for p in self.parameters if p.kind is kinds.KEYWORD_ONLY}
        self.marks |= {p.name: "*" for p in self.parameters if p.kind is kinds.VAR_POSITIONAL}
        self.marks |= {p.name: "**" for p in self.parameters if p.kind is kinds.VAR_KEYWORD}
        self.written = frozenset(self.terms.contract.mutates)
        self.constants = constants_of(self.terms)
        #: Tensors that drafts hold, or give dtypes to: parameters, fields, and what items of containers are.
        inside = [t for t in self.terms.templates.values() if t.tensor is not None]
        self.typed = [*self.tensors, *inside]
        self.dtypes = {p.name: _dtypes(p, self.constants) for p in (*self.typed, *self.fields) if p.tensor is not None}
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
        """Values of every argument that is neither a tensor nor a container of them.

        Raises:
            CannotDrawError: A hint is not known; the text names the argument and what to register.
        """
        plain = [p for p in self.plain if p.name in self.known or (p.tensor is None and not p.nested)]
        return {p.name: self.scalar(p) for p in plain}

    @property
    def nests(self) -> list[Parameter]:
        """Containers with tensors inside, and what starred parameters collect."""
        return [p for p in self.plain if p.nested and p.name not in self.known]

    def nest(self, parameter: Parameter, count: int) -> Skeleton:
        """A container for a parameter.

        Args:
            parameter: The parameter.
            count: How many items where the annotation leaves it open.

        Raises:
            CannotDrawError: No such container can be made.
        """

        def value(inner: Parameter) -> Any:
            return next(iter(self.scalar(inner).good), None)

        try:
            return skeleton(parameter.name, parameter.hint, self.terms.owner, value, count)
        except LookupError as bad:
            raise self.unknown(parameter.name, f"has the hint {parameter.hint!r}: {bad} cannot be made") from bad

    def unknown(self, name: str, why: str) -> CannotDrawError:
        """The error of an argument that cannot be drawn."""
        how = f"register_argument({self.terms.owner.rpartition('.')[2]}, {name.removeprefix('self.')!r}, make)"
        return CannotDrawError(f"{self.terms.owner}: {name} {why}; say how it is made: tensorpact.testing.{how}")

    def known_scalars(self) -> dict[str, Scalar]:
        """Values of the arguments and fields that are no tensors, where the hint is known."""
        found: dict[str, Scalar] = {}
        for p in (*self.plain, *self.fields):
            if p.tensor is None and p.name != "self" and not p.nested:
                with contextlib.suppress(CannotDrawError):
                    found[p.name] = self.scalar(p)
        return found

    def pinned(self) -> dict[str, int]:
        """Sizes of the dims that tensors brought by the caller have."""
        found: dict[str, int] = {}
        for p in self.tensors:
            value = self.known.get(p.name)
            if p.tensor is not None and isinstance(value, torch.Tensor) and not p.tensor.union:
                places = ((d, p.tensor.forms[0].position(i, value.ndim)) for i, d in enumerate(p.tensor.dims))
                named = ((d.name, at) for d, at in places if d.kind is DimKind.NAMED and isinstance(at, int))
                found |= {name: value.shape[at] for name, at in named}
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
        for p in self.typed:
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

    def scalar(self, parameter: Parameter) -> Scalar:
        """Values that an argument without tensors may take.

        Raises:
            CannotDrawError: Its hint is not known.
        """
        name, hint = parameter.name, parameter.other
        registered = values_of(self.entry, name.removeprefix("self."))
        if name in self.known or registered:
            given = (self.known[name],) if name in self.known else registered
            return Scalar(tuple(v if isinstance(v, _PLAIN) else Opaque(v) for v in given))
        harvested = tuple(c for c in self.constants if isinstance(c, (int, float)) and not isinstance(c, bool))
        around = tuple(v for c in harvested for v in (c, c + 1, c - 1))
        default = () if parameter.default is EMPTY else (parameter.default,)
        none = (None,) if parameter.optional and parameter.hint is not EMPTY else ()
        if name in self.terms.contract.tied:
            return Scalar((*_INTS, *default), _BAD_INTS, ("text", True))
        if parameter.hint is EMPTY and not default:
            raise self.unknown(name, "has no annotation and no default")
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
                raise self.unknown(name, f"has the hint {member!r}, for which no value is known")
        values = (*default, *(v for v in good if v not in default), *(n for n in none if n not in default))
        return Scalar(values, tuple(odd) + none, (*wrong, *(() if parameter.optional else (None,))))


def _object_of(cls: type, parameters: Iterable[Parameter]) -> Whole | None:
    """How an object of a dataclass is made; None for other classes."""
    if not dataclasses.is_dataclass(cls):
        return None
    annotated = {p.name for p in parameters if p.is_field}
    names = [f.name for f in dataclasses.fields(cls) if f.init and f"self.{f.name}" in annotated]
    return Whole("object", cls, tuple(f"self.{n}" for n in names), tuple(names))


def _default_of(cls: Any, parameter: Parameter) -> Any:
    field = next(f for f in dataclasses.fields(cls) if f"self.{f.name}" == parameter.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return EMPTY if field.default is dataclasses.MISSING else field.default


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
