"""Documented errors of the causal KV caches; :mod:`tensorpact_contracts.causal_kv_cache` re-exports them."""

import functools

import torch
from torch import Tensor

from tensorpact import DocumentedError
from tensorpact._overlap import shares_bytes

from ._causal_kv_cache_plan import CacheState, read_ends, read_item
from ._causal_kv_cache_segments import PackedState

_error = functools.partial(DocumentedError, module="tensorpact_contracts.causal_kv_cache")


def _described(index: Tensor) -> str:
    return f"{index.numel()} of {index.dtype}"


def _described_ends(self: CacheState) -> str:
    found = f"{_described(self.global_end_index)} and {_described(self.local_end_index)}"
    return found + (" at one address" if shares_bytes(self.global_end_index, self.local_end_index) else "")


def settings_problem(cache: CacheState) -> str | None:
    """The first setting of a cache that makes no sense, in words; None where all do."""
    slots, sink, pin = cache.cache_size, cache.sink_tokens, (cache.pinned_start, cache.pinned_len)
    most = slots if not cache.allow_growth else None
    for name, value in (("sink_tokens", sink), ("global_sink_tokens", cache.global_sink_tokens)):
        if value < 0 or (most is not None and value > most):
            return f"{name} must be between 0 and {'any size' if most is None else f'cache_size {most}'}, got {value}"
    if slots < 1:
        return f"cache_size must be at least 1, got {slots}"
    if cache.attention_window_size < 1:
        return f"attention_window_size must be at least 1, got {cache.attention_window_size}"
    if pin[0] < -1 or pin[1] < 0 or sum(pin) > slots:
        return f"pinned_start and pinned_len must lie inside {slots} slots, got {pin[0]} and {pin[1]}"
    if cache.headroom is not None and cache.headroom < 0:
        return f"headroom must be None or at least 0 tokens, got {cache.headroom}"
    return None


def packed_problem(cache: PackedState) -> str | None:
    """The first setting of a packed cache that makes no sense, in words; None where all do."""
    for name in ("batch_size", "cache_size", "num_heads", "head_dim"):
        least = 0 if name == "batch_size" else 1
        if getattr(cache, name) < least:
            return f"{name} must be at least {least}, got {getattr(cache, name)}"
    if not 0 <= cache.sink_tokens <= cache.cache_size:
        return f"sink_tokens must be between 0 and cache_size {cache.cache_size}, got {cache.sink_tokens}"
    if cache.attention_window_size is not None and cache.attention_window_size < 1:
        return f"attention_window_size must be None or at least 1, got {cache.attention_window_size}"
    if not cache.dtype.is_floating_point:
        return f"dtype must be a floating one, got {cache.dtype}"
    try:
        torch.device(cache.device)
    except RuntimeError:
        return f"device names none, got {cache.device!r}"
    unknown = sorted(set(cache.quant_args) - {"bits"})
    if unknown:
        return f"quant_args may hold bits alone, got {', '.join(unknown)}"
    if cache.quant_args.get("bits", 8) not in (8, 16):
        return f"quant_args bits must be 8 (packed) or 16 (kept as given), got {cache.quant_args['bits']}"
    return None


HEAD_START = _error(
    "cache-head-start-required",
    ValueError,
    "{debug_name} requires cache_head_start when cache heads ({num_cache_heads}) "
    "differ from input heads ({num_input_heads}).",
    fields={
        "num_cache_heads": lambda self: self.num_cache_heads,
        "num_input_heads": lambda key: key.shape[2],
    },
)
WRITE_RANGE = _error(
    "invalid-write-range",
    RuntimeError,
    "Invalid {debug_name} write range: local=[{write.start}, {write.end}), global_end={write.previous_global}, "
    "prev_local_end={write.previous_local}, kv_cache_size={write.capacity}, num_new_tokens={write.tokens}, "
    "current_start={write.chunk_start}, current_end={write.chunk_end}",
)
RECENT_WINDOW = _error("recent-window-negative", ValueError, "recent_window_tokens must be non-negative or None")

