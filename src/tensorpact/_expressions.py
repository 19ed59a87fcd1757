"""Expressions over dims: parsed once, evaluated, and solved for one unknown where that is simple."""

import ast
import builtins
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class ExpressionSyntaxError(Exception):
    """The text of a dim is no expression that a dim can have."""


def free_names(source: str) -> tuple[str, ...]:
    """Names that an expression reads, in order of appearance.

    Raises:
        SyntaxError: The source is no expression.
    """
    tree = ast.parse(source, mode="eval")
    bound = {a.arg for n in ast.walk(tree) if isinstance(n, ast.Lambda) for a in n.args.args}
    bound |= {
        t.id
        for n in ast.walk(tree)
        if isinstance(n, ast.comprehension)
        for t in ast.walk(n.target)
        if isinstance(t, ast.Name)
    }
    names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name)]
    return tuple(dict.fromkeys(n for n in names if n not in bound))


class _Operands(ast.NodeTransformer):
    """Renames every operand, so that a dim called ``max`` does not hide the function ``max``."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.functions: set[str] = set()

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name):
            self.functions.add(node.func.id)
            node.args = [self.visit(a) for a in node.args]
            return node
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        self.names[node.id] = None
        return ast.Name(f"d_{node.id}", ast.Load())


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Expression:
    """An expression axis such as ``T+1``, ``HV*K`` or ``{n}*2``.

    Attributes:
        text: As written.
        names: Dims that it reads.
        arguments: Arguments that its ``{…}`` parts read.
    """

    text: str
    names: tuple[str, ...]
    arguments: tuple[str, ...]
    tree: ast.expr
    function: Callable[..., Any]
    parts: tuple[Callable[..., Any], ...]

    def evaluate(self, dims: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
        """Value for bound dims; whatever the author's code raises passes through."""
        return self.function(*[dims[n] for n in self.names], *self.part_values(dims, arguments))

    def part_values(self, dims: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[Any]:
        """Values of the ``{…}`` parts; a text is read as an expression over the dims, as jaxtyping does."""
        values: list[Any] = []
        for part in self.parts:
            value = part(*[arguments[n] for n in self.arguments])
            if isinstance(value, str):
                value = eval(value, {"__builtins__": builtins}, dict(dims))
            values.append(value)
        return values

    def solve(self, unknown: str, size: int, dims: Mapping[str, Any], arguments: Mapping[str, Any]) -> int | None:
        """Smallest size of ``unknown`` that gives ``size``, or None where there is none or it is not simple."""
        known = dict(dims)
        known.update(zip((f"{i}part" for i in range(len(self.parts))), self.part_values(dims, arguments), strict=True))
        node, target = self.tree, size
        divisor = 1
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
            right = _linear(node.right, unknown, known)
            if right is None or right[0] != 0 or right[1] <= 0:
                return None
            divisor, node = right[1], node.left
            target = size * divisor
        line = _linear(node, unknown, known)
        if line is None or line[0] == 0:
            return None
        slope, offset = line
        # Under a floor division any of `divisor` neighbouring values would do; the smallest is taken. A range of a
        # symbolic size would ask a tracer for its number.
        for value in (target,) if divisor == 1 else range(target, target + divisor):
            if (value - offset) % slope == 0 and (value - offset) // slope >= 0:
                return (value - offset) // slope
        return None

    def solvable(self, unknown: str) -> bool:
        """Whether :meth:`solve` can work for some sizes."""
        probe = dict.fromkeys(self.names, 2) | {f"{i}part": 2 for i in range(len(self.parts))}
        node = self.tree
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
            node = node.left
        line = _linear(node, unknown, probe)
        return line is not None and line[0] != 0


def _linear(node: ast.expr, unknown: str, known: Mapping[str, Any]) -> tuple[int, int] | None:
    """Slope and offset of a node that is linear in the unknown, else None."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return 0, node.value
    if isinstance(node, ast.Name):
        name = node.id.removeprefix("d_")
        if name == unknown:
            return 1, 0
        return (0, known[name]) if isinstance(known.get(name), int) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _linear(node.operand, unknown, known)
        return None if inner is None else (-inner[0], -inner[1])
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _linear(node.left, unknown, known), _linear(node.right, unknown, known)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Add):
        return left[0] + right[0], left[1] + right[1]
    if isinstance(node.op, ast.Sub):
        return left[0] - right[0], left[1] - right[1]
    if isinstance(node.op, ast.Mult) and (left[0] == 0 or right[0] == 0):
        return left[0] * right[1] + right[0] * left[1], left[1] * right[1]
    if isinstance(node.op, ast.FloorDiv) and left[0] == 0 and right[0] == 0 and right[1] != 0:
        return 0, left[1] // right[1]
    return None


def _function(parameters: Sequence[str], body: ast.expr, label: str) -> Callable[..., Any]:
    arguments = ast.arguments(
        posonlyargs=[], args=[ast.arg(p) for p in parameters], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    tree = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, body)))
    return eval(compile(tree, f"<dim {label}>", "eval"), {"__builtins__": builtins})


def parse_expression(text: str) -> Expression:
    """Parse the text of an expression axis.

    Raises:
        ExpressionSyntaxError: With the reason, for the author.
    """
    source, parts = "", list[str]()
    try:
        for literal, inner, spec, conversion in string.Formatter().parse(text):
            source += literal
            if inner is not None:
                if spec or conversion or not inner:
                    raise ExpressionSyntaxError("a `{…}` part holds an expression alone")
                source += f"PART{len(parts)}_"
                parts.append(inner)
        tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError) as bad:
        raise ExpressionSyntaxError(f"it does not parse as an expression ({getattr(bad, 'msg', bad)})") from bad
    operands = _Operands()
    body = operands.visit(tree)
    markers = [f"PART{i}_" for i in range(len(parts))]
    if any(m not in operands.names for m in markers):
        raise ExpressionSyntaxError("a `{…}` part must be an operand of its own")
    names = tuple(n for n in operands.names if n not in markers)
    both = operands.functions.intersection(names)
    if both:
        raise ExpressionSyntaxError(f"{', '.join(sorted(both))} is used both as a function and as a dim")
    unknown = [f for f in operands.functions if not hasattr(builtins, f)]
    if unknown:
        raise ExpressionSyntaxError(f"{unknown[0]} is no builtin function")
    function = _function([f"d_{n}" for n in (*names, *markers)], body, text)
    for node in ast.walk(body):
        if isinstance(node, ast.Name) and node.id.removeprefix("d_") in markers:
            node.id = f"d_{markers.index(node.id.removeprefix('d_'))}part"
    arguments = tuple(dict.fromkeys(n for p in parts for n in free_names(p.strip()) if not hasattr(builtins, n)))
    compiled = tuple(_function(arguments, ast.parse(p.strip(), mode="eval").body, text) for p in parts)
    return Expression(text, names, arguments, body, function, compiled)
