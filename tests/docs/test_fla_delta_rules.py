"""docs/overlays/fla-delta-rules.md: what is raised always runs, what fla-core computes runs where it is installed."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import interpreted
import pytest

PAGE = Path(__file__).parents[2] / "docs/overlays/fla-delta-rules.md"
SCRIPT = re.compile(
    r"^```python\n# (?P<name>\w+)\.py\n(?P<code>.*?)^```\n\n```sh\n(?P<run>.*?)^```\n\n```text\n(?P<says>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SCRIPTS = {m["name"]: m for m in SCRIPT.finditer(PAGE.read_text(encoding="utf-8"))}


def said(name: str, folder: Path) -> list[str]:
    (folder / f"{name}.py").write_text(SCRIPTS[name]["code"], encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if k != "TENSORPACT"}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"}
    done = subprocess.run(
        SCRIPTS[name]["run"], shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_page_has_both_scripts():
    assert set(SCRIPTS) == {"bare", "checked"}


def test_what_is_raised(tmp_path: Path):
    assert said("checked", tmp_path) == SCRIPTS["checked"]["says"].splitlines()


@pytest.mark.skipif(importlib.util.find_spec("fla") is None, reason="fla-core is not installed")
@pytest.mark.skipif(not interpreted.loops_work(), reason="this Triton's interpreter cannot loop with this NumPy")
def test_what_the_bare_function_computes(tmp_path: Path):
    assert said("bare", tmp_path) == SCRIPTS["bare"]["says"].splitlines()
