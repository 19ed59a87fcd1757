"""Whether tensors share memory, element by element where that can be told and by range where it cannot."""

import torch
from torch import Tensor


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether an axis of stride 0 puts several elements at one address."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors share an element.

    Keys and values that take turns in one buffer meet as ranges and share nothing: tensors of one layout are compared
    by the distance between their first elements. False while tracing, where there are no addresses.
    """
    if torch.compiler.is_compiling() or one.device != other.device or one.is_meta:
        return False
    if not one.numel() or not other.numel():
        return False
    first, second, size = one.data_ptr(), other.data_ptr(), one.element_size()
    if first + _reach(one) <= second or second + _reach(other) <= first:
        return False
    if one.stride() != other.stride() or size != other.element_size() or (second - first) % size:
        return True
    sizes = [max(pair) for pair in zip(one.shape, other.shape, strict=True)]
    axes = sorted(((s, n) for s, n in zip(one.stride(), sizes, strict=True) if n > 1), reverse=True)
    return _reachable((second - first) // size, axes)


def may_overlap(buffers: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> bool:
    """Whether the bytes that some tensors span meet those of others: a quick look, which views of one storage fail."""
    spans = [(t.data_ptr(), t.data_ptr() + _reach(t)) for t in (*buffers, *others)]
    return any(a[0] < b[1] and b[0] < a[1] for a in spans[: len(buffers)] for b in spans[len(buffers) :])


def _reach(tensor: Tensor) -> int:
    if tensor.is_contiguous():
        return tensor.numel() * tensor.element_size()
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _reachable(distance: int, axes: list[tuple[int, int]]) -> bool:
    """Whether index differences smaller than the sizes can add up to a distance; axes by falling stride."""
    if not axes or axes[0][0] == 0:
        return distance == 0
    (stride, size), inner = axes[0], axes[1:]
    most = sum((n - 1) * s for s, n in inner)
    steps = range(max(1 - size, (distance - most) // stride), min(size - 1, (distance + most) // stride) + 1)
    rests = (distance - step * stride for step in steps)
    return any(abs(rest) <= most and _reachable(rest, inner) for rest in rests)
