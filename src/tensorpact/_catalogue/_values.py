"""The machine form of a clause on values."""

from collections.abc import Mapping
from typing import Any

from tensorpact._values.clauses import Bound, Live, Upto, Values

from ._sources import rule_form

#: Keys whose text may be the name of a dim.
BOUNDS = ("lower", "upper", "of", "per", "plus")


def values_form(clause: Values) -> dict[str, Any]:
    """What a clause on values says, beside what every clause does.

    Args:
        clause: The clause.
    """
    return {
        "checks": [{"check": c.kind, "lower": _bound(c.lower), "upper": _bound(c.upper)} for c in clause.checks],
        "active": _active(clause),
        "padding": clause.padding,
        "plus": clause.plus,
    }


def same_values(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether two clauses on the values of one tensor say the same."""
    return all(old[key] == new[key] for key in ("checks", "active", "padding", "plus"))


def _active(clause: Values) -> dict[str, Any] | None:
    if clause.active is None:
        return None
    kind = "columns" if isinstance(clause.active, Upto) else "rows" if isinstance(clause.active, Live) else "span"
    per = clause.active.per if isinstance(clause.active, Upto) else 1
    return {"entries": kind, "of": clause.decides, "per": _bound(per)}


def _bound(bound: Bound | None) -> Any:
    """A number or a name as it is, a function as the text and the helpers that it is made of."""
    return bound if bound is None or isinstance(bound, int | str) else rule_form(bound)
