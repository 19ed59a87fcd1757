"""``tensorpact catalog``: the documented errors listed, checked, exported, and compared between versions."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

USAGE = 2
app = typer.Typer(
    name="catalog",
    help="The catalogue of documented errors: list, check and export it; compare two versions of contracts.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Modules = Annotated[
    list[str] | None, typer.Argument(metavar="[MODULE]...", help="Where contracts are; default: the installed kernels.")
]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _refuse(problem: object) -> typer.Exit:
    sys.stderr.write(f"tensorpact: {problem}\n")
    return typer.Exit(USAGE)


@app.command("list")
def show(
    modules: Modules = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object an error.")] = False,
) -> None:
    """Print every documented error: id, family and slug, class, message."""
    from tensorpact._errors import ContractDefinitionError

    from ._records import load

    try:
        found = load(modules or ())
    except (ImportError, ContractDefinitionError) as bad:
        raise _refuse(bad) from bad
    for record in found:
        error = record.error
        if as_json:
            uses = [{"entryPoint": u.entry_point, "place": u.place, "clause": u.clause} for u in record.uses]
            row = {"id": record.id, "family": error.family, "slug": error.slug, "class": error.documented.__name__}
            _say(json.dumps(row | {"message": error.template, "uses": uses}, ensure_ascii=False))
        else:
            _say(f"{record.id}  {error.family}/{error.slug}  {error.documented.__name__}  {error.template}")


@app.command()
def check(
    modules: Modules = None,
    examples: Annotated[bool, typer.Option(help="Run the examples of the pages.")] = True,
) -> None:
    """Check pages, examples, patterns and ids; exit code 1 where one is wrong.

    Every error has a page and every page an error; the failing example raises that error alone and the working one
    nothing; the pattern matches that message and no other pattern does, equal templates aside; ids are in the list that
    the package keeps, and none has vanished without a page.
    """
    from tensorpact._errors import ContractDefinitionError

    from ._check import check as run

    # The examples are told for CPU tensors without the interpreter.
    os.environ.pop("TRITON_INTERPRET", None)
    try:
        count, faults = run(modules or (), examples)
    except (ImportError, ContractDefinitionError) as bad:
        raise _refuse(bad) from bad
    if not count:
        raise _refuse("no documented error is known here: name a module that has contracted functions")
    for fault in faults:
        _say(fault)
    _say(f"{count} documented errors, {len(faults) or 'nothing'} wrong")
    if faults:
        raise typer.Exit(1)


@app.command()
def export(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to; made if it is not there.")],
    modules: Modules = None,
    format: Annotated[  # noqa: A002 - the option is called so
        Literal["json", "jsonl"], typer.Option(help="json: a file a record, as a site serves them; jsonl: two files.")
    ] = "json",
) -> None:
    """Write the catalogue and the machine forms of all contracts."""
    from tensorpact._errors import ContractDefinitionError

    from ._export import export as run

    if os.environ.get("TENSORPACT") == "off":
        raise _refuse("TENSORPACT=off is set: the decorators return the bare functions, so there are no contracts")
    try:
        files = run(out, format == "jsonl", modules or ())
    except (ImportError, OSError, ContractDefinitionError) as bad:
        raise _refuse(bad) from bad
    _say(f"{len(files)} files in {out}")


@app.command()
def site(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to; made if it is not there.")],
    pages: Annotated[
        Path | None, typer.Option(metavar="DIR", exists=True, file_okay=False, help="Pages written by hand, copied.")
    ] = None,
    modules: Modules = None,
) -> None:
    """Write the source of a documentation site: a page for each entry point and each error, and the JSON it serves.

    What a run wrote before and no longer writes is removed; other files in the folder are left alone.
    """
    from tensorpact._errors import ContractDefinitionError

    from ._site import site as run

    if os.environ.get("TENSORPACT") == "off":
        raise _refuse("TENSORPACT=off is set: the decorators return the bare functions, so there are no contracts")
    try:
        files = run(out, pages, modules or ())
    except (ImportError, OSError, ValueError, ContractDefinitionError) as bad:
        raise _refuse(bad) from bad
    _say(f"{len(files)} files in {out}")


@app.command()
def diff(
    old: Annotated[
        Path, typer.Argument(metavar="OLD", help="describe --json, contracts.jsonl, or an export's folder.")
    ],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The same of the later version.")],
    allow: Annotated[
        Literal["none", "patch", "minor", "major"], typer.Option(help="The largest step that ends with exit code 0.")
    ] = "minor",
    as_json: Annotated[bool, typer.Option("--json", help="Verdict and changes as one JSON object.")] = False,
) -> None:
    """Compare two versions of contracts; exit code 1 where the change is larger than allowed.

    loosened and added ask for a minor version, tightened and removed for a major one, reworded for a patch.
    """
    from dataclasses import asdict

    from ._diff import LEVELS, NotAContractError, read_forms, verdict
    from ._diff import diff as run

    try:
        changes = run(read_forms(old), read_forms(new))
    except (OSError, NotAContractError) as bad:
        raise _refuse(bad) from bad
    level = verdict(changes)
    if as_json:
        _say(json.dumps({"version": 1, "verdict": level, "changes": [asdict(c) for c in changes]}, indent=2))
    else:
        for c in changes:
            _say(f"{c.entry_point}: {c.kind} ({c.level}): {c.text}")
        _say(f"verdict: {level}")
    if LEVELS.index(level) > LEVELS.index(allow):
        raise typer.Exit(1)
