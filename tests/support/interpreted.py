"""Runs a script of cases in Triton's interpreter, in a process of its own: Triton chooses it once, at import.

The script holds ``CASES``, a dict from a name to a function and its keyword arguments, and ends with
``interpreted.main(CASES)``, which prints one JSON line a case.
"""

import importlib.util
import json
import os
import subprocess
import sys
import traceback

import pytest

# A test module that imports this one is skipped where they are missing.
np = pytest.importorskip("numpy")
triton = pytest.importorskip("triton")


def loops_work():
    """Triton's interpreter before 3.7 takes int() of one-element arrays, which newer NumPy refuses."""
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 7):
        return True
    try:
        int(np.zeros(1, dtype=int))
    except TypeError:
        return False
    return True


def case_names(script):
    """Return the names of a script's cases, without running them."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.CASES)


def run(script, timeout=300):
    """Return the error text of each case that ran, None where it passed, and what the process said on stderr."""
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["case"]: line["error"] for line in lines} | {"stderr": done.stderr}


def expect_passed(name, results):
    """Fail where a case did not pass, or was not reached."""
    if name not in results:
        pytest.fail(f"the interpreter run ended before this case:\n{results['stderr'][-4000:]}", pytrace=False)
    if results[name]:
        pytest.fail(results[name], pytrace=False)


def cases_as_tests(script, timeout=300):
    """Return what a script's test module has: ``pytestmark``, ``results``, and ``test_case``, a test for each case."""

    @pytest.fixture(scope="session")
    def results():
        return run(script, timeout)

    @pytest.mark.parametrize("name", case_names(script))
    def test_case(name, results):
        expect_passed(name, results)

    loops = pytest.mark.skipif(not loops_work(), reason="this Triton's interpreter cannot loop with this NumPy")
    return loops, results, test_case


def main(cases):
    """Run every case and print what became of it."""
    for name, (function, arguments) in cases.items():
        try:
            function(**arguments)
            error = None
        except Exception:  # noqa: BLE001  the report is the result
            error = traceback.format_exc()
        print(json.dumps({"case": name, "error": error}), flush=True)  # noqa: T201
