"""Arguments of every entry function for its operator of torch: small, valid, and on the CPU."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Arguments = dict[str, Any]


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def prefill(**more: Any) -> Arguments:
    half, index = torch.bfloat16, torch.int32
    return {
        "q": _random(3, 2, 16, dtype=half),
        "unified_kv": _random(7, 16, dtype=half),
        "kv_indices_prefix": torch.tensor([0, 3, -1, 6], dtype=index),
        "kv_indptr_prefix": torch.tensor([0, 1, 3, 4], dtype=index),
        "kv": _random(5, 16, dtype=half),
        "kv_indices_extend": torch.tensor([0, 1, 4], dtype=index),
        "kv_indptr_extend": torch.tensor([0, 1, 1, 3], dtype=index),
        "attn_sink": _random(2),
        "softmax_scale": 0.25,
        **more,
    }


def decode(**more: Any) -> Arguments:
    renamed = {"kv_indices_prefix": "kv_indices", "kv_indptr_prefix": "kv_indptr"}
    kept = ("q", "unified_kv", *renamed, "attn_sink", "softmax_scale")
    # Prefill has a mark for an entry to skip, the decode has none.
    given = prefill(kv_indices_prefix=torch.tensor([0, 3, 5, 6], dtype=torch.int32))
    return {renamed.get(name, name): value for name, value in given.items() if name in kept} | more


def packed_kda(**more: Any) -> Arguments:
    rows, heads, value_heads, k, v, slots = 3, 2, 4, 8, 5, 9
    return {
        "mixed_qkv": _random(rows, 2 * heads * k + value_heads * v),
        "a": _random(rows, value_heads * k),
        "b": _random(rows, value_heads),
        "A_log": _random(value_heads),
        "dt_bias": _random(value_heads * k),
        "scale": 0.3,
        "initial_state": _random(slots, value_heads, v, k),
        "out": torch.full((rows, 1, value_heads, v), torch.nan),
        "ssm_state_indices": torch.tensor([4, -1, 7], dtype=torch.int32),
        **more,
    }


def replayssm(**more: Any) -> Arguments:
    length = 6
    return packed_kda(
        d_cache=_random(9, 4, length, 5),
        k_cache=_random(9, 2, length, 8),
        g_cache=-_random(9, 4, length, 8).abs(),
        write_pos=torch.tensor([0, 2, 5], dtype=torch.int32),
        **more,
    )


def varlen(**more: Any) -> Arguments:
    return {
        "q": _random(5, 4, 8),
        "k": _random(7, 2, 8),
        "v": _random(7, 2, 6),
        "cu_seqlens_q": torch.tensor([0, 2, 5], dtype=torch.int32),
        "cu_seqlens_k": torch.tensor([0, 3, 7], dtype=torch.int32),
        **more,
    }


def kvcache(**more: Any) -> Arguments:
    half = torch.bfloat16
    return {
        "q": _random(2, 3, 4, 16, dtype=half),
        "k_cache": _random(2, 9, 2, 16, dtype=half),
        "v_cache": _random(2, 9, 2, 12, dtype=half),
        "cache_seqlens": torch.tensor([4, 6], dtype=torch.int32),
        **more,
    }


def appending(**more: Any) -> Arguments:
    return kvcache(
        k=_random(2, 3, 2, 16, dtype=torch.bfloat16),
        v=_random(2, 3, 2, 12, dtype=torch.bfloat16),
        rotary_cos=_random(13, 8, dtype=torch.bfloat16),
        rotary_sin=_random(13, 8, dtype=torch.bfloat16),
        **more,
    )


def paging(**more: Any) -> Arguments:
    return appending(
        k_cache=_random(7, 4, 2, 16, dtype=torch.bfloat16),
        v_cache=_random(7, 4, 2, 12, dtype=torch.bfloat16),
        page_table=torch.tensor([[3, 0, 6], [5, 1, 2]], dtype=torch.int32),
        **more,
    )


def latent(**more: Any) -> Arguments:
    """One tensor of keys and values, and packed queries that score it."""
    packed = {"cu_seqlens_q": torch.tensor([0, 2, 5], dtype=torch.int32), "max_seqlen_q": 3}
    queries = {"q": None, "qv": _random(5, 4, 12, dtype=torch.bfloat16), "only_qv": True}
    return kvcache(k_cache=None, **packed, **queries, **more)


def varlen_func(**more: Any) -> Arguments:
    half = {name: x.to(torch.bfloat16) if x.is_floating_point() else x for name, x in varlen().items()}
    return {**half, "max_seqlen_q": 3, "max_seqlen_k": 4, **more}


CASES: dict[str, tuple[str, Callable[..., Arguments], Arguments]] = {
    "prefill": ("sparse_attn_v4_paged_prefill", prefill, {}),
    "prefill with lse, heads first": (
        "sparse_attn_v4_paged_prefill",
        prefill,
        {"return_lse": True, "q": _random(2, 3, 16, dtype=torch.bfloat16).transpose(0, 1)},
    ),
    "decode": ("sparse_attn_v4_paged_decode", decode, {}),
    "decode with lse": ("sparse_attn_v4_paged_decode", decode, {"return_lse": True}),
    "kda": ("fused_recurrent_kda_packed_decode", packed_kda, {}),
    "replayssm": ("fused_recurrent_kda_replayssm_decode", replayssm, {}),
    "replayssm with flushes": (
        "fused_recurrent_kda_replayssm_decode",
        replayssm,
        {"force_flush": torch.tensor([1, 0, 0], dtype=torch.int32), "lower_bound": -5.0},
    ),
    "varlen": ("fused_infer_attention_varlen", varlen, {}),
    "varlen with lse": (
        "fused_infer_attention_varlen",
        varlen,
        {"return_softmax_lse": True, "cu_seqlens_q_host": (0, 2, 5), "softmax_scale": 1},
    ),
    "causal": ("fused_infer_attention_varlen_causal", varlen, {}),
    "kvcache, appending": ("flash_attn_with_kvcache", appending, {"causal": True}),
    "kvcache, paged": ("flash_attn_with_kvcache", paging, {"window_size": (3, 1), "softmax_scale": 0.1}),
    "kvcache, paged, with lse": ("flash_attn_with_kvcache", paging, {"return_softmax_lse": True, "sinks": _random(4)}),
    "kvcache, queries on values": ("flash_attn_with_kvcache", latent, {}),
    "kvcache, queries on values, with lse": ("flash_attn_with_kvcache", latent, {"return_softmax_lse": True}),
    "flash varlen": ("flash_attn_varlen_func", varlen_func, {"window_size": (2, 0), "softcap": 1.5}),
    "flash varlen, causal with lse": (
        "flash_attn_varlen_func",
        varlen_func,
        {"causal": True, "return_softmax_lse": True},
    ),
    "causal with lse": ("fused_infer_attention_varlen_causal", varlen, {"return_softmax_lse": True}),
}


def split(function: Any, arguments: Arguments) -> tuple[tuple[Any, ...], Arguments]:
    """Arguments as an operator takes them: by place, but for those that are keyword-only."""
    held = {argument.name for argument in function.overload._schema.arguments}
    parameters = {n: p for n, p in inspect.signature(function).parameters.items() if n in held}
    named = {n: v for n, v in arguments.items() if parameters[n].kind is inspect.Parameter.KEYWORD_ONLY}
    placed = [n for n, p in parameters.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    last = max(i for i, n in enumerate(placed) if n in arguments)
    return tuple(arguments.get(n, parameters[n].default) for n in placed[: last + 1]), named


def fresh(arguments: Arguments) -> Arguments:
    """The arguments with tensors of their own, but for `q`, whose strides may matter and which nobody writes."""
    return {n: v.clone() if isinstance(v, Tensor) and n != "q" else v for n, v in arguments.items()}
