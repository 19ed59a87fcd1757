"""The smallest change that would make a failed call fit: proposed from metadata, then judged like any other call."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ._call import Call
from ._changes import Outline, conversions, outline_of, reshapings, told_sizes
from ._evaluation import Violation, first_violation
from ._rules import near_sizes
from ._trial import Trial, against_of, broken_obligation, point_of
from ._verdicts import Broken
from .clauses import Clause, Exclusive, Needs, Require, Together, lambda_parameters

_SHAPES = {"rank", "axis", "axes"}
#: A trial judges every argument again, so that a call of many arguments gets fewer of them.
_TRIALS, _LEAST = 90, 2


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A change of arguments that is worth a trial.

    Attributes:
        values: Changed argument to its stand-in.
        code: Changed argument to the expression that makes it.
        text: What to tell the reader, where the expressions alone do not say it.
        whole: Whether it is told only where the whole call then fits.
    """

    values: Mapping[str, Any]
    code: Mapping[str, str] = field(default_factory=dict[str, str])
    text: str = ""
    whole: bool = False


def suggest(call: Call, violation: Violation, point: str, against: str | None) -> str:
    """One line with the smallest change that would satisfy the contract; empty where none is known.

    Nothing is computed on tensors: a changed argument is a stand-in with sizes, strides, dtype and device, without
    memory. Every change that is named has made the broken clause hold in such a trial, and broken nothing that it can
    reach. The trial is narrowed for that reason: it costs about as much as the verdict did, a whole one twice that.

    Args:
        call: The failed call.
        violation: What is broken.
        point: Kind of the obligation, or verb of the clause.
        against: The argument that the failing one disagrees with.
    """
    try:
        return _Search(call, violation, point, against).run()
    except Exception:  # noqa: BLE001 - a suggestion is an extra, and must never hide the violation
        return ""


