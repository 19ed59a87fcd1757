"""Search for arguments on which one clause fires first, and the smallest of them."""

import copy
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tensorpact._annotations import EMPTY
from tensorpact._call import Call
from tensorpact._evaluation import first_violation
from tensorpact._expansion import expand_call
from tensorpact._terms import Step, Terms
from tensorpact.clauses import Let

from ._drafts import Case, Draft, ImpossibleError, Move, Verdict, complete, resolve
from ._draw import Drawer, said
from ._moves import Mutations, joint_moves
from ._space import CannotDrawError, Space
from ._wholes import Skeleton

_BUDGET = 2500
_WALK = 10
_SHADOWED = 120


@dataclass(frozen=True, slots=True)
class Found:
    """A draft on which the wanted thing happens, and the valid draft it came from."""

    draft: Draft
    case: Case
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Missed:
    """No such draft.

    Attributes:
        reason: Why, in one sentence.
    """

    reason: str


class Suite:
    """Valid drafts of one entry point and the mutations of each; made once, searched for every clause.

    Args:
        drawer: Draws the drafts.
        seed: Makes every search repeatable.
        count: How many valid drafts to start from; thrice as many of a factory, whose states no move leads to.

    Raises:
        CannotDrawError: There are no valid arguments.
    """

    def __init__(self, drawer: Drawer, seed: int, count: int = 8) -> None:
        self.drawer = drawer
        self.space: Space = drawer.space
        self.seed = seed
        self.bases: list[Mutations] = []
        self._alone: dict[int, Terms] = {}
        self._once: dict[tuple[int, int], Draft] = {}
        self._known: dict[int, Found | None] = {}
        rng = random.Random(seed)
        distinct = True
        for i in range(count if drawer.factory is None else 3 * count):
            presence = (True, False, None)[min(i % 4, 2)]
            try:
                draft = drawer.draw(rng, distinct=distinct and i % 4 != 3, presence=presence)
            except CannotDrawError:
                if not distinct:
                    raise
                distinct = False
                draft = drawer.draw(rng, distinct=False, presence=presence)
            self.bases.append(Mutations(self.space, drawer.scalars, draft, resolve(self.space, draft)))

    def judged(self, draft: Draft) -> Found | None:
        """A draft with the lets settled and its verdict; None where it has no arguments."""
        if id(draft) in self._known:
            return self._known[id(draft)]
        try:
            settled, verdict = self.drawer.settle(draft)
            return Found(settled, resolve(self.space, settled), verdict)
        except ImpossibleError:
            return None

    def _moved(self, base: Mutations, move: Move) -> Draft:
        """A valid draft with one move: judged once, however many clauses are searched for among these."""
        key = id(base), id(move)
        if key not in self._once:
            draft = self._once[key] = base.draft.moved(move)
            self._known[id(draft)] = self.judged(draft)
        return self._once[key]

    def find(self, step: Step, budget: int = _BUDGET) -> Found | Missed:
        """Arguments on which a clause fires first.

        Args:
            step: The clause in its place.
            budget: Evaluations to spend.
        """
        hunt = _Hunt(self, step)
        hit = next(self._hits(step, hunt, budget), None)
        return Missed(hunt.explain()) if hit is None else self.shrink(hit, lambda f: f.verdict.index == step.index)

    def firing(self, step: Step, budget: int = _BUDGET) -> Iterator[Found]:
        """Calls on which a clause fires first, one after another until the budget is spent.

        Args:
            step: The clause in its place.
            budget: Evaluations to spend.
        """
        hunt = _Hunt(self, step)
        yield from self._hits(step, hunt, budget, budget)

    def _hits(self, step: Step, hunt: "_Hunt", budget: int, most: float = math.inf) -> Iterator[Found]:
        ways = (self._single(step), self._resized(step, hunt), self._walk(step, hunt, budget))
        for draft in itertools.chain.from_iterable(ways):
            if hunt.spent >= most:
                return
            found = hunt.fires(draft)
            if found is not None:
                yield found

    def _single(self, step: Step) -> Iterator[Draft]:
        about = self.drawer.reads.of(step.clause)
        for base in self.bases:
            for move in base.about(*about):
                yield self._moved(base, move)
            for moves in joint_moves(step, base.plans):
                yield base.draft.moved(*moves)
        for base in self.bases[:3]:
            for move in base.all:
                yield self._moved(base, move)

    def _resized(self, step: Step, hunt: "_Hunt") -> Iterator[Draft]:
        """Drafts on which a size makes the relations in front of the clause hold again."""
        rng = random.Random(f"{self.seed}:{step.index}:sizes")
        for draft, fired in hunt.shadowed():
            blocker = self.space.terms.steps[fired].clause
            for _ in range(3):
                resized = self.drawer.repairs.resized(rng, draft, blocker, step.index - 1)
                if resized is not None:
                    yield resized

    def _walk(self, step: Step, hunt: "_Hunt", budget: int) -> Iterator[Draft]:
        """Several moves at once; what stands in the way is moved too."""
        rng = random.Random(f"{self.seed}:{step.index}")
        about = self.drawer.reads.of(step.clause)
        own = [base.about(*about) for base in self.bases]
        while hunt.spent < budget:
            at = rng.randrange(len(self.bases))
            base = self.bases[at]
            draft = base.draft
            for _ in range(_WALK):
                before = draft
                draft = draft.moved(rng.choice(own[at] if rng.random() < 0.7 else base.all))
                yield draft
                fired = None if hunt.last is None else hunt.last.verdict.index
                if hunt.last is None:
                    draft = before
                elif fired is not None and fired < step.index:
                    blocker = self.space.terms.steps[fired].clause
                    way = base.about(*self.drawer.reads.of(blocker))
                    draft = draft.moved(rng.choice(way)) if rng.random() < 0.5 else before

    def is_broken(self, step: Step, case: Case) -> bool:
        """Whether a clause does not hold, whatever fires first."""
        from tensorpact import use_backend

        with use_backend(case.backend):  # type: ignore[arg-type]
            try:
                terms, values = expand_call(self.space.terms, complete(self.space, case.arguments()))
                violation = first_violation(Call(self._lone(terms, step.index), values))
            except Exception:  # noqa: BLE001 - the contract's author, a constructor or torch refuses
                return False
        return violation is not None and violation.step is not None and violation.step.index == step.index

    def _lone(self, terms: Terms, index: int) -> Terms:
        """The terms with one clause and the lets in front of it; of a call with containers they are made anew."""
        if index not in self._alone or terms is not self.space.terms:
            alone = copy.copy(terms)
            alone.steps = (*(s for s in terms.steps[:index] if isinstance(s.clause, Let)), terms.steps[index])
            if terms is not self.space.terms:
                return alone
            self._alone[index] = alone
        return self._alone[index]

    def shrink(self, found: Found, wanted: Callable[[Found], bool]) -> Found:
        """The fewest moves and smallest sizes on which the wanted thing still happens."""
        best, start = found, 0
        while True:
            for i, smaller in enumerate(smaller_drafts(self.space, best.draft)):
                tried = self.judged(smaller) if i >= start else None
                if tried is not None and wanted(tried):
                    # Go on from here: what stood in front of it was tried a moment ago.
                    best, start = tried, i
                    break
            else:
                if start == 0:
                    return best
                start = 0

    def changed(self, found: Found) -> list[str]:
        """Parameters that the moves touch."""
        return sorted({m.name for m in found.draft.moves if m.name in found.case.plans})


