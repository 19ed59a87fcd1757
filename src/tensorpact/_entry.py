"""A contracted function: its contract, its guard, and the ways of calling it."""

import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

import torch

import tensorpact._modes as modes

from . import _guard, _observing
from ._annotations import Signature, UnresolvedHintError, read_signature
from ._call import Call
from ._classes import fields_of
from ._contract import Contract
from ._diagnosis import diagnose
from ._errors import ContractDefinitionError
from ._evaluation import run_lets
from ._expansion import expand_call
from ._guard import GuardPlan, make_plan
from ._reference import Reference
from ._results import Kind, kind_of, result_hint, wrap
from ._returns import ReturnCheck
from ._scopes import asks_hints, in_scope
from ._terms import Terms
from ._tracing import Facts, facts_of, proxy_among, told
from ._values import modes as value_modes
from ._values import pending

E = TypeVar("E", bound=BaseException | None)
#: Stands for the switch of the modes in a function whose contract was taken off.
_RETIRED = SimpleNamespace(current=modes.OFF)


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
        retired: Whether calls go straight to the body for good.
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
        self.retired = False
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

    def belong(self, cls: type) -> None:
        """Build the guard of a method that nothing has called yet, with the annotated fields of its class.

        Raises:
            ContractDefinitionError: Annotations or contract are wrong.
        """
        if self._built is None:
            self.read(fields_of(cls, self.body))
            self.build(None)

    def build(self, instance: Any) -> FunctionType | None:
        """Build the guard of a function at its first call; ``instance`` is its ``self``, where there is one."""
        if self._built is None:
            self.read(None if instance is None else fields_of(instance.__class__, self.body))
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
        earlier = None if self.built.plan.gate is None else pending.take()
        return self._told(earlier or diagnose(self.terms, self.values(arguments)))

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
        earlier = None if self.built.plan.gate is None else pending.take()
        raise_error(self._told(earlier or self.reference.check(values, args, kwargs)))
        self._after(values)
        return self._checked_call(args, kwargs, values)

    def _after(self, values: Mapping[str, Any]) -> None:
        """Let numbers in device memory be looked at, for a call that the diagnosis has found right."""
        gate = self.built.plan.gate
        if gate is not None and value_modes.current >= value_modes.ASYNC and not torch.compiler.is_compiling():
            call = Call(*expand_call(self.terms, values))
            run_lets(call)
            gate.after(call)

    def forgive(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body of a call that the guard refused and the diagnosis finds right."""
        __tracebackhide__ = True
        if proxy_among((*args, *kwargs.values())) is not None:
            return self._leaf(args, kwargs)
        if self.built.plan.gate is not None and value_modes.current >= value_modes.ASYNC:
            self._after(self._bound(args, kwargs))
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
        # Stock reads it before the annotations, and the shim returns something else.
        shim.__dict__.pop("__signature__", None)
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
        body: Callable[..., Any] = self._with_return_check if self.check_returns and not self.retired else inner
        values: dict[str, Any] = {f"{p}body": body, f"{p}diagnose": self.diagnose, f"{p}forgiven": self.forgive}
        traced = _guard.Traced(built.plan, self.owner, self.kind, values)
        values = {**values, f"{p}reference": self.call_checked, f"{p}traced": traced}
        if self.retired:
            values[f"{p}modes"] = _RETIRED
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

    def retire(self) -> None:
        """Let every call go straight to the body from now on, whoever still holds the function."""
        self.retired = True
        function = None if self._function is None else self._function()
        # Before its first call a method has a second function, for tracers.
        for made in () if function is None else (function, function.__globals__.get("_traced")):
            scope: dict[str, Any] = getattr(made, "__globals__", {})
            scope.update({name: _RETIRED for name, value in scope.items() if value is modes})
            own = {name for name, value in scope.items() if isinstance(value, MethodType) and value.__self__ is self}
            scope.update(dict.fromkeys((name for name in own if name.strip("_") == "body"), self.called))

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


def raise_error(error: BaseException | None) -> None:
    """Raise an error, if there is one, from a frame that does not keep it alive."""
    __tracebackhide__ = True
    if error is not None:
        try:
            raise error
        finally:
            del error


def entry_of(function: Any) -> Entry | None:
    """The contract behind a function, a bound method or a static or class method; None where there is none."""
    inner = getattr(function, "__func__", function)
    found = getattr(inner, "__tensorpact__", None)
    return found if isinstance(found, Entry) else None
