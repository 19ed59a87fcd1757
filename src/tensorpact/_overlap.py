"""Whether tensors share memory: by address ranges, and by rows where those of several tensors take turns."""

from typing import Any

import torch


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
