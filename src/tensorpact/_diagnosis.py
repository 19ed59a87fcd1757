"""From a failed call to the error: documented text and class, bindings, and a note for the reader."""

from collections.abc import Mapping
from typing import Any

import torch

from ._call import Broken, Call, axis_text
from ._errors import ArgumentInfo, Binding, ContractViolation, DocumentedError, violation_class
from ._evaluation import Violation, apply_rule, first_violation
from ._expansion import expand_call
from ._terms import Terms
from .clauses import lambda_parameters


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
    error.bindings = _bindings(call, broken)
    error.arguments = {
        name: _argument(call, name)
        for name, p in call.terms.parameters.items()
        if not (p.name == "self" and p.tensor is None)
    }
    error.add_note(render_note(error, call, broken))
    return error


def _namespace(call: Call, violation: Violation, documented: DocumentedError) -> dict[str, Any]:
    scope: dict[str, Any] = {**call.values, **call.dims, **call.lets}
    names = violation.broken.names
    scope["names"] = ", ".join(names)
    scope["name"] = names[0] if names else ""
    step = violation.step
    for field, rule in documented.fields.items():
        done, value = apply_rule(call, step.clause, rule) if step is not None else (False, None)
        scope[field] = value if done else "?"
    return scope


def _bindings(call: Call, broken: Broken) -> dict[str, Binding]:
    found: dict[str, Binding] = {}
    for name, value in call.dims.items():
        says: list[tuple[str, int, int]] = []
        for axis in call.terms.bare.get(name, ()):
            shape, spec = call.shape(axis.parameter.name), axis.parameter.tensor
            size = call.size(axis)
            if shape is None or spec is None or not isinstance(size, int):
                continue
            place = spec.forms[0].position(axis.index, len(shape))
            if isinstance(place, int):
                says.append((axis.parameter.name, place, size))
        origin = call.sources[name][1] if name in call.sources else None
        rejected = origin is not None and origin.parameter.name in broken.names
        found[name] = Binding(value, call.source(name), tuple(says), rejected)
    return found


def describe_argument(value: Any) -> str:
    """One argument as text: metadata of an array, a scalar's value, else the class."""
    if isinstance(value, torch.Tensor):
        text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
        try:
            dense = value.is_contiguous()
            strides = () if dense else tuple(value.stride())
        except (RuntimeError, NotImplementedError):
            strides = ()
        return f"{text}, strides {list(strides)}" if strides else text
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else f"{value[:40]}…")
    return f"<{type(value).__name__}>"


def _argument(call: Call, name: str) -> ArgumentInfo:
    value, spec = call.values[name], call.terms.parameters[name].tensor
    shape = dtype = device = strides = None
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape = tuple(value.shape)
        dtype = str(value.dtype)
        device = str(getattr(value, "device", "")) or None
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            try:
                strides = tuple(value.stride())
            except RuntimeError:
                strides = None
    expected = spec.describe() if spec is not None else ""
    return ArgumentInfo(name, expected, shape, dtype, device, strides, describe_argument(value))


def render_note(error: ContractViolation, call: Call, broken: Broken) -> str:
    """The note under the message: why, a table of arguments and axes, the bindings, where to read more."""
    lines: list[str] = []
    if error.error is not None:
        lines.append(f"because {broken.reason}")
    lines.append(f"in the call of {error.entry_point}" + (f", clause {error.clause}" if error.clause else ""))
    lines += _table(error, call, broken)
    bound = ", ".join(
        f"{name}={b.size} ({b.source}{', itself rejected' if b.rejected else ''})" for name, b in error.bindings.items()
    )
    if bound:
        lines.append(f"bound: {bound}")
    if error.error is not None:
        lines.append(f"explained by: tensorpact explain {error.error.slug}")
    return "\n".join(lines)


def _table(error: ContractViolation, call: Call, broken: Broken) -> list[str]:
    rows: list[tuple[str, str, str, str]] = []
    for name, parameter in call.terms.parameters.items():
        if parameter.tensor is None and name not in broken.names:
            continue
        value, info = call.values[name], error.arguments.get(name)
        expected = info.expected if info is not None else ""
        marked = name in broken.names
        got = info.description if info is not None else describe_argument(value)
        if marked and broken.axis is not None and name == broken.names[0] and hasattr(value, "shape"):
            sizes = [str(n) for n in value.shape]
            if -len(sizes) <= broken.axis < len(sizes):
                sizes[broken.axis] = f">{sizes[broken.axis]}<"
                got = got.replace(str(list(value.shape)), f"[{', '.join(sizes)}]", 1)
        rows.append((">" if marked else " ", name, expected, got))
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return ["  ".join((m, n.ljust(widths[1]), e.ljust(widths[2]), g)).rstrip() for m, n, e, g in rows]


__all__ = ["axis_text", "describe_argument", "diagnose", "lambda_parameters", "make_error", "render_note"]
