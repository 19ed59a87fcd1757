"""Whether tensors share memory: by address ranges, by rows that take turns, and a tensor with itself by its strides."""

import math
from collections.abc import Sequence
from typing import Any

import torch

#: Steps of the search whether a tensor overlaps itself; views of a model take a handful.
_STEPS = 4096


def shares_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors share a byte; false for tensors without an address and while tracing.

    Address ranges may meet although nothing is shared, as with the fields of a page that holds several caches. Such
    views are told apart where they repeat with a common period; what cannot be told apart counts as shared.

    Args:
        one: A tensor.
        other: Another one.
    """
    if torch.compiler.is_compiling() or one.device != other.device:
        return False
    ours, theirs = byte_length(one), byte_length(other)
    if not (ours and theirs):
        return False
    distance = other.data_ptr() - one.data_ptr()
    return -theirs < distance < ours and not _take_turns(one, other, distance)


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether several elements of a tensor lie at one address; sizes that a tracer does not know count as apart.

    Args:
        tensor: A tensor with strides.
    """
    axes = [(s, n - 1) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1]
    if any(type(s) is not int or type(last) is not int for s, last in axes):
        return False
    if any(last < 0 for _, last in axes):
        return False
    axes.sort()
    if axes and not axes[0][0]:
        return True
    reaches = [0]
    for stride, last in axes:
        reaches.append(reaches[-1] + stride * last)
    # Almost every view: each step clears all that the smaller steps reach.
    if all(stride > reach for (stride, _), reach in zip(axes, reaches, strict=False)):
        return False
    return _meets(axes, reaches, 0, False, [_STEPS])


def _meets(axes: Sequence[tuple[int, int]], reaches: Sequence[int], sum_: int, moved: bool, left: list[int]) -> bool:
    """Whether the axes can bring a sum of strides back to 0 by a move that is not nothing.

    Args:
        axes: Stride and last index of each axis, the smallest stride first; the last is decided next.
        reaches: For each number of axes, how far they reach together.
        sum_: What the larger strides have come to.
        moved: Whether one of them moves.
        left: How many more steps the search may take, as its only item; when none are left the tensor counts as
            overlapping.
    """
    left[0] -= 1
    if left[0] < 0 or not axes:
        return left[0] < 0 or moved
    stride, last = axes[-1]
    rest, reach = axes[:-1], reaches[len(axes) - 1]
    if sum_ % math.gcd(*(s for s, _ in axes)):
        return False
    # By symmetry the first axis that moves does so to the right.
    least = max(-last if moved else 0, -((sum_ + reach) // stride))
    most = min(last, (reach - sum_) // stride)
    return any(
        _meets(rest, reaches, sum_ + step * stride, moved or step != 0, left) for step in range(most, least - 1, -1)
    )


def byte_length(value: Any) -> int:
    """Bytes from the first element to the end of the last one; 0 for what has no memory of its own to share."""
    if not isinstance(value, torch.Tensor) or value.is_meta:
        return 0
    try:
        if not (value.numel() and value.data_ptr()):
            return 0
        return _extent(value, 0)
    except (RuntimeError, NotImplementedError):
        # Sparse, nested and fake tensors have no strides or no address to ask for.
        return 0


def _extent(tensor: torch.Tensor, period: int) -> int:
    """Bytes from the first to the end of the last element, along the axes that do not step by whole periods."""
    size = tensor.element_size()
    steps = [(n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if not period or s * size % period]
    return (sum(steps) + 1) * size


def _take_turns(one: torch.Tensor, other: torch.Tensor, distance: int) -> bool:
    """Whether each of two tensors keeps to a part of its own of every period, for some period of their strides."""
    strides = {s * t.element_size() for t in (one, other) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1}
    for period in strides - {0}:
        start = distance % period
        if _extent(one, period) <= start and start + _extent(other, period) <= period:
            return True
    return False
