"""Every Python block of README and docs runs, page by page from top to bottom, and says what stands below it.

A block of text right below one of Python is what it prints, or the end of the error that it raises; nothing else may
raise. `<!-- not run: REASON -->` above a block says why it does not run. A page that `test_<page>.py` runs in its own
way is left to it.
"""

import contextlib
import io
import linecache
import re
import sys
import traceback
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+) -->\n+)?^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<says>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
FENCED = re.compile(r"^```python$", re.MULTILINE)


def own_test(page: Path) -> Path:
    return Path(__file__).with_name(f"test_{page.stem.replace('-', '_')}.py")


PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*/*/README.md")))
    if FENCED.search(page.read_text(encoding="utf-8")) and not own_test(page).exists()
]


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def run(code: str, module: types.ModuleType, name: str) -> tuple[str, bool]:
    """What a block prints, the end of the traceback behind it, and whether there is one."""
    said = io.StringIO()
    # Rules are read from their source, which a file would have.
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    with contextlib.redirect_stdout(said):
        try:
            exec(compile(code, name, "exec"), module.__dict__)
        except Exception as error:  # noqa: BLE001 - a block may raise anything that its page says
            return said.getvalue() + "".join(traceback.format_exception_only(error)), True
    return said.getvalue(), False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page(page: Path, monkeypatch: pytest.MonkeyPatch):
    text = page.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == len(FENCED.findall(text)), "a block of Python is not closed"
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    for number, block in enumerate(blocks, 1):
        if block["reason"]:
            continue
        said, raises = run(block["code"], module, f"<{page.name}, block {number}>")
        if block["says"] is None:
            assert not raises, f"{page.name}, block {number} raises:\n{said}"
        else:
            rest = iter(lines_of(said))
            # In this order; a line may be told from its middle, where it starts with the module of a class.
            missing = [line for line in lines_of(block["says"]) if not any(line in told for told in rest)]
            assert not missing, f"{page.name}, block {number} says:\n{said}\nand lacks: {missing}"
