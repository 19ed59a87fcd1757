"""Packed attention on an NPU, as far as it can be tested without one: every case of the subprocess is a test."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("_npu_packed_attention.py")
CASES = re.findall(r"^@case\ndef (\w+)", SCRIPT.read_text(), re.MULTILINE)


@pytest.fixture(scope="session")
def results():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    run = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {line["case"]: line["error"] for line in lines} | {"stderr": run.stderr}


@pytest.mark.parametrize("name", CASES)
def test_case(name, results):
    if name not in results:
        pytest.fail(f"the run ended before this case:\n{results['stderr'][-4000:]}", pytrace=False)
    if results[name]:
        pytest.fail(results[name], pytrace=False)


def test_every_case_is_run():
    assert len(CASES) == 7


@pytest.mark.skipif(importlib.util.find_spec("torch_npu") is None, reason="torch_npu is not installed")
def test_the_operator_takes_the_arguments_that_are_passed():
    import torch
    import torch_npu  # noqa: F401  # pyright: ignore[reportMissingImports]

    schema = str(torch.ops.npu.npu_fused_infer_attention_score.default._schema)
    for name in ("actual_seq_lengths", "actual_seq_lengths_kv", "num_key_value_heads", "softmax_lse_flag"):
        assert name in schema
