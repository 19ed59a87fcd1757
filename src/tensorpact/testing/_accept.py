"""Valid calls: the guard itself accepts them, both modes do, and the result is the reference's in float64."""

import inspect
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from tensorpact._entry import Entry
from tensorpact._guard import make_plan

from ._drafts import Case, Draft, ImpossibleError, resolve
from ._draw import Drawer
from ._plans import TensorPlan, build, copied, derived_seed, is_storage_float
from ._probe import MODES, Outcome, call, split
from ._space import CannotDrawError
from .hooks import fill_of

#: Relative error by norm that a computation in a dtype may have.
TOLERANCES = {
    torch.bfloat16: 2e-2,
    torch.float16: 4e-3,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
}
_STORAGE_TOLERANCE = 1e-1
_EXACT_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Problem:
    """A valid call that went wrong.

    Attributes:
        message: What went wrong.
        case: The arguments.
        values: The arguments as made.
        mode: Enforcement mode it went wrong in.
    """

    message: str
    case: Case
    values: Mapping[str, Any]
    mode: str = "compiled"


def examples(drawer: Drawer, seed: int, count: int, plain: int = 3) -> Iterator[tuple[Draft, bool]]:
    """Valid drafts, the first ones plain and with pairwise different sizes, and whether the sizes of each differ.

    Args:
        drawer: Draws them.
        seed: The same seed gives the same drafts.
        count: How many.
        plain: How many have dense tensors of one dtype and no size below 2; behind them come variations.

    Raises:
        CannotDrawError: There are none at all.
    """
    distinct = True
    for i in range(count):
        rng = random.Random(f"{seed}:accept:{i}")
        presence = (True, False, None, None)[min(i, 3)]
        try:
            draft = drawer.draw(rng, distinct=distinct, presence=presence)
        except CannotDrawError:
            if not distinct:
                raise
            distinct = False
            draft = drawer.draw(rng, distinct=False, presence=presence)
        yield (draft if i < plain else drawer.variations(draft, rng, i - plain)), distinct


def mixes_dtypes(drawer: Drawer, case: Case) -> bool:
    """Whether tensors that might have one dtype, or one each of float and integer, have several."""
    kinds: dict[tuple[bool, tuple[torch.dtype, ...]], set[torch.dtype]] = {}
    for name, plan in case.plans.items():
        if isinstance(plan, TensorPlan):
            key = (plan.dtype.is_floating_point, drawer.space.dtypes[name])
            kinds.setdefault(key, set()).add(plan.dtype)
    return any(len(found) > 1 for found in kinds.values())


def make(entry: Entry, case: Case, seed: int) -> dict[str, Any]:
    """The arguments of a case with random floats and the values that the registered fill writes."""
    arguments = build(case.plans, seed)
    fill = fill_of(entry)
    if fill is not None:
        fill(arguments, random.Random(seed))
    return arguments


