"""Clauses on the numbers inside tensors: what they say, and the ways of looking without waiting for a device."""
