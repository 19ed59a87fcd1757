"""Mutants of a contract: one clause left out, or loosened in one way."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tensorpact._annotations import Parameter, Signature, TensorSpec
from tensorpact._contract import Contract
from tensorpact._dims import Dim, DimKind
from tensorpact._errors import ContractDefinitionError
from tensorpact._terms import Terms, flat
from tensorpact.clauses import AnyOf, Clause, Let, Needs, NoOverlap, Require, Shape
from tensorpact.constraints import Aligned, Constraint, Contiguous, DenseInner, DenseLast, OneOf, SameDtype

from ._weaken import weaker_rules

#: Fewest names that a clause can have, where one would say nothing.
_LEAST = {"same_dim": 2, "same_dtype": 2, "same_device": 2, "together": 2, "needs": 2, "exclusive": 2}
#: Clauses that claim what an annotation says anyway: without an error of their own they only order checks.
_CLAIMS = frozenset({"present", "rank", "dtype", "layout", "named_axes", "device", "shape", "same_dim"})


@dataclass(frozen=True, slots=True)
class Waived(Constraint):
    """Stands where a constraint stood, so that the clause which claims it still has one to claim."""

    of: Literal["layout", "device", "dtype", "named_axes"]

    @property
    def kind(self) -> Literal["layout", "device", "dtype", "named_axes"]:
        """Which clause claims this constraint."""
        return self.of

    def holds(self, tensor: Any) -> bool:
        """Always: it is waived."""
        return True

    def reason(self, tensor: Any) -> str:
        """Never asked for."""
        return "is waived"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A contract with one change.

    Attributes:
        clause: Place of the changed clause in firing order, from 0.
        text: The clause as it was.
        slug: Its documented error, or None.
        kind: Whether the clause was left out or loosened.
        change: What was changed, in words.
        doubtful: Whether nothing may come of the change although the clause is right.
        terms: The changed contract on the signature.
    """

    clause: int
    text: str
    slug: str | None
    kind: Literal["delete", "loosen"]
    change: str
    doubtful: bool
    terms: Terms


@dataclass(frozen=True, slots=True)
class _Loosened:
    change: str
    clause: Clause
    spec: Mapping[str, TensorSpec]
    doubtful: bool = False


def mutants_of(terms: Terms) -> Iterator[Mutant]:
    """Every mutant of a contract that is a contract still; lets, which check nothing, have none.

    Args:
        terms: The contract laid on the signature.
    """
    clauses = terms.contract.clauses
    for index, clause in enumerate(clauses):
        if isinstance(clause, Let):
            continue
        slug = None if clause.error is None else clause.error.slug
        orders = slug is None and all(c.verb in _CLAIMS for c in flat(clause))
        without = _laid(terms, (*clauses[:index], *clauses[index + 1 :]), {})
        if without is not None:
            yield Mutant(index, str(clause), slug, "delete", "left out", orders, without)
        for made in _loosened(clause, terms):
            other = _laid(terms, (*clauses[:index], made.clause, *clauses[index + 1 :]), made.spec)
            if other is not None:
                yield Mutant(index, str(clause), slug, "loosen", made.change, orders or made.doubtful, other)


def _laid(terms: Terms, clauses: tuple[Clause, ...], spec: Mapping[str, TensorSpec]) -> Terms | None:
    """The changed contract on the signature; None where it contradicts itself."""
    old = terms.contract
    contract = Contract(
        old.name, dims=old.dims, clauses=clauses, binds=old.binds, tied=old.tied, mutates=old.mutates, family=old.family
    )

    def changed(parameter: Parameter) -> Parameter:
        return replace(parameter, tensor=spec[parameter.name]) if parameter.name in spec else parameter

    found = terms.signature
    signature = Signature(found.owner, tuple(changed(p) for p in found.parameters), found.returns)
    try:
        return Terms(contract, signature, terms.absent)
    except ContractDefinitionError:
        return None


