"""Calls of several kinds for ``tensorpact verify``, the numbers in them, and ways in which they go wrong."""

import inspect
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .naive import naive_kvcache, naive_varlen

Mistake = Callable[[dict[str, Any]], None]
Call = dict[str, Any]

_BATCH, _HEADS, _KV_HEADS, _DIM, _VALUE_DIM = 3, 6, 2, 16, 24


def arguments(name: str, rng: random.Random) -> Call:
    """Arguments of one call; ``fill`` writes the integers.

    Args:
        name: Name of the contract.
        rng: Source of chance.
    """
    dtype = rng.choice((torch.bfloat16, torch.float16))
    made = rng.choice(_VARLEN if name == "flash_attn_varlen_func" else _KVCACHE)()
    return {key: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for key, x in made.items()}


def fill(name: str, arguments: Call, rng: random.Random) -> None:
    """Write lengths, boundaries, pages and rows that fit.

    Args:
        name: Name of the contract.
        arguments: Arguments of a call; the integer tensors are written in place.
        rng: Source of chance.
    """
    for boundaries, tokens in (("cu_seqlens_q", "q"), ("cu_seqlens_k", "k"), ("cu_seqlens_k_new", "k")):
        if arguments.get(boundaries) is not None:
            first = arguments[tokens] if arguments[tokens] is not None else arguments["qv"]
            _cut(arguments[boundaries], first.shape[0], rng)
    for lengths, tokens, boundaries in (("seqused_q", "q", "cu_seqlens_q"), ("seqused_k", "k", "cu_seqlens_k")):
        if arguments.get(lengths) is not None:
            ends = arguments[boundaries]
            most = (
                ends.diff().tolist() if ends is not None else [arguments[tokens].shape[1]] * arguments[tokens].shape[0]
            )
            _write(arguments[lengths], [rng.randint(0, count) for count in most])
    if name == "flash_attn_with_kvcache":
        _fill_cache(arguments, rng)


def _fill_cache(arguments: Call, rng: random.Random) -> None:
    table, cache, k = arguments["page_table"], arguments["v_cache"], arguments["k"]
    capacity = cache.shape[1] * (1 if table is None else table.shape[1])
    if table is not None:
        # A page stands in one row only, since rows that are appended to must not share one.
        _write(table, rng.sample(range(cache.shape[0]), table.numel()))
    new = 0 if k is None else k.shape[1] if k.ndim == 4 else k.shape[0]
    lengths = arguments["cache_seqlens"]
    if isinstance(lengths, Tensor):
        # Chunks want a key for each query, and a row of the rotary table one for each position.
        least = arguments["q"].shape[1] if arguments["attention_chunk"] else 2
        _write(lengths, [rng.randint(least, capacity - new) for _ in range(lengths.numel())])
    if arguments["cache_leftpad"] is not None:
        _write(arguments["cache_leftpad"], [rng.randint(0, 2) for _ in range(arguments["cache_leftpad"].numel())])
    if arguments["cache_batch_idx"] is not None:
        rows = (cache if table is None else table).shape[0]
        _write(arguments["cache_batch_idx"], rng.sample(range(rows), arguments["cache_batch_idx"].numel()))
    if arguments["rotary_seqlens"] is not None:
        _write(arguments["rotary_seqlens"], [rng.randint(0, 4) for _ in range(arguments["rotary_seqlens"].numel())])


def _cut(boundaries: Tensor, total: int, rng: random.Random) -> None:
    inner = sorted(rng.randint(0, total) for _ in range(boundaries.numel() - 2))
    _write(boundaries, [0, *inner, total])


def _write(tensor: Tensor, entries: Sequence[int]) -> None:
    tensor.copy_(torch.tensor(entries, dtype=tensor.dtype).view(tensor.shape))


def _floats(*shape: int) -> Tensor:
    return torch.zeros(shape)


def _ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def _caches(rows: int, slots: int) -> Call:
    return {
        "k_cache": _floats(rows, slots, _KV_HEADS, _DIM),
        "v_cache": _floats(rows, slots, _KV_HEADS, _VALUE_DIM),
    }


def _new(*tokens: int) -> Call:
    return {"k": _floats(*tokens, _KV_HEADS, _DIM), "v": _floats(*tokens, _KV_HEADS, _VALUE_DIM)}


def _decoding() -> Call:
    return {"q": _floats(_BATCH, 1, _HEADS, _DIM), **_caches(_BATCH, 11), "cache_seqlens": 7, "softmax_scale": 0.3}


