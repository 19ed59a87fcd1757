"""Decoding with Kimi Delta Attention: the state alone, or a state with replay rings."""
