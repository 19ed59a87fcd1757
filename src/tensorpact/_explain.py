"""``tensorpact.explain``: what is wrong with a call, what to change, and the page of the documented error."""

import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._diagnosis import bound_lines
from ._errors import ContractViolation
from ._notes import Notes
from ._rendering import Conflict, Table, table_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

_COLOURS = {">": ("bold red", "#c0392b"), "=": ("cyan", "#2874a6")}


@dataclass(frozen=True, slots=True)
class Explanation:
    """An error explained: ``print`` it, show it with rich, or leave it at the end of a notebook cell.

    Attributes:
        message: Class and text of the error; empty where only a text was given.
        reason: Why, with the place in the contract.
        table: Arguments against dims, where a failed call is known.
        bound: What bound each dim.
        suggestion: The smallest change that would satisfy the contract; empty where none is known.
        page: The documented page, as Markdown; empty where the error is not documented.
        found: Whether anything is known of the error.
    """

    message: str = ""
    reason: str = ""
    table: Table | None = None
    bound: tuple[str, ...] = ()
    suggestion: str = ""
    page: str = ""
    found: bool = True

    def __str__(self) -> str:
        parts: list[str] = [p for p in (self.message, self.reason) if p]
        parts += self.table.text() if self.table is not None else []
        parts += self.bound
        if self.suggestion:
            parts.append(f"smallest change: {self.suggestion}")
        if self.page:
            parts += ["", self.page.rstrip()] if parts else [self.page.rstrip()]
        return "\n".join(parts)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        from rich.markdown import Markdown
        from rich.table import Table as RichTable
        from rich.text import Text

        if self.message:
            yield Text(self.message, style="bold")
        if self.reason:
            yield Text(self.reason)
        if self.table is not None:
            shown = RichTable(caption=self.table.omitted or None)
            for title in self.table.header:
                shown.add_column(Text(title.strip()))
            for row in self.table.rows:
                name, *cells = row.cells
                shown.add_row(_styled(row.mark, name), *(_styled(c[:1], c.strip()) for c in cells))
            yield shown
        for line in self.bound:
            yield Text(line, style="dim")
        if self.suggestion:
            yield Text.assemble(("smallest change: ", "green"), self.suggestion)
        if self.page:
            yield Markdown(self.page)

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{html.escape(self.message)}</b></p>"] if self.message else []
        if self.reason:
            parts.append(f"<p>{_html(self.reason)}</p>")
        if self.table is not None:
            parts.append(_html_table(self.table))
        if self.bound:
            parts.append(f"<p>{_html(' '.join(line.strip() for line in self.bound))}</p>")
        if self.suggestion:
            parts.append(f"<p><b>smallest change:</b> {html.escape(self.suggestion)}</p>")
        if self.page:
            # Alone, it is what was asked for; below a failed call it is there to be opened.
            shown = " open" if not self.message else ""
            parts.append(f"<details{shown}><summary>documentation</summary>{_html_page(self.page)}</details>")
        return f"<div>{''.join(parts)}</div>"


def _styled(mark: str, text: str) -> Any:
    from rich.text import Text

    return Text(text, style=_COLOURS[mark][0] if mark in _COLOURS else "")


def _html(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")


def _html_page(page: str) -> str:
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        # It comes with rich, so with the extra `cli`.
        return f"<pre>{html.escape(page)}</pre>"
    return MarkdownIt("commonmark", {"html": False}).render(page)


def _html_table(table: Table) -> str:
    def cell(mark: str, text: str) -> str:
        colour = f' style="color:{_COLOURS[mark][1]};font-weight:bold"' if mark in _COLOURS else ""
        return f"<td{colour}>{html.escape(text.strip())}</td>"

    head = "".join(f"<th>{html.escape(title.strip())}</th>" for title in table.header)
    rows = "".join(
        "<tr>" + cell(row.mark, row.cells[0]) + "".join(cell(c[:1], c) for c in row.cells[1:]) + "</tr>"
        for row in table.rows
    )
    caption = f"<caption>{html.escape(table.omitted)}</caption>" if table.omitted else ""
    return f"<table>{caption}<tr>{head}</tr>{rows}</table>"


def explain(error: BaseException | str, modules: Iterable[str] = ()) -> Explanation:
    """Explain an error: the call that failed, the smallest change that would satisfy the contract, and its page.

    Nothing here needs the arguments: an exception carries what the explanation is made of, also after pickling.

    Args:
        error: A caught exception, or the slug, record id or text of a documented error.
        modules: Where to look for the documented errors of a text; the installed kernels by default.
    """
    from ._catalogue import explain_text, late_note

    if not isinstance(error, ContractViolation):
        code, page = explain_text(str(error), modules)
        shown = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else ""
        return Explanation(shown, page=page, found=code == 0)
    page, documented = "", error.error
    if documented is not None:
        code, page = explain_text(documented.slug, (documented.module,))
        page = "" if code else page
    reason = f"in the call of {error.entry_point}" + (f", clause {error.clause}" if error.clause else "")
    notes = getattr(error, "__notes__", None)
    if error.call_number is not None:
        reason += "".join(f"\n{note}" for note in notes or () if late_note(note))
    conflict = notes.subject if isinstance(notes, Notes) else error.__dict__.get("conflict")
    if not isinstance(conflict, Conflict):
        return Explanation(f"{type(error).__name__}: {error}", reason, page=page)
    if documented is not None:
        reason = f"because {conflict.reason}\n{reason}"
    table = table_of(error, conflict)
    bound = tuple(bound_lines(error, table))
    return Explanation(f"{type(error).__name__}: {error}", reason, table, bound, conflict.suggestion, page)
