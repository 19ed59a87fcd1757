"""The causal KV cache in Triton's interpreter: every case of the subprocess is a test of its own."""

import pathlib

import interpreted

pytestmark, results, test_case = interpreted.cases_as_tests(
    pathlib.Path(__file__).with_name("_interpreter_causal_kv_cache.py"), timeout=900
)
