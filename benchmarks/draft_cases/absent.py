"""What stands in for names whose import fails here, alike for a function and for its draft."""

import ast
import builtins
import contextlib
import re
from collections.abc import Iterable
from typing import Any

#: What a function asks of a machine; the answer is yes, so that the checks behind it are reached.
_ASKS = re.compile(r"support|available|sm_?90|hopper|is_cuda")


class Absent:
    """Something that is not installed: equal to nothing, and itself in every attribute, entry and call.

    It is false, unless its name asks whether something is supported or available.

    Args:
        name: Its name, as a module binds it.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Itself again, whatever it is called with."""
        return self

    def __getitem__(self, _: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return _ASKS.search(self.__name__) is not None

    def __instancecheck__(self, _: Any) -> bool:
        return False

    def __mro_entries__(self, _: Any) -> tuple[()]:
        return ()

    def __lt__(self, _: object) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __format__(self, _: str) -> str:
        return self.__name__


def bound(node: ast.stmt) -> dict[str, Absent]:
    """Stand-ins for what an import would have bound.

    Args:
        node: Any statement.
    """
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return {}
    names = [(a.asname or a.name).partition(".")[0] for a in node.names]
    return {name: Absent(name) for name in names if name != "*"}


def run(nodes: Iterable[ast.stmt], scope: dict[str, Any], label: str) -> None:
    """Run statements one by one; an import that fails binds stand-ins, and what else fails binds nothing.

    Args:
        nodes: The statements.
        scope: Namespace of them.
        label: What tracebacks call their file.
    """
    for node in nodes:
        try:
            exec(compile(ast.Module([node], []), label, "exec"), scope)
        except BaseException as bad:
            if isinstance(bad, KeyboardInterrupt):
                raise
            if isinstance(node, ast.Try):
                run([*node.body, *node.orelse, *node.finalbody], scope, label)
            for part in node.names if isinstance(node, ast.ImportFrom) else ():
                # One name may be missing where the others are there.
                with contextlib.suppress(BaseException):
                    one = ast.ImportFrom(node.module, [part], node.level)
                    exec(compile(ast.fix_missing_locations(ast.Module([one], [])), label, "exec"), scope)
            for name, absent in bound(node).items():
                scope.setdefault(name, absent)


class Inside(ast.NodeTransformer):
    """Imports inside a function bind stand-ins too where they fail; their namespace has ``__absent__`` for it."""

    def visit_Import(self, node: ast.Import) -> ast.stmt:  # noqa: D102 - ast calls it so
        return self._tried(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:  # noqa: D102 - ast calls it so
        return self._tried(node)

    def _tried(self, node: ast.stmt) -> ast.stmt:
        binds = "; ".join(f"{name} = __absent__({name!r})" for name in bound(node)) or "pass"
        tried = ast.parse(f"try:\n    pass\nexcept Exception:\n    {binds}").body[0]
        if isinstance(tried, ast.Try):
            tried.body = [node]
        return ast.copy_location(tried, node)


def fill(scope: dict[str, Any], functions: Iterable[ast.AST]) -> None:
    """Bind stand-ins for whatever else functions read of their module that is not there.

    Args:
        scope: Namespace of the module.
        functions: Functions of it.
    """
    scope["__absent__"] = Absent
    for function in functions:
        names = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
        own = {n.id for n in names if isinstance(n.ctx, ast.Store)}
        own |= {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)}
        for name in {n.id for n in names} - own:
            if not hasattr(builtins, name):
                scope.setdefault(name, Absent(name))
