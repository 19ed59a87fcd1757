"""Text of the clauses that add a statement."""

from tensorpact.clauses import (
    Clause,
    Exclusive,
    Let,
    Needs,
    NoOverlap,
    Present,
    Require,
    Rule,
    SameDevice,
    SameDtype,
    Together,
    lambda_parameters,
)

from .plan import is_required, reads_unsure
from .runtime import first_overlaps, one_device, one_dtype
from .writer import Writer, unless


def rule_call(w: Writer, label: str, rule: Rule) -> str:
    names = lambda_parameters(rule)
    return f"{w.value(label, rule)}({', '.join(w.argument(n) for n in names)})"


def write_statement(w: Writer, index: int, clause: Clause, outer: Rule | None) -> None:
    plan = w.plan
    if isinstance(clause, Let):
        for name, rule in clause.rules:
            unsure = sorted(reads_unsure(lambda_parameters(rule), plan.conditions))
            guard = " and ".join(f"{w.dim(n)} is not None" for n in unsure)
            derived = rule_call(w, f"let_{name}", rule)
            derived = f"{derived} if {guard} else None" if guard else derived
            if w.stored:
                w.fresh.add(name)
                # A match is one expression; a tuple of one is true whatever is in it.
                w.test(f"(({w.dim(name)} := {derived}),)")
            else:
                w.line(f"{w.dim(name)} = {derived}")
        return
    tests = _statement_tests(w, index, clause, outer is not None)
    if not tests:
        return
    rules = [(f"when_{index}", outer), (f"when_{index}_{clause.verb}", clause.when)]
    read = tuple(n for _, r in rules if r is not None for n in lambda_parameters(r))
    if isinstance(clause, Require):
        read += lambda_parameters(clause.rule)
    skip = [f"{w.dim(n)} is None" for n in sorted(reads_unsure(read, plan.conditions))]
    skip += [f"not {rule_call(w, label, r)}" for label, r in rules if r is not None]
    if skip:
        holds = f"({' and '.join(tests)})" if len(tests) > 1 else tests[0]
        # A rule may rely on its condition; every other test holds on a right call without a look at it.
        order = [*skip, holds] if isinstance(clause, Require) else [holds, *skip]
        w.test(f"({' or '.join(order)})")
    else:
        for test in tests:
            w.test(test)


def _statement_tests(w: Writer, index: int, clause: Clause, limited: bool) -> list[str]:
    params = w.terms.parameters
    if isinstance(clause, Require):
        label = f"rule_{index}"
        while w.values.get(f"{w.prefix}{label}", clause.rule) is not clause.rule:
            label += "_"
        return [w.claim(rule_call(w, label, clause.rule))]
    names = [w.var(n) for n in clause.names]
    if isinstance(clause, Present):
        return [f"{w.var(n)} is not None" for n in clause.names if params[n].optional]
    if isinstance(clause, Together):
        return [f"({names[0]} is None) is ({n} is None)" for n in names[1:]]
    if isinstance(clause, Needs):
        return [f"({names[0]} is None or {' and '.join(f'{n} is not None' for n in names[1:])})"]
    if isinstance(clause, Exclusive):
        return [f"({' + '.join(f'({n} is not None)' for n in names)}) <= 1"]
    if isinstance(clause, (SameDtype, SameDevice)):
        return _equal_tests(w, clause, limited or clause.when is not None)
    if isinstance(clause, NoOverlap) and (limited or clause.when is not None) and len(names) > 1:
        return [f"not {w.value('first_overlaps', first_overlaps)}({', '.join(names)})"]
    return []


def _equal_tests(w: Writer, clause: Clause, limited: bool) -> list[str]:
    what = "dtype" if isinstance(clause, SameDtype) else "device"
    same = "is" if what == "dtype" else "=="
    params = [w.terms.parameters[n] for n in clause.names]
    required = [p for p in params if is_required(p)]
    if not required:
        check = w.value(f"one_{what}", one_dtype if what == "dtype" else one_device)
        return [f"{check}({', '.join(w.var(p.name) for p in params)})"]
    first, tests = required[0], list[str]()
    for other in params:
        pair = (f"{what}:{first.name}", other.name)
        if other is first or pair in w.read:
            continue
        x = w.var(other.name)
        if limited:
            # Under a condition nothing may be kept in a variable that another test reads.
            equal = f"{x}.{what} {same} {w.var(first.name)}.{what}"
        else:
            w.read[pair] = "proven"
            equal = f"{w.read.get((other.name, what), f'{x}.{what}') if is_required(other) else f'{x}.{what}'} {same} "
            if not is_required(other) and (first.name, what) not in w.read:
                w.line(w.attribute(first.name, what))
            equal += w.attribute(first.name, what)
        tests.append(equal if is_required(other) else f"({unless(w.given(other))} or {equal})")
    return tests
