"""Arguments as data: what one tensor looks like, how it is made, and the Python code that makes it."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tensorpact import name_axes

#: Dtypes whose random values come from a normal distribution.
_BYTE_FLOATS = frozenset(d for d in vars(torch).values() if isinstance(d, torch.dtype) and str(d).count("float8"))


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
            made[name] = plan.value if isinstance(plan, Opaque) else plan
    for name, plan in plans.items():
        if isinstance(plan, TensorPlan) and plan.base is not None:
            storage = made[plan.base].untyped_storage()
            empty = torch.empty(0, dtype=plan.dtype, device=plan.device)
            made[name] = empty.set_(storage, plan.offset, plan.shape, plan.stride())
    for name, plan in plans.items():
        if isinstance(plan, TensorPlan) and plan.axes is not None:
            name_axes(made[name], plan.axes)
    return {name: made[name] for name in plans}


def _tensor(plan: TensorPlan, size: int, generator: torch.Generator | None) -> torch.Tensor:
    if plan.device == "meta":
        return torch.empty_strided(plan.shape, plan.stride(), dtype=plan.dtype, device="meta")
    if generator is None or not (plan.dtype.is_floating_point or plan.dtype.is_complex):
        flat = torch.zeros(size, dtype=plan.dtype, device=plan.device)
    else:
        wide = torch.complex64 if plan.dtype.is_complex else torch.float32
        flat = torch.randn(size, dtype=wide, generator=generator).to(device=plan.device, dtype=plan.dtype)
    if plan.strides is None and plan.offset == 0 and size == plan.span():
        return flat.view(plan.shape)
    return flat.as_strided(plan.shape, plan.stride(), plan.offset)


def is_storage_float(dtype: torch.dtype) -> bool:
    """Whether a dtype is a one-byte float, which stores numbers and computes nothing."""
    return dtype in _BYTE_FLOATS


def differing_bits(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether two tensors of one shape differ in any bit, NaN included."""
    if before.numel() == 0:
        return False
    # A view of other element size wants stride 1, which contiguous() leaves alone on an axis of size 1.
    raw = [torch.empty(t.numel(), dtype=t.dtype, device=t.device).copy_(t.reshape(-1)) for t in (before, after)]
    return not torch.equal(raw[0].view(torch.uint8), raw[1].view(torch.uint8))


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return repr(value) if value - value == 0 else f'float("{value}")'
    return repr(value)


def _tensor_code(name: str, plan: TensorPlan, size: int, value: Any) -> str:
    dtype = f"dtype={plan.dtype}"
    if plan.base is not None:
        return (
            f"{name} = torch.empty(0, {dtype}).set_("
            f"{plan.base}.untyped_storage(), {plan.offset}, {plan.shape}, {plan.stride()})"
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
    text = (
        f"torch.randn({shape}){f'.to({plan.dtype})' if plan.dtype != torch.float32 else ''}"
        if floating
        else (f"torch.zeros({shape}, {dtype}{device})")
    )
    if floating and device:
        text += f'.to("{plan.device}")'
    if dense:
        return f"{name} = {text}"
    line = f"{name} = {text}.as_strided({plan.shape}, {plan.stride()}, {plan.offset})"
    if isinstance(value, torch.Tensor) and not floating and 0 < value.numel() <= 64 and bool(value.any()):
        line += f"\n{name}.copy_(torch.tensor({value.tolist()}))"
    return line


def code(
    module: str,
    function: str,
    plans: Mapping[str, Any],
    keywords: frozenset[str],
    backend: str,
    values: Mapping[str, Any] | None = None,
    mode: str = "compiled",
) -> str:
    """Python that makes the arguments and calls the function; a whole program.

    Args:
        module: Where to import the function from.
        function: Its qualified name.
        plans: Parameter name to plan or plain value.
        keywords: Parameters that go by name.
        backend: Backend in force.
        values: The arguments where the numbers in integer tensors matter.
        mode: Enforcement mode to set.
    """
    top, _, rest = function.partition(".")
    lines = ["import torch", "import tensorpact", f"from {module} import {top}", ""]
    if any(isinstance(p, TensorPlan) and p.device != "meta" and p.dtype.is_floating_point for p in plans.values()):
        lines.append("torch.manual_seed(0)")
    order = sorted(plans, key=lambda n: getattr(plans[n], "base", None) is not None)
    for name in order:
        plan = plans[name]
        if isinstance(plan, TensorPlan):
            shared = [p for p in plans.values() if isinstance(p, TensorPlan) and p.base == name]
            size = max([plan.span(), *(-(-p.span() * p.dtype.itemsize // plan.dtype.itemsize) for p in shared)])
            lines.append(_tensor_code(name, plan, size, (values or {}).get(name)))
            if plan.axes is not None:
                lines.append(f'tensorpact.name_axes({name}, "{plan.axes}")')
        elif isinstance(plan, Opaque):
            lines.append(f"{name} = ...  # {type(plan.value).__name__}: as your factory makes it")
    call: list[str] = []
    for name, plan in plans.items():
        text = name if isinstance(plan, (TensorPlan, Opaque)) else _shown(plan)
        call.append(f"{name}={text}" if name in keywords else text)
    if mode != "compiled":
        lines.append(f'tensorpact.enforcement("{mode}")')
    indent = ""
    if backend != "auto":
        lines.append(f'with tensorpact.use_backend("{backend}"):')
        indent = "    "
    target = f"{top}.{rest}" if rest else top
    lines.append(f"{indent}{target}({', '.join(call)})")
    return "\n".join(lines) + "\n"


def derived_seed(*parts: Any) -> int:
    """A seed of its own for each purpose, the same in every process."""
    return random.Random(":".join(map(str, parts))).getrandbits(32)
