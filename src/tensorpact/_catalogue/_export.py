"""The catalogue as files: one public record for each documented error, an index, and the machine form of contracts."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tensorpact._errors import ContractDefinitionError

from ._checks import type_guard, validation_code
from ._describe import describe
from ._ids import Removed, removed_pages
from ._pages import HEADINGS, Page
from ._places import Place, place_of
from ._records import Record, load
from ._targets import entries

RECORD_VERSION = 2
REPOSITORY = "tensorpact"
#: Where records with a public id were first told.
PUBLIC_REPOSITORY = "sgl-project/sglang"


def records(modules: Iterable[str] = ()) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Public records of the documented errors, and the machine forms of the contracts that raise them.

    Args:
        modules: Where to look; the installed kernels by default.

    Raises:
        ImportError: A named module does not import.
        ContractDefinitionError: A page is missing or malformed.
    """
    named = tuple(modules)
    forms = [describe(entry, target) for target, entry in entries(named)]
    by_name = {form["entryPoint"]: form for form in forms}
    found = load(named)
    ids = {record.error.slug: record.id for record in found}
    when, commit = _now(), _commit()
    made = [_record(record, by_name, ids) | {"analyzedSha": commit, "analyzedAt": when} for record in found]
    return [r | {"schemaVersion": RECORD_VERSION} for r in made], forms


def export(directory: Path, as_lines: bool, modules: Iterable[str] = ()) -> list[Path]:
    """Write the catalogue.

    Args:
        directory: Where to; made if it is not there.
        as_lines: One file of one record a line, in place of one file a record as a site serves them.
        modules: Where to look.

    Returns:
        The files that were written.

    Raises:
        OSError: A file cannot be written.
    """
    named = tuple(modules)
    made, forms = records(named)
    if as_lines:
        version = _now()
        wrapped = [{"record": r, "datasetVersion": version} for r in made]
        texts = {"errors.jsonl": _lines(wrapped), "contracts.jsonl": _lines(forms)}
    else:
        texts = served(made, forms, removed_pages(load(named)))
    return write(directory, texts)


def served(
    made: Iterable[Mapping[str, Any]], forms: Iterable[Mapping[str, Any]], gone: Iterable[Removed]
) -> dict[str, str]:
    """The files that a site serves, by their path in it.

    Args:
        made: What :func:`records` gives, and the forms beside it.
        forms: Machine forms of the contracts.
        gone: Pages of the errors that are no longer raised.
    """
    version = _now()
    listed = [{k: r[k] for k in ("id", "slug", "errorMessage", "errorClass", "entryPoint")} for r in made]
    removed = [_gone(page) for page in gone]
    texts = {f"api/errors/{r['id']}.json": _pretty({"record": r, "datasetVersion": version}) for r in made}
    texts |= {f"api/errors/{r['id']}.json": _pretty({"removed": r, "datasetVersion": version}) for r in removed}
    texts["api/errors/index.json"] = _pretty({"errors": listed, "removed": removed, "datasetVersion": version})
    return texts | {f"api/contracts/{form['entryPoint']}.json": _pretty(form) for form in forms}


def write(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files, given by their path below a folder.

    Raises:
        OSError: A file cannot be written.
    """
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in texts]


def _record(record: Record, forms: Mapping[str, Mapping[str, Any]], ids: Mapping[str, str]) -> dict[str, Any]:
    error, page = record.error, record.page
    if page is None:
        raise ContractDefinitionError(f"{error.slug} has no page, so there is nothing to export of it")
    use = record.uses[0] if record.uses else None
    form = forms.get(use.entry_point) if use else None
    code = validation_code(form, error.slug) if form else None
    place = place_of(error)
    conditions, _, situations = page.sections[HEADINGS[1]].strip().partition("\n\n")
    return {
        "id": record.id,
        "repo": PUBLIC_REPOSITORY if page.record_id else REPOSITORY,
        "slug": error.slug,
        "errorCode": None,
        "errorMessage": error.template,
        "messagePattern": error.pattern,
        "errorType": "validation" if record.uses else "exception",
        "errorClass": error.documented.__name__,
        "httpStatus": None,
        "severity": page.severity,
        **_source(place),
        "githubUrl": None,
        "documentation": page.sections[HEADINGS[0]].strip(),
        "triggerScenarios": conditions,
        "commonSituations": situations.strip(),
        "solutions": items(page.sections[HEADINGS[4]]),
        "exampleFix": _examples(page),
        "handlingStrategy": "validation",
        "validationCode": code,
        "typeGuard": type_guard(form, error.slug, code) if form else None,
        "tryCatchPattern": None,
        "preventionTips": items(page.sections[HEADINGS[5]]),
        "tags": list(page.tags),
        "backgroundTag": page.background_tag,
        "relatedErrors": [ids[slug] for slug in page.related if slug in ids],
        "entryPoint": use.entry_point if use else None,
        "clause": use.clause if use else None,
        "firingOrder": use.place if use else None,
    }


def _source(place: Place | None) -> dict[str, Any]:
    keys = ("filePath", "lineNumber", "sourceCode", "sourceCodeStart", "sourceCodeEnd")
    values = (None,) * 5 if place is None else (place.file, place.line, place.code, place.start, place.end)
    return dict(zip(keys, values, strict=True))


def items(section: str) -> list[str]:
    """The items of a Markdown list, each on one line."""
    found: list[list[str]] = []
    for line in section.strip().splitlines():
        if line.startswith("- "):
            found.append([line[2:]])
        elif found and line.strip():
            found[-1].append(line.strip())
    return [" ".join(lines) for lines in found]


def _examples(page: Page) -> str:
    before, after = (page.example(heading).rstrip() for heading in HEADINGS[2:4])
    return f"# before\n{before}\n\n# after\n{after}\n"


def _gone(page: Removed) -> dict[str, Any]:
    return {"id": page.id, "slug": page.slug, "removedIn": page.version, "replacedBy": page.replaced_by}


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _lines(values: Iterable[Any]) -> str:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)


def _now() -> str:
    # A reproducible build says when it is made.
    given = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.fromtimestamp(int(given), UTC) if given else datetime.now(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _commit() -> str | None:
    """Commit of the tree that is exported, or None outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
