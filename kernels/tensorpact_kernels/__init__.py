"""Attention and linear-attention entry points with contracts; CUDA tensors run Triton, CPU tensors the reference."""

from .packed_attention.entry import fused_infer_attention_varlen, fused_infer_attention_varlen_causal
from .sparse_prefill.entry import sparse_attn_v4_paged_decode, sparse_attn_v4_paged_prefill

__all__ = [
    "fused_infer_attention_varlen",
    "fused_infer_attention_varlen_causal",
    "sparse_attn_v4_paged_decode",
    "sparse_attn_v4_paged_prefill",
]
