"""Expressions over the parameters of a function: locals put in, sizes and ranks in one spelling, nothing run."""

import ast
import builtins
import copy
from collections.abc import Mapping
from typing import Any, cast

from ._logic import Logic, flat_bool
from ._loops import arguments_of, laid_out, unrolled
from ._syntax import Filled, Unknown, UnreadableError, Value, constant, is_none_test, plain_elements, words

#: Attributes of a tensor that need none of its data.
METADATA = words(
    "shape ndim dtype device is_cuda is_cpu is_meta is_sparse layout requires_grad itemsize nbytes is_quantized "
    "is_nested"
)


#: Methods of a tensor that need none of its data.
_METHODS = words(
    "stride is_contiguous element_size numel is_floating_point is_complex data_ptr get_device storage_offset is_signed"
)


#: What hands back a tensor of the same sizes, dtype and device.
_SAME = frozenset({"contiguous", "detach", "clone"})


_KEPT_BY_SAME = frozenset(["shape", "ndim", "dtype", "device", "is_cuda", "is_cpu", "is_meta", "numel"])


_PLAIN_METHODS = words(
    "lower upper strip lstrip rstrip startswith endswith split partition replace removeprefix removesuffix format "
    "join get keys values items index count isdigit bit_length is_integer"
)


_BUILTINS = words(
    "len int float bool str repr type isinstance issubclass min max abs tuple list set frozenset sorted all any "
    "sum range zip enumerate getattr hasattr callable round divmod math map"
)


_TORCH_PLAIN = frozenset({"is_tensor", "is_floating_point", "is_complex", "numel"})


