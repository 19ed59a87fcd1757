"""Cost of checking one call: no check, by hand, stock jaxtyping + beartype, tensorpact, and the floor.

All of it in one run and printed as ratios, since absolute times of a shared CPU say little:

    python benchmarks/overhead.py [--out FILE] [--only NAME] [--device cuda]

The floor reads every attribute that the checks need once. Of the contract there are up to six figures:

    ours               the signature is remembered, as in a decode loop
    ours_unremembered  the plain guard: the first calls of a signature
    ours_layers        a model of 32 layers whose batch has another size at each step
    ours_turns         two kinds of layers, each with caches of a size of its own, in turns
    ours_changing      61 signatures, each call another one
    ours_off           switched off after import; under TENSORPACT=off at import the decorator returns the function
                       itself, which is `none`
"""

import argparse
import asyncio
import contextlib
import datetime as dt
import importlib.metadata
import itertools
import json
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any

import torch
from overhead_cases import CASES, Case

from tensorpact import enforcement

#: Valid arguments by number of tokens; once more with larger caches.
Arguments = dict[int | str, tuple[Any, ...]]
LARGER = "larger caches"
TARGETS = {
    "ours/by_hand": "≤ 0.7",
    "stock/ours": "≥ 40",
    "ours/floor": "≤ 1.6",
    "unremembered/by_hand": "–",
    "stock/unremembered": "≥ 20 without layouts, ≥ 12 with them",
    "unremembered/floor": "≤ 1.6",
}


