"""What a caller can assert before a call, as Python text generated from the clauses that raise an error."""

import re
from collections.abc import Mapping
from typing import Any

from ._markdown import Form

_LAYOUTS = {
    "Contiguous": "{x}.is_contiguous()",
    "DenseLast": "{x}.shape[-1] <= 1 or {x}.numel() == 0 or {x}.stride(-1) == 1",
    "DenseLast(strict=True)": "{x}.ndim == 0 or {x}.stride(-1) == 1",
}


def validation_code(form: Form, slug: str) -> str | None:
    """An expression that holds where an error is not raised, or None where the clauses cannot be put into one.

    Args:
        form: The machine form of the contract.
        slug: The error.
    """
    clauses = [c for c in form["clauses"] if c["error"] == slug]
    parts = [_clause(c, form) for c in clauses]
    if not parts or any(p is None for p in parts):
        return None
    return _all([p for p in parts if p is not None])


def type_guard(form: Form, slug: str, code: str | None) -> str | None:
    """A predicate of the arguments around that expression.

    Args:
        form: The machine form of the contract.
        slug: The error.
        code: What :func:`validation_code` gives.
    """
    if code is None:
        return None
    read = [p["name"] for p in form["parameters"] if re.search(rf"(?<![\w.]){re.escape(p['name'])}\b", code)]
    # A field is read from its object, which a contracted dataclass has among its parameters in name only.
    read = list(dict.fromkeys(name.partition(".")[0] for name in read))
    head = "import torch\n\n\n" if "torch." in code else ""
    return f"{head}def avoids_{slug.replace('-', '_')}({', '.join(read)}) -> bool:\n    return {code}\n"


def _clause(clause: Form, form: Form) -> str | None:
    parameters: Mapping[str, Form] = {p["name"]: p for p in form["parameters"]}
    names: list[str] = clause["parameters"]
    if clause["when"] is not None or any(n not in parameters for n in names):
        return None
    kind = clause["kind"]
    if kind == "any_of":
        parts = [_clause({**m, "error": clause["error"]}, form) for m in clause["members"]]
        return None if any(p is None for p in parts) else _all([p for p in parts if p is not None])
    if kind == "require":
        return _rule(clause["rule"], form)
    if kind in ("same_dtype", "same_device"):
        first, *rest = names
        attribute = kind.removeprefix("same_")
        equal = [_given(parameters[n], f"{n}.{attribute} == {first}.{attribute}") for n in rest]
        return _given(parameters[first], _all(equal))
    if kind == "same_dim":
        sizes = [_size(clause["dim"], parameters[n]) for n in names]
        return None if None in sizes or _optional(names, parameters) else " == ".join(str(s) for s in sizes)
    if kind == "present":
        return _all([f"{n} is not None" for n in names])
    if kind == "together":
        return _all([f"({names[0]} is None) == ({n} is None)" for n in names[1:]])
    if kind == "needs":
        given = _all([f"{n} is not None" for n in names[1:]])
        return f"{names[0]} is None or {given if len(names) == 2 else f'({given})'}"
    if kind == "exclusive":
        return f"({', '.join(names)}).count(None) >= {len(names) - 1}"
    return _all_of(kind, clause, names, parameters, form)


def _all_of(kind: str, clause: Form, names: list[str], parameters: Mapping[str, Form], form: Form) -> str | None:
    parts: list[str] = []
    for name in names:
        tensor = parameters[name]["tensor"]
        said = None if tensor is None else _said(kind, clause, name, tensor, form)
        if said is None:
            return None
        parts.append(_given(parameters[name], said))
    return _all(parts)


def _said(kind: str, clause: Form, name: str, tensor: Form, form: Form) -> str | None:
    """What one claim says of one tensor."""
    if kind == "dtype" and tensor["dtypes"] and not tensor["dtypeVariables"]:
        dtypes = [f"torch.{d}" for d in tensor["dtypes"]]
        return f"{name}.dtype == {dtypes[0]}" if len(dtypes) == 1 else f"{name}.dtype in ({', '.join(dtypes)})"
    if kind == "device" and tensor["device"]:
        return f"{name}.device.type in {tuple(tensor['device'])!r}"
    if kind == "layout":
        found = [_LAYOUTS[c].format(x=name) for c in tensor["layout"] if c in _LAYOUTS]
        return _all(found) if found and len(found) == len(tensor["layout"]) else None
    if kind == "rank":
        ranks = sorted({len(f["axes"]) for f in tensor["forms"]})
        if any(a["kind"] in ("variadic", "ellipsis") for f in tensor["forms"] for a in f["axes"]):
            return None
        return f"{name}.ndim == {ranks[0]}" if len(ranks) == 1 else f"{name}.ndim in {tuple(ranks)!r}"
    return _shape(clause, name, tensor, form) if kind == "shape" and len(tensor["forms"]) == 1 else None