class Resolver(ast.NodeTransformer):
    """Writes an expression over the parameters.

    Args:
        values: What the locals are; a parameter that was never assigned is not in it.
        tensors: Parameters that are tensors.
        local: Names that the function binds anywhere: one without a value is not known yet.
        functions: Helpers of the module whose only statement is a return: written out.
    """

    def __init__(
        self,
        values: Mapping[str, Value],
        tensors: frozenset[str],
        local: frozenset[str],
        functions: Mapping[str, ast.FunctionDef],
    ) -> None:
        self.values, self.tensors, self.local, self.functions = values, tensors, local, functions
        self.bound: list[set[str]] = []
        self.given: set[str] = set()
        self.depth = 0

    def resolve(self, node: ast.expr) -> ast.expr:
        """The expression over the parameters; ``given`` names those that must not be None for it.

        Raises:
            UnreadableError: It depends on something else.
        """
        found = self.visit(copy.deepcopy(node))
        self._refuse_data(found)
        return found

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if any(node.id in names for names in self.bound):
            return node
        if node.id in self.values:
            value = self.values[node.id]
            if isinstance(value, Unknown):
                raise UnreadableError(value.reason)
            if isinstance(value, Filled):
                self.given.add(value.name)
                return ast.Name(value.name, ast.Load())
            return copy.deepcopy(value)
        if node.id in self.local:
            raise UnreadableError(f"reads {node.id}, which nothing above it binds on every way")
        return node

    def is_tensor(self, node: ast.AST) -> bool:
        """Whether an expression is a tensor parameter, or one with its sizes kept."""
        if isinstance(node, ast.Name):
            return node.id in self.tensors
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SAME:
            return self.is_tensor(node.func.value)
        return False

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        value = cast(ast.expr, self.visit(node.value))
        if self.is_tensor(value):
            if node.attr not in METADATA | _METHODS | _SAME | {"size", "dim", "ndimension", "nelement", "device"}:
                raise UnreadableError(f"reads .{node.attr} of a tensor")
            while not isinstance(value, ast.Name) and node.attr in (
                *_KEPT_BY_SAME,
                "size",
                "dim",
                "ndimension",
                "nelement",
            ):
                value = cast(ast.Attribute, cast(ast.Call, value).func).value
        return ast.Attribute(value, node.attr, ast.Load())

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        value, index = cast(ast.expr, self.visit(node.value)), cast(ast.expr, self.visit(node.slice))
        if self.is_tensor(value):
            raise UnreadableError("indexes a tensor")
        inside = plain_elements(value)
        if inside is not None and isinstance(place := constant(index), int) and -len(inside) <= place < len(inside):
            return inside[place]
        if (place := constant(index)) is not ...:
            index = ast.Constant(place) if not isinstance(place, int) or place >= 0 else _number(place)
        return ast.Subscript(value, index, ast.Load())

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        return ast.Tuple(self._spread(node.elts), ast.Load())

    def visit_List(self, node: ast.List) -> ast.expr:
        return ast.List(self._spread(node.elts), ast.Load())

    def _spread(self, elements: list[ast.expr]) -> list[ast.expr]:
        """Elements with ``*`` of a written-out sequence taken in."""
        found: list[ast.expr] = []
        for element in (cast(ast.expr, self.visit(e)) for e in elements):
            if isinstance(element, ast.Starred) and isinstance(element.value, (ast.Tuple, ast.List)):
                found += element.value.elts
            else:
                found.append(element)
        return found

    def visit_Call(self, node: ast.Call) -> ast.expr:
        func = node.func
        if isinstance(func, ast.Name) and func.id in ("all", "any") and len(node.args) == 1 and not node.keywords:
            expanded = self._expand(node.args[0])
            if expanded is not None:
                return flat_bool(ast.And() if func.id == "all" else ast.Or(), expanded)
        if (
            isinstance(func, ast.Attribute)
            and func.attr
            not in _METHODS
            | _SAME
            | {
                "size",
                "dim",
                "ndimension",
                "nelement",
            }
            and self.is_tensor(cast(ast.expr, self.visit(copy.deepcopy(func.value))))
        ):
            raise UnreadableError(f"calls .{func.attr}() of a tensor")
        found = ast.Call(
            cast(ast.expr, self.visit(func)) if not isinstance(func, ast.Name) or func.id in self.values else func,
            [cast(ast.expr, self.visit(a)) for a in node.args],
            [ast.keyword(k.arg, cast(ast.expr, self.visit(k.value))) for k in node.keywords],
        )
        if isinstance(found.func, ast.Attribute):
            return self._method(found, found.func)
        if isinstance(found.func, ast.Name):
            return self._plain(found, found.func.id)
        raise UnreadableError(f"calls {ast.unparse(found.func)}")

    def _method(self, node: ast.Call, func: ast.Attribute) -> ast.expr:
        value = func.value
        if self.is_tensor(value):
            if func.attr in ("dim", "ndimension"):
                return ast.Attribute(value, "ndim", ast.Load())
            if func.attr == "nelement":
                return ast.Call(ast.Attribute(value, "numel", ast.Load()), [], [])
            if func.attr == "size":
                sizes = ast.Attribute(value, "shape", ast.Load())
                at = node.args[0] if node.args else node.keywords[0].value if node.keywords else None
                return sizes if at is None else self.visit_Subscript(ast.Subscript(sizes, at, ast.Load()))
            if func.attr in _SAME:
                return node
            if func.attr not in _METHODS:
                raise UnreadableError(f"calls .{func.attr}() of a tensor")
            if func.attr == "stride" and len(node.keywords) == 1 and not node.args:
                return ast.Call(func, [node.keywords[0].value], [])
            return node
        root = value
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            root = root.value
        outside = isinstance(root, ast.Name) and root.id not in self.local and not self._is_bound(root.id)
        whole = [a for a in (*node.args, *(k.value for k in node.keywords)) if self.is_tensor(a)]
        if outside and isinstance(root, ast.Name):
            text = ast.unparse(func)
            if whole and not (text.removeprefix("torch.") in _TORCH_PLAIN and text.startswith("torch.")):
                raise UnreadableError(f"hands a tensor to {text}()")
            if whole and text == "torch.numel":
                return ast.Call(ast.Attribute(whole[0], "numel", ast.Load()), [], [])
            return node
        if func.attr not in _PLAIN_METHODS or whole:
            raise UnreadableError(f"calls .{func.attr}() of an argument")
        return node

    def _is_bound(self, name: str) -> bool:
        return any(name in names for names in self.bound)

    def _plain(self, node: ast.Call, name: str) -> ast.expr:
        whole = [a for a in (*node.args, *(k.value for k in node.keywords)) if self.is_tensor(a)]
        if name == "len" and len(node.args) == 1:
            inner = node.args[0]
            if self.is_tensor(inner):
                return ast.Subscript(ast.Attribute(inner, "shape", ast.Load()), ast.Constant(0), ast.Load())
            if isinstance(inner, ast.Attribute) and inner.attr == "shape" and self.is_tensor(inner.value):
                return ast.Attribute(inner.value, "ndim", ast.Load())
            if isinstance(inner, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in inner.elts):
                return ast.Constant(len(inner.elts))
        if name in ("isinstance", "type", "hasattr", "getattr", "id", "callable") or (
            hasattr(builtins, name) and name in _BUILTINS and not whole
        ):
            if name == "getattr" and whole:
                raise UnreadableError("reads an attribute of a tensor by name")
            return node
        helper = self.functions.get(name)
        written = self._write_out(helper, node) if helper is not None else None
        if written is not None:
            return written
        if whole and "contiguous" in name and len(node.args) == 1:
            return ast.Call(ast.Attribute(node.args[0], "contiguous", ast.Load()), [], [])
        if whole and not (helper is not None and _reads_metadata(helper)):
            raise UnreadableError(f"hands a tensor to {name}()")
        if name in self.local:
            raise UnreadableError(f"calls {name}(), a local function")
        return node

    def _write_out(self, helper: ast.FunctionDef, node: ast.Call) -> ast.expr | None:
        """A helper of one return statement, with the arguments put in."""
        body = [s for s in helper.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        if self.depth or len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
            return None
        values = arguments_of(helper, node)
        if values is None:
            return None
        inner = Resolver(values, self.tensors, frozenset(values), {})
        inner.depth = 1
        try:
            return inner.resolve(body[0].value)
        except UnreadableError:
            return None

    def _expand(self, node: ast.expr) -> list[ast.expr] | None:
        """What ``all(… for x in (a, b))`` runs through, where that is written out."""
        if isinstance(node, (ast.Tuple, ast.List)):
            return [cast(ast.expr, self.visit(e)) for e in node.elts]
        if not isinstance(node, (ast.GeneratorExp, ast.ListComp)) or len(node.generators) != 1:
            return None
        part = node.generators[0]
        rows = unrolled(part.target, cast(ast.expr, self.visit(copy.deepcopy(part.iter))))
        if rows is None or part.is_async:
            return None
        found: list[ast.expr] = []
        for row in rows:
            inner = Resolver({**self.values, **row}, self.tensors, self.local | frozenset(row), self.functions)
            wanted = inner.visit(copy.deepcopy(node.elt))
            unless = [Logic(()).negate(inner.visit(copy.deepcopy(test))) for test in part.ifs]
            found.append(flat_bool(ast.Or(), [*unless, wanted]) if unless else wanted)
            self.given |= inner.given
        return found

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        left = cast(ast.expr, self.visit(node.left))
        sides = [cast(ast.expr, self.visit(c)) for c in node.comparators]
        inside = plain_elements(sides[0])
        if isinstance(node.ops[0], (ast.In, ast.NotIn)) and constant(left) is None and inside is not None:
            tests: list[ast.expr] = [ast.Compare(e, [ast.Is()], [ast.Constant(None)]) for e in inside]
            any_none = flat_bool(ast.Or(), tests)
            return any_none if isinstance(node.ops[0], ast.In) else Logic(()).negate(any_none)
        return ast.Compare(left, node.ops, sides)

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        return self._comprehension(node)

    def visit_SetComp(self, node: ast.SetComp) -> ast.expr:
        return self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.expr:
        return self._comprehension(node)

    def _comprehension(self, node: Any) -> ast.expr:
        first = node.generators[0]
        first.iter = self.visit(first.iter)
        names = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        if names & self.tensors or any(self.is_tensor(e) for e in getattr(first.iter, "elts", ())):
            raise UnreadableError("runs over tensors in a comprehension")
        self.bound.append(names)
        node.elt = self.visit(node.elt)
        for part in node.generators:
            part.ifs = [self.visit(test) for test in part.ifs]
            if part is not first:
                part.iter = self.visit(part.iter)
        self.bound.pop()
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        raise UnreadableError("holds a lambda")

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        raise UnreadableError("assigns inside an expression")

    def visit_Await(self, node: ast.Await) -> ast.expr:
        raise UnreadableError("awaits")

    def visit_Yield(self, node: ast.Yield) -> ast.expr:
        raise UnreadableError("yields")

    def _refuse_data(self, node: ast.expr) -> None:
        """A tensor may stand only where nothing looks into it."""
        fine: set[int] = {id(e) for e in laid_out(node)}
        for n in ast.walk(node):
            if isinstance(n, ast.Attribute):
                fine.add(id(n.value))
            elif isinstance(n, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in n.ops):
                fine |= {id(n.left), *(id(c) for c in n.comparators)}
            elif isinstance(n, ast.Call):
                fine |= {id(a) for a in n.args}
        loose = [n for n in ast.walk(node) if self.is_tensor(n) and id(n) not in fine and n is not node]
        if loose:
            raise UnreadableError(f"reads the values of {ast.unparse(loose[0])}")


def _reads_metadata(helper: ast.FunctionDef) -> bool:
    """Whether a helper looks at nothing but the metadata of what it is given, and only computes."""
    spec = helper.args
    given = {a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}
    fine: set[int] = set()
    for n in ast.walk(helper):
        if isinstance(n, ast.Attribute) and n.attr in METADATA | _METHODS | {"size", "dim"}:
            fine.add(id(n.value))
        elif isinstance(n, ast.Compare) and is_none_test(n):
            fine.add(id(n.left))
        elif isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "isinstance":
            fine |= {id(a) for a in n.args}
        elif isinstance(n, (ast.Global, ast.Nonlocal, ast.Yield, ast.Await, ast.Raise, ast.Assert)):
            return False
    reads = [n for n in ast.walk(helper) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in given]
    return not (spec.vararg or spec.kwarg) and all(id(n) in fine for n in reads)


def _number(value: int) -> ast.expr:
    return ast.UnaryOp(ast.USub(), ast.Constant(-value))
