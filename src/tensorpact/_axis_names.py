"""Names that a program gives to the axes of a tensor, for orders that no size can tell apart."""

from typing import TypeVar

import torch

#: Where the names are kept: on the tensor object, so that they go with it.
ATTRIBUTE = "_tensorpact_axes"

T = TypeVar("T", bound=torch.Tensor)


def name_axes(tensor: T, axes: str | None) -> T:
    """Say what the axes of a tensor count, once, where it is allocated.

    A parameter annotated with :class:`tensorpact.constraints.NamedAxes` accepts the tensor only if the names are the
    annotated ones, in the annotated order; a tensor without names is judged by its sizes alone, as everywhere else.
    That is of use where two axes have one size: ``[slots, HV, K, V]`` and ``[slots, HV, V, K]`` with ``K == V``.

    The names belong to this very object. Views, copies and results of operations have none: name them anew, or hand
    over the object that was named. Deep copies and pickles keep them.

    Args:
        tensor: Any tensor.
        axes: One name an axis, separated by blanks, as in an annotation; None to take the names away.

    Returns:
        The same tensor.

    Raises:
        TypeError: This is no tensor.
        ValueError: There are not as many names as axes.
    """
    given: object = tensor
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"only a tensor has axes to name, not {type(given).__name__}")
    names = None if axes is None else tuple(axes.split())
    if names is not None and len(names) != tensor.ndim:
        raise ValueError(f"{len(names)} names ({axes}) for the {tensor.ndim} axes of a tensor {list(tensor.shape)}")
    setattr(tensor, ATTRIBUTE, names)
    return tensor


def axis_names(tensor: torch.Tensor) -> tuple[str, ...] | None:
    """The names that :func:`name_axes` gave to a tensor, or None.

    Args:
        tensor: Any tensor.
    """
    return getattr(tensor, ATTRIBUTE, None)


def agree(names: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether names are those of an annotation: ``_`` stands for any one name, ``...`` for any number of them."""
    if "..." in wanted:
        at = wanted.index("...")
        behind = len(wanted) - at - 1
        if len(names) < at + behind:
            return False
        names = (*names[:at], *names[len(names) - behind :])
        wanted = (*wanted[:at], *wanted[at + 1 :])
    return len(names) == len(wanted) and all(w in ("_", n) for n, w in zip(names, wanted, strict=True))
