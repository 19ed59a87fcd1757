"""The machine form of a contract: what the annotations and the clauses say, as plain data with a versioned schema."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, cast

from tensorpact._annotations import EMPTY, Parameter, TensorForm
from tensorpact._dims import Dim, DimKind
from tensorpact._entry import Entry
from tensorpact._errors import DocumentedError, TemplateField
from tensorpact._terms import Axis, Obligation, Terms
from tensorpact._types import describe_hint
from tensorpact._values.clauses import Values
from tensorpact._wording import axis_text
from tensorpact.clauses import AnyOf, Clause, Let, Require, SameDim, Shape
from tensorpact.constraints import Constraint, OnDevice, OneOf, SameDtype

from ._blind import unseen
from ._records import record_id
from ._sources import rule_form
from ._values import values_form
from ._when import modes

SCHEMA = "tensorpact.contract"
SCHEMA_VERSION = 1


def describe(entry: Entry, target: str = "") -> dict[str, Any]:
    """The machine form of a contracted function; ``docs/describe.md`` documents the keys.

    Args:
        entry: The contracted function.
        target: How the command line names it.

    Raises:
        ContractDefinitionError: The annotations or the contract are wrong.
    """
    terms, contract = entry.terms, entry.contract
    said = _documented(entry.body.__doc__ or "")
    return {
        "schema": SCHEMA,
        "schemaVersion": SCHEMA_VERSION,
        "target": target or f"{entry.body.__module__}:{entry.body.__qualname__}",
        "entryPoint": contract.name,
        "family": contract.family,
        "kind": entry.kind,
        "summary": said.pop("", ""),
        "dims": _dims(terms),
        "parameters": [_parameter(p, terms, said) for p in terms.signature.parameters],
        "returns": _text_of(terms.signature.returns),
        "clauses": list(_clauses(contract.clauses, terms)),
        "afterwards": _afterwards(terms),
        "errors": _errors(contract.clauses),
        "modes": modes(entry),
        "unseen": unseen(terms),
    }


def _documented(doc: str) -> dict[str, str]:
    """First line of a Google docstring under the empty name, and what its ``Args`` say of each parameter."""
    lines = inspect.cleandoc(doc).splitlines()
    said = {"": lines[0] if lines else ""}
    inside, name = False, ""
    for line in lines:
        if not line.startswith(" "):
            inside = line == "Args:" if line else inside
        elif inside:
            start = re.match(r" {4}(\*{0,2}\w+)(?: \([^)]*\))?: (.*)", line)
            if start:
                name = start.group(1).lstrip("*")
                said[name] = start.group(2).strip()
            elif name:
                said[name] += f" {line.strip()}"
    return said


def _dims(terms: Terms) -> list[dict[str, Any]]:
    lets = {name: rule for c in terms.contract.clauses if isinstance(c, Let) for name, rule in c.rules}
    order: dict[str, None] = {}
    for p in (*terms.tensors, *terms.templates.values()):
        for form in p.tensor.forms if p.tensor is not None else ():
            order.update((name, None) for dim in form.dims for name in dim.names)
    order.update((name, None) for name in (*terms.solved, *lets))
    return [_dim(name, terms, lets) for name in order]


def _dim(name: str, terms: Terms, lets: dict[str, Any]) -> dict[str, Any]:
    axes = terms.bare.get(name, [])
    variadic = any(a.dim.kind is DimKind.VARIADIC for a in axes)
    if name in lets:
        # A value that no axis has is a step on the way to one.
        named = bool(axes) or name in terms.union_dims or any(name in e.dim.names for e in terms.expressions)
        kind, source = ("derived" if named else "helper"), f"let({name})"
    elif axes:
        kind, source = ("variadic" if variadic else "axis"), axis_text(axes[0])
    elif name in terms.solved:
        kind, source = "solved", axis_text(terms.solved[name])
    elif name in terms.contract.tied:
        kind, source = "argument", name
    else:
        kind, source = "form", None
    return {
        "name": name,
        "meaning": terms.contract.dims.get(name),
        "kind": kind,
        "boundBy": source,
        "argument": name if name in terms.contract.tied else None,
        "axes": [{"parameter": a.parameter.name, "axis": a.index} for a in _in_order(axes, terms)],
        "rule": rule_form(lets[name]) if name in lets else None,
    }


def _in_order(axes: list[Axis], terms: Terms) -> list[Axis]:
    names = [*terms.parameters, *terms.templates]
    return sorted(axes, key=lambda a: (names.index(a.parameter.name), a.index))


def _parameter(p: Parameter, terms: Terms, said: dict[str, str]) -> dict[str, Any]:
    given = p.default is not EMPTY
    collects = p.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    form: dict[str, Any] = {
        "name": p.name,
        "kind": "field" if p.is_field else "item" if p.kind is None else p.kind.name.lower(),
        "required": not (given or collects or p.is_field or p.kind is None),
        "default": repr(p.default) if given else None,
        "optional": p.optional and p.hint is not EMPTY,
        "mutated": p.name in terms.contract.mutates,
        "meaning": said.get(p.name),
        # A hint of object lets everything through, as none at all does.
        "type": None if p.other in (EMPTY, object) or p.nested else describe_hint(p.other),
        "tensor": None,
        "items": [_parameter(t, terms, said) for n, t in terms.templates.items() if _belongs(n, p.name)]
        if p.nested
        else [],
    }
    spec = p.tensor
    if spec is not None:
        allowed = spec.dtypes()
        form["tensor"] = {
            "forms": [_form(f) for f in spec.forms],
            "dtypes": None if allowed is None else sorted(str(d).removeprefix("torch.") for d in allowed),
            "dtypesListed": any(isinstance(c, OneOf) for c in spec.constraints),
            "dtypeVariables": list(spec.dtype_variables()),
            "device": _device(spec.constraints),
            "layout": [constraint_text(c) for c in spec.constraints if not isinstance(c, (OneOf, OnDevice, SameDtype))],
        }
    return form


def _belongs(template: str, container: str) -> bool:
    return template.startswith(container) and template[len(container) : len(container) + 1] in ("[", ".", " ")


def _form(form: TensorForm) -> dict[str, Any]:
    array = form.array_type
    return {
        "array": "Any" if array is Any else getattr(array, "__name__", repr(array)),
        "family": form.dtype_class.__name__,
        "shape": form.text,
        "axes": [_axis(d) for d in form.dims],
    }


def _axis(dim: Dim) -> dict[str, Any]:
    return {
        "text": dim.text,
        "kind": dim.kind.value,
        "dims": list(dim.names),
        "size": dim.size if dim.kind is DimKind.FIXED else None,
        "broadcast": dim.broadcast,
    }


def _device(constraints: tuple[Constraint, ...]) -> list[str] | None:
    limits = [set(c.types) for c in constraints if isinstance(c, OnDevice)]
    return sorted(set[str].intersection(*limits)) if limits else None


def constraint_text(constraint: Constraint) -> str:
    """A constraint as its author would write it, values that are the default left out."""
    shown: list[str] = []
    for f in fields(cast(Any, constraint)):
        value = getattr(constraint, f.name)
        if value != f.default:
            shown.append(f"{f.name}={value!r}" if isinstance(value, bool) else repr(value))
    name = type(constraint).__name__
    return f"{name}({', '.join(shown)})" if shown else name


def _text_of(hint: Any) -> str | None:
    if hint is EMPTY:
        return None
    text = inspect.formatannotation(hint)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text).replace("'", '"')


def _clauses(clauses: tuple[Clause, ...], terms: Terms) -> Iterator[dict[str, Any]]:
    place = 0
    for clause in clauses:
        place += not isinstance(clause, Let)
        yield {"place": None if isinstance(clause, Let) else place, **clause_form(clause)}


def clause_form(clause: Clause) -> dict[str, Any]:
    """The machine form of one clause, its place left out."""
    form: dict[str, Any] = {
        "kind": clause.verb,
        "text": str(clause),
        "parameters": list(clause.names),
        "error": None if clause.error is None else clause.error.slug,
        "when": None if clause.when is None else rule_form(clause.when),
    }
    if isinstance(clause, Shape):
        form["axes"] = None if clause.axes is None else list(clause.axes)
    elif isinstance(clause, SameDim):
        form["dim"] = clause.dim
    elif isinstance(clause, Let):
        form["derives"] = [{"name": name, "rule": rule_form(rule)} for name, rule in clause.rules]
    elif isinstance(clause, Require):
        form["rule"], form["about"] = rule_form(clause.rule), list(clause.about)
    elif isinstance(clause, Values):
        form |= values_form(clause)
    elif isinstance(clause, AnyOf):
        form["members"] = [clause_form(m) for m in clause.members]
    return form


def _afterwards(terms: Terms) -> list[dict[str, Any]]:
    """What no clause claims: looked at behind the clauses, with a default error, but for types, which come first."""
    found: list[dict[str, Any]] = []
    for name, obligations in terms.obligations.items():
        # A hint that says nothing cannot be broken; a tensor hint speaks of the type whatever else it says.
        says = terms.parameters[name].tensor is not None or terms.checks[name].other is not None
        parts = [
            _obligation_text(o)
            for o in obligations
            if o not in terms.last_claim and not _binds(o, terms) and (o.kind != "type" or says)
        ]
        if parts:
            found.append({"parameter": name, "parts": parts})
    return found


def _binds(obligation: Obligation, terms: Terms) -> bool:
    """Whether an axis says nothing, since it is what binds its dim, or any size does."""
    spec = obligation.parameter.tensor
    if obligation.kind != "axis" or spec is None:
        return False
    dim = spec.dims[obligation.index]
    if dim.kind in (DimKind.ANONYMOUS, DimKind.ELLIPSIS):
        return True
    if dim.name in terms.lets or dim.name in terms.contract.tied or not dim.name:
        return False
    first = terms.bare[dim.name][0]
    return first.parameter is obligation.parameter and first.index == obligation.index


def _obligation_text(obligation: Obligation) -> str:
    spec = obligation.parameter.tensor
    if spec is not None and obligation.kind == "axis":
        return f"axis {obligation.index} ({spec.dims[obligation.index].text})"
    if spec is not None and obligation.kind == "constraint":
        return constraint_text(spec.constraints[obligation.index])
    return {"axes": "axes of one form", "written": "memory for each element"}.get(obligation.kind, obligation.kind)


def _errors(clauses: tuple[Clause, ...]) -> list[dict[str, Any]]:
    places: dict[DocumentedError, list[int]] = {}
    statements = [c for c in clauses if not isinstance(c, Let)]
    for place, clause in enumerate(statements, 1):
        if clause.error is not None:
            places.setdefault(clause.error, []).append(place)
    return [
        {
            "slug": error.slug,
            "id": record_id(error),
            "family": error.family,
            "class": error.documented.__name__,
            "message": error.template,
            "pattern": error.pattern,
            "placeholders": [part.source for part in error.parts if isinstance(part, TemplateField)],
            "places": raised,
        }
        for error, raised in places.items()
    ]
