"""The packed attention kernels in Triton's interpreter: every case of the subprocess is a test of its own."""

import pathlib

import interpreted

pytestmark, results, test_case = interpreted.cases_as_tests(
    pathlib.Path(__file__).with_name("_interpreter_packed_attention.py")
)
