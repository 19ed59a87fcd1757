"""Changes of one tensor on paper: sizes, strides, dtype and device before and after, with the code that makes them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from ._annotations import TensorForm, TensorSpec
from ._call import Call
from ._dims import DimKind
from .constraints import Aligned, OnDevice

Sizes = tuple[int, ...]
#: Narrow formats hold scaled values: a plain conversion into or out of one is no fix.
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_INTEGERS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)
#: torch's own allocators align to at least this many bytes.
_ALLOCATED = 64


class StandIn(torch.Tensor):
    """Metadata of a tensor on any device, without memory and without data."""

    __torch_function__: Any = cast(Any, torch._C)._disabled_torch_function_impl  # pyright: ignore[reportPrivateUsage]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} on a tensor that has no data")


@dataclass(frozen=True, slots=True)
class Outline:
    """What a trial has to know of a tensor."""

    shape: Sizes
    strides: Sizes
    dtype: torch.dtype
    device: torch.device

    def stand_in(self) -> torch.Tensor:
        """A tensor with this metadata."""
        make: Any = torch.Tensor._make_wrapper_subclass
        return make(StandIn, self.shape, strides=self.strides, dtype=self.dtype, device=self.device)

    def dense(self, shape: Sizes | None = None) -> "Outline":
        """The outline of a fresh tensor, of another shape where one is given."""
        sizes = self.shape if shape is None else shape
        strides = tuple(math.prod(max(n, 1) for n in sizes[i + 1 :]) for i in range(len(sizes)))
        return replace(self, shape=sizes, strides=strides)

    def take(self, order: list[int]) -> "Outline":
        """The outline with axes in another order, or without some of them."""
        return replace(self, shape=tuple(self.shape[i] for i in order), strides=tuple(self.strides[i] for i in order))


def outline_of(tensor: Any) -> Outline | None:
    """The outline of a strided torch tensor; None for any other."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    return Outline(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)


@dataclass(frozen=True, slots=True)
class Told:
    """Sizes of dims, as every argument but one tells them, and how many say so."""

    sizes: Mapping[str, int]
    votes: Mapping[str, int]

    def size(self, form: TensorForm, index: int) -> int | None:
        """The size that an annotated axis must have; None where nothing tells."""
        dim = form.dims[index]
        if dim.kind is DimKind.FIXED:
            return dim.size
        if dim.kind is DimKind.NAMED:
            return self.sizes.get(dim.name)
        if dim.expression is None or dim.expression.arguments or any(n not in self.sizes for n in dim.names):
            return None
        value = dim.expression.evaluate(self.sizes, {})
        return value if isinstance(value, int) else None

    def misfits(self, form: TensorForm, shape: Sizes) -> list[tuple[int, int, int]]:
        """Axes that differ from what is told: place, size it should have, index among the annotated ones."""
        found: list[tuple[int, int, int]] = []
        for index, dim in enumerate(form.dims):
            place, wanted = form.position(index, len(shape)), self.size(form, index)
            if not isinstance(place, int) or wanted is None or shape[place] == wanted:
                continue
            if not (dim.broadcast and shape[place] == 1):
                found.append((place, wanted, index))
        return found

    def outvotes(self, form: TensorForm, shape: Sizes) -> bool:
        """Whether several arguments agree on a size that this shape does not have."""
        wrong = self.misfits(form, shape)
        return any(self.votes.get(form.dims[index].name, 0) > 1 for _, _, index in wrong)

    def fits(self, form: TensorForm, shape: Sizes) -> bool:
        """Whether a shape agrees with what is told."""
        return form.rank_fits(len(shape)) and not self.misfits(form, shape)


def told_sizes(call: Call, name: str, leave_out: str = "") -> Told:
    """Sizes of dims as the arguments other than the named ones tell them.

    An argument of the same annotation and the same shape is no witness: it may have been made by the same mistake.
    """
    spec, shape = call.terms.parameters[name].tensor, call.shape(name)
    text = spec.describe() if spec is not None else ""
    twins = {
        p.name
        for p in call.terms.tensors
        if call.shape(p.name) == shape and p.tensor is not None and p.tensor.describe() == text
    }
    wanted = {n for form in (spec.forms if spec is not None else ()) for dim in form.dims for n in dim.names}
    sizes: dict[str, int] = {}
    votes: dict[str, int] = {}
    for dim in wanted:
        derived = call.lets.get(dim) if dim not in call.terms.contract.tied else call.dims.get(dim)
        if isinstance(derived, int):
            sizes[dim] = derived
            continue
        for axis in call.terms.bare.get(dim, ()):
            if axis.parameter.name in (name, leave_out) or axis.parameter.name in twins:
                continue
            size = call.size(axis)
            if isinstance(size, int) and not (axis.dim.broadcast and size == 1):
                sizes.setdefault(dim, size)
                votes[dim] = votes.get(dim, 0) + (size == sizes[dim])
    return Told(sizes, votes)


