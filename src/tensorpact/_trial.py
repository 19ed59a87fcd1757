"""A violation located, and a call tried again with some arguments changed."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ._annotations import Parameter
from ._call import Call
from ._evaluation import Violation
from ._terms import Obligation, flat
from ._verdicts import Broken
from .clauses import Clause, Let, Require, lambda_parameters
from .constraints import SameDtype

#: Obligations whose verdict another argument can alter only through a dim.
_LASTING = {"type", "rank", "dtype", "constraint", "axis"}


def broken_obligation(call: Call, broken: Broken) -> Obligation | None:
    """The obligation that gave a verdict."""
    for name in broken.names:
        for obligation in call.terms.obligations.get(name, ()):
            status = call.status(obligation)
            if isinstance(status, Broken) and status.reason == broken.reason:
                return obligation
    return None


def point_of(call: Call, violation: Violation) -> str:
    """What a violation is about: kind of the obligation, of its constraint, or verb of the clause."""
    obligation = broken_obligation(call, violation.broken)
    if obligation is None:
        return "type" if violation.step is None else violation.step.clause.verb
    spec = obligation.parameter.tensor
    if obligation.kind == "constraint" and spec is not None:
        constraint = spec.constraints[obligation.index]
        return "same_dtype" if isinstance(constraint, SameDtype) else constraint.kind
    return obligation.kind


def against_of(call: Call, violation: Violation) -> str | None:
    """The argument that the failing one disagrees with."""
    broken, step = violation.broken, violation.step
    verb = "" if step is None else step.clause.verb
    if step is not None and verb in ("same_dim", "same_dtype", "same_device", "no_overlap"):
        return next((n for n in step.clause.names if call.tensor(n) is not None), None)
    obligation = broken_obligation(call, broken)
    if obligation is not None and obligation.kind == "constraint" and obligation.parameter.tensor is not None:
        constraint = obligation.parameter.tensor.constraints[obligation.index]
        return call.dtypes[constraint.variable][0] if isinstance(constraint, SameDtype) else None
    axis = call.sources[broken.dim][1] if broken.dim in call.sources else None
    return None if axis is None or axis.parameter.name in broken.names else axis.parameter.name


class Trial(Call):
    """A call like another one, but for some arguments, narrowed to what those can alter.

    Judging the whole call again would cost as much as the verdict did. Left are the clauses and parameters that the
    change can reach: those of the changed arguments, of the dims that it moves, and of the dims in conflict.
    """

    def __init__(self, call: Call, change: Mapping[str, Any], violation: Violation) -> None:
        super().__init__(call.terms, {**call.values, **change})
        moved = {n for n in self.terms.dims if self.dims.get(n) != call.dims.get(n)}
        self._keep(call, change, moved | set(self.terms.lets))
        if moved:
            moved |= set(self.terms.lets)
        reach = moved | ({violation.broken.dim} if violation.broken.dim is not None else set[str]())
        names = {*change, *violation.broken.names}
        names |= {p.name for p in self.terms.tensors if not reach.isdisjoint(_dims_of(p))}
        narrow = copy.copy(call.terms)
        kept = tuple(p for p in call.terms.signature.parameters if p.name in names)
        narrow.signature = replace(call.terms.signature, parameters=kept)
        narrow.steps = tuple(s for s in call.terms.steps if s == violation.step or _reached(s.clause, names, moved))
        self.terms = narrow

    def _keep(self, call: Call, change: Mapping[str, Any], moved: set[str]) -> None:
        for obligation, status in call._status.items():
            parameter = obligation.parameter
            if parameter.name in change or obligation.kind not in _LASTING:
                continue
            if obligation.kind == "axis" and parameter.tensor is not None:
                dim = parameter.tensor.dims[obligation.index]
                if not moved.isdisjoint(dim.names) or (dim.expression is not None and dim.expression.arguments):
                    continue
            self._status[obligation] = status


def _dims_of(parameter: Parameter) -> Iterator[str]:
    for form in parameter.tensor.forms if parameter.tensor is not None else ():
        for dim in form.dims:
            yield from dim.names


def _reached(clause: Clause, names: set[str], moved: set[str]) -> bool:
    if clause.verb == "values":
        # They read data, which a stand-in does not have.
        return False
    if isinstance(clause, Let):
        return True
    if isinstance(clause, Require):
        return not (names | moved).isdisjoint(lambda_parameters(clause.rule))
    return any(not names.isdisjoint(member.names) for member in flat(clause))
