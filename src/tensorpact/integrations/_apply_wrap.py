"""A foreign function as the body of a contracted one: its parameters, with the annotations of a stub."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, cast

from tensorpact import _guard
from tensorpact._annotations import EMPTY, Parameter
from tensorpact._contract import Contract
from tensorpact._entry import Entry, entry_of
from tensorpact._frames import closed_over
from tensorpact._guard.build import def_text, return_text
from tensorpact._guard.writer import call_text, signature_text
from tensorpact._hints import evaluate_hint, signature_of
from tensorpact._results import Kind, kind_of

from ._apply_errors import AlreadyAppliedError, ApplyError, StubMismatchError
from ._apply_targets import TargetName, near

_KINDS = inspect.Parameter
_FOREIGN = "__foreign__"
_STARS = (_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD)


@dataclass(frozen=True, slots=True, eq=False)
class Overlay:
    """What :func:`apply` needs for one function.

    Attributes:
        target: The function, as ``module:name``.
        contract: What it promises.
        stub: A function of its parameters with annotations; None where it has them itself.
        beside: Other attributes that are exchanged as long as the contract is on, made of the foreign function: owner,
            name and what stands there then. For code that compares what is called with the name that is exchanged.
    """

    target: str
    contract: Contract | None
    stub: FunctionType | None
    beside: Callable[[Any], Iterable[tuple[Any, str, Any]]] | None = None


def contracted(function: Any, target: TargetName, overlay: Overlay, check_returns: bool) -> tuple[Entry, FunctionType]:
    """Make the function that takes the place of a foreign one.

    Args:
        function: The foreign function.
        target: Its name.
        overlay: What it promises, and the annotations that it lacks.
        check_returns: Check the return annotation in ``compiled`` mode too.

    Raises:
        AlreadyAppliedError: It has a contract.
        StubMismatchError: The stub names what it does not have, or lacks what a call must give.
        ContractDefinitionError: The contract does not fit the annotations.
    """
    contract, stub = overlay.contract, cast("FunctionType | None", overlay.stub)
    function = _bare(function, target, given=contract is not None or stub is not None)
    if stub is not None:
        body = forwarding(function, stub, target)
    elif isinstance(function, FunctionType):
        body = function
    else:
        raise ApplyError(
            f"{target} is a {type(function).__name__} without annotations; give stub=, a function of its parameters "
            "with them"
        )
    entry = Entry(
        body, contract or Contract(target.path[-1], family=target.module.rpartition(".")[2]), check_returns, {}
    )
    if len(target.path) > 1 and next(iter(body.__code__.co_varnames), "") == "self":
        entry.rehearse(may_have_fields=True)
    else:
        entry.read()
    made = entry.function()
    # Pickle looks a function up by these, and finds the contracted one where it was put.
    made.__module__, made.__qualname__ = target.module, target.qualname
    if not isinstance(function, FunctionType):
        _carry(function, made)
    return entry, made


def _bare(function: Any, target: TargetName, given: bool) -> Any:
    """The function behind contracts that no longer hold, and behind one of the import hook."""
    while (entry := entry_of(function)) is not None and entry.makes(function) and entry.retired:
        function = foreign_of(function)
    seen: Any = function
    while seen is not None:
        entry = entry_of(seen)
        if entry is not None and entry.makes(seen) and not entry.retired:
            if entry.hooked and seen is function and given:
                return entry.body
            what = "a contract already" if seen is function else "a contract already, behind what now wraps it"
            raise AlreadyAppliedError(f"{target} has {what}: {entry.contract.name}, on {entry.owner}")
        seen = getattr(seen, "__wrapped__", None)
    return function


def foreign_of(function: Any) -> Any:
    """The foreign function behind the contract that stands in its place, where one does."""
    while (entry := entry_of(function)) is not None and entry.makes(function):
        function = entry.body.__dict__.get(_FOREIGN, entry.body)
    return function


def _carry(function: Any, made: FunctionType) -> None:
    """Hand on what else a callable object offers, such as ``cache_clear`` or the overloads of an operator."""
    # An operator lists only those of its overloads that somebody has asked for.
    overloads = cast("list[str]", function.overloads() if hasattr(function, "_schemas") else [])
    for name in (*dir(function), *overloads):
        if not name.startswith("__") and not hasattr(FunctionType, name) and name not in made.__dict__:
            try:
                made.__dict__[name] = getattr(function, name)
            except Exception:  # noqa: BLE001 - an attribute that cannot be read has nothing to hand on
                continue


def forwarding(function: Any, stub: FunctionType, target: TargetName) -> FunctionType:
    """A function of the parameters of a foreign one and the annotations of its stub, that calls the foreign one.

    Args:
        function: The foreign function.
        stub: Its stub.
        target: Its name.

    Raises:
        StubMismatchError: The two do not fit.
    """
    written = signature_of(stub)
    merged = merge(written, parameters_of(function), target)
    kind = kind_of(function)
    body = forwarder(function, merged, kind, str(target))
    hints = {p.name: p.annotation for p in merged if p.annotation is not EMPTY}
    scope = closed_over(stub)
    annotations = {name: evaluate_hint(hint, stub.__globals__, scope) for name, hint in hints.items()}
    if written.return_annotation is not EMPTY:
        annotations["return"] = evaluate_hint(written.return_annotation, stub.__globals__, scope)
    body.__annotations__ = annotations
    signature = inspect.Signature([p.replace(annotation=annotations.get(p.name, EMPTY)) for p in merged])
    body.__dict__.update(getattr(function, "__dict__", {}) if isinstance(function, FunctionType) else {})
    body.__dict__["__wrapped__"] = body.__dict__[_FOREIGN] = function
    # Readers of signatures stop here; without it they would go on to the foreign function.
    body.__dict__["__signature__"] = signature.replace(return_annotation=annotations.get("return", EMPTY))
    body.__module__, body.__qualname__, body.__name__ = target.module, target.qualname, target.path[-1]
    body.__doc__ = getattr(function, "__doc__", None)
    return body


def forwarder(
    function: Any, parameters: list[inspect.Parameter], kind: Kind, label: str, by_name: bool = False
) -> FunctionType:
    """A function of some parameters that hands all of them on.

    Args:
        function: What it calls.
        parameters: Its parameters, with their defaults.
        kind: What calling it gives.
        label: Its name in tracebacks.
        by_name: Hand them on by name, where what is called may have others between them.
    """
    plain = [Parameter(p.name, p.kind, p.default, EMPTY, None, EMPTY, True) for p in parameters]
    name = "_foreign"
    while any(p.name == name for p in parameters):
        name += "_"
    given = [
        replace(p, kind=_KINDS.KEYWORD_ONLY) if by_name and p.kind is _KINDS.POSITIONAL_OR_KEYWORD else p for p in plain
    ]
    call = return_text(kind, f"{name}({call_text(given)})")
    text = f"{def_text(kind)} guarded({signature_text(plain)}):\n    {call}\n"
    source = _guard.GuardSource(text, {}, f"<tensorpact overlay {label}>")
    made = cast(FunctionType, _guard.build(source, {name: function}))
    if kind == "async generator":
        made = cast(FunctionType, _guard.build(_guard.delegating_source(made, label, function), {}))
    by_place = [p for p in parameters if p.kind in (_KINDS.POSITIONAL_ONLY, _KINDS.POSITIONAL_OR_KEYWORD)]
    made.__defaults__ = tuple(p.default for p in by_place if p.default is not EMPTY) or None
    keyword = {p.name: p.default for p in parameters if p.kind is _KINDS.KEYWORD_ONLY and p.default is not EMPTY}
    made.__kwdefaults__ = keyword or None
    return made


def parameters_of(function: Any) -> list[inspect.Parameter] | None:
    """Parameters of a foreign function; None where it does not say, as most of C and a bare ``*args, **kwargs``."""
    schema = _schema_of(function)
    if schema is not None:
        return schema
    try:
        found = list(signature_of(function).parameters.values())
    except (TypeError, ValueError):
        return None
    return None if {p.kind for p in found} == set(_STARS) else found


def _schema_of(function: Any) -> list[inspect.Parameter] | None:
    """Parameters of an operator of torch that has one overload."""
    schema = getattr(function, "_schema", None)
    schemas = [schema] if schema is not None else list(getattr(function, "_schemas", {}).values())
    if len(schemas) != 1 or not hasattr(schemas[0], "arguments"):
        return None
    return [
        inspect.Parameter(
            a.name,
            _KINDS.KEYWORD_ONLY if a.kwarg_only else _KINDS.POSITIONAL_OR_KEYWORD,
            default=a.default_value if a.has_default_value() else EMPTY,
        )
        for a in schemas[0].arguments
    ]


def merge(stub: inspect.Signature, real: list[inspect.Parameter] | None, target: TargetName) -> list[inspect.Parameter]:
    """Parameters as the function has them, with the annotations of the stub.

    Order, kinds and defaults are the function's. Optional parameters that the stub does not name are handed on
    unchecked: a new version may have more of them.

    Raises:
        StubMismatchError: The stub names a parameter that does not exist, or lacks one that has no default.
    """
    written = dict(stub.parameters)
    if real is None:
        return list(written.values())
    names = [p.name for p in real]
    renamed = [n for n, p in written.items() if n not in names and p.kind not in _STARS]
    takes_any = any(p.kind is _KINDS.VAR_KEYWORD for p in real)
    if renamed and not takes_any:
        missing = [f"{n}{near(n, [m for m in names if m not in written])}" for n in renamed]
        raise StubMismatchError(
            f"{target}: the stub names what the function does not have: {', '.join(missing)}; it has "
            f"({', '.join(str(p.replace(annotation=EMPTY)) for p in real)})"
        )
    wanted = [p.name for p in real if p.name not in written and p.default is EMPTY and p.kind not in _STARS]
    if wanted:
        raise StubMismatchError(f"{target}: a call must give {', '.join(wanted)}, which the stub does not name")
    merged = [p.replace(annotation=written[p.name].annotation if p.name in written else EMPTY) for p in real]
    extra = [written[n].replace(kind=_KINDS.KEYWORD_ONLY) for n in renamed]
    last = [p for p in merged if p.kind is _KINDS.VAR_KEYWORD]
    return [p for p in merged if p.kind is not _KINDS.VAR_KEYWORD] + extra + last


def resolving(find: Callable[[], Any]) -> Callable[..., Any]:
    """A callable that finds what it calls at its first call."""
    found: list[Any] = []

    def late(*args: Any, **kwargs: Any) -> Any:
        if not found:
            found.append(find())
        return found[0](*args, **kwargs)

    return late
