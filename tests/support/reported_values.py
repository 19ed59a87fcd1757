"""What public reports say of numbers inside tensors: a call of every entry point that is right, and what breaks it.

The keys are the ids of the reports; a word behind one tells two entry points apart. Cases with the error None are right
although they look odd.
"""

import inspect
from typing import Any

import torch

from tensorpact_contracts import flash_attention, packed_attention, replayssm, sparse_prefill
from tensorpact_kernels import (
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    fused_infer_attention_varlen,
    fused_recurrent_kda_replayssm_decode,
    sparse_attn_v4_paged_decode,
    sparse_attn_v4_paged_prefill,
)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def half(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16)


PREFILL = {
    "q": half(3, 6, 16),
    "unified_kv": half(8, 16),
    "kv_indices_prefix": ints(0, 7, -1, 3),
    "kv_indptr_prefix": ints(0, 2, 2, 4),
    "kv": half(3, 16),
    "kv_indices_extend": ints(0, 0, 1, 0, 1, 2),
    "kv_indptr_extend": ints(0, 1, 3, 6),
    "attn_sink": torch.randn(6),
    "softmax_scale": 0.25,
}
DECODE = {
    "q": half(3, 6, 128),
    "unified_kv": half(8, 128),
    "kv_indices": ints(0, 7, 5, 3),
    "kv_indptr": ints(0, 2, 2, 4),
    "attn_sink": torch.randn(6),
    "softmax_scale": 0.25,
}
REPLAY = {
    "mixed_qkv": torch.randn(3, 96),
    "a": torch.randn(3, 2, 16),
    "b": torch.randn(3, 2),
    "A_log": torch.zeros(2),
    "dt_bias": torch.zeros(2, 16),
    "scale": 0.25,
    "initial_state": torch.zeros(6, 2, 32, 16),
    "d_cache": torch.zeros(6, 2, 4, 32),
    "k_cache": torch.zeros(6, 1, 4, 16),
    "g_cache": torch.zeros(6, 2, 4, 16),
    "out": torch.zeros(3, 1, 2, 32),
    "ssm_state_indices": ints(1, 3, 5),
    "write_pos": ints(0, 3, 1),
}
PACKED = {**dict.fromkeys("qkv", half(5, 4, 16)), "cu_seqlens_q": ints(0, 3, 5), "cu_seqlens_k": ints(0, 3, 5)}
VARLEN = {**PACKED, "max_seqlen_q": 3, "max_seqlen_k": 3, "causal": True}
CACHED = {
    "q": half(3, 1, 8, 16),
    "k_cache": half(7, 4, 2, 16),
    "v_cache": half(7, 4, 2, 16),
    "page_table": ints(0, 1, -1, -1, -1, 2, -1, -1, -1, -1, 3, 4, 5, -1, -1).view(3, 5),
    "cache_seqlens": ints(5, 3, 9),
    "causal": True,
}
ROWS = {
    "q": half(3, 2, 6, 16),
    "k_cache": half(5, 11, 2, 16),
    "v_cache": half(5, 11, 2, 16),
    "cache_seqlens": ints(5, 0, 9),
    "cache_batch_idx": ints(4, 0, 2),
}
QUERIES = {"q": half(7, 6, 16), "cu_seqlens_q": ints(0, 2, 4, 7), "max_seqlen_q": 4}
NEW = {"k": half(3, 1, 2, 16), "v": half(3, 1, 2, 16)}
NEW_PACKED = {"k": half(2, 2, 16), "v": half(2, 2, 16), "cu_seqlens_k_new": ints(0, 1, 2, 2)}
TURNED = {**QUERIES, **NEW, "rotary_cos": half(11, 8), "rotary_sin": half(11, 8), "causal": True}
ENTRIES = {
    "varlen": (flash_attn_varlen_func, VARLEN),
    "cached": (flash_attn_with_kvcache, CACHED),
    "rows": (flash_attn_with_kvcache, ROWS),
    "prefill": (sparse_attn_v4_paged_prefill, PREFILL),
    "replay": (fused_recurrent_kda_replayssm_decode, REPLAY),
    "packed": (fused_infer_attention_varlen, PACKED),
    "decode": (sparse_attn_v4_paged_decode, DECODE),
}
CUT = "{} is {}, but there are {} tokens to cut"
END = "{} must end at the packed token count {}, got {}"
REPORTED = {
    "R29": ("packed", {"cu_seqlens_q": ints(1, 3, 5)}, packed_attention.BOUNDARIES_START,
        "cu_seqlens_q must start with 0 and contain at least one sequence"),
    "R31": ("packed", dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), ints(0, 5, 10, 15)),
        packed_attention.BOUNDARIES_END, END.format("cu_seqlens_q", 5, 15)),
    "R33": ("packed", {"k": half(5, 4, 16)[:2], "v": half(5, 4, 16)[:2]},
        packed_attention.BOUNDARIES_END, END.format("cu_seqlens_k", 2, 5)),
    "R30": ("packed", dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), ints(0, 4, 3, 5)),
        packed_attention.BOUNDARIES_ORDER, "cu_seqlens_q must be non-decreasing"),
    "R13": ("packed", {**dict.fromkeys("qkv", half(4, 5, 16))},
        packed_attention.BOUNDARIES_END, END.format("cu_seqlens_q", 4, 5)),
    "R38": ("prefill", {"kv_indptr_prefix": ints(0, 2, 1, 4)}, sparse_prefill.INDPTR_VALUES,
        "kv_indptr_prefix[2] is 1, expected at least the entry before it, 2: offsets never decrease and stay inside the"
        " index list"),
    "R39": ("prefill", {"kv_indices_prefix": ints(0, 99, -1, 3)}, sparse_prefill.INDEX_RANGE,
        "kv_indices_prefix[1] is 99, but there are 8 rows to take; a negative index is skipped"),
    "R39-decode": ("decode", {"kv_indices": ints(0, 99, -1, 3)}, sparse_prefill.DECODE_INDEX_RANGE,
        "kv_indices[1] is 99, expected below P = 8: paged decode takes a row for every entry and skips none"),
    "R39-decode-negative": ("decode", {"kv_indices": ints(0, 7, -1, 3)}, sparse_prefill.DECODE_INDEX_RANGE,
        "kv_indices[2] is -1, expected at least 0: paged decode takes a row for every entry and skips none"),
    "R39-negative": ("prefill", {"kv_indices_prefix": ints(0, -2, -1, 3)}, None, ""),
    "R40": ("replay", {"ssm_state_indices": ints(1, 6, 5)}, replayssm.SLOT_RANGE,
        "`ssm_state_indices[1]` is 6, but the pool has 6 slots; a negative slot is padding."),
    "3-two-rows-of-one-slot": ("replay", {"ssm_state_indices": ints(1, 5, 5)}, replayssm.SLOT_REPEATED,
        "`ssm_state_indices[2]` is 5, as in a row before it; two rows would write one slot at once."),
    "R41": ("replay", {"write_pos": ints(4, 0, 1)}, replayssm.WRITE_POS_RANGE,
        "`write_pos[0]` is 4, but a ring of 4 tokens is written at 0 to 3."),
    "R29-flash": ("varlen", {"cu_seqlens_q": ints(1, 3, 5)}, flash_attention.BOUNDARIES_ORDER,
        "cu_seqlens_q[0] is 1, expected 0 at the start: boundaries begin at 0 and never decrease"),
    "R31-flash": ("varlen", dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), ints(0, 5, 10, 15)),
        flash_attention.BOUNDARIES_END, CUT.format("cu_seqlens_q[3]", 15, 5)),
    "R33-flash": ("varlen", {"k": half(5, 4, 16)[:2], "v": half(5, 4, 16)[:2]}, flash_attention.BOUNDARIES_END,
        CUT.format("cu_seqlens_k[2]", 5, 2)),
    "R34": ("varlen", {"max_seqlen_k": 2}, flash_attention.LONGER,
        "sequence 0 of cu_seqlens_k has 3 tokens, but the longest was said to have 2"),
    "used-too-many": ("varlen", {"seqused_q": ints(3, 3)}, flash_attention.USED_RANGE,
        "seqused_q[1] is 3, expected at most the 2 rows of sequence 1 in cu_seqlens_q: no more tokens can be used than "
        "there are"),
    "R35": ("cached", {"cache_seqlens": ints(21, 3, 9)}, flash_attention.LENGTHS_RANGE,
        "cache_seqlens[0] is 21, but a row holds 0 to 20 tokens"),
    "R37": ("cached", {"page_table": ints(7, *CACHED["page_table"].view(-1)[1:]).view(3, 5)},
        flash_attention.PAGE_RANGE, "page_table[0, 0] is 7, but the cache has 7 pages, and tokens lie in this one"),
    "f4-one-length": ("cached", {"cache_seqlens": 5}, flash_attention.PAGE_RANGE,
        "page_table[1, 1] is -1, but the cache has 7 pages, and tokens lie in this one"),
    "f2-packed": ("rows", {"k": half(5, 2, 16), "v": half(5, 2, 16), "cu_seqlens_k_new": ints(0, 2, 2, 5)},
        flash_attention.APPEND_RANGE, "sequence 2 would have 12 tokens with its new ones, but a row has 11 slots"),
    "f6": ("rows", {"k": half(3, 1, 2, 16), "v": half(3, 1, 2, 16), "cache_batch_idx": ints(4, 0, 4)},
        flash_attention.CACHE_ROW_REPEATED,
        "cache_batch_idx[2] is 4, as for a sequence before it; both would append to one row at once"),
    "f13-one-length": ("rows", {**TURNED, "cache_seqlens": 9}, flash_attention.ROTARY_RANGE,
        "cu_seqlens_q leads sequence 2 to 12, but rotary_cos has 11 rows: positions are its rows, from 0 on"),
    "f13-packed": ("rows", {**TURNED}, flash_attention.ROTARY_RANGE,
        "cu_seqlens_q leads sequence 2 to 12, but rotary_cos has 11 rows: positions are its rows, from 0 on"),
    "f13-no-tokens": ("rows", {**TURNED, **NEW_PACKED, **dict.fromkeys(("rotary_cos", "rotary_sin"), half(8, 8)),
        "cu_seqlens_q": ints(0, 3, 7, 7)}, None, ""),
    "f13-no-start": ("rows", {**TURNED, **NEW_PACKED, "cu_seqlens_q": ints(0, 3, 7, 7),
        "rotary_seqlens": ints(3, 2, -1)}, None, ""),
    "f13-values-alone": ("rows", {**TURNED, "q": None, "qv": TURNED["q"], "only_qv": True}, None, ""),
    "f19-packed-on-both-sides": ("rows", {**QUERIES, **NEW_PACKED, "attention_chunk": 4, "cache_seqlens": 2},
        flash_attention.CHUNK_KEYS,
        "attention_chunk counts from the first key, but sequence 2 has 3 queries and 2 keys"),
    "f19-packed": ("rows", {**QUERIES, "attention_chunk": 4}, flash_attention.CHUNK_KEYS,
        "attention_chunk counts from the first key, but sequence 1 has 2 queries and 0 keys"),
    "f4-a-window-over-the-row": ("cached", {"window_size": (19, 0), "cache_seqlens": ints(5, 5, 9)},
        flash_attention.PAGE_RANGE, "page_table[1, 1] is -1, but the cache has 7 pages, and tokens lie in this one"),
    "A05": ("varlen", {**dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), ints(0, 3)), "allow_padded_tail": True},
        None, ""),
    "A08": ("cached", {"page_table": ints(0, 1, 9, 9, 9, 2, 9, 9, 9, 9, 3, 4, 5, -9, 9).view(3, 5)}, None, ""),
    "A19": ("replay", {"ssm_state_indices": ints(-1, 3, 5), "write_pos": ints(9, 0, 1)}, None, ""),
    "A19-indices": ("prefill", {"kv_indices_prefix": ints(-7, -1, -1, 3)}, None, ""),
    "A20": ("prefill", {"kv_indptr_prefix": ints(1, 2, 2, 4)}, None, ""),
    "A29": ("prefill", {"kv_indices_prefix": ints(0, 7, -1, 3, 99, 99)}, None, ""),
    "A03-flash": ("varlen", dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), ints(0, 0, 3, 3, 5, 5)), None, ""),
    "R13-flash": ("varlen", dict.fromkeys("qkv", half(4, 5, 16)), flash_attention.BOUNDARIES_END,
        CUT.format("cu_seqlens_q[2]", 5, 4)),
    "R30-flash": ("varlen", {"cu_seqlens_q": ints(0, 4, 3, 5), "cu_seqlens_k": ints(0, 4, 4, 5)},
        flash_attention.BOUNDARIES_ORDER,
        "cu_seqlens_q[2] is 3, expected at least the entry before it, 4: boundaries begin at 0 and never decrease"),
    "A06": ("cached", {"cache_seqlens": ints(0, 0, 0), "page_table": ints(*[-1] * 15).view(3, 5)}, None, ""),
    "A28": ("varlen", {"max_seqlen_q": 500, "max_seqlen_k": 4096}, None, ""),
    "A03": ("packed", dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), ints(0, 0, 3, 3, 5, 5)), None, ""),
}  # fmt: skip


def called(name: str, device: str = "cpu") -> tuple[Any, dict[str, Any]]:
    """The function of a case and its arguments, all of them, in memory that is nobody else's."""
    entry, changed, _, _ = REPORTED[name]
    function, right = ENTRIES[entry]
    defaults = {n: p.default for n, p in inspect.signature(function).parameters.items()}
    return function, {n: _moved(x, device) for n, x in {**defaults, **right, **changed}.items()}


def right_call(name: str, device: str = "cpu") -> tuple[Any, dict[str, Any]]:
    """The function of a case, and its arguments before anything was broken."""
    function, right = ENTRIES[REPORTED[name][0]]
    return function, {n: _moved(x, device) for n, x in right.items()}


def _moved(value: Any, device: str) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value._base is None:
        return value.detach().clone().to(device)
    # The memory behind a view goes along, since a view must not be mistaken for it.
    return value._base.detach().clone().to(device).as_strided(value.shape, value.stride(), value.storage_offset())
