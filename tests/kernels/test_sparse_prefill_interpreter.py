"""The sparse attention kernels in Triton's interpreter: every case of the subprocess is a test of its own."""

import pathlib

import pytest

pytest.importorskip("numpy")
pytest.importorskip("triton")

import interpreted  # numpy and triton may be missing

SCRIPT = pathlib.Path(__file__).with_name("_interpreter_sparse_prefill.py")

pytestmark = pytest.mark.skipif(
    not interpreted.loops_work(), reason="this Triton's interpreter cannot loop with this NumPy"
)


@pytest.fixture(scope="session")
def results():
    return interpreted.run(SCRIPT)


@pytest.mark.parametrize("name", interpreted.case_names(SCRIPT))
def test_case(name, results):
    interpreted.expect_passed(name, results)
