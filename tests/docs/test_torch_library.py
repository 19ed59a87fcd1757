"""docs/torch-library.md does what it says: its blocks run, one behind the other, and print what stands under them."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs/torch-library.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_from_top_to_bottom():
    scope: dict[str, Any] = {"__name__": "page"}
    said, compared = "", 0
    try:
        for kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            if kind == "python":
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile(text, str(PAGE), "exec"), scope)
                said = out.getvalue()
            else:
                assert said == text
                compared += 1
    finally:
        for value in scope.values():
            if hasattr(value, "unregister"):
                value.unregister()
    assert compared == 7
