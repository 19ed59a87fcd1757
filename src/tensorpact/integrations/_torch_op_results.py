"""The schema of an operator: what it returns, read from the return annotation of the function behind it."""

import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn

from tensorpact._annotations import EMPTY, TensorSpec, read_hint
from tensorpact._errors import ContractDefinitionError
from tensorpact._guard import is_required
from tensorpact._hints import is_none, members, unwrap
from tensorpact._terms import Terms

_PLAIN = {int: "SymInt", float: "float", bool: "bool"}


@dataclass(frozen=True, slots=True)
class Result:
    """One value that comes back.

    Attributes:
        spec: What the annotation says of a tensor; None where the value is none, or a list of them.
        text: Its schema type.
        argument: Parameter that is handed back in its place, or None.
    """

    spec: TensorSpec | None
    text: str
    argument: str | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """One member of the union that a return annotation may be.

    Attributes:
        shape: Nothing, a single value, or a tuple of some.
        results: The values, in order.
        build: Makes the tuple; a named tuple has its own class.
    """

    shape: Literal["none", "one", "tuple"]
    results: tuple[Result, ...]
    build: Callable[[list[Any]], Any] = tuple

    @property
    def fresh(self) -> tuple[Result, ...]:
        """The values that are no argument: those that the operator itself returns."""
        return tuple(r for r in self.results if r.argument is None)

    def like(self, other: "Form") -> bool:
        """Whether two forms are made of the same kinds of values."""
        return (self.shape, self.build, [r.text for r in self.results]) == (
            other.shape,
            other.build,
            [r.text for r in other.results],
        )


@dataclass(frozen=True, slots=True)
class Results:
    """What an operator returns.

    Attributes:
        forms: The members of the return annotation, in order.
        listed: Whether they differ in kind, so that the schema has a list of tensors for all of them.
        padded: Whether they differ in kind where no list will do: as many tensors as the longest has, and those that a
            form does not have are empty. An operator that writes may return no list, as torch makes pure functions of
            operators for its compilers.
    """

    forms: tuple[Form, ...]
    listed: bool
    padded: bool

    @property
    def most(self) -> int:
        """Number of values of the longest form."""
        return max(len(form.fresh) for form in self.forms)

    def schema(self) -> str:
        """The return type of the schema."""
        if self.listed:
            return "Tensor[]"
        texts = ["Tensor"] * self.most if self.padded else [r.text for r in self.forms[0].fresh]
        return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def read_results(terms: Terms, returns: Sequence[str | None] | str | None, without: Sequence[str] = ()) -> Results:
    """The return annotation, read.

    Args:
        terms: The contract laid on the signature.
        returns: Parameters that are handed back, by place in the returned tuple.
        without: Parameters that the operator does not have, and so does not write.

    Raises:
        ContractDefinitionError: It has no form in a schema.
    """
    if terms.signature.returns is EMPTY:
        _fail(terms, "the return value has no annotation")
    forms = tuple(_forms(terms, terms.signature.returns))
    if returns is not None:
        forms = (_handed_back(terms, forms, (returns,) if isinstance(returns, str) else tuple(returns)),)
    first = forms[0]
    mixed, writes = not all(form.like(first) for form in forms), bool(set(terms.contract.mutates) - set(without))
    if mixed:
        counts = [len(form.results) for form in forms]
        if len(set(counts)) < len(counts) or any(r.text != "Tensor" for form in forms for r in form.results):
            _fail(terms, "forms of the return annotation must differ in their number of tensors, and hold nothing else")
    return Results(forms, mixed and not writes, mixed and writes)


def _forms(terms: Terms, hint: Any) -> Iterator[Form]:
    for member, metadata in members(hint):
        whole = Annotated[(member, *metadata)] if metadata else member
        if is_none(member):
            yield Form("none", ())
            continue
        items = _items_of(member)
        if items is None:
            yield Form("one", (_result(terms, whole),))
        else:
            results = tuple(_result(terms, item) for item in items)
            yield Form("tuple", results, member._make if hasattr(member, "_make") else tuple)


def _items_of(hint: Any) -> tuple[Any, ...] | None:
    """Hints of the items of a tuple; None where a hint is no tuple of a fixed number of them."""
    hint = unwrap(hint)
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        return tuple(typing.get_type_hints(hint, include_extras=True).values())
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and arguments[-1:] != (Ellipsis,):
        return arguments
    return None


def _result(terms: Terms, hint: Any) -> Result:
    parts = [m for m, _ in members(hint)]
    if len(parts) == 1 and parts[0] in _PLAIN:
        return Result(None, _PLAIN[parts[0]])
    items = [a for a in typing.get_args(parts[0]) if a is not Ellipsis] if len(parts) == 1 else []
    if len(items) == 1 and _tensor(terms, items[0]) is not None:
        return Result(None, "Tensor[]")
    spec = _tensor(terms, hint)
    if spec is None:
        _fail(terms, f"a schema has no form for {hint!r} in the return annotation")
    return Result(spec, "Tensor")


def _tensor(terms: Terms, hint: Any) -> TensorSpec | None:
    read = read_hint("return", hint, terms.owner)
    return read.tensor if read.other is EMPTY and not read.optional else None


def _handed_back(terms: Terms, forms: tuple[Form, ...], names: tuple[str | None, ...]) -> Form:
    for name in (n for n in names if n is not None):
        parameter = terms.parameters.get(name)
        if parameter is None or not is_required(parameter):
            _fail(terms, f"returns: {name!r} is no parameter that is always a tensor")
    (first, *others) = forms
    if others or len(first.results) != len(names):
        _fail(terms, f"returns names {len(names)} values; the return annotation has another number, or several forms")
    pairs = zip(first.results, names, strict=True)
    return Form(first.shape, tuple(Result(r.spec, r.text, n) for r, n in pairs), first.build)


def _fail(terms: Terms, why: str) -> NoReturn:
    raise ContractDefinitionError(f"{terms.owner}: {why}")
