"""Values for the arguments that ``tensorpact verify`` draws: slots that differ, some padding, cursors in the ring."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def fill(name: str, arguments: dict[str, Any], rng: random.Random) -> None:
    """Write slots, cursors, flush requests and decays, and choose a gate.

    Args:
        name: Name of the contract.
        arguments: Drawn arguments; some of the tensors are written in place.
        rng: Source of chance.
    """
    rows, slots = arguments["mixed_qkv"].shape[0], arguments["initial_state"].shape[0]
    # Live rows write their slots: two rows with one slot would race.
    order = rng.sample(range(slots), slots) + [-1] * rows
    chosen = [slot if rng.random() < 0.85 else -rng.randint(1, 9) for slot in order[:rows]]
    rng.shuffle(chosen)
    _write(arguments["ssm_state_indices"], chosen)
    if arguments["lower_bound"] is not None or rng.random() < 0.4:
        arguments["lower_bound"] = rng.choice((-0.5, -5.0))
    if name == "fused_recurrent_kda_replayssm_decode":
        length = arguments["d_cache"].shape[2]
        # Log decays: positive ones would let the state grow beyond a half-precision pool.
        arguments["g_cache"].abs_().neg_()
        _write(arguments["write_pos"], [rng.choice((rng.randrange(length), length - 1)) for _ in range(rows)])
        if arguments["force_flush"] is not None:
            _write(arguments["force_flush"], [rng.choice((0, 0, 1, -1, 7)) for _ in range(rows)])


Mistake = Callable[[dict[str, Any]], None]


def mistakes(name: str) -> Sequence[Mistake]:
    """Slots and cursors that are refused.

    Args:
        name: Name of the contract.
    """
    found: list[Mistake] = [_setting("ssm_state_indices", 10_000), _repeating]
    return (*found, _setting("write_pos", -1)) if name == "fused_recurrent_kda_replayssm_decode" else found


def _setting(tensor: str, value: int) -> Mistake:
    def mistake(arguments: dict[str, Any]) -> None:
        arguments["ssm_state_indices"][0] = 0
        arguments["ssm_state_indices"][1:] = -1
        arguments[tensor][0] = value

    return mistake


def _repeating(arguments: dict[str, Any]) -> None:
    arguments["ssm_state_indices"].zero_()


def _write(tensor: Tensor, values: list[int]) -> None:
    tensor.copy_(torch.tensor(values, dtype=tensor.dtype))
