"""What the rules of several contracts ask of numbers: host copies, floats, and vectors that may be read."""

import sys
from collections.abc import Sequence
from numbers import Integral
from typing import Any, cast

import torch
from torch import Tensor

from tensorpact._values.judging import may_wait


def holds_ints(host: Any) -> bool:
    """Whether a host copy is a plain sequence of integers; every entry is looked at.

    Args:
        host: What the caller gave for one.
    """
    if not isinstance(host, Sequence) or isinstance(host, str | bytes):
        return False
    return all(type(entry) is int or (isinstance(entry, Integral) and not isinstance(entry, bool)) for entry in host)  # pyright: ignore[reportUnknownVariableType]


def is_sized(host: Any) -> bool:
    """Whether a host copy has a length.

    Args:
        host: What the caller gave for one.
    """
    try:
        return len(host) >= 0
    except TypeError:
        return False


def fits_float(number: float) -> bool:
    """Whether a number is finite as a float too; an int may be larger than any float, and smaller than infinity.

    Args:
        number: A float or an int.
    """
    # A narrow numpy float warns when it is compared with a number that it cannot hold.
    number = number if isinstance(number, int | float) else float(number)
    return -sys.float_info.max <= number <= sys.float_info.max


def host_values(tensor: Tensor) -> Sequence[int] | None:
    """The numbers of an integer vector, or None where they may not be read.

    A CUDA tensor is read under ``tensorpact.value_checks("sync")`` alone: the host waits for the device. That of an NPU
    is, since its operator takes boundaries from the host, so that the call waits for them in any case.

    Args:
        tensor: Vector of integers.
    """
    if torch.compiler.is_compiling() or not (tensor.is_cpu or tensor.device.type == "npu" or may_wait()):
        return None
    try:
        return cast("list[int]", tensor.tolist())
    except RuntimeError:
        # A fake or functional tensor says that it is in host memory, and has no numbers.
        return None
