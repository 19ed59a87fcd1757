"""The checker of values in Triton's interpreter, from launch to error: every case of the subprocess is a test."""

import pathlib

import interpreted

pytestmark, results, test_case = interpreted.cases_as_tests(pathlib.Path(__file__).with_name("_interpreter_values.py"))
