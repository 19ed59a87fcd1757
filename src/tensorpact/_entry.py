"""The decorator: a function, its contract and its guard."""

import contextlib
import dataclasses
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import FrameType, FunctionType
from typing import Any, NamedTuple, TypeVar, cast, overload

import torch

import tensorpact._modes as modes

from . import _guard, _observing
from ._annotations import Signature, UnresolvedHintError, read_signature
from ._classes import contract_dataclass
from ._contract import Contract
from ._diagnosis import diagnose
from ._errors import ContractDefinitionError
from ._frames import caller_frame
from ._guard import GuardPlan, make_plan
from ._hints import annotations_of, evaluate_hint, holds_text
from ._reference import Reference
from ._results import Kind, kind_of, result_hint, wrap
from ._returns import ReturnCheck
from ._scopes import asks_hints, in_scope
from ._terms import Terms
from ._tracing import Facts, facts_of, proxy_among, told

#: A function, or a dataclass: either comes back as what it was.
F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=BaseException | None)
#: Whether ``TENSORPACT=off`` stood in the environment at import: decorators then return the function itself.
disabled: bool = modes.current == modes.OFF


class Built(NamedTuple):
    """What a contracted function is checked with."""

    terms: Terms
    plan: GuardPlan
    source: _guard.GuardSource


