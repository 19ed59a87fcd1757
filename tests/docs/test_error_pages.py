"""What the reader of an error page needs first: something to write."""

from typing import Any

import pytest

from tensorpact._catalogue import load
from tensorpact._catalogue._export import items


@pytest.mark.parametrize("record", load(), ids=lambda r: f"{r.error.family}-{r.error.slug}")
def test_a_fix_says_what_to_write(record: Any):
    fixes = items(record.page.sections["How to fix"])
    assert any("`" in fix for fix in fixes), f"no fix of {record.error.slug} names an argument or shows a line"
