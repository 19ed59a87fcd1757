"""Torch side of the Hopper decode kernels: when they apply, how they are cut, and their launch."""

# Gluon has no stubs, and the launch options are no parameters of the kernel.
# pyright: reportMissingTypeStubs=false, reportCallIssue=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import math
from typing import Any

import torch
from torch import Tensor

from tensorpact.reporting import kernel_flag
from tensorpact_kernels._launching import padded, runs_on_hopper
from tensorpact_kernels.flash_attention.call import Call
from tensorpact_kernels.flash_attention.launch_attend import (
    CHECKS,
    clear,
    lse_strides,
    merge,
    partials,
    rotary_base,
    scales,
    shares,
    strides,
)
from tensorpact_kernels.flash_attention.plan import TileConfig
from tensorpact_kernels.packed_attention.launch_hopper import columns

MAX_ROWS = 64
"""Query rows of one key head up to which a call is a decode, unless values have more than 256 columns."""

# The kernels, and what describes tensors to their copy unit.
_MODULES = ("tensorpact_kernels.flash_attention.device_hopper_wide", "triton.experimental.gluon.nvidia.hopper")
_MIN_ROWS = 16
_WIDE_ROWS = 32
_WIDE_COLUMNS = 256
_PIECE = 8
_PIECE_BYTES = 16
_MIN_COLUMNS = 64
_MIN_PAGE = 8
_TILE = 64
_SHARED_BYTES = 227 * 1024


