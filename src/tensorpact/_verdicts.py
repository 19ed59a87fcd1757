"""What can be said of an obligation: it holds, it is broken and why, or it cannot be told."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ._fitting import has_no_sizes
from ._terms import Obligation


@dataclass(frozen=True, slots=True)
class Broken:
    """Something that does not hold.

    Attributes:
        names: Parameters at fault.
        reason: The default text.
        documented: Class of the default error.
        axis: The conflicting axis of the first parameter, where there is one.
        dim: The dim in conflict.
        found: What a message may read of a number that breaks a clause on values.
    """

    names: tuple[str, ...]
    reason: str
    documented: type[Exception] = ValueError
    axis: int | None = None
    dim: str | None = None
    found: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that cannot be told.

    Attributes:
        because: Broken obligations underneath; none where only an absent optional argument is to blame.
    """

    because: tuple[Obligation, ...] = ()


Status = Broken | Unknown | None


def class_text(value: Any) -> str:
    """The name of a value's class; numpy's scalars with the name of their package, since one is called ``bool``."""
    kind = cast("type[Any]", type(value))
    package = kind.__module__.partition(".")[0]
    return f"numpy.{kind.__name__}" if package == "numpy" else kind.__name__


def scalar_text(value: Any) -> str:
    """A scalar behind the name of its class; nothing for any other value."""
    if not isinstance(value, (bool, int, float, str)):
        return ""
    shown = repr(value)
    return f" {shown if len(shown) <= 40 else f'{shown[:40]}…'}"


def odd_tensor(name: str, value: Any) -> str:
    """Why a tensor is none that the annotation means."""
    if has_no_sizes(value):
        return "is a nested tensor of layout torch.strided, which has no sizes; layout=torch.jagged has"
    local = f"`{name}.to_local()` of shape {list(value.to_local().shape)}"
    whole = "or annotate the whole with the class DTensor"
    return f"is a DTensor, {list(value.shape)} over all devices; pass the local shard, {local}, {whole}"


def unequal_dtype(name: str, dtype: Any, first: str, wanted: Any) -> Broken:
    """What is broken where two tensors should have one dtype."""
    return Broken((name,), f"{name}: dtype is {dtype}, but {first} has {wanted}", TypeError)
