"""Weaker forms of a rule: its source text with one bound moved or one condition of a conjunction left out."""

import ast
import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

_WIDER: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.Gt: ast.GtE}
#: How far the right side of a bound moves, so that more is allowed.
_FARTHER: dict[type[ast.cmpop], type[ast.operator]] = {ast.LtE: ast.Add, ast.GtE: ast.Sub}


def weaker_rules(rule: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """What was changed and the changed rule, for every change that lets more pass; none where there is no source.

    Strict bounds become lax (``<`` to ``<=``), lax ones move by one, and each condition of an ``and`` or link of a
    chained comparison is left out once. What stands under ``not`` is left alone.

    Args:
        rule: A lambda, or a function whose body is one ``return``.
    """
    if not isinstance(rule, FunctionType):
        return
    node = _node_of(rule)
    if node is None:
        return
    seen = {ast.unparse(node.body)}
    for body in _weaker(node.body):
        text = ast.unparse(body)
        if text not in seen:
            seen.add(text)
            yield text, _rebuilt(rule, ast.Lambda(node.args, body))


def _weaker(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BoolOp):
        for i, value in enumerate(node.values):
            rest = [*node.values[:i], *node.values[i + 1 :]]
            if isinstance(node.op, ast.And):
                yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
            for other in _weaker(value):
                yield ast.BoolOp(node.op, [*node.values[:i], other, *node.values[i + 1 :]])
    elif isinstance(node, ast.Compare):
        yield from _weaker_comparison(node)
    elif isinstance(node, ast.IfExp):
        yield from (ast.IfExp(node.test, body, node.orelse) for body in _weaker(node.body))
        yield from (ast.IfExp(node.test, node.body, orelse) for orelse in _weaker(node.orelse))


def _weaker_comparison(node: ast.Compare) -> Iterator[ast.expr]:
    sides = [node.left, *node.comparators]
    if len(node.ops) > 1:
        yield ast.Compare(node.left, node.ops[:-1], node.comparators[:-1])
        yield ast.Compare(node.comparators[0], node.ops[1:], node.comparators[1:])
    for i, op in enumerate(node.ops):
        wider, farther = _WIDER.get(type(op)), _FARTHER.get(type(op))
        if wider is not None:
            yield ast.Compare(node.left, [*node.ops[:i], wider(), *node.ops[i + 1 :]], node.comparators)
        elif farther is not None and i == len(node.ops) - 1:
            moved = ast.BinOp(sides[-1], farther(), ast.Constant(1))
            yield ast.Compare(node.left, node.ops, [*node.comparators[:-1], _folded(moved)])


def _folded(node: ast.BinOp) -> ast.expr:
    """A sum of two integer constants as one."""
    left, right = node.left, node.right
    if isinstance(left, ast.Constant) and isinstance(right, ast.Constant) and type(left.value) is int:
        step = 1 if isinstance(node.op, ast.Add) else -1
        return ast.Constant(left.value + step)
    return node


@functools.lru_cache(maxsize=64)
def _functions_of(file: str, lines: str) -> tuple[ast.Lambda | ast.FunctionDef, ...]:
    found = ast.walk(ast.parse(lines, file))
    return tuple(node for node in found if isinstance(node, (ast.Lambda, ast.FunctionDef)))


def _node_of(rule: FunctionType) -> ast.Lambda | None:
    """The rule as a lambda of the file that it was read from; None where the text cannot be had."""
    code = rule.__code__
    try:
        lines, _ = inspect.findsource(code)
        nodes = _functions_of(code.co_filename, "".join(lines))
    except (OSError, SyntaxError):
        return None
    for node in nodes:
        names = tuple(a.arg for a in (*node.args.posonlyargs, *node.args.args))
        if names != code.co_varnames[: code.co_argcount]:
            continue
        if isinstance(node, ast.Lambda):
            if code.co_name == "<lambda>" and _covers(node.body, code):
                return node
        elif node.name == code.co_name:
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            only = body[0] if len(body) == 1 else None
            if isinstance(only, ast.Return) and only.value is not None and _covers(only, code):
                return ast.Lambda(node.args, only.value)
    return None


def _covers(node: ast.expr | ast.stmt, code: CodeType) -> bool:
    """Whether the instructions of a function stand where a node of the file does."""
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    places: list[tuple[Any, ...]] = [p for p in code.co_positions() if None not in p and p[2] != p[3]]
    return bool(places) and all(start <= (line, column) and (last, stop) <= end for line, last, column, stop in places)


def _rebuilt(rule: FunctionType, node: ast.Lambda) -> Callable[..., Any]:
    """The changed lambda with the globals and the closed-over names of the rule."""
    free = rule.__code__.co_freevars
    tree = copy.deepcopy(node)
    names = [ast.arg(n) for n in free]
    outer = ast.Lambda(ast.arguments([], names, None, [], [], None, []), tree)
    text = f"<weaker {rule.__code__.co_filename}>"
    made = eval(compile(ast.fix_missing_locations(ast.Expression(outer)), text, "eval"), rule.__globals__)
    inner: FunctionType = made(*[None] * len(free))
    if not free:
        return inner
    cells = dict(zip(free, rule.__closure__ or (), strict=True))
    closure = tuple(cells[n] for n in inner.__code__.co_freevars)
    return FunctionType(inner.__code__, rule.__globals__, inner.__name__, rule.__defaults__, closure)
