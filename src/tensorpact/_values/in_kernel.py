"""Numbers that a kernel masks, reported by the kernel itself: what its launch is given for that.

The guard of a call *offers* the call to the launch behind it, on the same thread. The launch takes the offer with
:func:`kernel_flag`, names the checks that its kernel makes, and hands three arguments on; ``device_flag.tell`` takes
them on the bad path. Without the switch the three are None, which Triton compiles away. Kernels find both in
``tensorpact.reporting``.
"""

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from . import counts, launching, modes, pending
from .clauses import Values
from .judging import is_capturing
from .rows import KINDS, RANGE

if TYPE_CHECKING:
    from tensorpact._clause import Rule
    from tensorpact._terms import Step, Terms

Flag = tuple[Tensor, Tensor, int] | tuple[None, None, None]
"""The mailbox, its counters, and the number of the call, below zero in a graph; or nothing to tell with."""
NO_FLAG: Flag = (None, None, None)
"""What a launch hands on that reports nothing."""


class Told(NamedTuple):
    """A check that a kernel makes; the kernel names it by its place among those of its launch.

    Attributes:
        name: The parameter.
        kind: The check that a contract has on it, as ``"less_than"``.
        other: Another one that the contract may have instead.
        plus: Whether the number is told with what the clause adds to it; such clauses are told of no other way.
    """

    name: str
    kind: str
    other: str = ""
    plus: bool = False


class Source:
    """Clauses on values of one function, and what a late error tells of the signature that it was last called with.

    Args:
        clauses: The clauses, each with its step and the conditions around it.
        terms: The contract laid on the signature.
    """

    __slots__ = ("_checked", "_clauses", "_looked", "terms")

    def __init__(self, clauses: "tuple[tuple[Step, Values, tuple[Rule, ...]], ...]", terms: "Terms") -> None:
        self._clauses, self.terms = clauses, terms
        self._looked: dict[tuple[Told, ...], tuple[tuple[pending.Looked, ...], ...]] = {}
        self._checked: pending.Checked | None = None

    def checked(self, facts: Mapping[str, Any], checks: tuple[Told, ...], captured: bool) -> pending.Checked | None:
        """What a late error tells of a call; None where the contract says nothing of what the kernel looks at.

        Args:
            facts: Arguments without memory.
            checks: What the kernel looks at.
            captured: Whether the launch becomes part of a graph.
        """
        looked = self._looked.get(checks)
        if looked is None:
            looked = self._looked[checks] = tuple([tuple(self._meant(told)) for told in checks])
        if not any(looked):
            return None
        kept, stack = self._checked, pending.stack_here()
        if kept is None or kept.facts is not facts or kept.looked is not looked or captured or stack is not None:
            kept = pending.Checked(self.terms, facts, looked, captured, stack, in_kernel=True)
            self._checked = None if captured or stack is not None else kept
        return kept

    def _meant(self, told: Told) -> Iterator[pending.Looked]:
        """The clauses that a kernel may mean: of several the first that applies."""
        for step, clause, _ in self._clauses:
            if told.name in clause.names and bool(clause.plus) == told.plus:
                for check in clause.checks:
                    if check.kind in (told.kind, told.other):
                        yield pending.Looked(step, clause, told.name, check, KINDS.get(check.kind, RANGE))


class Offer(NamedTuple):
    """A call that a guard has found right, for the launch behind it.

    Attributes:
        source: Clauses of its contract.
        facts: Arguments without memory.
        tensors: The tensors among the arguments, kept alive by nothing here.
    """

    source: Source
    facts: Mapping[str, Any]
    tensors: "list[weakref.ref[Tensor]]"


class _Waiting(threading.local):
    offer: Offer | None = None


_waiting = _Waiting()


def offer(source: Source, facts: Mapping[str, Any], arguments: Iterable[Any]) -> None:
    """Let the next launch on this thread report for a call.

    Args:
        source: Clauses of its contract.
        facts: Arguments without memory.
        arguments: The arguments.
    """
    _waiting.offer = Offer(source, facts, [weakref.ref(x) for x in arguments if isinstance(x, Tensor)])


def kernel_flag(anchor: Tensor, checks: tuple[Told, ...]) -> Flag:
    """What a launch hands on to a kernel that reports the numbers it masks; three times None where it reports nothing.

    Args:
        anchor: An argument of the call, as the caller gave it: a launch that belongs to no checked call has no flag.
        checks: What the kernel looks at; it names them by their place. One that the contract does not have, or has
            under a condition that the call does not meet, is never told.
    """
    if modes.current < modes.IN_KERNEL or torch.compiler.is_compiling():
        return NO_FLAG
    found = _waiting.offer
    if found is None or all(tensor() is not anchor for tensor in found.tensors):
        return NO_FLAG
    _waiting.offer = None
    with launching.current(anchor.device):
        captured = is_capturing()
    checked = found.source.checked(found.facts, checks, captured)
    if checked is None:
        return NO_FLAG
    if captured and not pending.is_known(anchor.device):
        counts.skip("the first check of a device cannot be captured")
        return NO_FLAG
    box, call = pending.box_of(anchor.device), pending.register(checked)
    return NO_FLAG if call is None else (box.memory, box.counters, -call if captured else call)