def _loosened(clause: Clause, terms: Terms) -> Iterator[_Loosened]:
    if isinstance(clause, AnyOf):
        for i, member in enumerate(clause.members):
            rest = (*clause.members[:i], *clause.members[i + 1 :])
            alike = [str(m) for m in clause.members].count(str(member)) > 1
            label = f"{member}, member {i}," if alike else str(member)
            if rest:
                yield _Loosened(f"without {label}".rstrip(","), replace(clause, members=rest), {})
            for made in _loosened(member, terms):
                members = (*clause.members[:i], made.clause, *clause.members[i + 1 :])
                yield _Loosened(f"{label} {made.change}", replace(clause, members=members), made.spec, made.doubtful)
        return
    yield from _fewer_names(clause)
    if isinstance(clause, Shape):
        yield from _fewer_axes(clause, terms)
    if isinstance(clause, Require):
        for text, rule in weaker_rules(clause.rule):
            yield _Loosened(f"weaker: {text}", replace(clause, rule=rule), {}, doubtful=True)
    if clause.verb in ("dtype", "layout", "device", "named_axes"):
        for name in clause.names:
            spec = terms.parameters[name].tensor
            for change, other in _weaker_specs(clause.verb, spec) if spec is not None else ():
                yield _Loosened(f"{name}: {change}", clause, {name: other})


def _fewer_names(clause: Clause) -> Iterator[_Loosened]:
    names = clause.names
    if len(names) <= _LEAST.get(clause.verb, 1):
        return
    # The first name of these says what the clause is about.
    kept = 1 if isinstance(clause, (Needs, NoOverlap)) else 0
    for name in names[kept:]:
        yield _Loosened(f"without {name}", replace(clause, names=tuple(n for n in names if n != name)), {})


def _fewer_axes(clause: Shape, terms: Terms) -> Iterator[_Loosened]:
    name, *others = clause.names
    if clause.axes is None and others:
        return
    spec = terms.parameters[name].tensor
    if spec is None or spec.union:
        return
    axes = tuple(dict.fromkeys(d.text for d in spec.dims)) if clause.axes is None else clause.axes
    for axis in axes if len(axes) > 1 else ():
        places = [i for i, d in enumerate(spec.dims) if d.text == axis]
        if all(_never_wrong(terms, name, i, spec.dims[i]) for i in places):
            continue
        kept = tuple(a for a in axes if a != axis)
        # Where all axes are claimed at once, some may be claimed earlier already.
        yield _Loosened(f"without the axis {axis}", replace(clause, axes=kept), {}, doubtful=clause.axes is None)


def _never_wrong(terms: Terms, name: str, index: int, dim: Dim) -> bool:
    """Whether any size of an axis is right, or the axis itself says what size is right."""
    if dim.kind in (DimKind.ANONYMOUS, DimKind.ELLIPSIS):
        return True
    axes = terms.bare.get(dim.name, []) if dim.name not in (*terms.lets, *terms.contract.tied) else []
    return bool(axes) and (axes[0].parameter.name, axes[0].index) == (name, index)


def _weaker_specs(verb: str, spec: TensorSpec) -> Iterator[tuple[str, TensorSpec]]:
    """What was changed and the spec with a constraint that allows more."""
    if verb == "dtype":
        kept = tuple(c for c in spec.constraints if not isinstance(c, OneOf))
        if kept != spec.constraints:
            yield "any dtype of its family", replace(spec, constraints=kept)
        elif any(f.dtypes is not None for f in spec.forms):
            yield "any dtype", replace(spec, forms=tuple(replace(f, dtypes=None) for f in spec.forms))
        return
    for i, constraint in enumerate(spec.constraints):
        if constraint.kind == verb and not isinstance(constraint, SameDtype):
            weaker = _weaker(constraint)
            constraints = (*spec.constraints[:i], weaker, *spec.constraints[i + 1 :])
            shown = f"without {constraint}" if isinstance(weaker, Waived) else f"{weaker} for {constraint}"
            yield shown, replace(spec, constraints=constraints)


def _weaker(constraint: Constraint) -> Constraint:
    if isinstance(constraint, Contiguous):
        return DenseLast()
    if isinstance(constraint, DenseInner) and constraint.axes > 1:
        return DenseInner(constraint.axes - 1)
    if isinstance(constraint, DenseLast) and constraint.strict:
        return DenseLast()
    if isinstance(constraint, Aligned) and constraint.bytes % 2 == 0 and constraint.bytes > 2:
        return Aligned(constraint.bytes // 2)
    return Waived(constraint.kind)
