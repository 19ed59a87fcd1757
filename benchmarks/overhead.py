"""Cost of checking one call: no check, by hand, stock jaxtyping + beartype, tensorpact, and the floor.

All of it in one run and printed as ratios, since absolute times differ from run to run:

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
import datetime as dt
import importlib.metadata
import inspect
import json
import pathlib
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from overhead_cases import CASES, Case
from overhead_cases.timing import Loop, awaited, middle, repeated, sampled

#: Valid arguments by number of tokens; once more with larger caches.
Arguments = dict[int | str, tuple[Any, ...]]
LARGER = "larger caches"
COUNTS = {"stock": 40, "stock_without_result": 40, "ours_layers": 61 * 32}
TARGETS = {
    "ours/by_hand": "≤ 0.7",
    "stock/ours": "≥ 40",
    "ours/floor": "≤ 1.6",
    "unremembered/by_hand": "–",
    "stock/unremembered": "≥ 20 without layouts, ≥ 12 with them",
    "unremembered/floor": "≤ 1.6",
}


def forgetful(case: Case, arguments: tuple[Any, ...]) -> Callable[..., Any] | None:
    """A guard that never learns a signature, or None where none would learn one."""
    function = case.decorated()
    bound = case.bind(function)
    result = bound(*arguments)
    if case.awaited:
        asyncio.run(result)
    if isinstance(function, type):
        function = inspect.getclosurevars(function.__init__).nonlocals["check"]
    memory = function.__globals__.get("_memory")
    if memory is None:
        return None
    memory.known, memory.misses = None, -(10**9)
    return bound


def variants_of(case: Case, arguments: Arguments) -> dict[str, Loop]:
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
        changing = [arguments[n] for n in range(3, 64)]
        variants["ours_changing"] = loop(case.ours(), changing)
        variants["by_hand_changing"] = loop(case.by_hand, changing)
    if case.floor is not None:
        variants["floor"] = loop(case.floor, right)
    return variants


def failing(case: Case, arguments: tuple[Any, ...], rounds: int = 200) -> float:
    """Median cost of a call that fails, in microseconds."""
    function, wrong = case.ours(), case.wrong(arguments)
    times: list[float] = []
    for _ in range(rounds):
        start = time.thread_time_ns()
        try:
            if case.awaited:
                function(*wrong).send(None)
            else:
                function(*wrong)
        except (ValueError, TypeError):
            times.append((time.thread_time_ns() - start) / 1e3)
    if len(times) < rounds:
        raise RuntimeError(f"{case.name}: a wrong call passed")
    return statistics.median(times)


def decorating(case: Case, rounds: int = 30) -> float:
    """Median cost of decorating, in microseconds; a method also builds its guard at the first call."""
    times: list[float] = []
    for _ in range(rounds):
        start = time.thread_time_ns()
        case.decorated()
        times.append((time.thread_time_ns() - start) / 1e3)
    return statistics.median(times)


def measure(case: Case, rounds: int, device: str) -> dict[str, Any]:
    """All figures of one signature."""
    # Within this context every attribute of a tensor costs twenty times as much, so nothing is timed in it.
    with torch.device(device):
        arguments: Arguments = {n: case.arguments(n) for n in (*range(3, 64), 600)}
        if case.extended:
            arguments[LARGER] = case.arguments(3, pools=2)
    samples = sampled(variants_of(case, arguments), rounds, COUNTS)
    wrong = {n: failing(case, arguments[n]) for n in (3, 600)}
    pairs = {"ours/by_hand": ("ours", "by_hand"), "stock/ours": ("stock", "ours"), "ours/floor": ("ours", "floor")}
    pairs["stock_without_result/ours"] = ("stock_without_result", "ours")
    pairs["stock_without_result/unremembered"] = ("stock_without_result", "ours_unremembered")
    for other in ("unremembered", "layers", "turns", "changing"):
        ours = f"ours_{other}"
        pairs |= {f"{other}/by_hand": (ours, "by_hand"), f"stock/{other}": ("stock", ours)}
        pairs |= {f"{other}/floor": (ours, "floor")}
    # Other arguments at every call cost everyone a little: they come from further away in memory.
    pairs["changing/by_hand"] = ("ours_changing", "by_hand_changing")
    # A ratio is taken within a round, whose parts ran side by side, and then the median of the rounds.
    ratios = {
        name: middle([a / b for a, b in zip(samples[over], samples[under], strict=True)])
        for name, (over, under) in pairs.items()
        if over in samples and under in samples
    }
    return {
        "signature": case.name,
        "microseconds": {name: round(statistics.median(times), 3) for name, times in samples.items()},
        **{name: round(median, 3) for name, (median, _) in ratios.items()},
        "spread": {name: round(share, 3) for name, (_, share) in ratios.items()},
        "failing_microseconds": {str(n): round(value, 1) for n, value in wrong.items()},
        "decorating_microseconds": round(decorating(case), 1),
    }


def show(result: dict[str, Any]) -> None:
    """Print the figures of one signature."""
    print(result["signature"], {k: f"{v:.2f} µs" for k, v in result["microseconds"].items()})
    for key, value in result.items():
        if "/" in key:
            print(f"  {key:33} {value:7.2f} ± {result['spread'][key]:.0%}   target {TARGETS.get(key, '–')}")
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
