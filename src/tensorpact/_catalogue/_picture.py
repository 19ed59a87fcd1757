"""The picture of a contract: tensors as rows of cells, equal dims in one colour, relations joined to their dims."""

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ._markdown import dtype_text
from ._picture_nodes import GAP, LINE, NODE, PLACE, UNDER, Node, nodes
from ._svg import MONO, SANS, across, around, box, circle, document, hue_count, shortened, text, upright

Form = Mapping[str, Any]
_ROW, _CELL = 34.0, 26.0
#: Width that a stacked picture keeps its relations and its legend to: a column of text on a phone.
_NARROW = 354.0
#: Width that a relation has at least, however long the names of dims are.
_LEAST = 138.0
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


class _Picture:
    def __init__(self, form: Form) -> None:
        self.form = form
        parameters = [p for q in form["parameters"] for p in (q, *q["items"])]
        self.tensors = [p for p in parameters if p["tensor"]]
        self.scalars = {p["name"]: p for p in parameters if not p["tensor"] and p["type"]}
        self.dims = {d["name"]: d for d in form["dims"]}
        self.nodes = list(nodes(form, self.dims, self.scalars))
        derived = {n.name for n in self.nodes if n.name}
        read = Counter(name for n in self.nodes for name in n.reads)
        said = Counter(n for p in self.tensors for f in p["tensor"]["forms"] for a in f["axes"] for n in a["dims"])
        # Colour means "the same size here and there": a dim that stands alone has none.
        shared = [n for n in self.dims if said[n] and said[n] + read[n] + (n in derived) > 1]
        self.hues = {name: i % hue_count() for i, name in enumerate(shared)}
        self.pills = [n for n in (*self.dims, *self.scalars) if n not in derived and (said[n] or read[n])]
        #: How far an edge between two relations goes around them.
        self.reach = math.inf
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
        pill_x = 10.0 if stacked else rows_end + max((len(t) for t in said), default=0) * SANS + 12
        pill_width = max((len(n) for n in self.pills), default=4) * MONO + 18
        node_x = pill_x + pill_width + (44 if stacked else 110)
        self.reach = 24.0 if stacked else math.inf
        for node in self.nodes:
            node.lay_out(max(_NARROW - self.reach - node_x, _LEAST) if stacked else None)
        node_width = max((max(n.width, *(len(b) * SANS + 8 for b in n.below), 0) for n in self.nodes), default=0.0)
        heights = (len(lines) * _ROW, len(self.pills) * GAP, sum(n.step for n in self.nodes))
        # The band of dims and relations: its first line, and how high it is.
        band = top + heights[0] + 48 if stacked else top
        tall = max(heights[1:]) if stacked else max(heights)
        said_below = [" ".join(self._legend())]
        if stacked:
            said_below = [s for line in self._legend() for s in textwrap.wrap(line, int((_NARROW - 24) / SANS))]
        height = band + tall + 44 + 16 * (len(said_below) - 1)
        rows = self._rows(lines, 24 + names, left, left + cells + 16, top)
        self._groups(groups, rows, lines_x, top)
        places = self._pills(said, pill_x, pill_width, band + (tall - heights[1]) / 2)
        self._nodes(node_x, band + (tall - heights[2]) / 2, places, pill_x + pill_width)
        around_room = min(self.reach, 90)
        end = max(rows_end, node_x + node_width + around_room if self.nodes else pill_x + pill_width + 24)
        titles = band - 20 if stacked else 30.0
        title = self.form["entryPoint"]
        self.shapes.append(text(24, 30, title, "title ink"))
        self.shapes.append(text(pill_x + pill_width, titles, "dims", "sans quiet", "end"))
        if self.nodes:
            says = "derived dims, relations" if stacked else "derived dims and relations, numbered in firing order"
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
            y = top + n * GAP
            style = f"d{self.hues[name]}" if name in self.hues else "plain"
            self.shapes.append(box(x, y, width, NODE, style, self._meaning(name), radius=13))
            self.shapes.append(text(x + width / 2, y + 17, name, anchor="middle"))
            if meaning:
                self.shapes.append(text(x - 10, y + 17, meaning, "sans quiet", "end"))
            places[name] = y + NODE / 2
        return places

    def _nodes(self, x: float, top: float, places: dict[str, float], pill_end: float) -> None:
        made: dict[str, Node] = {}
        y = top
        for node in self.nodes:
            node.x, node.y = x, y
            y += node.step
            middle = node.y + node.tall / 2
            for name in node.reads:
                if name in made:
                    source = made[name]
                    reach = min(18 + 7 * abs(node.y - source.y) / GAP, self.reach)
                    style = self._edge(name)
                    self.edges.append(
                        around(
                            source.x + source.width, source.y + source.tall / 2, x + node.width, middle, reach, style
                        )
                    )
                elif name in places:
                    self.edges.append(across(pill_end, places[name], x, middle, self._edge(name)))
            self.shapes.append(box(x, node.y, node.width, node.tall, self._fill(node), node.label))
            if node.place:
                self.shapes.append(text(x + 26, node.y + 17, node.place, "sans quiet", "end"))
            begin = x + 8 + (PLACE if node.place else 0)
            self.shapes += [text(begin, node.y + 17 + LINE * n, line) for n, line in enumerate(node.lines)]
            self.shapes += [
                text(x + 8, node.y + node.tall + 11 + UNDER * n, line, "sans quiet")
                for n, line in enumerate(node.below)
            ]
            if node.name:
                made[node.name] = node

    def _fill(self, node: Node) -> str:
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
