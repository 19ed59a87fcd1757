"""Sparse attention over a paged pool: prefill and decode."""
