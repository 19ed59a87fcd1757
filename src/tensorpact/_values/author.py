"""Mistakes of a contract's author in a clause on values, found when the contract is laid on a signature."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NoReturn

import torch

from tensorpact._annotations import Parameter
from tensorpact._clause import Clause, lambda_parameters

from .clauses import ALONG, Steps, Upto, Values, plus_text
from .statements import FIELDS

if TYPE_CHECKING:
    from tensorpact._terms import Terms

Fail = Callable[[str], NoReturn]


def template_fields(clause: Clause) -> frozenset[str]:
    """What the message of a clause may read of the number at fault.

    Args:
        clause: Any clause.
    """
    members: tuple[Clause, ...] = getattr(clause, "members", (clause,))
    found = [c for c in members if isinstance(c, Values)]
    if not found or len(found) < len(members):
        return frozenset()
    ends = all(check.kind == "ends_at" for c in found for check in c.checks)
    return FIELDS | {"last"} if ends else FIELDS


def check_values(terms: "Terms", clause: Values, label: str, fail: Fail) -> None:
    """Look at one clause.

    Args:
        terms: The signature, read.
        clause: The clause.
        label: Its place and text.
        fail: Raises the author's error.
    """
    for name in clause.names:
        parameter = terms.parameters[name]
        axes = _axes(parameter)
        for check in clause.checks:
            if parameter.tensor is None and check.kind in ALONG | {"finite"}:
                fail(f"{label}: {check.kind} looks into a tensor, and {name} is an argument of another kind")
            if parameter.tensor is not None and check.kind in ALONG and len(axes or ()) != 1:
                count = "several forms or any number" if axes is None else len(axes)
                fail(f"{label}: {check.kind} looks along one axis, and {name} has {count}")
            _check_dtypes(parameter, check.kind == "finite", label, fail)
    if clause.checks[0].kind == "same_empty" and clause.when is None:
        one, other = (_axes(terms.parameters[name]) for name in clause.names)
        if one != other:
            fail(f"{label}: same_empty compares vectors of one length, and the axes are {one} and {other}")
    # SEMANTICS: a name of the clause may also be that of a dim, a let or another argument.
    by_name = {b for b in clause.bounds() if isinstance(b, str)} | {clause.decides}
    for name in clause.others():
        if name in terms.parameters and name in by_name:
            _check_other(terms, clause, name, label, fail)
    for check in clause.checks:
        steps = any(isinstance(bound, Steps) for bound in check.bounds)
        tensors = [b for b in check.bounds if isinstance(b, str) and _is_tensor(terms, b)]
        if steps and tensors:
            fail(f"{label}: bounds by steps and by the tensor {tensors[0]} do not go into one check; write two")
    for parts in (clause.plus, clause.active.plus if isinstance(clause.active, Upto) else ()):
        by_row = [p for p in parts if isinstance(p, Steps) or (isinstance(p, str) and _is_tensor(terms, p))]
        if len(by_row) > 1:
            fail(f"{label}: of what is added, one part may differ by row, and {plus_text(tuple(by_row))} both do")
    for name in clause.offsets():
        _check_offsets(terms, clause, name, label, fail)
    for rule in clause.rules():
        for name in lambda_parameters(rule):
            if name in terms.parameters and terms.parameters[name].tensor is not None:
                fail(f"{label}: a bound reads the tensor {name}; name a tensor of bounds instead of calling on it")
    if isinstance(clause.active, Upto):
        for name in clause.names:
            if len(_axes(terms.parameters[name]) or ()) != 2:
                fail(f"{label}: upto counts columns, so {name} needs two axes")


def _is_tensor(terms: "Terms", name: str) -> bool:
    return name in terms.parameters and terms.parameters[name].tensor is not None


def _axes(parameter: Parameter) -> list[str] | None:
    """The annotated axes of a tensor, None for an argument of another kind or with several forms."""
    spec = parameter.tensor
    return None if spec is None or spec.union or spec.forms[0].variadic is not None else [d.text for d in spec.dims]


def _check_dtypes(parameter: Parameter, floats: bool, label: str, fail: Fail) -> None:
    if parameter.tensor is None:
        if parameter.other in (float, str, bool):
            fail(f"{label}: {parameter.name} is no integer")
        return
    dtypes: Iterable[torch.dtype] = parameter.tensor.dtypes() or ()
    for dtype in dtypes:
        if dtype.is_complex or dtype.is_floating_point != floats:
            word = "finite is for floating dtypes" if floats else "numbers are integers, but for finite"
            fail(f"{label}: {word}, and {parameter.name} may be {dtype}")


def _check_other(terms: "Terms", clause: Values, name: str, label: str, fail: Fail) -> None:
    parameter = terms.parameters[name]
    _check_dtypes(parameter, False, label, fail)
    axes = _axes(parameter)
    if axes is None or (name == clause.decides and isinstance(clause.active, str)):
        if axes is not None and len(axes) != 1:
            fail(f"{label}: offsets lie along one axis, and {name} has {len(axes)}")
        return
    # Between offsets there is one step less than there are offsets.
    more = "+1" if any(check.kind == "steps_at_most" for check in clause.checks) else ""
    for own in clause.names:
        first = (_axes(terms.parameters[own]) or [""])[:1]
        # Two dims may be one where a condition holds; a call in which they are not leaves the check out.
        if axes and axes != ["1"] and (len(axes) > 1 or clause.when is None) and [f"{a}{more}" for a in axes] != first:
            fail(f"{label}: {name} has the axes [{', '.join(axes)}] and needs the first axis of {own}, [{first[0]}]")


def _check_offsets(terms: "Terms", clause: Values, name: str, label: str, fail: Fail) -> None:
    axes = _axes(terms.parameters[name]) if name in terms.parameters else None
    if axes is None or len(axes) != 1:
        fail(f"{label}: steps are those of offsets along one axis, and {name} is none")
    _check_dtypes(terms.parameters[name], False, label, fail)
    for own in clause.names:
        rows = (_axes(terms.parameters[own]) or [])[:1]
        if rows and clause.when is None and axes != [f"{rows[0]}+1"]:
            fail(f"{label}: {name} has the axis [{axes[0]}], and steps for the rows of {own} need [{rows[0]}+1]")
