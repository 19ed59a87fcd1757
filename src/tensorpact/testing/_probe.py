"""One call of a contracted function, watched: what it raised, whether the guard forgave, whether the body ran."""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Literal

import torch

from tensorpact import enforcement, use_backend
from tensorpact._entry import Entry
from tensorpact._errors import ContractDefinitionError, ContractViolation, DocumentedError

from ._plans import differing_bits

WatchedMode = Literal["compiled", "beartype"]
MODES: tuple[WatchedMode, ...] = ("compiled", "beartype")


class _Reached(BaseException):
    """Raised in the place of the body; no ``except Exception`` on the way takes it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call did.

    Attributes:
        accepted: Whether control reached the body.
        diagnosed: Whether the guard handed the call over to the diagnosis.
        raised: What came out, or None.
        result: What the body returned, where it was let run.
        changed: Arguments whose data or metadata are not what they were.
        ran_reference: Whether the registered reference ran inside the call.
    """

    accepted: bool
    diagnosed: bool
    raised: BaseException | None
    result: Any = None
    changed: tuple[str, ...] = ()
    ran_reference: bool = False

    @property
    def documented(self) -> DocumentedError | None:
        """The documented error that was raised."""
        return self.raised.error if isinstance(self.raised, ContractViolation) else None

    @property
    def verdict(self) -> tuple[str, ...]:
        """Accept or reject, class and text: what both modes must agree on."""
        if self.raised is None:
            return ("accepted",)
        if isinstance(self.raised, ContractDefinitionError):
            return ("code of the contract failed",)
        return ("rejected", type(self.raised).__qualname__, str(self.raised))

    def describe(self) -> str:
        """The verdict in one line."""
        if self.raised is None:
            return "accepted"
        slug = f" ({self.documented.slug})" if self.documented is not None else ""
        return f"{type(self.raised).__name__}{slug}: {self.raised}"


def split(entry: Entry, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as a call passes them: positional ones, then keyword-only ones."""
    kinds = inspect.Parameter
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for p in entry.terms.signature.parameters:
        if p.name not in arguments:
            continue
        if p.kind is kinds.VAR_POSITIONAL:
            args.extend(arguments[p.name])
        elif p.kind is kinds.VAR_KEYWORD:
            kwargs.update(arguments[p.name])
        elif p.kind is kinds.KEYWORD_ONLY:
            kwargs[p.name] = arguments[p.name]
        else:
            args.append(arguments[p.name])
    return tuple(args), kwargs


@contextlib.contextmanager
def _watched(entry: Entry, function: Any, body: Callable[..., Any]) -> Generator[list[Any]]:
    """The real guard with another body behind it, and a list that grows by one whenever it asks for a diagnosis."""
    # The prefix of the guard's globals is chosen by the signature, so the names are read off the guard itself.
    scope: dict[str, Any] = getattr(function, "__func__", function).__globals__
    diagnosed: list[Any] = []

    def diagnose(arguments: tuple[Any, ...]) -> Exception | None:
        diagnosed.append(True)
        return original(arguments)

    bodies = [n for n in scope if n.strip("_") == "body"]
    diagnoses = [n for n in scope if n.strip("_") == "diagnose"]
    if not bodies or not diagnoses:
        raise RuntimeError(f"{entry.owner}: no guard stands in front of the body")
    original = scope[diagnoses[0]]
    kept = {n: scope[n] for n in (*bodies, *diagnoses)}
    kept_body = entry.body
    try:
        scope.update(dict.fromkeys(bodies, body))
        scope.update(dict.fromkeys(diagnoses, diagnose))
        entry.body = body
        yield diagnosed
    finally:
        scope.update(kept)
        entry.body = kept_body


@contextlib.contextmanager
def _profiled(code: CodeType | None) -> Generator[list[bool]]:
    """A list that is filled once a function with this code runs."""
    seen: list[bool] = []
    if code is None:
        yield seen
        return

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code is code:
            seen.append(True)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield seen
    finally:
        sys.setprofile(before)


def snapshot(arguments: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Metadata and, where there is any, data of every tensor argument."""
    kept: dict[str, tuple[Any, ...]] = {}
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            try:
                data = None if value.is_meta else value.detach().clone()
            except NotImplementedError:
                # Some dtypes have no kernel to copy them with.
                data = None
            kept[name] = (tuple(value.shape), tuple(value.stride()), value.dtype, value.data_ptr(), data)
    return kept


def changes(arguments: Mapping[str, Any], before: Mapping[str, tuple[Any, ...]]) -> tuple[str, ...]:
    """Names of tensor arguments that are not what the snapshot says."""
    found: list[str] = []
    for name, (shape, strides, dtype, address, data) in before.items():
        value = arguments[name]
        same = (tuple(value.shape), tuple(value.stride()), value.dtype, value.data_ptr()) == (
            shape,
            strides,
            dtype,
            address,
        )
        if not same or (data is not None and differing_bits(data, value.detach())):
            found.append(name)
    return tuple(found)


def call(
    entry: Entry,
    function: Any,
    arguments: Mapping[str, Any],
    mode: WatchedMode,
    backend: str,
    *,
    run_body: bool = False,
    reference: Any = None,
) -> Outcome:
    """Call the function and watch.

    Args:
        entry: The contract behind it.
        function: What a caller calls.
        arguments: Parameter name to argument.
        mode: Enforcement mode.
        backend: Backend in force.
        run_body: Let the body run; otherwise the call ends where it begins.
        reference: Function to look out for while the body runs.
    """
    args, kwargs = split(entry, arguments)
    real = entry.body
    reached: list[bool] = []

    @functools.wraps(real)
    def body(*args: Any, **kwargs: Any) -> Any:
        reached.append(True)
        if not run_body:
            raise _Reached
        return real(*args, **kwargs)

    raised: BaseException | None = None
    result: Any = None
    ran: list[bool] = []
    before = snapshot(arguments)
    code = getattr(inspect.unwrap(reference), "__code__", None) if run_body and reference is not None else None
    with _watched(entry, function, body) as diagnosed, enforcement(mode), use_backend(backend):  # type: ignore[arg-type]
        try:
            with _profiled(code) as ran:
                result = function(*args, **kwargs)
        except _Reached:
            pass
        except Exception as error:  # noqa: BLE001 - whatever the call raises is what is looked at
            raised = error
    return Outcome(bool(reached), bool(diagnosed), raised, result, changes(arguments, before), bool(ran))
