"""The Markdown of the project: the package READMEs have their form, links lead somewhere, Python blocks parse."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [
    ROOT / "src/tensorpact",
    ROOT / "contracts/tensorpact_contracts",
    ROOT / "kernels/tensorpact_kernels",
]
FILES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(f for package in PACKAGES for f in package.rglob("*.md"))]
)
MADE = ("entry-points/", "errors/", "api/")
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)

each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_package_readme_has_three_paragraphs(package: Path):
    title, *paragraphs = (package / "README.md").read_text(encoding="utf-8").strip().split("\n\n")
    assert title == f"# {package.name}"
    assert [re.split(r"\W+", paragraph)[0] for paragraph in paragraphs] == ["Here", "What", "To"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_the_modules_that_a_package_readme_names_exist(package: Path):
    text = (package / "README.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`([\w/]+(?:\.py|/))`", text)) - {"docs/", "tests/packaging/"}
    known = {f.name for f in package.rglob("*.py")} | {f"{f.name}/" for f in package.iterdir() if f.is_dir()}
    known |= {f"tests/contracts/{f.name}" for f in (ROOT / "tests/contracts").iterdir()}
    assert names <= known


@each_file
def test_relative_links_resolve(file: Path):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", file.read_text(encoding="utf-8")))
    targets = [target for target in re.findall(r"\]\(([^)\s]+)", text) if not re.match(r"[a-z]+:|#", target)]
    if file.parent == ROOT / "docs":
        # Pages that the site makes beside this one: `test_site_source.py` follows the links to them.
        targets = [target for target in targets if not target.startswith(MADE)]
    elif file.parent.parent == ROOT / "docs":
        targets = [target for target in targets if not target.removeprefix("../").startswith(MADE)]
    assert [target for target in targets if not (file.parent / target.partition("#")[0]).exists()] == []


@each_file
def test_python_blocks_parse(file: Path):
    text = file.read_text(encoding="utf-8")
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)):
        compile(block, f"{file.name}, block {number}", "exec")
