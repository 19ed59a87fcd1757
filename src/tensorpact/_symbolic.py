"""Claims about sizes that a tracer does not know: decided where they can be, else asserted for the run.

Read by the evaluation of a call and by what a guard becomes under Dynamo, which follows these functions. Loaded only
where a tracer is at work, since the module of torch behind it takes long.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch.fx.experimental import symbolic_shapes

# torch leaves the parameters of both untyped.
_guard_or_true = cast("Callable[[Any], bool]", symbolic_shapes.guard_or_true)
_guard_or_false = cast("Callable[[Any], bool]", symbolic_shapes.guard_or_false)


def agree(claim: Any) -> bool:
    """Whether a claim holds; one about unbacked sizes is asserted with ``torch._check`` and taken to hold."""
    if not isinstance(claim, (bool, torch.SymBool)):
        return bool(claim)
    if not _guard_or_true(claim):
        return False
    torch._check(claim)  # pyright: ignore[reportPrivateUsage] - what it is there for
    return True


def sizes_agree(sizes: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Whether all sizes are the wanted ones, in number too."""
    if len(sizes) != len(wanted):
        return False
    # No generator: Dynamo follows a loop at less cost.
    for size, want in zip(sizes, wanted):  # noqa: B905, SIM110 - strict= is more to trace, and lengths are equal
        if not agree(size == want):
            return False
    return True


def is_one(size: Any) -> bool:
    """Whether a size is known to be 1."""
    return _guard_or_false(size == 1)


def one_or(size: Any, wanted: Any) -> bool:
    """Whether a size is 1 or the wanted one."""
    return is_one(size) or agree((size == 1) | (size == wanted))
