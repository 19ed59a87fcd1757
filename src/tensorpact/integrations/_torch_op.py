"""Contracted functions as operators of torch: registered, called behind their contract, and taken away again."""

import inspect
import re
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

import torch

import tensorpact._decorator as decorator
from tensorpact import _guard
from tensorpact._contract import Contract
from tensorpact._entry import Entry, entry_of
from tensorpact._errors import ContractDefinitionError
from tensorpact._scopes import asks_hints, in_scope

from ._torch_op_fake import FakeBody, Rule, Stated, rule_of
from ._torch_op_results import read_results
from ._torch_op_schema import parameters_text, read_arguments, read_convert
from ._torch_op_text import Texts

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
#: One kernel for all devices: the function chooses what it runs itself, as it does when it is called without torch.
_EVERYWHERE = "CompositeExplicitAutograd"
_registered: dict[str, "_Registration"] = {}
_lock = threading.Lock()


class TorchOp(Protocol[P, R_co]):
    """A contracted function that goes through an operator of torch.

    Attributes:
        op_name: Namespace and name of the operator.
        schema: Its schema.
        overload: The operator itself, which checks nothing: what ``torch.library.opcheck`` wants.
    """

    op_name: str
    schema: str
    overload: Any

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def unregister(self) -> None:
        """Take the operator away, so that its name is free; calls raise a ``RuntimeError`` from then on."""
        ...


class _Registration:
    """What keeps an operator alive: torch forgets it with the last reference to its library."""

    def __init__(self, name: str, owner: str, library: torch.library.Library, calling: FunctionType, op: str) -> None:
        self._name = name
        self.owner = owner
        self._library: torch.library.Library | None = library
        self._calling = calling
        self._op = op

    def unregister(self) -> None:
        with _lock:
            if self._library is None:
                return
            self._library = None
            del _registered[self._name]
            name = self._name

            def gone(*args: Any, **kwargs: Any) -> Any:
                raise RuntimeError(f"{name} is no longer registered")

            self._calling.__globals__[self._op] = gone


@overload
def torch_op(
    name: str,
    function: Callable[P, R_co],
    /,
    *,
    returns: Sequence[str | None] | str | None = None,
    form: Rule | str | None = None,
    dtypes: Sequence[str | torch.dtype | None] | str | torch.dtype = (),
    like: Sequence[str | None] | str = (),
    device: str | None = None,
    fake: Callable[..., Any] | None = None,
    types: Mapping[str, Any] | None = None,
    without: Sequence[str] = (),
    convert: Mapping[str, Rule] | None = None,
    devices: Sequence[str] = (),
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    tags: Iterable[torch.Tag] = (),
) -> TorchOp[P, R_co]: ...


@overload
def torch_op(
    name: str,
    /,
    *,
    returns: Sequence[str | None] | str | None = None,
    form: Rule | str | None = None,
    dtypes: Sequence[str | torch.dtype | None] | str | torch.dtype = (),
    like: Sequence[str | None] | str = (),
    device: str | None = None,
    fake: Callable[..., Any] | None = None,
    types: Mapping[str, Any] | None = None,
    without: Sequence[str] = (),
    convert: Mapping[str, Rule] | None = None,
    devices: Sequence[str] = (),
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    tags: Iterable[torch.Tag] = (),
) -> Callable[[Callable[P, R_co]], TorchOp[P, R_co]]: ...


