"""docs/drafting.md does what it says: its files are written, its commands run, its output appears."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/drafting.md"
BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_from_top_to_bottom(tmp_path: Path):
    environment = {k: v for k, v in os.environ.items() if k not in ("TENSORPACT", "PYTEST_ADDOPTS")}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"}
    said, compared = "", 0
    for kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            assert name is not None, f"a block does not name its file: {text}"
            (tmp_path / name[1]).write_text(text, encoding="utf-8")
        elif kind == "sh":
            done = subprocess.run(
                text, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            said = done.stdout
        else:
            lines = [line.rstrip() for line in said.splitlines()]
            assert [line for line in text.splitlines() if line not in lines] == [], said
            compared += 1
    assert compared == 3
