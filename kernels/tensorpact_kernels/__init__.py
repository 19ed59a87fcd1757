"""Attention and linear-attention entry points with contracts; CUDA tensors run Triton, CPU tensors the reference."""

from .causal_kv_cache.cross import CrossAttentionKVCache
from .causal_kv_cache.entry import CausalAttentionKVCache, CausalSelfAttentionKVCache
from .causal_kv_cache.packed import QVGPackedCausalKVCache
from .causal_kv_cache.view import CausalAttentionKVView
from .sparse_prefill.entry import sparse_attn_v4_paged_decode, sparse_attn_v4_paged_prefill

__all__ = [
    "CausalAttentionKVCache",
    "CausalAttentionKVView",
    "CausalSelfAttentionKVCache",
    "CrossAttentionKVCache",
    "QVGPackedCausalKVCache",
    "sparse_attn_v4_paged_decode",
    "sparse_attn_v4_paged_prefill",
]
