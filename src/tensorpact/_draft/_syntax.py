"""Small questions about Python expressions."""

import ast
from typing import Any


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


class UnreadableError(Exception):
    """An expression depends on more than arguments and metadata; the text says on what."""


class Unknown:
    """The value of a local that cannot be written over the parameters."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Filled:
    """A parameter that is replaced where it is None: what is checked of it concerns callers that gave it."""

    def __init__(self, name: str) -> None:
        self.name = name


Value = ast.expr | Unknown | Filled


def same(a: ast.AST, b: ast.AST) -> bool:
    """Whether two expressions are written alike."""
    return ast.dump(a) == ast.dump(b)


def names_in(node: ast.AST) -> set[str]:
    """Names that an expression reads, those of its own comprehensions left out."""
    bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {a.arg for n in ast.walk(node) if isinstance(n, ast.Lambda) for a in n.args.args}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - bound


def is_none_test(node: ast.AST) -> tuple[str, bool] | None:
    """The name and whether it must be None, of ``x is None`` and ``x is not None``."""
    if (
        isinstance(node, ast.Compare)
        and len(node.ops) == 1
        and isinstance(node.left, ast.Name)
        and isinstance(node.comparators[0], ast.Constant)
        and node.comparators[0].value is None
        and isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.Eq, ast.NotEq))
    ):
        return node.left.id, isinstance(node.ops[0], (ast.Is, ast.Eq))
    return None


def constant(node: ast.AST) -> Any:
    """The value of a literal, a negative number included; ``...`` for everything else."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return -value if isinstance(value, (int, float)) else ...
    return ...


def plain_elements(node: ast.expr) -> list[ast.expr] | None:
    """What a tuple or list lists; None for anything else, and where a star hides some of it."""
    if isinstance(node, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in node.elts):
        return node.elts
    return None
