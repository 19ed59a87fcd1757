"""The functions that an author writes into a contract: what they read, what they mention, what they say of numbers."""

import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from tensorpact._terms import Terms
from tensorpact.clauses import AnyOf, Clause, Let, Require, SameDim, Shape, lambda_parameters, rules_of

from ._numbers import reads_of


def constants_of(terms: Terms) -> tuple[Any, ...]:
    """Numbers, texts and dtypes that rules and expressions mention: where their answers change."""
    found: dict[Any, None] = {}

    def keep(value: Any) -> None:
        if isinstance(value, (tuple, list, frozenset, set)):
            for item in typing.cast("Iterable[Any]", value):
                keep(item)
        elif isinstance(value, str):
            if value.isidentifier():
                found[value] = None
        elif isinstance(value, (int, float, torch.dtype)) and not isinstance(value, bool):
            found[value] = None

    def look(function: Any, depth: int) -> None:
        code = getattr(function, "__code__", None)
        if code is None or depth > 2 or str(function.__module__).partition(".")[0] == "tensorpact":
            return
        for value in code.co_consts:
            keep(value)
        scope = {n: function.__globals__[n] for n in code.co_names if n in function.__globals__}
        cells = function.__closure__ or ()
        for value in (*scope.values(), *(c.cell_contents for c in cells)):
            if isinstance(value, types.FunctionType):
                look(value, depth + 1)
            else:
                keep(value)

    for clause in terms.contract.clauses:
        for rule in rules_of(clause):
            look(rule, 0)
    for axis in terms.expressions:
        if axis.dim.expression is not None:
            look(axis.dim.expression.function, 0)
    return tuple(found)


class Numbers:
    """Lets and requirements over dims and scalars alone: decided without any tensor.

    Args:
        terms: The contract laid on the signature.
        dims: Dims that have sizes.
    """

    def __init__(self, terms: Terms, dims: Iterable[str]) -> None:
        known = set(dims) | {p.name for p in terms.signature.parameters if p.tensor is None}
        self._rules: list[tuple[int, Clause, Callable[..., Any] | None, str, Callable[..., Any]]] = []
        for index, clause in enumerate(terms.contract.clauses):
            rules = clause.rules if isinstance(clause, Let) else ()
            if isinstance(clause, Require):
                rules = (("", clause.rule),)
            for name, rule in rules:
                if all(n in known for n in lambda_parameters(rule)):
                    self._rules.append((index, clause, clause.when, name, rule))
                    known.add(name)

    def hold(self, sizes: Mapping[str, Any], values: Mapping[str, Any], last: int) -> bool:
        """Whether the requirements up to a clause hold, as far as numbers tell.

        Args:
            sizes: Dim to size.
            values: Arguments that are no tensors.
            last: Place of the last clause to look at.
        """
        scope = {**values, **sizes}
        for index, _, when, name, rule in self._rules:
            if index > last:
                return True
            try:
                if when is not None and not when(*[scope[n] for n in lambda_parameters(when)]):
                    continue
                got = rule(*[scope[n] for n in lambda_parameters(rule)])
            except Exception:  # noqa: BLE001 - a rule that an earlier clause should have kept away
                return False
            if name:
                scope[name] = got
            elif not got:
                return False
        return True


class Reads:
    """Which dims and parameters decide about a clause, lets followed to what they are made of."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._made_of = {
            name: lambda_parameters(rule)
            for c in terms.contract.clauses
            if isinstance(c, Let)
            for name, rule in c.rules
        }

    def of(self, clause: Clause) -> tuple[set[str], set[str]]:
        """Parameters and dims of a clause."""
        names = set(clause.names)
        dims: set[str] = set()
        pending = [n for rule in rules_of(clause) for n in lambda_parameters(rule)]
        pending += reads_of(clause)
        if isinstance(clause, AnyOf):
            for member in clause.members:
                more, sizes = self.of(member)
                names |= more
                dims |= sizes
        if isinstance(clause, SameDim):
            dims.add(clause.dim)
        if isinstance(clause, Shape):
            for name in clause.names:
                spec = self._terms.parameters[name].tensor
                pending += [n for f in (spec.forms if spec else ()) for d in f.dims for n in d.names]
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self._made_of:
                pending += self._made_of[name]
                dims.add(name)
            elif name in self._terms.parameters:
                names.add(name)
            else:
                dims.add(name)
        return names, dims
