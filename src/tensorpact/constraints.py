"""What jaxtyping cannot say about a tensor, as ``Annotated[...]`` metadata: device, dtype set, layout, alignment."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from ._axis_names import agree, axis_names
from ._errors import ContractDefinitionError

__all__ = [
    "Aligned",
    "Constraint",
    "Contiguous",
    "DenseInner",
    "DenseLast",
    "NamedAxes",
    "OnDevice",
    "OneOf",
    "Reach32",
    "SameDtype",
]


@dataclass(frozen=True, slots=True)
class Constraint:
    """Base of all constraints; ``kind`` says which clause claims it: ``layout``, ``device``, ``dtype``, ``named_axes``.

    Attributes:
        settled: Whether dtype, device, sizes and strides alone decide it, so that a remembered signature proves it.
    """

    settled: ClassVar[bool] = False

    @property
    def kind(self) -> Literal["layout", "device", "dtype", "named_axes"]:
        """Which clause claims this constraint."""
        return "layout"

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor meets it; metadata only, never data."""
        raise NotImplementedError

    def reason(self, tensor: torch.Tensor) -> str:
        """Why the tensor does not meet it, as the tail of a sentence that starts with its name."""
        raise NotImplementedError


def has_strides(tensor: torch.Tensor) -> bool:
    """Whether a tensor is memory with strides, and no sparse or blocked format."""
    return tensor.layout in (torch.strided, torch.jagged)


@dataclass(frozen=True, slots=True)
class DenseLast(Constraint):
    """The last axis has stride 1, or no stride that is ever used: one element, or none in the whole tensor.

    Attributes:
        strict: The stride must be 1 even where it is never used.
    """

    settled: ClassVar[bool] = True

    strict: bool = False

    def holds(self, tensor: torch.Tensor) -> bool:
        if tensor.ndim == 0:
            return True
        if not has_strides(tensor):
            return False
        return tensor.stride(-1) == 1 or (not self.strict and (tensor.shape[-1] <= 1 or tensor.numel() == 0))

    def reason(self, tensor: torch.Tensor) -> str:
        return f"last axis has stride {tensor.stride(-1)}, not 1 (strides {tuple(tensor.stride())})"


@dataclass(frozen=True, slots=True)
class Contiguous(Constraint):
    """Row-major and dense, as ``Tensor.is_contiguous`` has it."""

    settled: ClassVar[bool] = True

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_contiguous()

    def reason(self, tensor: torch.Tensor) -> str:
        return f"is not contiguous: shape {tuple(tensor.shape)} has strides {tuple(tensor.stride())}"


@dataclass(frozen=True, slots=True)
class DenseInner(Constraint):
    """The last ``axes`` axes are dense in order; the strides of the outer ones are free.

    Attributes:
        axes: How many axes from the end.
    """

    settled: ClassVar[bool] = True

    axes: int

    def __post_init__(self) -> None:
        if self.axes < 1:
            raise ContractDefinitionError(f"DenseInner({self.axes}): at least 1 axis from the end is dense")

    def holds(self, tensor: torch.Tensor) -> bool:
        if not has_strides(tensor):
            return False
        expected = 1
        inner = range(tensor.ndim - 1, max(tensor.ndim - self.axes, 0) - 1, -1)
        for axis in inner:
            size = tensor.shape[axis]
            if size > 1 and tensor.stride(axis) != expected:
                return tensor.numel() == 0
            expected *= size
        return True

    def reason(self, tensor: torch.Tensor) -> str:
        return f"last {self.axes} axes are not dense: shape {tuple(tensor.shape)} has strides {tuple(tensor.stride())}"


@dataclass(frozen=True, slots=True, init=False)
class OnDevice(Constraint):
    """The tensor lives on one of these device types.

    Attributes:
        types: Device types such as ``"cuda"``; HIP devices call themselves ``cuda`` in torch.
    """

    settled: ClassVar[bool] = True

    types: tuple[str, ...]

    def __init__(self, *types: str) -> None:
        given: tuple[object, ...] = types
        if not given or not all(isinstance(t, str) and t for t in given):
            raise ContractDefinitionError(f'OnDevice{given!r} takes device types such as "cuda"')
        object.__setattr__(self, "types", types)

    @property
    def kind(self) -> Literal["layout", "device", "dtype"]:
        return "device"

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type in self.types

    def reason(self, tensor: torch.Tensor) -> str:
        return f"is on {tensor.device}, not on {' or '.join(self.types)}"


