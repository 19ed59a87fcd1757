"""What the message of a clause on values may read, worked out for given arguments by torch alone."""

from collections.abc import Iterator, Mapping
from typing import Any

from tensorpact._clause import Clause
from tensorpact._terms import flat
from tensorpact._values.clauses import Values
from tensorpact._values.rows import Breach, as_ints, reduced
from tensorpact._values.statements import in_words, lower, runner


def fields_of(clause: Clause, scope: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Position, value and so on for every check that does not hold; one empty set where no check speaks of numbers.

    Args:
        clause: The clause that fires.
        scope: Arguments, dims and lets.
    """
    found = [c for c in flat(clause) if isinstance(c, Values)]
    if not found:
        yield {}
        return
    for member in found:
        known = {**dict.fromkeys(member.others()), **scope}
        for statement in lower(member, known, runner(known)):
            place, value, limit = as_ints(reduced(statement.row))
            if place >= 0:
                yield in_words(statement, Breach(place, value, limit), known).fields(statement.check)
    if len(found) < len(flat(clause)):
        yield {}


def reads_of(clause: Clause) -> tuple[str, ...]:
    """Names that decide about a clause beside its own parameters and the rules in it.

    Args:
        clause: Any clause.
    """
    return clause.others() if isinstance(clause, Values) else ()
