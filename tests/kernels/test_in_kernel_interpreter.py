"""Kernels that report the numbers they mask, in Triton's interpreter."""

import pathlib

import interpreted

pytestmark, results, test_case = interpreted.cases_as_tests(
    pathlib.Path(__file__).with_name("_interpreter_in_kernel.py")
)
