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
        return (*starts, _longer("cu_seq_q", "query", "max_q"), _longer("cu_seq_k", "key", "max_k"))
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


def _scale_zero(arguments: Arguments) -> None:
    arguments["scale"] = 0.0
