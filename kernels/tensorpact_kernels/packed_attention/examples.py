"""Values for the arguments that ``tensorpact verify`` draws: boundaries that fit, and ways in which they do not."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

Mistake = Callable[[dict[str, Any]], None]

_SIDES = (("cu_seqlens_q", "q"), ("cu_seqlens_k", "k"))


def fill(name: str, arguments: dict[str, Any], rng: random.Random) -> None:
    """Write boundaries that leave a sequence empty now and then, on both sides, and at times their host copies.

    Args:
        name: Name of the contract.
        arguments: Drawn arguments; the boundaries are written in place.
        rng: Source of chance.
    """
    if "softmax_lse" in arguments:
        return
    batch = arguments["cu_seqlens_q"].numel() - 1
    totals = [arguments[tokens].shape[0] for _, tokens in _SIDES]
    most = min(batch, *totals)
    full = sorted(rng.sample(range(batch), rng.randint(1, most))) if most else []
    for (boundaries, _), total in zip(_SIDES, totals, strict=True):
        cuts = sorted(rng.sample(range(1, total), len(full) - 1)) if full else []
        ends, entries, done = [*cuts, total], [0], 0
        for number in range(arguments[boundaries].numel() - 1):
            done += number in full
            entries.append(ends[done - 1] if done else 0)
        _write(arguments, boundaries, entries)
        if rng.random() < 0.5 and arguments[f"{boundaries}_host"] is None:
            arguments[f"{boundaries}_host"] = tuple(entries)


def mistakes(name: str) -> Sequence[Mistake]:
    """Ways to break each rule about numbers.

    Args:
        name: Name of the contract.
    """
    if not name.startswith("fused_infer_attention_varlen"):
        return ()
    found: list[Mistake] = [_in_double, *(_with_gradient(name) for name in ("q", "k", "v"))]
    found += [_with_too_many(name) for name in ("q", "k")]
    for boundaries, _ in _SIDES:
        found += [
            _setting(boundaries, 0, 1),
            _setting(boundaries, -1, 10_000),
            _setting(boundaries, 1, 10_000),
            _copying(boundaries, lambda entries: entries[:-1]),
            _copying(boundaries, lambda entries: [float(entry) for entry in entries]),
            _copying(boundaries, torch.tensor),
            _copying(boundaries, iter),
            _copying(boundaries, _moved),
            _leaving_out(boundaries),
            _emptying(boundaries),
        ]
    return found


def _setting(boundaries: str, at: int, value: int) -> Mistake:
    """Another number at one place of a tensor that has no host copy."""

    def mistake(arguments: dict[str, Any]) -> None:
        arguments[boundaries][at] = value
        arguments[f"{boundaries}_host"] = None

    return mistake


def _copying(boundaries: str, change: Callable[[list[int]], Any]) -> Mistake:
    """A host copy that is not one."""

    def mistake(arguments: dict[str, Any]) -> None:
        arguments[f"{boundaries}_host"] = change(arguments[boundaries].tolist())

    return mistake


def _moved(entries: list[int]) -> list[int]:
    """Another cut between two sequences that stay as empty as they were."""
    for at in range(1, len(entries) - 1):
        if entries[at + 1] - entries[at] > 1 and entries[at] > entries[at - 1]:
            return [*entries[:at], entries[at] + 1, *entries[at + 1 :]]
        if entries[at] - entries[at - 1] > 1 and entries[at + 1] > entries[at]:
            return [*entries[:at], entries[at] - 1, *entries[at + 1 :]]
    return entries


def _leaving_out(boundaries: str) -> Mistake:
    def mistake(arguments: dict[str, Any]) -> None:
        arguments[boundaries] = None
        arguments[f"{boundaries}_host"] = None

    return mistake


def _in_double(arguments: dict[str, Any]) -> None:
    for name in ("q", "k", "v"):
        arguments[name] = arguments[name].double()


def _with_gradient(name: str) -> Mistake:
    """A backward pass that does not exist."""

    def mistake(arguments: dict[str, Any]) -> None:
        arguments[name].requires_grad_()

    return mistake


def _with_too_many(name: str) -> Mistake:
    """More tokens than a kernel counts, which only a meta tensor can have here."""

    def mistake(arguments: dict[str, Any]) -> None:
        for tensor in ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"):
            tokens = 2**30 + 1 if tensor in {"q": "q", "k": "kv"}[name] else arguments[tensor].shape[0]
            shape = tokens, *arguments[tensor].shape[1:]
            arguments[tensor] = torch.empty(shape, dtype=arguments[tensor].dtype, device="meta")
        arguments["cu_seqlens_q_host"] = arguments["cu_seqlens_k_host"] = None

    return mistake


def _emptying(boundaries: str) -> Mistake:
    """Everything in the last sequence of one side."""

    def mistake(arguments: dict[str, Any]) -> None:
        arguments[boundaries][1:-1] = 0
        arguments[f"{boundaries}_host"] = None

    return mistake


def _write(arguments: dict[str, Any], boundaries: str, entries: list[int]) -> None:
    tensor = arguments[boundaries]
    tensor.copy_(torch.tensor(entries, dtype=tensor.dtype))
