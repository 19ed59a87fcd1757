"""Rows of a pool, gathered by a Triton kernel."""

from typing import Annotated

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor

from tensorpact import contract
from tensorpact.constraints import Contiguous, DenseLast, OneOf

from .contracts import GATHER_ROWS
from .device import gather_kernel


@contract(GATHER_ROWS)
def gather_rows(
    pool: Annotated[Float[Tensor, "P D"], DenseLast(strict=True)],
    rows: Annotated[Int[Tensor, " N"], OneOf(torch.int32, torch.int64), Contiguous()],
) -> Float[Tensor, "N D"]:
    """Copy rows of a pool; a row that does not exist comes out as zeros."""
    out = pool.new_empty((rows.shape[0], pool.shape[1]))
    block = triton.next_power_of_2(max(1, pool.shape[1]))
    if out.numel():
        gather_kernel[(out.shape[0],)](pool, rows, out, *pool.shape, pool.stride(0), out.stride(0), block)
    return out
