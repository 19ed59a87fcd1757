"""The kernel of one's own that docs/values.md shows compiles for Hopper, and tells in Triton's interpreter."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("numpy")
triton = pytest.importorskip("triton")

import interpreted  # noqa: E402  numpy and triton may be missing
import recipe  # noqa: E402
from launched import FLAG  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

SCRIPT = pathlib.Path(__file__).with_name("_interpreter_reporting.py")


@pytest.fixture(scope="module")
def results():
    return interpreted.run(SCRIPT)


@pytest.mark.skipif(not interpreted.loops_work(), reason="this Triton's interpreter cannot loop with this NumPy")
@pytest.mark.parametrize("name", interpreted.case_names(SCRIPT))
def test_case(name, results):
    interpreted.expect_passed(name, results)


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="the interpreter replaces the compiler")
def test_it_compiles_for_hopper_with_a_flag_and_without(tmp_path: pathlib.Path):
    kernel = recipe.load(tmp_path).gather_kernel
    types = {"pool": "*fp32", "indices": "*i64", "out": "*fp32", "rows": "i32"}
    atomics = []
    for flag in (FLAG, dict.fromkeys(FLAG)):
        constants = {"D": 4} | {name: None for name, kind in flag.items() if kind is None}
        signature = {n: "constexpr" if n in constants else (types | flag)[n] for n in kernel.arg_names}
        values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=values)
        ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
        assert ".target sm_90" in ptx
        atomics.append(ptx.count("atom."))
    assert atomics[0] > 0
    assert atomics[1] == 0


def test_the_side_of_the_host_loads_no_triton():
    script = """
import sys
import tensorpact.reporting
sys.exit("triton" in sys.modules or "tensorpact.reporting.device" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