@dataclass(frozen=True, slots=True, init=False)
class OneOf(Constraint):
    """The dtype is one of these.

    Attributes:
        dtypes: Torch dtypes.
    """

    settled: ClassVar[bool] = True

    dtypes: tuple[torch.dtype, ...]

    def __init__(self, *dtypes: torch.dtype) -> None:
        given: tuple[object, ...] = dtypes
        if not given or not all(isinstance(d, torch.dtype) for d in given):
            raise ContractDefinitionError(f"OneOf{given!r} takes dtypes such as torch.float16")
        object.__setattr__(self, "dtypes", dtypes)

    @property
    def kind(self) -> Literal["layout", "device", "dtype"]:
        return "dtype"

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.dtype in self.dtypes

    def reason(self, tensor: torch.Tensor) -> str:
        return f"dtype is {tensor.dtype}, not {' or '.join(str(d) for d in self.dtypes)}"


@dataclass(frozen=True, slots=True)
class SameDtype(Constraint):
    """All tensors of a call under one variable have one dtype: a dtype variable, as a dim name is a size variable.

    Attributes:
        variable: Name that the tensors share; it means nothing outside the call.
    """

    settled: ClassVar[bool] = True

    variable: str

    def __post_init__(self) -> None:
        name: object = self.variable
        if not (isinstance(name, str) and name.isidentifier()):
            raise ContractDefinitionError(f"SameDtype({name!r}): a dtype variable is a name such as 'T'")

    @property
    def kind(self) -> Literal["layout", "device", "dtype"]:
        return "dtype"

    def holds(self, tensor: torch.Tensor) -> bool:
        return True  # one tensor alone agrees with itself; whoever judges a call compares all of them

    def reason(self, tensor: torch.Tensor) -> str:
        return f"dtype is {tensor.dtype}, which others of {self.variable} do not have"


@dataclass(frozen=True, slots=True)
class NamedAxes(Constraint):
    """A tensor whose axes were named with ``tensorpact.name_axes`` has the annotated names, in the annotated order.

    Sizes cannot tell two axes of one size apart; names can. A tensor without names passes, and so does everything
    while tracing. An axis annotated by a number, ``_`` or ``...`` may have any name.

    Attributes:
        orders: The annotated axes of each form; filled in where the annotation is read.
    """

    orders: tuple[tuple[str, ...], ...] = ()

    @property
    def kind(self) -> Literal["layout", "device", "dtype", "named_axes"]:
        return "named_axes"

    def holds(self, tensor: torch.Tensor) -> bool:
        if torch.compiler.is_compiling():
            return True
        names = axis_names(tensor)
        return names is None or any(agree(names, order) for order in self.orders)

    def reason(self, tensor: torch.Tensor) -> str:
        wanted = " or ".join(f"[{', '.join(order)}]" for order in self.orders)
        return f"axes are named [{', '.join(axis_names(tensor) or ())}], expected {wanted}"


def _address(tensor: Any) -> int:
    # Fake and functional tensors have no address; asking them for one warns or raises.
    if tensor.is_meta or type(tensor) not in (torch.Tensor, torch.nn.Parameter) or torch.compiler.is_compiling():
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:  # a functorch wrapper has no storage of its own
        return 0


@dataclass(frozen=True, slots=True)
class Aligned(Constraint):
    """The first element's address is a multiple of this; not looked at while tracing.

    Attributes:
        bytes: Alignment in bytes.
    """

    bytes: int

    def __post_init__(self) -> None:
        if self.bytes < 1:
            raise ContractDefinitionError(f"Aligned({self.bytes}): an alignment is at least 1 byte")

    def holds(self, tensor: torch.Tensor) -> bool:
        return _address(tensor) % self.bytes == 0

    def reason(self, tensor: torch.Tensor) -> str:
        return f"starts {_address(tensor) % self.bytes} bytes past a multiple of {self.bytes}"


@dataclass(frozen=True, slots=True)
class Reach32(Constraint):
    """The largest element offset, in elements from the first one, is below 2³¹."""

    settled: ClassVar[bool] = True

    def holds(self, tensor: torch.Tensor) -> bool:
        return has_strides(tensor) and self._reach(tensor) < 2**31

    def _reach(self, tensor: torch.Tensor) -> int:
        if tensor.numel() == 0:
            return 0
        return sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))

    def reason(self, tensor: torch.Tensor) -> str:
        return f"reaches element offset {self._reach(tensor)}, beyond 32-bit addressing"
