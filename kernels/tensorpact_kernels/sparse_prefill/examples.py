"""Values for the arguments that ``tensorpact verify`` draws: index lists with sentinels, offsets in order."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_LISTS = {
    "sparse_attn_v4_paged_prefill": (
        ("kv_indices_prefix", "kv_indptr_prefix", "unified_kv"),
        ("kv_indices_extend", "kv_indptr_extend", "kv"),
    ),
    "sparse_attn_v4_paged_decode": (("kv_indices", "kv_indptr", "unified_kv"),),
}


def fill(name: str, arguments: dict[str, Any], rng: random.Random) -> None:
    """Write rows that exist, in prefill a skipped entry now and then, and offsets that leave some tokens without rows.

    Args:
        name: Name of the contract.
        arguments: Drawn arguments; the index tensors are written in place.
        rng: Source of chance.
    """
    for indices, indptr, rows in _LISTS[name]:
        skipped = 0.0 if name == "sparse_attn_v4_paged_decode" else 0.15
        _fill_list(arguments[indices], arguments[indptr], arguments[rows].shape[0], rng, skipped)


Mistake = Callable[[dict[str, Any]], None]


def mistakes(name: str) -> Sequence[Mistake]:
    """Offsets and rows that are refused.

    Args:
        name: Name of the contract.
    """
    return tuple(m for indices, indptr, _ in _LISTS[name] for m in (_beyond(indices, indptr), _backwards(indptr)))


def _beyond(indices: str, indptr: str) -> Mistake:
    """A row that is not there, in the part of the last token."""

    def mistake(arguments: dict[str, Any]) -> None:
        arguments[indices].fill_(10_000)
        arguments[indptr].zero_()[-1:] = arguments[indices].numel()

    return mistake


def _backwards(indptr: str) -> Mistake:
    def mistake(arguments: dict[str, Any]) -> None:
        arguments[indptr][0] = -1

    return mistake


def _fill_list(indices: Tensor, indptr: Tensor, rows: int, rng: random.Random, skipped: float) -> None:
    entries = [rng.randrange(rows) if rows and rng.random() >= skipped else -1 for _ in range(indices.numel())]
    indices.copy_(torch.tensor(entries, dtype=indices.dtype))
    # Where there is no row to name and no mark for a skipped entry, every token goes without.
    most = len(entries) if rows or skipped else 0
    cuts = sorted(rng.randint(0, most) for _ in range(indptr.numel() - 1))
    indptr.copy_(torch.tensor([0, *cuts], dtype=indptr.dtype))
