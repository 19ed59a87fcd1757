"""Gluon under one set of names: it is experimental, and releases of Triton have renamed parts of it."""

# Gluon has no stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

copy_to_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
"""Starts copying from global to shared memory; ``async_load`` from triton 3.9 on."""

barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # pyright: ignore[reportAttributeAccessIssue]
"""Waits for all warps of a program; ``barrier`` from triton 3.7 on."""
