"""Conditions taken apart and negated."""

import ast
from collections.abc import Iterable

from ._syntax import constant

_INVERSE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}  # fmt: skip


_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def conjunction(terms: Iterable[ast.expr]) -> ast.expr:
    """All of them."""
    found = [t for t in terms if not (isinstance(t, ast.Constant) and t.value is True)]
    if not found:
        return ast.Constant(True)
    return found[0] if len(found) == 1 else ast.BoolOp(ast.And(), found)


def terms_of(node: ast.expr) -> list[ast.expr]:
    """What has to hold together: the operands of ``and``, chains of comparisons taken apart."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return [t for v in node.values for t in terms_of(v)]
    if isinstance(node, ast.Compare) and len(node.ops) > 1:
        sides = [node.left, *node.comparators]
        return [ast.Compare(a, [op], [b]) for a, op, b in zip(sides, node.ops, sides[1:], strict=False)]
    if isinstance(node, ast.Constant) and node.value is True:
        return []
    return [node]


class Logic:
    """Negation that stays exact: an order is turned round only between whole numbers, since NaN is in no order.

    Args:
        whole: Names of arguments that are whole numbers.
    """

    def __init__(self, whole: Iterable[str]) -> None:
        self.whole = frozenset(whole)

    def negate(self, node: ast.expr) -> ast.expr:
        """The opposite, with ``not`` moved inwards."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.tidy(node.operand)
        if isinstance(node, ast.BoolOp):
            op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            return flat_bool(op, [self.negate(v) for v in node.values])
        if isinstance(node, ast.Constant):
            return ast.Constant(not node.value)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            op = node.ops[0]
            if not isinstance(op, _ORDER) or (self.is_whole(node.left) and self.is_whole(node.comparators[0])):
                return ast.Compare(node.left, [_INVERSE[type(op)]()], node.comparators)
        if isinstance(node, ast.Compare) and len(node.ops) > 1:
            return flat_bool(ast.Or(), [self.negate(t) for t in terms_of(node)])
        return ast.UnaryOp(ast.Not(), node)

    def tidy(self, node: ast.expr) -> ast.expr:
        """The same, with ``not`` moved inwards."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.negate(node.operand)
        if isinstance(node, ast.BoolOp):
            return flat_bool(node.op, [self.tidy(v) for v in node.values])
        return node

    def is_whole(self, node: ast.expr) -> bool:
        """Whether an expression is an int whatever the arguments are."""
        if isinstance(node, ast.Constant):
            return type(node.value) is int
        if isinstance(node, ast.Name):
            return node.id in self.whole
        if isinstance(node, ast.BinOp):
            plain = isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod))
            return plain and self.is_whole(node.left) and self.is_whole(node.right)
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub) and self.is_whole(node.operand)
        if isinstance(node, ast.Attribute):
            return node.attr in ("ndim", "itemsize", "nbytes")
        if isinstance(node, ast.Subscript):
            return (
                isinstance(node.value, ast.Attribute) and node.value.attr == "shape" and constant(node.slice) is not ...
            )
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            return name in ("numel", "stride", "element_size", "len", "data_ptr")
        return False


def flat_bool(op: ast.boolop, values: list[ast.expr]) -> ast.expr:
    """A BoolOp whose operands of its own kind are merged, and whose constants are gone."""
    found: list[ast.expr] = []
    for value in values:
        if isinstance(value, ast.BoolOp) and type(value.op) is type(op):
            found += value.values
        elif isinstance(value, ast.Constant) and isinstance(value.value, bool):
            if value.value is isinstance(op, ast.Or):
                return value
        else:
            found.append(value)
    if not found:
        return ast.Constant(isinstance(op, ast.And))
    return found[0] if len(found) == 1 else ast.BoolOp(op, found)
