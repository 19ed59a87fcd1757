"""One tensor of a contract against its earlier version: dtypes, devices, layout, axes."""

import re
from collections.abc import Iterator
from typing import Any

from ._markdown import Form

Found = tuple[str, Any, str]
_LEVEL = {"loosened": "minor", "tightened": "major", "reworded": "patch", "added": "minor", "removed": "major"}


def change(kind: str, text: str) -> Found:
    """A difference at the level that its kind asks for."""
    return kind, _LEVEL[kind], text


def tensor_changes(name: str, p: Form, q: Form) -> Iterator[Found]:
    """What changed in what an annotation says of one tensor.

    Args:
        name: The parameter.
        p: The ``tensor`` of its earlier machine form.
        q: That of the later one.
    """
    yield from _sets(f"dtype of {name}", p["dtypes"], q["dtypes"])
    yield from _sets(f"device of {name}", p["device"], q["device"])
    # A constraint is held where another one implies it.
    lost = [c for c in p["layout"] if not any(_implies(d, c) for d in q["layout"])]
    gained = [c for c in q["layout"] if not any(_implies(d, c) for d in p["layout"])]
    yield from (change("loosened", f"{name} need not be {c}") for c in lost)
    yield from (change("tightened", f"{name} must be {c}") for c in gained)
    lost, gained = ([v for v in a["dtypeVariables"] if v not in b["dtypeVariables"]] for a, b in ((p, q), (q, p)))
    yield from (change("loosened", f"{name} need not have the dtype {v}") for v in lost)
    yield from (change("tightened", f"{name} must have the dtype {v}") for v in gained)
    before, after = ({f["shape"]: f for f in t["forms"]} for t in (p, q))
    if len(before) == len(after) == 1:
        yield from _shape(name, next(iter(before.values())), next(iter(after.values())))
        return
    yield from (change("tightened", f"{name} must not be [{s}]") for s in before if s not in after)
    yield from (change("loosened", f"{name} may be [{s}]") for s in after if s not in before)


def _sets(what: str, old: list[str] | None, new: list[str] | None) -> Iterator[Found]:
    if old == new:
        return
    gone = [v for v in old or () if v not in new] if new is not None else []
    more = [v for v in new or () if v not in old] if old is not None else []
    if old is None or gone:
        yield change(
            "tightened", f"{what}: {f'no {chr(44).join(gone)}' if gone else f'only {chr(44).join(new or [])}'}"
        )
    if new is None or more:
        yield change("loosened", f"{what}: {f'also {chr(44).join(more)}' if more else 'any'}")


def _implies(strong: str, weak: str) -> bool:
    if strong == weak:
        return True
    s, w = (re.fullmatch(r"(\w+)(?:\((.*)\))?", t) for t in (strong, weak))
    if s is None or w is None:
        return False
    if s[1] == "Contiguous":
        return weak == "DenseLast" or w[1] == "DenseInner"
    if s[1] == "DenseInner":
        return weak == "DenseLast" or (w[1] == "DenseInner" and int(s[2]) >= int(w[2]))
    if s[1] == w[1] == "Aligned":
        return int(s[2]) % int(w[2]) == 0
    return s[1] == w[1] == "DenseLast" and s[2] == "strict=True"


def _shape(name: str, f: Form, g: Form) -> Iterator[Found]:
    if f["array"] != g["array"]:
        yield change("tightened", f"{name} was a {f['array']} and is a {g['array']}")
    a, b = f["axes"], g["axes"]
    loose = [x["kind"] == "ellipsis" for x in (*a, *b)]
    if len(a) != len(b) or any(loose):
        if f["shape"] != g["shape"]:
            only = len(b) == 1 and b[0]["kind"] == "ellipsis"
            yield change("loosened" if only else "tightened", f"{name} was [{f['shape']}] and is [{g['shape']}]")
        return
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if x["broadcast"] != y["broadcast"]:
            word = "may" if y["broadcast"] else "must not"
            yield change(
                "loosened" if y["broadcast"] else "tightened", f"axis {i} of {name} {word} have size 1 instead"
            )
        if x["text"] != y["text"]:
            free = y["kind"] == "anonymous"
            yield change("loosened" if free else "tightened", f"axis {i} of {name} was {x['text']} and is {y['text']}")
