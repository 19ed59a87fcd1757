"""Gluon under one set of names: it is experimental, and releases of Triton have renamed parts of it."""

# Gluon has no stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma

copy_to_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
"""Starts copying from global to shared memory; ``async_load`` from triton 3.9 on."""

load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
"""Has the copy unit fetch a tile of a described tensor to shared memory; ``async_load`` from triton 3.9 on."""

store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
"""Has the copy unit write a tile from shared memory to a described tensor; ``async_store`` from triton 3.9 on."""

barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # pyright: ignore[reportAttributeAccessIssue]
"""Waits for all warps of a program; ``barrier`` from triton 3.7 on."""
