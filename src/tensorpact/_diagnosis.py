"""From a failed call to the error: documented text and class, bindings, and a note for the reader."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from ._axis_names import axis_names
from ._call import Call
from ._errors import ArgumentInfo, Binding, ContractViolation, DocumentedError, violation_class
from ._evaluation import Violation, apply_rule, first_violation
from ._expansion import expand_call
from ._fitting import has_no_sizes
from ._notes import Notes
from ._rendering import WIDTH, Conflict, Facts, Table, table_of
from ._suggestions import suggest
from ._terms import Axis, Terms
from ._trial import against_of, broken_obligation, point_of
from ._verdicts import Broken
from .clauses import Let, Require, SameDim, lambda_parameters


def diagnose(terms: Terms, values: Mapping[str, Any]) -> ContractViolation | None:
    """The error of a call, ready to be raised; None where every obligation and clause holds.

    Args:
        terms: The contract laid on the signature.
        values: Parameter name to argument.

    Raises:
        ContractDefinitionError: Code of the contract's author failed.
    """
    call = Call(*expand_call(terms, values))
    violation = first_violation(call)
    return None if violation is None else make_error(call, violation)


def make_error(call: Call, violation: Violation) -> ContractViolation:
    """The exception for a violation; reads metadata only, never data."""
    broken, documented = violation.broken, violation.error
    if documented is None:
        error = violation_class(broken.documented)(broken.reason)
    else:
        error = violation_class(documented.documented)(documented.render(_namespace(call, violation, documented)))
    error.error = documented
    error.entry_point = call.terms.owner
    error.clause = None if violation.step is None else str(violation.step.clause)
    error.position = None if violation.step is None else violation.step.index
    error.bindings = _bindings(call, broken)
    error.arguments = {
        name: _argument(call, name)
        for name, p in call.terms.parameters.items()
        if not (p.name == "self" and p.tensor is None)
    }
    # Everything but the error itself, which would close a cycle around the arguments.
    facts = Facts(documented, error.entry_point, error.clause, error.bindings, error.arguments)

    def write() -> tuple[str, Conflict]:
        conflict = _conflict(call, violation)
        return render_note(facts, conflict), conflict

    error.__notes__ = Notes(write)
    return error


def _namespace(call: Call, violation: Violation, documented: DocumentedError) -> dict[str, Any]:
    scope: dict[str, Any] = {**call.values, **call.dims, **call.lets}
    names = violation.broken.names
    scope["names"] = ", ".join(names)
    scope["name"] = names[0] if names else ""
    found = dict(violation.broken.found or {})
    scope |= found
    step = violation.step
    for field, rule in documented.fields.items():
        done, value = apply_rule(call, step.clause, rule, found) if step is not None else (False, None)
        scope[field] = value if done else "?"
    return scope


def _bindings(call: Call, broken: Broken) -> dict[str, Binding]:
    found: dict[str, Binding] = {}
    for name, value in call.dims.items():
        says: list[tuple[str, int, int]] = []
        for axis in call.terms.bare.get(name, ()):
            shape, spec = call.shape(axis.parameter.name), axis.parameter.tensor
            if shape is None or spec is None:
                continue
            place = spec.forms[0].position(axis.index, len(shape))
            if isinstance(place, int):
                says.append((axis.parameter.name, place, shape[place]))
        origin = call.sources[name][1] if name in call.sources else None
        rejected = origin is not None and origin.parameter.name in broken.names
        found[name] = Binding(value, call.source(name), tuple(says), rejected)
    return found


@functools.lru_cache(maxsize=256)
def _named(thing: torch.dtype | torch.device) -> str:
    return str(thing)


def _argument(call: Call, name: str) -> ArgumentInfo:
    value, spec = call.values[name], call.terms.parameters[name].tensor
    expected = spec.describe() if spec is not None else ""
    if isinstance(value, torch.Tensor):
        return _tensor(name, expected, value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape, dtype, device = tuple(value.shape), str(value.dtype), str(getattr(value, "device", "")) or None
        return ArgumentInfo(name, expected, shape, dtype, device, None, f"{dtype}{list(shape)}")
    return ArgumentInfo(name, expected, None, None, None, None, describe_value(value))


def _tensor(name: str, expected: str, value: torch.Tensor) -> ArgumentInfo:
    if has_no_sizes(value):
        text = f"nested {str(value.dtype).removeprefix('torch.')} of {value.size(0)}"
        return ArgumentInfo(name, expected, None, str(value.dtype), str(value.device), None, text)
    shape, dtype, device = tuple(value.shape), _named(value.dtype), _named(value.device)
    strides, tail = None, ""
    try:
        if value.layout is torch.strided:
            strides = tuple(value.stride())
            tail = "" if value.is_contiguous() else f", strides {list(strides)}"
    except (RuntimeError, NotImplementedError):
        strides = None
    names = axis_names(value)
    tail += f", axes named [{', '.join(names)}]" if names is not None else ""
    described = f"{dtype.removeprefix('torch.')}{list(shape)} on {device}{tail}"
    return ArgumentInfo(name, expected, shape, dtype, device, strides, described)


def describe_value(value: Any) -> str:
    """An argument that is no array, as text: a scalar's value, else the class."""
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else f"{value[:40]}…")
    return f"<{type(value).__name__}>"


