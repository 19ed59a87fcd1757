"""A call that fails while Dynamo traces it, in words: arguments as constants, judged on stand-ins without memory."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch

from ._annotations import TensorForm
from ._changes import Outline
from ._diagnosis import diagnose
from ._terms import Terms

Facts = tuple[Any, ...]


def facts_of(value: Any) -> Facts:
    """An argument as constants. Dynamo follows this: a size in an f-string becomes the number that it has now.

    A float does so as the key of a set.
    """
    if value is None or isinstance(value, (bool, str)):
        return ("same", value)
    if isinstance(value, int):
        return ("int", f"{value}")
    if isinstance(value, float):
        return ("same", next(iter({value})))
    if isinstance(value, torch.Tensor):
        sizes, strides = [f"{n}" for n in value.shape], [f"{n}" for n in value.stride()]
        return ("tensor", tuple(sizes), tuple(strides), value.dtype, value.device)
    if isinstance(value, (list, tuple)):
        items = [facts_of(item) for item in cast("list[Any]", value)]
        return ("list" if isinstance(value, list) else "tuple", tuple(items))
    return ("unknown",)


def proxy_among(values: Iterable[Any]) -> Any:
    """The first argument that ``torch.fx.symbolic_trace`` hands over in the place of a value, or None."""
    return next((v for v in values if type(v).__module__ == "torch.fx.proxy" and hasattr(v, "tracer")), None)


def told(terms: Terms, facts: Mapping[str, Facts]) -> str:
    """Class and text of the error that a call would raise outside of the tracer; empty where that cannot be told.

    Args:
        terms: The contract laid on the signature.
        facts: Parameter name to :func:`facts_of` its argument.
    """
    if not all(_any_tensor(form) for p in terms.tensors if p.tensor is not None for form in p.tensor.forms):
        return ""
    try:
        error = diagnose(terms, {name: _value(*fact) for name, fact in facts.items()})
    except Exception:  # noqa: BLE001 - a text is an extra; the call is refused with or without it
        return ""
    return "" if error is None else f"{type(error).__name__}: {error}"


def _any_tensor(form: TensorForm) -> bool:
    return form.array_type in (torch.Tensor, Any)


def _value(kind: str, *rest: Any) -> Any:
    if kind == "same":
        return rest[0]
    if kind == "int":
        return int(rest[0])
    if kind == "tensor":
        sizes, strides, dtype, device = rest
        return Outline(tuple(map(int, sizes)), tuple(map(int, strides)), dtype, device).stand_in()
    if kind in ("list", "tuple"):
        items = [_value(*item) for item in rest[0]]
        return items if kind == "list" else tuple(items)
    raise ValueError(kind)