class _Search:
    """Trials for one violation."""

    def __init__(self, call: Call, violation: Violation, point: str, against: str | None) -> None:
        self.call, self.violation, self.point, self.against = call, violation, point, against
        self.left = max(_LEAST, _TRIALS // max(len(call.terms.parameters), 1))
        self.unclaimed = None if violation.step is not None else broken_obligation(call, violation.broken)

    def run(self) -> str:
        if not _plain_sizes(self.call):
            return ""
        partial: tuple[Change, Violation] | None = None
        for change in _changes(self.call, self.violation, self.point, self.against):
            if self.left <= 0:
                break
            trial, after = self._try(self.call, change)
            if after is None:
                return _told(self.call, change)
            if trial is None or change.whole or not self._holds(trial, change, after):
                continue
            more = self._second(trial, change, after)
            if more is not None:
                return _told(self.call, more)
            partial = partial or (change, after)
        if partial is None:
            return near_sizes(self.call, self.violation.step) if self.point == "require" else ""
        reason = partial[1].broken.reason.partition(";")[0]
        return f"{_told(self.call, partial[0])} there; then {reason}"

    def _try(self, call: Call, change: Change) -> tuple[Trial | None, Violation | None]:
        self.left -= 1
        try:
            trial = Trial(call, change.values, self.violation)
            return trial, first_violation(trial)
        except Exception:  # noqa: BLE001 - a rule that wants more than metadata cannot be tried
            return None, self.violation

    def _holds(self, trial: Trial, change: Change, after: Violation) -> bool:
        step = self.violation.step
        if self.unclaimed is not None:
            return trial.status(self.unclaimed) is None
        if step is None or any(isinstance(trial.status(trial.terms.find(n, "type")), Broken) for n in change.values):
            return False
        return after.step is None or after.step.index > step.index

    def _second(self, trial: Trial, change: Change, after: Violation) -> Change | None:
        """A second change that makes the whole call fit; what helped once is looked for in the next argument."""
        point = point_of(trial, after)
        for more in _changes(trial, after, point, against_of(trial, after), change.code):
            if self.left <= 0:
                break
            if more.text or not change.code:
                continue
            _, last = self._try(trial, more)
            if last is None:
                return Change({**change.values, **more.values}, {**change.code, **more.code})
        return None


def _told(call: Call, change: Change) -> str:
    if change.text:
        return change.text
    written = [n for n in change.code if n in call.terms.contract.mutates and _copies(change.code[n])]
    shown = " and ".join(f"`{n} = {c}`" if n in written else f"`{c}`" for n, c in change.code.items())
    keep = f" (a copy of what is written: read {' and '.join(written)} from there)" if written else ""
    return f"{shown} would fit{keep}"


def _copies(code: str) -> bool:
    return any(part in code for part in (".contiguous()", ".to(", ".clone()"))


def _plain_sizes(call: Call) -> bool:
    """Whether no size is symbolic: comparing those would install guards."""
    return all(type(n) is int for p in call.terms.tensors for n in call.shape(p.name) or ())


def _changes(
    call: Call, violation: Violation, point: str, against: str | None, code: Mapping[str, str] | None = None
) -> Iterator[Change]:
    """What to try, the smallest change first."""
    broken = violation.broken
    before = code or {}
    clause = None if violation.step is None else violation.step.clause
    if isinstance(clause, (Needs, Together, Exclusive)):
        yield from _groups(call, clause, broken)
        return
    if isinstance(clause, Require):
        yield from _shapes(call, _misshapen(call, clause), before, None, True)
        return
    subjects = [n for n in broken.names if isinstance(call.tensor(n), torch.Tensor)]
    if against is not None and point in _SHAPES | {"same_dim"}:
        subjects.append(against)
    outlines = [(n, o) for n in subjects if (o := outline_of(call.tensor(n))) is not None]
    if point in _SHAPES | {"same_dim"}:
        yield from _shapes(call, outlines, before, against, "expected [" in broken.reason)
        return
    reference = call.tensor(against) if against is not None else None
    for name, outline in outlines[:2]:
        spec = call.terms.parameters[name].tensor
        for tail, changed in conversions(outline, point, spec, reference, against or ""):
            made = f"{before.get(name, name)}{tail}"
            if name not in call.terms.contract.mutates or point not in ("no_overlap", "dtype", "same_dtype"):
                yield Change({name: changed.stand_in()}, {name: made})
    if point in ("dtype", "same_dtype"):
        yield from _swaps(call, [n for n, _ in outlines])


def _misshapen(call: Call, clause: Require) -> Iterator[tuple[str, Outline]]:
    """Arguments that bound an operand of a relation although their number of axes is wrong."""
    for dim in lambda_parameters(clause.rule):
        axis = call.sources[dim][1] if dim in call.sources else None
        if axis is not None and isinstance(call.status(call.terms.find(axis.parameter.name, "rank")), Broken):
            outline = outline_of(call.tensor(axis.parameter.name))
            if outline is not None:
                yield axis.parameter.name, outline


def _shapes(
    call: Call, given: Iterable[tuple[str, Outline]], before: Mapping[str, str], against: str | None, said: bool
) -> Iterator[Change]:
    outlines = list(given)
    later: list[Change] = []
    for name, outline in outlines:
        told = told_sizes(call, name)
        spec = call.terms.parameters[name].tensor
        if spec is None:
            continue
        if name == against and not told.outvotes(spec.forms[0], outline.shape):
            continue
        for tail, changed, text in reshapings(name, outline, told, spec):
            code = {name: f"{before.get(name, name)}{tail}"}
            change = Change({name: changed.stand_in()}, code, text, whole=bool(text))
            if text:
                # The sizes to have stand in the reason already; a slice does not.
                if tail or not said or name == against:
                    later.append(change)
            else:
                yield change
    yield from _swaps(call, [n for n, _ in outlines])
    yield from later


def _swaps(call: Call, names: list[str]) -> Iterator[Change]:
    for name in names[:1]:
        mine = call.tensor(name)
        for parameter in call.terms.tensors:
            other, value = parameter.name, call.tensor(parameter.name)
            spec = call.terms.parameters[name].tensor
            if other == name or value is None or spec is None or parameter.tensor is None:
                continue
            if (mine.shape == value.shape and mine.dtype == value.dtype) or len(mine.shape) != len(value.shape):
                continue
            if _sizes_fit(call, name, other, value) and _sizes_fit(call, other, name, mine):
                first, second = sorted((name, other), key=list(call.terms.parameters).index)
                text = f"`{first}` and `{second}` look swapped: exchanged, they would fit"
                yield Change({name: value, other: mine}, text=text, whole=True)


def _sizes_fit(call: Call, name: str, leave_out: str, value: Any) -> bool:
    """Whether a value agrees with what arguments other than these two say of a parameter's axes."""
    spec = call.terms.parameters[name].tensor
    told = told_sizes(call, name, leave_out)
    return spec is not None and any(told.fits(form, tuple(value.shape)) for form in spec.forms)


def _groups(call: Call, clause: Clause, broken: Broken) -> Iterator[Change]:
    given = [n for n in clause.names if call.values[n] is not None]
    absent = [n for n in clause.names if call.values[n] is None]
    if isinstance(clause, Exclusive):
        for name in reversed(given):
            dropped = {n: None for n in given if n != name}
            if all(call.terms.parameters[n].optional for n in dropped):
                shown = ", ".join(f"{n}=None" for n in dropped)
                yield Change(dropped, text=f"`{shown}` would fit: give only {name}", whole=True)
        return
    dropped = dict.fromkeys(given[:1] if isinstance(clause, Needs) else given)
    if dropped and all(call.terms.parameters[n].optional for n in dropped):
        shown = ", ".join(f"{n}=None" for n in dropped)
        yield Change(dropped, text=f"`{shown}` would fit, or give {' and '.join(absent)} as well")
