"""Sizes, axes and ranks as a reader would say them."""

from typing import Any, cast

from ._annotations import TensorForm
from ._terms import Axis


def sizes_text(size: Any) -> str:
    """One size, or those of a variadic axis."""
    return str(list(cast("tuple[int, ...]", size))) if isinstance(size, tuple) else str(size)


def axis_text(axis: Axis) -> str:
    """Where an axis stands, for a reader: ``q axis 1``."""
    spec = axis.parameter.tensor
    variadic = spec.forms[0].variadic if spec is not None else None
    if variadic is None or axis.index < variadic:
        return f"{axis.parameter.name} axis {axis.index}"
    if axis.index == variadic:
        return f"{axis.parameter.name} axes {axis.dim.text}"
    count = len(spec.dims) if spec is not None else 0
    return f"{axis.parameter.name} axis {axis.index - count}"


def axes_text(count: int) -> str:
    """A number of axes."""
    return f"{count} ax{'i' if count == 1 else 'e'}s"


def rank_text(form: TensorForm) -> str:
    """The number of axes that a form wants."""
    return axes_text(len(form.dims)) if form.variadic is None else f"at least {axes_text(len(form.dims) - 1)}"
