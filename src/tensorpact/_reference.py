"""The verdict of stock jaxtyping and beartype, and every clause in plain Python: the oracle of the guard."""

import ast
import inspect
import numbers
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union

from beartype import beartype
from jaxtyping import AbstractDtype, jaxtyped  # pyright: ignore[reportUnknownVariableType] - untyped in part

from ._annotations import EMPTY, Parameter, TensorForm, TensorSpec
from ._diagnosis import diagnose
from ._dims import Dim, DimKind
from ._guard import is_required
from ._hints import unwrap
from ._items import read_plain_items
from ._terms import Terms

_FAMILIES: dict[tuple[Any, ...], Any] = {}


def _dtype_class(form: TensorForm) -> Any:
    """The jaxtyping dtype class of a form, widened by the dtypes that its family leaves out."""
    own: Any = form.dtype_class.dtypes
    # A hint that extends another one has the dtypes of both, whatever its own class says.
    if form.dtypes is None or (isinstance(own, tuple) and own == form.dtypes):
        return form.dtype_class
    key = (form.dtype_class.__name__, form.dtypes)
    if key not in _FAMILIES:
        _FAMILIES[key] = type(form.dtype_class.__name__, (AbstractDtype,), {"dtypes": list(form.dtypes)})
    return _FAMILIES[key]


def _sure_names(terms: Terms) -> list[tuple[Parameter, set[str]]]:
    """For each tensor parameter, the dims that those in front of it bind in every call."""
    seen: set[str] = set()
    out: list[tuple[Parameter, set[str]]] = []
    for p in terms.tensors:
        out.append((p, set(seen)))
        if p.tensor is not None and is_required(p) and not p.tensor.union:
            seen |= {d.name for d in p.tensor.dims if d.kind is DimKind.NAMED and not d.broadcast}
    return out


def _calls(dim: Dim) -> bool:
    # Stock takes a dim for a function of the same name, as in `max(a,b)` beside a dim `max`.
    return dim.expression is not None and any(isinstance(n, ast.Call) for n in ast.walk(dim.expression.tree))


def _axis_text(dim: Dim, loose: set[str], sure: set[str]) -> str:
    mark = "#" if dim.broadcast else ""
    if dim.variadic:
        return "..." if dim.kind is DimKind.ELLIPSIS else f"*{mark}{dim.name}"
    if dim.kind in (DimKind.ANONYMOUS, DimKind.FIXED):
        return mark + dim.text
    # Stock pastes the text into an f-string in single quotes, so that a quote inside breaks it.
    if (
        _calls(dim)
        or set(dim.names) & loose
        or (dim.kind is DimKind.EXPRESSION and not set(dim.names) <= sure)
        or "'" in dim.text
    ):
        return "_"
    return mark + dim.text


def _stock_form(form: TensorForm, text: str) -> Any:
    return _dtype_class(form)[form.array_type, text]


def stock_hint(parameter: Parameter, loose: set[str], sure: set[str]) -> Any:
    """The hint as stock may see it: our metadata off, axes that stock cannot judge left open.

    Args:
        parameter: Whose hint.
        loose: Dims that are let, tied or solved.
        sure: Dims that the parameters in front bind.
    """
    if parameter.hint is EMPTY:
        return EMPTY
    members: list[Any] = []
    spec = parameter.tensor
    if spec is not None:
        members += [_stock_form(form, _form_text(spec, form, loose, sure)) for form in spec.forms]
        if parameter.extra is not EMPTY:
            metadata = typing.get_args(parameter.extra)[1:]
            members = [Annotated[(m, *metadata)] for m in members]
    if parameter.other is not EMPTY:
        inner = typing.get_args(parameter.other) if typing.get_origin(parameter.other) is Union else (parameter.other,)
        members += [_stock_other(m) for m in inner]
    if parameter.optional:
        members.append(None)
    return Union[tuple(members)]  # noqa: UP007 - members are known at run time only


def _stock_other(hint: Any) -> Any:
    """A hint without tensors as stock may see it: numbers and the items of containers are judged by our rule."""
    if hint in (int, float):
        return numbers.Real
    return hint if read_plain_items(hint) is None else typing.get_origin(unwrap(hint))


def _form_text(spec: TensorSpec, form: TensorForm, loose: set[str], sure: set[str]) -> str:
    if spec.union:
        return " ".join("..." if d.variadic else "_" for d in form.dims)
    known, out = set(sure), list[str]()
    for dim in form.dims:
        out.append(_axis_text(dim, loose, known))
        if dim.kind is DimKind.NAMED and not dim.broadcast:
            known.add(dim.name)
    return " ".join(out)


def _bindable(terms: Terms) -> tuple[set[str], dict[str, set[str]]]:
    """Dims that stock may not judge, and for each tensor parameter those that the ones in front of it bind."""
    loose = set(terms.lets) | set(terms.contract.tied) | set(terms.solved)
    return loose, {p.name: names for p, names in _sure_names(terms)}


def stock_axes(terms: Terms) -> dict[str, Any]:
    """For each tensor parameter that binds dims, a hint of stock that binds them."""
    loose, sure = _bindable(terms)
    return {
        p.name: _stock_form(p.tensor.forms[0], _form_text(p.tensor, p.tensor.forms[0], loose, sure[p.name]))
        for p in terms.tensors
        if p.tensor is not None and not p.tensor.union and not p.is_field
    }


class Reference:
    """A contracted function as ``beartype`` mode runs it.

    Args:
        terms: The contract laid on the signature.
        body: The undecorated function.
        shim: A function of the same signature that packs its arguments and calls back.
    """

    def __init__(self, terms: Terms, make_shim: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._terms = terms
        loose, sure = _bindable(terms)
        annotations: dict[str, Any] = {}
        for parameter in terms.signature.parameters:
            # Stock looks at one random item of a list; the evaluation of the clauses looks at every one.
            collects = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            if not (parameter.is_field or parameter.nested or collects):
                hint = stock_hint(parameter, loose, sure.get(parameter.name, set()))
                if hint is not EMPTY:
                    annotations[parameter.name] = hint
        shim = make_shim(self._judged)
        if not shim.__name__.isidentifier():
            shim.__name__ = "function"  # stock writes a `def` of that name, which a lambda has none for
        shim.__annotations__ = annotations
        self.annotations = annotations
        self._checked: Callable[..., Any] = jaxtyped(shim, typechecker=beartype)

    def _judged(self, values: tuple[Any, ...]) -> Any:
        return values

    def check(self, values: Mapping[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseException | None:
        """The error of a call, from stock or from a clause; None where everything holds.

        Args:
            values: Parameter name to argument.
            args: Positional arguments.
            kwargs: Keyword arguments.
        """
        stock: Exception | None = None
        try:
            self._checked(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - stock fails in its own ways on an argument inside `{…}`
            stock = error
        found = diagnose(self._terms, values)
        if found is not None:
            return found
        return stock
