"""Rows of a pool, gathered by a Triton kernel."""

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor

from .device import gather_kernel


def gather_rows(pool: Float[Tensor, "P D"], rows: Int[Tensor, " N"]) -> Float[Tensor, "N D"]:
    """Copy rows of a pool; a row that does not exist comes out as zeros."""
    if pool.ndim != 2:
        raise ValueError(f"gather_rows: pool must be [rows, columns], got {pool.ndim} axes")
    if pool.stride(1) != 1:
        raise ValueError(f"gather_rows: the columns of pool must be dense, their stride is {pool.stride(1)}")
    if rows.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"gather_rows: rows must be int32 or int64, got {rows.dtype}")
    if rows.device != pool.device:
        raise ValueError(f"gather_rows: rows is on {rows.device}, pool on {pool.device}")
    out = pool.new_empty((rows.numel(), pool.shape[1]))
    block = triton.next_power_of_2(max(1, pool.shape[1]))
    if out.numel():
        gather_kernel[(out.shape[0],)](pool, rows, out, *pool.shape, pool.stride(0), out.stride(0), block)
    return out
