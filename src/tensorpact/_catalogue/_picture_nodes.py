"""The relations of a picture: which there are, what they say, and the room that each takes."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._markdown import rule_text
from ._svg import MONO, SANS, shortened

Form = Mapping[str, Any]
#: Heights of a box of one line, of each further line, of a line under it, and from one box to the next.
NODE, LINE, UNDER, GAP = 26.0, 15.0, 12.0, 36.0
#: Room for the place in firing order.
PLACE = 26.0


@dataclass(slots=True)
class Node:
    """A derived dim or a relation.

    Attributes:
        label: What it says.
        reads: Dims, helpers and arguments it is joined to.
        name: What it derives.
        place: Its place in firing order.
        under: A second line.
        lines: The label as it is drawn, in one line or wrapped.
        below: The second line likewise.
    """

    label: str
    reads: tuple[str, ...]
    name: str = ""
    place: str = ""
    under: str = ""
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    lines: list[str] = field(default_factory=list[str])
    below: list[str] = field(default_factory=list[str])

    def lay_out(self, room: float | None) -> None:
        """Wrap the texts to a width in pixels, if there is one, and set the width of the box."""
        aside = 16 + (PLACE if self.place else 0)
        self.lines, self.below = [self.label], [self.under] if self.under else []
        if room is not None:
            self.lines = _wrapped(self.label, max(8, int((room - aside) / MONO)))
            self.below = textwrap.wrap(self.under, max(8, int(room / SANS)))
        self.width = max(map(len, self.lines)) * MONO + aside

    @property
    def tall(self) -> float:
        """Height of the box."""
        return NODE + LINE * (len(self.lines) - 1)

    @property
    def step(self) -> float:
        """From the top of the box to that of the next."""
        return self.tall + UNDER * len(self.below) + GAP - NODE


def _wrapped(label: str, most: int) -> list[str]:
    """Lines of at most so many characters; a word that is longer breaks behind a sign or an underscore where it can."""
    words: list[str] = []
    for word in label.split():
        pieces = re.findall(r"[^(\[_.,]*[(\[_.,]+|[^(\[_.,]+", word) if len(word) > most else [word]
        words += [part for piece in pieces for part in textwrap.wrap(piece, most)]
        words[-1] += " "
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > most:
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]


def nodes(form: Form, dims: Mapping[str, Form], scalars: Mapping[str, Form]) -> Iterator[Node]:
    """What a picture joins to dims: axes that are expressions, derived dims, and relations, in firing order."""
    expressions: dict[str, list[tuple[str, Form]]] = {}
    for p in (p for q in form["parameters"] for p in (q, *q["items"]) if p["tensor"]):
        for axis in (a for f in p["tensor"]["forms"] for a in f["axes"] if a["kind"] == "expression"):
            expressions.setdefault(axis["text"], []).append((p["name"], axis))
    for shown, places in expressions.items():
        owners = ", ".join(dict.fromkeys(name for name, _ in places))
        yield Node(shown, tuple(places[0][1]["dims"]), under=shortened(f"an axis of {owners}", 60))
    lets = {d["name"] for c in form["clauses"] for d in c.get("derives", ())}
    known = set(dims) | lets | set(scalars)
    used = _used(form, lets)
    for clause in form["clauses"]:
        if clause["kind"] == "let":
            for d in clause["derives"]:
                reads = tuple(n for n in d["rule"]["reads"] if n in known)
                # A helper that only a message reads is no part of the picture.
                if reads and d["name"] in used:
                    meaning = (dims[d["name"]]["meaning"] or "") if d["name"] in dims else ""
                    label = f"{d['name']} = {rule_text(d['rule'])}"
                    yield Node(shortened(label, 44), reads, d["name"], under=shortened(meaning, 60))
            continue
        for rule in _rules(clause):
            reads = tuple(n for n in rule["reads"] if n in known)
            if reads:
                yield Node(shortened(rule_text(rule), 44), reads, place=str(clause["place"]))


def _used(form: Form, lets: Iterable[str]) -> set[str]:
    read = {n for c in form["clauses"] for r in _rules(c) for n in r["reads"]}
    read |= {n for c in form["clauses"] for d in c.get("derives", ()) for n in d["rule"]["reads"]}
    axes = {
        n for p in form["parameters"] if p["tensor"] for f in p["tensor"]["forms"] for a in f["axes"] for n in a["dims"]
    }
    return set(lets) & (read | axes)


def _rules(clause: Form) -> Iterator[Form]:
    if clause["kind"] == "require":
        yield clause["rule"]
    for member in clause.get("members", ()):
        yield from _rules(member)