def torch_op(
    name: str,
    function: Callable[..., Any] | None = None,
    /,
    *,
    returns: Sequence[str | None] | str | None = None,
    form: Rule | str | None = None,
    dtypes: Sequence[str | torch.dtype | None] | str | torch.dtype = (),
    like: Sequence[str | None] | str = (),
    device: str | None = None,
    fake: Callable[..., Any] | None = None,
    types: Mapping[str, Any] | None = None,
    without: Sequence[str] = (),
    convert: Mapping[str, Rule] | None = None,
    devices: Sequence[str] = (),
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    tags: Iterable[torch.Tag] = (),
) -> Any:
    """Register a contracted function as an operator of torch.

    The schema is built from the annotations, what the contract's ``mutates`` names is written, and the fake kernel is
    derived from the return annotation. What comes back checks the contract and then calls the operator; inside the
    operator the body runs without checks. A tracer sees the checks and one node.

    Args:
        name: Namespace and name, ``"namespace::name"``.
        function: The function; without it the result is a decorator. One without a contract gets the contract that
            its annotations are.
        returns: Parameters that the function hands back, by place in what it returns, None for a new value. An
            operator may not return what it was given, so it returns the others, and these are added outside.
        form: Where the return annotation is a union: a rule of arguments that gives the index of its member, or the
            parameter that is the index, such as ``"return_lse"``.
        dtypes: By place, where the annotation leaves it open: the parameter whose dtype a new tensor has, or a dtype.
        like: By place: the parameter that ``torch.empty_like`` would make the new tensor of, with its strides. Others
            are contiguous.
        device: Parameter on whose device new tensors are; the first one that is always a tensor.
        fake: In place of the derived fake kernel: takes the arguments, and returns what the function would.
        types: Parameter to a hint, or a type of torch's schema language, in place of an annotation that has none.
        without: Parameters that the operator does not have, since no schema can say what they are or do. What comes
            back has them, with their clauses; a value other than the default that the contract allows is a
            ``TypeError``.
        convert: Parameter to a rule of arguments: what the operator is handed in its place, behind the contract, such
            as a tensor where the function also takes a number.
        devices: Device types that there is a kernel for, such as ``("cuda",)``; the dispatcher refuses others. Without
            any, the function is asked on every device.
        backward: As for ``torch.library.register_autograd``. Without one, a call that asks for a gradient is refused.
        setup_context: As for ``torch.library.register_autograd``.
        tags: Further tags of the operator.

    Returns:
        The function to call: see :class:`TorchOp` for what else it has.

    Raises:
        ContractDefinitionError: The name is taken, or something has no form in a schema or cannot be derived.
    """
    if function is None:
        settings: dict[str, Any] = {
            "returns": returns, "form": form, "dtypes": dtypes, "like": like, "device": device, "fake": fake,
            "types": types, "without": without, "convert": convert, "devices": devices, "backward": backward,
            "setup_context": setup_context, "tags": tags,
        }  # fmt: skip

        def decorate(inner: Callable[..., Any]) -> Any:
            return torch_op(name, inner, **settings)

        return decorate
    if _NAME.fullmatch(name) is None:
        raise ContractDefinitionError(f"an operator is named 'namespace::name', not {name!r}")
    entry = _entry(function)
    if entry.kind != "plain":
        raise ContractDefinitionError(f"{entry.owner}: an operator is no {entry.kind}")
    terms = entry.terms
    arguments = read_arguments(terms, types or {}, without)
    results = read_results(terms, returns, without)
    prefix = _guard.prefix_of(entry.built.plan)
    texts = Texts(terms, arguments, results, read_convert(terms, convert or {}, without), prefix, entry.body)
    body = in_scope(entry.body, terms) if asks_hints(entry.body) else entry.body
    rule = rule_of(terms, form, len(results.forms) > 1)
    stated = Stated(
        rule,
        (dtypes,) if isinstance(dtypes, (str, torch.dtype)) else tuple(dtypes),
        (like,) if isinstance(like, str) else tuple(like),
        device,
    )
    of_body = inspect.signature(entry.body)
    schema = f"{name.partition('::')[2]}({parameters_text(arguments)}) -> {results.schema()}"
    namespace, _, short = name.partition("::")
    kernels = [(key, texts.kernel(name, body)) for key in [d.upper() for d in devices] or [_EVERYWHERE]]
    pretending = texts.kernel(f"{name} on fake tensors", fake or FakeBody(terms, results, stated, of_body))
    with _lock:
        library = _define(name, schema, entry.owner, tags)
        refused = ""
        try:
            for key, kernel in kernels:
                library.impl(short, kernel, key)
            torch.library.register_fake(name, pretending, lib=library)
            if backward is not None:
                torch.library.register_autograd(name, backward, setup_context=setup_context, lib=library)
        except RuntimeError as bad:
            refused = str(bad).partition("\n")[0]
            # Their frames hold the library, and with it the half-made operator.
            traceback.clear_frames(bad.__traceback__)
        if refused:
            del library
            raise ContractDefinitionError(f"{entry.owner}: torch refuses {name}: {refused}")
        operator = getattr(getattr(torch.ops, namespace), short).default
        calling = texts.outer(name, operator, backward is not None, rule)
        registration = _Registration(name, entry.owner, library, calling, f"{prefix}op")
        _registered[name] = registration
    checked = calling
    if not decorator.disabled:
        again = Entry(calling, entry.contract, entry.check_returns, {})
        again.read()
        checked = again.function()
    operated = cast(Any, checked)
    operated.op_name, operated.schema, operated.overload = name, f"{namespace}::{schema}", operator
    operated.unregister = registration.unregister
    return operated


def _entry(function: Callable[..., Any]) -> Entry:
    found = entry_of(function)
    if found is not None:
        return found
    if not isinstance(function, FunctionType):
        raise ContractDefinitionError(f"{function!r} is no Python function")
    contract = function.__dict__.get("__tensorpact_contract__") or Contract(function.__name__)
    return Entry(function, contract, False, {})


def _define(name: str, schema: str, owner: str, tags: Iterable[torch.Tag]) -> torch.library.Library:
    namespace, _, short = name.partition("::")
    if name in _registered:
        raise ContractDefinitionError(f"{name} is registered already, for {_registered[name].owner}")
    if hasattr(getattr(torch.ops, namespace), short):
        raise ContractDefinitionError(f"{name} is registered already, and not by tensorpact")
    try:
        library = torch.library.Library(namespace, "FRAGMENT")
        # The contract is checked before the operator runs, so that no compiler may change layouts in between.
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides, *tags))
    except (RuntimeError, ValueError) as bad:
        reason = str(bad).partition("\n")[0]
        raise ContractDefinitionError(f"{owner}: torch refuses {schema!r}: {reason}") from bad
    return library
