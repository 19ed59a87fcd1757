"""Every kernel on a GPU, on numbers that point outside their tensors: no guard is touched, none shows."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")

import hostile

from tensorpact_kernels.packed_attention.launch import TileConfig

PORTABLE, HOPPER = hostile.portable(), hostile.hopper()
SCRIPT = pathlib.Path(__file__).with_name("_sanitized_memory_safety.py")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
on_hopper = pytest.mark.skipif(
    not hostile.hopper_runs(), reason="needs a Hopper device and a Triton with the Gluon that its kernels use"
)


@pytest.mark.parametrize("name", PORTABLE)
def test_portable(name):
    hostile.check(PORTABLE[name], "cuda", rounds=4)


@on_hopper
@pytest.mark.parametrize("name", HOPPER)
def test_hopper(name):
    hostile.check(HOPPER[name], "cuda", rounds=4)


@pytest.mark.parametrize("causal", [False, True])
def test_boundaries_that_run_backwards(causal):
    hostile.packed_backwards("cuda", config=TileConfig(64, 32, 4, 2), causal=causal)


@on_hopper
@pytest.mark.parametrize("causal", [False, True])
def test_boundaries_that_run_backwards_on_hopper(causal):
    hostile.packed_backwards("cuda", path="hopper", causal=causal)


def test_a_cache_that_rolls():
    hostile.rolled("cuda")


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on the PATH")
@pytest.mark.parametrize("path", ["portable", pytest.param("hopper", marks=on_hopper)])
def test_under_compute_sanitizer(path):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        # The tool sees accesses of single allocations only where torch does not keep memory for later.
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }
    command = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", sys.executable, str(SCRIPT), path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "ran every scenario" in done.stdout
