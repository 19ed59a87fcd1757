"""The source of the site fits the contracts: pages, pictures, records, links, and the navigation."""

import itertools
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from tensorpact._catalogue import describe, load, picture
from tensorpact._catalogue._markdown import cell, code
from tensorpact._catalogue._site import MANIFEST, page_name, site
from tensorpact._catalogue._targets import entries
from tensorpact._errors import ContractDefinitionError
from tensorpact.cli import app

ROOT = Path(__file__).parents[2]
FORMS: list[dict[str, Any]] = [describe(entry, target) for target, entry in entries()]
RECORDS = load()
#: One family, where it does not matter which.
SMALL = ["tensorpact_kernels.sparse_prefill"]
SVG = "{http://www.w3.org/2000/svg}"
LINK = re.compile(r"\]\(([^)\s]+)\)")

each_form = pytest.mark.parametrize("form", FORMS, ids=page_name)
each_record = pytest.mark.parametrize("record", RECORDS, ids=lambda r: f"{r.error.family}-{r.error.slug}")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    site(directory, ROOT / "docs")
    return directory


def sections(text: str) -> dict[str, str]:
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(section: str) -> list[list[str]]:
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@each_form
def test_a_page_of_an_entry_point_says_what_its_contract_says(form: dict[str, Any], source: Path):
    text = (source / f"entry-points/{page_name(form)}.md").read_text(encoding="utf-8")
    said = sections(text)
    assert text.startswith(f"# {form['target'].rpartition(':')[2]}\n\n{form['summary']}")
    assert [r[0] for r in rows(said["Dimensions"])] == [f"`{d['name']}`" for d in form["dims"]]
    parameters = [p for q in form["parameters"] for p in (q, *q["items"])]
    shown = rows(said["Parameters"])
    assert [r[0] for r in shown] == [f"`{p['name']}`" for p in parameters]
    assert [bool(r[6]) for r in shown] == [p["mutated"] for p in parameters]
    assert all("None" in r[5] for r, p in zip(shown, parameters, strict=True) if p["optional"] and p["type"] != "None")
    checks = rows(said["Checks, in firing order"])
    assert [r[0] for r in checks] == [str(c["place"] or "") for c in form["clauses"]]
    assert [LINK.search(r[2])[1] if c["error"] else None for r, c in zip(checks, form["clauses"], strict=True)] == [  # type: ignore[index]
        f"../errors/{form['family']}/{c['error']}.md" if c["error"] else None for c in form["clauses"]
    ]
    assert [(r[1], r[2]) for r in rows(said["Errors"])] == [(e["class"], cell(e["message"])) for e in form["errors"]]
    assert [r[0] for r in rows(said["What is checked when"])] == [m["mode"] for m in form["modes"]]
    assert all(f"- {item['text']}" in said["What no check of this contract can see"] for item in form["unseen"])


@each_form
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_stacked_picture_is_whole(form: dict[str, Any], scheme: str, source: Path):
    root = ET.parse(source / f"entry-points/{page_name(form)}-{scheme}.svg").getroot()
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    texts = list(root.iter(f"{SVG}text"))
    assert {p["name"] for p in form["parameters"] if p["tensor"]} <= {t.text for t in texts}
    assert all(0 <= float(t.attrib["x"]) <= width and 0 <= float(t.attrib["y"]) <= height for t in texts)
    boxes = [
        (*map(float, (r.attrib["x"], r.attrib["y"], r.attrib["width"], r.attrib["height"])),)
        for r in root.iter(f"{SVG}rect")
        if r.attrib["class"] not in ("page", "none")
    ]
    for (x, y, w, h), (a, b, c, d) in itertools.combinations(boxes, 2):
        assert x + w <= a + 0.2 or a + c <= x + 0.2 or y + h <= b + 0.2 or b + d <= y + 0.2


@each_form
def test_the_relations_of_a_stacked_picture_fit_a_phone(form: dict[str, Any], source: Path):
    root = ET.parse(source / f"entry-points/{page_name(form)}-light.svg").getroot()
    texts = [t for t in root.iter(f"{SVG}text") if t.text]
    labels: list[str] = []
    for r in root.iter(f"{SVG}rect"):
        says = r.find(f"{SVG}title")
        # Cells have no round corners, dims quite round ones.
        if r.attrib.get("rx") != "4" or says is None:
            continue
        x, y, width, height = (float(r.attrib[k]) for k in ("x", "y", "width", "height"))
        inside = [
            t
            for t in texts
            if y < float(t.attrib["y"]) < y + height
            and float(t.attrib["x"]) >= x + 8
            and t.attrib["class"] == "mono ink"
        ]
        # 390 pixels less the margins of the page and the frame.
        assert x + width <= 356
        assert all(float(t.attrib["x"]) + 7.3 * len(t.text or "") <= x + width for t in inside)
        assert re.sub(r"\s", "", "".join(t.text or "" for t in inside)) == re.sub(r"\s", "", says.text or "")
        labels.append(says.text or "")
    wide = ET.fromstring(picture(form)).iter(f"{SVG}rect")
    assert labels == [r.findtext(f"{SVG}title") for r in wide if r.attrib.get("rx") == "4"]


