"""How much of the hand-written checks of real packages ``tensorpact draft`` translates, and how faithfully.

For each function: the share of its checks that became clauses, and on generated arguments, bad ones above all, whether
the drafted contract raises what the function raises. Of the function only the part up to its last check is run, in the
namespace of its module; where the module does not import here, in one made of those of its statements that do. A
function that asks for CUDA is handed fake tensors that say they are there. A required parameter of which nothing says
what it is counts as an int or a text. Packages that are not installed are skipped.

    python benchmarks/drafts.py [--only TEXT] [--show] [--out benchmarks/results/drafts.json]
    python benchmarks/drafts.py --choose

The functions stand in ``draft_cases/targets.txt``, which ``--choose`` writes anew by the rule in
``draft_cases/choice.py``. Each is measured in a process of its own, which ends after ``LIMIT`` seconds at the latest;
one that does counts as not compared. ``--only`` measures the functions whose name holds the text and prints them; only
a whole run is written down.
"""

import argparse
import contextlib
import datetime as dt
import importlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import platform
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # modules of kernels want it: imported once, before the processes part
from draft_cases.choice import chosen
from draft_cases.measure import measure
from draft_cases.original import quiet

from tensorpact._draft import Draft, draft

HERE = Path(__file__).parent
TARGETS = HERE / "draft_cases" / "targets.txt"
#: Package to the distribution that brings it, where that has another name.
DISTRIBUTIONS = {"fla": "fla-core", "quack": "quack-kernels", "flashinfer": "flashinfer-python"}
#: Wall seconds for one function, and as many for the import of its module.
LIMIT = 40.0


def distribution(package: str) -> str:
    """Name under which a package is installed."""
    return DISTRIBUTIONS.get(package, package.replace("_", "-"))


def measured(made: Draft) -> dict[str, Any]:
    """Figures of one draft, from a process of its own that ends in time.

    Args:
        made: The draft.
    """
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_report, args=(made, sender), daemon=True)
    child.start()
    sender.close()
    row: dict[str, Any] = {"target": made.target, "checks": len(made.checks), "translated": made.translated}
    row |= {"compared": 0, "equal": 0}
    try:
        if receiver.poll(LIMIT):
            return receiver.recv()
        return row | {"not_run": f"not done in {LIMIT:.0f} s"}
    except EOFError:
        return row | {"not_run": "its process ended"}
    finally:
        child.kill()
        child.join()


def preload(module: str) -> None:
    """Import a module for all processes to come, as far as it imports here, in limited time.

    Args:
        module: Name of the module.
    """

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    with quiet(), contextlib.suppress(Exception, SystemExit):
        importlib.import_module(module)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _report(made: Draft, sender: Connection) -> None:
    torch.set_num_threads(1)
    try:
        row = measure(made)
    except Exception as bad:  # noqa: BLE001 - a draft that does not run is a result
        row = {"target": made.target, "checks": len(made.checks), "translated": made.translated, "compared": 0}
        row |= {"equal": 0, "not_run": f"{type(bad).__name__}: {bad}"[:300]}
    sender.send(row)


def shown(made: Draft, row: dict[str, Any]) -> None:
    """Print a draft and where it differs, one example of each kind."""
    print(made.text)
    kinds: dict[str, str] = {}
    for example in row.get("examples", ()):
        kinds.setdefault(example.partition(":")[2][:60], example)
    for example in list(kinds.values())[:12]:
        print("   ", example[:700])
    print(json.dumps({k: v for k, v in row.items() if k != "examples"}, indent=1))


def main() -> None:
    """Measure, print a line for each function, write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "drafts.json")
    options = parser.parse_args()
    if options.choose:
        TARGETS.write_text("".join(f"{target}\n" for target in chosen()), encoding="utf-8")
        return
    begun = time.perf_counter()
    rows: list[dict[str, Any]] = []
    absent: list[str] = []
    versions: dict[str, str] = {}
    for target in TARGETS.read_text(encoding="utf-8").split():
        package = target.partition(":")[0].partition(".")[0]
        if options.only not in target:
            continue
        if importlib.util.find_spec(package) is None:
            absent.append(target)
            continue
        versions[package] = importlib.metadata.version(distribution(package))
        start = time.perf_counter()
        made = draft(target)
        preload(made.source.module)
        row = measured(made)
        if options.show:
            shown(made, row)
        row["examples"] = row.get("examples", [])[:2]
        rows.append(row)
        seconds = time.perf_counter() - start
        said = f"{target} {row['translated']}/{row['checks']} alike {row['equal']}/{row['compared']}"
        print(f"{said} witnessed {row.get('witnessed', 0)} {seconds:.1f}s {row.get('not_run', '')}", flush=True)
    sums = {key: sum(r[key] for r in rows) for key in ("checks", "translated", "compared", "equal")}
    compared = sum(r["compared"] > 0 for r in rows)
    print(f"{len(rows)} functions, {compared} compared, {len(absent)} absent; {time.perf_counter() - begun:.0f} s")
    print(f"{sums['translated']}/{sums['checks']} checks translated, {sums['equal']}/{sums['compared']} calls alike")
    if not options.only:
        report = {
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "packages": versions,
            "absent": absent,
            "functions": rows,
        }
        options.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
