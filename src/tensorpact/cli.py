"""The command line: ``verify``, ``mutate``, ``source``, ``describe``, ``draft``, ``explain`` and ``catalog``."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ._catalogue._commands import app as catalog

if TYPE_CHECKING:
    from rich.console import Console

    from .testing import EntryReport, Report, Section
    from .testing._targets import Target

__all__ = ["app", "main"]

DEFAULT_TARGET = "tensorpact_kernels"
_USAGE = 2
_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}

app = typer.Typer(
    name="tensorpact",
    help="Tensor contracts for kernel entry points: verify them, print their guards, explain their errors.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
app.add_typer(catalog)


def main() -> None:
    """Run the command line."""
    # As `python -m` does: modules of the directory that the command is run in are found.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    app()


def _refuse(text: str) -> typer.Exit:
    sys.stderr.write(f"tensorpact: {text}\n")
    return typer.Exit(_USAGE)


def _need_contracts() -> None:
    if os.environ.get("TENSORPACT") == "off":
        raise _refuse(
            "TENSORPACT=off is set: the decorators return the bare functions, so there are no contracts to look at"
        )


@app.command()
def verify(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="[MODULE[:FUNCTION]]...", help=f"Default: {DEFAULT_TARGET}.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, with stable keys.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed draws the same arguments.")] = 0,
    examples: Annotated[int, typer.Option(min=1, help="Valid calls an entry point.")] = 12,
    only: Annotated[str | None, typer.Option(metavar="SLUG", help="Witness this one documented error.")] = None,
) -> None:
    """Check contracts against the functions that carry them; exit code 1 where one is wrong.

    lint: every clause and annotated axis can matter. accept: valid arguments pass both modes, and the result is the
    reference's in float64. reject: every documented error has a witness. agree: mutated arguments get one verdict.
    """
    _need_contracts()
    from rich.console import Console

    from .testing import TargetError

    screen = Console(stderr=True)
    bar = screen.is_terminal and not as_json
    try:
        report = _verified(targets or [DEFAULT_TARGET], seed, examples, only, screen if bar else None)
    except TargetError as bad:
        raise _refuse(str(bad)) from bad
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        _show(Console(), report)
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def mutate(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="[MODULE[:FUNCTION]]...", help=f"Default: {DEFAULT_TARGET}.")
    ] = None,
    tests: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Tests for pytest, as the corpus; may be repeated.")
    ] = None,
    pages: Annotated[bool, typer.Option("--pages", help="The failing examples of error pages, as the corpus.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, with stable keys.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed searches through the same calls.")] = 0,
) -> None:
    """Leave out or loosen each clause in turn; exit code 1 where no refused call notices.

    Without a corpus, calls are searched for, and what none of them notices is redundant. With --tests or --pages, what
    those do not notice is printed with a call that would.
    """
    _need_contracts()
    from .testing import TargetError
    from .testing._mutate_command import run

    try:
        ok = run(targets or [DEFAULT_TARGET], tests or [], pages=pages, as_json=as_json, seed=seed)
    except TargetError as bad:
        raise _refuse(str(bad)) from bad
    if not ok:
        raise typer.Exit(1)


def _verified(names: list[str], seed: int, examples: int, only: str | None, screen: "Console | None") -> "Report":
    from .testing import verify as run

    if screen is None:
        return run(names, seed=seed, examples=examples, only=only)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[column]}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=screen, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(target: str, column: str, done: int, total: int) -> None:
            if target not in tasks:
                tasks[target] = bar.add_task(target.rpartition(":")[2], column=column)
            bar.update(tasks[target], completed=done, total=total, column=column)

        return run(names, seed=seed, examples=examples, only=only, progress=tell)


def _cell(section: "Section") -> str:
    style = _STYLES[section.status]
    if section.status == "skipped":
        return f"[{style}]skipped[/]"
    errors = sum(f.level == "error" for f in section.findings)
    warnings = len(section.findings) - errors
    text = f"{errors} wrong" if errors else "ok"
    text += f" of {section.done}" if errors and section.done else (f" {section.done}" if section.done else "")
    if warnings:
        text += f", {warnings} warning{'s' * (warnings > 1)}"
    return f"[{style}]{text}[/]"


def _show(console: "Console", report: "Report") -> None:
    from rich.markup import escape
    from rich.table import Table

    for target, column, finding in report.findings():
        style = "bold red" if finding.level == "error" else "yellow"
        console.print(f"[{style}]{finding.level}[/] {escape(f'{target} [{column}] {finding.message}')}", soft_wrap=True)
        if finding.code is not None:
            console.print(
                "    " + escape(finding.code.rstrip()).replace("\n", "\n    "), soft_wrap=True, highlight=False
            )
    table = Table(title=f"tensorpact verify, seed {report.seed}")
    table.add_column("entry point", overflow="fold")
    for column in ("lint", "accept", "reject", "agree"):
        table.add_column(column)
    names = [entry.target.rpartition(":")[2] for entry in report.entries]
    for entry, name in zip(report.entries, names, strict=True):
        shown = name if names.count(name) == 1 else entry.target
        table.add_row(escape(shown), *(_cell(s) for s in entry.sections.values()))
    console.print(table)
    for entry in report.entries:
        for line in _notes(entry):
            console.print(escape(line), style="dim", soft_wrap=True)


def _notes(entry: "EntryReport") -> list[str]:
    notes: dict[str, list[str]] = {}
    for column, section in entry.sections.items():
        text = f"skipped, {section.skipped}" if section.status == "skipped" else section.note
        if text:
            notes.setdefault(text, []).append(column)
    return [f"{entry.target} {', '.join(columns)}: {text}" for text, columns in notes.items()]


@app.command()
def source(target: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION")]) -> None:
    """Print the generated guard of a function."""
    _need_contracts()
    from rich.console import Console
    from rich.syntax import Syntax

    from ._errors import ContractDefinitionError

    try:
        text = _one(target).entry.source
    except ContractDefinitionError as bad:
        raise _refuse(str(bad)) from bad
    console = Console()
    if console.is_terminal:
        console.print(Syntax(text, "python", background_color="default"))
    else:
        print(text, end="" if text.endswith("\n") else "\n")


def _one(name: str) -> "Target":
    """The contracted function that a command names.

    Raises:
        ContractDefinitionError: Its module does not import because of a contract.
    """
    from .testing._targets import Target, TargetError, find

    if ":" not in name:
        raise _refuse(f"{name!r} names no function: MODULE:FUNCTION is wanted")
    try:
        found = find([name])[0]
    except TargetError as bad:
        raise _refuse(str(bad)) from bad
    if not isinstance(found, Target):
        raise found.error
    return found


@app.command()
def describe(
    target: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION")],
    as_json: Annotated[
        bool, typer.Option("--json", help="The machine form, as docs/describe.md documents it.")
    ] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="The reference page, unstyled.")] = False,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the contract; - writes to stdout.")] = None,
) -> None:
    """Print what a contract says: shapes, checks in firing order, errors, and what no check can see."""
    _need_contracts()
    from ._catalogue import describe as described
    from ._catalogue import markdown, picture
    from ._errors import ContractDefinitionError

    if as_json + as_markdown + (str(svg) == "-") > 1:
        raise _refuse("one of --json, --markdown and --svg - at a time")
    try:
        found = _one(target)
        form = described(found.entry, found.text)
    except ContractDefinitionError as bad:
        raise _refuse(str(bad)) from bad
    if str(svg) == "-":
        sys.stdout.write(picture(form))
    elif svg is not None:
        _write(svg, picture(form))
    if as_json:
        print(json.dumps(form, indent=2, ensure_ascii=False))
    elif as_markdown or svg is None:
        _show_markdown(markdown(form), unstyled=as_markdown)


@app.command()
def draft(
    target: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION|MODULE:FUNCTION")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write there.")] = None,
) -> None:
    """Draft a contract from the hand-written checks of a function; nothing is imported or run."""
    from ._draft import DraftError
    from ._draft import draft as drafted

    try:
        made = drafted(target)
    except DraftError as bad:
        raise _refuse(str(bad)) from bad
    if out is None:
        sys.stdout.write(made.text)
    else:
        _write(out, made.text)
    sys.stderr.write(f"{made.summary}\n")


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as bad:
        raise _refuse(f"{file}: {bad.strerror}") from bad


def _show_markdown(text: str, unstyled: bool = False, wrong: bool = False) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(stderr=wrong)
    if console.is_terminal and not unstyled:
        console.print(Markdown(text))
    else:
        (sys.stderr if wrong else sys.stdout).write(text.rstrip() + "\n")


@app.command()
def explain(
    query: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SLUG|TEXT|ID]", help="Slug, pasted message, record id; - or nothing reads stdin."),
    ] = None,
    module: Annotated[
        list[str] | None, typer.Option("--module", metavar="MODULE", help="Where contracts are; may be repeated.")
    ] = None,
) -> None:
    """Find a documented error and print its page."""
    from ._catalogue import explain_text

    if not query and sys.stdin.isatty():
        raise _refuse("nothing to explain: name a slug, an id or a message, or pipe a traceback in")
    asked = sys.stdin.read() if query in (None, [], ["-"]) else " ".join(query)
    code, text = explain_text(asked, list(module or ()))
    _show_markdown(text, wrong=code != 0)
    if code:
        raise typer.Exit(code)


if __name__ == "__main__":
    main()
