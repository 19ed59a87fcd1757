"""Asynchronous checks from the start of the kernel to the error: calls in flight, and violations not raised yet."""

import itertools
import os
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from tensorpact._changes import Outline
from tensorpact._clause import Rule

from . import counts, launching, modes
from .clauses import Check, Values
from .judging import broken, scope_of
from .mailbox import CAPTURED, Laid, Mailbox, Record
from .rows import FINITE, Breach, Row, as_float
from .statements import Absent, Run, Statement, runner
from .table import Table

if TYPE_CHECKING:
    from tensorpact._errors import ContractViolation
    from tensorpact._terms import Step, Terms

#: So many calls are remembered, so that a late violation can tell of its call; of captured ones all.
_REMEMBERED = 4096
#: So many violations wait to be raised; more stay in the mailbox.
_WAITING = 256

_numbers = itertools.count(1)
_lock = threading.RLock()
_boxes: dict[torch.device, Mailbox] = {}
_box_list: tuple[Mailbox, ...] = ()
_calls: "dict[int, Checked]" = {}
_captured: "dict[int, Checked]" = {}
_queue: deque[Record] = deque()
#: Starts the kernel on a table; another one where a test has no device.
Start = Callable[[Mailbox, Laid, int, int, Table, Sequence[int], int], None]


@dataclass(frozen=True, slots=True)
class Looked:
    """One check of a call, without its numbers: which clause, of which parameter."""

    step: "Step"
    clause: Values
    name: str
    check: Check
    kind: int


@dataclass(frozen=True, slots=True)
class Checked:
    """What a late error tells of the call.

    Attributes:
        terms: The contract laid on the signature.
        facts: Argument by name: tensors without their memory.
        looked: The checks, in the order of the table; those that a kernel of the call itself may mean, in its order.
        captured: Whether the launch is part of a graph.
        stack: Where the call was made, where that was asked for.
        in_kernel: Whether the launch is that of the call's own kernel.
    """

    terms: "Terms"
    facts: Mapping[str, Any]
    looked: "tuple[Looked | tuple[Looked, ...], ...]"
    captured: bool = False
    stack: traceback.StackSummary | None = None
    in_kernel: bool = False


@dataclass(frozen=True, slots=True)
class Loose:
    """An argument that is no tensor and no plain value. It may hold tensors, so a remembered call does not keep it."""

    object: "weakref.ref[Any]"


