"""I1: device functions survive the import hook: Triton compiles them for Hopper, and its interpreter runs them."""

import json
import os
import pathlib
import subprocess
import sys

import interpreted
import pytest

pytest.importorskip("triton")

SCRIPT = pathlib.Path(__file__).with_name("_hooked_triton.py")


def run(mode: str, folder: pathlib.Path, environment: dict[str, str]) -> dict[str, str | None]:
    (folder / "packages").mkdir()
    command = [sys.executable, str(SCRIPT), mode, str(folder / "packages")]
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["case"]: line["error"] for line in lines}


def test_i1_compiled_for_hopper(tmp_path: pathlib.Path):
    # A cache of its own: what is compiled here is compiled.
    cache = str(tmp_path / "cache")
    found = run("compile", tmp_path, {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache})
    assert {"tensorpact_kernels", "bare", "aliases.tuned", "contracts"} <= found.keys()
    assert {case: error for case, error in found.items() if error} == {}


@pytest.mark.skipif(not interpreted.loops_work(), reason="this Triton's interpreter cannot loop with this NumPy")
def test_i1_interpreted(tmp_path: pathlib.Path):
    found = run("interpret", tmp_path, {"TRITON_INTERPRET": "1"})
    assert {"aliases.by_constexpr", "contracts"} <= found.keys()
    assert any(case.startswith("tensorpact_kernels ") for case in found)
    assert {case: error for case, error in found.items() if error} == {}
