"""What a hint is: a jaxtyping array hint, or something that holds one."""

import typing
from typing import Any

from jaxtyping import AbstractArray


def is_tensor_hint(hint: Any) -> bool:
    """Whether a hint is a jaxtyping array hint."""
    return isinstance(hint, type) and issubclass(hint, AbstractArray) and hint is not AbstractArray


def mentions_tensor(hint: Any) -> bool:
    """Whether a hint holds a jaxtyping array hint anywhere inside."""
    return is_tensor_hint(hint) or any(mentions_tensor(a) for a in typing.get_args(hint))