def repeated(function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> Callable[[int], int]:
    """A loop over calls that says how many nanoseconds it took."""

    def run(count: int) -> int:
        calls = list(itertools.islice(itertools.cycle(arguments), count))
        start = time.perf_counter_ns()
        for values in calls:
            function(*values)
        return time.perf_counter_ns() - start

    return run


def awaited(
    function: Callable[..., Coroutine[Any, Any, None]], arguments: list[tuple[Any, ...]]
) -> Callable[[int], int]:
    """The same for coroutines, within one event loop."""

    async def run(count: int) -> int:
        calls = list(itertools.islice(itertools.cycle(arguments), count))
        start = time.perf_counter_ns()
        for values in calls:
            await function(*values)
        return time.perf_counter_ns() - start

    return lambda count: asyncio.run(run(count))


def medians(loops: dict[str, Callable[[int], int]], rounds: int) -> dict[str, tuple[float, float]]:
    """Median microseconds of a call of each variant, and the half of the middle range of its rounds as a share.

    The variants take turns, so that drift hits all alike.
    """
    samples: dict[str, list[float]] = {name: [] for name in loops}
    for step in range(rounds + 1):
        for name, loop in loops.items():
            count = 40 if name.startswith("stock") else 1952 if name == "ours_layers" else 500
            with enforcement("off") if name == "ours_off" else contextlib.nullcontext():
                taken = loop(count) / count / 1e3
            if step:
                samples[name].append(taken)
    out: dict[str, tuple[float, float]] = {}
    for name, times in samples.items():
        low, middle, high = statistics.quantiles(times, n=4)
        out[name] = middle, (high - low) / 2 / middle
    return out


def forgetful(case: Case, arguments: tuple[Any, ...]) -> Callable[..., Any] | None:
    """A guard that never learns a signature, or None where none would learn one."""
    function = case.decorated()
    bound = case.bind(function)
    result = bound(*arguments)
    if case.awaited:
        asyncio.run(result)
    memory = getattr(function, "__globals__", {}).get("_memory")
    if memory is None:
        return None
    memory.known, memory.misses = None, -(10**9)
    return bound


def variants_of(case: Case, arguments: Arguments) -> dict[str, Callable[[int], int]]:
    """Everything that is timed of one signature."""
    loop = awaited if case.awaited else repeated
    right = [arguments[3]]
    variants = {
        "none": loop(case.none, right),
        "by_hand": loop(case.by_hand, right),
        "stock": loop(case.stock(), right),
        "ours": loop(case.ours(), right),
        "ours_off": loop(case.ours(), right),
    }
    plain = forgetful(case, right[0])
    if plain is not None:
        variants["ours_unremembered"] = loop(plain, right)
    if case.extended:
        variants["stock_without_result"] = loop(case.stock_without_result(), right)
        variants["ours_turns"] = loop(case.ours(), [arguments[3], arguments[LARGER]])
        layers = [arguments[n] for n in range(3, 64) for _ in range(32)]
        variants["ours_layers"] = loop(case.ours(), layers)
        variants["ours_changing"] = loop(case.ours(), [arguments[n] for n in range(3, 64)])
    if case.floor is not None:
        variants["floor"] = loop(case.floor, right)
    return variants


def failing(case: Case, arguments: tuple[Any, ...], rounds: int = 200) -> float:
    """Median cost of a call that fails, in microseconds."""
    function, wrong = case.ours(), case.wrong(arguments)
    times: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        try:
            if case.awaited:
                function(*wrong).send(None)
            else:
                function(*wrong)
        except (ValueError, TypeError):
            times.append((time.perf_counter_ns() - start) / 1e3)
    if len(times) < rounds:
        raise RuntimeError(f"{case.name}: a wrong call passed")
    return statistics.median(times)


def decorating(case: Case, rounds: int = 30) -> float:
    """Median cost of decorating, in microseconds; a method also builds its guard at the first call."""
    times: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        case.decorated()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(times)


def measure(case: Case, rounds: int, device: str) -> dict[str, Any]:
    """All figures of one signature."""
    # Within this context every attribute of a tensor costs twenty times as much, so nothing is timed in it.
    with torch.device(device):
        arguments: Arguments = {n: case.arguments(n) for n in (*range(3, 64), 600)}
        if case.extended:
            arguments[LARGER] = case.arguments(3, pools=2)
    found = medians(variants_of(case, arguments), rounds)
    wrong = {n: failing(case, arguments[n]) for n in (3, 600)}
    times = {name: middle for name, (middle, _) in found.items()}
    ratios = {"ours/by_hand": ("ours", "by_hand"), "stock/ours": ("stock", "ours"), "ours/floor": ("ours", "floor")}
    ratios["stock_without_result/ours"] = ("stock_without_result", "ours")
    ratios["stock_without_result/unremembered"] = ("stock_without_result", "ours_unremembered")
    for other in ("unremembered", "changing", "turns", "layers"):
        ours = f"ours_{other}"
        ratios |= {f"{other}/by_hand": (ours, "by_hand"), f"stock/{other}": ("stock", ours)}
        ratios |= {f"{other}/floor": (ours, "floor")}
    return {
        "signature": case.name,
        "microseconds": {name: round(value, 3) for name, value in times.items()},
        "spread": {name: round(share, 3) for name, (_, share) in found.items()},
        **{k: round(times[a] / times[b], 3) for k, (a, b) in ratios.items() if a in times and b in times},
        "failing_microseconds": {str(n): round(value, 1) for n, value in wrong.items()},
        "decorating_microseconds": round(decorating(case), 1),
    }


def show(result: dict[str, Any]) -> None:
    """Print the figures of one signature."""
    print(result["signature"], {k: f"{v:.2f} µs" for k, v in result["microseconds"].items()})
    for key, value in result.items():
        if "/" in key:
            print(f"  {key:21} {value:7.2f}   target {TARGETS.get(key, '–')}")
    print(f"  spread         ± {max(result['spread'].values()):.0%} at most (half of the middle range)")
    print(f"  failing call   {result['failing_microseconds']} µs (by tokens)   target ≤ 500")
    print(f"  decorating     {result['decorating_microseconds']} µs   target ≤ 5000")


def main() -> None:
    """Measure, print a table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="file for the figures as JSON")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="", help="signatures whose name has this in it")
    parser.add_argument("--device", default="cpu", help="where the tensors live")
    options = parser.parse_args()
    results = [measure(case, options.rounds, options.device) for case in CASES if options.only in case.name]
    for result in results:
        show(result)
    if options.out:
        record = {
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "versions": {n: importlib.metadata.version(n) for n in ("torch", "jaxtyping", "beartype")},
            "results": results,
        }
        with pathlib.Path(options.out).open("w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