def hopper_config(rows: int, head_dim: int, value_dim: int, *, value_queries: bool, box: int = 64) -> TileConfig:
    """Choose the cut: tiles of 64 slots, as many in flight as two programs on a multiprocessor have room for.

    One program on each multiprocessor is enough to read at the rate of the memory, which shares keys among no more
    unless copies are smaller than a tile.

    Args:
        rows: Query rows of one key head, tokens times its heads.
        head_dim: Columns of queries and keys; 0 where keys are not read.
        value_dim: Columns of values.
        value_queries: Whether queries meet values too.
        box: Slots of one copy.
    """
    if is_wide(rows, value_dim):
        # Queries and two tiles of 512 columns fill a multiprocessor.
        return TileConfig(64, 64, 8, 2, 1)
    # With wide values, two programs of 16 rows each beat one that lacks half of its 64, and two tiles beat three.
    wide = columns(value_dim) > _WIDE_COLUMNS
    block_m = _MIN_ROWS if wide else min(padded(rows), MAX_ROWS)
    tile = 2 * 64 * (columns(value_dim) + (columns(head_dim) if head_dim else 0))
    fixed = 2 * block_m * (64 + (columns(head_dim) if head_dim else 0) + (columns(value_dim) if value_queries else 0))
    for resident in (2, 1):
        stages = min(2 if wide else 4, (_SHARED_BYTES // resident - 2048 - fixed) // tile)
        if stages >= 2 or (resident == 1 and stages):
            return TileConfig(block_m, 64, 4, stages, resident if box < _TILE else 1)
    return TileConfig(block_m, 64, 4, 1)


def is_wide(rows: int, value_dim: int) -> bool:
    """Whether query rows, not slots, go on the rows of the product: where many of them share wide values.

    Args:
        rows: Query rows of one key head, tokens times its heads.
        value_dim: Columns of values.
    """
    return rows > _WIDE_ROWS and columns(value_dim) > _WIDE_COLUMNS


def runs(tensor: Tensor) -> bool:
    """Whether the device of a tensor, and the Triton that is there, can run the kernel."""
    return (
        tensor.is_cuda
        and not torch.compiler.is_compiling()
        and all(runs_on_hopper(module, tensor.device.index) for module in _MODULES)
    )


def applies(call: Call) -> bool:
    """Whether the Hopper kernels can run this call.

    They are for decode. Their copy unit wants 16-byte pieces and strides, and pages that are a power of two;
    torch.compile cannot trace a Gluon kernel.

    Args:
        call: What to attend to what.
    """
    keys, queries = call.keys, call.queries
    heads, value_dim = call.out.shape[-2:]
    dims = value_dim, (0 if queries.q is None else queries.q.shape[-1])
    rows = queries.longest * heads // keys.v.shape[2]
    caches = [keys.v] if queries.q is None or keys.k is None else [keys.k, keys.v]
    return (
        keys.cu_seqlens is None
        and rows > 0
        and (rows <= MAX_ROWS if max(dims) <= _WIDE_COLUMNS else value_dim <= 512 and dims[1] <= 64)
        and (keys.page_table is None or (keys.page >= _MIN_PAGE and not keys.page & (keys.page - 1)))
        and keys.capacity > 0
        and keys.v.shape[0] > 0
        and runs(call.out)
        and all(_copies_in_pieces(cache) for cache in caches)
    )


def attend(call: Call, config: TileConfig | None = None) -> None:
    """Launch the decode, the merge of its shares where there are several, and the clearing of unused rows.

    Args:
        call: What to attend to what.
        config: Cut to use instead of the chosen one.
    """
    from tensorpact_kernels.flash_attention import device_hopper, device_hopper_wide

    queries, keys, mask = call.queries, call.keys, call.mask
    heads, key_heads, value_dim = call.out.shape[-2], keys.v.shape[2], keys.v.shape[3]
    head_dim = 0 if queries.q is None else queries.q.shape[-1]
    group = heads // key_heads
    rows = queries.longest * group
    box = keys.page if keys.page_table is not None else _TILE
    cut = config or hopper_config(rows, head_dim, value_dim, value_queries=queries.qv is not None, box=box)
    tiles = math.ceil(rows / cut.block_m)
    blocks = queries.sequences * key_heads * tiles
    splits = shares(call, blocks, cut)
    partial = partials(call, splits)
    packed = queries.cu_seqlens is not None
    box = min(box, cut.block_n) if keys.page_table is not None else cut.block_n
    v_desc = _described(keys.v, box)
    scale_in, scale_out = scales(call)
    cos, sin = (None, None) if call.rotary is None else (call.rotary.cos, call.rotary.sin)
    wide = is_wide(rows, value_dim)
    kernel: Any = device_hopper_wide.hopper_wide_decode_kernel if wide else device_hopper.hopper_decode_kernel
    if blocks:
        kernel[(blocks * splits,)](
            v_desc if keys.k is None or queries.q is None else _described(keys.k, box),
            v_desc,
            queries.q,
            queries.qv,
            call.out,
            call.lse,
            *partial,
            call.sinks,
            queries.cu_seqlens,
            queries.used,
            keys.filled if isinstance(keys.filled, Tensor) else None,
            keys.leftpad,
            keys.batch_idx,
            keys.page_table,
            keys.cu_new,
            cos,
            sin,
            rotary_base(keys, call.rotary),
            *kernel_flag(queries.given, CHECKS),
            scale_in,
            scale_out,
            queries.longest,
            queries.tokens,
            0 if isinstance(keys.filled, Tensor) else keys.filled,
            keys.new,
            keys.new_tokens,
            keys.capacity,
            keys.rows,
            keys.v.shape[0],
            0 if cos is None else cos.shape[0],
            max(mask.left, 0),
            max(mask.right, 0),
            max(mask.chunk, 1),
            tiles,
            splits,
            *lse_strides(call.lse),
            *strides(queries.q, packed=packed),
            *strides(queries.qv, packed=packed),
            *strides(call.out, packed=packed),
            *((0, 0) if keys.page_table is None else keys.page_table.stride()),
            0 if cos is None else cos.stride(0),
            0 if sin is None else sin.stride(0),
            HEADS=heads,
            GROUP=group,
            HEAD_DIM=head_dim,
            VALUE_DIM=value_dim,
            PAGED=keys.page_table is not None,
            PAGE=keys.page,
            LEFT=mask.left >= 0,
            RIGHT=mask.right >= 0,
            CHUNKED=mask.chunk > 0,
            SOFTCAP=call.softcap > 0,
            ROTARY_DIM=0 if call.rotary is None else call.rotary.dim,
            INTERLEAVED=call.rotary is not None and call.rotary.interleaved,
            COUNTS_UP=mask.hides,
            SPLIT=splits > 1,
            BLOCK_M=cut.block_m,
            BLOCK_N=cut.block_n,
            BLOCK_D=columns(head_dim) if head_dim else _MIN_COLUMNS,
            BLOCK_V=columns(value_dim),
            STAGES=cut.num_stages,
            num_warps=cut.num_warps,
        )
    merge(call, partial, early=True)
    clear(call)


def _described(tensor: Tensor, slots: int) -> Any:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    sizes, steps = list(tensor.shape), list(tensor.stride())
    # The stride of an axis of size one has no meaning, but must be a multiple of the piece.
    steps = [step if size > 1 else _PIECE for size, step in zip(sizes[:3], steps[:3], strict=True)]
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    return TensorDescriptor(tensor, sizes, [*steps, 1], [1, slots, 1, columns(sizes[3])], layout)


def _copies_in_pieces(tensor: Tensor) -> bool:
    sizes, steps = tensor.shape, tensor.stride()
    return (
        (steps[3] == 1 or sizes[3] == 1)
        and sizes[3] % _PIECE == 0
        and tensor.data_ptr() % _PIECE_BYTES == 0
        and all(size == 1 or (step > 0 and step % _PIECE == 0) for size, step in zip(sizes[:3], steps[:3], strict=True))
    )
