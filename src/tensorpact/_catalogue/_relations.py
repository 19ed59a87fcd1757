"""Two rules compared: which calls one lets through and the other does not, tried on sizes where it cannot be read."""

import ast
import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ._markdown import Form

Verdict = str | None
_SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 256, 1024)
_MOST = 4000
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class CannotTryError(Exception):
    """A rule is more than arithmetic over whole numbers."""


def same_rule(old: Form | None, new: Form | None) -> bool:
    """Whether two rules are the same as far as their machine forms tell."""
    if old is None or new is None:
        return old is new
    keys = ("text", "constants", "helpers")
    return all(old[k] == new[k] for k in keys) and (old["text"] is not None or old["reads"] == new["reads"])


def compare_rules(old: Form, new: Form) -> Verdict:
    """``"loosened"`` or ``"tightened"`` where trying sizes shows it, ``"same"`` where none tells them apart.

    Returns:
        None where each lets through what the other does not, or where they cannot be tried.
    """
    names = sorted({*old["reads"], *new["reads"]})
    if old["text"] is None or new["text"] is None or old["helpers"] or new["helpers"]:
        return None
    per_name = max(2, int(_MOST ** (1 / max(len(names), 1))))
    constants = [v for r in (old, new) for v in r["constants"].values() if type(v) is int]
    sizes = sorted({*_SIZES, *(c + d for c in constants for d in (-1, 0, 1) if c + d >= 0)})
    chosen = sizes if len(sizes) <= per_name else sizes[:: -(-len(sizes) // per_name)]
    gained = lost = False
    try:
        trees = [ast.parse(r["text"], mode="eval").body for r in (old, new)]
        for values in itertools.product(chosen, repeat=len(names)):
            given = dict(zip(names, values, strict=True))
            before, after = (_holds(t, {**r["constants"], **given}) for t, r in zip(trees, (old, new), strict=True))
            gained |= after and not before
            lost |= before and not after
    except (CannotTryError, SyntaxError):
        return None
    if gained and lost:
        return None
    return "loosened" if gained else "tightened" if lost else "same"


def _holds(tree: ast.expr, scope: Mapping[str, Any]) -> bool:
    try:
        return bool(_value(tree, scope))
    except ZeroDivisionError:
        return False


def _value(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    """Value of an expression of whole numbers; nothing is called, and no attribute is read."""
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name) if type(scope.get(name)) is int:
            return scope[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, scope)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not _value(inner, scope)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, scope), _value(right, scope))
        case ast.BoolOp(op=op, values=values):
            found = (_value(v, scope) for v in values)
            return all(found) if isinstance(op, ast.And) else any(found)
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(op) in _COMPARE for op in ops):
            chain = [_value(v, scope) for v in (left, *rest)]
            return all(_COMPARE[type(op)](a, b) for op, a, b in zip(ops, chain, chain[1:], strict=False))
        case _:
            raise CannotTryError
