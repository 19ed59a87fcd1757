"""Clauses on values in the diagnosis: in their place among the others, on what may be read now."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tensorpact._call import Call
from tensorpact._clause import Rule
from tensorpact._verdicts import Broken, Status, Unknown

from . import counts, modes
from .clauses import Values
from .rows import Breach, Row, first_breach
from .statements import Absent, Statement, default_text, has_data, in_words, is_at_hand, lower

#: Calls a rule on a call: true and what it gives, or false and why it gives nothing.
Apply = Callable[[Rule], tuple[bool, Any]]


def judge_values(call: Call, clause: Values, apply: Apply) -> Status:
    """Whether a clause on values holds, as far as its numbers may be read now.

    Args:
        call: The call.
        clause: The clause.
        apply: Runs a rule on the call, as the evaluation does.
    """
    unknown = _why_not(call, clause)
    if unknown is not None:
        return unknown
    scope = scope_of(call)

    def run(rule: Rule) -> Any:
        done, value = apply(rule)
        if not done:
            raise Absent
        return value

    for statement in lower(clause, scope, run):
        breach = looked_at(statement.row, clause.reads)
        if breach is not None:
            return broken(statement, breach, scope)
    return None


def broken(statement: Statement, breach: Breach, scope: dict[str, Any]) -> Broken:
    """The verdict on an entry that breaks a check.

    Args:
        statement: The check.
        breach: The entry.
        scope: What the names are in the call.
    """
    found = in_words(statement, breach, scope)
    names = statement.clause.names if statement.check.kind == "same_empty" else (statement.name,)
    return Broken(names, default_text(statement, found), found=found.fields(statement.check))


def scope_of(call: Call) -> dict[str, Any]:
    """What every name is in a call; None for a dim without a value."""
    terms = call.terms
    absent = dict.fromkeys((*terms.dims, *terms.lets))
    return {**absent, **call.dims, **call.lets, **call.values}


def looked_at(row: Row, reads: tuple[str, ...]) -> Breach | None:
    """The first entry that breaks a check, where its numbers are at hand or may be waited for."""
    if not is_at_hand(row, reads) and not may_wait():
        return None
    if any(isinstance(p, Tensor) for p in row.parts()) and not has_data(row, wrapped=True):
        return None
    try:
        return first_breach(row)
    except (RuntimeError, NotImplementedError):
        if any(isinstance(p, Tensor) for p in row.parts()):
            # A functional tensor or one inside vmap says where it is, and hands out no numbers.
            counts.skip("no numbers to read")
            return None
        raise


def may_wait() -> bool:
    """Whether device memory may be read now."""
    return modes.current & modes.MODES == modes.SYNC and not is_capturing()


def is_capturing() -> bool:
    """Whether the current stream records a graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _why_not(call: Call, clause: Values) -> Unknown | None:
    """Why a clause cannot be evaluated: one of its tensors is none or of another rank or dtype, or a dim is unbound."""
    names = (*clause.names, *clause.others())
    broken_ones = tuple(_broken(call, names))
    if broken_ones:
        return Unknown(broken_ones)
    terms = call.terms
    return call.missing([n for n in names if n not in terms.parameters and n not in call.lets])


def _broken(call: Call, names: tuple[str, ...]) -> Iterator[Any]:
    for name in names:
        for obligation in call.terms.obligations.get(name, ()):
            if obligation.kind in ("type", "rank", "dtype") and isinstance(call.status(obligation), Broken):
                yield obligation
