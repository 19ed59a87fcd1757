"""Caches in several states, and chunks that fit them, for ``tensorpact verify``."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .cross import CrossAttentionKVCache
from .entry import CausalSelfAttentionKVCache
from .packed import QVGPackedCausalKVCache

BATCH, HEADS, DIM, VALUE_DIM = 2, 5, 4, 3


def arguments(name: str, rng: random.Random) -> dict[str, Any]:
    """Arguments of one call, ``self`` included.

    Args:
        name: Name of the contract.
        rng: Source of chance.
    """
    if name == "store":
        return {"self": CrossAttentionKVCache(None, None), "k": _floats(BATCH, 7, HEADS, DIM), "v": _floats(2, 7, 5, 3)}
    if "acked" in name:
        cache, chunk = packed(rng, slices=rng.random() < 0.3)
        return {"self": cache} | (chunk if "update" in name else {"m": 0} if "pin" in name else {})
    cache, chunk = rng.choice(_STATES)(rng)
    if name == "update_and_get_attention_kv":
        return {"self": cache, **chunk}
    if name == "pin_current_chunk":
        return {"self": cache, "m": rng.choice((0, 1, 2))}
    return {"self": cache}


def _floats(*shape: int) -> Tensor:
    return torch.randn(shape)


def cache_of(slots: int, filled: tuple[int, int], *, host: bool = True, **settings: Any) -> CausalSelfAttentionKVCache:
    """A cache with tokens in it.

    Args:
        slots: Slots of its buffers.
        filled: Global and local end.
        host: Whether the ends are known on the host.
        **settings: Further fields.
    """
    return CausalSelfAttentionKVCache(
        _floats(BATCH, slots, HEADS, DIM),
        _floats(BATCH, slots, HEADS, VALUE_DIM),
        torch.tensor([filled[0]]),
        torch.tensor([filled[1]]),
        filled[0] if host else None,
        filled[1] if host else None,
        **settings,
    )


def chunk_of(tokens: int, start: int, heads: int = HEADS, first: int | None = None, **other: Any) -> dict[str, Any]:
    """The arguments of an update.

    Args:
        tokens: Tokens of the chunk.
        start: Global position of the first one.
        heads: Heads that it brings.
        first: First head of the cache that they go to.
        **other: Further arguments.
    """
    return {
        "key": _floats(BATCH, tokens, heads, DIM),
        "value": _floats(BATCH, tokens, heads, VALUE_DIM),
        "current_chunk_start": start,
        "cache_head_start": first,
        **other,
    }


def packed(rng: random.Random, *, slices: bool) -> tuple[QVGPackedCausalKVCache, dict[str, Any]]:
    """A packed cache with two chunks in it, and a chunk that follows or replaces the last.

    Args:
        rng: Source of chance.
        slices: Whether chunks bring some of the heads.
    """
    cache = QVGPackedCausalKVCache(
        batch_size=BATCH,
        cache_size=10,
        num_heads=HEADS,
        head_dim=DIM,
        dtype=torch.float32,
        device="cpu",
        global_end_index=torch.zeros(1, dtype=torch.int64),
        local_end_index=torch.zeros(1, dtype=torch.int64),
        sink_tokens=3,
        attention_window_size=rng.choice((None, 6, 7)),
        quant_args=rng.choice(({}, {"bits": 16})),
    )
    heads = (2, 1) if slices else (HEADS, None)
    for start in (0, 3):
        cache.update_and_get_attention_kv(**_of_one_width(chunk_of(3, start, *heads)))
    return cache, _of_one_width(chunk_of(3, rng.choice((3, 6)), *heads))


def _of_one_width(chunk: dict[str, Any]) -> dict[str, Any]:
    return {**chunk, "value": torch.randn_like(chunk["key"])}


State = Callable[[random.Random], tuple[CausalSelfAttentionKVCache, dict[str, Any]]]


def _appending(rng: random.Random) -> tuple[CausalSelfAttentionKVCache, dict[str, Any]]:
    return cache_of(8, (3, 3)), chunk_of(3, 3)


def _on_the_device(rng: random.Random) -> tuple[CausalSelfAttentionKVCache, dict[str, Any]]:
    return cache_of(8, (4, 4), host=False), chunk_of(3, 4)


def _rolling(rng: random.Random) -> tuple[CausalSelfAttentionKVCache, dict[str, Any]]:
    cache = cache_of(8, (14, 8), sink_tokens=2, headroom=rng.choice((None, 0, 4)))
    return cache, chunk_of(3, 14, recent_window_tokens=rng.choice((None, 1)))


def _rewriting(rng: random.Random) -> tuple[CausalSelfAttentionKVCache, dict[str, Any]]:
    return cache_of(9, (15, 9), sink_tokens=2), chunk_of(3, 8)


def _sliced(rng: random.Random) -> tuple[CausalSelfAttentionKVCache, dict[str, Any]]:
    cache = cache_of(6, (0, 0))
    cache.update_and_get_attention_kv(**chunk_of(4, 0, 2, 1))
    return cache, chunk_of(3, 4, 2, 1)


def _growing(rng: random.Random) -> tuple[CausalSelfAttentionKVCache, dict[str, Any]]:
    return cache_of(4, (3, 3), allow_growth=True), chunk_of(3, 3)


def _pinned(rng: random.Random) -> tuple[CausalSelfAttentionKVCache, dict[str, Any]]:
    settings: dict[str, Any] = {"sink_tokens": 2, "global_sink_tokens": 2, "pinned_start": 4, "pinned_len": 2}
    return cache_of(9, (12, 9), attention_window_size=7, **settings), chunk_of(2, 12)


def _crowded(rng: random.Random) -> tuple[CausalSelfAttentionKVCache, dict[str, Any]]:
    return cache_of(10, (10, 10), attention_window_size=5, global_sink_tokens=2), chunk_of(3, 10)


_STATES: tuple[State, ...] = (_appending, _on_the_device, _rolling, _rewriting, _sliced, _growing, _pinned, _crowded)
