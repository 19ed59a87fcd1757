"""Attention over packed sequences: bidirectional and causal."""