def _conflict(call: Call, violation: Violation) -> Conflict:
    broken, step = violation.broken, violation.step
    obligation, against = broken_obligation(call, broken), against_of(call, violation)
    point = point_of(call, violation)
    faulty: list[tuple[str, int]] = []
    held: list[tuple[str, int]] = []
    if step is not None and isinstance(step.clause, Require):
        faulty = list(_read_axes(call, lambda_parameters(step.clause.rule)))
    elif step is not None and isinstance(step.clause, SameDim):
        places = list(_places(call, step.clause.dim))
        faulty = [p for p in places if p[0] in broken.names]
        held = [p for p in places if p[0] == against]
    elif obligation is not None and obligation.kind == "axis" and obligation.parameter.tensor is not None:
        name, dim = obligation.parameter.name, obligation.parameter.tensor.dims[obligation.index]
        faulty = list(_place(call, Axis(obligation.parameter, obligation.index, dim)))
        held = [p for p in _read_axes(call, dim.names) if p[0] != name or p not in faulty]
    elif broken.axis is not None:
        faulty = [(broken.names[0], broken.axis)]
    found = Conflict(broken.names, broken.reason, point, tuple(faulty), tuple(held), against or "")
    return replace(found, suggestion=suggest(call, violation, point, against))


def _place(call: Call, axis: Axis) -> Iterator[tuple[str, int]]:
    shape, spec = call.shape(axis.parameter.name), axis.parameter.tensor
    if shape is not None and spec is not None:
        place = spec.forms[0].position(axis.index, len(shape))
        if place is not None:
            yield axis.parameter.name, place.start if isinstance(place, slice) else place


def _places(call: Call, dim: str) -> Iterator[tuple[str, int]]:
    for axis in call.terms.bare.get(dim, ()):
        yield from _place(call, axis)


def _read_axes(call: Call, names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """The axes that bound these dims, those behind a let included."""
    rules = dict(rule for c in call.terms.contract.clauses if isinstance(c, Let) for rule in c.rules)
    todo, seen = list(names), set[str]()
    while todo:
        name = todo.pop(0)
        if name in seen:
            continue
        seen.add(name)
        if name in rules and name in call.lets:
            todo += lambda_parameters(rules[name])
        origin = call.sources[name][1] if name in call.sources else None
        if origin is not None:
            yield from _place(call, origin)


def render_note(error: Facts | ContractViolation, conflict: Conflict) -> str:
    """The note under the message: why, a table of arguments and dims, what to change, where to read more."""
    lines: list[str] = []
    if error.error is not None:
        lines.append(f"because {conflict.reason}")
    lines.append(f"in the call of {error.entry_point}" + (f", clause {error.clause}" if error.clause else ""))
    table = table_of(error, conflict)
    if table is not None:
        lines += table.text()
    lines += bound_lines(error, table)
    if conflict.suggestion:
        lines.append(f"smallest change: {conflict.suggestion}")
    if error.error is not None:
        lines.append(f"explained by: tensorpact explain {error.error.slug}")
    return "\n".join(lines)


def bound_lines(error: Facts | ContractViolation, table: Table | None) -> list[str]:
    """What bound each dim, as lines of readable width; where the table leaves dims out, so does this."""
    few = table is None or not table.omitted
    columns = set[str]() if table is None else {d.strip().lstrip("*") for d in table.dims}
    items = [
        f"{name}={b.size} ({b.source}{', itself rejected' if b.rejected else ''})"
        for name, b in error.bindings.items()
        if few or name in columns or not b.axes
    ]
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 2 < WIDTH:
            lines[-1] += f", {item}"
        elif lines:
            lines[-1] += ","
            lines.append(f"       {item}")
        else:
            lines.append(f"bound: {item}")
    return lines


__all__ = ["describe_value", "diagnose", "make_error", "render_note"]
