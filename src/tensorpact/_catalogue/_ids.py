"""Ids that have been handed out: a checked-in list, and a page for each that is no longer raised."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from tensorpact._errors import ContractDefinitionError

from ._records import Record

LIST = "ids.txt"
_LINE = re.compile(r"([0-9a-f]{16}) ([a-z0-9_]+)/([a-z0-9-]+)")


@dataclass(frozen=True, slots=True)
class Removed:
    """The page of an error that is no longer raised.

    Attributes:
        id: Its record id, which nothing else gets.
        slug: Its slug.
        family: Where it lived.
        version: The version that no longer raises it.
        replaced_by: Slug of what is raised instead; None where nothing is.
        body: What became of it, as Markdown.
    """

    id: str
    slug: str
    family: str
    version: str
    replaced_by: str | None
    body: str


def listed(package: str) -> dict[str, tuple[str, str]] | None:
    """The ids that a package has handed out: id to family and slug; None where it keeps no list.

    Raises:
        ContractDefinitionError: A line is malformed, or an id stands twice.
    """
    file = folder_of(package) / LIST
    if not file.is_file():
        return None
    found: dict[str, tuple[str, str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or match.group(1) in found:
            raise ContractDefinitionError(f"{package}: {LIST}: {line!r}: expected each id once, as ID FAMILY/SLUG")
        found[match.group(1)] = (match.group(2), match.group(3))
    return found


def packages_of(records: Iterable[Record]) -> list[str]:
    """Packages that define the errors."""
    return list(dict.fromkeys(p for r in records if (p := r.error.module.rpartition(".")[0])))


def removed_pages(records: Iterable[Record]) -> list[Removed]:
    """Pages of the errors that are no longer raised, of every package that defines some of a catalogue.

    Raises:
        ContractDefinitionError: A page is malformed.
    """
    return [page for package in packages_of(records) for page in removed_in(folder_of(package))]


def removed_in(folder: Traversable) -> list[Removed]:
    """Pages under ``FAMILY/removed/`` of a folder of pages."""
    found: list[Removed] = []
    for family in sorted(folder.iterdir(), key=lambda f: f.name) if folder.is_dir() else ():
        below = family / "removed"
        if family.is_dir() and below.is_dir():
            pages = sorted((f for f in below.iterdir() if f.name.endswith(".md")), key=lambda f: f.name)
            found += [_read(f.read_text(encoding="utf-8"), f.name, family.name) for f in pages]
    return found


def _read(text: str, name: str, family: str) -> Removed:
    match = re.fullmatch(r"---\n(.*?)\n---\n+(.+)", text, re.DOTALL)
    values: dict[str, str] = {}
    for line in match.group(1).splitlines() if match else ():
        key, _, value = line.partition(": ")
        values[key] = value
    if match is None or not {"slug", "record_id", "removed_in"} <= set(values) <= {
        "slug", "record_id", "removed_in", "replaced_by",
    }:  # fmt: skip
        raise ContractDefinitionError(f"{name}: a removed page has slug, record_id, removed_in, maybe replaced_by")
    if f"{values['slug']}.md" != name or not re.fullmatch(r"[0-9a-f]{16}", values["record_id"]):
        raise ContractDefinitionError(f"{name}: the slug is the name of the file, the record_id 16 hex digits")
    return Removed(
        values["record_id"], values["slug"], family, values["removed_in"], values.get("replaced_by"), match.group(2)
    )


def id_faults(records: tuple[Record, ...]) -> list[str]:
    """What is wrong with the ids of a catalogue, against the lists of its packages."""
    faults: list[str] = []
    for package in packages_of(records):
        known = listed(package)
        if known is None:
            continue
        mine = [r for r in records if r.error.module.rpartition(".")[0] == package]
        faults += faults_of({r.id: (r.error.family, r.error.slug) for r in mine}, known, removed_in(folder_of(package)))
    return faults


def faults_of(
    live: dict[str, tuple[str, str]], known: dict[str, tuple[str, str]], gone: Iterable[Removed]
) -> list[str]:
    """What is wrong with live ids and removed pages against the list of all ids ever handed out."""
    pages = {page.id: page for page in gone}
    faults: list[str] = []
    for key, (family, slug) in live.items():
        if key not in known:
            faults.append(f"{slug}: its id {key} is not in {LIST}: add the line `{key} {family}/{slug}`")
        elif known[key] != (family, slug):
            faults.append(f"{slug}: its id {key} was that of {'/'.join(known[key])}")
        if key in pages:
            faults.append(f"{slug}: raised, although the page of {pages[key].slug} says that it is removed")
    for key, (family, slug) in known.items():
        if key not in live and key not in pages:
            faults.append(f"{slug}: no longer raised; its id {key} needs a page {family}/removed/{slug}.md")
    faults += [
        f"{page.slug}: a removed page whose id {key} is not in {LIST}"
        for key, page in pages.items()
        if key not in known
    ]
    return faults


def folder_of(package: str) -> Traversable:
    """Folder of a package's pages."""
    return files(package) / "errors"
