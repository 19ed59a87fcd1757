"""Repairs of calls for drafts: shapes of tensors whose axes an annotation leaves open, made of those of others."""

import random
from collections.abc import Iterable
from dataclasses import replace

from tensorpact._dims import DimKind
from tensorpact.testing._drafts import Draft, ImpossibleError, resolve
from tensorpact.testing._plans import TensorPlan
from tensorpact.testing._repairs import Repairs
from tensorpact.testing._space import Space, free_axis

#: As many axes as attention kernels know.
MOST = 5


def open_axes(space: Space, names: Iterable[str]) -> dict[str, str]:
    """Key of each axis without a name, ``...`` or ``_``, to the parameter that has it.

    Args:
        space: What arguments may be made of.
        names: Parameters in question.
    """
    found: dict[str, str] = {}
    for parameter in space.tensors:
        if parameter.name in names and parameter.tensor is not None:
            for form in parameter.tensor.forms:
                for i, dim in enumerate(form.dims):
                    if dim.kind in (DimKind.ANONYMOUS, DimKind.ELLIPSIS):
                        found[free_axis(parameter.name, i)] = parameter.name
    return found


class Guesses(Repairs):
    """Repairs that also try shapes and sizes of the other tensors where nothing else says what fits."""

    def _shake(
        self, rng: random.Random, draft: Draft, names: set[str], dims: Iterable[str], distinct: bool, keep: bool
    ) -> Draft | None:
        free = [key for key in open_axes(self.space, names) if key in draft.dims]
        if not free or rng.random() < 0.4:
            return super()._shake(rng, draft, names, dims, distinct, keep)
        key = rng.choice(free)
        shapes = self._shapes(draft)
        sizes = [n for shape in shapes for n in shape] or [2]
        if not isinstance(draft.dims[key], tuple):
            return replace(draft, dims={**draft.dims, key: rng.choice([*sizes, *self.space.sizes[:8], 1])})
        shape = rng.choice([*shapes, ()]) if rng.random() < 0.6 else ()
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            shape = self._edited(rng, shape, sizes)
        if not shape:
            shape = tuple(rng.choice([*sizes, *self.space.sizes[:8]]) for _ in range(rng.randint(0, MOST)))
        return replace(draft, dims={**draft.dims, key: shape[:MOST]})

    def _shapes(self, draft: Draft) -> list[tuple[int, ...]]:
        try:
            plans = resolve(self.space, draft).plans.values()
        except ImpossibleError:
            return []
        return [p.shape for p in plans if isinstance(p, TensorPlan)]

    def _edited(self, rng: random.Random, shape: tuple[int, ...], sizes: list[int]) -> tuple[int, ...]:
        at = rng.randrange(len(shape)) if shape else 0
        return rng.choice(
            (
                shape[:-1],
                shape[1:],
                (*shape, rng.choice(sizes)),
                (rng.choice(sizes), *shape),
                (*shape[:at], rng.choice(sizes), *shape[at + 1 :]),
                (*shape[:at], *shape[at + 1 :]),
                (*shape[:-2], *reversed(shape[-2:])),
                (*shape[:at], 1, *shape[at + 1 :]),
            )
        )
