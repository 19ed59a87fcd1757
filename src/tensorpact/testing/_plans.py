"""Arguments as data: what one tensor looks like, how it is made, and the Python code that makes it."""

import collections
import copy
import enum
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from tensorpact import name_axes

from ._wholes import Whole, identifier, parts_of, put_together

_DTYPES = frozenset(d for d in vars(torch).values() if isinstance(d, torch.dtype))
_BYTE_FLOATS = frozenset(d for d in _DTYPES if str(d).count("float8") or str(d).count("float4"))
#: Dtypes that torch moves as bytes and copies not at all.
_PACKED = frozenset(d for d in _DTYPES if str(d).count("float4"))
#: Dtypes without a sign: the scales of MX formats.
_UNSIGNED = frozenset(d for d in _DTYPES if str(d).count("float8_e8m0"))


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """Metadata of one tensor argument.

    Attributes:
        shape: Sizes.
        dtype: Dtype.
        device: Device as text.
        strides: Strides in elements; None for a dense row-major tensor.
        offset: Elements in front of the first one.
        base: Argument whose storage this one shares, or None.
        axes: Names that the program gives to the axes, or None.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str = "cpu"
    strides: tuple[int, ...] | None = None
    offset: int = 0
    base: str | None = None
    axes: str | None = None

    def stride(self) -> tuple[int, ...]:
        """Strides in elements, whether given or dense."""
        return dense_strides(self.shape) if self.strides is None else self.strides

    def span(self) -> int:
        """Elements of storage that the tensor needs."""
        if 0 in self.shape:
            return self.offset
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride(), strict=True))


@dataclass(frozen=True, slots=True)
class Opaque:
    """An argument that is handed over as it is, such as a ``self``."""

    value: Any


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense row-major tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def plan_of(value: Any) -> Any:
    """The plan of an existing argument."""
    if type(value) is torch.Tensor:
        strides = None if value.is_contiguous() else tuple(value.stride())
        return TensorPlan(tuple(value.shape), value.dtype, str(value.device), strides)
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        return value
    if isinstance(value, (tuple, list)):
        items = cast("tuple[Any, ...] | list[Any]", value)
        if all(isinstance(item, (bool, int, float, str)) for item in items):
            return items
    return Opaque(value)


def build(plans: Mapping[str, Any], seed: int | None = None) -> dict[str, Any]:
    """Make the arguments.

    Args:
        plans: Parameter name to plan or plain value.
        seed: Seed of the values of floating tensors; None leaves every tensor at zero. Integer tensors hold zeros.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    needed = {n: p.span() for n, p in plans.items() if isinstance(p, TensorPlan)}
    made: dict[str, Any] = {}
    for name, plan in plans.items():
        if isinstance(plan, TensorPlan):
            if plan.base is None:
                shared = [p for p in plans.values() if isinstance(p, TensorPlan) and p.base == name]
                size = max([needed[name], *(-(-p.span() * p.dtype.itemsize // plan.dtype.itemsize) for p in shared)])
                made[name] = _tensor(plan, size, generator)
        else:
            made[name] = copied(plan.value) if isinstance(plan, Opaque) else plan
    for name, plan in plans.items():
        if isinstance(plan, TensorPlan) and plan.base is not None:
            storage = made[plan.base].untyped_storage()
            empty = torch.empty(0, dtype=plan.dtype, device=plan.device)
            made[name] = empty.set_(storage, plan.offset, plan.shape, plan.stride())
    for name, plan in plans.items():
        if isinstance(plan, TensorPlan) and plan.axes is not None:
            name_axes(made[name], plan.axes)
    put_together(plans, made)
    inner = parts_of(plans)
    for name in plans:
        owner, dot, field = name.partition(".")
        if dot and name not in inner:
            # A frozen dataclass has fields too.
            object.__setattr__(made[owner], field, made[name])
    return {name: made[name] for name in plans if "." not in name and name not in inner}


def copied(value: Any) -> Any:
    """A copy of an object, so that no call sees what another one did to it; the object itself where it has none."""
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - what cannot be copied is handed over as it is
        return value


def _tensor(plan: TensorPlan, size: int, generator: torch.Generator | None) -> torch.Tensor:
    if plan.device == "meta":
        return torch.empty_strided(plan.shape, plan.stride(), dtype=plan.dtype, device="meta")
    if generator is None or not (plan.dtype.is_floating_point or plan.dtype.is_complex):
        flat = torch.zeros(size, dtype=torch.uint8 if plan.dtype in _PACKED else plan.dtype, device=plan.device)
    elif plan.dtype in _PACKED:
        flat = torch.randint(256, (size,), dtype=torch.uint8, generator=generator).to(plan.device)
    else:
        wide = torch.complex64 if plan.dtype.is_complex else torch.float32
        flat = torch.randn(size, dtype=wide, generator=generator)
        flat = (flat.abs() if plan.dtype in _UNSIGNED else flat).to(device=plan.device, dtype=plan.dtype)
    flat = flat.view(plan.dtype)
    if plan.strides is None and plan.offset == 0 and size == plan.span():
        return flat.view(plan.shape)
    return flat.as_strided(plan.shape, plan.stride(), plan.offset)


def is_storage_float(dtype: torch.dtype) -> bool:
    """Whether a dtype is a float of one byte or less, which stores numbers and computes nothing."""
    return dtype in _BYTE_FLOATS


def differing_bits(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether two tensors of one shape differ in any bit, NaN included."""
    if before.numel() == 0:
        return False
    # A view of other element size wants stride 1, which contiguous() leaves alone on an axis of size 1.
    given = [t.view(torch.uint8) if t.dtype in _PACKED else t for t in (before, after)]
    raw = [torch.empty(t.numel(), dtype=t.dtype, device=t.device).copy_(t.reshape(-1)) for t in given]
    return not torch.equal(raw[0].view(torch.uint8), raw[1].view(torch.uint8))


def _shown(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, float):
        return repr(value) if value - value == 0 else f'float("{value}")'
    return repr(value)


def _tensor_code(name: str, plan: TensorPlan, size: int, value: Any) -> str:
    dtype = f"dtype={plan.dtype}"
    if plan.base is not None:
        return (
            f"{name} = torch.empty(0, {dtype}).set_("
            f"{identifier(plan.base)}.untyped_storage(), {plan.offset}, {plan.shape}, {plan.stride()})"
        )
    if plan.device == "meta":
        if plan.strides is None:
            return f'{name} = torch.empty({plan.shape}, {dtype}, device="meta")'
        return f'{name} = torch.empty_strided({plan.shape}, {plan.strides}, {dtype}, device="meta")'
    device = "" if plan.device == "cpu" else f', device="{plan.device}"'
    if isinstance(value, torch.Tensor) and not value.is_floating_point() and 0 < value.numel() <= 64:
        literal = f"{name} = torch.tensor({value.tolist()}, {dtype}{device})"
        if plan.strides is None and plan.offset == 0 and bool(value.any()):
            return literal
    floating = plan.dtype.is_floating_point
    dense = plan.strides is None and plan.offset == 0 and size == plan.span()
    shape = plan.shape if dense else (size,)
    text = _filled(plan.dtype, shape) if floating else f"torch.zeros({shape}, {dtype}{device})"
    if floating and device:
        text += f'.to("{plan.device}")'
    if dense:
        return f"{name} = {text}"
    line = f"{name} = {text}.as_strided({plan.shape}, {plan.stride()}, {plan.offset})"
    if isinstance(value, torch.Tensor) and not floating and 0 < value.numel() <= 64 and bool(value.any()):
        line += f"\n{name}.copy_(torch.tensor({value.tolist()}))"
    return line


def _filled(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """Code of a floating tensor with random values."""
    if dtype in _PACKED:
        return f"torch.randint(256, {shape}, dtype=torch.uint8).view({dtype})"
    sign = ".abs()" if dtype in _UNSIGNED else ""
    return f"torch.randn({shape}){sign}{f'.to({dtype})' if dtype != torch.float32 else ''}"


def code(
    module: str,
    function: str,
    plans: Mapping[str, Any],
    marks: Mapping[str, str],
    backend: str,
    values: Mapping[str, Any] | None = None,
    mode: str = "compiled",
) -> str:
    """Python that makes the arguments and calls the function; a whole program.

    Args:
        module: Where to import the function from.
        function: Its qualified name.
        plans: Parameter name to plan or plain value.
        marks: What stands in front of an argument: ``name=``, ``*`` or ``**``; nothing for most.
        backend: Backend in force.
        values: The arguments where the numbers in integer tensors matter.
        mode: Enforcement mode to set.
    """
    top, _, rest = function.partition(".")
    inner = parts_of(plans)
    lines = ["import torch", "import tensorpact", f"from {module} import {top}", ""]
    lines[3:3] = sorted(_imports(plans) - {lines[2]})
    if any(isinstance(p, TensorPlan) and p.device != "meta" and p.dtype.is_floating_point for p in plans.values()):
        lines.append("torch.manual_seed(0)")
    order = sorted(plans, key=lambda n: (not isinstance(plans[n], Opaque), getattr(plans[n], "base", None) is not None))
    for name in order:
        plan, variable = plans[name], identifier(name) if name in inner else name
        if isinstance(plan, TensorPlan):
            shared = [p for p in plans.values() if isinstance(p, TensorPlan) and p.base == name]
            size = max([plan.span(), *(-(-p.span() * p.dtype.itemsize // plan.dtype.itemsize) for p in shared)])
            value = (values or {}).get(name)
            lines.append(_tensor_code(variable, plan, size, value))
            if isinstance(value, torch.Tensor) and value.requires_grad:
                lines.append(f"{variable}.requires_grad_()")
            if plan.axes is not None:
                lines.append(f'tensorpact.name_axes({variable}, "{plan.axes}")')
        elif isinstance(plan, Opaque):
            lines.append(f"{variable} = ...  # {type(plan.value).__name__}: as your factory makes it")

    def text(name: str) -> str:
        plan = plans[name]
        if isinstance(plan, Whole):
            return plan.text([text(part) for part in plan.parts])
        if isinstance(plan, (TensorPlan, Opaque)):
            return identifier(name) if name in inner else name
        return _shown(plan)

    outer = [n for n in plans if n not in inner]
    lines += [f"{n} = {_shown(plans[n])}" for n in outer if "." in n and not isinstance(plans[n], TensorPlan)]
    call = [
        f"{marks.get(n, '')}{text(n)}" for n in outer if "." not in n and not _collects_none(plans[n], marks.get(n))
    ]
    if mode != "compiled":
        lines.append(f'tensorpact.enforcement("{mode}")')
    indent = ""
    if backend != "auto":
        lines.append(f'with tensorpact.use_backend("{backend}"):')
        indent = "    "
    own = plans.get("self")
    if own is not None and not rest and not isinstance(own, Whole):
        # What is looked at is the object itself, as making it does.
        lines.insert(0, "import dataclasses")
        lines.append(f"{indent}dataclasses.replace(self)")
    elif own is not None and not rest:
        lines.append(f"{indent}{text('self')}")
    else:
        target = f"{top}.{rest}" if rest else top
        lines.append(f"{indent}{target}({', '.join(call)})")
    return "\n".join(lines) + "\n"


def _collects_none(plan: Any, mark: str | None) -> bool:
    return mark in ("*", "**") and isinstance(plan, Whole) and not plan.parts


def _imports(plans: Mapping[str, Any]) -> set[str]:
    """Imports of the classes that the arguments are made of."""
    classes = {type(p) for p in plans.values() if isinstance(p, enum.Enum)}
    classes |= {p.cls for p in plans.values() if isinstance(p, Whole) and p.form in ("fields", "object")}
    found = {f"from {c.__module__} import {c.__qualname__.partition('.')[0]}" for c in classes}
    if any(isinstance(p, Whole) and p.form == "sequence" and p.cls is collections.deque for p in plans.values()):
        found.add("import collections")
    return found


def derived_seed(*parts: Any) -> int:
    """A seed of its own for each purpose, the same in every process."""
    return random.Random(":".join(map(str, parts))).getrandbits(32)
