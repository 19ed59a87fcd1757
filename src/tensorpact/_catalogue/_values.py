"""The machine form of a clause on values."""

from collections.abc import Mapping
from typing import Any

from tensorpact._values.clauses import Bound, Live, Steps, Upto, Values

from ._sources import rule_form

#: Keys whose text may be the name of a dim.
BOUNDS = ("lower", "upper", "of", "per", "plus", "steps")


def values_form(clause: Values) -> dict[str, Any]:
    """What a clause on values says, beside what every clause does.

    Args:
        clause: The clause.
    """
    return {
        "checks": [{"check": c.kind, "lower": _bound(c.lower), "upper": _bound(c.upper)} for c in clause.checks],
        "active": _active(clause),
        "padding": clause.padding,
        "plus": _sum(clause.plus),
    }


def same_values(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether two clauses on the values of one tensor say the same."""
    return all(old[key] == new[key] for key in ("checks", "active", "padding", "plus"))


def _active(clause: Values) -> dict[str, Any] | None:
    if clause.active is None:
        return None
    kind = "columns" if isinstance(clause.active, Upto) else "rows" if isinstance(clause.active, Live) else "span"
    per, plus = (clause.active.per, clause.active.plus) if isinstance(clause.active, Upto) else (1, ())
    form = {"entries": kind, "of": clause.decides, "per": _bound(per)}
    return {**form, "plus": _sum(plus)} if plus else form


def _sum(parts: tuple[Bound, ...]) -> Any:
    """What is added: None for nothing, one bound as it is, several as a list."""
    forms = [_bound(part) for part in parts]
    return forms[0] if len(forms) == 1 else forms or None


def _bound(bound: Bound | None) -> Any:
    """A number or a name as it is, steps by their offsets, a function as the text and the helpers it is made of."""
    if isinstance(bound, Steps):
        return {"steps": bound.offsets}
    return bound if bound is None or isinstance(bound, int | str) else rule_form(bound)
