"""The last test of a guard with clauses on values: what is at hand is looked at, the rest as the mode says."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from tensorpact._clause import Rule, lambda_parameters

from . import counts, in_kernel, launching, modes, pending, synchronous
from .clauses import Values
from .judging import is_capturing, looked_at, scope_of
from .rows import first_breaches
from .settled import is_settled
from .statements import Run, Scope, Statement, has_data, is_at_hand, lower, runner
from .table import Table, encode, why_not

if TYPE_CHECKING:
    from tensorpact._call import Call
    from tensorpact._terms import Step, Terms

#: Scalars that a signature may be remembered with, alone or in a tuple.
_PLAIN = (int, float, bool, str, type(None))


@dataclass(frozen=True, slots=True)
class Ready:
    """The checks of a signature that a guard remembers: only addresses change from call to call.

    Attributes:
        known: The remembered signature.
        scalars: Arguments that are no tensors, and what the clauses read of dims and lets.
        table: The checks, without their tensors.
        places: For each tensor of the table the argument that it is.
        twice: Arguments that were one tensor and have to be again: two for each such pair.
        device: Where the tensors lie.
        checked: What a late error tells.
    """

    known: Any
    scalars: tuple[Any, ...]
    table: Table
    places: tuple[int, ...]
    twice: tuple[tuple[int, int], ...]
    device: torch.device
    checked: pending.Checked


class Gate:
    """Clauses on values of one function, called with everything that they read.

    Attributes:
        names: What the gate is called with, in order: every parameter, then dims and lets.
        clauses: The clauses, each with its step and the conditions around it.
    """

    def __init__(self, terms: "Terms") -> None:
        self.terms = terms
        self.clauses = tuple(_with_conditions(terms))
        needed = (_needs(clause, conditions) for _, clause, conditions in self.clauses)
        self._needed = tuple(tuple(n for n in names if n not in terms.parameters) for names in needed)
        parameters = tuple(terms.parameters)
        read = dict.fromkeys(n for _, clause, conditions in self.clauses for n in _reads(clause, conditions))
        self.names = (*parameters, *(n for n in read if n not in terms.parameters))
        self._count = len(parameters)
        scalars = [i for i, n in enumerate(parameters) if terms.parameters[n].tensor is None]
        # Lets may depend on more than the arguments, and are worked out anew for every call.
        self._scalars = _picker([*scalars, *range(len(parameters), len(self.names))])
        rules = (rule for _, clause, conditions in self.clauses for rule in (*clause.rules(), *conditions))
        self._is_settled = all(map(is_settled, rules))
        self._ready: Ready | None = None
        self._source = in_kernel.Source(self.clauses, terms)
        self._facts: tuple[Any, tuple[Any, ...], Mapping[str, Any]] | None = None
        self._far: tuple[Any, tuple[Any, ...]] | None = None

    def __call__(self, known: Any, *given: Any) -> bool:
        """Whether the numbers at hand hold; what is in device memory is read, or a kernel is started.

        Args:
            known: The remembered signature that the call matches, or None.
            *given: What ``names`` lists.
        """
        mode = modes.current
        if mode < modes.IN_KERNEL:
            return self._judged(mode, known, given)
        if pending.waiting() or not self._judged(mode & modes.MODES, known, given):
            return False
        in_kernel.offer(self._source, self._facts_of(known, given), given[: self._count])
        return True

    def _judged(self, mode: int, known: Any, given: tuple[Any, ...]) -> bool:
        if mode == modes.ASYNC:
            if pending.waiting():
                return False
            ready = self._ready
            if (
                known is not None
                and ready is not None
                and ready.known is known
                and ready.scalars == self._scalars(given)
                and (not ready.twice or all(given[i] is given[j] for i, j in ready.twice))
                and not is_capturing()
            ):
                addresses = [given[i].data_ptr() for i in ready.places]
                checked = _again(ready.checked) if modes.stacks else ready.checked
                box = pending.box_of(ready.device)
                pending.launch(box, ready.table, addresses, checked, again=True)
                return True
        if mode == modes.OFF and known is not None:
            # With nothing at hand there is nothing to look at, which a remembered signature and its scalars settle.
            far = self._far
            if far is not None and far[0] is known and far[1] == self._scalars(given):
                return True
        scope = dict(zip(self.names, given, strict=True))
        return self._look(scope, runner(scope, self.names[self._count :]), known, given)

    def after(self, call: "Call") -> None:
        """Start the kernel for a call that the diagnosis has found right, and let its own launches report.

        Args:
            call: The call, its lets derived.
        """
        if modes.current >= modes.IN_KERNEL:
            arguments = {n: call.values[n] for n in self.terms.parameters}
            in_kernel.offer(self._source, pending.facts_of(arguments), arguments.values())
        if modes.current & modes.MODES != modes.ASYNC:
            return
        scope = scope_of(call)
        found = self._statements(scope, runner(scope, self.names[self._count :]))
        self._start([s for s in found if not is_at_hand(s[1].row, s[1].clause.reads)], scope)

    def _statements(self, scope: Scope, run: Run) -> "Iterator[tuple[Step, Statement]]":
        for (step, clause, conditions), needed in zip(self.clauses, self._needed, strict=True):
            if any(scope[n] is None for n in needed):
                continue
            if all(run(condition) for condition in conditions):
                yield from ((step, statement) for statement in lower(clause, scope, run))

    def _look(self, scope: Scope, run: Run, known: Any, given: tuple[Any, ...]) -> bool:
        elsewhere: list[tuple[Step, Statement]] = []
        near = 0
        for step, statement in self._statements(scope, run):
            if not is_at_hand(statement.row, statement.clause.reads):
                elsewhere.append((step, statement))
                continue
            # Numbers without a tensor are scalars, which a remembered signature is compared by.
            near += any(isinstance(part, Tensor) for part in statement.row.parts())
            if looked_at(statement.row, statement.clause.reads) is not None:
                return False
        mode = modes.current & modes.MODES
        if mode == modes.OFF and known is not None and not near and self._is_settled:
            scalars = self._scalars(given)
            self._far = (known, scalars) if all(map(_is_plain, scalars)) else None
        if not elsewhere or mode == modes.OFF:
            return True
        if mode == modes.SYNC:
            return _holds_now([s for _, s in elsewhere])
        self._start(elsewhere, scope, known if self._is_settled and not near else None, given)
        return True

    def _start(
        self, found: "list[tuple[Step, Statement]]", scope: Scope, known: Any = None, given: tuple[Any, ...] = ()
    ) -> None:
        if not found:
            return
        found = [(step, s) for step, s in found if has_data(s.row)]
        if not found:
            counts.skip("no numbers to read")
            return
        if launching.kernel() is None:
            counts.skip("Triton is not installed")
            return
        # A kernel reads the memory of its own device alone.
        groups: dict[torch.device, list[tuple[Step, Statement]]] = {}
        for step, statement in found:
            reason = why_not(statement.row)
            if reason:
                counts.skip(reason)
                continue
            device = cast("Tensor", statement.row.numbers).device
            # Numbers in host memory are read in the call, so a CPU is one that a test has put in a device's place.
            if device.type not in ("cuda", "cpu"):
                counts.skip(f"no kernel for numbers on {device.type}")
                continue
            groups.setdefault(device, []).append((step, statement))
        for device, fit in groups.items():
            self._start_on(device, fit, scope, known if len(groups) == 1 else None, given)

    def _start_on(
        self,
        device: torch.device,
        fit: "list[tuple[Step, Statement]]",
        scope: Scope,
        known: Any,
        given: tuple[Any, ...],
    ) -> None:
        """Start the kernel on what it can look at on one device."""
        with launching.current(device):
            capturing = is_capturing()
        if capturing and not pending.is_known(device):
            counts.skip("the first check of a device cannot be captured")
            return
        facts = pending.facts_of({n: scope[n] for n in self.terms.parameters})
        looked = tuple(pending.looked_at(step, s) for step, s in fit)
        stack, tables = pending.stack_here(), encode([s.row for _, s in fit])
        lasting = known is not None and not capturing
        for table in tables:
            checked = pending.Checked(self.terms, facts, looked[: table.count], capturing, stack)
            looked = looked[table.count :]
            addresses = [tensor.data_ptr() for tensor in table.tensors]
            pending.launch(pending.box_of(device), table, addresses, checked, again=lasting)
            if lasting and len(tables) == 1:
                self._remember(known, given, table, device, checked)

    def _facts_of(self, known: Any, given: tuple[Any, ...]) -> Mapping[str, Any]:
        """What a late error needs of the arguments; the same object for a signature that is remembered."""
        scalars = self._scalars(given)
        kept = self._facts
        if kept is not None and known is not None and kept[0] is known and kept[1] == scalars:
            return kept[2]
        facts = pending.facts_of(dict(zip(self.names[: self._count], given, strict=False)))
        if known is not None and all(map(_is_plain, scalars)):
            self._facts = (known, scalars, facts)
        return facts

    def _remember(
        self, known: Any, given: tuple[Any, ...], table: Table, device: torch.device, checked: pending.Checked
    ) -> None:
        scalars = self._scalars(given)
        places: dict[int, int] = {}
        # Of a tensor that is given twice nobody could tell later which of the two an address came from.
        twice = tuple(
            (places[id(x)], i)
            for i, x in enumerate(given)
            if isinstance(x, Tensor) and places.setdefault(id(x), i) != i
        )
        if all(map(_is_plain, scalars)) and all(id(t) in places for t in table.tensors):
            found = tuple(places[id(t)] for t in table.tensors)
            # The table keeps no tensor alive, only which arguments it is of.
            bare = Table(table.words, (), table.programs, table.parts)
            self._ready = Ready(known, scalars, bare, found, twice, device, checked)


def _picker(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """What takes the items at some places."""
    # Of a single place an item getter gives no tuple.
    return operator.itemgetter(*places) if len(places) > 1 else lambda given: tuple([given[i] for i in places])


def _is_plain(scalar: Any) -> bool:
    if type(scalar) in (tuple, torch.Size):
        return all(type(item) in _PLAIN for item in cast("tuple[Any, ...]", scalar))
    return type(scalar) in _PLAIN


def _again(checked: pending.Checked) -> pending.Checked:
    return pending.Checked(checked.terms, checked.facts, checked.looked, False, pending.stack_here())


def _with_conditions(terms: "Terms") -> "Iterator[tuple[Step, Values, tuple[Rule, ...]]]":
    for step, clause in terms.values():
        around = step.clause.when if step.clause is not clause else None
        yield step, clause, tuple(r for r in (around, clause.when) if r is not None)


def _reads(clause: Values, conditions: tuple[Rule, ...]) -> Iterator[str]:
    yield from clause.others()
    for rule in (*clause.rules(), *conditions):
        yield from lambda_parameters(rule)


def _needs(clause: Values, conditions: tuple[Rule, ...]) -> Iterator[str]:
    """Names without which a clause does not apply."""
    added = [rule for rule in clause.added() if callable(rule)]
    yield from clause.others()
    for rule in (*clause.rules(), *conditions):
        if rule not in added:
            yield from lambda_parameters(rule)


def _holds_now(statements: list[Statement]) -> bool:
    """Whether the numbers in device memory hold, with one wait for each device."""
    if is_capturing():
        counts.skip("a graph is being captured")
        return True
    found = [s for s in statements if has_data(s.row)]
    if len(found) < len(statements):
        counts.skip("no numbers to read")
    groups: dict[torch.device, list[Statement]] = {}
    for statement in found:
        devices = [p.device for p in statement.row.parts() if isinstance(p, Tensor)]
        device = next((d for d in devices if d.type != "cpu"), devices[0])
        groups.setdefault(device, []).append(statement)
    for device, group in groups.items():
        held, rest = synchronous.holds(device, [s.row for s in group])
        if not held or (rest and any(b is not None for b in first_breaches(rest))):
            return False
    counts.did("sync")
    return True