class Entry:
    """A contracted function: reachable as ``function.__tensorpact__``.

    Attributes:
        body: The undecorated function.
        contract: Its contract.
        kind: What calling it gives.
        owner: Module and qualified name.
        check_returns: Whether the return annotation is checked in ``compiled`` mode.
        hooked: Whether the import hook made it, so that a decorator written above may put its own in its place.
    """

    def __init__(
        self,
        body: FunctionType,
        contract: Contract,
        check_returns: bool,
        local: Mapping[str, Any],
        hooked: bool = False,
    ) -> None:
        self.body = body
        self.contract = contract
        self.check_returns = check_returns
        self.hooked = hooked
        self.kind: Kind = kind_of(body)
        self.owner = f"{body.__module__}.{body.__qualname__}"
        self._local: Mapping[str, Any] = local
        self._built: Built | None = None
        self._provisional: Built | None = None
        self._lock = threading.Lock()
        self._reference: Reference | None = None
        self._returns: ReturnCheck | None = None
        self._function: weakref.ref[FunctionType] | None = None
        self._asks_hints = self.kind == "plain" and asks_hints(body)
        self._scoped: Callable[..., Any] | None = None
        self._observer = _observing.current
        if self._observer is not None:
            self._observer.made(self)

    @property
    def called(self) -> Callable[..., Any]:
        """What a right call runs: the body, in a jaxtyping context of its own where it asks for one."""
        if not self._asks_hints:
            inner: Callable[..., Any] = self.body
        else:
            if self._scoped is None or getattr(self._scoped, "__wrapped__", None) is not self.body:
                self._scoped = in_scope(self.body, self.terms)
            inner = self._scoped
        return inner if self._observer is None else self._observer.counted(self, inner)

    @property
    def ready(self) -> bool:
        """Whether the guard is built; methods wait for their first call, which shows the class of ``self``."""
        return self._built is not None

    @property
    def built(self) -> "Built":
        """Everything made from the annotations and the contract.

        Raises:
            ContractDefinitionError: Either is wrong.
        """
        return self._built or self.read()

    @property
    def terms(self) -> Terms:
        """The contract laid on the signature."""
        return self.built.terms

    @property
    def source(self) -> str:
        """Text of the generated guard."""
        return self.built.source.text

    @property
    def signature(self) -> Signature:
        """The annotations, read."""
        return self.terms.signature

    def read(self, fields: Mapping[str, Any] | None = None) -> "Built":
        """Read the annotations, lay the contract on them and write the guard.

        Args:
            fields: Annotated fields of the class of ``self``.

        Raises:
            ContractDefinitionError: Annotations or contract are wrong.
        """
        with self._lock:
            if self._built is None:
                self._built = self._read(fields)
                self._local = {}
        return self._built

    def _read(self, fields: Mapping[str, Any] | None) -> "Built":
        signature = read_signature(self.body, self.owner, self._local, fields)
        terms = Terms(self.contract, signature)
        plan = make_plan(terms)
        return Built(terms, plan, _guard.write_source(plan, self.owner, self.kind))

    def rehearse(self, may_have_fields: bool) -> None:
        """Build a method's guard without the fields of ``self``: for the author's mistakes, and for tracers.

        Args:
            may_have_fields: Whether a failure may be due to fields that are not known yet.

        Raises:
            ContractDefinitionError: Annotations or contract are wrong.
        """
        try:
            self._provisional = self._read(None)
        except UnresolvedHintError:
            pass
        except ContractDefinitionError:
            if not may_have_fields and not any("self." in n for c in self.contract.clauses for n in c.names):
                raise

    def build(self, instance: Any) -> FunctionType | None:
        """Build the guard of a function at its first call; ``instance`` is its ``self``, where there is one."""
        if self._built is None:
            self.read(None if instance is None else _fields(instance.__class__, self.body))
        function = None if self._function is None else self._function()
        if function is not None and function.__code__.co_name == "unready":
            made = self._compile(self.built)
            function.__globals__.update(made.__globals__)
            function.__code__ = made.__code__
        return function

    def values(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """Arguments in signature order, by name."""
        names = [p.name for p in self.terms.signature.parameters if not p.is_field]
        return dict(zip(names, arguments, strict=True))

    def diagnose(self, arguments: tuple[Any, ...]) -> Exception | None:
        """The error of a call, or None where it is right after all."""
        # Tracing the diagnosis would take seconds and prove nothing; where Dynamo is in use, it is kept away.
        dynamo: Any = sys.modules.get("torch._dynamo")
        if dynamo is None:
            return self.judge(arguments)
        reason = f"the call breaks the contract of {self.owner}"
        if torch.compiler.is_dynamo_compiling():
            # Under fullgraph=True this is where the trace ends, and the message is all that its caller is shown.
            dynamo.graph_break(msg=f"{reason}: {self.told(tuple([facts_of(a) for a in arguments]))}")
        return dynamo.disable(self.judge, reason=reason)(arguments)

    def told(self, facts: tuple[Facts, ...]) -> str:
        """What a tracer's message says of a call that breaks the contract."""
        return told(self.terms, self.values(facts)) or "call it outside torch.compile to see the documented error"

    told._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def judge(self, arguments: tuple[Any, ...]) -> Exception | None:
        """The error of a call, by the interpreter of the language; none for what ``torch.fx`` hands over to trace."""
        if proxy_among(arguments) is not None:
            return None
        return self._told(diagnose(self.terms, self.values(arguments)))

    def _told(self, error: E) -> E:
        """Tell the observer of an error, where there are both."""
        if self._observer is not None and isinstance(error, Exception):
            self._observer.broken(self, error)
        return error

    def call_checked(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function as ``beartype`` mode does.

        Raises:
            ContractViolation: A check or clause is broken.
        """
        __tracebackhide__ = True
        values = self._bound(args, kwargs)
        if proxy_among((*args, *kwargs.values())) is not None:
            return self._leaf(args, kwargs)
        raise_error(self._told(self.reference.check(values, args, kwargs)))
        return self._checked_call(args, kwargs, values)

    def forgive(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body of a call that the guard refused and the diagnosis finds right."""
        __tracebackhide__ = True
        if proxy_among((*args, *kwargs.values())) is not None:
            return self._leaf(args, kwargs)
        return (self._with_return_check if self.check_returns else self.called)(*args, **kwargs)

    def _leaf(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One node of a ``torch.fx`` graph: a proxy has no sizes, so the checks stay for the run."""
        function = None if self._function is None else self._function()
        return proxy_among((*args, *kwargs.values())).tracer.create_proxy("call_function", function, args, kwargs)

    def _checked_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], values: Mapping[str, Any]) -> Any:
        __tracebackhide__ = True
        if self._returns is None:
            self._returns = ReturnCheck(self.terms, result_hint(self.kind, self.terms.signature.returns))
        check = self._returns
        scope = check.scope(values)

        def checked(result: Any) -> Any:
            __tracebackhide__ = True
            raise_error(check(result, scope))
            return result

        return wrap(self.kind, self.called(*args, **kwargs), checked)

    @property
    def reference(self) -> Reference:
        """The oracle, built when it is first needed."""
        if self._reference is None:
            self._reference = Reference(self.terms, self._shim)
        return self._reference

    def _shim(self, judged: Callable[..., Any]) -> Callable[..., Any]:
        shim = cast(FunctionType, _guard.build(_guard.shim_source(self.built.plan, self.owner), {"_judged": judged}))
        self._dress(shim)
        del shim.__wrapped__  # type: ignore[attr-defined]
        return shim

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        bound = inspect.signature(self.body).bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def _compile(self, built: "Built") -> FunctionType:
        source = built.source
        p = _guard.prefix_of(built.plan)
        # What a tracer sees of a method before its first call needs no context: none can be traced.
        inner = self.called if built is self._built else self.body
        body: Callable[..., Any] = self._with_return_check if self.check_returns else inner
        values = {f"{p}body": body, f"{p}diagnose": self.diagnose, f"{p}forgiven": self.forgive}
        traced = Traced(built.plan, self.owner, self.kind, values)
        values = {**values, f"{p}reference": self.call_checked, f"{p}traced": traced}
        return cast(FunctionType, _guard.build(source, values))

    def _with_return_check(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return self._checked_call(args, kwargs, self._bound(args, kwargs))

    def function(self) -> FunctionType:
        """The function that takes the place of the undecorated one."""
        if self._built is not None:
            made = self._compile(self._built)
        else:
            traced = self.body if self._provisional is None else self._compile(self._provisional)
            source = _guard.unready_source(self.body, self.owner)
            made = cast(FunctionType, _guard.build(source, {"_build": self.build, "_traced": traced}))
        self._function = weakref.ref(made)
        if self.kind == "async generator":
            self._dress(made)
            made = cast(FunctionType, _guard.build(_guard.delegating_source(self.body, self.owner, made), {}))
        self._dress(made)
        made.__dict__["__tensorpact__"] = self
        return made

    def makes(self, function: Any) -> bool:
        """Whether a function is the one that stands for the body, and no wrapper that carries its attributes."""
        return self._function is not None and self._function() is function

    def _dress(self, made: FunctionType) -> None:
        body = self.body
        made.__name__, made.__qualname__, made.__doc__ = body.__name__, body.__qualname__, body.__doc__
        made.__module__ = body.__module__
        made.__defaults__, made.__kwdefaults__ = body.__defaults__, body.__kwdefaults__
        if sys.version_info >= (3, 14):
            made.__annotate__ = body.__annotate__  # pyright: ignore[reportAttributeAccessIssue] - evaluated late
        else:
            made.__annotations__ = body.__annotations__
        for name in ("__type_params__",) if hasattr(body, "__type_params__") else ():  # since 3.12
            setattr(made, name, getattr(body, name))
        made.__dict__.update(body.__dict__)
        made.__dict__["__wrapped__"] = body


class Traced:
    """What a guard is to Dynamo, written when that first looks at it.

    Dynamo calls a function that is marked as constant instead of following it, and reads the attribute behind it
    afterwards. So nothing is written that no tracer wants.

    Attributes:
        guard: The function to follow; None before the first look.
    """

    def __init__(self, plan: GuardPlan, label: str, kind: Kind, values: Mapping[str, Any]) -> None:
        self.guard: Callable[..., Any] | None = None
        self._write: Callable[[], _guard.GuardSource] = lambda: _guard.write_traced(plan, label, kind)
        self._values = dict(values)
        self._lock = threading.Lock()

    def prepare(self) -> bool:
        """Write the guard, once."""
        with self._lock:
            if self.guard is None:
                self.guard = _guard.build(self._write(), self._values)
        return True

    prepare._dynamo_marked_constant = True  # type: ignore[attr-defined]


def raise_error(error: BaseException | None) -> None:
    """Raise an error, if there is one, from a frame that does not keep it alive."""
    __tracebackhide__ = True
    if error is not None:
        try:
            raise error
        finally:
            del error


def _fields(cls: type, body: FunctionType) -> dict[str, Any] | None:
    """Annotated dataclass fields of the class that a method belongs to."""
    if body.__name__ in ("__init__", "__new__"):
        return None
    home = body.__qualname__.rpartition(".")[0]
    owner = next((c for c in cls.__mro__ if c.__qualname__ == home and c.__module__ == body.__module__), cls)
    if not dataclasses.is_dataclass(owner):
        return None
    return {f.name: _field_hint(owner, f.name, f.type) for f in dataclasses.fields(owner)}


def _field_hint(owner: type, name: str, hint: Any) -> Any:
    """A field's annotation, text evaluated in the module of the class that has the field."""
    home = next((c for c in owner.__mro__ if name in inspect.get_annotations(c)), owner)
    scope = vars(sys.modules[home.__module__])
    return evaluate_hint(hint, scope, {}) if holds_text(hint) and home is not owner else hint


def entry_of(function: Any) -> Entry | None:
    """The contract behind a function, a bound method or a static or class method; None where there is none."""
    inner = getattr(function, "__func__", function)
    found = getattr(inner, "__tensorpact__", None)
    return found if isinstance(found, Entry) else None


def _decorate(
    function: Any,
    contract: Contract | None,
    check_returns: bool,
    local: Mapping[str, Any],
    fields: bool = True,
    hooked: bool = False,
) -> Any:
    if isinstance(function, (staticmethod, classmethod)):
        kind: Any = staticmethod if isinstance(function, staticmethod) else classmethod
        return kind(_decorate(cast(Any, function).__func__, contract, check_returns, local, fields))
    if isinstance(function, property):
        parts = [
            None if f is None else _decorate(f, contract, check_returns, local, fields)
            for f in (function.fget, function.fset, function.fdel)
        ]
        return property(*parts, doc=function.__doc__)
    if isinstance(function, type):
        if disabled or getattr(function, "__no_type_check__", False):
            return function
        return contract_dataclass(
            function, lambda check: _decorate(check, contract, check_returns, local, hooked=hooked)
        )
    if not isinstance(function, FunctionType):
        raise ContractDefinitionError(f"{function!r} is no Python function")
    if getattr(function, "__no_type_check__", False):
        if contract is not None:
            raise ContractDefinitionError(
                f"{function.__qualname__} has a contract and @no_type_check; it is one of them"
            )
        return function
    known = entry_of(function)
    if known is not None and known.hooked and (contract is not None or check_returns > known.check_returns):
        # Written by hand above the import hook: it replaces what the hook made, or checks a wrapper around that.
        function = known.body if known.makes(function) else function
        known = None
    if known is not None:
        if contract not in (None, known.contract) or check_returns > known.check_returns:
            raise ContractDefinitionError(
                f"{function.__qualname__} has a contract already; give all of it to one decorator"
            )
        return function
    if disabled:
        return function
    made = contract or Contract(function.__name__, family=function.__module__.rpartition(".")[2])
    entry = Entry(function, made, check_returns, local, hooked)
    home, _, _ = function.__qualname__.rpartition(".")
    in_class = bool(home) and not home.endswith("<locals>")
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    if in_class and names[:1] == ("self",):
        entry.rehearse(may_have_fields=fields)
    else:
        # A hint may name what the module defines further down: the first call looks again, and fails loudly.
        with contextlib.suppress(UnresolvedHintError):
            entry.read()
    return entry.function()


@overload
def contract(function: F, /) -> F: ...


@overload
def contract(contract: Contract | None = None, /, *, check_returns: bool = False) -> Callable[[F], F]: ...


def contract(function: Any = None, /, *, check_returns: bool = False) -> Any:
    """Enforce the annotations of a function, and a contract where one is given.

    Args:
        function: The function, or a :class:`Contract` (the result is then a decorator).
        check_returns: Check the return annotation in ``compiled`` mode too.

    Raises:
        ContractDefinitionError: The annotations or the contract are wrong.
    """
    given = function if isinstance(function, Contract) else None
    frame = caller_frame(1)
    fields = _may_have_fields(frame)
    if function is None or given is not None:

        def decorate(inner: Any) -> Any:
            return _decorate(inner, given, check_returns, _visible(inner, frame), fields)

        return decorate
    return _decorate(function, None, check_returns, _visible(function, frame), fields)


def contract_at(function: Any, frame: FrameType, check_returns: bool) -> Any:
    """Contract a definition for the import hook.

    Args:
        function: The function or dataclass.
        frame: Where it is defined.
        check_returns: As in :func:`contract`.

    Raises:
        ContractDefinitionError: The annotations are wrong.
    """
    return _decorate(function, None, check_returns, _visible(function, frame), _may_have_fields(frame), hooked=True)


def _may_have_fields(frame: FrameType) -> bool:
    # Seen from the body of a class without annotated names there are no fields to wait for, but for inherited ones.
    return "__qualname__" not in frame.f_locals or bool(frame.f_locals.get("__annotations__"))


def _visible(function: Any, frame: FrameType) -> Mapping[str, Any]:
    """Names of the function or class around a definition, kept only while a string annotation may need them."""
    inner = getattr(function, "__func__", function)
    annotations = annotations_of(inner)
    around, name = frame.f_code.co_qualname, getattr(inner, "__qualname__", "")
    if not any(holds_text(a) for a in annotations.values()) or frame.f_locals is frame.f_globals:
        return {}
    return dict(frame.f_locals) if name.startswith((f"{around}.<locals>.", f"{around}.")) else {}
