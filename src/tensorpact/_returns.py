"""Return annotations: a returned value looked at with the dims of its call."""

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Union, cast

from ._annotations import EMPTY, Parameter, Signature, mentions_tensor, read_hint
from ._call import Broken, Call
from ._contract import Contract
from ._diagnosis import make_error
from ._errors import ContractViolation
from ._evaluation import Violation, first_violation
from ._terms import Terms


def _alternatives(hint: Any) -> Iterator[Any]:
    if typing.get_origin(hint) in (Union, types.UnionType):
        for member in typing.get_args(hint):
            yield from _alternatives(member)
    else:
        yield hint


def _is_fixed_tuple(hint: Any) -> bool:
    inner = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    return typing.get_origin(inner) is tuple and Ellipsis not in typing.get_args(inner) and mentions_tensor(inner)


def leaves(hint: Any, value: Any, name: str = "return") -> Iterator[tuple[str, Any, Any]]:
    """Name, hint and value of every part of a returned value that a hint speaks of.

    Args:
        hint: Return annotation; fixed tuples are taken apart, the alternative that fits the value's form is chosen.
        value: What was returned.
        name: How messages call it.
    """
    members = list(_alternatives(hint))
    tuples = [m for m in members if _is_fixed_tuple(m)]
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        for member in tuples:
            arguments = typing.get_args(member)
            if len(arguments) == len(items):
                for i, (inner, item) in enumerate(zip(arguments, items, strict=True)):
                    yield from leaves(inner, item, f"{name}[{i}]")
                return
    rest = [m for m in members if m not in tuples]
    if rest:
        yield name, Union[tuple(rest)], value  # noqa: UP007 - members are known at run time only
    else:
        yield name, tuple, value


class ReturnCheck:
    """The return annotation of one contracted function.

    Args:
        contract: Its contract.
        signature: Its signature.
    """

    def __init__(self, contract: Contract, signature: Signature) -> None:
        self._contract = contract
        self._signature = signature
        self._known: dict[tuple[str, ...], Terms] = {}

    def __call__(self, result: Any, values: Mapping[str, Any]) -> ContractViolation | None:
        """The error of a returned value, or None.

        Args:
            result: What was returned.
            values: Parameter name to argument.
        """
        hint = self._signature.returns
        if hint is EMPTY or hint is None:
            return None
        parts = list(leaves(hint, result))
        terms = self._terms(tuple(name for name, _, _ in parts), parts)
        call = Call(terms, {**values, **{name: value for name, _, value in parts}})
        first_violation(call)  # runs the lets
        for name, _, _ in parts:
            for obligation in terms.obligations[name]:
                status = call.status(obligation)
                if isinstance(status, Broken):
                    return make_error(call, Violation(status))
        return None

    def _terms(self, names: tuple[str, ...], parts: list[tuple[str, Any, Any]]) -> Terms:
        if names not in self._known:
            owner = self._signature.owner
            extra: list[Parameter] = [read_hint(name, hint, owner) for name, hint, _ in parts]
            signature = replace(self._signature, parameters=(*self._signature.parameters, *extra))
            self._known[names] = Terms(self._contract, signature)
        return self._known[names]
