"""The checks of a function of somebody else, cut out so that they can be run."""

import ast
import contextlib
import copy
import importlib
import io
import traceback
import warnings
from typing import Any

from tensorpact._draft import Draft

from .absent import Inside, fill, run


def is_check(node: ast.AST) -> bool:
    """Whether a statement is a check: a raise, an assert, a call of ``torch._check``."""
    return isinstance(node, (ast.Raise, ast.Assert)) or (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).startswith("torch._check")
    )


class Original:
    """The checks of a function, ready to be run.

    Args:
        made: Its draft, which knows where it stands.
    """

    def __init__(self, made: Draft) -> None:
        source = made.source
        self.file = f"<checks of {made.target}>"
        self.namespace, self.how = self._namespace(source.module, "\n".join(source.lines))
        fill(self.namespace, (source.function, *source.functions.values()))
        function = copy.deepcopy(source.function)
        last = max((i for i, s in enumerate(function.body) if self._has_check(s, source.functions)), default=-1)
        function.body = [*function.body[: last + 1], ast.Return(ast.Constant(None))]
        function.decorator_list, function.returns = [], None
        for a in ast.walk(function.args):
            if isinstance(a, ast.arg):
                a.annotation = None
        helpers = [
            copy.deepcopy(f) for n, f in source.functions.items() if self._called(n, function) and n != function.name
        ]
        for helper in helpers:
            helper.decorator_list = [d for d in helper.decorator_list if "cache" in ast.unparse(d)]
            helper.returns = None
            for a in ast.walk(helper.args):
                if isinstance(a, ast.arg):
                    a.annotation = None
        helpers = [h for h in helpers if any(is_check(n) for n in ast.walk(h))]
        tree = ast.fix_missing_locations(Inside().visit(ast.Module([*helpers, function], [])))
        self.lines = {
            line
            for top in (function, *helpers)
            for n in ast.walk(top)
            if is_check(n)
            for line in range(n.lineno, (n.end_lineno or n.lineno) + 1)
        }
        self.starts = {
            line: n.lineno
            for top in (function, *helpers)
            for n in ast.walk(top)
            if is_check(n)
            for line in range(n.lineno, (n.end_lineno or n.lineno) + 1)
        }
        scope = dict(self.namespace)
        exec(compile(tree, self.file, "exec"), scope)
        self.function = scope[function.name]

    def _has_check(self, node: ast.stmt, helpers: Any) -> bool:
        return any(is_check(n) for n in ast.walk(node)) or any(
            isinstance(n, ast.Call)
            and isinstance(n.func, ast.Name)
            and n.func.id in helpers
            and any(is_check(m) for m in ast.walk(helpers[n.func.id]))
            for n in ast.walk(node)
        )

    def _called(self, name: str, function: ast.AST) -> bool:
        return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(function))

    def _namespace(self, module: str, text: str) -> tuple[dict[str, Any], str]:
        with quiet():
            try:
                return dict(vars(importlib.import_module(module))), "module imported"
            except BaseException as bad:
                if isinstance(bad, KeyboardInterrupt):
                    raise
            scope: dict[str, Any] = {"__name__": module, "__package__": module.rpartition(".")[0]}
            run(ast.parse(text).body, scope, f"<{module}>")
            return scope, "module does not import here; its statements run one by one"

    def outcome(self, arguments: dict[str, Any], keywords: frozenset[str]) -> tuple[str, Any, str]:
        """``passed``; ``check`` with line, class and text; or ``other`` with what went wrong beside the checks."""
        plain = [v for n, v in arguments.items() if n not in keywords]
        named = {n: v for n, v in arguments.items() if n in keywords}
        try:
            with quiet():
                self.function(*plain, **named)
        except Exception as error:  # noqa: BLE001 - everything a function may raise is an outcome
            frames = list(traceback.extract_tb(error.__traceback__))
            own = [f for f in frames if f.filename == self.file]
            beyond = frames[frames.index(own[-1]) + 1 :] if own else frames
            inside = all("torch/__init__" in f.filename for f in beyond)
            if own and own[-1].lineno in self.lines and inside:
                return "check", (self.starts[own[-1].lineno], type(error)), str(error)
            return "other", type(error).__name__, str(error)[:100]
        return "passed", None, ""


@contextlib.contextmanager
def quiet() -> Any:
    """Nothing printed, no warnings."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
