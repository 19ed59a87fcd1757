"""The packed attention kernels in Triton's interpreter: every case of the subprocess is a test of its own."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

numpy = pytest.importorskip("numpy")
triton = pytest.importorskip("triton")

SCRIPT = pathlib.Path(__file__).with_name("_interpreter_packed_attention.py")


def loops_work():
    """Triton's interpreter before 3.7 takes int() of one-element arrays, which newer NumPy refuses."""
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 7):
        return True
    try:
        int(numpy.zeros(1, dtype=int))
    except TypeError:
        return False
    return True


pytestmark = pytest.mark.skipif(not loops_work(), reason="this Triton's interpreter cannot loop with this NumPy")


def case_names():
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.CASES)


@pytest.fixture(scope="session")
def results():
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {line["case"]: line["error"] for line in lines} | {"stderr": run.stderr}


@pytest.mark.parametrize("name", case_names())
def test_case(name, results):
    if name not in results:
        pytest.fail(f"the interpreter run ended before this case:\n{results['stderr'][-4000:]}", pytrace=False)
    if results[name]:
        pytest.fail(results[name], pytrace=False)
