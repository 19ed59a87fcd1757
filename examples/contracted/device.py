"""The kernel of ``gather_rows``."""

import triton
import triton.language as tl


@triton.jit
def gather_kernel(pool_ptr, rows_ptr, out_ptr, count, columns, pool_stride, out_stride, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    source = tl.load(rows_ptr + row).to(tl.int64)
    column = tl.arange(0, block)
    known = tl.where((source >= 0) & (source < count), columns, 0)
    values = tl.load(pool_ptr + source * pool_stride + column, mask=column < known, other=0.0)
    tl.store(out_ptr + row * out_stride + column, values, mask=column < columns)
