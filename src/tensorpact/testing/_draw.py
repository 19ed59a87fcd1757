"""Valid arguments drawn from a contract: a random start, then repairs of whatever is broken first."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

from tensorpact._annotations import EMPTY, Parameter
from tensorpact._dims import DimKind

from ._drafts import Draft, ImpossibleError, Move, Verdict, judge, resolve
from ._plans import TensorPlan, is_storage_float, plan_of
from ._repairs import Repairs, pick_size
from ._space import COMMON_DTYPES, CannotDrawError, NothingFitsError, Scalar, Space
from .hooks import Factory

_RESTARTS = 40
_STEPS = 90
_FLAT = ("step", "outer", "offset")
_LAYOUTS = ("step", "outer", "gap", "reversed", "swap", "offset")


class Drawer:
    """Draws drafts that hold.

    Args:
        space: What arguments may be made of.
        factory: Makes the arguments; nothing is drawn then.
    """

    def __init__(self, space: Space, factory: Factory | None = None) -> None:
        self.space = space
        self.factory = factory
        self.scalars: dict[str, Scalar] = space.scalars() if factory is None else space.known_scalars()
        self.repairs = Repairs(space, self.scalars)
        self.reads = self.repairs.reads

    def draw(self, rng: random.Random, *, distinct: bool = True, presence: bool | None = None) -> Draft:
        """A draft on which every clause holds.

        Args:
            rng: Source of chance.
            distinct: Give every dim a size of its own, above 1.
            presence: Whether optional tensors are given (True), absent (False) or either.

        Raises:
            CannotDrawError: None was found; the text says what is in the way.
        """
        if self.factory is not None:
            given = {p.name: p.default for p in self.space.plain if p.default is not EMPTY} | self.factory(rng)
            return self._check_fixed({n: plan_of(v) for n, v in given.items()})
        blame: Counter[str] = Counter()
        for attempt in range(_RESTARTS):
            given = presence if attempt < _RESTARTS // 2 else None
            found = self._climb(rng, self._start(rng, distinct, given), distinct, blame, given is not None)
            if found is not None:
                return found
        common = blame.most_common(1)
        why = common[0][0] if common else "no sizes fit the annotations"
        kind = " with pairwise different dim sizes" if distinct else ""
        raise NothingFitsError(f"no valid arguments{kind} found; most often in the way: {why}")

    def _check_fixed(self, fixed: dict[str, Any]) -> Draft:
        tensors = {n: p for n, p in fixed.items() if isinstance(p, TensorPlan)}
        axes = {n: self.space.axes_named(n) for n in self.space.dims}
        dims = {n: self._size_of(tensors, found) for n, found in axes.items() if found}
        draft = Draft(dims, {n: p.dtype for n, p in tensors.items()}, {}, fixed=fixed)
        verdict = judge(self.space, resolve(self.space, draft))
        if not verdict.valid:
            raise CannotDrawError(f"the registered arguments are not valid: {said(verdict)}")
        return draft

    def _size_of(self, tensors: dict[str, TensorPlan], axes: list[tuple[str, int]]) -> int:
        """The size of the first of some axes that exists; 0 where none does."""
        return next((tensors[n].shape[i] for n, i in axes if n in tensors and i < len(tensors[n].shape)), 0)

    def _start(self, rng: random.Random, distinct: bool, presence: bool | None) -> Draft:
        space = self.space
        singles = [n for n, k in space.dims.items() if k in (DimKind.NAMED, DimKind.ANONYMOUS)]
        pool = [n for n in space.sizes if n <= max(24, len(singles) + 8)]
        extra = [n for n in space.sizes if n not in pool]
        sizes = rng.sample(pool, len(singles)) if distinct else [rng.choice(pool) for _ in singles]
        dims: dict[str, Any] = dict(zip(singles, sizes, strict=True))
        for name in singles:
            if extra and rng.random() < 0.15:
                dims[name] = pick_size(rng, dims, distinct, extra)
        for name, kind in space.dims.items():
            if kind in (DimKind.VARIADIC, DimKind.ELLIPSIS):
                dims[name] = tuple(pick_size(rng, dims, distinct, pool) for _ in range(rng.randint(0, 2)))
        dims |= space.pinned()
        values: dict[str, Any] = {n: self._scalar(rng, s) for n, s in self.scalars.items()}
        for p in space.nests:
            values[p.name] = space.nest(p, rng.choice((2, 2, 1, 3)))
        for p in (*space.tensors, *space.nests):
            if p.name in space.known:
                continue
            if p.optional and (rng.random() < 0.5 if presence is None else not presence):
                values[p.name] = None
        # Where nothing ties dtypes, calls with one of each kind are the common ones.
        order = rng.sample(COMMON_DTYPES, len(COMMON_DTYPES))
        ordinary = [d for d in order if not is_storage_float(d)]
        dtypes = {n: next((d for d in ordinary if d in some), some[0]) for n, some in space.dtypes.items()}
        forms = {p.name: rng.randrange(len(p.tensor.forms)) for p in space.typed if p.tensor is not None}
        return Draft(dims, dtypes, values, forms)

    def _scalar(self, rng: random.Random, scalar: Scalar) -> Any:
        return scalar.good[0] if scalar.good and rng.random() < 0.4 else rng.choice(scalar.good or (None,))

    def settle(self, draft: Draft) -> tuple[Draft, Verdict]:
        """The draft with let-derived dims at the sizes that the lets give, and what evaluation says of it.

        Raises:
            ImpossibleError: The draft has no arguments.
        """
        changed = {m.name: m.value for m in draft.moves if m.kind == "dim"}
        verdict = judge(self.space, resolve(self.space, draft))
        for _ in range(3):
            wrong = {
                n: v
                for n, v in verdict.lets.items()
                if n in self.space.dims and n not in changed and type(v) is int and v >= 0 and draft.dims.get(n) != v
            }
            if not wrong:
                break
            draft = replace(draft, dims={**draft.dims, **wrong})
            verdict = judge(self.space, resolve(self.space, draft))
        return draft, verdict

    def is_distinct(self, draft: Draft) -> bool:
        """Whether every dim has a size of its own, above 1."""
        sizes = [v for v in draft.dims.values() if isinstance(v, int)]
        return len(set(sizes)) == len(sizes) and all(n > 1 for n in sizes)

    def _climb(self, rng: random.Random, draft: Draft, distinct: bool, blame: Counter[str], keep: bool) -> Draft | None:
        best, best_at, best_verdict = draft, -2, Verdict(None, "no sizes fit the annotations")
        for _ in range(_STEPS):
            try:
                settled, verdict = self.settle(draft)
            except ImpossibleError as bad:
                settled, verdict = draft, Verdict(None, str(bad))
            if verdict.valid:
                if not distinct or self.is_distinct(settled):
                    return settled
                blame["only equal sizes, or sizes of 1, fit"] += 1
                at = len(self.space.terms.steps)
            else:
                blame[said(verdict)] += 1
                at = -1 if verdict.index is None else verdict.index
            if at >= best_at or rng.random() < 0.1:
                best, best_at, best_verdict = settled, at, verdict
            mended = self.repairs.repaired(rng, best, best_verdict, distinct, keep)
            draft = self._start(rng, distinct, None) if mended is None else mended
        return None

    def reduced(self, draft: Draft) -> Draft:
        """The draft with every dim as small as it goes while sizes stay different and every clause holds."""
        for name, size in draft.dims.items():
            used = {v for n, v in draft.dims.items() if n != name}
            moved = any(m.kind == "dim" and m.name == name for m in draft.moves)
            if not isinstance(size, int) or moved or name in self.space.terms.lets:
                continue
            for value in range(2, min(size, 9)):
                if value in used:
                    continue
                try:
                    settled, verdict = self.settle(replace(draft, dims={**draft.dims, name: value}))
                except ImpossibleError:
                    continue
                if verdict.valid:
                    draft = settled
                    break
        return draft

    def variations(self, draft: Draft, rng: random.Random, turn: int) -> Draft:
        """The draft with free choices taken: a dim of size 1 or 0, views, other dtypes; every clause still holds.

        Args:
            draft: A valid draft.
            rng: Source of chance.
            turn: Counts up; every dim gets its turn at size 1 and at size 0.
        """
        moves: list[tuple[Move, ...]] = []
        names = [n for n, k in self.space.dims.items() if k is DimKind.NAMED and n not in self.space.terms.lets]
        if names and self.factory is None and turn % 2:
            at = turn // 2
            moves.append((Move("dim", sorted(names)[at // 2 % len(names)], (1, 0)[at % 2]),))
        for p in self.space.tensors:
            if draft.values.get(p.name, draft) is None:
                continue
            if rng.random() < 0.6:
                how = rng.choice(_LAYOUTS if _axes(draft, self.space, p) > 1 else _FLAT)
                moves.append((Move("layout", p.name, how),))
            elif rng.random() < 0.1 and p.name not in self.space.written and _is_float(draft, p.name):
                moves.append((Move("expand", p.name, 0),))
            if rng.random() < 0.3 and self.factory is None:
                dtype = rng.choice(self.space.dtypes[p.name])
                moves.append(tuple(Move("dtype", n, dtype) for n in self.space.twins(p.name)))
        kept = draft
        for move in moves:
            try:
                tried, verdict = self.settle(kept.moved(*move))
            except ImpossibleError:
                continue
            if verdict.valid:
                kept = tried
        return kept


def _axes(draft: Draft, space: Space, parameter: Parameter) -> int:
    spec = parameter.tensor
    return 0 if spec is None else len(spec.forms[draft.forms.get(parameter.name, 0)].dims)


def _is_float(draft: Draft, name: str) -> bool:
    dtype = draft.dtypes.get(name)
    return dtype is not None and dtype.is_floating_point


def said(verdict: Verdict) -> str:
    """What evaluation says, in one line."""
    if verdict.failure is not None:
        return verdict.failure
    violation = verdict.violation
    if violation is None:
        return "nothing"
    if violation.step is None:
        return violation.broken.reason
    name = f" ({violation.error.slug})" if violation.error is not None else ""
    return f"clause {violation.step.index} {violation.step.clause}{name}"
