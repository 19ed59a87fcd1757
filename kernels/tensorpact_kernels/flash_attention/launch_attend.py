"""Torch side of the portable kernels: their arguments, grids and partial results.

Nothing here reads a tensor's contents, so every launcher can run inside a CUDA graph.
"""

# Triton has no stubs, and the launch options are no parameters of the kernel.
# pyright: reportMissingTypeStubs=false, reportCallIssue=false, reportUnknownVariableType=false

import math

import torch
from torch import Tensor

from tensorpact.reporting import Told, kernel_flag
from tensorpact_kernels._launching import multiprocessors, padded
from tensorpact_kernels.flash_attention.call import Call, Keys, Rotary
from tensorpact_kernels.flash_attention.plan import MAX_SPLITS, TileConfig, choose_splits, merge_columns, tile_config

#: Checks that the kernels make on what they mask, in the order of their device functions.
CHECKS = (
    Told("page_table", "within", "less_than"),
    Told("cache_batch_idx", "within"),
    Told("cache_seqlens", "at_least"),
    Told("cache_seqlens", "at_most"),
    Told("cache_seqlens", "at_most", plus=True),
)

LOG2_E = 1.4426950408889634
Strides = tuple[int, int, int, int]


def attend(call: Call, config: TileConfig | None = None) -> None:
    """Launch the attention, the merge of its shares where there are several, and the clearing of unused rows.

    Args:
        call: What to attend to what.
        config: Tile to use instead of the chosen one.
    """
    from tensorpact_kernels.flash_attention import device

    queries, keys, mask = call.queries, call.keys, call.mask
    heads, key_heads, value_dim = call.out.shape[-2], keys.v.shape[2], keys.v.shape[3]
    if not call.out.numel() and call.lse is None:
        return
    head_dim = 0 if queries.q is None else queries.q.shape[-1]
    group = heads // key_heads
    rows = queries.longest * group
    tile = config or tile_config(rows, head_dim, value_dim, value_queries=queries.qv is not None)
    tiles = math.ceil(rows / tile.block_m)
    blocks = queries.sequences * key_heads * tiles
    splits = shares(call, blocks, tile)
    partial = partials(call, splits)
    cos, sin = (None, None) if call.rotary is None else (call.rotary.cos, call.rotary.sin)
    scale_in, scale_out = scales(call)
    if blocks:
        device.flash_kernel[(blocks * splits,)](
            queries.q,
            queries.qv,
            None if queries.q is None else keys.k,
            keys.v,
            call.out,
            call.lse,
            *partial,
            call.sinks,
            queries.cu_seqlens,
            queries.used,
            keys.cu_seqlens,
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
            queries.sequences if keys.cu_seqlens is not None else keys.rows,
            keys.v.shape[0],
            0 if cos is None else cos.shape[0],
            max(mask.left, 0),
            max(mask.right, 0),
            max(mask.chunk, 1),
            tiles,
            splits,
            *lse_strides(call.lse),
            *strides(queries.q, packed=queries.cu_seqlens is not None),
            *strides(queries.qv, packed=queries.cu_seqlens is not None),
            *strides(keys.k, packed=keys.cu_seqlens is not None),
            *strides(keys.v, packed=keys.cu_seqlens is not None),
            *strides(call.out, packed=queries.cu_seqlens is not None),
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
            PHASES=rows > tile.block_m,
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            BLOCK_D=padded(head_dim) if head_dim else 16,
            BLOCK_V=padded(value_dim),
            STAGES=tile.num_stages,
            UPCAST=not call.out.is_cuda,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    merge(call, partial, early=False)
    clear(call)


def shares(call: Call, blocks: int, tile: TileConfig) -> int:
    """Return how many programs share the keys of one tile of query rows.

    Args:
        call: The call, for the most slots that there can be and the caller's own number.
        blocks: Programs of an unsplit launch.
        tile: The tile of a program.
    """
    most = call.keys.capacity if call.keys.longest is None else min(call.keys.capacity, call.keys.longest)
    steps = max(1, math.ceil(most / tile.block_n))
    if isinstance(call.keys.filled, int) and call.keys.cu_seqlens is None:
        filled = call.keys.filled + (call.keys.new or call.keys.new_tokens)
        steps = max(1, min(steps, math.ceil(filled / tile.block_n)))
    if call.mask.left >= 0:
        # Without an end of the window, the last queries are as far behind as there are any.
        behind = call.mask.right if call.mask.right >= 0 else call.queries.longest
        seen = call.mask.left + 1 + behind + tile.block_m
        steps = max(1, min(steps, math.ceil(seen / tile.block_n) + 1))
    if call.num_splits > 0:
        return min(call.num_splits, MAX_SPLITS, steps)
    return choose_splits(max(1, blocks), steps, tile.resident * multiprocessors(call.out.device))


def partials(call: Call, splits: int) -> tuple[Tensor | None, Tensor | None]:
    """Return float32 room for each share's result and log denominator; none for a single share."""
    if splits == 1:
        return None, None
    rows = call.queries.tokens * call.out.shape[-2]
    device = call.out.device
    acc = torch.empty((rows, splits, call.out.shape[-1]), dtype=torch.float32, device=device)
    return acc, torch.empty((rows, splits), dtype=torch.float32, device=device)


def merge(call: Call, partial: tuple[Tensor | None, Tensor | None], *, early: bool) -> None:
    """Merge the shares of every row into the result.

    Args:
        call: The call.
        partial: What ``partials`` gave, filled.
        early: Let the programs take their places before the attention ends; they wait for its stores.
    """
    from tensorpact_kernels.flash_attention import device_merge

    acc, log2_sum = partial
    if acc is None:
        return
    rows, splits, value_dim = acc.shape
    columns = merge_columns(splits, value_dim)
    packed = call.queries.cu_seqlens is not None
    # Not every backend of Triton knows the option.
    options: dict[str, bool] = {"launch_pdl": True} if early else {}
    device_merge.flash_merge_kernel[(rows * math.ceil(value_dim / columns),)](
        acc,
        log2_sum,
        call.sinks,
        call.out,
        call.lse,
        splits,
        max(1, call.queries.tokens if packed else call.queries.given.shape[1]),
        *lse_strides(call.lse),
        *strides(call.out, packed=packed),
        HEADS=call.out.shape[-2],
        VALUE_DIM=value_dim,
        BLOCK_S=1 << (splits - 1).bit_length(),
        BLOCK_C=columns,
        EARLY=early,
        num_warps=4,
        **options,
    )


def clear(call: Call) -> None:
    """Give zeros and minus infinity to the rows that belong to no sequence."""
    from tensorpact_kernels.flash_attention import device_merge

    queries = call.queries
    packed = queries.cu_seqlens is not None
    if not packed and queries.used is None:
        return
    heads, value_dim = call.out.shape[-2:]
    gaps = queries.sequences + 1 if packed else queries.sequences
    device_merge.clear_kernel[(gaps * heads,)](
        call.out,
        call.lse,
        queries.cu_seqlens,
        queries.used,
        queries.longest,
        queries.tokens,
        queries.sequences,
        *lse_strides(call.lse),
        *strides(call.out, packed=packed),
        HEADS=heads,
        VALUE_DIM=value_dim,
        BLOCK_C=padded(value_dim),
        num_warps=1,
    )


def append(keys: Keys, k: Tensor, v: Tensor, rotary: Rotary | None, sequences: int) -> None:
    """Write new keys, rotated, and values to the slots behind those that are filled.

    Args:
        keys: Key side; its caches are written.
        k: New keys, batch first, or packed by ``keys.cu_new``.
        v: New values, alike.
        rotary: How the keys are rotated.
        sequences: Sequences of the call.
    """
    from tensorpact_kernels.flash_attention import device_append

    packed = keys.cu_new is not None
    tokens = v.shape[0] if packed else v.shape[0] * v.shape[1]
    key_heads, head_dim, value_dim = v.shape[-2], k.shape[-1], v.shape[-1]
    block_h = min(padded(key_heads), max(1, 8192 // max(padded(head_dim), padded(value_dim))))
    programs = tokens * math.ceil(key_heads / block_h)
    if not programs:
        return
    device_append.append_kernel[(programs,)](
        k,
        v,
        keys.k,
        keys.v,
        keys.cu_new,
        keys.filled if isinstance(keys.filled, Tensor) else None,
        keys.batch_idx,
        keys.page_table,
        *((None, None) if rotary is None else (rotary.cos, rotary.sin)),
        rotary_base(keys, rotary),
        sequences,
        1 if packed else v.shape[1],
        0 if isinstance(keys.filled, Tensor) else keys.filled,
        keys.capacity,
        keys.rows,
        keys.v.shape[0],
        0 if rotary is None else rotary.cos.shape[0],
        *strides(k, packed=packed),
        *strides(v, packed=packed),
        *strides(keys.k, packed=False),
        *strides(keys.v, packed=False),
        *((0, 0) if keys.page_table is None else keys.page_table.stride()),
        *((0, 0) if rotary is None else (rotary.cos.stride(0), rotary.sin.stride(0))),
        KEY_HEADS=key_heads,
        HEAD_DIM=head_dim,
        VALUE_DIM=value_dim,
        PAGED=keys.page_table is not None,
        PAGE=keys.page,
        ROTARY_DIM=0 if rotary is None else rotary.dim,
        INTERLEAVED=rotary is not None and rotary.interleaved,
        BLOCK_H=block_h,
        BLOCK_D=padded(head_dim),
        BLOCK_V=padded(value_dim),
        num_warps=4,
    )


def scales(call: Call) -> tuple[float, float]:
    """Return the factor on the products, and the one on what the softmax takes the power of two of."""
    if call.softcap > 0:
        # A hyperbolic tangent by a power of two: 1 - 2 / (2 ** (2 x log2 e) + 1).
        return 2.0 * LOG2_E * call.scale / call.softcap, call.softcap * LOG2_E
    return 1.0, call.scale * LOG2_E


def rotary_base(keys: Keys, rotary: Rotary | None) -> Tensor | None:
    """Return the position of each sequence's first new token, None for one number for all."""
    if rotary is None:
        return None
    if rotary.seqlens is not None:
        return rotary.seqlens
    return keys.filled if isinstance(keys.filled, Tensor) else None


def strides(tensor: Tensor | None, *, packed: bool) -> Strides:
    """Return the strides of batch, token, head and column; packed tokens of all sequences share one batch row."""
    if tensor is None:
        return 0, 0, 0, 0
    if packed and tensor.ndim == 4:
        return 0, tensor.stride(1), tensor.stride(2), tensor.stride(3)
    if packed:
        return 0, tensor.stride(0), tensor.stride(1), tensor.stride(2)
    return tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3)


def lse_strides(lse: Tensor | None) -> tuple[int, int]:
    """Return the strides of batch and head; packed tokens have no batch."""
    if lse is None:
        return 0, 0
    return (0, lse.stride(0)) if lse.ndim == 2 else (lse.stride(0), lse.stride(1))
