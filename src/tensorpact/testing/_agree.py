"""Random mutations on which the guard, the plain evaluation and both modes must give one verdict."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ._accept import always_diagnosed
from ._drafts import Case, Draft, ImpossibleError, Verdict, judge, resolve
from ._moves import wrong_moves
from ._probe import Outcome, call
from ._search import Suite, smaller_drafts
from ._targets import Target

#: Calls with one signature before mutations of it, so that a guard that remembers signatures has one to remember.
_WARM = 15


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two parts of the engine that judge one call differently.

    Attributes:
        message: Who says what.
        case: The arguments.
    """

    message: str
    case: Case


def drafts(suite: Suite, rng: random.Random, count: int) -> Iterator[Draft]:
    """Valid drafts with one to three mutations, now and then an argument of a wrong type."""
    for i in range(count):
        base = suite.bases[i * len(suite.bases) // count]
        draft = base.draft
        for _ in range(rng.choice((1, 1, 2, 3))):
            draft = draft.moved(rng.choice(base.all))
        if rng.random() < 0.15:
            wrong = wrong_moves(suite.space, suite.drawer.scalars, resolve(suite.space, base.draft))
            if wrong:
                draft = draft.moved(rng.choice(wrong))
        yield draft


def warm(suite: Suite, target: Target) -> None:
    """Let the guard see each valid signature often enough to remember the last one."""
    for base in suite.bases[-1:]:
        arguments = resolve(suite.space, base.draft).arguments()
        for _ in range(_WARM):
            call(target.entry, target.function, arguments, "compiled", "auto")


def disagreement(suite: Suite, target: Target, case: Case) -> str | None:
    """Who says what of a call where the verdicts differ; None where there is one verdict."""
    arguments = case.arguments()
    verdict = judge(suite.space, case)
    compiled = call(target.entry, target.function, arguments, "compiled", case.backend)
    stock = call(target.entry, target.function, arguments, "beartype", case.backend)
    for outcome, mode in ((compiled, "compiled"), (stock, "beartype")):
        if outcome.changed:
            return f"{mode} mode changes {', '.join(outcome.changed)} before the body runs"
    if verdict.failure is not None:
        return f"code of the contract fails: {verdict.failure}"
    if compiled.verdict != stock.verdict:
        return f"compiled mode: {compiled.describe()}; beartype mode: {stock.describe()}"
    return _against_evaluation(target, verdict, compiled)


def _against_evaluation(target: Target, verdict: Verdict, compiled: Outcome) -> str | None:
    if verdict.valid and not compiled.accepted:
        return f"evaluation finds nothing broken, the guard's verdict is {compiled.describe()}"
    if not verdict.valid and compiled.accepted:
        reason = "" if verdict.violation is None else verdict.violation.broken.reason
        return f"the guard accepts, evaluation says: {reason}"
    if verdict.valid and compiled.diagnosed and not always_diagnosed(target.entry):
        return "the guard refuses a valid call; only the diagnosis let it pass"
    return None


def agree(suite: Suite, target: Target, seed: int, count: int) -> Iterator[Disagreement | None]:
    """One item a mutated call: None where everything agrees, else the smallest arguments on which it does not.

    Args:
        suite: Valid drafts and their mutations.
        target: The entry point.
        seed: Seed of the mutations.
        count: How many calls.
    """
    rng = random.Random(f"{seed}:agree")
    for i, draft in enumerate(drafts(suite, rng, count)):
        if i * len(suite.bases) // count == len(suite.bases) - 1 and i % 10 == 0:
            warm(suite, target)
        try:
            settled, _ = suite.drawer.settle(draft)
            case = resolve(suite.space, settled)
            message = disagreement(suite, target, case)
        except ImpossibleError:
            continue
        yield None if message is None else _shrunk(suite, target, settled, case, message)


def _shrunk(suite: Suite, target: Target, draft: Draft, case: Case, message: str) -> Disagreement:
    budget = 80
    progress = True
    while progress:
        progress = False
        for smaller in smaller_drafts(suite.space, draft):
            budget -= 1
            if budget < 0:
                return Disagreement(message, case)
            try:
                settled, _ = suite.drawer.settle(smaller)
                tried = resolve(suite.space, settled)
                said = disagreement(suite, target, tried)
            except ImpossibleError:
                continue
            if said is not None and said[:16] == message[:16]:
                draft, case, message, progress = settled, tried, said, True
                break
    return Disagreement(message, case)
