"""The picture of a contract: tensors as rows of cells, equal dims in one colour, relations joined to their dims."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._markdown import dtype_text, rule_text
from ._svg import MONO, SANS, across, around, box, circle, document, hue_count, shortened, text, upright

Form = Mapping[str, Any]
_ROW, _CELL, _NODE, _GAP = 34.0, 26.0, 26.0, 36.0
_PLACE, _UNDER = 26.0, 12.0
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
_GROUPS = {"same_device": "one device", "same_dtype": "one dtype", "no_overlap": "apart"}


def picture(form: Form, scheme: str = "auto", stacked: bool = False) -> str:
    """A contract as SVG.

    Args:
        form: What :func:`describe` gives.
        scheme: ``"auto"`` follows the reader's preference; ``"light"`` and ``"dark"`` are fixed.
        stacked: Dims and relations below the tensors in place of beside them, for a column of text.
    """
    return _Picture(form).draw(scheme, stacked)


@dataclass(slots=True)
class _Node:
    """A derived dim or a relation.

    Attributes:
        label: What it says.
        reads: Dims, helpers and arguments it is joined to.
        name: What it derives.
        place: Its place in firing order.
        under: A second line.
    """

    label: str
    reads: tuple[str, ...]
    name: str = ""
    place: str = ""
    under: str = ""
    x: float = 0.0
    y: float = 0.0
    width: float = field(default=0.0)


class _Picture:
    def __init__(self, form: Form) -> None:
        self.form = form
        parameters = [p for q in form["parameters"] for p in (q, *q["items"])]
        self.tensors = [p for p in parameters if p["tensor"]]
        self.scalars = {p["name"]: p for p in parameters if not p["tensor"] and p["type"]}
        self.dims = {d["name"]: d for d in form["dims"]}
        self.nodes = list(_nodes(form, self.dims, self.scalars))
        derived = {n.name for n in self.nodes if n.name}
        read = Counter(name for n in self.nodes for name in n.reads)
        said = Counter(n for p in self.tensors for f in p["tensor"]["forms"] for a in f["axes"] for n in a["dims"])
        # Colour means "the same size here and there": a dim that stands alone has none.
        shared = [n for n in self.dims if said[n] and said[n] + read[n] + (n in derived) > 1]
        self.hues = {name: i % hue_count() for i, name in enumerate(shared)}
        self.pills = [n for n in (*self.dims, *self.scalars) if n not in derived and (said[n] or read[n])]
        self.shapes: list[str] = []
        self.edges: list[str] = []

    def draw(self, scheme: str, stacked: bool) -> str:
        groups = list(_groups(self.form))
        names = max((len(p["name"]) for p in self.tensors), default=0) * MONO
        top = 112.0 if groups else 62.0
        left = 24 + names + 14
        lines = [(p, f) for p in self.tensors for f in p["tensor"]["forms"]]
        cells = max((sum(_width(a) for a in f["axes"]) for _, f in lines), default=0)
        notes = max((len(self._note(p)) for p in self.tensors), default=0) * SANS
        lines_x = left + cells + 16 + notes + 16
        rows_end = lines_x + 18 * len(groups) + 20
        # In a column of text the glossary is near, so the dims go without what they mean.
        said = ["" if stacked else shortened(self._meaning(n), 52) for n in self.pills]
        pill_x = 24.0 if stacked else rows_end + max((len(t) for t in said), default=0) * SANS + 12
        pill_width = max((len(n) for n in self.pills), default=4) * MONO + 18
        node_x = pill_x + pill_width + 110
        for node in self.nodes:
            node.width = len(node.label) * MONO + 16 + (_PLACE if node.place else 0)
        node_width = max((max(n.width, len(n.under) * SANS + 8) for n in self.nodes), default=0.0)
        under = sum(bool(n.under) for n in self.nodes) * _UNDER
        heights = (len(lines) * _ROW, len(self.pills) * _GAP, len(self.nodes) * _GAP + under)
        # The band of dims and relations: its first line, and how high it is.
        band = top + heights[0] + 48 if stacked else top
        tall = max(heights[1:]) if stacked else max(heights)
        said_below = self._legend() if stacked else [" ".join(self._legend())]
        height = band + tall + 44 + 16 * (len(said_below) - 1)
        rows = self._rows(lines, 24 + names, left, left + cells + 16, top)
        self._groups(groups, rows, lines_x, top)
        places = self._pills(said, pill_x, pill_width, band + (tall - heights[1]) / 2)
        self._nodes(node_x, band + (tall - heights[2]) / 2, places, pill_x + pill_width)
        end = max(rows_end, node_x + node_width + 90 if self.nodes else pill_x + pill_width + 24)
        titles = band - 20 if stacked else 30.0
        title = self.form["entryPoint"]
        self.shapes.append(text(24, 30, title, "title ink"))
        self.shapes.append(text(pill_x + pill_width, titles, "dims", "sans quiet", "end"))
        if self.nodes:
            says = "derived dims and relations, numbered in firing order"
            self.shapes.append(text(node_x, titles, says, "sans quiet"))
        for n, line in enumerate(reversed(said_below)):
            self.shapes.append(text(24, height - 16 - 16 * n, line, "sans quiet"))
        width = max(end, *(24 + len(line) * SANS + 24 for line in said_below))
        says = f"{len(self.tensors)} tensors, one row each, a cell an axis; cells of one colour have one size."
        return document(width, height, title, says, [*self.edges, *self.shapes], scheme)

    def _rows(
        self,
        lines: list[tuple[Form, Form]],
        name_end: float,
        left: float,
        note_x: float,
        top: float,
    ) -> dict[str, float]:
        rows: dict[str, float] = {}
        for n, (p, form) in enumerate(lines):
            y = top + n * _ROW
            if p["name"] not in rows:
                rows[p["name"]] = y + _CELL / 2
                self.shapes.append(text(name_end, y + 17, p["name"], anchor="end"))
                self.shapes.append(text(note_x, y + 17, self._note(p), "sans quiet"))
            else:
                self.shapes.append(text(name_end, y + 17, "or", "sans quiet", "end"))
            x = left
            for axis in form["axes"]:
                self._cell(x, y, axis, p)
                x += _width(axis)
            if not form["axes"]:
                self.shapes.append(text(x, y + 17, "a scalar", "sans quiet"))
        return rows

    def _groups(
        self, groups: list[tuple[str, str, list[str]]], rows: dict[str, float], left: float, top: float
    ) -> None:
        for i, (kind, label, names) in enumerate(groups):
            x = left + 18 * i + 6
            reached = [rows[n] for n in names if n in rows]
            if len(reached) > 1:
                self.shapes.append(
                    upright(x, min(reached), max(reached), f"line{' dash' if kind == 'no_overlap' else ''}")
                )
                self.shapes += [
                    circle(x, y, 3.5, "ring" if kind == "no_overlap" and n == 0 else "dot")
                    for n, y in enumerate(reached)
                ]
                self.shapes.append(text(x + 4, top - 6, label, "sans quiet", turned=True))

    def _cell(self, x: float, y: float, axis: Form, p: Form) -> None:
        width = _width(axis)
        hues = [self.hues[n] for n in axis["dims"] if n in self.hues]
        dashed = " dash" if axis["kind"] == "expression" or p["optional"] else ""
        says = "; ".join(f"{n}: {self._meaning(n)}" for n in axis["dims"] if self._meaning(n))
        if len(hues) > 1:
            part = width / len(hues)
            self.shapes += [box(x + i * part, y, part, _CELL, f"d{h}", radius=0) for i, h in enumerate(hues)]
            self.shapes.append(box(x, y, width, _CELL, "none", says, radius=0))
        else:
            style = f"d{hues[0]}" if hues else "plain"
            self.shapes.append(box(x, y, width, _CELL, style + dashed, says, radius=0))
        mark = "#" if axis["broadcast"] else ""
        self.shapes.append(text(x + width / 2, y + 17, mark + axis["text"], anchor="middle"))

    def _pills(self, said: list[str], x: float, width: float, top: float) -> dict[str, float]:
        places: dict[str, float] = {}
        for n, (name, meaning) in enumerate(zip(self.pills, said, strict=True)):
            y = top + n * _GAP
            style = f"d{self.hues[name]}" if name in self.hues else "plain"
            self.shapes.append(box(x, y, width, _NODE, style, self._meaning(name), radius=13))
            self.shapes.append(text(x + width / 2, y + 17, name, anchor="middle"))
            if meaning:
                self.shapes.append(text(x - 10, y + 17, meaning, "sans quiet", "end"))
            places[name] = y + _NODE / 2
        return places

    def _nodes(self, x: float, top: float, places: dict[str, float], pill_end: float) -> None:
        made: dict[str, _Node] = {}
        y = top
        for node in self.nodes:
            node.x, node.y = x, y
            y += _GAP + (_UNDER if node.under else 0)
            middle = node.y + _NODE / 2
            for name in node.reads:
                if name in made:
                    source = made[name]
                    reach = 18 + 7 * abs(node.y - source.y) / _GAP
                    style = self._edge(name)
                    self.edges.append(
                        around(source.x + source.width, source.y + _NODE / 2, x + node.width, middle, reach, style)
                    )
                elif name in places:
                    self.edges.append(across(pill_end, places[name], x, middle, self._edge(name)))
            self.shapes.append(box(x, node.y, node.width, _NODE, self._fill(node), node.label))
            if node.place:
                self.shapes.append(text(x + 26, node.y + 17, node.place, "sans quiet", "end"))
            self.shapes.append(text(x + 8 + (_PLACE if node.place else 0), node.y + 17, node.label))
            if node.under:
                self.shapes.append(text(x + 8, node.y + _NODE + 11, node.under, "sans quiet"))
            if node.name:
                made[node.name] = node

    def _fill(self, node: _Node) -> str:
        """Style of a node: the colour of what it derives; an expression axis looks like its cell."""
        if node.name in self.hues:
            return f"d{self.hues[node.name]}"
        alone = not node.place and not node.name and len(node.reads) == 1 and node.reads[0] in self.hues
        return f"d{self.hues[node.reads[0]]} dash" if alone else "plain"

    def _edge(self, name: str) -> str:
        return f"e{self.hues[name]}" if name in self.hues else "link"

    def _meaning(self, name: str) -> str:
        if name in self.dims:
            return self.dims[name]["meaning"] or ""
        return self.scalars[name]["type"] if name in self.scalars else ""

    def _note(self, p: Form) -> str:
        tensor = p["tensor"]
        dtype = dtype_text(tensor)
        for name, short in _SHORT.items():
            dtype = dtype.replace(name, short)
        parts = [dtype.replace(", ", " "), *(tensor["device"] or ()), *(c.partition("(")[0] for c in tensor["layout"])]
        parts += ["optional"] if p["optional"] else []
        parts += ["written"] if p["mutated"] else []
        return " · ".join(parts)

    def _legend(self) -> list[str]:
        drawn = {n.place for n in self.nodes}
        rest = [
            str(c["place"]) for c in self.form["clauses"] if c["kind"] == "require" and str(c["place"]) not in drawn
        ]
        lines = ["Cells of one colour have one size; a dashed cell is computed from others or may be absent."]
        if any(c["kind"] == "no_overlap" and len(c["parameters"]) > 1 for c in self.form["clauses"]):
            lines.append("What a hollow dot marks shares no memory with the others on its line.")
        return [*lines, f"Relations of no dim, not drawn: {', '.join(rest)}."] if rest else lines


def _width(axis: Form) -> float:
    return max(46.0, (len(axis["text"]) + axis["broadcast"]) * MONO + 16)


def _nodes(form: Form, dims: Mapping[str, Form], scalars: Mapping[str, Form]) -> Iterator[_Node]:
    expressions: dict[str, list[tuple[str, Form]]] = {}
    for p in (p for q in form["parameters"] for p in (q, *q["items"]) if p["tensor"]):
        for axis in (a for f in p["tensor"]["forms"] for a in f["axes"] if a["kind"] == "expression"):
            expressions.setdefault(axis["text"], []).append((p["name"], axis))
    for shown, places in expressions.items():
        owners = ", ".join(dict.fromkeys(name for name, _ in places))
        yield _Node(shown, tuple(places[0][1]["dims"]), under=shortened(f"an axis of {owners}", 60))
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
                    yield _Node(shortened(label, 44), reads, d["name"], under=shortened(meaning, 60))
            continue
        for rule in _rules(clause):
            reads = tuple(n for n in rule["reads"] if n in known)
            if reads:
                yield _Node(shortened(rule_text(rule), 44), reads, place=str(clause["place"]))


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


def _groups(form: Form) -> Iterator[tuple[str, str, list[str]]]:
    """Kind, label and tensors of each group that one line joins; equalities that meet are one group."""
    joined: dict[str, list[list[str]]] = {"same_device": [], "same_dtype": [], "no_overlap": []}
    for clause in (m for c in form["clauses"] for m in (c.get("members") or (c,))):
        kind, names = clause["kind"], list(clause["parameters"])
        if kind not in joined or len(names) < 2:
            continue
        meets = [g for g in joined[kind] if set(g) & set(names)] if kind != "no_overlap" else []
        for group in meets:
            joined[kind].remove(group)
        joined[kind].append(list(dict.fromkeys(n for g in (*meets, names) for n in g)))
    for kind, groups in joined.items():
        for names in groups:
            yield kind, _GROUPS[kind], names
