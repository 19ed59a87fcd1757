"""Where the clause that raises a documented error stands in its source file."""

import ast
import functools
import importlib
import linecache
import sys
from dataclasses import dataclass
from pathlib import Path

from tensorpact._errors import DocumentedError

_AROUND = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Lines of a source file.

    Attributes:
        file: Path from the folder that holds the package, with forward slashes.
        line: First line of the clause, or of the definition where no clause names the error.
        code: These lines with some around them.
        start: First line of ``code``.
        end: Last line of ``code``.
    """

    file: str
    line: int
    code: str
    start: int
    end: int


def place_of(error: DocumentedError) -> Place | None:
    """Where an error is raised, or else defined; None where there is no source.

    Args:
        error: The documented error.
    """
    package = error.module.rpartition(".")[0]
    modules = [error.module, *(m for m in sys.modules if package and m.rpartition(".")[0] == package)]
    calls = [(name, call) for name in modules for call in _calls(name)]
    clause = next((found for found in calls if _raises(*found, error)), None)
    # Inside a definition, the slug is one of its arguments.
    made = next(
        (f for f in calls if any(isinstance(a, ast.Constant) and a.value == error.slug for a in f[1].args)), None
    )
    found = clause or made
    return None if found is None else _place(*found)


def _calls(name: str) -> list[ast.Call]:
    try:
        file = importlib.import_module(name).__file__
    except ImportError:
        return []
    return list(_parsed(file)) if file else []


@functools.lru_cache(maxsize=64)
def _parsed(file: str) -> tuple[ast.Call, ...]:
    calls = [n for n in ast.walk(ast.parse("".join(linecache.getlines(file)))) if isinstance(n, ast.Call)]
    return tuple(sorted(calls, key=lambda n: (n.lineno, n.col_offset)))


def _raises(name: str, call: ast.Call, error: DocumentedError) -> bool:
    names = [k.value.id for k in call.keywords if k.arg == "error" and isinstance(k.value, ast.Name)]
    return any(vars(sys.modules[name]).get(n) is error for n in names)


def _place(name: str, call: ast.Call) -> Place:
    file = Path(sys.modules[name].__file__ or "")
    lines = linecache.getlines(str(file))
    first, last = call.lineno, call.end_lineno or call.lineno
    start, end = max(first - _AROUND, 1), min(last + _AROUND, len(lines))
    shown = file.relative_to(file.parents[name.count(".")]).as_posix()
    return Place(shown, first, "".join(lines[start - 1 : end]), start, end)
