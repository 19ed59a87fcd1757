"""What ``tensorpact explain`` prints, as Markdown."""

import re
from collections.abc import Iterable

from tensorpact._errors import ContractDefinitionError

from ._ids import Removed, removed_pages
from ._late import late_note
from ._markdown import code
from ._records import Record, load
from ._search import Match, find


def explain_text(query: str, modules: Iterable[str] = ()) -> tuple[int, str]:
    """Explain the documented error that a query names.

    Args:
        query: Slug, record id, message, traceback, part of a message, or free words.
        modules: Where to look; the installed kernels by default.

    Returns:
        Exit code and Markdown: 0 with the error and its page, all of them where several have the same text; 1 with
        near ones where nothing is named or a part of a message fits several. The note of an error that was found
        behind its call is explained last, or alone.
    """
    try:
        records = load(modules)
        return _explained_text(query, records)
    except (ImportError, ContractDefinitionError) as bad:
        return 1, f"The catalogue does not load: {bad}\n"


def _explained_text(query: str, records: tuple[Record, ...]) -> tuple[int, str]:
    matches, late = find(query, records), late_note(query)
    if not matches or not matches[0].exact:
        gone = _removed(query, records) or late
        return (0, gone) if gone else (1, _not_found(query, matches, records))
    best = [m for m in matches if m.score == matches[0].score]
    if len(best) > 1 and best[0].how == "fragment":
        return 1, "Several errors contain this text:\n\n" + _listed(best)
    pages = "\n".join(_explained(match) for match in best)
    others = [m for m in matches if m.exact and m not in best]
    pages += f"\nAlso found in this text:\n\n{_listed(others)}" if others else ""
    return 0, pages + (f"\n{late}" if late else "")


def _removed(query: str, records: tuple[Record, ...]) -> str:
    """The pages of errors that are no longer raised, where a query names one by slug or id; empty where it does not."""
    named = set(re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", query.lower()))
    pages = [page for page in removed_pages(records) if page.id in named or query.strip().lower() == page.slug]
    return "\n".join(_removed_page(page) for page in pages)


def _removed_page(page: Removed) -> str:
    lines = [f"# {page.slug}", "", f"Record `{page.id}`, not raised since version {page.version}."]
    lines += [f"Raised in its place: `{page.replaced_by}`."] if page.replaced_by else []
    return "\n".join([*lines, "", page.body.rstrip()]) + "\n"


def _not_found(query: str, matches: list[Match], records: tuple[Record, ...]) -> str:
    asked = query.strip().splitlines()
    first = asked[-1] if asked else ""
    shown = first if len(first) <= 80 else f"{first[:79]}…"
    if not records:
        return "No documented error is known here: name a module that has contracted functions.\n"
    text = f"No documented error matches `{shown}`.\n" if shown else "Name a slug, a record id or a message.\n"
    return text + (f"\nNearest:\n\n{_listed(matches)}" if matches else "")


def _listed(matches: list[Match]) -> str:
    return "".join(f"- `{m.record.error.slug}`: {code(m.record.error.template)}\n" for m in matches)


def _explained(match: Match) -> str:
    record = match.record
    error, page = record.error, record.page
    lines = [
        f"# {error.slug}",
        "",
        f"`{error.documented.__name__}`, record `{record.id}`" + (f", {page.severity}" if page is not None else ""),
        "",
        "```text",
        error.template,
        "```",
        "",
    ]
    if match.values:
        lines += ["In this message:", ""]
        lines += [f"- `{source}` is {code(value) if value else 'empty'}" for source, value in match.values]
        lines.append("")
    if record.uses:
        lines += ["Raised by:", ""]
        lines += [
            f"- `{use.entry_point}`, check {use.place} of {use.total} in firing order: {code(use.clause)}"
            for use in record.uses
        ]
        lines.append("")
    if page is None:
        lines.append("There is no page for this error.")
    else:
        lines.append(page.body.rstrip())
        if page.related:
            lines += ["", "See also: " + ", ".join(f"`{slug}`" for slug in page.related)]
    return "\n".join(lines) + "\n"
