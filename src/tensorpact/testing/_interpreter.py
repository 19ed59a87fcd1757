"""Valid calls of entry points through Triton's interpreter, in a process of their own.

``python -m tensorpact.testing._interpreter MODULE:FUNCTION --seed 0 --examples 4`` prints one JSON line an example and
one for the whole. Triton reads ``TRITON_INTERPRET`` at import, so the interpreter and the compiler exclude each other
in one process.

An entry point comes here where, called plainly, it ran its own registered reference: comparing the two would prove
nothing. Whether Triton took part is not guessed either: kernels are counted as the interpreter runs them.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any


def start(target: str, seed: int, examples: int) -> "subprocess.Popen[str]":
    """Start the interpreter on an entry point.

    Args:
        target: ``module:function``.
        seed: Seed of the arguments.
        examples: How many calls.
    """
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", __name__, target, "--seed", str(seed), "--examples", str(examples)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )


def collect(process: "subprocess.Popen[str]", timeout: float) -> tuple[list[dict[str, Any]], str]:
    """The lines that a started interpreter printed, and the end of what it said on stderr.

    Args:
        process: What :func:`start` returned.
        timeout: Seconds to wait; the process is ended then.
    """
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"\nended after {timeout:.0f} s"
    lines: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return lines, err.strip()[-2000:]


def _count_launches() -> list[int]:
    """A list of one number that grows with each kernel that the interpreter runs."""
    launches = [0]
    try:
        interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    except ImportError:
        return launches
    executor = interpreter.GridExecutor
    original = executor.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        launches[0] += 1
        return original(self, *args, **kwargs)

    executor.__call__ = counted
    return launches


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the examples and print what they gave."""
    parser = argparse.ArgumentParser(prog="python -m tensorpact.testing._interpreter", description=__doc__)
    parser.add_argument("target", help="MODULE:FUNCTION")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=4)
    options = parser.parse_args(arguments)

    import torch

    from . import _accept
    from ._drafts import resolve
    from ._draw import Drawer
    from ._space import Space
    from ._targets import Target, find
    from .hooks import factory_of

    target = find([options.target])[0]
    if not isinstance(target, Target):
        raise target.error
    launches = _count_launches()
    # Fresh memory is filled with NaN then: what a kernel leaves unwritten shows.
    torch.use_deterministic_algorithms(True, warn_only=True)
    drawer = Drawer(Space(target.entry), factory_of(target.entry))
    for i, (draft, _) in enumerate(_accept.examples(drawer, options.seed, options.examples, plain=2)):
        small = drawer.reduced(draft)
        case = replace(resolve(drawer.space, small), backend="triton")
        seed = _accept.example_seed(options.seed, i)
        problem = _accept.check(target.entry, target.function, case, seed, interpreted=True).problem
        line: dict[str, Any] = {"example": i, "error": None, "code": None, "launches": launches[0]}
        if problem is not None:
            from ._witness import program

            level = "warning" if _accept.mixes_dtypes(drawer, case) else "error"
            code = program(target, drawer.space, case, problem.values)
            line |= {"error": problem.message, "level": level, "code": code}
        _print(line)
    _print({"examples": options.examples, "launches": launches[0]})


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
