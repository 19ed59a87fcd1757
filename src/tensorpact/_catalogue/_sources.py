"""A rule of a contract as text: the expression that a reader sees, and all that its verdict depends on."""

import ast
import functools
import hashlib
import inspect
import linecache
import types
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch

from tensorpact._expressions import free_names
from tensorpact.clauses import Rule, lambda_parameters

_PLAIN = (int, float, str, bool, torch.dtype, type(None))
_Function = ast.Lambda | ast.FunctionDef


def rule_form(rule: Rule) -> dict[str, Any]:
    """The machine form of a rule.

    Args:
        rule: A plain function of named arguments.

    Returns:
        ``reads``, its arguments; ``text``, its expression, or a call where it is more than one, or None where there is
        no source; ``constants``, plain values that it reads from its surroundings; ``helpers``, what else it reads,
        each with a digest of its source, so that a change of one is seen.
    """
    reads = list(lambda_parameters(rule))
    node = _node(rule)
    if node is None:
        return {"reads": reads, "text": None, "constants": {}, "helpers": {}}
    expression = _expression(node)
    around = {n: v for n, v in _around(rule, node) if not isinstance(v, types.ModuleType)}
    constants = {name: _plain(value) for name, value in around.items() if _is_plain(value)}
    helpers = {name: _digest(value) for name, value in around.items() if not _is_plain(value)}
    if expression is None:
        helpers[rule.__name__] = _digest(rule)
    return {
        "reads": reads,
        "text": f"{rule.__name__}({', '.join(reads)})" if expression is None else ast.unparse(expression),
        "constants": dict(sorted(constants.items())),
        "helpers": dict(sorted(helpers.items())),
    }


def rule_place(rule: Rule) -> tuple[str, int, int] | None:
    """File, first and last line of a rule; None where there is no source."""
    node = _node(rule)
    return None if node is None else (rule.__code__.co_filename, node.lineno, node.end_lineno or node.lineno)


def _expression(node: _Function) -> ast.expr | None:
    if isinstance(node, ast.Lambda):
        return node.body
    body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    found = body[0] if len(body) == 1 else None
    return found.value if isinstance(found, ast.Return) else None


def _around(rule: Rule, node: _Function) -> Iterator[tuple[str, Any]]:
    """Names that a rule reads from its closure and its module, with their values."""
    code = rule.__code__
    cells: tuple[types.CellType, ...] = getattr(rule, "__closure__", None) or ()
    inner = dict(zip(code.co_freevars, cells, strict=True))
    scope: Mapping[str, Any] = getattr(rule, "__globals__", {})
    body = [node.body] if isinstance(node, ast.Lambda) else node.body
    for name in dict.fromkeys(name for part in body for name in _names(part)):
        if name in inner:
            yield name, inner[name].cell_contents
        elif name in scope and name not in code.co_varnames:
            yield name, scope[name]


def _names(part: ast.AST) -> tuple[str, ...]:
    if isinstance(part, ast.expr):
        return free_names(ast.unparse(part))
    return tuple(n.id for n in ast.walk(part) if isinstance(n, ast.Name))


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(v, _PLAIN) for v in cast("tuple[Any, ...]", value))
    return isinstance(value, _PLAIN)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in cast("tuple[Any, ...]", value)]
    return str(value) if isinstance(value, torch.dtype) else value


def _digest(value: Any) -> str:
    """What a change of a helper shows in: its name, and its source without comments where it is a plain function."""
    name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)}"
    node = _node(value) if isinstance(value, types.FunctionType) else None
    text = name if node is None else f"{name}\n{ast.unparse(node)}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _node(rule: Any) -> _Function | None:
    """The syntax tree of a function; several lambdas on one line are told apart by where their code stands."""
    code = getattr(inspect.unwrap(rule), "__code__", None)
    if not isinstance(code, types.CodeType):
        return None
    found = [n for n in _functions(code.co_filename) if _starts(n) == code.co_firstlineno and _is_alike(n, code)]
    return next((n for n in found if len(found) == 1 or _holds(n, code)), None)


def _starts(node: _Function) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min(node.lineno, *(d.lineno for d in decorators)) if decorators else node.lineno


def _is_alike(node: _Function, code: types.CodeType) -> bool:
    name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    return name == code.co_name and names == list(code.co_varnames[: code.co_argcount])


def _holds(node: _Function, code: types.CodeType) -> bool:
    body = node.body if isinstance(node, ast.Lambda) else node
    first, last = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    places = [(a, c, b, d) for a, b, c, d in code.co_positions() if None not in (a, b, c, d) and (b, d) != (a, c)]
    return all(first <= (a or 0, c or 0) and (b or 0, d or 0) <= last for a, c, b, d in places)


def _functions(file: str) -> tuple[_Function, ...]:
    return _parsed("".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[_Function, ...]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return ()
    return tuple(n for n in ast.walk(tree) if isinstance(n, _Function))