def _paged() -> Call:
    return {
        "q": _floats(_BATCH, 5, _HEADS, _DIM),
        **_caches(17, 4),
        "page_table": _ints(_BATCH, 5),
        "cache_seqlens": _ints(_BATCH),
        "causal": True,
        "sinks": _floats(_HEADS),
        "out": _floats(_BATCH, 5, _HEADS, _VALUE_DIM),
        "return_softmax_lse": True,
    }


def _packed() -> Call:
    return {
        "q": _floats(8, _HEADS, _DIM),
        **_caches(7, 13),
        "cu_seqlens_q": _ints(_BATCH + 1),
        "max_seqlen_q": 8,
        "cache_batch_idx": _ints(_BATCH),
        "cache_leftpad": _ints(_BATCH),
        "cache_seqlens": _ints(_BATCH),
        "window_size": (3, 1),
        "softcap": 2.5,
        "return_softmax_lse": True,
    }


def _rotating() -> Call:
    return {
        "q": _floats(_BATCH, 4, _HEADS, _DIM),
        **_caches(_BATCH, 14),
        **_new(_BATCH, 2),
        "rotary_cos": _floats(19, 8),
        "rotary_sin": _floats(19, 8),
        "cache_seqlens": 9,
        "causal": True,
        "rotary_interleaved": False,
    }


def _rotating_apart() -> Call:
    return {**_rotating(), "rotary_seqlens": _ints(_BATCH), "cache_seqlens": _ints(_BATCH), "rotary_interleaved": True}


def _appending_packed() -> Call:
    return {
        "q": _floats(_BATCH, 5, _HEADS, _DIM),
        **_caches(19, 4),
        **_new(7),
        "cu_seqlens_k_new": _ints(_BATCH + 1),
        "qv": _floats(_BATCH, 5, _HEADS, _VALUE_DIM),
        "page_table": _ints(_BATCH, 6),
        "cache_seqlens": _ints(_BATCH),
        "num_splits": 3,
    }


def _values_alone() -> Call:
    return {
        "q": None,
        "k_cache": None,
        "v_cache": _floats(_BATCH, 9, 1, _VALUE_DIM),
        "qv": _floats(_BATCH, 2, _HEADS, _VALUE_DIM),
        "cache_seqlens": _ints(_BATCH),
        "only_qv": True,
        "return_softmax_lse": True,
    }


def _chunked() -> Call:
    return {"q": _floats(_BATCH, 4, _HEADS, _DIM), **_caches(_BATCH, 10), "cache_seqlens": 8, "attention_chunk": 3}


def _sequences() -> Call:
    return {
        "q": _floats(9, _HEADS, _DIM),
        "k": _floats(13, _KV_HEADS, _DIM),
        "v": _floats(13, _KV_HEADS, _VALUE_DIM),
        "cu_seqlens_q": _ints(_BATCH + 1),
        "cu_seqlens_k": _ints(_BATCH + 1),
        "max_seqlen_q": 9,
        "max_seqlen_k": 13,
        "causal": True,
        "return_softmax_lse": True,
    }


def _partly_used() -> Call:
    return {
        **_sequences(),
        "seqused_q": _ints(_BATCH),
        "seqused_k": _ints(_BATCH),
        "qv": _floats(9, _HEADS, _VALUE_DIM),
        "sinks": _floats(_HEADS),
        "softcap": 1.5,
    }


def _rows() -> Call:
    return {
        "q": _floats(_BATCH, 5, _HEADS, _DIM),
        "k": _floats(_BATCH, 8, _KV_HEADS, _DIM),
        "v": _floats(_BATCH, 8, _KV_HEADS, _VALUE_DIM),
        "cu_seqlens_q": None,
        "cu_seqlens_k": None,
        "max_seqlen_q": 5,
        "max_seqlen_k": 8,
        "window_size": (2, 0),
        "out": _floats(_BATCH, 5, _HEADS, _VALUE_DIM),
    }


def _rows_used() -> Call:
    return {**_rows(), "seqused_q": _ints(_BATCH), "seqused_k": _ints(_BATCH)}


_KVCACHE = (
    _decoding,
    _paged,
    _packed,
    _rotating,
    _rotating_apart,
    _appending_packed,
    _values_alone,
    _chunked,
)
_VARLEN = (_sequences, _partly_used, _rows, _rows_used)


