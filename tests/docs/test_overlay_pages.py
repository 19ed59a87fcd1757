"""The pages of the overlays: what their tables name is run on the page, and no function is left out."""

import re
from pathlib import Path

import pytest

from tensorpact_contracts.overlays import TABLE

PAGES = sorted((Path(__file__).parents[2] / "docs/overlays").glob("*.md"))
ROW = re.compile(r"^\| (R\d+) \|", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_report_of_a_table_is_run_on_the_page(page: Path):
    text = page.read_text(encoding="utf-8")
    rows = ROW.findall(text)
    assert rows
    code = "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert [name for name in rows if not re.search(rf'"{name}\b', code)] == []


def test_every_function_with_an_overlay_has_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [target for target in TABLE if f"`{target.partition(':')[2]}`" not in text] == []