def facts_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments without memory: what a late error needs.

    Args:
        values: Parameter name to argument.
    """
    return {name: _exchanged(v, _outlined) for name, v in values.items()}


def _outlined(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
        return Outline(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype, leaf.device)
    if leaf is None or isinstance(leaf, (Tensor, Number, str)) or callable(leaf):
        return leaf
    try:
        return Loose(weakref.ref(leaf))
    except TypeError:
        return leaf


def _recalled(leaf: Any) -> Any:
    if isinstance(leaf, Loose):
        return leaf.object()
    return leaf.stand_in() if isinstance(leaf, Outline) else leaf


def _exchanged(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """A value with other leaves, and everything in its lists, tuples and mappings likewise."""
    kind = cast("Any", type(value))
    if isinstance(value, dict):
        return {k: _exchanged(v, leaf) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        items = [_exchanged(v, leaf) for v in cast("Sequence[Any]", value)]
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    return leaf(value)


def looked_at(step: "Step", statement: Statement) -> Looked:
    """A check without its numbers."""
    return Looked(step, statement.clause, statement.name, statement.check, statement.row.kind)


def box_of(device: torch.device) -> Mailbox:
    """The mailbox of a device, made when it is first asked for."""
    global _box_list
    found = _boxes.get(device)
    if found is None:
        with _lock:
            found = _boxes.setdefault(device, Mailbox(device)) if device not in _boxes else _boxes[device]
            _box_list = tuple(_boxes.values())
    return found


def is_known(device: torch.device) -> bool:
    """Whether there is a mailbox for a device."""
    return device in _boxes


def launch(
    box: Mailbox, table: Table, addresses: Sequence[int], checked: Checked, start: Start, *, again: bool = False
) -> None:
    """Start the checker on one call.

    Args:
        box: Mailbox of the device.
        table: The checks.
        addresses: One for each tensor of the table.
        checked: What a late error tells.
        start: Starts the kernel.
        again: Whether the same checks are going to be made again.
    """
    if not launching.is_current(box.device):
        with launching.current(box.device):
            launch(box, table, addresses, checked, start, again=again)
        return
    stream, call = launching.stream_of(box.device), next(_numbers)
    counter = box.captured_counter() if checked.captured else box.counter(stream)
    if counter is None:
        _remember(call, None)
        counts.skip("no room for captured checks" if checked.captured else "too many streams")
        return
    laid = box.lay(table, call, captured=checked.captured, again=again)
    if laid is None:
        _remember(call, None)
        counts.skip("no room for captured checks" if checked.captured else "too many calls in flight")
        return
    _remember(call, checked)
    try:
        start(box, laid, counter, call, table, addresses, stream)
    except BaseException:
        box.take_back(table, laid)
        raise
    counts.did("launched")


def register(checked: Checked) -> int | None:
    """Number of a call whose own kernel reports; None where no more can be captured.

    Args:
        checked: What a late error tells.
    """
    if checked.captured and len(_captured) >= CAPTURED:
        counts.skip("no room for captured checks")
        return None
    call = next(_numbers)
    _remember(call, checked)
    counts.did("in_kernel")
    return call


def _remember(call: int, checked: Checked | None) -> None:
    """Keep what a late error tells of a call, if it is looked at; each number that is given drops an old one."""
    if checked is not None:
        (_captured if checked.captured else _calls)[call] = checked
    _calls.pop(call - _REMEMBERED, None)


def stack_here() -> traceback.StackSummary | None:
    """The stack of the caller, where that was asked for."""
    if not modes.stacks:
        return None
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - walking from the top costs more
    while frame.f_back is not None and (
        __package__ in frame.f_globals.get("__name__", "") or frame.f_code.co_filename.startswith("<tensorpact")
    ):
        frame = frame.f_back
    return traceback.StackSummary.extract(traceback.walk_stack(frame), limit=24, lookup_lines=False)


def waiting() -> bool:
    """Whether a violation is known or has come: one plain load for each device."""
    if _queue:
        return True
    for box in _box_list:  # noqa: SIM110 - a generator costs more than the load
        if box.words[box.at] & 0xFFFF == box.tag:
            return True
    return False


def take() -> "ContractViolation | None":
    """The next violation as the error to raise, or None."""
    while waiting():
        _collect()
        try:
            record = _queue.popleft()
        except IndexError:
            return None
        error = _error_of(record)
        if error is not None:
            return error
    return None


def _collect() -> None:
    with _lock:
        for box in _box_list:
            while len(_queue) < _WAITING:
                record = box.read()
                if record is None:
                    break
                _queue.append(record)


def pending() -> int:
    """Violations that are known and not raised yet."""
    _collect()
    return len(_queue)


def dropped() -> int:
    """Violations that found no room."""
    return sum(box.dropped for box in _box_list)


def wait() -> None:
    """Wait until every checker that was started has ended."""
    for box in _box_list:
        if box.device.type != "cpu":
            torch.cuda.synchronize(box.device)


def _error_of(record: Record) -> "ContractViolation | None":
    """What a record says; None where the contract of the call says nothing of such a number."""
    from tensorpact._errors import ContractDefinitionError

    checked = _captured.get(record.call) or _calls.get(record.call)
    if checked is None:
        return _undocumented(record, f"a number of call {record.call}, which is no longer remembered,")
    try:
        return _documented(record, checked)
    except ContractDefinitionError as error:
        # A let or a field of the message reads what is no longer there, the numbers of a tensor say.
        found = _undocumented(record, f"a number of call {record.call} of {checked.terms.owner}")
        found.add_note(f"its documented error cannot be written: {error}")
        _annotate(found, record, checked)
        return found


def _undocumented(record: Record, whose: str) -> "ContractViolation":
    from tensorpact._errors import ContractValueError

    error = ContractValueError(
        f"{whose} breaks its contract: "
        f"check {record.row} at place {record.place} found {record.value}, the limit is {record.limit}"
    )
    error.call_number = record.call
    return error


def _documented(record: Record, checked: Checked) -> "ContractViolation | None":
    from tensorpact._call import Call
    from tensorpact._diagnosis import make_error
    from tensorpact._evaluation import Violation, run_lets
    from tensorpact._expansion import expand_call

    values = {n: _exchanged(v, _recalled) for n, v in checked.facts.items()}
    call = Call(*expand_call(checked.terms, values))
    run_lets(call)
    scope = scope_of(call)
    looked = _meant(checked, record, scope)
    if looked is None:
        return None
    value = as_float(record.value, values[looked.name]) if looked.kind == FINITE else record.value
    statement = Statement(looked.clause, looked.name, looked.check, Row(looked.kind, []))
    verdict = broken(statement, Breach(record.place, value, record.limit), scope)
    error = make_error(call, Violation(verdict, looked.step.clause.error, looked.step))
    error.call_number = record.call
    _annotate(error, record, checked)
    return error


def _meant(checked: Checked, record: Record, scope: Mapping[str, Any]) -> Looked | None:
    """The check that a record is of: of those that a kernel may mean the first that applies to the call."""
    looked = checked.looked[record.row]
    if isinstance(looked, Looked):
        return looked
    run = runner(scope, (*checked.terms.dims, *checked.terms.lets))
    for candidate in looked:
        clause, step = candidate.clause, candidate.step
        around = step.clause.when if step.clause is not clause else None
        is_padding = record.value == clause.padding or (clause.padding == "negative" and record.value < 0)
        if not is_padding and _applies((around, clause.when), run):
            return candidate
    return None


def _applies(conditions: "tuple[Rule | None, ...]", run: Run) -> bool:
    try:
        return all(run(rule) for rule in conditions if rule is not None)
    except Absent:
        return False


def _annotate(error: "ContractViolation", record: Record, checked: Checked) -> None:
    """Say which call it was."""
    if checked.in_kernel:
        which = f"captured as call {record.call}" if checked.captured else f"of call {record.call}"
        lines = [f"found in the kernel {which}, which masked it"]
    elif checked.captured:
        lines = [f"found by the asynchronous check in run {record.run} of the launch captured as call {record.call}"]
    else:
        lines = [f"found by the asynchronous check of call {record.call}, which was let through"]
    if checked.stack is not None:
        lines += ["that call was made here:", "".join(checked.stack.format()).rstrip()]
    elif not checked.captured and not checked.in_kernel:
        lines.append('tensorpact.value_checks("async", stacks=True) keeps its stack, "sync" raises in the call itself')
    error.add_note("\n".join(lines))


#: Mailboxes of the process that this one was forked from: its memory, which is read and freed by nobody here.
_inherited: list[tuple[Mailbox, ...]] = []


def _in_a_child() -> None:
    """Leave to the parent what it has not raised yet."""
    global _box_list, _lock
    _inherited.append(_box_list)
    # Another thread may have held it.
    _lock = threading.RLock()
    _boxes.clear()
    _box_list = ()
    _queue.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_child)


def forget() -> None:
    """Drop every call, violation and mailbox, and begin to count anew; for tests."""
    global _box_list, _numbers
    with _lock:
        _boxes.clear()
        _box_list, _numbers = (), itertools.count(1)
        _calls.clear()
        _captured.clear()
        _queue.clear()
