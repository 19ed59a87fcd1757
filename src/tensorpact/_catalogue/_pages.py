"""The page of a documented error: front matter, fixed headings, two examples."""

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType

from tensorpact._errors import ContractDefinitionError, DocumentedError

HEADINGS = (
    "What it means",
    "When it happens",
    "Example that fails",
    "Example that works",
    "How to fix",
    "How to prevent it",
)
SEVERITIES = ("error", "warning")

_REQUIRED = {"slug": str, "tags": tuple, "severity": str, "background_tag": str, "related": tuple}
_OPTIONAL = {"record_id": str}
_FENCE = re.compile(r"^(`{3,}|~{3,})")
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Page:
    """One error page, read.

    Attributes:
        slug: Slug of the documented error.
        tags: Words to search by.
        severity: ``"error"`` or ``"warning"``.
        background_tag: Family of the mistake, for example ``"tensor-shape-mismatch"``.
        related: Slugs of the same family worth reading next.
        record_id: Public record id, where there is one.
        sections: Heading to text, in order.
        body: Everything below the front matter.
    """

    slug: str
    tags: tuple[str, ...]
    severity: str
    background_tag: str
    related: tuple[str, ...]
    record_id: str | None
    sections: Mapping[str, str]
    body: str

    def example(self, heading: str) -> str:
        """The Python code under a heading; empty where there is none.

        Args:
            heading: One of :data:`HEADINGS`.
        """
        found = _PYTHON.search(self.sections.get(heading, ""))
        return found.group(1) if found else ""


def parse_page(text: str, name: str) -> Page:
    """Read a page.

    Args:
        text: The whole file.
        name: What to call the file in an error.

    Raises:
        ContractDefinitionError: The front matter is wrong, or the headings are not the fixed ones in order.
    """
    head, body = _split(text, name)
    values = _front_matter(head, name)
    sections = _sections(body)
    if tuple(sections) != HEADINGS:
        raise ContractDefinitionError(f"{name}: the headings are {', '.join(sections)}; expected {', '.join(HEADINGS)}")
    return Page(
        slug=str(values["slug"]),
        tags=tuple(values["tags"]),
        severity=str(values["severity"]),
        background_tag=str(values["background_tag"]),
        related=tuple(values["related"]),
        record_id=str(values["record_id"]) if "record_id" in values else None,
        sections=MappingProxyType(sections),
        body=body,
    )


def page_of(error: DocumentedError) -> Page | None:
    """The page of a documented error, or None where there is none.

    Raises:
        ContractDefinitionError: The page is malformed, or belongs to another slug.
    """
    folder = _folder(error.module)
    if folder is None:
        return None
    file = folder / f"{error.slug}.md"
    if not file.is_file():
        return None
    page = parse_page(file.read_text(encoding="utf-8"), file.name)
    if page.slug != error.slug:
        raise ContractDefinitionError(f"{file.name}: the front matter names the slug {page.slug}")
    return page


def pages_of(module: str) -> tuple[str, ...]:
    """Slugs of the pages that exist for the documented errors of a module.

    Args:
        module: Full name of the module that defines the errors.
    """
    folder = _folder(module)
    if folder is None or not folder.is_dir():
        return ()
    return tuple(sorted(f.name.removesuffix(".md") for f in folder.iterdir() if f.name.endswith(".md")))


def _folder(module: str) -> Traversable | None:
    """Folder of a module's pages: beside the module, in ``errors/<family>``."""
    package, _, family = module.rpartition(".")
    if not package:
        return None
    try:
        importlib.import_module(package)
        return files(package) / "errors" / family
    except (ImportError, TypeError):
        return None


def _split(text: str, name: str) -> tuple[list[str], str]:
    lines = text.splitlines()
    if not lines or lines[0] != "---" or "---" not in lines[1:]:
        raise ContractDefinitionError(f"{name}: no front matter between two lines of ---")
    end = lines.index("---", 1)
    return lines[1:end], "\n".join(lines[end + 1 :]).strip() + "\n"


def _front_matter(lines: list[str], name: str) -> dict[str, str | tuple[str, ...]]:
    values: dict[str, str | tuple[str, ...]] = {}
    known = {**_REQUIRED, **_OPTIONAL}
    for line in lines:
        key, colon, rest = line.partition(":")
        value = rest.strip()
        if not colon or key not in known or key in values:
            raise ContractDefinitionError(f"{name}: {line!r}: expected each of {', '.join(known)} at most once")
        if known[key] is str:
            values[key] = value
        elif value.startswith("[") and value.endswith("]"):
            values[key] = tuple(item.strip() for item in value[1:-1].split(",") if item.strip())
        else:
            raise ContractDefinitionError(f"{name}: {key} is a list, written [a, b]")
    missing = [key for key in _REQUIRED if key not in values]
    if missing:
        raise ContractDefinitionError(f"{name}: the front matter lacks {', '.join(missing)}")
    if values["severity"] not in SEVERITIES:
        raise ContractDefinitionError(f"{name}: severity is one of {', '.join(SEVERITIES)}")
    words = [values["slug"], values["background_tag"], *values["tags"], *values["related"]]
    for word in words:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", str(word)):
            raise ContractDefinitionError(f"{name}: {word!r} is not lower-case words joined by hyphens")
    if not re.fullmatch(r"[0-9a-f]{16}", str(values.get("record_id", "0" * 16))):
        raise ContractDefinitionError(f"{name}: record_id is 16 hex digits")
    return values


def _sections(body: str) -> dict[str, str]:
    """Text under each second-level heading; a comment in a code block is no heading."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    fence = ""
    for line in body.splitlines():
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark.group(1)
        elif fence and line.rstrip() == fence:
            fence = ""
        if not fence and line.startswith("## "):
            current = sections.setdefault(line[3:].strip(), [])
        else:
            current.append(line)
    return {heading: "\n".join(lines).strip() + "\n" for heading, lines in sections.items()}
