"""What arguments of one entry point may be made of: dims, dtypes, scalars and the constants its rules mention."""

import enum
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union

import torch

from tensorpact._annotations import EMPTY, Parameter
from tensorpact._dims import Dim, DimKind
from tensorpact._entry import Entry
from tensorpact._terms import Terms
from tensorpact.clauses import AnyOf, Clause, Let, Require, SameDim, Shape, lambda_parameters
from tensorpact.constraints import OneOf

from ._plans import is_storage_float

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
        kinds = inspect.Parameter
        self.starred = [p.name for p in self.parameters if p.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)]
        self.keywords = frozenset(p.name for p in self.parameters if p.kind is kinds.KEYWORD_ONLY)
        self.written = frozenset(self.terms.contract.mutates)
        self.constants = _constants(self.terms)
        self.dtypes = {p.name: _dtypes(p, self.constants) for p in self.parameters if p.tensor is not None}
        self.dims = self._dims()
        self.sizes = self._sizes()

    @property
    def plain(self) -> list[Parameter]:
        """Parameters that take exactly one argument."""
        return [p for p in self.parameters if p.name not in self.starred]

    @property
    def tensors(self) -> list[Parameter]:
        """Tensor parameters."""
        return [p for p in self.parameters if p.tensor is not None]

    def scalars(self) -> dict[str, Scalar]:
        """Values of every argument that is no tensor.

        Raises:
            CannotDrawError: A hint is not known.
        """
        return {p.name: self._scalar(p) for p in self.plain if p.tensor is None}

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


def rules_of(clause: Clause) -> Iterator[Callable[..., Any]]:
    """Functions that the author wrote into a clause."""
    if clause.when is not None:
        yield clause.when
    if isinstance(clause, Require):
        yield clause.rule
    elif isinstance(clause, Let):
        yield from (rule for _, rule in clause.rules)
    elif isinstance(clause, AnyOf):
        for member in clause.members:
            yield from rules_of(member)


def _constants(terms: Terms) -> tuple[Any, ...]:
    """Numbers, texts and dtypes that rules and expressions mention: where their answers change."""
    found: dict[Any, None] = {}

    def keep(value: Any) -> None:
        if isinstance(value, (tuple, list, frozenset, set)):
            for item in typing.cast("Iterable[Any]", value):
                keep(item)
        elif isinstance(value, str):
            if value.isidentifier():
                found[value] = None
        elif isinstance(value, (int, float, torch.dtype)) and not isinstance(value, bool):
            found[value] = None

    def look(function: Any, depth: int) -> None:
        code = getattr(function, "__code__", None)
        if code is None or depth > 2 or str(function.__module__).partition(".")[0] == "tensorpact":
            return
        for value in code.co_consts:
            keep(value)
        scope = {n: function.__globals__[n] for n in code.co_names if n in function.__globals__}
        cells = function.__closure__ or ()
        for value in (*scope.values(), *(c.cell_contents for c in cells)):
            if isinstance(value, types.FunctionType):
                look(value, depth + 1)
            else:
                keep(value)

    for clause in terms.contract.clauses:
        for rule in rules_of(clause):
            look(rule, 0)
    for axis in terms.expressions:
        if axis.dim.expression is not None:
            look(axis.dim.expression.function, 0)
    return tuple(found)


class Numbers:
    """Lets and requirements over dims and scalars alone: decided without any tensor.

    Args:
        space: What arguments may be made of.
    """

    def __init__(self, space: Space) -> None:
        known = set(space.dims) | {p.name for p in space.plain if p.tensor is None}
        self._rules: list[tuple[int, Clause, Callable[..., Any] | None, str, Callable[..., Any]]] = []
        for index, clause in enumerate(space.terms.contract.clauses):
            rules = clause.rules if isinstance(clause, Let) else ()
            if isinstance(clause, Require):
                rules = (("", clause.rule),)
            for name, rule in rules:
                if all(n in known for n in lambda_parameters(rule)):
                    self._rules.append((index, clause, clause.when, name, rule))
                    known.add(name)

    def hold(self, sizes: Mapping[str, Any], values: Mapping[str, Any], last: int) -> bool:
        """Whether the requirements up to a clause hold, as far as numbers tell.

        Args:
            sizes: Dim to size.
            values: Arguments that are no tensors.
            last: Place of the last clause to look at.
        """
        scope = {**values, **sizes}
        for index, _, when, name, rule in self._rules:
            if index > last:
                return True
            try:
                if when is not None and not when(*[scope[n] for n in lambda_parameters(when)]):
                    continue
                got = rule(*[scope[n] for n in lambda_parameters(rule)])
            except Exception:  # noqa: BLE001 - a rule that an earlier clause should have kept away
                return False
            if name:
                scope[name] = got
            elif not got:
                return False
        return True


class Reads:
    """Which dims and parameters decide about a clause, lets followed to what they are made of."""

    def __init__(self, space: Space) -> None:
        self._terms = space.terms
        self._made_of = {
            name: lambda_parameters(rule)
            for c in space.terms.contract.clauses
            if isinstance(c, Let)
            for name, rule in c.rules
        }

    def of(self, clause: Clause) -> tuple[set[str], set[str]]:
        """Parameters and dims of a clause."""
        names = set(clause.names)
        dims: set[str] = set()
        pending = [n for rule in rules_of(clause) for n in lambda_parameters(rule)]
        if isinstance(clause, AnyOf):
            for member in clause.members:
                more, sizes = self.of(member)
                names |= more
                dims |= sizes
        if isinstance(clause, SameDim):
            dims.add(clause.dim)
        if isinstance(clause, Shape):
            for name in clause.names:
                spec = self._terms.parameters[name].tensor
                pending += [n for f in (spec.forms if spec else ()) for d in f.dims for n in d.names]
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self._made_of:
                pending += self._made_of[name]
                dims.add(name)
            elif name in self._terms.parameters:
                names.add(name)
            else:
                dims.add(name)
        return names, dims


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
