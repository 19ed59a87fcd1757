"""What a guard is to Dynamo: a second text of the same checks, written when Dynamo first looks at it."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from tensorpact._results import Kind

from .build import build, def_text, write_checks, write_judged
from .plan import GuardPlan
from .runtime import Miss
from .writer import GuardSource, Writer, signature_text


def write_traced(plan: GuardPlan, label: str, kind: Kind = "plain") -> GuardSource:
    """Text of what a guard is to Dynamo: the same checks, where sizes may be unknown, and nothing remembered.

    Args:
        plan: What the guard has to do.
        label: Module and qualified name of the function.
        kind: What calling the function gives.
    """
    from tensorpact import _symbolic

    writer = Writer(plan, symbolic=_symbolic)
    if plan.interpreted:
        writer.line(f"raise {writer.value('Miss', Miss)}")
    else:
        write_checks(writer)
        writer.flush()
    parameters = [p for p in plan.terms.signature.parameters if not p.is_field]
    head = f"{def_text(kind)} guarded({signature_text(parameters)}):"
    lines = [head, *write_judged(writer, writer.lines or ["        pass"], [], kind)]
    return GuardSource("\n".join(lines) + "\n", writer.values, f"<tensorpact guard {label} while tracing>")


class Traced:
    """What a guard is to Dynamo, written when that first looks at it.

    Dynamo calls a function that is marked as constant instead of following it, and reads the attribute behind it
    afterwards. So nothing is written that no tracer wants.

    Attributes:
        guard: The function to follow; None before the first look.
    """

    def __init__(self, plan: GuardPlan, label: str, kind: Kind, values: Mapping[str, Any]) -> None:
        self.guard: Callable[..., Any] | None = None
        self._write: Callable[[], GuardSource] = lambda: write_traced(plan, label, kind)
        self._values = dict(values)
        self._lock = threading.Lock()

    def prepare(self) -> bool:
        """Write the guard, once."""
        with self._lock:
            if self.guard is None:
                self.guard = build(self._write(), self._values)
        return True

    prepare._dynamo_marked_constant = True  # type: ignore[attr-defined]
