"""The text that a documented error must have for given arguments, worked out without the diagnosis."""

import itertools
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

from tensorpact._errors import DocumentedError
from tensorpact._terms import Step, Terms
from tensorpact.clauses import AnyOf, Clause, Let, Require, lambda_parameters

from ._numbers import fields_of


def bound_dims(terms: Terms, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Dims as the tensors say them: of each name the authority, else the first tensor that has the axis."""
    found: dict[str, Any] = {n: arguments[n] for n in terms.contract.tied if arguments.get(n) is not None}
    for name, axes in terms.bare.items():
        for axis in axes:
            tensor, spec = arguments.get(axis.parameter.name), axis.parameter.tensor
            if name in found or spec is None or not hasattr(tensor, "shape"):
                continue
            shape = tuple(tensor.shape)  # type: ignore[union-attr]
            place = spec.forms[0].position(axis.index, len(shape))
            if place is not None and not (axis.dim.broadcast and shape[place] == 1):
                found[name] = shape[place]
    for _ in terms.expressions:
        for axis in terms.expressions:
            tensor, spec, expression = arguments.get(axis.parameter.name), axis.parameter.tensor, axis.dim.expression
            unknown = [n for n in axis.dim.names if n not in found]
            if spec is None or expression is None or not hasattr(tensor, "shape") or len(unknown) != 1:
                continue
            shape = tuple(tensor.shape)  # type: ignore[union-attr]
            place = spec.forms[0].position(axis.index, len(shape))
            size = None if place is None else shape[place]
            value = expression.solve(unknown[0], size, found, arguments) if isinstance(size, int) else None
            if value is not None:
                found[unknown[0]] = value
    return found


def expected_texts(terms: Terms, step: Step, error: DocumentedError, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Every text that the template allows for these arguments: one for each set of names that may be at fault.

    Args:
        terms: The contract laid on the signature.
        step: The clause that fires.
        error: Its documented error.
        arguments: Parameter name to argument.

    Raises:
        Exception: A placeholder or field of the template cannot be evaluated.
    """
    fields = (n.split(".", 1) for n in terms.parameters if "." in n)
    arguments = {**arguments, **{f"{o}.{a}": getattr(arguments[o], a) for o, a in fields if o in arguments}}
    scope: dict[str, Any] = {**bound_dims(terms, arguments)}
    for earlier in terms.steps[: step.index]:
        if isinstance(earlier.clause, Let):
            for name, rule in earlier.clause.rules:
                values = {**scope, **arguments}
                if all(n in values for n in lambda_parameters(rule)):
                    scope[name] = rule(*[values[n] for n in lambda_parameters(rule)])
    for found in fields_of(step.clause, {**arguments, **scope}):
        yield from _texts(terms, step, error, {**arguments, **scope, **found})


def _texts(terms: Terms, step: Step, error: DocumentedError, scope: dict[str, Any]) -> Iterator[str]:
    for field, rule in error.fields.items():
        missing = [n for n in lambda_parameters(rule) if n not in scope]
        if missing:
            raise NameError(f"field {field!r} reads {missing[0]!r}, which has no value when the error fires")
        scope[field] = rule(*[scope[n] for n in lambda_parameters(rule)])
    if not {"name", "names"} & error.names:
        yield _rendered(error, scope)
        return
    for names in _subjects(terms, step):
        yield _rendered(error, {**scope, "names": ", ".join(names), "name": names[0] if names else ""})


def _rendered(error: DocumentedError, scope: dict[str, Any]) -> str:
    """The template as Python itself renders an f-string."""
    text = _compiled(error.template, error.slug)
    return error.render(scope) if text is None else str(eval(text, scope))


@lru_cache(maxsize=256)
def _compiled(template: str, slug: str) -> CodeType | None:
    try:
        return compile(f"f{template!r}", f"<template of {slug}>", "eval")
    except SyntaxError:
        # Python 3.11 takes no backslash and no quote of the outer kind inside a placeholder.
        return None


def _subjects(terms: Terms, step: Step) -> Iterator[tuple[str, ...]]:
    clause = step.clause
    if isinstance(clause, Require):
        yield _about(terms, clause)
        return
    about = clause.names
    if isinstance(clause, AnyOf):
        order = list(terms.parameters)
        about = tuple(sorted({n for m in clause.members for n in _about(terms, m)}, key=order.index))
    for count in range(1, len(about) + 1):
        yield from itertools.combinations(about, count)


def _about(terms: Terms, clause: Clause) -> tuple[str, ...]:
    """Parameters that a clause names, or that its rule reads where it names none."""
    if not isinstance(clause, Require):
        return clause.names
    return clause.about or tuple(n for n in lambda_parameters(clause.rule) if n in terms.parameters)
