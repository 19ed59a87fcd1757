"""Every kernel on numbers that point outside their tensors: no guard around a tensor is touched, none shows."""

import pathlib

import interpreted

pytestmark, results, test_case = interpreted.cases_as_tests(
    pathlib.Path(__file__).with_name("_interpreter_memory_safety.py")
)
