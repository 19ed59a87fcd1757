"""Repairs of a draft: a change that may mend what is broken first, chosen by the kind of clause."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tensorpact._evaluation import Violation
from tensorpact.clauses import AnyOf, Clause, Exclusive, Needs, Present, SameDtype, Together

from ._drafts import Draft, Move, Verdict
from ._rules import Numbers, Reads
from ._space import Scalar, Space

_LARGEST = 160


def pick_size(rng: random.Random, dims: Mapping[str, Any], distinct: bool, pool: list[int]) -> int:
    """A size of a pool, one that no dim has where sizes are to differ."""
    used = {v for v in dims.values() if isinstance(v, int)}
    free = [n for n in pool if n not in used] if distinct else pool
    return rng.choice(free or pool)


class Repairs:
    """Changes drafts towards valid ones.

    Args:
        space: What arguments may be made of.
        scalars: Values of arguments that are no tensors.
    """

    def __init__(self, space: Space, scalars: Mapping[str, Scalar]) -> None:
        self.space = space
        self.scalars = scalars
        self.reads = Reads(space.terms)
        self.numbers = Numbers(space.terms, space.dims)

    def repaired(self, rng: random.Random, draft: Draft, verdict: Verdict, distinct: bool, keep: bool) -> Draft | None:
        """A draft on which what is broken may hold; None where nothing can be changed.

        Args:
            rng: Source of chance.
            draft: The draft.
            verdict: What is broken.
            distinct: Whether every dim has to keep a size of its own.
            keep: Whether optional tensors stay given or absent.
        """
        violation = verdict.violation
        clause = None if violation is None or violation.step is None else violation.step.clause
        if clause is not None and violation is not None and rng.random() < 0.7:
            mended = self._mend(rng, draft, clause, violation)
            if mended is not None:
                return mended
        if clause is not None and violation is not None and violation.step is not None and rng.random() < 0.6:
            swept = self._sweep(rng, draft, clause, violation.step.index, distinct)
            if swept is not None:
                return swept
        if clause is None:
            plain = {p.name for p in self.space.plain}
            names = {_top(n, plain) for n in violation.broken.names} if violation is not None else plain
            dims = set(self.space.dims)
        else:
            names, dims = self.reads.of(clause)
        return self._shake(rng, draft, names, dims, distinct, keep)

    def _sweep(self, rng: random.Random, draft: Draft, clause: Clause, index: int, distinct: bool) -> Draft | None:
        """Another size for one dim of a relation, found by trying the numbers alone."""
        _, dims = self.reads.of(clause)
        free = sorted(n for n in dims if isinstance(draft.dims.get(n), int) and n not in self.space.terms.lets)
        if not free:
            return None
        name = rng.choice(free)
        used = {v for n, v in draft.dims.items() if n != name and isinstance(v, int)} if distinct else set[int]()
        sizes = [n for n in range(2 if distinct else 0, _LARGEST) if n not in used]
        size = self._holding(rng, name, sizes, draft.dims, draft.values, index)
        return None if size is None else replace(draft, dims={**draft.dims, name: size})

    def resized(self, rng: random.Random, draft: Draft, clause: Clause, index: int) -> Draft | None:
        """A draft with one more move: another size for a dim that no move has touched, with which relations hold again.

        Args:
            rng: Source of chance.
            draft: The draft, moves of dims included.
            clause: The relation whose dims come into question.
            index: Place of the last relation that has to hold.
        """
        moved = {m.name: m.value for m in draft.moves if m.kind == "dim"}
        dims = {**draft.dims, **moved}
        _, read = self.reads.of(clause)
        free = sorted(
            n for n in read if isinstance(dims.get(n), int) and n not in moved and n not in self.space.terms.lets
        )
        if not free:
            return None
        name = rng.choice(free)
        size = self._holding(rng, name, list(range(_LARGEST)), dims, draft.values, index)
        return None if size is None else draft.moved(Move("dim", name, size))

    def _holding(
        self,
        rng: random.Random,
        name: str,
        sizes: list[int],
        dims: Mapping[str, Any],
        values: Mapping[str, Any],
        index: int,
    ) -> int | None:
        """A size of a dim with which all that numbers decide holds, up to a clause."""
        others = {n: v for n, v in dims.items() if n not in self.space.terms.lets}
        for size in rng.sample(sizes, len(sizes)):
            if self.numbers.hold({**others, name: size}, values, index):
                return size
        return None

    def _mend(self, rng: random.Random, draft: Draft, clause: Clause, violation: Violation) -> Draft | None:
        """What the kind of clause suggests."""
        values = dict(draft.values)
        if isinstance(clause, AnyOf):
            member = rng.choice(clause.members)
            return self._mend(rng, draft, member, violation)
        if isinstance(clause, SameDtype):
            dtype = draft.dtypes.get(clause.names[0])
            if dtype is None:
                return None
            fit = {n: dtype for n in clause.names[1:] if dtype in self.space.dtypes[n]}
            return replace(draft, dtypes={**draft.dtypes, **fit}) if fit else None
        if isinstance(clause, (Present, Needs, Together, Exclusive)):
            optional = list(clause.names)
            if isinstance(clause, Present):
                give, absent = optional, list[str]()
            elif isinstance(clause, Exclusive):
                keep = rng.choice(optional)
                give, absent = [keep], [n for n in optional if n != keep]
            elif isinstance(clause, Needs) and rng.random() < 0.5:
                give, absent = [], optional[:1]
            else:
                give, absent = (optional, []) if rng.random() < 0.6 else ([], optional)
            for name in give:
                if self.space.terms.parameters[name].tensor is not None:
                    values.pop(name, None)
                elif name in self.scalars:
                    values[name] = rng.choice([v for v in self.scalars[name].good if v is not None] or [None])
            for name in absent:
                if self.space.terms.parameters[name].optional:
                    values[name] = None
            return replace(draft, values=values)
        return None

    def _shake(
        self, rng: random.Random, draft: Draft, names: set[str], dims: Iterable[str], distinct: bool, keep: bool
    ) -> Draft | None:
        """One random change among what matters."""
        lets = self.space.terms.lets
        choices: list[tuple[str, str]] = [("dim", n) for n in sorted(dims) if n in draft.dims and n not in lets]
        own = {p.name: p for p in (*self.space.plain, *self.space.typed)}
        for name in sorted(names | {t for t in self.space.terms.templates if t.startswith(tuple(names))}):
            parameter = own.get(name)
            if parameter is None:
                continue
            if parameter.nested:
                choices += [("count", name)]
                continue
            if parameter.tensor is None:
                choices += [("scalar", name)] if name in self.scalars else []
                continue
            choices.append(("dtype", name))
            if parameter.optional and not keep and not parameter.repeated:
                choices.append(("presence", name))
            if parameter.tensor.union:
                choices.append(("form", name))
            read = {n for f in parameter.tensor.forms for d in f.dims for n in d.names}
            choices += [("dim", n) for n in sorted(read) if n in draft.dims and n not in lets]
        if not choices:
            return None
        kind, name = rng.choice(choices)
        if kind == "dim":
            old = draft.dims[name]
            pool = self.space.sizes if distinct else [0, 1, *self.space.sizes]
            new = pick_size(rng, dict(draft.dims), distinct, pool)
            if isinstance(old, tuple):
                return replace(draft, dims={**draft.dims, name: tuple(new for _ in range(rng.randint(0, 2)))})
            return replace(draft, dims={**draft.dims, name: new})
        if kind == "count":
            frame = self.space.nest(self.space.terms.parameters[name], rng.randrange(4))
            return replace(draft, values={**draft.values, name: frame})
        if kind == "scalar":
            scalar = self.scalars[name]
            return replace(draft, values={**draft.values, name: rng.choice((*scalar.good, *scalar.odd))})
        if kind == "dtype":
            dtype = rng.choice(self.space.dtypes[name])
            twins = self.space.twins(name)
            return replace(draft, dtypes={**draft.dtypes, **{n: dtype for n in twins if dtype in self.space.dtypes[n]}})
        if kind == "form":
            spec = own[name].tensor
            count = len(spec.forms) if spec is not None else 1
            return replace(draft, forms={**draft.forms, name: rng.randrange(count)})
        values = dict(draft.values)
        if values.pop(name, draft) is draft:
            values[name] = None
        return replace(draft, values=values)


def _top(name: str, plain: set[str]) -> str:
    """The parameter that an item of a container is part of."""
    return name if name in plain else next((p for p in plain if name.startswith((f"{p}[", f"{p}."))), name)
