"""What the guard of a function has to do, before any text: order of reading, which dims are sure, what is implied."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensorpact._annotations import EMPTY, Parameter, is_torch_class
from tensorpact._dims import DimKind
from tensorpact._hints import is_none
from tensorpact._items import parts, read_items
from tensorpact._terms import Terms
from tensorpact._values.gate import Gate
from tensorpact.clauses import AnyOf, Clause, Let, NoOverlap, Rule, SameDtype, lambda_parameters, rules_of


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GuardPlan:
    """Plan of one guard.

    Attributes:
        terms: The contract laid on the signature.
        required: Tensor parameters that are always tensors, in signature order.
        maybe: Tensor parameters that may be something else.
        scalars: Parameters checked by beartype or by exact type.
        sure: Dims that have a value in every call.
        conditions: Dims and lets that may have none: name to the dims that must be bound for it.
        unread: Dims that nothing compares and no rule reads.
        implied: Parameters whose dtype an equality with another one proves.
        statements: Clauses that add something, in order, each with the condition around it.
        apart: Pairs of parameters that may share no memory in any call.
        gate: Looks at the clauses on values, or None where there are none.
        interpreted: Whether the signature binds dims in ways that straight-line code does not cover.
    """

    terms: Terms
    required: tuple[Parameter, ...]
    maybe: tuple[Parameter, ...]
    scalars: tuple[Parameter, ...]
    sure: frozenset[str]
    conditions: dict[str, frozenset[str]]
    unread: frozenset[str]
    implied: frozenset[str]
    statements: tuple[tuple[int, Clause, Rule | None], ...]
    apart: tuple[tuple[str, str], ...]
    gate: Gate | None
    interpreted: bool


def is_required(parameter: Parameter) -> bool:
    """Whether a valid argument is always a tensor."""
    return parameter.tensor is not None and not (parameter.optional or parameter.repeated) and parameter.other is EMPTY


def is_torch(parameter: Parameter) -> bool:
    """Whether every form of the annotation names ``torch.Tensor`` or a subclass."""
    if parameter.tensor is None:
        return False
    return all(is_torch_class(f.array_type) for f in parameter.tensor.forms)


def make_plan(terms: Terms) -> GuardPlan:
    """Plan the guard of a function."""
    required = tuple(p for p in terms.tensors if is_required(p))
    maybe = tuple(p for p in terms.tensors if not is_required(p))
    scalars = tuple(
        p for p in terms.signature.parameters if p.tensor is None and terms.checks[p.name].other is not None
    )
    sure = {n for n in terms.contract.tied if not terms.parameters[n].optional}
    for name, axes in terms.bare.items():
        if any(is_required(a.parameter) and not a.dim.broadcast for a in axes) and name not in terms.lets:
            sure.add(name)
    interpreted = _needs_interpretation(terms, sure)
    sure |= set() if interpreted else set(terms.solved)
    conditions: dict[str, frozenset[str]] = {
        n: frozenset({n}) for n in terms.dims if n not in sure and n not in terms.lets
    }
    for clause in terms.contract.clauses:
        if isinstance(clause, Let):
            for name, rule in clause.rules:
                conditions[name] = reads_unsure(lambda_parameters(rule), conditions)
    statements = tuple(_statements(terms))
    return GuardPlan(
        terms,
        required,
        maybe,
        scalars,
        frozenset(sure),
        conditions,
        frozenset(_unread(terms)),
        frozenset(_implied(terms, statements)),
        statements,
        tuple(dict.fromkeys(_apart(terms, statements))),
        Gate(terms) if terms.values() else None,
        interpreted,
    )


def reads_unsure(names: tuple[str, ...], conditions: dict[str, frozenset[str]]) -> frozenset[str]:
    """Dims that must be bound so that all these names have a value."""
    return frozenset(d for n in names for d in conditions.get(n, ()))


def _needs_interpretation(terms: Terms, sure: set[str]) -> bool:
    known = set(sure)
    pending = dict(terms.solved)
    progress = True
    while pending and progress:
        progress = False
        for name, axis in list(pending.items()):
            others = [n for n in axis.dim.names if n != name]
            if is_required(axis.parameter) and not axis.dim.broadcast and all(n in known for n in others):
                known.add(name)
                del pending[name]
                progress = True
    if pending:
        return True
    for axis in terms.expressions:
        if any(n not in known and n not in terms.lets for n in axis.dim.names):
            return True
    if not all(is_loopable(p.hint, terms.owner) for p in terms.nested) or not all(
        _fits_a_loop(t, terms, known) for t in terms.templates.values()
    ):
        return True
    return any(
        a.dim.kind is DimKind.VARIADIC
        and a.dim.broadcast
        and not any(not b.dim.broadcast and is_required(b.parameter) for b in axes)
        for axes in terms.bare.values()
        for a in axes
    )


def is_loopable(hint: Any, owner: str) -> bool:
    """Whether a hint names one container, with such containers or plain parts inside."""
    given = [m for m in parts(hint) if not is_none(m)]
    found = [read_items(m, owner) for m in given]
    if not any(found):
        return True
    if len(found) != 1 or found[0] is None:
        return False
    return all(is_loopable(inner, owner) and not _has_none(inner) for _, inner in found[0].templates())


def _has_none(hint: Any) -> bool:
    return any(is_none(m) for m in parts(hint))


def _fits_a_loop(template: Parameter, terms: Terms, known: set[str]) -> bool:
    """Whether the items of a container can be compared one after the other, with nothing left for later."""
    if template.tensor is None:
        return True
    if (
        template.tensor.dtype_variables()
        or template.tensor.union
        or not is_torch(template)
        or template.other is not EMPTY
    ):
        return False
    for dim in template.tensor.dims:
        unsure = [n for n in dim.names if n not in known]
        shared = any(a.dim.broadcast for n in unsure for a in terms.bare.get(n, ()))
        if set(dim.names) & set(terms.lets) or (unsure and (dim.broadcast or shared or dim.expression is not None)):
            return False
    return True


def _unread(terms: Terms) -> Iterator[str]:
    read = {n for a in terms.expressions for n in a.dim.names} | terms.union_dims | set(terms.contract.tied)
    for step in terms.steps:
        read.update(n for rule in rules_of(step.clause) for n in lambda_parameters(rule))
    read.update(n for _, clause in terms.values() for n in clause.others())
    for name, axes in terms.bare.items():
        if len(axes) == 1 and not axes[0].parameter.repeated and name not in read and name not in terms.lets:
            yield name


def _statements(terms: Terms) -> Iterator[tuple[int, Clause, Rule | None]]:
    for step in terms.steps:
        clause = step.clause
        if isinstance(clause, AnyOf):
            for member in clause.members:
                yield step.index, member, clause.when
        else:
            yield step.index, clause, None
    for index, equal in enumerate(terms.equal_dtypes(), len(terms.steps)):
        yield index, equal, None


def _apart(terms: Terms, statements: tuple[tuple[int, Clause, Rule | None], ...]) -> Iterator[tuple[str, str]]:
    for _, clause, outer in statements:
        if isinstance(clause, NoOverlap) and clause.when is None and outer is None:
            yield from ((clause.names[0], other) for other in clause.names[1:])
    written = terms.contract.mutates
    yield from ((name, other) for i, name in enumerate(written) for other in written[i + 1 :])


def _implied(terms: Terms, statements: tuple[tuple[int, Clause, Rule | None], ...]) -> Iterator[str]:
    # Whoever proves another's dtype keeps its own check, else two equalities could prove each other.
    provers: set[str] = set()
    implied: set[str] = set()
    for _, clause, outer in statements:
        if not isinstance(clause, SameDtype) or clause.when is not None or outer is not None:
            continue
        first, *rest = (terms.parameters[n] for n in clause.names)
        if not is_required(first) or first.tensor is None or not is_torch(first) or first.name in implied:
            continue
        allowed = first.tensor.dtypes()
        for other in rest:
            dtypes = other.tensor.dtypes() if other.tensor is not None and is_torch(other) else ()
            union = other.tensor is not None and other.tensor.union
            fits = dtypes is None or (allowed is not None and set(allowed) <= set(dtypes))
            if fits and not union and other.name not in provers:
                provers.add(first.name)
                implied.add(other.name)
    yield from sorted(implied)
