"""The kernel of one's own that docs/values.md shows, as a module with a file: Triton reads the source of a kernel."""

import contextlib
import importlib.util
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/values.md"


def load(folder):
    """The first block of the page, whose names the kernel uses, and the block of the kernel behind it."""
    text = PAGE.read_text(encoding="utf-8")
    first = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (kernel,) = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    path = folder / "page_of_values_recipe.py"
    path.write_text(f"{first[1]}\n{kernel}", encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    with contextlib.redirect_stdout(io.StringIO()):
        spec.loader.exec_module(module)
    return module
