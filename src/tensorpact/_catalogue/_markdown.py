"""A contract as Markdown, made from its machine form alone."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ._when import DEVICE_NUMBERS

Form = Mapping[str, Any]
#: Dtypes that are named one by one, where their author named a family.
_FEW = 2


def beside(error: Form) -> str:
    """Where the page of an error is: in the same folder."""
    return f"{error['slug']}.md"


def markdown(form: Form, page_of: Callable[[Form], str] = beside, below: str = "") -> str:
    """The reference page of an entry point.

    Args:
        form: What :func:`describe` gives.
        page_of: Where the page of an error is; beside this page unless told.
        below: What stands below the signature.
    """
    parts = [
        f"# {form['entryPoint']}",
        form["summary"],
        f"```python\n{signature(form)}\n```",
        below,
        "## Dimensions",
        table(("dim", "meaning", "bound by"), (_dim_row(d) for d in form["dims"])),
        "## Parameters",
        table(
            ("parameter", "shape", "dtype", "device", "layout", "optional", "written", "meaning"),
            (_parameter_row(p) for q in form["parameters"] for p in (q, *q["items"])),
        ),
        "## Checks, in firing order",
        "Of several broken checks the first one raises.",
        table(("", "check", "error"), (_clause_row(c, form, page_of) for c in form["clauses"])),
        _afterwards(form),
        "## Errors",
        table(("error", "class", "message", "checks"), (_error_row(e, page_of) for e in form["errors"])),
        "## What is checked when",
        table(("mode", "what", "clauses", "return value"), (_mode_row(m, form) for m in form["modes"])),
        "## What no check of this contract can see",
        "\n".join(f"- {item['text']}" for item in form["unseen"]) or "Nothing that is known of.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def signature(form: Form) -> str:
    """The signature with shapes, as a reader would write it."""
    shown: list[str] = []
    starred = False
    for p in form["parameters"]:
        if p["kind"] == "field":
            continue
        if p["kind"] == "keyword_only" and not starred:
            shown.append("*")
        starred = starred or p["kind"] in ("keyword_only", "var_positional")
        star = {"var_positional": "*", "var_keyword": "**"}.get(p["kind"], "")
        default = "" if p["default"] is None else f" = {p['default']}"
        hint = _hint(p)
        shown.append(f"{star}{p['name']}{f': {hint}' if hint else ''}{default}")
    lines = "".join(f"    {s},\n" for s in shown)
    returns = f" -> {form['returns']}" if form["returns"] else ""
    return f"{form['entryPoint']}(\n{lines}){returns}"


def _hint(p: Form) -> str:
    forms: list[Form] = p["tensor"]["forms"] if p["tensor"] else []
    hints = [f"{f['family']}[{f['array']}, {f['shape']!r}]".replace("'", '"') for f in forms]
    hints += [p["type"]] if p["type"] else []
    if p["items"]:
        hints.append("…")
    return " | ".join([*hints, "None"] if hints and p["optional"] and "None" not in hints else hints)


def rule_text(rule: Form) -> str:
    """A rule with the plain values that it reads from its module in their place."""
    text = rule["text"] or f"a rule of {', '.join(rule['reads'])}"
    constants = ", ".join(f"{name} = {value}" for name, value in rule["constants"].items())
    return f"{text}, {constants}" if constants else text


def clause_text(clause: Form) -> str:
    """A clause as a reader would say it."""
    kind = clause["kind"]
    if kind == "let":
        text = "; ".join(f"{d['name']} = {rule_text(d['rule'])}" for d in clause["derives"])
    elif kind == "require":
        text = rule_text(clause["rule"])
    elif kind == "values":
        text = clause["text"]
    elif kind == "any_of":
        text = " and ".join(clause_text(m) for m in clause["members"])
    else:
        names = ", ".join(clause["parameters"])
        alone = len(clause["parameters"]) == 1
        what = {
            "present": "given",
            "same_dim": f"one {clause.get('dim')}",
            "same_dtype": "one dtype",
            "same_device": "one device",
            "no_overlap": "memory for each element" if alone else "no shared memory",
            "together": "all or none",
            "needs": "the first only with the rest",
            "exclusive": "at most one",
            "shape": f"axes {' '.join(clause['axes'])}" if clause.get("axes") else "shape",
        }.get(kind, kind)
        text = f"{what}: {names}"
    return f"{text} — where {rule_text(clause['when'])}" if clause["when"] else text


def _dim_row(dim: Form) -> Iterable[str]:
    rule = f": {cell(rule_text(dim['rule']))}" if dim["rule"] else ""
    return f"`{dim['name']}`", dim["meaning"] or "", f"{dim['boundBy'] or 'nothing'}{rule}"


def _parameter_row(p: Form) -> Iterable[str]:
    tensor = p["tensor"]
    optional = f"default {cell(p['default'])}" if p["default"] is not None else "None" if p["optional"] else ""
    if p["optional"] and p["default"] not in (None, "None"):
        optional += ", or None"
    says = (optional, "yes" if p["mutated"] else "", (p["meaning"] or "").replace("``", "`"))
    if tensor is None:
        return f"`{p['name']}`", "", cell(p["type"]) if p["type"] else "any", "", "", *says
    shape = " or ".join(f"`[{', '.join(f['shape'].split())}]`" for f in tensor["forms"])
    device = " or ".join(tensor["device"]) if tensor["device"] else "any"
    return f"`{p['name']}`", shape, dtype_text(tensor), device, ", ".join(map(cell, tensor["layout"])) or "any", *says


def dtype_text(tensor: Form) -> str:
    """Dtypes as a reader would list them: those named by the author, else the family."""
    if tensor["dtypesListed"] or (tensor["dtypes"] and len(tensor["dtypes"]) <= _FEW):
        text = ", ".join(tensor["dtypes"])
    else:
        text = " or ".join(dict.fromkeys(f["family"] for f in tensor["forms"]))
    same = "".join(f", one dtype {v}" for v in tensor["dtypeVariables"])
    return text + same


def _clause_row(clause: Form, form: Form, page_of: Callable[[Form], str]) -> Iterable[str]:
    error = next((e for e in form["errors"] if e["slug"] == clause["error"]), None)
    shown = f"[`{error['slug']}`]({page_of(error)})" if error else "" if clause["kind"] == "let" else "default"
    return str(clause["place"] or ""), cell(clause_text(clause)), shown


def _afterwards(form: Form) -> str:
    types = [f"`{a['parameter']}`" for a in form["afterwards"] if "type" in a["parts"]]
    rest = [(a["parameter"], [p for p in a["parts"] if p != "type"]) for a in form["afterwards"]]
    lines = [f"- before them, the type of {', '.join(types)}"] if types else []
    lines += [f"- behind them, of `{name}`: {', '.join(parts)}" for name, parts in rest if parts]
    return "What no check above claims raises a default error:\n\n" + "\n".join(lines) if lines else ""


def _error_row(error: Form, page_of: Callable[[Form], str]) -> Iterable[str]:
    places = ", ".join(map(str, error["places"]))
    return f"[`{error['slug']}`]({page_of(error)})", error["class"], cell(error["message"]), places


def _mode_row(mode: Form, form: Form) -> Iterable[str]:
    total = sum(c["kind"] != "let" for c in form["clauses"])
    places = mode["clauses"]
    if len(places) == total and total:
        shown = "all"
    elif len(places) > total // 2:
        shown = f"all but {_ranges([n for n in range(1, total + 1) if n not in places])}"
    else:
        shown = _ranges(places) or "none"
    return mode["mode"], mode["says"], shown, _returns(mode)


def _returns(mode: Form) -> str:
    if mode["returns"]:
        return "checked"
    if mode["mode"].startswith(DEVICE_NUMBERS):
        return "as above"
    return "not checked" if mode["mode"] == "off" else "on request"


def _ranges(places: list[int]) -> str:
    runs: list[list[int]] = []
    for n in places:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}–{r[-1]}" for r in runs)


def code(text: str) -> str:
    """Text as inline code, also where it has backticks of its own."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def cell(text: str) -> str:
    """The same in a table, also where it has bars of its own."""
    return code(text.replace("|", "\\|"))


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table, or a word where it has no rows."""
    lines = [" | ".join(header), *(" | ".join(row) for row in rows)]
    lines.insert(1, " | ".join("---" for _ in lines[0].split(" | ")))
    return "\n".join(f"| {line} |" for line in lines) if len(lines) > 2 else "None."