def reshapings(name: str, outline: Outline, told: Told, spec: TensorSpec | None) -> Iterator[tuple[str, Outline, str]]:
    """Code behind the name, the tensor it gives, and a text where the code alone would not do.

    Views come first; a slice and a shape to have are told in words, since only the caller knows which rows belong
    to the call.
    """
    for form in spec.forms if spec is not None else ():
        same_rank = form.rank_fits(len(outline.shape))
        wrong = told.misfits(form, outline.shape) if same_rank else []
        # Axes in another order help only where the missing sizes are among them.
        if all(size in outline.shape for _, size, _ in wrong):
            for tail, changed in _views(outline, form, told):
                if changed.shape != outline.shape and told.fits(form, changed.shape):
                    yield tail, changed, ""
        if len(wrong) == 1:
            place, wanted, index = wrong[0]
            yield from _resized(name, outline, place, wanted, form.dims[index].text)
        elif wrong:
            sizes = list(outline.shape)
            for place, wanted, _ in wrong:
                sizes[place] = wanted
            changed = outline.dense(tuple(sizes))
            yield "", changed, f"`{name}` of shape {list(changed.shape)} would fit"


def _resized(name: str, outline: Outline, place: int, wanted: int, label: str) -> Iterator[tuple[str, Outline, str]]:
    size = outline.shape[place]
    shape = (*outline.shape[:place], wanted, *outline.shape[place + 1 :])
    if size == 1 and wanted > 1:
        sizes = ", ".join("-1" if i != place else str(n) for i, n in enumerate(shape))
        strides = tuple(0 if i == place else s for i, s in enumerate(outline.strides))
        yield f".expand({sizes})", replace(outline, shape=shape, strides=strides), ""
    elif 0 < wanted < size:
        index = ", ".join([":"] * place + [f"0:{wanted}"])
        share = f"one of its {size // wanted} slices" if size % wanted == 0 else "a slice"
        room = f"{label}={wanted}" if label != str(wanted) else f"{label} along axis {place}"
        text = f"{name} has {size} for {room}: pass {share}"
        yield f"[{index}]", replace(outline, shape=shape), f"{text}, such as `{name}[{index}]`"
    yield "", outline.dense(shape), f"`{name}` of shape {list(shape)} would fit"


def _views(outline: Outline, form: TensorForm, told: Told) -> Iterator[tuple[str, Outline]]:
    shape, strides, rank = outline.shape, outline.strides, len(outline.shape)
    wanted = len(form.dims)
    if form.variadic is not None:
        return
    if rank == wanted:
        for i in range(rank):
            for j in range(i + 1, rank):
                order = list(range(rank))
                order[i], order[j] = j, i
                yield f".transpose({i}, {j})", outline.take(order)
        for i in range(rank if rank < 5 else 0):
            for j in range(rank):
                if abs(i - j) > 1:
                    order = [a for a in range(rank) if a != i]
                    order.insert(j, i)
                    yield f".movedim({i}, {j})", outline.take(order)
    elif rank == wanted + 1:
        for i in range(rank):
            if shape[i] == 1:
                yield f".squeeze({i})", outline.take([a for a in range(rank) if a != i])
        for i in range(rank - 1):
            if strides[i] == strides[i + 1] * shape[i + 1]:
                joined = (*shape[:i], shape[i] * shape[i + 1], *shape[i + 2 :])
                yield f".flatten({i}, {i + 1})", replace(outline, shape=joined, strides=strides[:i] + strides[i + 1 :])
    elif rank == wanted - 1:
        for i in range(wanted):
            stride = shape[i] * strides[i] if i < rank else 1
            added = (*strides[:i], stride, *strides[i:])
            yield f".unsqueeze({i})", replace(outline, shape=(*shape[:i], 1, *shape[i:]), strides=added)
        for i in range(rank):
            inner = told.size(form, i + 1)
            if inner is not None and inner > 0 and shape[i] % inner == 0:
                parts = (shape[i] // inner, inner)
                split = (*strides[:i], strides[i] * inner, *strides[i:])
                changed = replace(outline, shape=(*shape[:i], *parts, *shape[i + 1 :]), strides=split)
                yield f".unflatten({i}, {parts})", changed


def conversions(
    outline: Outline, point: str, spec: TensorSpec | None, reference: Any, against: str
) -> Iterator[tuple[str, Outline]]:
    """Code behind the name and the tensor it gives, for a wrong dtype, device or layout."""
    constraints = spec.constraints if spec is not None else ()
    if point == "same_dtype" and reference is not None and _convertible(outline.dtype, reference.dtype):
        yield f".to({against}.dtype)", replace(outline, dtype=reference.dtype)
    elif point == "dtype" and spec is not None:
        for dtype in spec.dtypes() or ():
            if _convertible(outline.dtype, dtype):
                yield f".to({dtype})", replace(outline, dtype=dtype)
                return
    elif point == "same_device" and reference is not None and outline.device.type != "meta":
        yield f".to({against}.device)", replace(outline, device=reference.device)
    elif point == "device" and outline.device.type != "meta":
        for name in (t for c in constraints if isinstance(c, OnDevice) for t in c.types):
            yield f'.to("{name}")', replace(outline, device=torch.device(name))
    elif point in ("layout", "written", "no_overlap"):
        off = [c for c in constraints if isinstance(c, Aligned)]
        if outline.dense().strides != outline.strides and point != "no_overlap":
            yield ".contiguous()", outline.dense()
        elif point == "no_overlap" or (off and all(c.bytes <= _ALLOCATED for c in off)):
            yield ".clone()", outline.dense()


def _convertible(given: torch.dtype, wanted: torch.dtype) -> bool:
    return any(given in family and wanted in family for family in (_FLOATS, _INTEGERS)) or (
        given is torch.bool and wanted in _INTEGERS
    )
