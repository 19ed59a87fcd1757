"""Nearest sizes for a relation that does not hold, found by trying values of one dim at a time."""

import dis
from collections.abc import Callable, Mapping
from typing import Any

from ._call import Call
from ._terms import Step
from .clauses import Let, Require, lambda_parameters

_REACH, _OPERANDS = 64, 4


class _Relation:
    """A rule over dims and helper values, the helpers computed anew for every try."""

    def __init__(self, call: Call, rule: Callable[..., Any]) -> None:
        self.rule, self.names = rule, lambda_parameters(rule)
        lets = [pair for c in call.terms.contract.clauses if isinstance(c, Let) for pair in c.rules]
        self.lets: list[tuple[str, Callable[..., Any], tuple[str, ...]]] = []
        needed = set(self.names)
        for name, derive in reversed(lets):
            read = lambda_parameters(derive)
            # A helper made from tensors keeps its value: trying it would mean other tensors.
            if name in needed and not any(hasattr(call.values.get(n), "shape") for n in read):
                self.lets.insert(0, (name, derive, read))
                needed.update(read)
        derived = {name for name, _, _ in self.lets}
        self.operands = [n for n in call.dims if n in needed and n not in derived]
        self.known = {n: call.lets.get(n, call.dims.get(n, call.values.get(n))) for n in needed}

    def holds(self, change: dict[str, int]) -> bool:
        """Whether the rule holds with some dims changed; what a rule raises counts as no."""
        scope = {**self.known, **change}
        try:
            for name, derive, read in self.lets:
                scope[name] = derive(*[scope[n] for n in read])
            return bool(self.rule(*[scope[n] for n in self.names]))
        except Exception:  # noqa: BLE001 - a rule may refuse sizes that its author never expects
            return False

    def nearest(self, name: str, way: int) -> int | None:
        """The nearest size of a dim in one direction that makes the rule hold, all other dims kept."""
        sizes = range(self.known[name] + way, max(self.known[name] + way * (_REACH + 1), 0), way)
        return next((size for size in sizes if self.holds({name: size})), None)


def near_sizes(call: Call, step: Step | None) -> str:
    """The operands of a broken relation and the nearest sizes of each that would make it hold.

    Args:
        call: The failed call.
        step: The broken ``require``.
    """
    if step is None or not isinstance(step.clause, Require):
        return ""
    relation = _Relation(call, step.clause.rule)
    if any(hasattr(call.values.get(n), "shape") for n in relation.names):
        # A rule over tensors may look at their data.
        return ""
    found: list[str] = []
    for name in relation.operands[:_OPERANDS]:
        if type(relation.known[name]) is int:
            near = [v for way in (-1, 1) if (v := relation.nearest(name, way)) is not None]
            if near:
                found.append(" or ".join(f"{name}={v}" for v in near))
    if not found:
        return ""
    shown = dict.fromkeys((*relation.names, *relation.operands))
    given = ", ".join(f"{n}={relation.known[n]}" for n in shown)
    why = _undivided(step.clause.rule, relation.known) or f"with {given} the relation fails"
    return f"{why}; changing one size, it holds for {', '.join(found)}"


def _undivided(rule: Callable[..., Any], known: Mapping[str, Any]) -> str:
    """Which name of a rule does not divide which, where the rule asks for such a rest; empty where none does."""
    loaded: list[str] = []
    for step in dis.get_instructions(rule.__code__):
        if step.opname.startswith("LOAD_FAST"):
            loaded += step.argval if isinstance(step.argval, tuple) else [step.argval]
        elif step.opname == "BINARY_OP" and step.argrepr == "%" and len(loaded) > 1:
            whole, part = known.get(loaded[-2]), known.get(loaded[-1])
            if type(whole) is int and type(part) is int and part and whole % part:
                return f"{loaded[-1]}={part} does not divide {loaded[-2]}={whole}"
            loaded = []
        elif step.opname not in ("CACHE", "NOP", "RESUME"):
            loaded = []
    return ""
