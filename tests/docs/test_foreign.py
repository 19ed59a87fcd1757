"""docs/foreign.md does what it says: its files are written, its commands run, its output appears."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensorpact._catalogue import load

PAGE = Path(__file__).parents[2] / "docs/foreign.md"
BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def test_the_page_from_top_to_bottom(blocks: list[tuple[str, str]], tmp_path: Path):
    environment = {k: v for k, v in os.environ.items() if k != "TENSORPACT"}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"}
    said, compared = "", 0
    for kind, text in blocks:
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
            assert [line.rstrip() for line in said.splitlines()] == text.splitlines()
            compared += 1
    assert compared == 2


def test_a_page_names_every_error_of_the_overlays():
    text = "".join(page.read_text(encoding="utf-8") for page in sorted((PAGE.parent / "overlays").glob("*.md")))
    slugs = {r.error.slug for r in load(["tensorpact_contracts.overlays"]) if ".overlays." in r.error.module}
    assert slugs
    assert {slug for slug in slugs if f"`{slug}`" not in text} == set()
