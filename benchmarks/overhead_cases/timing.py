"""Loops over calls that take turns, and what to make of their times."""

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from tensorpact import enforcement

Loop = Callable[[int], int]
#: Calls of one variant in a round, where nothing else is said.
COUNT = 500


def repeated(function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> Loop:
    """A loop over calls that says how many nanoseconds it took: of this thread, since others share the processor."""

    def run(count: int) -> int:
        calls = list(itertools.islice(itertools.cycle(arguments), count))
        start = time.thread_time_ns()
        for values in calls:
            function(*values)
        return time.thread_time_ns() - start

    return run


def awaited(function: Callable[..., Coroutine[Any, Any, None]], arguments: list[tuple[Any, ...]]) -> Loop:
    """The same for coroutines, within one event loop."""

    async def run(count: int) -> int:
        calls = list(itertools.islice(itertools.cycle(arguments), count))
        start = time.thread_time_ns()
        for values in calls:
            await function(*values)
        return time.thread_time_ns() - start

    return lambda count: asyncio.run(run(count))


def sampled(loops: Mapping[str, Loop], rounds: int, counts: Mapping[str, int] | None = None) -> dict[str, list[float]]:
    """Microseconds of a call of each variant in each round; the variants take turns, so that drift hits all alike.

    Args:
        loops: The variants; `ours_off` runs with the checks switched off.
        rounds: How many rounds, after one that does not count.
        counts: Calls a round of variants that need fewer or more.
    """
    samples: dict[str, list[float]] = {name: [] for name in loops}
    for step in range(rounds + 1):
        for name, loop in loops.items():
            count = (counts or {}).get(name, COUNT)
            with enforcement("off") if name == "ours_off" else contextlib.nullcontext():
                taken = loop(count) / count / 1e3
            if step:
                samples[name].append(taken)
    return samples


def middle(values: list[float]) -> tuple[float, float]:
    """Median, and half of the range of the middle half as a share of it."""
    low, median, high = statistics.quantiles(values, n=4)
    return median, (high - low) / 2 / median
