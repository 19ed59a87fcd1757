"""Attention and linear-attention entry points with contracts; CUDA tensors run Triton, CPU tensors the reference."""

from .sparse_prefill.entry import sparse_attn_v4_paged_decode, sparse_attn_v4_paged_prefill

__all__ = ["sparse_attn_v4_paged_decode", "sparse_attn_v4_paged_prefill"]
