"""A call with containers taken apart: every item becomes a parameter of its own, under a name such as ``xs[4]``."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ._annotations import EMPTY, Parameter, read_hint
from ._items import Unfit, expand
from ._terms import Terms


def expand_call(terms: Terms, values: Mapping[str, Any]) -> tuple[Terms, dict[str, Any]]:
    """Terms and arguments of one call without containers.

    Args:
        terms: The contract laid on the signature.
        values: Parameter name to argument.
    """
    if not terms.nested:
        return terms, dict(values)
    found: dict[str, Any] = dict(values)
    known: dict[int, Parameter] = {}
    parameters: list[Parameter] = []
    for parameter in terms.signature.parameters:
        if not parameter.nested:
            parameters.append(parameter)
            continue
        name, owner = parameter.name, terms.owner
        value = found[name] if name in found else _field(found, name)
        parts = [] if value is None and parameter.optional else list(expand(name, parameter.hint, value, owner))
        found[name] = value
        if [n for n, _, _ in parts] != [name]:
            parameters.append(replace(parameter, hint=EMPTY, nested=False, optional=True))
        for part, hint, item in parts:
            if isinstance(hint, Unfit):
                known[id(hint)] = Parameter(part, parameter.kind, EMPTY, hint, None, hint, False)
            elif id(hint) not in known:
                known[id(hint)] = read_hint(part, hint, owner)
            parameters.append(replace(known[id(hint)], name=part))
            found[part] = item
    signature = replace(terms.signature, parameters=tuple(parameters))
    return Terms(terms.contract, signature, absent=terms.dims), found


def _field(values: Mapping[str, Any], name: str) -> Any:
    owner, _, attribute = name.partition(".")
    return getattr(values[owner], attribute)
