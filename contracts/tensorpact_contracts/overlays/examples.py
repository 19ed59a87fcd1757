"""Values of drawn arguments, and the mistakes that only values show, for ``tensorpact verify``."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

Arguments = dict[str, Any]


def fill(name: str, arguments: Arguments, rng: random.Random) -> None:
    """Write offsets that cut the rows of a call.

    Args:
        name: Name of the contract.
        arguments: The call, changed in place.
        rng: Source of chance.
    """
    if name == "varlen_attn":
        arguments["max_q"] = max(arguments["max_q"], arguments["query"].size(0))
        arguments["max_k"] = max(arguments["max_k"], arguments["key"].size(0))
    rows = {"cu_seq_q": "query", "cu_seq_k": "key", "cu_seqlens": "q"}
    for offsets, cut in rows.items():
        vector = arguments.get(offsets)
        if isinstance(vector, Tensor) and vector.ndim == 1 and isinstance(arguments.get(cut), Tensor):
            tensor = arguments[cut]
            last = tensor.size(1) if cut == "q" and tensor.ndim > 1 else tensor.size(0)
            inner = sorted(rng.randint(0, last) for _ in range(vector.numel() - 1))
            for i, offset in enumerate([0, *inner][: vector.numel()]):
                vector[i] = offset


def mistakes(name: str) -> Sequence[Callable[[Arguments], None]]:
    """Values that break a rule.

    Args:
        name: Name of the contract.
    """
    if name == "varlen_attn":
        starts = (_starts_at_one("cu_seq_q"), _starts_at_one("cu_seq_k"))
        longer = (_longer("cu_seq_q", "query", "max_q"), _longer("cu_seq_k", "key", "max_k"))
        return (*starts, *longer, _more_valid, _more_valid_in_pages, _none_at_most, _scale_zero)
    if name == "scaled_dot_product_attention":
        return (_scale_zero,)
    return (_starts_at_one("cu_seqlens"), _scale_zero)


def _starts_at_one(offsets: str) -> Callable[[Arguments], None]:
    def write(arguments: Arguments) -> None:
        vector = arguments.get(offsets)
        if isinstance(vector, Tensor) and vector.numel():
            vector[0] = 1

    return write


def _longer(offsets: str, cut: str, longest: str) -> Callable[[Arguments], None]:
    def write(arguments: Arguments) -> None:
        vector = arguments.get(offsets)
        if isinstance(vector, Tensor) and vector.numel() > 1:
            vector.zero_()
            vector[-1] = arguments[cut].size(0)
            arguments[longest] = 0

    return write


def _more_valid(arguments: Arguments) -> None:
    """More valid keys than the sequences have."""
    vector = arguments.get("cu_seq_k")
    if isinstance(vector, Tensor) and vector.numel() > 1:
        arguments["seqused_k"] = vector.diff() + 1
        arguments["max_k"] += 1


def _more_valid_in_pages(arguments: Arguments) -> None:
    """More valid keys than the pages of a sequence hold."""
    for name in ("key", "value"):
        if isinstance(arguments.get(name), Tensor) and arguments[name].ndim == 3:
            arguments[name] = arguments[name][None]
    offsets = arguments["cu_seq_q"]
    arguments["block_table"] = offsets.new_zeros((offsets.numel() - 1, 1))
    arguments["seqused_k"] = offsets.new_full((offsets.numel() - 1,), arguments["key"].size(1) + 1)
    arguments["max_k"] = arguments["key"].size(1) + 1


def _none_at_most(arguments: Arguments) -> None:
    """Valid keys, and a maximum that has room for none."""
    vector = arguments.get("cu_seq_k")
    if isinstance(vector, Tensor) and vector.numel() > 1:
        vector.zero_()
        vector[-1] = arguments["key"].size(0)
        arguments["seqused_k"] = vector.diff()
        arguments["max_k"] = 0


def _scale_zero(arguments: Arguments) -> None:
    arguments["scale"] = 0.0
