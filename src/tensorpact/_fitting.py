"""Whether a value is an array of a form, and whether its sizes fit: one axis, a shape that broadcasts, a whole form."""

from collections.abc import Mapping
from typing import Any, cast

import torch

from ._annotations import TensorForm, is_torch_class
from ._dims import Dim, DimKind

Size = int | tuple[int, ...]


def broadcastable(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """The common shape of two, or None."""
    width = max(len(one), len(other))
    a, b = (1,) * (width - len(one)) + one, (1,) * (width - len(other)) + other
    out = tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))
    return out if all(y in (1, z) for y, z in zip(b, out, strict=True)) else None


def is_array_like(value: Any) -> bool:
    """Whether a value can be an array of any class."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def is_array(form: TensorForm, value: Any) -> bool:
    """Whether a value is an array of the class that a form names."""
    if form.array_type is Any:
        return is_array_like(value)
    if not isinstance(value, form.array_type) or has_no_sizes(value):
        return False
    return not (is_local_class(form.array_type) and is_sharded(value))


def has_no_sizes(value: Any) -> bool:
    """Whether a value is a nested tensor of the old layout, which ends every question for its sizes with an error."""
    return isinstance(value, torch.Tensor) and value.is_nested and value.layout is torch.strided


def is_local_class(array_type: Any) -> bool:
    """Whether an annotated class means the memory of one device: a torch class that is no ``DTensor``."""
    return is_torch_class(array_type) and not hasattr(array_type, "to_local")


def is_sharded(value: Any) -> bool:
    """Whether a value is a ``DTensor``, whose shape is that of all devices together."""
    # Told by what it has: torch.distributed stays unloaded.
    kind = cast("type[Any]", type(value))
    return kind is not torch.Tensor and hasattr(kind, "to_local") and hasattr(kind, "placements")


def is_local(value: Any) -> bool:
    """Whether a value is a tensor that lies on one device."""
    return type(value) is torch.nn.Parameter or (isinstance(value, torch.Tensor) and not is_sharded(value))


def form_fits(form: TensorForm, shape: tuple[int, ...], dims: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Whether the axes of one form fit; names that nothing binds may take any size, the same all over the form."""
    if not form.rank_fits(len(shape)):
        return False
    local = dict(dims)
    places = [(d, form.position(i, len(shape))) for i, d in enumerate(form.dims)]
    later: list[tuple[Dim, Size]] = []
    for dim, place in sorted(places, key=lambda p: p[0].broadcast):
        size: Size = shape[place] if place is not None else ()
        if dim.kind in (DimKind.ANONYMOUS, DimKind.ELLIPSIS) or (dim.broadcast and is_one(size)):
            continue
        if dim.expression is not None:
            later.append((dim, size))
        elif not fits(dim, size, dim.size if dim.kind is DimKind.FIXED else local.setdefault(dim.name, size)):
            return False
    for dim, size in later:
        unknown = [n for n in dim.names if n not in local]
        if dim.expression is None or len(unknown) > 1:
            continue
        if unknown and isinstance(size, int):
            value = dim.expression.solve(unknown[0], size, local, arguments)
            if value is None:
                if dim.expression.solvable(unknown[0]):
                    return False
                continue
            local[unknown[0]] = value
        if dim.expression.evaluate(local, arguments) != size:
            return False
    return True


def fits(dim: Dim, size: Size, wanted: Any) -> bool:
    """Whether a size is the one that an axis must have."""
    if dim.kind is DimKind.VARIADIC and dim.broadcast and isinstance(size, tuple):
        return broadcastable(size, wanted) == wanted
    return fits_exactly(size, wanted)


def fits_exactly(size: Size, wanted: Any) -> bool:
    """Whether one size, or those of a variadic axis, are the wanted ones."""
    if isinstance(size, tuple) and isinstance(wanted, tuple):
        sizes = cast("tuple[Any, ...]", wanted)
        return len(size) == len(sizes) and all(holds(a == b) for a, b in zip(size, sizes, strict=True))
    return holds(size == wanted)


def holds(claim: Any) -> bool:
    """Whether a claim holds; a tracer that cannot tell asserts it for the run."""
    if type(claim) is not torch.SymBool:
        return bool(claim)
    from ._symbolic import agree

    return agree(claim)


def is_one(size: Any) -> bool:
    """Whether a size is 1, as far as a tracer knows."""
    if type(size) is not torch.SymInt:
        return bool(size == 1)
    from ._symbolic import is_one

    return is_one(size)
