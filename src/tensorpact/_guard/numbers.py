"""Text of the clauses on values: one call of their gate, behind everything else, where somebody has to look."""

from collections.abc import Sequence
from typing import Any

from tensorpact._annotations import EMPTY
from tensorpact._clause import lambda_parameters
from tensorpact._terms import Step
from tensorpact._values import modes
from tensorpact._values.clauses import Check, Steps, Values

from .plan import is_required, reads_unsure
from .statements import rule_call
from .writer import Writer

#: Stands among the dims that a remembered signature keeps: whether a tensor is in host memory.
AT_HAND = "tensorpact_at_hand"
#: Stands in a text for whether a clause is about what is no tensor.
NUMBERS = "<numbers>"


def write_at_hand(w: Writer) -> None:
    """Whether numbers can be read without waiting, which the device of each tensor settles."""
    if w.plan.gate is None or w.symbolic:
        return
    found: dict[str, list[str]] = {}
    for step, clause in w.terms.values():
        for name in clause.names:
            near = _is_near(w, name, clause)
            found.setdefault(near, []).extend([_applies(w, clause, step)] if NUMBERS in near else ())
    tests = [near.replace(NUMBERS, f"({' or '.join(dict.fromkeys(rules))})") for near, rules in found.items()]
    w.line(f"{w.dim(AT_HAND)} = {' or '.join(tests)}")


def _is_near(w: Writer, name: str, clause: Values) -> str:
    parameter, x = w.terms.parameters[name], w.var(name)
    if parameter.tensor is None:
        return f"{x} is not None"
    near = f"{x}.is_cpu"
    if clause.reads:
        near = f"({near} or {x}.device.type in {clause.reads!r})"
    if is_required(parameter):
        return near
    if parameter.other is EMPTY:
        return f"({w.given(parameter)} and {near})"
    # A number in the place of a tensor is at hand, unless the clauses are about tensors alone.
    return f"({near} if {w.given(parameter)} else {x} is not None and {NUMBERS})"


def _applies(w: Writer, clause: Values, step: Step) -> str:
    """Text of the conditions under which a clause is looked at."""
    outer = step.clause.when if step.clause is not clause else None
    rules = [r for r in (outer, clause.when) if r is not None]
    unsure = sorted(reads_unsure(tuple(n for r in rules for n in lambda_parameters(r)), w.plan.conditions))
    found = [f"{w.dim(n)} is not None" for n in unsure]
    found += [rule_call(w, f"when_{step.index}_values", r) for r in rules]
    return " and ".join(found) or "True"


def write_gate(w: Writer, known: str) -> None:
    """The test of a guard that looks at numbers.

    Args:
        w: The writer of the guard, or of the match of a signature.
        known: Text of the remembered signature that the call matches.
    """
    gate = w.plan.gate
    if gate is None:
        return
    if w.symbolic:
        _write_traced(w)
        return
    mirrors = dict.fromkeys(
        f"{name}_host" for _, c in w.terms.values() for name in c.names if f"{name}_host" in w.terms.parameters
    )
    asked = [f"{w.value('values', modes)}.current", w.dim(AT_HAND), *(f"{w.var(m)} is not None" for m in mirrors)]
    call = f"{w.value('gate', gate)}({', '.join([known, *(w.argument(n) for n in gate.names)])})"
    w.test(f"(not ({' or '.join(asked)}) or {call})")


def _write_traced(w: Writer) -> None:
    """A tracer knows host copies and ints alone, and can follow plain Python."""
    for index, clause in ((step.index, c) for step, c in w.terms.values()):
        outer = w.terms.steps[index].clause.when if w.terms.steps[index].clause is not clause else None
        rules = [r for r in (outer, clause.when) if r is not None]
        skip = [f"not {rule_call(w, f'when_{index}_values', r)}" for r in rules]
        skip += [f"{w.dim(n)} is None" for n in sorted(reads_unsure(clause.others(), w.plan.conditions))]
        for test in _traced_tests(w, clause):
            w.test(f"({' or '.join([*skip, test])})" if skip else test)


def _traced_tests(w: Writer, clause: Values) -> list[str]:
    hosts = [_host(w, name) for name in clause.names]
    if clause.active is not None or clause.plus or None in hosts:
        return []
    given = [h for h in hosts if h is not None]
    if clause.checks[0].kind == "same_empty":
        absent = " or ".join(f"{h} is None" for h in given)
        return [f"({absent} or {w.value('empties_agree', empties_agree)}({', '.join(given)}))"]
    tests: list[str] = []
    for host in given:
        for check in clause.checks:
            bounds = _bounds(w, check)
            if bounds is not None:
                call = (
                    f"{w.value('sequence_holds', sequence_holds)}({check.kind!r}, {host}, {bounds}, {clause.padding!r})"
                )
                tests.append(f"({host} is None or {call})")
    return tests


def _host(w: Writer, name: str) -> str | None:
    """Text of the numbers that a tracer knows of a parameter."""
    if f"{name}_host" in w.terms.parameters:
        return w.var(f"{name}_host")
    return f"(None if {w.var(name)} is None else ({w.var(name)},))" if w.terms.parameters[name].tensor is None else None


def _bounds(w: Writer, check: Check) -> str | None:
    texts: list[str] = []
    for bound in (check.lower, check.upper):
        if bound is None or isinstance(bound, int):
            texts.append(repr(bound))
        elif isinstance(bound, Steps):
            return None
        elif isinstance(bound, str):
            if bound in w.terms.parameters and w.terms.parameters[bound].tensor is not None:
                return None
            texts.append(w.argument(bound))
        else:
            texts.append(rule_call(w, "bound", bound))
    return ", ".join(texts)


def sequence_holds(kind: str, numbers: Sequence[int], lower: Any, upper: Any, padding: Any) -> bool:
    """Whether a check holds for numbers on the host; Dynamo follows this.

    Args:
        kind: Name of the check.
        numbers: The numbers.
        lower: Its first bound, or None.
        upper: Its second bound, or None.
        padding: What marks padding, or None.
    """
    entries = [int(n) for n in numbers]
    if kind == "starts_at":
        return not entries or bool(entries[0] == lower)
    if kind == "ends_at":
        return not entries or bool(entries[-1] == lower)
    if kind == "steps_at_most":
        return all(b - a <= upper for a, b in zip(entries, entries[1:], strict=False))  # noqa: RUF007 - Dynamo follows zip
    if kind == "nondecreasing":
        return all(a <= b for a, b in zip(entries, entries[1:], strict=False))  # noqa: RUF007 - Dynamo follows zip
    if padding is not None:
        entries = [n for n in entries if (n >= 0 if padding == "negative" else n != padding)]
    if kind == "distinct":
        return len(set(entries)) == len(entries)
    if kind == "multiple_of":
        return all(n % lower == 0 for n in entries)
    if kind == "at_most":
        return all(n <= upper for n in entries)
    low = lower is None or all(n >= lower for n in entries)
    return low and (upper is None or all(n < upper for n in entries))


def empties_agree(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two vectors of offsets say of the same sequences that they are empty; Dynamo follows this."""
    a, b = [int(n) for n in one], [int(n) for n in other]
    pairs = zip(a, a[1:], b, b[1:], strict=False)
    return all((first == second) == (third == fourth) for first, second, third, fourth in pairs)
