"""Attention with a key-value cache, and over packed sequences, under the public names of flash attention."""
