"""Attention and linear-attention entry points with contracts; CUDA tensors run Triton, CPU tensors the reference."""

from .causal_kv_cache.cross import CrossAttentionKVCache
from .causal_kv_cache.entry import CausalAttentionKVCache, CausalSelfAttentionKVCache
from .causal_kv_cache.packed import QVGPackedCausalKVCache
from .causal_kv_cache.view import CausalAttentionKVView
from .flash_attention.entry import flash_attn_varlen_func, flash_attn_with_kvcache
from .packed_attention.entry import fused_infer_attention_varlen, fused_infer_attention_varlen_causal
from .replayssm.entry import fused_recurrent_kda_packed_decode, fused_recurrent_kda_replayssm_decode
from .sparse_prefill.entry import sparse_attn_v4_paged_decode, sparse_attn_v4_paged_prefill

helion_fused_recurrent_kda_packed_decode = fused_recurrent_kda_packed_decode
helion_fused_recurrent_kda_replayssm_decode = fused_recurrent_kda_replayssm_decode

__all__ = [
    "CausalAttentionKVCache",
    "CausalAttentionKVView",
    "CausalSelfAttentionKVCache",
    "CrossAttentionKVCache",
    "QVGPackedCausalKVCache",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "fused_infer_attention_varlen",
    "fused_infer_attention_varlen_causal",
    "fused_recurrent_kda_packed_decode",
    "fused_recurrent_kda_replayssm_decode",
    "helion_fused_recurrent_kda_packed_decode",
    "helion_fused_recurrent_kda_replayssm_decode",
    "sparse_attn_v4_paged_decode",
    "sparse_attn_v4_paged_prefill",
]
