"""The schema of an operator, built from the annotations of a contracted function: its parameters."""

import collections.abc
import inspect
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, cast

import torch

from tensorpact._annotations import EMPTY, Parameter, is_torch_class
from tensorpact._errors import ContractDefinitionError
from tensorpact._hints import is_none, is_tensor_hint, members
from tensorpact._terms import Terms
from tensorpact.clauses import lambda_parameters

_SCALARS: dict[Any, str] = {
    # A size may be a symbol while a graph is traced, and an int of a signature may be a size.
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    complex: "Scalar",
    torch.dtype: "ScalarType",
    torch.device: "Device",
    torch.layout: "Layout",
    torch.memory_format: "MemoryFormat",
    torch.Generator: "Generator",
}
_NUMBERS = frozenset({int, float, bool, complex})
_SEQUENCES: tuple[Any, ...] = (list, collections.abc.Sequence, collections.abc.MutableSequence)
#: What torch's language has lists of.
_LISTED = frozenset({"Tensor", "Tensor?", "SymInt", "float", "bool", "str", "Scalar"})
_UNQUOTED = frozenset('\\"\n\r\t')


@dataclass(frozen=True, slots=True)
class SchemaType:
    """A hint as torch's schema language says it.

    Attributes:
        text: ``Tensor``, ``SymInt[]?`` and the like.
        restore: What makes the value that the hint means of the one that the dispatcher hands over, which has lists
            alone; None where that is the same.
    """

    text: str
    restore: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of an operator."""

    parameter: Parameter
    type: SchemaType
    text: str

    @property
    def is_tensor(self) -> bool:
        """Whether a tensor, or a list of them, is handed over here."""
        return self.type.text.startswith("Tensor")


class Refused(Exception):
    """A hint that torch's schema language has no word for."""


def schema_type(hint: Any, absent: bool = False) -> SchemaType:
    """What torch's schema language says for a hint.

    Args:
        hint: The hint, evaluated.
        absent: Whether None is allowed although the hint does not say so.

    Raises:
        Refused: The language has nothing for it.
    """
    parts = [member for member, _ in members(hint)]
    kinds = [p for p in parts if not is_none(p)]
    optional = "?" if absent or len(kinds) < len(parts) else ""
    found = {t.text: t for t in _single(kinds)}
    if not found:
        raise Refused("None alone")
    if len(found) > 1:
        raise Refused(f"one of {', '.join(found)}")
    (only,) = found.values()
    return SchemaType(only.text + optional, _or_none(only.restore) if only.restore and optional else only.restore)


