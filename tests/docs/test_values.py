"""docs/values.md does what it says: its blocks run one after the other, and the first one prints what is shown."""

import contextlib
import io
import re
import types
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/values.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_blocks_run_and_say_what_is_shown(monkeypatch: pytest.MonkeyPatch):
    page = types.ModuleType("page_of_values")
    monkeypatch.setitem(__import__("sys").modules, page.__name__, page)
    said: list[str] = []
    for kind, text in BLOCKS:
        if kind == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(text, "docs/values.md", "exec"), page.__dict__)
            said.append(out.getvalue())
    assert said[0] == BLOCKS[1][1]
    assert said[1].startswith("ValueReport(sync=0, launched=0, skipped={}, dropped=0, pending=0, in_kernel=0)")
    assert len(said) == 4


def test_every_check_has_a_line():
    from tensorpact._values import clauses

    checks = [n for n, f in vars(clauses).items() if getattr(f, "__annotations__", {}).get("return") is clauses.Check]
    assert len(checks) == 12
    assert [c for c in checks if f"`{c}(" not in PAGE] == []
