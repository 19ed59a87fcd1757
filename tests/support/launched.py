"""Compiles what a launcher launches, without a GPU: its calls are recorded, and specialised as they would be there."""

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32", torch.int64: "i64"}

#: What a launch gives to a kernel that reports the numbers it masks; None for each of them where it does not.
FLAG = {"flag_memory": "*i64", "flag_counters": "*i64", "flag_call": "i32"}


class Recorder:
    """Stands in for a kernel and keeps the arguments of each launch."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.launches = []

    def __getitem__(self, grid):
        def launch(*arguments, **constants):
            self.launches.append((grid, arguments, constants))

        return launch


def recorded(monkeypatch, module, *names):
    """Put recorders in the place of a module's kernels."""
    recorders = []
    for name in names:
        recorders.append(Recorder(getattr(module, name)))
        monkeypatch.setattr(module, name, recorders[-1])
    return recorders


def compiled(recorder, number=0, make=ASTSource, **changes):
    """Compile one recorded launch for Hopper.

    ``changes`` replace constants. An argument that has ``description()`` is described by it, as a tensor of the copy
    unit is.
    """
    kernel = recorder.kernel
    _, arguments, constants = recorder.launches[number]
    given = dict(zip(kernel.arg_names, arguments, strict=False)) | constants | changes
    options = {name: value for name, value in given.items() if name not in kernel.arg_names or name == "num_warps"}
    signature, values, attributes = {}, {}, {}
    for position, name in enumerate(kernel.arg_names):
        value, parameter = given[name], kernel.params[position]
        known = value is None or (type(value) is int and value == 1 and not parameter.do_not_specialize)
        if parameter.is_constexpr or known:
            signature[name], values[(position,)] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[name] = f"*{TYPES[value.dtype]}"
            aligned = value.data_ptr() % 16 == 0
        elif isinstance(value, int):
            signature[name] = "i32" if abs(value) < 1 << 31 else "i64"
            aligned = value % 16 == 0 and not parameter.do_not_specialize
        else:
            signature[name] = "fp32" if isinstance(value, float) else value.description()
            aligned = False
        if aligned and not parameter.do_not_specialize_on_alignment:
            attributes[(position,)] = [["tt.divisibility", 16]]
    source = make(fn=kernel, signature=signature, constexprs=values, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
