"""The catalogue as pages of a documentation site: entry points, errors, and the records that the site serves."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorpact._errors import ContractDefinitionError

from ._export import records, served, write
from ._ids import Removed, removed_pages
from ._markdown import Form, cell, code, markdown, table
from ._picture import picture
from ._records import Record, Use, load
from ._search import fixed_text, says_enough

#: Names the files of the last run, so that the next one removes those that it no longer writes, and no others.
MANIFEST = ".tensorpact-site"


def site(directory: Path, pages: Path | None = None, modules: Iterable[str] = ()) -> list[Path]:
    """Write the source of a site: pages and pictures of all contracts, pages of all errors, and their records.

    Args:
        directory: Where to; made if it is not there.
        pages: A folder of pages written by hand, which come along as they are.
        modules: Where to look; the installed kernels by default.

    Returns:
        The files that were written.

    Raises:
        ContractDefinitionError: A page is missing or malformed, or two files would have one name.
        OSError: A file cannot be read or written.
        ValueError: The target lies in the folder of pages, or the other way round.
    """
    named = tuple(modules)
    if pages is not None and _nested(directory.resolve(), pages.resolve()):
        raise ValueError(f"{directory} and {pages} must not hold one another")
    found = load(named)
    made, forms = records(named)
    gone = removed_pages(found)
    texts = _pages(found, forms, gone) | served(made, forms, gone)
    files: list[Path] = []
    for source in [] if pages is None else sorted(f for f in pages.rglob("*") if f.is_file()):
        name = source.relative_to(pages or source)
        if any(part.startswith(".") for part in name.parts):
            continue
        if name.as_posix() in texts:
            raise ContractDefinitionError(f"{source}: the site has a generated page of that name")
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, directory / name)
        files.append(directory / name)
    files += write(directory, texts)
    _forget(directory, {f.relative_to(directory).as_posix() for f in files})
    return files


def page_name(form: Form) -> str:
    """Name of an entry point's page, without its ending."""
    return re.sub(r"\W+", "-", form["target"].rpartition(":")[2])


