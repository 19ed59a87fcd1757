"""The drafted contract raises what the function raised: class, text and order, and lets the same calls through."""

import functools
import pathlib
import sys

import drafted_functions as functions
import pytest
import torch

from tensorpact import ContractViolation
from tensorpact._draft import draft

FILE = pathlib.Path(functions.__file__)
HALF, FULL = torch.float16, torch.float32


@functools.cache
def drafted(name: str):
    text = draft(f"{FILE}:{name}").text
    scope = {"__name__": "drafted"}
    exec(compile(text, f"<draft of {name}>", "exec"), scope)
    return scope[name]


def tensor(*shape, dtype=FULL, device="cpu"):
    return torch.zeros(shape, dtype=dtype, device=device)


def half(*shape):
    return tensor(*shape, dtype=HALF)


def whole(**changes):
    """A valid call of ``attend`` with changes."""
    q, k, v = half(2, 4, 3, 8), half(2, 2, 3, 8), half(2, 2, 3, 8)
    return {"q": q, "k": k, "v": v, "mask": tensor(2, 3, dtype=torch.bool) + 1 > 0, **changes}


SPREAD = half(2, 4, 3, 16)[..., ::2]
CALLS = {
    "attend": [
        whole(),
        whole(q=half(2, 4, 3)),
        whole(k=half(2, 3, 8)),
        whole(v=half(2, 3, 8)),
        whole(q=tensor(2, 4, 3, 8)),
        whole(k=tensor(2, 2, 3, 8)),
        whole(v=tensor(2, 2, 3, 8)),
        whole(k=half(1, 2, 3, 8)),
        whole(k=half(2, 2, 3, 9)),
        whole(v=half(2, 2, 5, 8)),
        whole(v=half(2, 1, 3, 8)),
        whole(k=half(2, 3, 3, 8), v=half(2, 3, 3, 8)),
        whole(q=SPREAD),
        whole(k=SPREAD, v=SPREAD),
        whole(mask=tensor(2, 4, dtype=torch.bool)),
        whole(mask=tensor(2, 3, 1, dtype=torch.bool)),
        whole(mask=tensor(2, 3)),
        whole(mask=tensor(2, 4)),
        whole(scale=0.0),
        whole(scale=float("nan")),
        whole(scale=2.0),
        whole(q=half(2, 4, 3, 65), k=half(2, 2, 3, 65), v=half(2, 2, 3, 65)),
        whole(q=half(2, 4, 1, 8), mask=tensor(2, 1, dtype=torch.bool) + 1 > 0, causal=True),
    ],
    "ranks": [{"x": tensor(*x), "y": tensor(*y)} for x in ((2, 3), (2,), ()) for y in ((2,), (2, 3))],
    "sizes": [
        {"x": tensor(*x), "w": tensor(*w), "out": None if o is None else tensor(*o)}
        for x, w, o in [
            ((2, 16), (3, 16), None),
            ((2, 16), (3, 16), (2, 3)),
            ((2, 16), (3, 16), (3, 2)),
            ((2, 16), (3, 16), (2, 3, 1)),
            ((2, 16), (3, 15), (3, 2)),
            ((2, 15), (3, 15), (3, 2)),
            ((16,), (3, 16), None),
        ]
    ],
    "devices": [{"x": tensor(2, device=a), "y": tensor(2, device=b)} for a in ("cpu", "meta") for b in ("cpu", "meta")],
    "layouts": [{"x": x, "y": y} for x in (tensor(2, 3), tensor(3, 2).T) for y in (tensor(2, 3), tensor(3, 2).T)],
    "groups": [
        {"x": tensor(1), **{n: tensor(1) for n in names}} for names in ("", "a", "b", "c", "ab", "ac", "bc", "abc")
    ],
    "given": [{"x": x, "n": n} for x in (None, tensor(1)) for n in (1, 0, -12)],
    "branches": [{"x": tensor(*s), "mode": m} for s in ((2,), (2, 2)) for m in ("a", "b", "c")],
    "returns": [{"x": tensor(n), "fast": f} for n in (4, 5) for f in (False, True)],
    "helpers": [
        {"x": tensor(*x, dtype=a), "y": tensor(*y, dtype=b)}
        for x, y, a, b in [
            ((2, 3), (2, 3), FULL, FULL),
            ((2,), (2, 3), FULL, FULL),
            ((2, 3), (2,), FULL, HALF),
            ((2, 3), (2, 3), HALF, FULL),
            ((2, 3), (2, 3), FULL, HALF),
        ]
    ]
    + [{"x": tensor(2, 3), "y": tensor(3, 2).T}],
    "scalars": [{"x": tensor(6), "n": n, "flag": f} for n in (2, 4, "2", 2.0) for f in (None, "a", "z")],
    "last": [{"x": tensor(*x), "w": tensor(*w)} for x in ((5,), (2, 5), (2, 3, 4)) for w in ((5,), (4, 7))],
}


def outcome(function, arguments) -> tuple[str, str]:
    try:
        function(**arguments)
    except ContractViolation as error:
        # A default error has no documented class, and equals nothing that a function raises.
        return getattr(getattr(error.error, "documented", None), "__name__", "default error"), str(error)
    except Exception as error:  # noqa: BLE001 - whatever the function raises is what the contract has to raise
        return type(error).__name__, str(error)
    return "passed", ""


@pytest.mark.parametrize("name", CALLS)
def test_same_class_and_text(name: str):
    original = getattr(functions, name)
    theirs = [outcome(original, c) for c in CALLS[name]]
    assert [outcome(drafted(name), c) for c in CALLS[name]] == theirs
    assert len(set(theirs)) > 1, "the calls break nothing"


def test_every_check_of_the_whole_entry_point_fires():
    raised = {outcome(functions.attend, c)[1] for c in CALLS["attend"]}
    errors = [i.error for i in draft(f"{FILE}:attend").items if i.error is not None]
    assert len(raised - {""}) + ("" in raised) >= len(errors)


def test_the_documented_class_is_the_one_of_the_module():
    wide = half(2, 4, 3, 65)
    with pytest.raises(functions.TooWideError):
        drafted("attend")(**whole(q=wide, k=half(2, 2, 3, 65), v=half(2, 2, 3, 65)))


def test_a_draft_needs_nothing_but_its_module():
    assert "drafted_functions" in sys.modules
    assert "from drafted_functions import TooWideError" in draft(f"{FILE}:attend").text
