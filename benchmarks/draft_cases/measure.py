"""One draft measured: on generated calls, whether its contract raises what the function raises."""

import ast
import collections
import contextlib
import dataclasses
import random
import types
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorpact._draft import Draft
from tensorpact.testing._drafts import ImpossibleError, resolve
from tensorpact.testing._search import Suite
from tensorpact.testing._space import CannotDrawError, Space

from .contracted import Contracted, help_out, hinted, mirrored, on_cuda
from .original import Original, quiet
from .search import Furthest, Unwritten

#: Single changes that are tried of each start; a fourth as many pairs.
MOVES = 40
STARTS = 3
SEED = 0
#: What functions are told of the card that fake tensors lie on.
CARD = types.SimpleNamespace(name="NVIDIA H100", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30)
#: What the draft says of CUDA where the function wants it.
_ASKS = ('OnDevice("cuda")', "is_cuda", 'type == "cuda"')


@contextlib.contextmanager
def on_card() -> Any:
    """Whoever asks torch for the card is told of one."""
    told = {
        "is_available": lambda: True,
        "get_device_capability": lambda *_, **__: (CARD.major, CARD.minor),
        "get_device_properties": lambda *_, **__: CARD,
        "get_device_name": lambda *_, **__: CARD.name,
    }
    before = {name: getattr(torch.cuda, name) for name in told}
    vars(torch.cuda).update(told)
    try:
        yield
    finally:
        vars(torch.cuda).update(before)


def measure(made: Draft) -> dict[str, Any]:
    """Figures of one draft.

    Args:
        made: The draft; its function is imported, and what it says of arguments is run.
    """
    row: dict[str, Any] = {
        "target": made.target,
        "checks": len(made.checks),
        "translated": made.translated,
        "left": sorted({r for r in made.checks.values() if r is not None}),
        "compared": 0,
        "equal": 0,
    }
    original = Original(made)
    row["run"] = original.how
    text = hinted(made)
    contracted = Contracted(made, original.namespace, text)
    cuda = any(words in made.text for words in _ASKS)
    row["tensors"] = "fake CUDA" if cuda else "CPU and meta"
    drawn = Contracted(made, original.namespace, mirrored(text)) if cuda else contracted
    help_out(made, drawn.entry.owner)
    try:
        with quiet(), Unwritten(), on_card():
            drawer = Furthest(Space(drawn.entry))
            suite = Suite(drawer, SEED, STARTS)
    except CannotDrawError as bad:
        return row | {"not_run": f"no arguments to start from: {bad}"}
    row["starts"] = {"valid": drawer.valid, "furthest": len(suite.bases) - drawer.valid}
    if drawer.in_the_way:
        row["in_the_way"] = drawer.in_the_way[:200]
    counts: collections.Counter[str] = collections.Counter()
    fired: set[int] = set()
    differs: list[str] = []
    for theirs, ours, changes in _calls(suite, original, contracted, cuda):
        kind = compare(theirs, ours, made, fired)
        counts[kind] += 1
        if kind.startswith("differs") and len(differs) < 400:
            differs.append(f"{kind}: {theirs} / {ours} after {changes}")
    row["witnessed"] = len(fired)
    row["counts"] = dict(sorted(counts.items()))
    row["compared"] = counts["same error"] + sum(n for k, n in counts.items() if k.startswith("differs"))
    row["equal"] = counts["same error"]
    row["examples"] = differs
    if not row["compared"]:
        row["not_run"] = "no generated call came to a translated check"
    return row


def _calls(suite: Suite, original: Original, contracted: Contracted, cuda: bool) -> Any:
    """What the function and its draft say of each call, and what was changed for it."""
    space = suite.space
    keywords = frozenset(name for name, mark in space.marks.items() if mark == f"{name}=")
    rest = {p.name: () if p.kind is p.kind.VAR_POSITIONAL else {} for p in space.parameters if p.name in space.starred}
    rng = random.Random(SEED)
    for base in suite.bases:
        moves = base.all if len(base.all) <= MOVES else rng.sample(base.all, MOVES)
        pairs = [tuple(rng.sample(base.all, 2)) for _ in range(MOVES // 4)] if len(base.all) > 1 else []
        for changes in ((), *((m,) for m in moves), *pairs):
            try:
                case = resolve(space, base.draft.moved(*changes))
            except ImpossibleError:
                continue
            case = dataclasses.replace(case, plans=on_cuda(case.plans)) if cuda else case
            try:
                with FakeTensorMode(allow_non_fake_inputs=True) if cuda else contextlib.nullcontext():
                    given = case.arguments()
                    with on_card():
                        theirs, ours = original.outcome(given, keywords), contracted.outcome(given | rest)
                yield theirs, ours, changes
            except (RuntimeError, NotImplementedError):
                continue  # no such tensor can be made


def compare(theirs: tuple[str, Any, str], ours: tuple[str, Any, str], made: Draft, fired: set[int]) -> str:
    """What one call says of the draft."""
    if theirs[0] == "other":
        return "raw error of the function"
    if theirs[0] == "passed":
        return {
            "passed": "both pass",
            "check": "differs: the function passes, the contract raises a documented error",
            "default": "stricter: an annotation of the draft is broken",
            "rule failed": "differs: a rule of the draft fails",
        }[ours[0]]
    line, kind = theirs[1]
    raises = {ast.unparse(i.error.exception).rpartition(".")[2] for i in made.items if i.line == line and i.error}
    if raises and kind.__name__ not in raises:
        return "raw error of the function"  # the condition itself failed, an IndexError or a division by zero
    if made.checks.get(line, "no item") is not None:
        return "fires a check that is not translated"
    if ours[0] == "check" and ours[1] is kind and ours[2] == theirs[2]:
        fired.add(line)
        return "same error"
    if ours[0] == "check":
        return "differs: another documented error" if ours[1:] != (kind, theirs[2]) else "same error"
    return {
        "passed": "differs: the contract lets it through",
        "default": "differs: a default error in its place",
        "rule failed": "differs: a rule of the draft fails",
    }[ours[0]]