CHUNK_RANK = _error(
    "chunk-rank",
    ValueError,
    "{debug_name}: key and value have the axes [batch, tokens, heads, head dim]; wrong number of axes: {names}",
)
MORE_HEADS = _error(
    "more-heads-than-the-cache",
    ValueError,
    "{debug_name}: key has {num_input_heads} heads, more than the {num_cache_heads} of the cache, "
    "and no cache_head_start can place them",
    fields={
        "num_cache_heads": lambda self: self.num_cache_heads,
        "num_input_heads": lambda key: key.shape[2],
    },
)
HEAD_RANGE = _error(
    "head-slice-out-of-range",
    ValueError,
    "{debug_name}: cache_head_start must be between 0 and {last_start} for {num_input_heads} of {num_cache_heads} "
    "heads, got {cache_head_start}",
    fields={
        "num_cache_heads": lambda self: self.num_cache_heads,
        "num_input_heads": lambda key: key.shape[2],
        "last_start": lambda self, key: self.num_cache_heads - key.shape[2],
    },
)
UNUSED_START = _error(
    "head-start-without-slice",
    ValueError,
    "{debug_name}: key has all {num_cache_heads} heads of the cache, so cache_head_start must be None or 0, "
    "got {cache_head_start}",
    fields={"num_cache_heads": lambda self: self.num_cache_heads},
)
CHUNK_SHAPE = _error(
    "chunk-does-not-fit-the-cache",
    ValueError,
    "{debug_name}: key has batch and head dim {given}, the cache has {expected}",
    fields={
        "given": lambda key: f"{key.shape[0]} and {key.shape[3]}",
        "expected": lambda self: "{} and {}".format(*self.chunk_axes[:2]),
    },
)
VALUE_SHAPE = _error(
    "value-differs-from-key",
    ValueError,
    "{debug_name}: value must have shape {expected} to go with this key, got {tuple(value.shape)}",
    fields={"expected": lambda self, key: (*key.shape[:3], self.chunk_axes[2])},
)
CHUNK_DTYPE = _error(
    "chunk-dtype-or-device",
    ValueError,
    "{debug_name}: the cache holds {held}, got key {key.dtype} on {key.device} and value {value.dtype} on "
    "{value.device}",
    fields={"held": lambda self: "{} on {}".format(*self.chunk_storage)},
)
EMPTY_CHUNK = _error(
    "empty-chunk",
    ValueError,
    "{debug_name}: a chunk holds at least one token and one head, got key of shape {tuple(key.shape)}",
)
GAP = _error(
    "gap-before-chunk",
    ValueError,
    "{debug_name}: the chunk starts at position {write.chunk_start}, but the cache ends at {write.previous_global}: "
    "positions in between were never written",
)
SINK_OVERRUN = _error(
    "chunk-larger-than-the-rolling-part",
    ValueError,
    "{debug_name}: {write.tokens} new tokens and {write.sink} sink tokens do not fit into {write.capacity} slots",
)
SINK_REWRITE = _error(
    "rewrite-over-the-sink",
    ValueError,
    "{debug_name}: position {write.chunk_start} would be written to slot {write.start}, which holds one of "
    "{write.sink} sink tokens since the first eviction",
)
PIN_LOST = _error(
    "eviction-cuts-the-pin",
    ValueError,
    "{debug_name}: evicting {write.evicted} tokens moves the {pinned} pinned tokens to slot {slot}, "
    "into or past the {write.sink} sink tokens",
    fields={"pinned": lambda write: write.pin.tokens, "slot": lambda write: write.pin.start},
)
WINDOW = _error(
    "window-smaller-than-chunk",
    ValueError,
    "{debug_name}: an attention window of {write.window} tokens hides part of a chunk of {write.tokens}",
)
CROWDED = _error(
    "no-room-beside-sink-and-pin",
    ValueError,
    "{debug_name}: sink and pin take {write.reserved} of the {write.window} tokens of the attention window, "
    "which leaves less than the {write.tokens} of the chunk",
)
HEAD_SLICE = _error(
    "another-head-slice",
    ValueError,
    "{debug_name}: since its last reset this cache holds heads {held}, got heads {given}",
    fields={
        "held": lambda self: "[{}, {})".format(*self.head_slice),
        "given": lambda key, cache_head_start: f"[{cache_head_start or 0}, {(cache_head_start or 0) + key.shape[2]})",
    },
)
ALIASED = _error(
    "chunk-shares-cache-memory",
    ValueError,
    "{debug_name}: key and value must not be views of the buffers that this call writes",
)