def _shape(clause: Form, name: str, tensor: Form, form: Form) -> str | None:
    axes = tensor["forms"][0]["axes"]
    if any(a["kind"] in ("variadic", "ellipsis") or a["broadcast"] for a in axes):
        return None
    parts = [f"{name}.ndim == {len(axes)}"]
    for i, axis in enumerate(axes):
        if axis["kind"] == "anonymous" or (clause.get("axes") is not None and axis["text"] not in clause["axes"]):
            continue
        expected = str(axis["size"]) if axis["kind"] == "fixed" else _expanded(axis["text"], axis["dims"], form)
        if expected is None:
            return None
        size = f"{name}.shape[{i}]"
        if expected != size:
            parts.append(f"{size} == {expected}")
    return _all(parts)


def _rule(rule: Form, form: Form) -> str | None:
    if rule["text"] is None or rule["helpers"]:
        return None
    text = rule["text"]
    for name, value in rule["constants"].items():
        text = re.sub(rf"(?<![\w.]){name}\b", str(value) if str(value).startswith("torch.") else repr(value), text)
    if "math." in text:
        text = text.replace("math.inf", 'float("inf")')
    dims = [n for n in rule["reads"] if n not in {p["name"] for p in form["parameters"]}]
    return _expanded(text, dims, form)


def _expanded(text: str, names: list[str], form: Form) -> str | None:
    """An expression with every dim replaced by the size that binds it."""
    dims = {d["name"]: d for d in form["dims"]}
    parameters = {p["name"]: p for p in form["parameters"]}
    for name in names:
        found = dims.get(name)
        if found is None or found["kind"] == "variadic":
            return None
        if found["rule"] is not None:
            inner = _rule(found["rule"], form)
            value = None if inner is None else f"({inner})"
        else:
            owner = parameters.get((found["boundBy"] or "").partition(" ")[0])
            value = None if owner is None or owner["optional"] or found["kind"] != "axis" else _size(name, owner)
        if value is None:
            return None
        text = re.sub(rf"(?<![\w.]){name}\b", value, text)
    return text


def _size(dim: str, parameter: Form) -> str | None:
    forms: list[Form] = parameter["tensor"]["forms"] if parameter["tensor"] else []
    if len(forms) != 1:
        return None
    axes: list[Form] = forms[0]["axes"]
    many = next((i for i, a in enumerate(axes) if a["kind"] in ("variadic", "ellipsis")), None)
    found = [i for i, a in enumerate(axes) if a["kind"] == "named" and a["text"] == dim]
    if len(found) != 1 or axes[found[0]]["broadcast"]:
        return None
    # The last axis is addressed from the end, as the check does, and so is one behind any number of axes.
    behind = many is not None and many < found[0]
    place = found[0] - len(axes) if behind or found[0] == len(axes) - 1 else found[0]
    return f"{parameter['name']}.shape[{place}]"


def _optional(names: list[str], parameters: Mapping[str, Any]) -> bool:
    return any(parameters[n]["optional"] for n in names)


def _given(parameter: Form, text: str) -> str:
    if not parameter["optional"]:
        return text
    return (
        f"({parameter['name']} is None or {text})"
        if " and " not in text
        else f"({parameter['name']} is None or ({text}))"
    )


def _all(parts: list[str]) -> str:
    kept = list(dict.fromkeys(parts))
    return (
        kept[0] if len(kept) == 1 else " and ".join(f"({p})" if " or " in p and not _enclosed(p) else p for p in kept)
    )


def _enclosed(text: str) -> bool:
    """Whether parentheses around the whole of a text belong together."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if not depth:
            return i == len(text) - 1 and text.startswith("(")
    return False
