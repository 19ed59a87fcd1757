"""Numbers of 64 bits that stop at the largest and the smallest instead of wrapping round."""

import torch
from torch import Tensor

#: What a kernel has in the place of no bound.
LOWEST, HIGHEST = -(2**63), 2**63 - 1


def held(number: int) -> int:
    """What 64 bits hold of a number: itself, or the largest or smallest of them."""
    return max(min(int(number), HIGHEST), LOWEST)


def held_exactly(number: int) -> bool:
    """Whether 64 bits hold a number."""
    return LOWEST <= number <= HIGHEST


def factor(number: int, most: int) -> int:
    """A factor near a number whose products with 0 up to ``most`` need no more than 64 bits."""
    largest = HIGHEST // max(most, 1)
    return max(min(number, largest), -largest)


def steps_of(offsets: Tensor) -> Tensor:
    """How far each number is from the next one.

    Args:
        offsets: Numbers, int64.
    """
    here, behind = offsets[:-1], offsets[1:]
    step = behind - here
    # A difference has wrapped where the signs differ and its own is not that of the first part.
    has_wrapped = ((behind ^ here) & (behind ^ step)) < 0
    return torch.where(has_wrapped, torch.where(behind < 0, LOWEST, HIGHEST), step)


def total(one: Tensor, other: Tensor | int) -> Tensor:
    """The sum of numbers of 64 bits, entry by entry.

    Args:
        one: Numbers, int64.
        other: More of them, or one number.
    """
    if isinstance(other, int):
        if not other:
            return one
        other = torch.full_like(one, held(other))
    wrapped = one + other
    # A sum has wrapped where its sign is that of neither part.
    has_wrapped = ((one ^ wrapped) & (other ^ wrapped)) < 0
    return torch.where(has_wrapped, torch.where(one < 0, LOWEST, HIGHEST), wrapped)