def _upcast(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        # The reference gets an object of its own: a method may change what it is called on.
        return copied(value)
    if value.is_complex():
        return value.detach().clone().to(torch.complex128)
    if value.is_floating_point() and not is_storage_float(value.dtype):
        return value.detach().clone().to(torch.float64)
    return value.detach().clone()


def run_reference(entry: Entry, reference: Any, arguments: Mapping[str, Any]) -> Any:
    """The result of a reference, called as the entry point is: by name where the names agree, else by place."""
    accepted = inspect.signature(reference).parameters
    starred = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    if starred or all(n in accepted for n in arguments):
        places = [n for n in arguments if n in accepted and accepted[n].kind is inspect.Parameter.POSITIONAL_ONLY]
        return reference(*[arguments[n] for n in places], **{n: v for n, v in arguments.items() if n not in places})
    args, kwargs = split(entry, arguments)
    return reference(*args, **kwargs)


def leaves(value: Any, path: str = "result") -> Iterator[tuple[str, Any]]:
    """Tensors and scalars inside a result."""
    if isinstance(value, (tuple, list)):
        for i, item in enumerate(cast("list[Any]", value)):
            yield from leaves(item, f"{path}[{i}]")
    elif isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            yield from leaves(item, f"{path}[{key!r}]")
    else:
        yield path, value


def tolerance(case: Case, got: torch.Tensor) -> float:
    """Relative error by norm that a result may have, given the coarsest dtype on its way."""
    dtypes = [p.dtype for p in case.plans.values() if isinstance(p, TensorPlan)] + [got.dtype]
    found = [TOLERANCES.get(d, _EXACT_TOLERANCE) for d in dtypes]
    return max(found + ([_STORAGE_TOLERANCE] if is_storage_float(got.dtype) else []))


def _norm(tensor: torch.Tensor) -> float:
    return math.sqrt(float(tensor.abs().square().sum().item()))


def difference(case: Case, path: str, got: Any, wanted: Any) -> str | None:
    """What is wrong with one part of a result, or None."""
    if not isinstance(got, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        if isinstance(got, float) and isinstance(wanted, float):
            return None if math.isclose(got, wanted, rel_tol=1e-4, abs_tol=1e-6) else f"{path} is {got}, not {wanted}"
        same = type(got) is type(wanted) and bool(got == wanted)
        return None if same else f"{path} is {got!r}, the reference has {wanted!r}"
    if got.shape != wanted.shape:
        return f"{path} has shape {list(got.shape)}, the reference {list(wanted.shape)}"
    if not (got.is_floating_point() or got.is_complex()):
        unequal = int((got != wanted.to(got.dtype)).sum())
        return f"{path} differs from the reference in {unequal} of {got.numel()} elements" if unequal else None
    wide = torch.complex128 if got.is_complex() else torch.float64
    a, b = got.detach().to(wide), wanted.detach().to(wide)
    finite: torch.Tensor = a.isfinite() & b.isfinite()
    if not torch.equal(torch.where(finite, 0, a).nan_to_num(nan=7.0), torch.where(finite, 0, b).nan_to_num(nan=7.0)):
        return f"{path} is infinite or NaN where the reference is not, or the other way round"
    error = _norm((a - b)[finite])
    scale = max(_norm(b[finite]), 0.1 * math.sqrt(max(int(finite.sum()), 1)))
    allowed = tolerance(case, got)
    return (
        f"{path} is {error / scale:.2e} off the reference, allowed {allowed:.0e}" if error > allowed * scale else None
    )


@dataclass(frozen=True, slots=True)
class Accepted:
    """What one valid call showed.

    Attributes:
        problem: What went wrong, or None.
        own_reference: Whether the entry point ran its registered reference, so that comparing proved nothing.
    """

    problem: Problem | None
    own_reference: bool = False


def check(entry: Entry, function: Any, case: Case, seed: int, interpreted: bool = False) -> Accepted:
    """Make one valid call in both modes and compare it with the reference.

    Args:
        entry: The contract behind the function.
        function: What a caller calls.
        case: Valid arguments.
        seed: Seed of their values.
        interpreted: Call once only, in ``compiled`` mode.
    """
    reference = entry.contract.reference_function()
    own = False
    for mode in MODES[:1] if interpreted else MODES:
        arguments = make(entry, case, seed)
        wide = {n: _upcast(v) for n, v in arguments.items()}

        outcome = call(entry, function, arguments, mode, case.backend, run_body=True, reference=reference)
        own = own or outcome.ran_reference
        wrong = _wrong(entry, mode, outcome)
        if wrong is None and reference is not None:
            wrong = _compare(entry, reference, case, arguments, wide, outcome.result)
        if wrong is not None:
            return Accepted(Problem(wrong, case, make(entry, case, seed), mode), own)
    return Accepted(None, own)


def _wrong(entry: Entry, mode: str, outcome: Outcome) -> str | None:
    if not outcome.accepted:
        return f"{mode} mode refuses a call that the contract allows: {outcome.describe()}"
    if mode == "compiled" and outcome.diagnosed and not always_diagnosed(entry):
        return "the guard refuses a call that the contract allows; only the diagnosis let it pass"
    if outcome.raised is not None:
        return f"the entry point fails on arguments that the contract allows: {outcome.describe()}"
    undeclared = [n for n in outcome.changed if n not in entry.contract.mutates]
    return f"{', '.join(undeclared)} changed, but mutates= does not name it" if undeclared else None


def always_diagnosed(entry: Entry) -> bool:
    """Whether the guard hands every call to the plain evaluation, as it does for some rare signatures."""
    return make_plan(entry.terms).interpreted


def _compare(
    entry: Entry, reference: Any, case: Case, arguments: dict[str, Any], wide: dict[str, Any], result: Any
) -> str | None:
    try:
        wanted = run_reference(entry, reference, wide)
    except Exception as bad:  # noqa: BLE001 - whatever the reference raises is what is reported
        return f"the reference fails on arguments that the contract allows: {type(bad).__name__}: {bad}"
    got, expected = dict(leaves(result)), dict(leaves(wanted))
    if list(got) != list(expected):
        return f"the result has the parts {', '.join(got)}, the reference {', '.join(expected)}"
    for name in entry.contract.mutates:
        got[name], expected[name] = arguments[name], wide[name]
    return next((d for path in got if (d := difference(case, path, got[path], expected[path]))), None)


def smallest(entry: Entry, function: Any, drawer: Drawer, draft: Draft, seed: int) -> Problem | None:
    """The smallest variation of a draft on which a valid call still goes wrong."""
    found = check(entry, function, resolve(drawer.space, draft), seed).problem
    progress = found is not None
    budget = 60
    while progress:
        progress = False
        for smaller in _smaller(drawer, draft):
            budget -= 1
            if budget < 0:
                return found
            try:
                settled, verdict = drawer.settle(smaller)
                tried = check(entry, function, resolve(drawer.space, settled), seed).problem if verdict.valid else None
            except ImpossibleError:
                continue
            if tried is not None and found is not None and tried.message[:20] == found.message[:20]:
                draft, found, progress = settled, tried, True
                break
    return found


def _smaller(drawer: Drawer, draft: Draft) -> Iterator[Draft]:
    from ._search import smaller_drafts

    return smaller_drafts(drawer.space, draft)


def example_seed(seed: int, index: int) -> int:
    """Seed of the values of one example."""
    return derived_seed(seed, "values", index)
