"""The decorator keeps a signature for pyright and mypy: `sample.py` has exactly the errors that it expects."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SAMPLE = HERE / "sample.py"
EXPECT = re.compile(r"# expect: (\S+) (\S+)$")
MYPY_LINE = re.compile(r"^sample\.py:(\d+): error: .*\[([\w-]+)\]$")

Found = set[tuple[int, str]]


def expected(column: int) -> Found:
    """Return the (line, rule) pairs of the marks: column 1 is pyright's, 2 is mypy's."""
    lines = enumerate(SAMPLE.read_text(encoding="utf-8").splitlines(), start=1)
    marks = [(number, mark) for number, line in lines if (mark := EXPECT.search(line))]
    return {(number, rule) for number, mark in marks for rule in mark[column].split(",")}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=HERE, env=environment, capture_output=True, text=True, check=False
    )


def test_pyright_strict():
    done = run("pyright", "--outputjson", "--project", "pyrightconfig.json", "--pythonpath", sys.executable)
    assert done.returncode == 1, done.stdout + done.stderr
    found: Found = {
        (item["range"]["start"]["line"] + 1, item.get("rule", item["message"]))
        for item in json.loads(done.stdout)["generalDiagnostics"]
        if item["severity"] == "error"
    }
    assert found == expected(1)


def test_mypy_strict(tmp_path: Path):
    done = run("mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", "--no-error-summary", SAMPLE.name)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    found: Found = set()
    for line in lines:
        match = MYPY_LINE.match(line)
        assert match, f"an error outside the sample: {line}"
        found.add((int(match[1]), match[2]))
    assert found == expected(2)


def test_the_sample_has_errors_to_find():
    assert len(expected(1)) >= 10