def _or_none(restore: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def restored(value: Any) -> Any:
        return None if value is None else restore(value)

    return restored


def _single(kinds: list[Any]) -> Iterator[SchemaType]:
    numbers = {k for k in kinds if k in _NUMBERS}
    if len(numbers) > 1:
        # Under `float` alone an int would come out of the dispatcher as a float.
        yield SchemaType("Scalar")
    strings = {str} if torch.device in kinds else set[Any]()
    for kind in kinds:
        if kind not in strings and not (len(numbers) > 1 and kind in numbers):
            yield _one(kind)


def _one(kind: Any) -> SchemaType:
    if kind is EMPTY or kind is Any or kind is object:
        raise Refused("an annotation that says nothing")
    if is_tensor_hint(kind):
        if not is_torch_class(kind.array_type):
            raise Refused(f"arrays of {kind.array_type!r}")
        return SchemaType("Tensor")
    if is_torch_class(kind):
        return SchemaType("Tensor")
    if kind in _SCALARS:
        return SchemaType(_SCALARS[kind])
    if kind is torch.Size:
        return SchemaType("SymInt[]", torch.Size)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        classes: set[Any] = {type(a) for a in arguments}
        for cls, text in ((str, "str"), (bool, "bool"), (int, "int")):
            if classes == {cls}:
                return SchemaType(text)
        raise Refused(repr(kind))
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        inner = {schema_type(a).text for a in arguments}
        if len(inner) == 1 and (text := inner.pop()) in ("SymInt", "float", "bool"):
            return SchemaType(f"{text}[{len(arguments)}]", tuple)
        raise Refused(f"{kind!r}, a tuple of no fixed number of int, float or bool")
    if origin in (*_SEQUENCES, tuple) and arguments:
        item = schema_type(arguments[0]).text
        if item not in _LISTED:
            raise Refused(f"lists of {item}")
        return SchemaType(f"{item}[]", tuple if origin is tuple else None)
    raise Refused(getattr(kind, "__name__", repr(kind)))


def default_text(value: Any, floats: bool = False) -> str:
    """A default value as the schema language writes it.

    Args:
        value: The default.
        floats: Whether numbers are read as floats, which have no limit of 64 bits.

    Raises:
        Refused: The language cannot write it.
    """
    if value is None or isinstance(value, bool):
        return str(value)
    if type(value) is int and (floats or -(2**63) <= value < 2**63):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    if isinstance(value, (str, torch.device)) and not _UNQUOTED.intersection(str(value)):
        return f'"{value}"'
    if isinstance(value, (list, tuple)):
        items = cast("list[Any]", value)
        if all(type(item) in (int, float, bool) for item in items):
            return f"[{', '.join(default_text(item, floats) for item in items)}]"
    raise Refused(f"the default {value!r}")


def read_arguments(terms: Terms, types: Mapping[str, Any], without: Sequence[str] = ()) -> tuple[Argument, ...]:
    """The parameters of an operator, in order.

    Args:
        terms: The contract laid on the signature.
        types: Parameter to the hint or the schema type that stands in the place of its annotation.
        without: Parameters that the operator does not have.

    Raises:
        ContractDefinitionError: A parameter has no form in a schema, or is to be left out and has no default.
    """
    for name in types:
        if name not in terms.parameters:
            raise ContractDefinitionError(f"{terms.owner}: types: {name!r} is no parameter")
    for name in without:
        if name not in terms.parameters:
            raise ContractDefinitionError(f"{terms.owner}: without: {name!r} is no parameter")
        if terms.parameters[name].default is EMPTY:
            _fail(terms, name, "a parameter without a default cannot be left out")
        if name in types:
            _fail(terms, name, "types gives a type to a parameter that is left out")
    found: list[Argument] = []
    for parameter in terms.signature.parameters:
        if parameter.name in without:
            continue
        if parameter.is_field or parameter.name == "self":
            _fail(terms, parameter.name, "an operator is no method")
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            _fail(terms, parameter.name, "a starred parameter has no form in a schema")
        kind = _type_of(terms, parameter, types)
        if parameter.name in terms.contract.mutates:
            at = terms.contract.mutates.index(parameter.name)
            letter = chr(ord("a") + at) if at < 26 else f"a{at}"
            kind = SchemaType(f"Tensor({letter}!){kind.text.removeprefix('Tensor')}", kind.restore)
        text = f"{kind.text} {parameter.name}"
        if parameter.default is not EMPTY:
            try:
                text += f"={default_text(parameter.default, kind.text.startswith('float'))}"
            except Refused as why:
                _fail(terms, parameter.name, f"{why} has no form in a schema")
        found.append(Argument(parameter, kind, text))
    return tuple(found)


def read_convert(
    terms: Terms, convert: Mapping[str, Callable[..., Any]], without: Sequence[str]
) -> Mapping[str, Callable[..., Any]]:
    """The rules that give what an operator is handed in the place of an argument.

    Args:
        terms: The contract laid on the signature.
        convert: Parameter to its rule.
        without: Parameters that the operator does not have.

    Raises:
        ContractDefinitionError: The operator has no such parameter or writes it, or a rule reads what is no parameter.
    """
    for name, rule in convert.items():
        if name not in terms.parameters or name in without:
            raise ContractDefinitionError(f"{terms.owner}: convert: {name!r} is no parameter of the operator")
        if name in terms.contract.mutates:
            _fail(terms, name, "convert would hand over another tensor than the one that is written")
        for read in lambda_parameters(rule):
            if read not in terms.parameters:
                _fail(terms, name, f"convert reads {read!r}, which is no parameter")
    return convert


def _type_of(terms: Terms, parameter: Parameter, types: Mapping[str, Any]) -> SchemaType:
    name, hint = parameter.name, parameter.hint
    if name in types:
        if isinstance(types[name], str):
            return SchemaType(types[name])
        hint = types[name]
    try:
        return schema_type(hint, parameter.default is None)
    except Refused as why:
        _fail(terms, name, f"a schema has no form for {why}; name one in types={{{name!r}: …}}")


def _fail(terms: Terms, name: str, why: str) -> NoReturn:
    raise ContractDefinitionError(f"{terms.owner}: {name}: {why}")


def parameters_text(arguments: tuple[Argument, ...]) -> str:
    """The parameter list of a schema."""
    out: list[str] = []
    for argument in arguments:
        if argument.parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in out:
            out.append("*")
        out.append(argument.text)
    return ", ".join(out)