BUFFERS = _error(
    "buffers-differ",
    ValueError,
    "k and v must have four axes, equal batch, slots and heads, one dtype and one device, got k {k} and v {v}",
    fields={
        "k": lambda self: f"{tuple(self.k.shape)} {self.k.dtype} on {self.k.device}",
        "v": lambda self: f"{tuple(self.v.shape)} {self.v.dtype} on {self.v.device}",
    },
)
CACHE_SIZE = _error(
    "cache-size-is-not-the-buffer",
    ValueError,
    "cache_size is {cache_size}, but the buffers hold {slots} slots",
    fields={"cache_size": lambda self: self.cache_size, "slots": lambda self: self.k.shape[1]},
)
OVERLAPPING = _error(
    "buffers-overlap",
    ValueError,
    "k and v are written, so no two of their elements may share memory; k has strides {k}, v has strides {v}",
    fields={"k": lambda self: self.k.stride(), "v": lambda self: self.v.stride()},
)
INDEX = _error(
    "index-tensors",
    ValueError,
    "global_end_index and local_end_index must each hold one int64 in memory of its own, got {found}",
    fields={"found": _described_ends},
)
SETTINGS = _error(
    "setting-out-of-range",
    ValueError,
    "causal KV cache setting out of range: {problem}",
    fields={"problem": lambda self: settings_problem(self)},
)
HOST_ENDS = _error(
    "host-ends-disagree",
    ValueError,
    "global_end_index_int and local_end_index_int are given together and say what the tensors say, got {found}",
    fields={
        "found": lambda self: (
            f"{self.global_end_index_int} and {self.local_end_index_int} beside "
            f"{read_item(self.global_end_index)} and {read_item(self.local_end_index)}"
        )
    },
)
ENDS = _error(
    "impossible-ends",
    ValueError,
    "local end {local_end} cannot go with global end {global_end} and {cache_size} slots: before the first eviction "
    "the two are equal, afterwards every slot is in use",
    fields={
        "global_end": lambda self: read_ends(self)[0],
        "local_end": lambda self: read_ends(self)[1],
        "cache_size": lambda self: self.cache_size,
    },
)
PIN_LENGTH = _error(
    "pin-longer-than-the-cache",
    ValueError,
    "pin_current_chunk: {m} tokens are to be pinned, but the cache holds {held}",
    fields={"held": lambda self: read_ends(self)[1]},
)

PACKED_HEAD_START = _error(
    "packed-cache-head-start-required", ValueError, "{debug_name}: cache_head_start required for head slice"
)
PACKED_REWRITE = _error(
    "packed-rewrite-size-changed", NotImplementedError, "{debug_name}: current-chunk rewrite size changed"
)
PACKED_ORDER = _error(
    "packed-write-not-sequential",
    NotImplementedError,
    "{debug_name}: non-sequential write current_start={write.chunk_start} global_end={write.previous_global} "
    "cur={write.current_start}",
)
PACKED_RECENT = _error("packed-recent-window-negative", ValueError, "recent_window_tokens must be >= 0 or None")
PACKED_PIN = _error(
    "packed-pin-unsupported",
    NotImplementedError,
    "QVGPackedCausalKVCache does not support pinned-sink (longlive2); packed KV quant is scoped to the LingBot "
    "realtime path.",
)
PACKED_SETTINGS = _error(
    "packed-setting-out-of-range",
    ValueError,
    "packed KV cache cannot be set up: {problem}",
    fields={"problem": lambda self: packed_problem(self)},
)
