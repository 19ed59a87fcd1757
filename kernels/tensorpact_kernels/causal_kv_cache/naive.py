"""The update of a cache as one would write it down: a clone, a shift, a write, a slice.

This is what the kernels and the moving window are compared with, and what the benchmark takes for the public form.
"""

from typing import Any

import torch
from torch import Tensor

from tensorpact_contracts._causal_kv_cache_plan import plan_write, visible_ranges

from .view import CausalAttentionKVView, select


def naive_update_and_get_attention_kv(
    self: Any,
    *,
    key: Tensor,
    value: Tensor,
    current_chunk_start: int,
    cache_head_start: int | None = None,
    recent_window_tokens: int | None = None,
    debug_name: str = "causal KV cache",
) -> CausalAttentionKVView:
    """Write a chunk into a cache and return what it may attend to.

    Args:
        self: The cache; its buffers and ends are written, its pin moves.
        key: Keys of the chunk.
        value: Values of the chunk.
        current_chunk_start: Global position of the first token.
        cache_head_start: First head of the slice that the chunk brings; all heads where it brings all.
        recent_window_tokens: Tokens in front of the chunk that stay visible, in place of the attention window.
        debug_name: Not read.
    """
    write = plan_write(self, key.shape[1], current_chunk_start)
    first = cache_head_start or 0
    heads = slice(first, first + key.shape[2])
    if write.capacity > self.cache_size:
        spare = write.capacity - self.cache_size
        self.k, self.v = (torch.cat([t, t.new_zeros(t.shape[0], spare, *t.shape[2:])], 1) for t in (self.k, self.v))
        self.cache_size, self.attention_window_size = write.capacity, write.window
    seen: list[Tensor] = []
    for buffer, chunk in ((self.k, key), (self.v, value)):
        if write.evicted:
            sink, kept = write.sink, write.previous_local - write.evicted - write.sink
            if kept > 0:
                moved = buffer[:, sink + write.evicted : write.previous_local, heads].clone()
                buffer[:, sink : sink + kept, heads] = moved
        buffer[:, write.start : write.end, heads] = chunk.detach()
        seen.append(select(buffer[:, :, heads], visible_ranges(write, recent_window_tokens)))
    if write.pin_moved:
        self.pinned_start = write.pin.start
    self.write_indices(global_end_index=write.global_end, local_end_index=write.local_end)
    return CausalAttentionKVView(seen[0], seen[1], write.start, write.end, write.local_end, write.global_end)
