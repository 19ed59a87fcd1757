"""A call judged in documented order: the first broken clause or obligation, in plain Python."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ._call import Call
from ._errors import ContractDefinitionError, DocumentedError
from ._fitting import fits_exactly, holds, is_one
from ._overlap import shares_bytes
from ._terms import Axis, Obligation, Step, flat
from ._values.clauses import Values
from ._values.judging import judge_values
from ._verdicts import Broken, Status, Unknown, unequal_dtype
from .clauses import (
    AnyOf,
    Clause,
    Exclusive,
    Let,
    Needs,
    NoOverlap,
    Present,
    Require,
    Rule,
    SameDevice,
    SameDim,
    SameDtype,
    Shape,
    Together,
    lambda_parameters,
)


@dataclass(frozen=True, slots=True)
class Violation:
    """The first thing that is broken.

    Attributes:
        broken: What and why.
        error: Documented error, or None for the default text.
        step: The clause that says so, or None.
    """

    broken: Broken
    error: DocumentedError | None = None
    step: Step | None = None


def first_violation(call: Call) -> Violation | None:
    """Judge a call: type obligations, then the clauses in order, then every obligation that is left.

    Raises:
        ContractDefinitionError: Code of the contract's author failed.
    """
    terms = call.terms
    for parameter in terms.signature.parameters:
        obligation = terms.obligations[parameter.name][0]
        status = call.status(obligation)
        if isinstance(status, Broken):
            if call.values[parameter.name] is None and parameter.name in terms.none_claimed:
                continue
            return Violation(status)
    for step in terms.steps:
        status = _evaluate(call, step.clause, step)
        if isinstance(status, Broken):
            return Violation(status, step.clause.error, step)
        if isinstance(status, Unknown) and status.because:
            reason = status.because[0]
            if not terms.claimed_after(reason, step.index):
                underneath = call.status(reason)
                if isinstance(underneath, Broken):
                    return Violation(underneath)
    for parameter in terms.signature.parameters:
        for obligation in terms.obligations[parameter.name]:
            status = call.status(obligation)
            if isinstance(status, Broken):
                return Violation(status)
    return _mutual_overlap(call)


def run_lets(call: Call) -> None:
    """Derive what the lets of a contract derive, without judging anything."""
    for step in call.terms.steps:
        if isinstance(step.clause, Let):
            _let(call, step.clause, step)


def _mutual_overlap(call: Call) -> Violation | None:
    written = [n for n in call.terms.contract.mutates if isinstance(call.tensor(n), torch.Tensor)]
    for i, name in enumerate(written):
        for other in written[i + 1 :]:
            if shares_bytes(call.tensor(name), call.tensor(other)):
                return Violation(Broken((other,), f"{other}: is written and shares memory with {name}, also written"))
    return None


def apply_rule(call: Call, clause: Clause, rule: Rule, extra: dict[str, Any] | None = None) -> tuple[bool, Any]:
    """Run a rule of a contract's author.

    Returns:
        True and the value, or False and the Unknown that says why there is none.

    Raises:
        ContractDefinitionError: The rule failed although its arguments are what the annotations say.
    """
    terms = call.terms
    values: list[Any] = []
    names = lambda_parameters(rule)
    for name in names:
        if extra is not None and name in extra:
            values.append(extra[name])
        elif name in call.lets:
            values.append(call.lets[name])
        elif name in terms.parameters:
            values.append(call.values[name])
        else:
            missing = call.missing((name,))
            if missing is not None:
                return False, missing
            values.append(call.dims[name])
    try:
        return True, rule(*values)
    except Exception as bad:
        because = tuple(
            ob
            for name in names
            if name in terms.parameters
            for ob in terms.obligations[name]
            if ob.kind in ("type", "rank", "dtype") and isinstance(call.status(ob), Broken)
        )
        if because:
            return False, Unknown(because)
        raise ContractDefinitionError(f"{terms.owner}: {clause} failed: {bad!r}") from bad


def _evaluate(call: Call, clause: Clause, step: Step) -> Status:
    # A rule may lean on its `when`; the other clauses ask it only where they do not hold anyway, as the guard does.
    lazy = not any(isinstance(c, (Require, Values)) for c in flat(clause))
    status = _judge(call, clause, step) if lazy or clause.when is None else None
    if clause.when is None or (lazy and status is None):
        return status
    done, value = apply_rule(call, clause, clause.when)
    if not done:
        return value
    if not value:
        return None
    return status if lazy else _judge(call, clause, step)


def _judge(call: Call, clause: Clause, step: Step) -> Status:
    if isinstance(clause, AnyOf):
        return _any_of(call, clause, step)
    handler = _HANDLERS.get(type(clause))
    if handler is not None:
        return handler(call, clause, step)
    return _claims(call, [o for o in step.claims if o.parameter.name in clause.names])


def _claims(call: Call, obligations: Iterable[Obligation]) -> Status:
    """Broken if any obligation is; unknown only if none is broken and one cannot be told."""
    broken: list[Broken] = []
    unknown: Unknown | None = None
    for obligation in obligations:
        status = call.status(obligation)
        if isinstance(status, Broken):
            broken.append(status)
        elif isinstance(status, Unknown) and unknown is None:
            unknown = status
    return _merge(broken) or unknown


def _merge(broken: list[Broken]) -> Broken | None:
    if not broken:
        return None
    first = broken[0]
    names = tuple(dict.fromkeys(n for b in broken for n in b.names))
    return replace(first, names=names)


def _any_of(call: Call, clause: AnyOf, step: Step) -> Status:
    broken: list[Broken] = []
    unknown: Unknown | None = None
    for member in clause.members:
        # In the order that the member names them: the first one is the reference.
        claims = tuple(
            o
            for n in member.names
            for o in dict.fromkeys(step.claims)
            if o.parameter.name == n and _claimed_by(o, member)
        )
        status = _evaluate(call, member, Step(step.index, member, claims))
        if isinstance(status, Broken):
            broken.append(status)
        elif isinstance(status, Unknown) and unknown is None:
            unknown = status
    merged = _merge(broken)
    if merged is None:
        return unknown
    order = list(call.terms.parameters)
    names = tuple(sorted(merged.names, key=order.index))
    return replace(merged, names=names)


def _claimed_by(obligation: Obligation, clause: Clause) -> bool:
    verb = clause.verb
    if obligation.kind == "constraint":
        spec = obligation.parameter.tensor
        return spec is not None and spec.constraints[obligation.index].kind == verb
    if isinstance(clause, SameDim):
        spec = obligation.parameter.tensor
        return obligation.kind == "axis" and spec is not None and spec.dims[obligation.index].name == clause.dim
    if verb == "shape":
        if obligation.kind == "axis" and isinstance(clause, Shape) and clause.axes is not None:
            spec = obligation.parameter.tensor
            return spec is not None and spec.dims[obligation.index].text in clause.axes
        return obligation.kind in ("rank", "axis", "axes")
    return obligation.kind == verb or (verb == "no_overlap" and obligation.kind == "written")


def _present(call: Call, clause: Clause, step: Step) -> Status:
    absent = tuple(n for n in clause.names if call.values[n] is None)
    if not absent:
        return None
    return Broken(absent, f"{absent[0]}: must be given, got None", TypeError)


def _same_dim(call: Call, clause: Clause, step: Step) -> Status:
    dim = clause.dim if isinstance(clause, SameDim) else ""
    reference: tuple[Axis, Any] | None = None
    failing: list[Broken] = []
    unknown: Unknown | None = None
    for obligation in step.claims:
        name, spec = obligation.parameter.name, obligation.parameter.tensor
        if call.tensor(name) is None or spec is None:
            continue
        axis = Axis(obligation.parameter, obligation.index, spec.dims[obligation.index])
        size = call.size(axis)
        if size is None:
            unknown = unknown or Unknown((call.terms.find(name, "rank"),))
            continue
        if spec.dims[obligation.index].broadcast and is_one(size):
            continue
        if reference is None:
            if unknown is not None:
                break
            reference = (axis, size)
        elif not fits_exactly(size, reference[1]):
            shape = call.shape(name) or ()
            place = spec.forms[0].position(obligation.index, len(shape))
            found = f"axis {place} ({dim}) is {size}" if isinstance(size, int) else f"axes *{dim} are {list(size)}"
            text = f"{name}: {found}, but {dim} is {reference[1]} ({call.where(reference[0])}); got {list(shape)}"
            failing.append(Broken((name,), text, axis=place if isinstance(place, int) else None, dim=dim))
    return _merge(failing) or unknown


def _given(call: Call, clause: Clause) -> list[tuple[str, Any]]:
    return [(n, call.tensor(n)) for n in clause.names if call.tensor(n) is not None]


def _same_dtype(call: Call, clause: Clause, step: Step) -> Status:
    given = _given(call, clause)
    first, wanted = (given[0][0], given[0][1].dtype) if given else ("", None)
    return _merge([unequal_dtype(n, t.dtype, first, wanted) for n, t in given if t.dtype != wanted])


def _same_device(call: Call, clause: Clause, step: Step) -> Status:
    given = _given(call, clause)
    first, wanted = (given[0][0], given[0][1].device) if given else ("", None)
    texts = [(n, f"{n}: is on {t.device}, but {first} is on {wanted}") for n, t in given if t.device != wanted]
    return _merge([Broken((name,), text) for name, text in texts])


def _no_overlap(call: Call, clause: Clause, step: Step) -> Status:
    written = _claims(call, step.claims)
    if isinstance(written, Broken):
        return written
    given = _given(call, clause)
    if len(given) < 2 or given[0][0] != clause.names[0]:
        return None
    first, tensor = given[0]
    shared = tuple(n for n, t in given[1:] if shares_bytes(tensor, t))
    return Broken(shared, f"{first}: shares memory with {', '.join(shared)}") if shared else None


def _together(call: Call, clause: Clause, step: Step) -> Status:
    absent = tuple(n for n in clause.names if call.values[n] is None)
    if not absent or len(absent) == len(clause.names):
        return None
    given = [n for n in clause.names if n not in absent]
    return Broken(absent, f"{', '.join(clause.names)} go together: got {', '.join(given)} without {', '.join(absent)}")


def _needs(call: Call, clause: Clause, step: Step) -> Status:
    name, *others = clause.names
    absent = tuple(n for n in others if call.values[n] is None)
    if call.values[name] is None or not absent:
        return None
    return Broken(absent, f"{name} needs {', '.join(absent)}, which {'is' if len(absent) == 1 else 'are'} None")


def _exclusive(call: Call, clause: Clause, step: Step) -> Status:
    given = tuple(n for n in clause.names if call.values[n] is not None)
    return Broken(given, f"{' and '.join(given)} exclude each other") if len(given) > 1 else None


def _let(call: Call, clause: Clause, step: Step) -> Status:
    rules = clause.rules if isinstance(clause, Let) else ()
    for name, rule in rules:
        done, value = apply_rule(call, clause, rule)
        if not done:
            call.unbound[name] = value.because
            continue
        call.lets[name] = value
        call.dims[name] = value
        call.sources[name] = ("derived by let", None)
    return None


def _require(call: Call, clause: Clause, step: Step) -> Status:
    if not isinstance(clause, Require):
        return None
    done, value = apply_rule(call, clause, clause.rule)
    if not done:
        return value
    if holds(value):
        return None
    read = lambda_parameters(clause.rule)
    shown = ", ".join(f"{n}={_show(call, n)}" for n in read)
    about = clause.about or tuple(n for n in read if n in call.terms.parameters)
    return Broken(about, f"requirement {step.index} of {call.terms.contract.name} does not hold: {shown}")


def _values(call: Call, clause: Clause, step: Step) -> Status:
    if not isinstance(clause, Values):
        return None

    def run(rule: Rule) -> tuple[bool, Any]:
        return apply_rule(call, clause, rule)

    return judge_values(call, clause, run)


def _show(call: Call, name: str) -> str:
    if name in call.terms.parameters:
        value = call.values[name]
        if value is None or isinstance(value, (bool, int, float, str)):
            return repr(value)
        return f"<{type(value).__name__}{list(value.shape) if hasattr(value, 'shape') else ''}>"
    return str(call.lets.get(name, call.dims.get(name)))


_HANDLERS: dict[type[Clause], Callable[[Call, Clause, Step], Status]] = {
    Present: _present,
    SameDim: _same_dim,
    SameDtype: _same_dtype,
    SameDevice: _same_device,
    NoOverlap: _no_overlap,
    Together: _together,
    Needs: _needs,
    Exclusive: _exclusive,
    Let: _let,
    Require: _require,
    Values: _values,
}