def _nested(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _forget(directory: Path, written: set[str]) -> None:
    manifest = directory / MANIFEST
    before = manifest.read_text(encoding="utf-8").splitlines() if manifest.is_file() else []
    for name in before:
        if name not in written:
            (directory / name).unlink(missing_ok=True)
    manifest.write_text("\n".join(sorted(written)) + "\n", encoding="utf-8")


def _pages(records: tuple[Record, ...], forms: list[dict[str, Any]], gone: list[Removed]) -> dict[str, str]:
    """Generated pages and pictures: path to text."""
    for what, names in (
        ("entry points", Counter(page_name(form) for form in forms)),
        ("documented errors", Counter(f"{r.error.family}/{r.error.slug}" for r in records)),
    ):
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ContractDefinitionError(f"two {what} are called {', '.join(twice)}: name the modules of one site")
    by_name = {form["entryPoint"]: form for form in forms}
    files = {
        "entry-points/index.md": _entry_index(forms),
        "errors/index.md": _error_index(records, gone),
        "errors/patterns.json": _patterns(records),
    }
    for form in forms:
        name = page_name(form)
        files[f"entry-points/{name}.md"] = _entry_page(form)
        for scheme in ("light", "dark"):
            files[f"entry-points/{name}-{scheme}.svg"] = picture(form, scheme, stacked=True)
    for record in records:
        files[f"errors/{record.error.family}/{record.error.slug}.md"] = _error_page(record, by_name)
    for page in gone:
        files[f"errors/{page.family}/{page.slug}.md"] = _removed_page(page)
    return files


def _entry_page(form: Form) -> str:
    name = page_name(form)
    pictures = "\n".join(
        f"[![The contract of {form['entryPoint']}]({name}-{scheme}.svg#only-{scheme})]({name}-{scheme}.svg)"
        for scheme in ("light", "dark")
    )
    machine = f"../api/contracts/{form['entryPoint'].replace(' ', '%20')}.json"
    family = f"; errors of the family [{form['family']}](../errors/index.md#{form['family']})" if form["errors"] else ""
    below = (
        f"From `{form['target'].partition(':')[0]}`{family}; [the machine form as JSON]({machine}).\n\n## Picture\n\n"
        f'<div class="tp-picture" markdown="1">\n\n{pictures}\n\n</div>'
    )
    page = markdown(form, lambda e: f"../errors/{e['family']}/{e['slug']}.md", below)
    _, _, rest = page.partition("\n")
    # The heading is the name that is imported, also where the contract of a method has another.
    return f"# {form['target'].rpartition(':')[2]}\n{rest}"


def _entry_index(forms: Iterable[Form]) -> str:
    families = dict.fromkeys(form["family"] for form in forms)
    parts = [
        "# Entry points",
        "One page for each contracted function, made from its contract: shapes, checks in firing order, errors.\n"
        "{ .tp-cards }",
    ]
    for family in families:
        rows = (
            (f"[`{f['target'].rpartition(':')[2]}`]({page_name(f)}.md)", f["summary"], str(len(f["errors"])))
            for f in forms
            if f["family"] == family
        )
        parts += [f"## {family}", table(("entry point", "what it does", "errors"), rows)]
    return "\n\n".join(parts) + "\n"


def _error_index(records: tuple[Record, ...], gone: list[Removed]) -> str:
    parts = [
        "# Errors",
        "Every documented error, in firing order. Paste a message into the search, or into `tensorpact explain`."
        " For programs: [the index as JSON](../api/errors/index.json).\n{ .tp-cards }",
    ]
    for family in dict.fromkeys(r.error.family for r in records):
        rows = (
            (f"[`{r.error.slug}`]({family}/{r.error.slug}.md)", r.error.documented.__name__, cell(r.error.template))
            for r in records
            if r.error.family == family
        )
        parts += [f"## {family}", table(("error", "class", "message"), rows)]
    if gone:
        rows = ((f"[`{p.slug}`]({p.family}/{p.slug}.md)", p.version) for p in gone)
        parts += ["## No longer raised", table(("error", "since"), rows)]
    return "\n\n".join(parts) + "\n"


def _patterns(records: tuple[Record, ...]) -> str:
    """By what a script tells the page of a pasted message; those first that have the most text of their own."""
    told = sorted((r.error for r in records if says_enough(r.error)), key=lambda e: -len(fixed_text(e)))
    rows = [{"slug": e.slug, "page": f"errors/{e.family}/{e.slug}/", "pattern": e.pattern} for e in told]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def _error_page(record: Record, forms: Mapping[str, Form]) -> str:
    error, page = record.error, record.page
    if page is None:
        raise ContractDefinitionError(f"{error.slug} has no page, so there is none for a site")
    facts = f"`{error.documented.__name__}`, {page.severity}, record `{record.id}`: {', '.join(page.tags)}."
    parts = [
        "---\nsearch:\n  boost: 4\n---",
        f"# {error.slug}",
        # A heading, since that is where a search looks first, and a message is what people search for.
        f"## {code(error.template)} {{ #message .tp-message }}",
        f"{facts} [This page as JSON](../../api/errors/{record.id}.json).",
    ]
    if record.uses:
        parts.append("Raised by:\n\n" + "\n".join(f"- {_use(use, forms)}" for use in record.uses))
    parts.append(page.body.strip())
    if page.related:
        parts += ["## Related errors", "\n".join(f"- [{slug}]({slug}.md)" for slug in page.related)]
    return "\n\n".join(parts) + "\n"


def _use(use: Use, forms: Mapping[str, Form]) -> str:
    form = forms.get(use.entry_point)
    shown = f"`{use.entry_point}`"
    if form is not None:
        shown = f"[`{form['target'].rpartition(':')[2]}`](../../entry-points/{page_name(form)}.md)"
    return f"{shown}, check {use.place} of {use.total}: {code(use.clause)}"


def _removed_page(page: Removed) -> str:
    instead = f" Raised in its place: [{page.replaced_by}]({page.replaced_by}.md)." if page.replaced_by else ""
    head = f"Record `{page.id}`, not raised since version {page.version}.{instead}"
    return f"# {page.slug}\n\n{head}\n\n{page.body.strip()}\n"
