"""A witness: arguments and a backend on which one documented error fires first."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tensorpact import use_backend
from tensorpact._errors import DocumentedError
from tensorpact._terms import Step

from ._drafts import Case
from ._expected import expected_texts
from ._plans import Opaque, TensorPlan, code, plan_of
from ._probe import MODES, call
from ._search import Found, Suite
from ._space import Space
from ._targets import Target


@dataclass(frozen=True, slots=True)
class Witness:
    """Arguments plus backend that make one documented error fire first.

    Attributes:
        target: The entry point.
        error: The documented error.
        clause: Place of the clause in firing order.
        case: Plans of the arguments.
        program: Python that makes the arguments and calls the entry point.
    """

    target: Target
    error: DocumentedError
    clause: int
    case: Case
    program: str

    @property
    def backend(self) -> str:
        """Backend that the call needs."""
        return self.case.backend

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, made afresh."""
        return self.case.arguments()

    def call(self) -> Any:
        """Call the entry point with fresh arguments under the backend.

        Raises:
            ContractViolation: The documented error, unless the contract changed.
        """
        from ._probe import split

        args, kwargs = split(self.target.entry, self.arguments)
        with use_backend(self.case.backend):  # type: ignore[arg-type]
            return self.target.function(*args, **kwargs)

    def code(self) -> str:
        """Python that makes the arguments and calls the entry point, ready to paste."""
        return self.program


def program(
    target: Target, space: Space, case: Case, values: Mapping[str, Any] | None = None, mode: str = "compiled"
) -> str:
    """Python that repeats a case.

    Args:
        target: The entry point.
        space: Its parameters.
        case: The arguments.
        values: The arguments as made, where the numbers in integer tensors matter.
        mode: Enforcement mode to set.
    """
    plans = case.plans if values is None else {n: _as_made(p, values[n]) for n, p in case.plans.items()}
    return code(target.module, target.name, plans, space.marks, case.backend, values, mode)


def _as_made(plan: Any, value: Any) -> Any:
    """The plan, or that of what a mistake put in the place of what was planned."""
    if isinstance(plan, TensorPlan) and isinstance(value, torch.Tensor):
        same = (plan.shape, plan.dtype, plan.device) == (tuple(value.shape), value.dtype, str(value.device))
        return plan if same else plan_of(value)
    return plan if isinstance(plan, Opaque) and plan.value is value else plan_of(value)


def make_witness(target: Target, suite: Suite, step: Step, found: Found) -> Witness:
    """The witness of what a search found.

    Raises:
        ValueError: The clause documents no error.
    """
    error = step.clause.error
    if error is None:
        raise ValueError(f"{step.clause} documents no error")
    values = found.case.arguments() if found.case.fill is not None else None
    text = program(target, suite.space, found.case, values)
    return Witness(target, error, step.index, found.case, text)


def confirm(witness: Witness, suite: Suite, step: Step) -> str | None:
    """Call for real in both modes: what is not as documented, or None.

    Args:
        witness: The witness.
        suite: The searches of its entry point.
        step: The clause in its place.
    """
    target, error = witness.target, witness.error
    for mode in MODES:
        arguments = witness.arguments
        outcome = call(target.entry, target.function, arguments, mode, witness.backend)
        if outcome.accepted:
            return f"{mode} mode lets the call through to the body"
        if outcome.documented is not error:
            return f"{mode} mode raises {outcome.describe()}"
        if not isinstance(outcome.raised, error.documented):
            return f"{mode} mode raises {type(outcome.raised).__name__}, documented is {error.documented.__name__}"
        if outcome.changed:
            return f"{mode} mode changes {', '.join(outcome.changed)} before it raises"
        with use_backend(witness.backend):  # type: ignore[arg-type]
            try:
                texts = expected_texts(suite.space.terms, step, error, arguments)
                first = next(texts)
                # One text for each set of names that may be at fault, small sets first: seldom are all wanted.
                right = str(outcome.raised) in itertools.chain([first], texts)
            except Exception as bad:  # noqa: BLE001 - a template is the author's code
                return f"the text {str(outcome.raised)!r} cannot be worked out from the template: {bad}"
        if not right:
            return f"{mode} mode says {str(outcome.raised)!r}, the template gives {first!r}"
    return None
