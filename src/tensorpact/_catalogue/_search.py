"""From what a user has in hand to documented errors: a slug, an id, a message, a traceback, or some words."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from tensorpact._errors import DocumentedError, TemplateField

from ._pages import HEADINGS
from ._records import Record, load

#: Matches from here on name the error; below they are guesses.
EXACT = 0.8
NEAR = 0.45
GUESSES = 5
#: A guess is made from the start of a long text only: comparing spellings takes quadratic time.
QUERY_LIMIT = 500

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MENTION = re.compile(r"tensorpact explain ([a-z0-9-]+)|(?<![0-9a-f])([0-9a-f]{16})(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class Match:
    """A documented error that fits a query.

    Attributes:
        record: The error.
        score: 1 for an exact slug, id or message; below :data:`EXACT` it is a guess.
        how: ``"slug"``, ``"id"``, ``"message"``, ``"embedded"``, ``"mention"``, ``"fragment"`` or ``"near"``.
        values: Placeholder of the template and what the message has there.
    """

    record: Record
    score: float
    how: str
    values: tuple[tuple[str, str], ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the query names this error, rather than resembling it."""
        return self.score >= EXACT


def find(query: str, records: Iterable[Record] | None = None) -> list[Match]:
    """Documented errors that fit a query, the best first; guesses only where nothing names one.

    Args:
        query: Slug, record id, message, traceback, part of a message, or free words.
        records: Where to look; the default catalogue if left out.
    """
    pool = load() if records is None else tuple(records)
    text = _ANSI.sub("", query).strip()
    if not text:
        return []
    named = [match for record in pool if (match := _named(text, record)) is not None]
    if named:
        return sorted(named, key=lambda m: -m.score)
    return _guesses(text[:QUERY_LIMIT], pool)


def _named(text: str, record: Record) -> Match | None:
    error = record.error
    word = text.lower()
    if word == error.slug:
        return Match(record, 1.0, "slug")
    if word == record.id:
        return Match(record, 1.0, "id")
    whole = re.fullmatch(error.pattern, text)
    if whole and says_enough(error):
        # A prefix such as the class name must not be taken for the value of a leading placeholder.
        return Match(record, 1.0, "message", _values(error, _embedded(error, text) or whole))
    lines = text.splitlines()
    for number, line in reversed(list(enumerate(lines, 1))):
        inside = _embedded(error, line)
        if inside:
            # Of chained exceptions the one that was raised stands last.
            return Match(record, 0.9 + 0.09 * number / len(lines), "embedded", _values(error, inside))
    if any(error.slug == slug or record.id == number for slug, number in _MENTION.findall(text)):
        return Match(record, 0.85, "mention")
    if len(word) >= 8 and len(word.split()) > 1 and word in error.template.lower():
        return Match(record, EXACT, "fragment")
    return None


def _embedded(error: DocumentedError, line: str) -> re.Match[str] | None:
    """The message inside a line such as ``module.Class: message`` or ``Class('message')``."""
    if not says_enough(error):
        return None
    for start in _starts(error, line):
        rest = line[start:]
        if start and line[start - 1] in "'\"`":
            rest = rest[: rest.rfind(line[start - 1])] if line[start - 1] in rest else rest
        found = re.fullmatch(error.pattern, rest.rstrip())
        if found:
            return found
    return None


def _starts(error: DocumentedError, line: str) -> Iterator[int]:
    """Where the message may start: at its first words, or behind a separator where it starts with a value."""
    first = error.parts[0]
    if isinstance(first, str):
        # Behind a word character it would be the tail of another message: `unified_kv dtype …` ends like `kv dtype …`.
        yield from (m.start() for m in re.finditer(rf"(?<![\w]){re.escape(first)}", line))
        return
    ends = [m.end() for m in re.finditer(r"^|: |['\"`(]", line)]
    yield from reversed(ends)


def fixed_text(error: DocumentedError) -> str:
    """What every rendering of a message has, a space for each value."""
    return "".join(part if isinstance(part, str) else " " for part in error.parts)


def says_enough(error: DocumentedError) -> bool:
    """Whether the fixed text is long enough to recognise a message by."""
    return len(re.findall(r"[A-Za-z]", fixed_text(error))) >= 6


def _values(error: DocumentedError, found: re.Match[str]) -> tuple[tuple[str, str], ...]:
    fields = [part.source for part in error.parts if isinstance(part, TemplateField)]
    return tuple(dict.fromkeys(zip(fields, found.groups(), strict=True)))


def _words(text: str) -> set[str]:
    return {word.rstrip("s") for word in re.findall(r"[a-z0-9]+", text.lower()) if len(word) > 2}


def _guesses(text: str, pool: tuple[Record, ...]) -> list[Match]:
    """Errors that resemble a query: by spelling of slug or message, or by words that few pages share."""
    asked = _words(text)
    said = [_words(_searchable(record)) for record in pool]
    counts = {word: sum(word in words for words in said) for word in asked}
    # A word of no page says little about what is meant; one of few pages says much.
    weight = {word: math.log(1 + len(pool) / (1 + count)) if count else 1.0 for word, count in counts.items()}
    found: list[Match] = []
    for record, words in zip(pool, said, strict=True):
        shared = sum(weight[word] for word in asked & words) / (sum(weight.values()) or 1.0)
        score = max(_spelling(text, record.error), 0.9 * math.sqrt(shared)) * (EXACT - 0.01)
        if score >= NEAR:
            found.append(Match(record, score, "near"))
    return sorted(found, key=lambda m: -m.score)[:GUESSES]


def _searchable(record: Record) -> str:
    page = record.page
    words = f"{record.error.slug} {record.error.template}"
    return words if page is None else f"{words} {' '.join(page.tags)} {page.sections[HEADINGS[0]]}"


def _spelling(text: str, error: DocumentedError) -> float:
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    message = re.sub(r"\s+", " ", fixed_text(error).lower())
    return max(
        SequenceMatcher(None, slug, error.slug, autojunk=False).ratio(),
        SequenceMatcher(None, text.lower(), message, autojunk=False).ratio(),
    )
