"""Torch side of flash attention: what the public arguments mean, and which kernels run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from tensorpact_kernels._launching import on_device
from tensorpact_kernels.flash_attention import launch_attend, launch_hopper
from tensorpact_kernels.flash_attention.call import Call, Keys, Queries, Rotary, results
from tensorpact_kernels.flash_attention.plan import TileConfig, mask_of
from tensorpact_kernels.packed_attention.launch import packed_attention_triton

Path = Literal["portable", "hopper", "packed"]
"""Which kernels run: Triton's on any device, the one for decode on Hopper, or those of packed attention."""

# What the copy unit writes at a time.
_PIECE_BYTES = 16


def launch_kvcache(
    q: Tensor | None,
    k_cache: Tensor | None,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int | None = None,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    only_qv: bool = False,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
    score_mod: Callable[..., Any] | None = None,
    aux_tensors: Any = None,
    ver: int = 3,
    out: Tensor | None = None,
    *,
    config: TileConfig | None = None,
    path: Path | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Append new tokens to the cache in place, then attend; everything as ``flash_attn_with_kvcache`` has it.

    The contract has held, and lengths, tables and row numbers are read on the device. What is only a hint has no
    effect here; ``config`` is a tile to use instead of the chosen one, and ``path`` forces the kernels.
    """
    queries = Queries(
        None if only_qv else q,
        qv,
        _dense(cu_seqlens_q),
        None,
        _longest(qv if q is None else q, cu_seqlens_q, max_seqlen_q),
    )
    capacity = v_cache.shape[1] * (1 if page_table is None else page_table.shape[1])
    keys = Keys(
        k_cache,
        v_cache,
        None,
        capacity if cache_seqlens is None else _number_or_dense(cache_seqlens),
        capacity,
        leftpad=_dense(cache_leftpad),
        batch_idx=_dense(cache_batch_idx),
        page_table=page_table,
    )
    rotary = None
    if k is not None and v is not None:
        if cu_seqlens_k_new is None:
            keys = replace(keys, new=v.shape[1])
        else:
            keys = replace(keys, cu_new=_dense(cu_seqlens_k_new), new_tokens=v.shape[0])
        if rotary_cos is not None and rotary_sin is not None:
            rotary = Rotary(_rows(rotary_cos), _rows(rotary_sin), _dense(rotary_seqlens), rotary_interleaved)
    value_dim = v_cache.shape[-1]
    scale = softmax_scale
    if scale is None:
        meets_keys = 0 if only_qv or q is None else q.shape[-1]
        scale = (meets_keys + (value_dim if qv is not None else 0)) ** -0.5
    result, lse = results(queries, value_dim, out, with_lse=return_softmax_lse)
    said = 0 if rotary is None or cu_seqlens_q is None or max_seqlen_q is None else int(max_seqlen_q)
    mask = mask_of(window_size, attention_chunk or 0, capacity, queries.longest, causal=causal, said=said)
    call = Call(queries, keys, result, lse, float(scale), float(softcap), mask, _dense(sinks), rotary, int(num_splits))
    with on_device(result.device):
        if k is not None and v is not None:
            launch_attend.append(keys, k, v, rotary, queries.sequences)
        _attend(call, config, path)
    return result if lse is None else (result, lse)


def launch_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    only_qv: bool = False,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
    score_mod: Callable[..., Any] | None = None,
    aux_tensors: Any = None,
    ver: int = 3,
    out: Tensor | None = None,
    *,
    config: TileConfig | None = None,
    path: Path | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend each sequence's queries to its own keys; everything as ``flash_attn_varlen_func`` has it.

    The contract has held, and boundaries are read on the device. What is only a hint has no effect here; ``config`` is
    a tile to use instead of the chosen one, and ``path`` forces the kernels.
    """
    queries = Queries(
        None if only_qv else q, qv, _dense(cu_seqlens_q), _dense(seqused_q), _longest(q, cu_seqlens_q, max_seqlen_q)
    )
    value_dim = v.shape[-1]
    scale = softmax_scale
    if scale is None:
        scale = (q.shape[-1] + (0 if qv is None else value_dim)) ** -0.5
    result, lse = results(queries, value_dim, out, with_lse=return_softmax_lse)
    packed_k = cu_seqlens_k is not None
    capacity = v.shape[0] if packed_k else v.shape[1]
    mask = mask_of(window_size, attention_chunk, capacity, queries.longest, causal=causal)
    # A call of packed attention, whose kernels are the faster ones; a decode is better off with shares.
    plain = (
        seqused_q is None
        and seqused_k is None
        and qv is None
        and softcap <= 0
        and sinks is None
        and mask.left < 0
        and mask.right <= 0
        and not mask.chunk
        and (out is None or (out.is_contiguous() and out.data_ptr() % _PIECE_BYTES == 0))
    )
    packs = path == "packed" or (path is None and config is None and plain and queries.longest > 1)
    with on_device(result.device):
        if packs and cu_seqlens_q is not None and cu_seqlens_k is not None:
            packed_attention_triton(
                q, k, v, cu_seqlens_q, cu_seqlens_k, float(scale), causal=mask.right == 0, return_lse=lse is not None,
                results=(result, lse),
            )  # fmt: skip
        else:
            keys = Keys(
                k if not packed_k else k[None],
                v if not packed_k else v[None],
                _dense(cu_seqlens_k),
                capacity if seqused_k is None else _number_or_dense(seqused_k),
                capacity,
                longest=int(max_seqlen_k) if packed_k and max_seqlen_k is not None else None,
            )
            call = Call(
                queries, keys, result, lse, float(scale), float(softcap), mask, _dense(sinks), None, int(num_splits),
            )  # fmt: skip
            _attend(call, config, path)
    return result if lse is None else (result, lse)


def _attend(call: Call, config: TileConfig | None, path: Path | None) -> None:
    if path == "hopper" or (path is None and config is None and launch_hopper.applies(call)):
        launch_hopper.attend(call, config)
    else:
        launch_attend.attend(call, config)


def _longest(given: Tensor | None, cu_seqlens: Tensor | None, most: int | None) -> int:
    if given is None:
        return 0
    if cu_seqlens is None:
        return given.shape[1]
    return given.shape[0] if most is None else max(0, min(int(most), given.shape[0]))


def _dense(numbers: Tensor | None) -> Tensor | None:
    """Return a short vector whose numbers are neighbours in memory."""
    return None if numbers is None else numbers.contiguous()


def _rows(table: Tensor) -> Tensor:
    """Return a rotary table whose rows have no gaps between columns."""
    return table if table.stride(1) == 1 else table.contiguous()


def _number_or_dense(lengths: int | Tensor) -> int | Tensor:
    return lengths.contiguous() if isinstance(lengths, torch.Tensor) else int(lengths)
