"""Arguments to start from: valid ones of a draft, or those that come furthest where none is found in time."""

import math
import random
import time
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tensorpact.testing._drafts import Draft, Verdict
from tensorpact.testing._draw import Drawer
from tensorpact.testing._space import CannotDrawError, NothingFitsError, Space

from .shapes import MOST, Guesses, open_axes

#: Calls that are judged for one start, and the processor seconds that they may take.
CALLS = 500
SECONDS = 3.0


class SpentError(BaseException):
    """The calls or the time for one start are spent; no search may take it for a failed try."""


class Unwritten(TorchFunctionMode):
    """Leaves out the zeros: a draft reads no values, and writing them takes most of the time of a search."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (torch.empty if func is torch.zeros else func)(*args, **(kwargs or {}))


class Furthest(Drawer):
    """Draws valid arguments, and hands out the call on which the most checks held where it finds none.

    Attributes:
        valid: How many of the drafts handed out are valid.
        in_the_way: What was broken first in the last of those that are not.

    Args:
        space: What arguments may be made of.
    """

    def __init__(self, space: Space) -> None:
        super().__init__(space)
        self.repairs = Guesses(space, self.scalars)
        self.reads = self.repairs.reads
        self.valid = 0
        self.in_the_way = ""
        self._best: tuple[float, Draft, Verdict] | None = None
        self._left = 0
        self._until = math.inf
        self._searching = False

    def draw(self, rng: random.Random, *, distinct: bool = True, presence: bool | None = None) -> Draft:
        """A draft on which every clause holds, or the one that comes furthest.

        Args:
            rng: Source of chance.
            distinct: Whether sizes that differ pairwise are tried first.
            presence: Whether optional tensors are given.

        Raises:
            CannotDrawError: An argument cannot be made at all.
        """
        self._best, self._searching = None, True
        try:
            for share, sizes_differ in ((3, True), (1, False)) if distinct else ((1, False),):
                # Equal sizes fit more often: the second try is the longer one.
                self._left, self._until = CALLS // share, time.process_time() + SECONDS / share
                try:
                    found = super().draw(rng, distinct=sizes_differ, presence=presence)
                except (NothingFitsError, SpentError):
                    presence = None
                    continue
                self.valid += 1
                return found
        finally:
            self._searching = False
        if self._best is None:
            raise CannotDrawError("no arguments of such sizes can be made")
        _, draft, verdict = self._best
        if verdict.valid:
            self.valid += 1
        else:
            violation = verdict.violation
            self.in_the_way = verdict.failure or (violation.broken.reason if violation is not None else "")
        return draft

    def _start(self, rng: random.Random, distinct: bool, presence: bool | None) -> Draft:
        found = super()._start(rng, distinct, presence)
        names = {p.name for p in self.space.tensors}
        pool = [n for n in found.dims.values() if isinstance(n, int)] or [2, 3, 5]
        more = {
            key: tuple(rng.choice(pool) for _ in range(rng.randint(1, MOST - 1)))
            for key in open_axes(self.space, names)
            if isinstance(found.dims.get(key), tuple)
        }
        return replace(found, dims={**found.dims, **more})

    def settle(self, draft: Draft) -> tuple[Draft, Verdict]:
        """As ever, remembering the call that came furthest."""
        if self._searching:
            self._left -= 1
            if self._left < 0 or time.process_time() > self._until:
                raise SpentError
        settled, verdict = super().settle(draft)
        if self._searching:
            reached = math.inf if verdict.valid else -1 if verdict.index is None else verdict.index
            if self._best is None or reached > self._best[0]:
                self._best = (reached, settled, verdict)
        return settled, verdict