def smaller_drafts(space: Space, draft: Draft) -> Iterator[Draft]:
    """Drafts with one move less, one optional argument less, one default more, or one size smaller."""
    for i in range(len(draft.moves)):
        yield replace(draft, moves=(*draft.moves[:i], *draft.moves[i + 1 :]))
    for p in space.plain if not draft.fixed else ():
        held = draft.values.get(p.name)
        fewer = held.fewer() if isinstance(held, Skeleton) else None
        if fewer is not None:
            yield replace(draft, values={**draft.values, p.name: fewer})
        simple = None if (p.tensor is not None or p.nested) and p.optional else p.default
        if simple is not EMPTY and draft.values.get(p.name, draft) is not simple:
            yield replace(draft, values={**draft.values, p.name: simple})
    moved = {m.name for m in draft.moves if m.kind == "dim"}
    for name, size in draft.dims.items():
        if draft.fixed or name in space.terms.lets or name in moved:
            continue
        smaller = [n for n in _steps_down(size) if isinstance(n, int)] if isinstance(size, int) else [size[1:]]
        for value in smaller:
            if value != size:
                yield replace(draft, dims={**draft.dims, name: value})
    for i, move in enumerate(draft.moves):
        if move.kind == "dim" and isinstance(move.value, int):
            for value in _steps_down(move.value):
                changed = Move("dim", move.name, value)
                yield replace(draft, moves=(*draft.moves[:i], changed, *draft.moves[i + 1 :]))


def _steps_down(size: int) -> list[int]:
    return [n for n in dict.fromkeys((2, 3, 4, 5, size // 2, size - 1)) if 1 < n < size]


class _Hunt:
    """Evaluations spent on one clause, and what they showed."""

    def __init__(self, suite: Suite, step: Step) -> None:
        self.suite = suite
        self.step = step
        self.spent = 0
        self.last: Found | None = None
        self._others: list[tuple[Draft, Found]] = []
        self._failures: Counter[str] = Counter()

    def fires(self, draft: Draft) -> Found | None:
        """The draft made concrete where the clause fires first on it; else None."""
        self.spent += 1
        self.last = found = self.suite.judged(draft)
        if found is None or found.verdict.index == self.step.index:
            return found
        if found.verdict.failure is not None:
            self._failures[found.verdict.failure] += 1
        elif found.verdict.violation is not None:
            self._others.append((draft, found))
        return None

    def _broken(self) -> Iterator[tuple[Draft, Found]]:
        """Calls on which the clause is broken, and another one fires before it."""
        broken = (other for other in self._others if self.suite.is_broken(self.step, other[1].case))
        return itertools.islice(broken, _SHADOWED)

    def shadowed(self) -> list[tuple[Draft, int]]:
        """Drafts on which the clause is broken, and the clause that fires before it."""
        return [(d, f.verdict.index) for d, f in self._broken() if f.verdict.index is not None]

    def explain(self) -> str:
        """Why the clause never fired, as far as the calls that were looked at tell."""
        instead = Counter(said(found.verdict) for _, found in self._broken())
        if instead:
            others = ", ".join(name for name, _ in instead.most_common(2))
            return f"shadowed: whenever it is broken, another fires first: {others}"
        if self._failures:
            first = self._failures.most_common(1)[0][0]
            return f"dead: never broken in {self.spent} mutated calls; code of the contract failed in some: {first}"
        return f"dead: never broken in {self.spent} mutated calls"
