"""The built site: its links hold, an error is found by its message, and pages fit the window in light and dark."""

import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import browser
import pytest
from screenshots import IMAGES, PAGES, SCHEMES, SIZES, views

MESSAGE = "head_dim mismatch: unified_kv=32, kv=24"
FAMILY, SLUG, RECORD = "sparse_prefill", "head-dim-mismatch", "32a9bdda3b4426d7"

SITE = os.environ.get("TENSORPACT_SITE")
pytestmark = pytest.mark.skipif(
    SITE is None, reason="TENSORPACT_SITE names no built site; .ci/run builds one and runs these tests on it"
)
needs_chromium = pytest.mark.skipif(browser.chromium() is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def built() -> Path:
    return Path(SITE or "").resolve()


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names.update(filter(None, (given.get("id"), given.get("name") if tag == "a" else None)))
        target = given.get("href" if tag in ("a", "link") else "src")
        if target and (tag, given.get("rel")) != ("link", "canonical"):
            self.targets.add(target)


def read(file: Path) -> Links:
    found = Links()
    found.feed(file.read_text(encoding="utf-8"))
    return found


def test_links_of_the_built_site_hold(built: Path):
    pages = {file: read(file) for file in built.rglob("*.html") if file.name != "404.html"}
    assert len(pages) > 150
    broken: list[str] = []
    for file, links in pages.items():
        here = f"/{file.parent.relative_to(built).as_posix()}/".replace("/./", "/")
        for target in links.targets:
            parts = urlsplit(urljoin(here, target))
            if parts.scheme:
                continue
            there = built / unquote(parts.path).lstrip("/")
            there = there / "index.html" if there.is_dir() else there
            anchor = unquote(parts.fragment)
            if not there.is_file() or (anchor and there in pages and anchor not in pages[there].names):
                broken.append(f"{here} -> {target}")
    assert broken == []


def test_the_json_is_served_where_the_public_schema_says(built: Path):
    index = json.loads((built / "api/errors/index.json").read_text(encoding="utf-8"))
    assert len(index["errors"]) > 100
    for row in index["errors"]:
        record = json.loads((built / f"api/errors/{row['id']}.json").read_text(encoding="utf-8"))["record"]
        assert (record["id"], record["schemaVersion"]) == (row["id"], 2)


def test_pictures_and_reference_are_there(built: Path):
    entry = (built / f"{PAGES['entry']}index.html").read_text(encoding="utf-8")
    assert {"light", "dark"} == set(re.findall(r'src="[^"]*-(light|dark)\.svg#only-\1"', entry))
    reference = read(built / "reference/index.html").names
    assert {"tensorpact.Contract", "tensorpact.contract", "tensorpact.clauses.require"} <= reference


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    with browser.served(built) as base:
        yield base


@pytest.fixture(scope="module")
def page() -> Iterator[browser.Page]:
    with browser.page() as opened:
        yield opened


@needs_chromium
def test_a_message_leads_to_its_page_and_its_json(address: str, page: browser.Page):
    page.show(1280, 900, "light")
    page.open(f"{address}/")
    page.evaluate("document.querySelector('.md-search__input').focus()")
    page.call("Input.insertText", text=MESSAGE)
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key="Shift", code="ShiftLeft")
    where = f"errors/{FAMILY}/{SLUG}/"
    hits = "[...document.querySelectorAll('.tp-hits a')].map((a) => a.href)"
    assert page.wait(f"{hits}.length && {hits}") == [f"{address}/{where}"]
    found = "[...document.querySelectorAll('.md-search-result__link')].map((a) => a.href.split('?')[0].split('#')[0])"
    assert f"{address}/{where}" in page.wait(f"{found}.length && {found}")[:10]
    page.evaluate("document.querySelector('.tp-hits a').click()")
    assert page.wait(f"location.pathname === '/{where}' && document.querySelector('h1')?.textContent").startswith(SLUG)
    page.evaluate("[...document.querySelectorAll('article a')].find((a) => a.href.endsWith('.json')).click()")
    text = page.wait("location.pathname.endsWith('.json') && document.body.textContent")
    assert json.loads(text)["record"]["id"] == RECORD


@needs_chromium
def test_pages_fit_the_window_in_light_and_dark(address: str, page: browser.Page):
    seen = set()
    for name in views(page, address):
        kind, scheme, width = name.removesuffix(".png").split("-")
        assert page.evaluate("document.documentElement.scrollWidth") <= int(width), name
        spilling = page.evaluate(
            "[...document.querySelectorAll('article td, article h1, article h2, article p')]"
            ".filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.textContent)"
        )
        assert int(width) > 390 or spilling == [], name
        shown = page.evaluate(
            "[...document.querySelectorAll('.tp-picture img')].filter((i) => i.offsetWidth).map((i) => i.src)"
        )
        assert [re.search(r"-(light|dark)\.svg", src)[1] for src in shown] == [scheme] * (kind == "entry")  # type: ignore[index]
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((c) => c < 100)")
        assert dark == (scheme == "dark"), name
        seen.add(name)
    assert len(seen) == len(PAGES) * len(SCHEMES) * len(SIZES)
    assert seen == {f.name for f in IMAGES.glob("*-*-*.png")}


def test_the_kept_pictures_are_small(built: Path):
    kept = list((built / "images").glob("*.png"))
    assert {f.name for f in kept} == {f.name for f in IMAGES.glob("*.png")} != set()
    assert [f.name for f in kept if f.stat().st_size > 300_000] == []
