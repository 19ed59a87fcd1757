"""The source of a module, rewritten so that every definition passes through the hook: the syntax tree alone."""

import ast
from typing import TypeVar

#: Changes with every change of what is written into modules, so that bytecode of an older form is never read.
VERSION = 1
#: Name of the :class:`~tensorpact.integrations._hooked.ModuleHook` in the globals of an instrumented module.
HOOK = "__tensorpact_hook__"

_Function = TypeVar("_Function", ast.FunctionDef, ast.AsyncFunctionDef)


def instrument(tree: ast.Module, check_returns: bool) -> ast.Module:
    """Rewrite a module.

    Every decorator expression is handed to the hook as it is evaluated, which changes neither what it gives nor when;
    the hook's own decorator stands below them, next to the function, and above them on a class. So aliases need no
    guessing: the hook sees the decorators themselves.

    Args:
        tree: The module, as parsed; it is changed.
        check_returns: Whether return annotations are checked in ``compiled`` mode too.
    """
    _Instrument().visit(tree)
    place = 0
    while place < len(tree.body) and _stays_first(tree.body[place], place):
        place += 1
    made = ast.parse(
        f"from tensorpact.integrations._hooked import ModuleHook as {HOOK}\n"
        f"{HOOK} = {HOOK}(__name__, {check_returns!r})\n"
    ).body
    if place < len(tree.body):
        for statement in made:
            for node in ast.walk(statement):
                ast.copy_location(node, tree.body[place])
    tree.body[place:place] = made
    return tree


def _stays_first(statement: ast.stmt, place: int) -> bool:
    """Whether a statement is the docstring or an import from ``__future__``."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    return place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _of_hook(method: str, *arguments: ast.expr, at: ast.AST) -> ast.Call:
    call = ast.Call(ast.Attribute(ast.Name(HOOK, ast.Load()), method, ast.Load()), list(arguments), [])
    ast.copy_location(call, at)
    return ast.fix_missing_locations(call)


class _Instrument(ast.NodeTransformer):
    def __init__(self) -> None:
        self._scope: tuple[str, ...] = ()

    def _inside(self, node: ast.AST, *names: str) -> None:
        before, self._scope = self._scope, (*self._scope, *names)
        self.generic_visit(node)
        self._scope = before

    def _seen(self, node: _Function | ast.ClassDef) -> tuple[ast.expr, ast.expr]:
        """Hand the decorators to the hook; the qualified name of the definition and their number."""
        node.decorator_list = [_of_hook("seen", d, at=d) for d in node.decorator_list]
        return ast.Constant(".".join((*self._scope, node.name))), ast.Constant(len(node.decorator_list))

    def _function(self, node: _Function) -> _Function:
        arguments = self._seen(node)
        node.decorator_list.append(_of_hook("function", *arguments, at=node))
        self._inside(node, node.name, "<locals>")
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return self._function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        name, count = self._seen(node)
        above = _of_hook("made", name, at=node)
        node.decorator_list = [above, *node.decorator_list, _of_hook("opens", name, count, at=node)]
        self._inside(node, node.name)
        return node
