"""Where a function stands: its module read with libcst, never imported."""

import ast
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst


class DraftError(Exception):
    """There is nothing to draft from: no such file, no such function, or text that does not parse."""


@dataclass(frozen=True, slots=True)
class Source:
    """One function and the module around it.

    Attributes:
        module: Importable name of the module, as far as the folders tell.
        name: Name of the function, with its class in front where it is a method.
        function: The function, as syntax that means something.
        written: The same function with every comment and blank, for its signature.
        functions: Functions of the module, helpers among them.
        constants: What simple assignments of the module bind, by name.
        imports: What an import of the module binds, as a statement of its own.
        lines: The text, line by line.
    """

    module: str
    name: str
    function: ast.FunctionDef | ast.AsyncFunctionDef
    written: cst.FunctionDef
    functions: Mapping[str, ast.FunctionDef]
    constants: Mapping[str, ast.expr]
    imports: Mapping[str, str]
    lines: tuple[str, ...]

    @property
    def bare_name(self) -> str:
        """Name of the function alone."""
        return self.name.rpartition(".")[2]


def locate(target: str) -> Source:
    """Find ``path.py:function``, ``module:function`` or either with ``Class.method``.

    Raises:
        DraftError: There is no such function.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise DraftError(f"{target!r} names no function: FILE.py:FUNCTION or MODULE:FUNCTION is wanted")
    path = Path(place) if place.endswith(".py") else _module_file(place)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as bad:
        raise DraftError(f"{path}: {bad.strerror}") from bad
    return read(text, name, _module_name(path) if place.endswith(".py") else place, str(path))


def _module_file(name: str) -> Path:
    # The parents are looked up by hand: `find_spec` of a submodule would import them.
    head, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(head)
    except (ImportError, ValueError) as bad:
        raise DraftError(f"{name}: {bad}") from bad
    if spec is None:
        raise DraftError(f"there is no module {head!r}")
    for folder in spec.submodule_search_locations or ():
        inner = Path(folder, *rest)
        for file in (inner.with_suffix(".py"), inner / "__init__.py"):
            if file.is_file():
                return file
    if rest or not spec.origin or not spec.origin.endswith(".py"):
        raise DraftError(f"{name} is no module with Python source")
    return Path(spec.origin)


def _module_name(path: Path) -> str:
    path = path.resolve()
    for name, module in list(sys.modules.items()):
        if name != "__main__" and (getattr(module, "__file__", None) or "") == str(path):
            return name
    parts = [] if path.stem == "__init__" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if len(parts) == 1:
        # Namespace packages have no file to tell them: the longest entry of the path that holds the file does.
        entries = [Path(p).resolve() for p in sys.path if p]
        roots = [r for r in entries if r != path.parent and path.is_relative_to(r)]
        inside = path.relative_to(max(roots, key=lambda r: len(r.parts))).with_suffix("") if roots else path
        if roots and all(p.isidentifier() for p in inside.parts):
            return ".".join(inside.parts)
    return ".".join(parts)


def read(text: str, name: str, module: str, label: str) -> Source:
    """Read a function out of the text of its module.

    Args:
        text: The module.
        name: Function, or ``Class.method``.
        module: Name of the module.
        label: What to call it in messages.

    Raises:
        DraftError: The text does not parse, or has no such function.
    """
    try:
        tree, written = ast.parse(text), cst.parse_module(text)
    except (SyntaxError, cst.ParserSyntaxError) as bad:
        raise DraftError(f"{label} does not parse: {bad}") from bad
    *classes, last = name.split(".")
    functions = _in_ast(tree.body, classes, last)
    twins = _in_cst(written.body, classes, last)
    if not functions or len(functions) != len(twins):
        known = sorted(n.name for n in tree.body if isinstance(n, ast.FunctionDef))
        raise DraftError(f"{label} has no function {name!r}; it has {', '.join(known) or 'none'}")
    helpers = {n.name: n for n in _flat(tree.body) if isinstance(n, ast.FunctionDef)}
    constants: dict[str, ast.expr] = {}
    imports: dict[str, str] = {}
    for node in _flat(tree.body):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            constants[node.target.id] = node.value
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imports |= bound_by(node, module)
    lines = tuple(text.splitlines())
    return Source(module, name, functions[-1], twins[-1], helpers, constants, imports, lines)


def bound_by(node: ast.Import | ast.ImportFrom, module: str) -> dict[str, str]:
    """Name to statement of what an import binds; relative ones made absolute."""
    if isinstance(node, ast.Import):
        return {
            (a.asname or a.name.split(".")[0]): f"import {a.name}" + (f" as {a.asname}" if a.asname else "")
            for a in node.names
        }
    home = node.module or ""
    if node.level:
        above = module.split(".")[: -node.level]
        home = ".".join([*above, *([home] if home else [])])
    return {
        (a.asname or a.name): f"from {home} import {a.name}" + (f" as {a.asname}" if a.asname else "")
        for a in node.names
    }


def _flat(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements of a module, those under ``if`` and ``try`` included."""
    found: list[ast.stmt] = []
    for node in body:
        found.append(node)
        if isinstance(node, (ast.If, ast.Try)):
            found += _flat([*node.body, *node.orelse])
    return found


def _in_ast(body: list[ast.stmt], classes: list[str], name: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    if classes:
        inside = [n.body for n in body if isinstance(n, ast.ClassDef) and n.name == classes[0]]
        return [f for b in inside for f in _in_ast(b, classes[1:], name)]
    return [n for n in _flat(body) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == name]


class _Finder(cst.CSTVisitor):
    """Collects functions of one name in the body of one class or module, not those inside functions."""

    def __init__(self, classes: list[str], name: str) -> None:
        self.classes, self.name = classes, name
        self.inside: list[str] = []
        self.found: list[cst.FunctionDef] = []

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:  # noqa: N802 - libcst calls it so
        self.inside.append(node.name.value)
        return self.inside == self.classes[: len(self.inside)]

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:  # noqa: N802 - libcst calls it so
        self.inside.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:  # noqa: N802 - libcst calls it so
        if self.inside == self.classes and node.name.value == self.name:
            self.found.append(node)
        return False


def _in_cst(body: Sequence[cst.CSTNode], classes: list[str], name: str) -> list[cst.FunctionDef]:
    finder = _Finder(classes, name)
    for node in body:
        node.visit(finder)
    return finder.found
