"""The pages of documented errors: complete, well formed, no two alike, and their examples do what they say."""

import collections
import importlib
import itertools
import pkgutil
import re

import pytest

import tensorpact_contracts
from tensorpact import ContractDefinitionError, ContractViolation, DocumentedError
from tensorpact._catalogue import HEADINGS, Page, page_of, pages_of, parse_page, record_id
from tensorpact_contracts import overlays

MODULES = [
    info.name
    for package in (tensorpact_contracts, overlays)
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    if not info.name.rpartition(".")[2].startswith("_") and not info.ispkg
]
ERRORS = [
    error
    for module in MODULES
    for error in vars(importlib.import_module(module)).values()
    if isinstance(error, DocumentedError) and error.module == module
]
PUBLIC_IDS = {
    ("causal_kv_cache", "cache-head-start-required"): "dd8b8f13ad1ba8d6",
    ("flash_attention", "k-cache-can-only-be-none-when-only-qv-true"): "8fbdc71861afba69",
    ("packed_attention", "key-value-count-mismatch"): "f7daa8b7a9fcd2c8",
    ("replayssm", "k-cache-must-have-shape-slots-h-l-k"): "3d1aa357bd5e04ed",
    ("sparse_prefill", "head-dim-mismatch"): "32a9bdda3b4426d7",
}
#: Largest share of common four-word sequences between the prose of two pages, names and numbers left out. Pages written
#: each for itself share one in a hundred; one with its nouns swapped keeps about half (see the test of the measure).
ALIKE = 0.1

each = pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.slug)


def page(error: DocumentedError) -> Page:
    found = page_of(error)
    assert found is not None, f"{error.slug} has no page"
    return found


@pytest.mark.parametrize("module", MODULES)
def test_every_error_has_a_page_and_every_page_an_error(module: str):
    assert list(pages_of(module)) == sorted(error.slug for error in ERRORS if error.module == module)


@each
def test_a_page_has_the_fixed_form(error: DocumentedError):
    found = page(error)
    assert tuple(found.sections) == HEADINGS
    assert found.tags
    assert len(set(found.tags)) == len(found.tags)
    assert all(len(line) <= 120 for line in found.body.splitlines())
    # What the export makes lists of is written as lists: a paragraph of conditions, then situations.
    conditions, situations = found.sections["When it happens"].split("\n\n", 1)
    assert not conditions.startswith("-")
    assert situations.startswith("- ")
    for heading in HEADINGS[-2:]:
        assert re.fullmatch(r"(- .*\n(  .*\n)*)+", found.sections[heading]), heading


@each
def test_related_slugs_exist(error: DocumentedError):
    slugs = {other.slug for other in ERRORS if other.module == error.module}
    related = page(error).related
    assert set(related) <= slugs - {error.slug}
    assert len(set(related)) == len(related)
    assert related


@each
def test_links_resolve(error: DocumentedError):
    slugs = {f"{other.slug}.md" for other in ERRORS if other.module == error.module}
    targets = re.findall(r"(?<!`)\[[^\]\n]+\]\(([^)#\s]+)", prose(page(error)))
    assert {target for target in targets if "://" not in target} <= slugs


@each
def test_the_public_id_stands_only_on_public_pages(error: DocumentedError):
    public = PUBLIC_IDS.get((error.family, error.slug))
    assert page(error).record_id == public
    assert record_id(error) == (public or error.record_id())


def test_ids_are_unique():
    ids = [record_id(error) for error in ERRORS]
    assert len(set(ids)) == len(ids)


