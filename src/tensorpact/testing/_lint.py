"""What a contract says although nothing can come of it, found without running the entry point."""

import typing
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tensorpact._annotations import Parameter, is_tensor_hint, read_hint
from tensorpact._dims import DimKind, parse_shape
from tensorpact._terms import Step, Terms, flat
from tensorpact.clauses import AnyOf, Clause, Let, Present, lambda_parameters, rules_of
from tensorpact.constraints import SameDtype

from ._drafts import Move
from ._numbers import reads_of
from ._report import Finding
from ._search import Missed, Suite


def _read_by_clause(clause: Clause) -> Iterator[str]:
    for rule in rules_of(clause):
        yield from lambda_parameters(rule)
    for member in flat(clause):
        yield from reads_of(member)
    if clause.error is not None:
        yield from clause.error.names
        for rule in clause.error.fields.values():
            yield from lambda_parameters(rule)


def _return_dims(hint: Any, owner: str) -> Iterator[str]:
    if is_tensor_hint(hint):
        for dim in parse_shape(hint.dim_str, owner):
            yield from dim.names
    for inner in typing.get_args(hint):
        yield from _return_dims(inner, owner)


def unused_dims(terms: Terms) -> Iterator[Finding]:
    """Dims that stand once and that nothing reads: any size would do."""
    places: Counter[str] = Counter()
    read: set[str] = set(terms.contract.tied) | set(terms.lets)
    for p in terms.tensors:
        for form in p.tensor.forms if p.tensor is not None else ():
            for dim in form.dims:
                if dim.kind is DimKind.EXPRESSION:
                    read |= set(dim.names)
                elif dim.name:
                    places[dim.name] += 1
    for clause in terms.contract.clauses:
        read |= set(_read_by_clause(clause))
    read |= set(_return_dims(terms.signature.returns, terms.owner))
    for name, count in places.items():
        if count == 1 and name not in read:
            yield Finding("warning", f"dim {name} stands once and nothing reads it: it constrains nothing")


def unused_dtype_variables(terms: Terms) -> Iterator[Finding]:
    """Dtype variables that stand once, so that nothing is compared."""
    returned = set(_return_variables(terms.signature.returns))
    for variable, names in terms.shared_dtypes.items():
        if len(names) == 1 and variable not in returned and names[0] in terms.parameters:
            yield Finding("warning", f"the dtype variable {variable} stands once: it constrains nothing")


def _return_variables(hint: Any) -> Iterator[str]:
    yield from (m.variable for m in getattr(hint, "__metadata__", ()) if isinstance(m, SameDtype))
    for inner in typing.get_args(hint):
        yield from _return_variables(inner)


def none_or_not(terms: Terms) -> Iterator[Finding]:
    """Hints that say one thing about None while a clause or a default says another."""
    required: set[str] = set()
    for clause in terms.contract.clauses:
        members = clause.members if isinstance(clause, AnyOf) else (clause,)
        for member in members:
            if isinstance(member, Present) and member.when is None and clause.when is None:
                required |= set(member.names)
    for p in terms.signature.parameters:
        if p.name in required and p.optional:
            yield Finding("warning", f"{p.name} is typed Optional, but a clause without a condition requires it")
        if p.default is None and not p.is_field and not _allows_none(p, terms.owner):
            yield Finding("warning", f"{p.name} has the default None, but its hint does not allow None")


def _allows_none(parameter: Parameter, owner: str) -> bool:
    """Whether the hint alone, its default left out, allows None."""
    bare = read_hint(parameter.name, parameter.hint, owner)
    return bare.optional or bare.other in (Any, object)


def unreachable_axes(suite: Suite) -> Iterator[Finding]:
    """Annotated axes that another size never breaks, although they bind nothing."""
    terms = suite.space.terms
    for p in terms.tensors:
        spec = p.tensor
        if spec is None or spec.union or p.is_field:
            continue
        for i, dim in enumerate(spec.dims):
            binds = dim.kind is DimKind.NAMED and _is_authority(terms, p.name, i, dim.name)
            if dim.kind in (DimKind.ANONYMOUS, DimKind.ELLIPSIS, DimKind.VARIADIC) or binds or dim.broadcast:
                continue
            if any(n in terms.solved for n in dim.names):
                continue
            at = i if spec.forms[0].variadic is None or i < spec.forms[0].variadic else i - len(spec.dims)
            if not _breaks(suite, p.name, at):
                yield Finding("error", f"axis {i} ({dim.text}) of {p.name} is not enforced: another size is accepted")


def _is_authority(terms: Terms, name: str, index: int, dim: str) -> bool:
    if dim in terms.lets or dim in terms.contract.tied:
        return False
    axes = terms.bare.get(dim, [])
    return bool(axes) and axes[0].parameter.name == name and axes[0].index == index


def _breaks(suite: Suite, name: str, at: int) -> bool:
    looked = False
    for base in suite.bases:
        for move in (Move("grow", name, (at, 1)), Move("grow", name, (at, -1)), Move("axis", name, (at, 0))):
            found = suite.judged(base.draft.moved(move))
            if found is not None:
                looked = True
                if found.verdict.violation is not None:
                    return True
    return not looked


def unreachable_clauses(suite: Suite) -> Iterator[Finding]:
    """Clauses without a documented error that never fire; the others are witnessed one by one."""
    for step in suite.space.terms.steps:
        if step.clause.error is None and not isinstance(step.clause, Let):
            found = suite.find(step)
            if isinstance(found, Missed):
                yield Finding("error", f"{label(step)} is {found.reason}", clause=step.index)


def label(step: Step) -> str:
    """A clause as findings call it."""
    slug = f" ({step.clause.error.slug})" if step.clause.error is not None else ""
    return f"clause {step.index} {step.clause}{slug}"


def lint(suite: Suite) -> list[Finding]:
    """Everything that is wrong with a contract as it stands."""
    terms = suite.space.terms
    return [
        *static_lint(terms),
        *unreachable_axes(suite),
        *unreachable_clauses(suite),
    ]


def static_lint(terms: Terms) -> list[Finding]:
    """What needs no arguments to be seen."""
    return [*unused_dims(terms), *unused_dtype_variables(terms), *none_or_not(terms)]