@each_record
def test_a_page_of_an_error_says_what_the_catalogue_says(record: Any, source: Path):
    error = record.error
    text = (source / f"errors/{error.family}/{error.slug}.md").read_text(encoding="utf-8")
    assert f"# {error.slug}\n" in text
    assert code(error.template) in text
    assert f"`{error.documented.__name__}`" in text
    assert record.page.body.strip() in text
    assert sum(line.startswith("- ") for line in text.partition("## What")[0].splitlines()) == len(record.uses)
    given = json.loads((source / f"api/errors/{record.id}.json").read_text(encoding="utf-8"))
    assert (given["record"]["slug"], given["record"]["errorMessage"]) == (error.slug, error.template)


def test_the_index_lists_every_record(source: Path):
    index = json.loads((source / "api/errors/index.json").read_text(encoding="utf-8"))
    assert [row["id"] for row in index["errors"]] == [record.id for record in RECORDS]
    assert all(set(row) == {"id", "slug", "errorMessage", "errorClass", "entryPoint"} for row in index["errors"])
    listed = (source / "errors/index.md").read_text(encoding="utf-8")
    assert all(f"({r.error.family}/{r.error.slug}.md)" in listed for r in RECORDS)


def test_the_patterns_lead_to_pages(source: Path):
    told = json.loads((source / "errors/patterns.json").read_text(encoding="utf-8"))
    assert {row["page"] for row in told} == {f"errors/{r.error.family}/{r.error.slug}/" for r in RECORDS}
    assert all((source / f"{row['page'].rstrip('/')}.md").is_file() for row in told)


def anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


def test_links_lead_to_files_and_headings(source: Path):
    broken = []
    for page in source.rglob("*.md"):
        text = re.sub(r"^```.*?^```$|`[^`\n]+`(?!\])", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target in LINK.findall(text):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.replace("%20", " ").partition("#")
            file = (page.parent / name) if name else page
            heads = anchors(file.read_text(encoding="utf-8")) if file.is_file() and file.suffix == ".md" else {anchor}
            if not file.is_file() or (anchor and anchor not in heads):
                broken.append(f"{page.relative_to(source)}: {target}")
    assert broken == []


def test_the_navigation_names_every_guide_and_every_entry_point():
    listed = re.findall(r"[\w/.-]+\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    listed = [name for name in listed if "*" not in name]
    guides = {f.relative_to(ROOT / "docs").as_posix() for f in (ROOT / "docs").rglob("*.md")}
    made = {f"entry-points/{page_name(form)}.md" for form in FORMS} | {"entry-points/index.md", "errors/index.md"}
    assert sorted(listed) == sorted({*guides, *made}), "mkdocs.yml wants a line of its nav for each page of docs/"


def test_a_run_removes_what_the_last_one_wrote_and_nothing_else(tmp_path: Path):
    pages, out = tmp_path / "pages", tmp_path / "out"
    pages.mkdir()
    (pages / "old.md").write_text("# Old\n", encoding="utf-8")
    (pages / ".hidden.md").write_text("# Hidden\n", encoding="utf-8")
    site(out, pages, SMALL)
    (out / "mine.md").write_text("# Mine\n", encoding="utf-8")
    assert (out / "old.md").is_file()
    (pages / "old.md").unlink()
    site(out, pages, SMALL)
    assert not (out / "old.md").exists()
    assert not (out / ".hidden.md").exists()
    assert (out / "mine.md").is_file()
    assert "entry-points/index.md" in (out / MANIFEST).read_text(encoding="utf-8")


def test_a_page_that_would_be_overwritten_is_refused(tmp_path: Path):
    (tmp_path / "pages/errors").mkdir(parents=True)
    (tmp_path / "pages/errors/index.md").write_text("# Mine\n", encoding="utf-8")
    with pytest.raises(ContractDefinitionError, match="generated page of that name"):
        site(tmp_path / "out", tmp_path / "pages", SMALL)


def test_the_command(tmp_path: Path):
    (tmp_path / "pages").mkdir()
    done = CliRunner().invoke(
        app, ["catalog", "site", "--out", str(tmp_path / "out"), "--pages", str(tmp_path / "pages"), *SMALL]
    )
    assert (done.exit_code, done.output.split()[1:3]) == (0, ["files", "in"])
    assert (tmp_path / "out/errors/index.md").is_file()
    refused = CliRunner().invoke(
        app, ["catalog", "site", "--out", str(tmp_path / "pages/out"), "--pages", str(tmp_path / "pages")]
    )
    assert refused.exit_code == 2
    assert "must not hold one another" in refused.output
