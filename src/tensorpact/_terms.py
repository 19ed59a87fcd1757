"""A contract laid on one signature: every obligation, who claims it, who binds each dim; all author checks."""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

from ._annotations import EMPTY, Parameter, Signature, read_hint
from ._contract import Contract
from ._contradictions import check_contradictions
from ._dims import Dim, DimKind
from ._errors import ContractDefinitionError
from ._items import templates
from ._types import TypeCheck, is_checkable
from ._values.author import check_values, template_fields
from ._values.clauses import Values
from .clauses import (
    AnyOf,
    Clause,
    Device,
    Dtype,
    Exclusive,
    Layout,
    Let,
    NamedAxes,
    NoOverlap,
    Present,
    Rank,
    Require,
    SameDim,
    SameDtype,
    Shape,
    Together,
    lambda_parameters,
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Obligation:
    """One elementary thing that an annotation says of a parameter.

    Attributes:
        parameter: Whose annotation.
        kind: ``type``, ``rank``, ``dtype``, ``axis``, ``axes`` (a union's), ``constraint`` or ``written``.
        index: Which axis or constraint.
    """

    parameter: Parameter
    kind: str
    index: int = -1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Axis:
    """One annotated axis of one parameter."""

    parameter: Parameter
    index: int
    dim: Dim


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Step:
    """A clause in its place, with the obligations it claims."""

    index: int
    clause: Clause
    claims: tuple[Obligation, ...]


def _obligations(parameter: Parameter, written: bool) -> tuple[Obligation, ...]:
    found = [Obligation(parameter, "type")]
    spec = parameter.tensor
    if spec is not None:
        found += [Obligation(parameter, "rank"), Obligation(parameter, "dtype")]
        if spec.union:
            found.append(Obligation(parameter, "axes"))
        else:
            found += [Obligation(parameter, "axis", i) for i in range(len(spec.dims))]
        found += [Obligation(parameter, "constraint", i) for i in range(len(spec.constraints))]
        if written:
            found.append(Obligation(parameter, "written"))
    return tuple(found)


def _templates(parameter: Parameter, owner: str) -> Iterator[Parameter]:
    for name, hint in templates(parameter.name, parameter.hint, owner):
        yield replace(read_hint(name, hint, owner), repeated=True)


class TypeChecks:
    """Checks of the parts of a hint that beartype judges.

    Attributes:
        other: Check of the non-tensor part, or None where it says nothing.
        extra: Check of validators beside a tensor hint, or None.
    """

    __slots__ = ("extra", "other")

    def __init__(self, parameter: Parameter, owner: str) -> None:
        label = f"{owner}: {parameter.name}"
        self.other = TypeCheck(parameter.other, label) if is_checkable(parameter.other, EMPTY) else None
        self.extra = TypeCheck(parameter.extra, label) if parameter.extra is not EMPTY else None


class Terms:
    """Everything static about a contracted function; built once, read by guard, evaluation and documentation.

    Raises:
        ContractDefinitionError: The contract names what does not exist, or contradicts itself.
    """

    def __init__(self, contract: Contract, signature: Signature, absent: frozenset[str] = frozenset()) -> None:
        #: Dims that only parts of other calls have: known, but without a value here.
        self.absent = absent
        self.contract = contract
        self.signature = signature
        self.owner = signature.owner
        self.parameters = signature.named()
        self.tensors = tuple(p for p in signature.parameters if p.tensor is not None)
        self.nested = tuple(p for p in signature.parameters if p.nested)
        #: What the items of containers are, under names such as ``xs[]``.
        self.templates = {t.name: t for p in self.nested for t in _templates(p, self.owner)}
        every = (*signature.parameters, *self.templates.values())
        self.checks = {p.name: TypeChecks(p, self.owner) for p in every}
        self.obligations = {p.name: _obligations(p, p.name in contract.mutates) for p in signature.parameters}
        self._known("mutates", contract.mutates, {p.name for p in self.tensors}, "tensor parameter")
        #: Dtype variables: the parameters under each, items of containers included.
        self.shared_dtypes: dict[str, tuple[str, ...]] = {}
        for p in (*self.tensors, *(t for t in self.templates.values() if t.tensor is not None)):
            for variable in p.tensor.dtype_variables() if p.tensor is not None else ():
                self.shared_dtypes[variable] = (*self.shared_dtypes.get(variable, ()), p.name)
        self.lets: dict[str, int] = {
            name: i for i, c in enumerate(contract.clauses) if isinstance(c, Let) for name, _ in c.rules
        }
        self.bare: dict[str, list[Axis]] = {}
        self.expressions: list[Axis] = []
        self.union_dims: set[str] = set()
        self._read_axes()
        self.solved = self._check_solvable()
        self.dims = frozenset(self.bare) | frozenset(self.solved) | frozenset(contract.tied) | absent
        self._check_names()
        self.steps = tuple(Step(i, c, tuple(self._claims(c, i))) for i, c in enumerate(contract.clauses))
        self.last_claim = {ob: step.index for step in self.steps for ob in step.claims}
        self.none_claimed = frozenset(
            n for s in self.steps for c in flat(s.clause) if isinstance(c, Present) for n in c.names
        )
        found = [*(c for step in self.steps for c in flat(step.clause)), *self.equal_dtypes()]
        check_contradictions(found, self.parameters, self._fail)

    def find(self, name: str, kind: str, index: int = -1) -> Obligation:
        """The obligation of a parameter by kind."""
        return next(o for o in self.obligations[name] if o.kind == kind and o.index == index)

    def claimed_after(self, obligation: Obligation, index: int) -> bool:
        """Whether a clause behind this one claims the obligation."""
        return self.last_claim.get(obligation, -1) > index

    def let_before(self, name: str, index: int) -> bool:
        """Whether a name is derived by a let in front of a clause."""
        return self.lets.get(name, len(self.contract.clauses)) < index

    def _fail(self, message: str) -> NoReturn:
        raise ContractDefinitionError(f"{self.owner}: {message}")

    def _known(self, what: str, names: Iterable[str], allowed: Iterable[str], kind: str) -> None:
        allowed = sorted(allowed)
        for name in names:
            if name not in allowed:
                near = difflib.get_close_matches(name, allowed, 3, 0.4)
                hint = f"; near: {', '.join(near)}" if near else f"; there are: {', '.join(allowed) or 'none'}"
                self._fail(f"{what}: {name!r} is no {kind}{hint}")

    def _read_axes(self) -> None:
        for p in (*self.tensors, *self.templates.values()):
            if p.tensor is None:
                continue
            if p.tensor.union:
                self.union_dims |= {n for f in p.tensor.forms for d in f.dims for n in d.names}
                continue
            for i, dim in enumerate(p.tensor.dims):
                if dim.kind in (DimKind.NAMED, DimKind.VARIADIC):
                    self.bare.setdefault(dim.name, []).append(Axis(p, i, dim))
                elif dim.kind is DimKind.EXPRESSION:
                    self.expressions.append(Axis(p, i, dim))
        for name, authority in self.contract.binds.items():
            self._known("binds", [name], self.bare, "annotated dim")
            axes = self.bare[name]
            self._known(
                f"binds[{name!r}]", [authority], {a.parameter.name for a in axes}, f"parameter with the dim {name}"
            )
            axes.sort(key=lambda a: a.parameter.name != authority)
        for name, axes in self.bare.items():
            kinds = {a.dim.kind for a in axes}
            if len(kinds) > 1:
                self._fail(f"dim {name!r} is both a single axis and variadic (`*{name}`)")
            axes.sort(key=lambda a: a.dim.broadcast)

    def _check_solvable(self) -> dict[str, Axis]:
        """Dims that stand only in expressions, with the expression each is solved from."""
        known = set(self.bare) | set(self.lets) | set(self.contract.tied) | self.absent
        solved: dict[str, Axis] = {}
        missing = {n: a for a in self.expressions for n in a.dim.names if n not in known}
        progress = True
        while missing and progress:
            progress = False
            for axis in self.expressions:
                unknown = [n for n in axis.dim.names if n in missing]
                if len(unknown) == 1 and axis.dim.expression is not None and axis.dim.expression.solvable(unknown[0]):
                    solved[unknown[0]] = axis
                    del missing[unknown[0]]
                    progress = True
        for name, axis in missing.items():
            near = difflib.get_close_matches(name, sorted(known), 3, 0.4)
            self._fail(
                f"{axis.parameter.name}: axis {axis.dim.text!r} reads {name!r}, which nothing binds"
                + (f"; near: {', '.join(near)}" if near else "")
            )
        return solved

    def _check_names(self) -> None:
        contract = self.contract
        for name in sorted(((self.dims | self.union_dims) - set(self.lets)) & set(self.parameters)):
            if name not in contract.tied and name not in self.absent:
                self._fail(
                    f"dim {name!r} has the name of a parameter; list it in tied=(…) if they must agree, or rename one"
                )
        for name in contract.tied:
            self._known("tied", [name], self.parameters, "parameter")
            self._known("tied", [name], self.bare, "annotated dim")
            if name in self.lets:
                self._fail(f"{name!r} is both tied to the argument and derived by a let")
        self._known("dims", contract.dims, self.dims | self.union_dims | set(self.lets), "annotated dim")
        for axis in self.expressions:
            if axis.dim.expression is not None:
                arguments = axis.dim.expression.arguments
                self._known(f"axis {axis.dim.text!r} of {axis.parameter.name}", arguments, self.parameters, "parameter")
        seen: set[str] = set()
        for clause in contract.clauses:
            for name in (n for n, _ in clause.rules) if isinstance(clause, Let) else ():
                if name in seen:
                    self._fail(f"let({name}) stands twice")
                if name in self.parameters:
                    self._fail(f"let({name}) has the name of a parameter")
                if any(a.dim.kind is DimKind.VARIADIC for a in self.bare.get(name, [])):
                    self._fail(f"let({name}): a variadic dim cannot be derived")
                seen.add(name)

    def readable(self, index: int) -> set[str]:
        """Names that the rules and templates of a clause may read."""
        later = {n for n, at in self.lets.items() if at >= index}
        return {n for n in self.parameters if n.isidentifier()} | (self.dims - later) | (set(self.lets) - later)

    def _check_rule(
        self, clause: Clause, what: str, names: Iterable[str], index: int, extra: Iterable[str] = ()
    ) -> None:
        allowed = self.readable(index) | set(extra)
        for name in names:
            if name in self.lets and name not in allowed:
                self._fail(f"clause {index} {clause}: {what} reads {name!r}, which a later let derives")
            if name in self.union_dims and name not in allowed:
                self._fail(f"clause {index} {clause}: {what} reads {name!r} of a union, which binds no dim")
            self._known(f"clause {index} {clause}: {what}", [name], allowed, "parameter, dim or let")

    def _claims(self, clause: Clause, index: int) -> Iterator[Obligation]:
        label = f"clause {index} {clause}"
        tensors = {p.name for p in self.tensors}
        optional = isinstance(clause, (Present, Together, Exclusive, Values)) or clause.verb == "needs"
        self._known(
            label,
            clause.names,
            self.parameters if optional else tensors,
            "parameter" if optional else "tensor parameter",
        )
        if clause.when is not None:
            self._check_rule(clause, "when", lambda_parameters(clause.when), index)
        self._check_template(clause, index)
        if isinstance(clause, Let):
            derived: set[str] = set()
            for name, rule in clause.rules:
                self._check_rule(clause, f"{name}=", lambda_parameters(rule), index, derived)
                derived.add(name)
        elif isinstance(clause, Require):
            self._check_rule(clause, "the rule", lambda_parameters(clause.rule), index)
            self._known(f"{label}: about", clause.about, self.parameters, "parameter")
        elif isinstance(clause, Values):
            self._check_rule(clause, "a bound", clause.others(), index)
            for rule in clause.rules():
                self._check_rule(clause, "a bound", lambda_parameters(rule), index)
            check_values(self, clause, label, self._fail)
        elif isinstance(clause, AnyOf):
            for member in clause.members:
                yield from self._claims(member, index)
        elif isinstance(clause, Present):
            yield from (self.find(name, "type") for name in clause.names)
        elif isinstance(clause, (Rank, Dtype)):
            for name in clause.names:
                yield self.find(name, clause.verb)
                if isinstance(clause, Dtype):
                    yield from self._constraints(name, "dtype")
        elif isinstance(clause, (Layout, Device, NamedAxes)):
            for name in clause.names:
                found = list(self._constraints(name, clause.verb))
                if not found:
                    self._fail(f"{label}: the annotation of {name} has no {clause.verb} constraint to claim")
                yield from found
        elif isinstance(clause, Shape):
            for name in clause.names:
                yield from self._shape_claims(clause, name, index)
        elif isinstance(clause, SameDim):
            for name in clause.names:
                yield from (self.find(name, "axis", i) for i in self.axes_of(clause, name, index))
        elif isinstance(clause, NoOverlap):
            for name in clause.names:
                yield from (o for o in self.obligations[name] if o.kind == "written")

    def _constraints(self, name: str, kind: str) -> Iterator[Obligation]:
        for ob in self.obligations[name]:
            spec = ob.parameter.tensor
            if ob.kind == "constraint" and spec is not None and spec.constraints[ob.index].kind == kind:
                yield ob

    def _shape_claims(self, clause: Shape, name: str, index: int) -> Iterator[Obligation]:
        spec = self.parameters[name].tensor
        if spec is None:
            return
        yield self.find(name, "rank")
        if spec.union:
            if clause.axes is not None:
                self._fail(f"clause {index} {clause}: the axes of a union are one obligation; leave axes= out")
            for form in spec.forms:
                for dim in form.dims:
                    self._check_lets(clause, dim, name, index)
            yield self.find(name, "axes")
            return
        texts = [d.text for d in spec.dims]
        for i in range(len(texts)) if clause.axes is None else self._positions(clause, name, clause.axes, texts, index):
            self._check_lets(clause, spec.dims[i], name, index)
            yield self.find(name, "axis", i)

    def _check_lets(self, clause: Clause, dim: Dim, name: str, index: int) -> None:
        for read in dim.names:
            if read in self.lets and not self.let_before(read, index):
                self._fail(
                    f"clause {index} {clause}: axis {dim.text} of {name} needs {read}, which a later let derives"
                )

    def _positions(self, clause: Clause, name: str, axes: Iterable[str], texts: list[str], index: int) -> Iterator[int]:
        for axis in axes:
            self._known(f"clause {index} {clause}", [axis], set(texts), f"axis of {name}")
            yield from (i for i, t in enumerate(texts) if t == axis)

    def axes_of(self, clause: SameDim, name: str, index: int) -> tuple[int, ...]:
        """Axes of a parameter that carry the dim of a ``same_dim``."""
        spec = self.parameters[name].tensor
        if spec is None or spec.union:
            self._fail(f"clause {index} {clause}: {name} is a union, whose axes are one obligation")
        found = [i for i, d in enumerate(spec.dims) if d.name == clause.dim]
        if not found:
            self._known(
                f"clause {index} {clause}", [clause.dim], {d.name for d in spec.dims if d.name}, f"dim of {name}"
            )
        return tuple(found)

    def _check_template(self, clause: Clause, index: int) -> None:
        error = clause.error
        if error is None:
            return
        found = template_fields(clause)
        fields = set(error.fields) | found
        for field, rule in error.fields.items():
            self._check_rule(clause, f"field {field!r} of {error.slug}", lambda_parameters(rule), index, found)
        self._check_rule(
            clause, f"the message of {error.slug}", sorted(error.names), index, fields | {"name", "names", "self"}
        )
        for part in error.parts:
            source = None if isinstance(part, str) else part.source
            if source in self.parameters and self.parameters[source].tensor is not None:
                self._fail(f"clause {index} {clause}: the message of {error.slug} would print the data of {source}")

    def values(self) -> tuple[tuple[Step, Values], ...]:
        """The clauses on values, in order, each with the step that holds it."""
        return tuple((s, c) for s in self.steps for c in flat(s.clause) if isinstance(c, Values))

    def equal_dtypes(self) -> tuple[SameDtype, ...]:
        """What the dtype variables say, as the clauses that would say it; items of containers left out."""
        groups = (tuple(n for n in names if n in self.parameters) for names in self.shared_dtypes.values())
        return tuple(SameDtype(names) for names in groups if len(names) > 1)


def flat(clause: Clause) -> tuple[Clause, ...]:
    """A clause, or the members of an ``any_of``."""
    return clause.members if isinstance(clause, AnyOf) else (clause,)
