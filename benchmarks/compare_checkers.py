"""Public runtime checkers on one signature: what a call costs, what an error says, what torch.compile makes of it.

    python benchmarks/compare_checkers.py [--out FILE] [--python torchtyping=/path/to/another/bin/python]

Install the checkers into an environment of their own, beside this package; one that cannot be imported is skipped and
the reason recorded. Each runs in a process of its own, in turns with hand-written checks, since absolute times differ
from run to run. The signature is that of a paged decode call, seven tensors and a float, with shapes and
dtypes alone; a checker that cannot say a dtype checks shapes.
"""

import argparse
import datetime as dt
import importlib.metadata
import json
import pathlib
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from compare_signatures import CHECKERS, by_hand
from overhead_cases.timing import middle, repeated, sampled

FAULTS = ("shape", "dtype", "none")
#: How a text may say that axis 2 of q has bound D.
BINDER = re.compile(r"\bq axis 2|\bq\[2\]|\bq\.shape\[2\]|\b(?:from|by|of) '?q\b|\bq dim(?:ension)? 2", re.IGNORECASE)


def arguments(fault: str = "", dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """Valid arguments, or with one fault: k_cache of another D, page ids as floats, k_cache missing."""
    floating, i32 = {"dtype": dtype}, {"dtype": torch.int32}
    cache = None if fault == "none" else torch.zeros(10, 16, 2, 63 if fault == "shape" else 64, **floating)
    table = torch.zeros(3, 5) if fault == "dtype" else torch.zeros(3, 5, **i32)
    return (
        torch.zeros(3, 8, 64, **floating), cache, torch.zeros(10, 16, 2, 32, **floating), table, torch.zeros(3, **i32),
        torch.zeros(8), torch.zeros(3, 8, 32, **floating), 0.125,
    )  # fmt: skip


def outcome(function: Callable[..., Any], values: tuple[Any, ...]) -> dict[str, Any]:
    """What a call does: the class and text of what it raises, or that it passes."""
    try:
        function(*values)
    except Exception as error:  # noqa: BLE001 - whatever a checker raises is what is compared
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        # Directories belong to the machine.
        return {"raises": type(error).__name__, "text": re.sub(r"/(?:[\w.+-]+/)+", "", text)}
    return {"raises": None}


def compiled(function: Callable[..., Any], values: tuple[Any, ...], fullgraph: bool) -> dict[str, Any]:
    """The same under torch.compile."""
    torch._dynamo.reset()
    out = outcome(torch.compile(function, fullgraph=fullgraph, backend="eager"), values)
    torch._dynamo.reset()
    return out


def named(text: str) -> dict[str, bool]:
    """Whether a text on the wrong D of k_cache names the argument, the dim and the argument that had bound it.

    Annotations, lists of arguments and lists of dims that a text repeats as a whole do not count.
    """
    told = re.sub(r"(?s)Called with parameters: \{.*?\n\}|\[[^\]\d]*\]|\{[^}]*\}|'[^']* D'", "", text)
    told = re.sub(r"(?m)^\s*\w+=\d+$", "", told)
    return {
        "argument": "k_cache" in told,
        "dim": bool(re.search(r"\bD\b", told)),
        "binder": bool(BINDER.search(text)),
    }


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Everything about one checker, in this process."""
    checker = CHECKERS[name]
    versions = {}
    for package in checker.packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return {"skipped": f"{package} is not installed"}
    try:
        function = checker.make()
    except Exception as error:  # noqa: BLE001 - a package that does not import is a finding
        return {"skipped": f"{type(error).__name__}: {error}".splitlines()[0], "versions": versions}
    right = arguments()
    out: dict[str, Any] = {"versions": versions, "dtypes": checker.dtypes, "valid": outcome(function, right)}
    if out["valid"]["raises"]:
        return out
    samples = sampled({"by hand": repeated(by_hand, [right]), name: repeated(function, [right])}, rounds, {name: 60})
    ratio, spread = middle([a / b for a, b in zip(samples[name], samples["by hand"], strict=True)])
    out |= {"microseconds": round(middle(samples[name])[0], 2), "by_hand": round(ratio, 2), "spread": round(spread, 2)}
    out["bf16"] = outcome(function, arguments(dtype=torch.bfloat16))
    out["faults"] = {fault: outcome(function, arguments(fault)) for fault in FAULTS}
    out["names"] = named(out["faults"]["shape"].get("text", ""))
    out["fullgraph"] = compiled(function, right, fullgraph=True)
    out["compiled"] = compiled(function, right, fullgraph=False)
    out["compiled_fault"] = compiled(function, arguments("shape"), fullgraph=False)
    return out


def in_process(name: str, python: str, rounds: int) -> dict[str, Any]:
    """Measure one checker in a process of its own."""
    command = [python, __file__, "--one", name, "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"skipped": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def main() -> None:
    """Measure all, print a line each, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="file for the figures as JSON")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--one", choices=CHECKERS, help="measure one checker here and print it as JSON")
    parser.add_argument("--python", action="append", default=[], help="NAME=INTERPRETER for one checker")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.rounds)))
        return
    others = dict(entry.split("=", 1) for entry in options.python)
    results = {name: in_process(name, others.get(name, sys.executable), options.rounds) for name in CHECKERS}
    for name, row in results.items():
        cost = f"{row['microseconds']:8.2f} µs {row['by_hand']:7.2f} × by hand" if "by_hand" in row else row
        print(f"{name:28} {cost}")
    if options.out:
        record = {
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "results": results,
        }
        pathlib.Path(options.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
