"""The checker of values compiles for Hopper."""

import pytest

triton = pytest.importorskip("triton")

import torch  # noqa: E402  triton may be missing
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from tensorpact._values import device, table  # noqa: E402
from tensorpact._values.mailbox import HEAD, NONE, RECORD, RING  # noqa: E402
from tensorpact._values.rows import (  # noqa: E402
    BOUND_STEPS,
    COLUMNS,
    DISTINCT,
    FINITE,
    LENGTH_STEPS,
    LIVE,
    MULTIPLE,
    ORDER,
    PLUS_STEPS,
    SAME_EMPTY,
    SPAN,
    STEPS,
)
from tensorpact._values.table import BLOCK, MOST_TENSORS, WORDS  # noqa: E402

pytestmark = pytest.mark.skipif(triton.knobs.runtime.interpret, reason="the interpreter replaces the compiler")


def test_it_compiles():
    kernel = device.check_values_kernel
    types = {"RING": "constexpr", "BLOCK": "constexpr"}
    signature = {name: types.get(name, "i64") for name in kernel.arg_names}
    constants = {(kernel.arg_names.index(name),): value for name, value in (("RING", RING), ("BLOCK", BLOCK))}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 1})
    assert ".target sm_90" in compiled.asm["ptx"]
    assert compiled.metadata.shared <= 4096


def test_host_and_device_agree_on_numbers():
    kinds = {"ORDER": ORDER, "MULTIPLE": MULTIPLE, "DISTINCT": DISTINCT, "FINITE": FINITE, "SAME_EMPTY": SAME_EMPTY}
    kinds |= {"STEPS": STEPS, "BOUND_STEPS": BOUND_STEPS, "PLUS_STEPS": PLUS_STEPS, "LENGTH_STEPS": LENGTH_STEPS}
    layout = {"SPAN": SPAN, "COLUMNS": COLUMNS, "LIVE": LIVE, "WORDS": WORDS, "RECORD": RECORD}
    marks = {"BELOW": table._BELOW, "ABOVE": table._ABOVE, "PAIRS": table._PAIRS}
    marks |= {"NEGATIVE": table._PADDING_NEGATIVE, "EXACT": table._PADDING_EXACT}
    marks |= {"UNSIGNED": table._WIDTHS[torch.uint8]}
    for name, value in {**kinds, **layout, **marks, "MAIL": HEAD, "NONE": NONE}.items():
        assert getattr(device, name).value == value, name
    assert device.INTEGERS[-MOST_TENSORS:] == [f"t{i}" for i in range(MOST_TENSORS)]