def mistakes(name: str) -> Sequence[Mistake]:
    """Ways to break each rule about options and numbers.

    Args:
        name: Name of the contract.
    """
    common = [
        *(_setting(window_size=window) for window in (None, (1,), (-5, 3), "no")),
        _setting(causal=True, window_size=(4, 2)),
        _setting(score_mod=len),
        _setting(aux_tensors=[]),
        _setting(ver=4),
        _setting(k_descale=torch.ones(_BATCH, _KV_HEADS)),
        _setting(only_qv=True, qv=None),
        _setting(num_splits=257),
        *(_widening(tensor, width) for tensor, width in (("D", 264), ("Dv", 520))),
    ]
    if name == "flash_attn_varlen_func":
        return [*common, _setting(page_table=_ints(_BATCH, 2)), _setting(max_seqlen_k=None), *_numbers(name)]
    return [
        *common,
        *(_setting(cache_seqlens=length) for length in (True, -1, 1000)),
        _setting(scheduler_metadata=_ints(4)),
        _setting(only_qv=True),
        _setting(v_cache=None),
        _instead(_packed, max_seqlen_q=None),
        _instead(_rotating, **_new(_BATCH, 15)),
        _instead(_rotating, rotary_cos=_floats(19, 12), rotary_sin=_floats(19, 12)),
        _instead(_appending_packed, only_qv=True, k=None, v=None, cu_seqlens_k_new=None),
        _in_place_of_the_queries,
        _setting(k=None, v=None),
        _setting(attention_chunk=2, cache_seqlens=1),
        _setting(rotary_seqlens=_ints(_BATCH)),
        _setting(cu_seqlens_k_new=_ints(_BATCH + 1)),
        *_numbers(name),
    ]


def _numbers(name: str) -> Sequence[Mistake]:
    """Numbers that no tensor may hold, each in a call that is right but for it."""
    tail = {"allow_padded_tail": True}
    if name == "flash_attn_varlen_func":
        return [
            _writing(naive_varlen, make, tensor, at, entry, **changed)
            for make, tensor, at, entry, changed in (
                (_sequences, "cu_seqlens_q", 0, 1, {}),
                (_sequences, "cu_seqlens_q", -1, 8, {}),
                (_sequences, "cu_seqlens_q", -1, 10, tail),
                (_sequences, "cu_seqlens_q", 1, 0, {"max_seqlen_q": 2}),
                (_sequences, "cu_seqlens_k", 0, 1, {}),
                (_sequences, "cu_seqlens_k", -1, 12, {}),
                (_sequences, "cu_seqlens_k", -1, 14, tail),
                (_sequences, "cu_seqlens_k", 1, 0, {"max_seqlen_k": 2}),
                (_partly_used, "seqused_q", 0, -1, {}),
                (_partly_used, "seqused_k", 0, 14, {}),
                (_partly_used, "seqused_q", 0, 0, {"max_seqlen_q": -1}),
                (_partly_used, "seqused_k", 0, 0, {"max_seqlen_k": -1}),
                (_rows_used, "seqused_q", 0, 6, {}),
                (_rows_used, "seqused_k", 0, 9, {}),
            )
        ]
    return [
        _writing(naive_kvcache, make, tensor, at, entry, **changed)
        for make, tensor, at, entry, changed in (
            (_packed, "cu_seqlens_q", 0, 1, {}),
            (_packed, "cu_seqlens_q", -1, 7, {}),
            (_packed, "cu_seqlens_q", -1, 9, tail),
            (_packed, "cu_seqlens_q", 1, 0, {"max_seqlen_q": 1}),
            (_appending_packed, "cu_seqlens_k_new", 0, -1, {}),
            (_appending_packed, "cu_seqlens_k_new", -1, 6, {}),
            (_appending_packed, "cu_seqlens_k_new", -1, 8, tail),
            (_appending_packed, "cache_seqlens", slice(None), 22, {}),
            (_paged, "cache_seqlens", 0, 21, {}),
            (_rotating_apart, "cache_seqlens", 0, 13, {}),
            (_packed, "cache_leftpad", 0, -1, {}),
            (_packed, "cache_leftpad", 0, 14, {"cache_seqlens": None}),
            (_packed, "cache_batch_idx", 0, 7, {}),
            (_paged, "cache_batch_idx", 0, 3, {"cache_batch_idx": _ints(_BATCH)}),
            (_appending_to_rows, "cache_batch_idx", slice(None), 4, {}),
            (_paged, "page_table", slice(None), 17, {}),
            (_paged, "page_table", slice(None), 17, {"window_size": (2, 0)}),
            (_rotating_apart, "rotary_seqlens", 0, -1, {}),
            (_rotating_apart, "rotary_seqlens", 0, 18, {}),
            (_rotating_apart, "cache_seqlens", 0, 12, {"rotary_seqlens": None, **_tables(12)}),
            (_rotating_packed, "rotary_seqlens", slice(None), 18, {}),
            (_rotating_packed, "cache_seqlens", slice(None), 5, {"rotary_seqlens": None, **_tables(6)}),
            (_rotating_queries, "rotary_seqlens", slice(None), 18, {}),
            (_rotating_queries, "cache_seqlens", slice(None), 5, {"rotary_seqlens": None, **_tables(6)}),
            (_chunked, "cache_seqlens", 0, 1, {"cache_seqlens": _ints(_BATCH)}),
            (_packed, "cache_seqlens", slice(None), 0, {"cache_leftpad": None, "attention_chunk": 3}),
            (
                _packed,
                "cu_seqlens_q",
                slice(1, None),
                8,
                {"cache_leftpad": None, "attention_chunk": 3, "cache_seqlens": 1},
            ),
            (_packed_on_both_sides, "cu_seqlens_q", slice(1, None), 8, {"attention_chunk": 3, "cache_seqlens": 1}),
        )
    ]