@each
def test_the_failing_example_raises_this_error(error: DocumentedError, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(error.documented) as caught:
        run(page(error).example("Example that fails"), error.slug)
    assert isinstance(caught.value, ContractViolation)
    assert caught.value.error is error
    assert re.fullmatch(error.pattern, str(caught.value))


@each
def test_the_working_example_works(error: DocumentedError, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    run(page(error).example("Example that works"), error.slug)


@each
def test_examples_stand_alone(error: DocumentedError):
    for heading in HEADINGS[2:4]:
        code = page(error).example(heading)
        assert code.startswith("import torch\n"), heading
        assert ("tensorpact_contracts.overlays" if error.module.startswith(overlays.__name__) else "_kernels") in code
        # One block and nothing else: the prose is in the other sections.
        assert page(error).sections[heading].strip() == f"```python\n{code}```", heading


def run(code: str, slug: str) -> None:
    assert code, f"{slug} has no example"
    exec(compile(code, f"<example of {slug}>", "exec"), {"__name__": "__example__"})


def prose(found: Page) -> str:
    return re.sub(r"^```.*?^```$", "", found.body, flags=re.MULTILINE | re.DOTALL)


def shingles(text: str) -> set[tuple[str, ...]]:
    """Sequences of four words, with code, numbers and identifiers replaced by a placeholder."""
    text = re.sub(r"`[^`]+`", " _ ", re.sub(r"^## .*$", "", text, flags=re.MULTILINE))
    text = re.sub(r"\b\w*(?:[\d_]|[a-z][A-Z])\w*\b", " _ ", text)
    words = re.findall(r"[a-z]+|_", text.lower())
    return set(itertools.pairwise(itertools.pairwise(itertools.pairwise(words))))


def likeness(a: set[tuple[str, ...]], b: set[tuple[str, ...]]) -> float:
    return len(a & b) / max(1, len(a | b))


def test_no_two_pages_are_alike():
    said = {f"{error.family}/{error.slug}": shingles(prose(page(error))) for error in ERRORS}
    where = collections.defaultdict(list)
    for name, found in said.items():
        for shingle in found:
            where[shingle].append(name)
    # Most pairs share nothing, and are not looked at.
    pairs = collections.Counter(pair for names in where.values() for pair in itertools.combinations(names, 2))
    close = [(a, b) for (a, b), shared in pairs.items() if shared > ALIKE * max(len(said[a]), len(said[b]))]
    scored = {pair: likeness(said[pair[0]], said[pair[1]]) for pair in close}
    assert pairs
    assert {pair: round(score, 3) for pair, score in scored.items() if score > ALIKE} == {}


def test_the_measure_sees_swapped_names():
    text = prose(page(next(error for error in ERRORS if error.slug == "unified-kv-dtype-mismatch")))
    swapped = text
    for noun, other in (
        ("pool", "cache"),
        ("prefill", "window"),
        ("queries", "keys"),
        ("scales", "factors"),
        ("8", "4"),
    ):
        assert noun in swapped
        swapped = swapped.replace(noun, other)
    assert likeness(shingles(text), shingles(swapped)) > 4 * ALIKE


GOOD = "---\nslug: a-b\ntags: [x, y]\nseverity: error\nbackground_tag: t\nrelated: []\n---\n\n" + "".join(
    f"## {heading}\n\n- text\n\n" for heading in HEADINGS
)


def test_a_page_is_read():
    found = parse_page(GOOD, "a.md")
    assert (found.slug, found.tags, found.related, found.record_id) == ("a-b", ("x", "y"), (), None)
    assert found.sections["How to fix"] == "- text\n"


def test_a_heading_inside_a_code_block_is_code():
    found = parse_page(GOOD.replace("- text", "```python\n## no heading\n```", 1), "a.md")
    assert found.example("What it means") == "## no heading\n"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("---\nslug", "slug", "no front matter"),
        ("severity: error", "severity: fatal", "severity is one of error, warning"),
        ("slug: a-b", "slug: A B", "not lower-case words"),
        ("slug: a-b\n", "", "lacks slug"),
        ("related: []", "related: none", "related is a list"),
        ("related: []", "related: []\ncolour: red", "'colour: red'"),
        ("related: []", "related: []\nslug: a-b", "at most once"),
        ("related: []", "related: []\nrecord_id: 12", "16 hex digits"),
        ("## How to fix", "## Fixes", "the headings are"),
    ],
)
def test_a_malformed_page_is_refused(old: str, new: str, says: str):
    with pytest.raises(ContractDefinitionError, match=re.escape(says)) as caught:
        parse_page(GOOD.replace(old, new, 1), "a.md")
    assert str(caught.value).startswith("a.md: ")
