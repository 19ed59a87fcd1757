"""Rolling key-value caches for causal self-attention over chunks: dense, packed, and a store for cross-attention."""
