"""What one term of a condition says of tensors, where it says something that a contract has a word for."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from ._syntax import constant, is_none_test


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of one parameter, counted as written."""

    tensor: str
    index: int


@dataclass(frozen=True, slots=True)
class Says:
    """One statement.

    Attributes:
        what: ``rank``, ``dtype``, ``same_dtype``, ``device``, ``same_device``, ``layout``, ``axes``, ``size``,
            ``shape``, ``alike``, ``present`` or ``tensor``.
        names: The parameters it speaks of.
        value: Number of axes, dtypes, device types, constraint, size, or elements of a shape.
        axes: The axes it compares.
    """

    what: str
    names: tuple[str, ...]
    value: object = None
    axes: tuple[Axis, ...] = ()


class Vocabulary:
    """Reads terms.

    Args:
        tensors: Parameters that are tensors.
        constants: What the module's simple assignments bind.
    """

    def __init__(self, tensors: frozenset[str], constants: Mapping[str, ast.expr]) -> None:
        self.tensors, self.constants = tensors, constants

    def says(self, term: ast.expr) -> Says | None:
        """What a term says, or None."""
        if isinstance(term, ast.Call):
            return self._call(term)
        if isinstance(term, ast.Attribute):
            name = self._attribute(term, "is_cuda")
            return Says("device", (name,), ("cuda",)) if name else None
        if not isinstance(term, ast.Compare) or len(term.ops) != 1:
            return None
        known = is_none_test(term)
        if known is not None:
            return None if known[1] else Says("present", (known[0],))
        left, right, op = term.left, term.comparators[0], term.ops[0]
        if isinstance(op, (ast.Eq, ast.Is)):
            return self._equal(left, right) or self._equal(right, left)
        if isinstance(op, ast.In):
            return self._member(left, right)
        return None

    def _call(self, term: ast.Call) -> Says | None:
        func = term.func
        if isinstance(func, ast.Attribute) and func.attr == "is_contiguous" and not term.args and not term.keywords:
            name = self._name(func.value)
            return Says("layout", (name,), "Contiguous()") if name else None
        if isinstance(func, ast.Name) and func.id == "isinstance" and len(term.args) == 2:
            name = self._name(term.args[0])
            if name and ast.unparse(term.args[1]) in ("torch.Tensor", "Tensor"):
                return Says("tensor", (name,))
        return None

    def _name(self, node: ast.expr) -> str | None:
        return node.id if isinstance(node, ast.Name) and node.id in self.tensors else None

    def _attribute(self, node: ast.expr, attribute: str) -> str | None:
        return self._name(node.value) if isinstance(node, ast.Attribute) and node.attr == attribute else None

    def axis(self, node: ast.expr) -> Axis | None:
        """The axis that an expression is the size of."""
        if isinstance(node, ast.Subscript):
            name, index = self._attribute(node.value, "shape"), constant(node.slice)
            if name and type(index) is int:
                return Axis(name, index)
        return None

    def _equal(self, left: ast.expr, right: ast.expr) -> Says | None:
        if (name := self._attribute(left, "ndim")) and type(constant(right)) is int:
            return Says("rank", (name,), constant(right))
        if name := self._attribute(left, "dtype"):
            other = self._attribute(right, "dtype")
            if other:
                return Says("same_dtype", (name, other)) if other != name else None
            found = self._dtypes([right])
            return Says("dtype", (name,), found) if found else None
        if name := self._attribute(left, "device"):
            other = self._attribute(right, "device")
            return Says("same_device", (name, other)) if other and other != name else None
        if (name := self._device_type(left)) and isinstance(constant(right), str):
            return Says("device", (name,), (constant(right),))
        if (name := self._attribute(left, "is_cuda")) and constant(right) is True:
            return Says("device", (name,), ("cuda",))
        if axis := self.axis(left):
            other_axis, size = self.axis(right), constant(right)
            if other_axis:
                return Says("axes", (axis.tensor, other_axis.tensor), None, (axis, other_axis))
            return Says("size", (axis.tensor,), size, (axis,)) if type(size) is int and size >= 0 else None
        if found := self._stride(left, right) or self._aligned(left, right):
            return found
        return self._shapes(left, right)

    def _device_type(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Attribute) and node.attr == "type":
            return self._attribute(node.value, "device")
        return None

    def _stride(self, left: ast.expr, right: ast.expr) -> Says | None:
        if isinstance(left, ast.Call) and isinstance(left.func, ast.Attribute) and left.func.attr == "stride":
            name = self._name(left.func.value)
            if name and len(left.args) == 1 and constant(right) == 1 and type(constant(left.args[0])) is int:
                return Says("layout", (name,), "DenseLast(strict=True)", (Axis(name, constant(left.args[0])),))
        return None

    def _aligned(self, left: ast.expr, right: ast.expr) -> Says | None:
        if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and isinstance(left.left, ast.Call):
            func, step = left.left.func, constant(left.right)
            if (
                isinstance(func, ast.Attribute)
                and func.attr == "data_ptr"
                and type(step) is int
                and constant(right) == 0
            ):
                name = self._name(func.value)
                return Says("layout", (name,), f"Aligned({step})") if name and step > 0 else None
        return None

    def _member(self, left: ast.expr, right: ast.expr) -> Says | None:
        members = self._written_out(right)
        if members is None:
            return None
        if name := self._attribute(left, "dtype"):
            found = self._dtypes(members)
            return Says("dtype", (name,), found) if found else None
        if name := self._device_type(left):
            kinds = tuple(constant(m) for m in members)
            return Says("device", (name,), kinds) if kinds and all(isinstance(k, str) for k in kinds) else None
        return None

    def _written_out(self, node: ast.expr) -> list[ast.expr] | None:
        if isinstance(node, ast.Name) and node.id in self.constants:
            node = self.constants[node.id]
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("frozenset", "set", "tuple")
        ):
            node = node.args[0] if len(node.args) == 1 else node
        return list(node.elts) if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else None

    def _dtypes(self, nodes: list[ast.expr]) -> tuple[str, ...] | None:
        import torch

        names: list[str] = []
        for written in nodes:
            node = written
            if isinstance(written, ast.Name) and written.id in self.constants:
                node = self.constants[written.id]
            if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch"):
                return None
            dtype = getattr(torch, node.attr, None)
            if not isinstance(dtype, torch.dtype):
                return None
            names.append(str(dtype).removeprefix("torch."))
        return tuple(dict.fromkeys(names)) or None

    def _shapes(self, left: ast.expr, right: ast.expr) -> Says | None:
        name, part = self._shape_of(left)
        if name is None:
            return None
        other, other_part = self._shape_of(right)
        if other is not None:
            if other == name:
                return None
            return Says("alike", (name, other), (part, other_part))
        elements = self._elements(left, right)
        return Says("shape", (name,), (part, elements)) if elements is not None else None

    def _shape_of(self, node: ast.expr) -> tuple[str | None, tuple[int | None, int | None] | None]:
        """Tensor and slice of ``x.shape``, ``x.shape[:2]``, ``tuple(x.shape)``."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("tuple", "list"):
            return self._shape_of(node.args[0]) if len(node.args) == 1 else (None, None)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.slice.step is None:
            low = None if node.slice.lower is None else constant(node.slice.lower)
            high = None if node.slice.upper is None else constant(node.slice.upper)
            if low is ... or high is ...:
                return None, None
            return self._attribute(node.value, "shape"), (low, high)
        return self._attribute(node, "shape"), None

    def _elements(self, left: ast.expr, right: ast.expr) -> tuple[ast.expr, ...] | None:
        as_list = isinstance(left, ast.Call) and isinstance(left.func, ast.Name) and left.func.id == "list"
        if (
            isinstance(right, ast.Call)
            and ast.unparse(right.func) in ("torch.Size", "tuple", "list")
            and len(right.args) == 1
        ):
            as_list = as_list and ast.unparse(right.func) != "list"
            if as_list:
                return None
            right = right.args[0]
        elif isinstance(right, ast.List) is not as_list:
            return None  # a list never equals a tuple
        if isinstance(right, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in right.elts):
            return tuple(right.elts)
        return None
