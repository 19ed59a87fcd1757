"""Clauses of one contract that no call can satisfy together, or that the annotations rule out."""

from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from ._annotations import Parameter
from .clauses import Clause, Exclusive, SameDevice, SameDtype, Together
from .constraints import OnDevice

Fail = Callable[[str], NoReturn]


def check_contradictions(clauses: Iterable[Clause], parameters: Mapping[str, Parameter], fail: Fail) -> None:
    """Look for clauses that cannot hold together.

    Args:
        clauses: All clauses, those of an ``any_of`` one by one.
        parameters: The signature.
        fail: Raises the author's error.
    """
    every = list(clauses)
    groups = [set(c.names) for c in every if isinstance(c, Together)]
    for clause in every:
        if isinstance(clause, Exclusive):
            clash = [g for g in groups if len(g & set(clause.names)) > 1]
            if clash:
                fail(f"{clause} contradicts together({', '.join(sorted(clash[0]))})")
        elif isinstance(clause, SameDtype) and clause.when is None:
            sets = {n: (s.dtypes() if (s := parameters[n].tensor) else None) for n in clause.names}
            first = clause.names[0]
            for name in clause.names[1:]:
                a, b = sets[first], sets[name]
                if a is not None and b is not None and not set(a) & set(b):
                    fail(f"{clause} contradicts the annotations: {first} and {name} have no dtype in common")
        elif isinstance(clause, SameDevice) and clause.when is None:
            _check_devices(clause, parameters, fail)


def _check_devices(clause: SameDevice, parameters: Mapping[str, Parameter], fail: Fail) -> None:
    allowed: set[str] | None = None
    for name in clause.names:
        spec = parameters[name].tensor
        for constraint in spec.constraints if spec else ():
            if not isinstance(constraint, OnDevice):
                continue
            types = set(constraint.types)
            if allowed is not None and not allowed & types:
                fail(f"{clause} contradicts the annotations: no device type suits {name} and those before it")
            allowed = types if allowed is None else allowed & types
