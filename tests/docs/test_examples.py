"""The worked example: its page's commands run and print what it says, and its counts are those of the files."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import interpreted
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = EXAMPLES / "README.md"
BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENTRIES = ("gather.py", "layers.py", "varlen.py", "cache.py")


@pytest.mark.skipif(not interpreted.loops_work(), reason="this Triton's interpreter cannot loop with this NumPy")
def test_the_commands_of_the_page():
    pytest.importorskip("triton")
    environment = {k: v for k, v in os.environ.items() if k not in ("TENSORPACT", "PYTEST_ADDOPTS")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment |= {"PYTEST_ADDOPTS": "-p no:cacheprovider -n 0", "OMP_NUM_THREADS": "1"}
    said, compared = "", 0
    for kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "sh":
            done = subprocess.run(
                text, shell=True, cwd=EXAMPLES, env=environment, capture_output=True, text=True, check=False
            )
            said = done.stdout
            assert done.returncode == 0, said + done.stderr
        else:
            lines = [line.rstrip() for line in said.splitlines()]
            assert [t for t in text.splitlines() if not any(line.startswith(t) for line in lines)] == [], said
            compared += 1
    assert compared == 2


def _lines(files: Iterator[Path]) -> int:
    """Lines of code: no imports, docstrings, comments and blanks."""
    count = 0
    for file in files:
        text = file.read_text(encoding="utf-8")
        left = set(range(1, len(text.splitlines()) + 1))
        for node in ast.walk(ast.parse(text)):
            documented = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if documented or isinstance(node, (ast.Import, ast.ImportFrom)):
                left -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        count += sum(bool(line.strip()) for i, line in enumerate(text.splitlines(), 1) if i in left)
    return count


def _raises(package: str) -> int:
    texts = (f.read_text(encoding="utf-8") for f in (EXAMPLES / package).glob("*.py"))
    return sum(isinstance(node, ast.Raise) for text in texts for node in ast.walk(ast.parse(text)))


def test_the_counts_of_the_page():
    table = re.search(r"<!-- counts -->\n(.*?)<!-- end -->", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert table is not None
    said = {
        row[0]: (int(row[1]), int(row[2])) for row in re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \|$", table[1], re.M)
    }
    contracts = EXAMPLES / "contracted/contracts.py"
    before, after = (_lines(EXAMPLES / p / name for name in ENTRIES) for p in ("handchecked", "contracted"))
    holes = (EXAMPLES / "tests/test_holes.py").read_text(encoding="utf-8")
    assert said == {
        "`if … raise` in entry points": (_raises("handchecked"), _raises("contracted")),
        "lines of the modules of entry points": (before, after),
        "lines of contracts": (0, _lines(iter([contracts]))),
        "documented errors": (0, contracts.read_text(encoding="utf-8").count("= DocumentedError(")),
        "silent faults of the table above": (len(re.findall(r"^def \w+\(p: Any\)", holes, re.M)), 0),
    }
