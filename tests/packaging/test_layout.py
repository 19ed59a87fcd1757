"""Where things live and who may import whom: engine, then contracts, then kernels."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "src/tensorpact"
CONTRACTS = ROOT / "contracts/tensorpact_contracts"
KERNELS = ROOT / "kernels/tensorpact_kernels"
DYNAMIC = {"__import__", "import_module", "find_spec"}


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, top-level name) of every import, inside functions and by `import_module("…")` too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, (node.module or "").split(".")[0]
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            name = node.args[0]
            if called in DYNAMIC and isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value.split(".")[0]


@pytest.mark.parametrize(
    ("folder", "banned"),
    [
        (ENGINE, {"tensorpact_contracts", "tensorpact_kernels"}),
        (CONTRACTS, {"tensorpact_kernels"}),
    ],
    ids=["engine", "contracts"],
)
def test_imports_go_one_way(folder: Path, banned: set[str]):
    files = sorted(folder.rglob("*.py"))
    assert files, f"no modules under {folder.name}"
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files
        for line, name in imported(path.read_text(encoding="utf-8"))
        if name in banned
    ]
    assert wrong == []


def test_kernels_need_nothing_private_of_the_engine():
    """What a kernel of the project uses, a kernel of somebody else can use."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(KERNELS.rglob("*.py"))
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.match(r"\s*(from|import) tensorpact(\.\w+)*(\._| import _)", text)
    ]
    assert wrong == []


def test_the_import_walk_sees_every_form():
    source = (
        "import a.x, b\nfrom c.y import z\nfrom . import w\n"
        "def f():\n    import d\n    importlib.import_module('e.v')\n    __import__('f')\n"
    )
    assert {name for _, name in imported(source)} == {"a", "b", "c", "d", "e", "f"}


@pytest.mark.parametrize("name", ["src", "contracts", "kernels"])
def test_a_source_root_is_not_a_package(name: str):
    """A top-level package called `kernels` or `contracts` would shadow other projects."""
    folders = {path.name for path in (ROOT / name).iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {{"src": "tensorpact"}.get(name, f"tensorpact_{name}")}
    assert list((ROOT / name).glob("*.py")) == []


@pytest.mark.parametrize("package", [ENGINE, CONTRACTS, KERNELS], ids=lambda path: path.name)
def test_a_package_is_typed_and_described(package: Path):
    for name in ("__init__.py", "py.typed", "README.md"):
        assert (package / name).is_file(), name
