"""Loops and calls written out: what each round, or each parameter, is bound to."""

import ast
from collections.abc import Iterable

from ._syntax import Value, constant


def laid_out(node: ast.expr) -> Iterable[ast.expr]:
    """What a display lists, those inside it and calls of ``zip`` and the like included: a loop takes it apart."""
    if isinstance(node, ast.Call) and (
        (isinstance(node.func, ast.Name) and node.func.id in ("zip", "enumerate"))
        or (isinstance(node.func, ast.Attribute) and node.func.attr == "items")
    ):
        inside = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
    elif isinstance(node, (ast.Tuple, ast.List)):
        inside = node.elts
    elif isinstance(node, ast.Dict):
        inside = [*(k for k in node.keys if k is not None), *node.values]
    else:
        return
    yield from inside
    for each in inside:
        yield from laid_out(each)


def arguments_of(helper: ast.FunctionDef, call: ast.Call) -> dict[str, Value] | None:
    """Parameter to argument of a call written out; None where a star hides it."""
    spec = helper.args
    names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    if spec.vararg or spec.kwarg or len(call.args) > len(names):
        return None
    values: dict[str, Value] = dict(zip(names[len(names) - len(spec.defaults) :], spec.defaults, strict=True))
    values |= {a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
    values |= dict(zip(names, call.args, strict=False))
    values |= {k.arg: k.value for k in call.keywords if k.arg is not None}
    wanted = {*names, *(a.arg for a in spec.kwonlyargs)}
    return values if wanted == set(values) else None


def unrolled(target: ast.expr, over: ast.expr) -> list[dict[str, Value]] | None:
    """What a loop binds in each round, where what it runs over is written out; None elsewhere."""
    rows = _rows(over)
    if rows is None:
        return None
    found: list[dict[str, Value]] = []
    for row in rows:
        bound = match(target, row)
        if bound is None:
            return None
        found.append(bound)
    return found


def _rows(over: ast.expr) -> list[ast.expr] | None:
    if isinstance(over, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in over.elts):
        return list(over.elts)
    if isinstance(over, ast.Dict) and all(k is not None for k in over.keys):
        return [k for k in over.keys if k is not None]
    if not isinstance(over, ast.Call):
        return None
    if isinstance(over.func, ast.Name) and over.func.id in ("zip", "enumerate") and over.args:
        columns = [_rows(a) for a in over.args]
        if any(c is None for c in columns):
            return None
        lists = [c for c in columns if c is not None]
        if over.func.id == "enumerate":
            lists = [[ast.Constant(i) for i in range(len(lists[0]))], lists[0]]
        return [ast.Tuple(list(row), ast.Load()) for row in zip(*lists, strict=False)]
    if isinstance(over.func, ast.Attribute) and over.func.attr == "items" and isinstance(over.func.value, ast.Dict):
        pairs = zip(over.func.value.keys, over.func.value.values, strict=True)
        return [ast.Tuple([k, v], ast.Load()) for k, v in pairs if k is not None]
    if isinstance(over.func, ast.Name) and over.func.id == "range" and len(over.args) == 1:
        count = constant(over.args[0])
        return [ast.Constant(i) for i in range(count)] if isinstance(count, int) and count <= 8 else None
    return None


def match(target: ast.expr, value: ast.expr) -> dict[str, Value] | None:
    """What an assignment of a written-out value binds; None where the sides do not line up."""
    if isinstance(target, ast.Name):
        return {target.id: value}
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        if len(target.elts) != len(value.elts) or any(isinstance(e, ast.Starred) for e in (*target.elts, *value.elts)):
            return None
        found: dict[str, Value] = {}
        for part, inner in zip(target.elts, value.elts, strict=True):
            bound = match(part, inner)
            if bound is None:
                return None
            found |= bound
        return found
    return None