def _writing(
    function: Callable[..., Any], make: Callable[[], Call], tensor: str, at: int | slice, entry: int, **changed: Any
) -> Mistake:
    """Another call, right but for one place of one tensor and what is changed beside it."""

    def mistake(arguments: Call) -> None:
        _instead(make, function)(arguments)
        fill("flash_attn_with_kvcache" if function is naive_kvcache else "flash_attn_varlen_func", arguments, _rng())
        arguments.update(changed)
        arguments[tensor][at] = entry

    return mistake


def _rng() -> random.Random:
    return random.Random(7)


def _tables(rows: int) -> Call:
    return {name: _floats(rows, 8).bfloat16() for name in ("rotary_cos", "rotary_sin")}


def _appending_to_rows() -> Call:
    return {
        "q": _floats(_BATCH, 2, _HEADS, _DIM),
        **_caches(7, 9),
        **_new(_BATCH, 1),
        "cache_batch_idx": _ints(_BATCH),
        "cache_seqlens": _ints(_BATCH),
    }


def _packed_on_both_sides() -> Call:
    return {**_packed(), **_new(6), "cu_seqlens_k_new": _ints(_BATCH + 1), "cache_leftpad": None}


def _rotating_packed() -> Call:
    return {
        **_rotating_apart(),
        **_new(6),
        "q": _floats(_BATCH, 1, _HEADS, _DIM),
        "cu_seqlens_k_new": _ints(_BATCH + 1),
    }


def _rotating_queries() -> Call:
    return {
        **_rotating_apart(),
        **_new(_BATCH, 1),
        "q": _floats(7, _HEADS, _DIM),
        "cu_seqlens_q": _ints(_BATCH + 1),
        "max_seqlen_q": 7,
    }


def _setting(**changed: Any) -> Mistake:
    def mistake(arguments: Call) -> None:
        arguments.update(changed)

    return mistake


def _instead(make: Callable[[], Call], function: Callable[..., Any] = naive_kvcache, **changed: Any) -> Mistake:
    """Another call with a mistake in it, whatever the call was: groups of arguments come and go together."""
    defaults = {n: p.default for n, p in inspect.signature(function).parameters.items()}

    def mistake(arguments: Call) -> None:
        for name, value in {**defaults, **make(), **changed}.items():
            floating = isinstance(value, Tensor) and value.is_floating_point()
            arguments[name] = value.bfloat16() if floating else value

    return mistake


def _in_place_of_the_queries(arguments: Call) -> None:
    _instead(_decoding, v_cache=_floats(_BATCH, 11, _KV_HEADS, _DIM))(arguments)
    arguments["out"] = arguments["q"]


def _widening(dim: str, width: int) -> Mistake:
    """More columns in a head than the kernel takes, in every tensor that has them."""
    holders = ("v", "v_cache", "qv", "out") if dim == "Dv" else ("q", "k", "k_cache")

    def mistake(arguments: Call) -> None:
        for tensor in holders:
            if arguments.get(tensor) is not None:
                arguments[tensor] = arguments[tensor].new_zeros((*arguments[tensor].shape[:-1], width))

    return mistake
