"""Two versions of contracts compared: what was loosened, tightened, reworded, added or removed, as semver has it."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ._compare import compare
from ._describe import SCHEMA, SCHEMA_VERSION
from ._markdown import Form

Kind = Literal["loosened", "tightened", "reworded", "added", "removed"]
Level = Literal["none", "patch", "minor", "major"]
LEVELS: tuple[Level, ...] = ("none", "patch", "minor", "major")


class NotAContractError(Exception):
    """A file holds no machine form of a contract that this version can read."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two versions.

    Attributes:
        entry_point: Whose contract.
        kind: What it does to a caller.
        level: What semantic versioning asks for it.
        text: What changed.
    """

    entry_point: str
    kind: str
    level: Level
    text: str


def read_forms(path: Path) -> dict[str, Form]:
    """The contracts of a file or folder, by entry point.

    Args:
        path: What ``describe --json`` prints, a ``contracts.jsonl``, or a folder that ``catalog export`` wrote.

    Raises:
        NotAContractError: Nothing that can be compared is there.
        OSError: It cannot be read.
    """
    files = sorted([*path.glob("api/contracts/*.json"), *path.glob("contracts.jsonl")]) if path.is_dir() else [path]
    forms: dict[str, Form] = {}
    for file in files:
        for form in _parsed(file):
            if form.get("schema") != SCHEMA:
                raise NotAContractError(f"{file}: not the machine form of a contract: schema is {form.get('schema')!r}")
            if form.get("schemaVersion") != SCHEMA_VERSION:
                raise NotAContractError(f"{file}: schemaVersion {form.get('schemaVersion')}; known is {SCHEMA_VERSION}")
            forms[form["entryPoint"]] = form
    if not forms:
        raise NotAContractError(f"{path}: no contract is there")
    return forms


def _parsed(file: Path) -> Iterator[dict[str, Any]]:
    text = file.read_text(encoding="utf-8")
    try:
        parts = (
            [json.loads(line) for line in text.splitlines() if line] if file.suffix == ".jsonl" else [json.loads(text)]
        )
    except ValueError as bad:
        raise NotAContractError(f"{file}: no JSON: {bad}") from bad
    for part in parts:
        if not isinstance(part, dict):
            raise NotAContractError(f"{file}: not the machine form of a contract")
        yield part


def diff(old: dict[str, Form], new: dict[str, Form]) -> list[Change]:
    """What changed between two versions, contract by contract.

    Args:
        old: Entry point to its machine form.
        new: The same of the later version.
    """
    found = [Change(n, "removed", "major", "the entry point is gone") for n in old if n not in new]
    found += [Change(n, "added", "minor", "a new entry point") for n in new if n not in old]
    for name in (n for n in old if n in new):
        found += [Change(name, kind, level, text) for kind, level, text in compare(old[name], new[name])]
    return found


def verdict(changes: Iterable[Change]) -> Level:
    """The largest step that a list of changes asks for."""
    return LEVELS[max((LEVELS.index(c.level) for c in changes), default=0)]
