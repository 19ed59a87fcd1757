"""Starting Triton kernels: on which device, with what it can do, and again without a second look at the arguments."""

# Triton has no stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

import contextlib
import functools
import importlib
from collections.abc import Callable, Hashable
from typing import Any

import torch

_REMEMBERED = 1024
_INTERPRETED_MULTIPROCESSORS = 4


def on_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make the tensors' device current for a launch, where it is not."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


def padded(size: int) -> int:
    """Return the next power of two that a matrix instruction accepts."""
    return max(16, 1 << (size - 1).bit_length())


def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors the device has."""
    return _multiprocessors(device.index) if device.type == "cuda" else _INTERPRETED_MULTIPROCESSORS


@functools.cache
def runs_on_hopper(module: str, index: int) -> bool:
    """Whether a module of Gluon kernels can be imported, and the device is one that they were written for.

    Args:
        module: Name of the module.
        index: Index of the CUDA device.
    """
    # AMD's gfx90a calls itself (9, 0) too.
    if torch.version.hip is not None or torch.cuda.get_device_capability(index) != (9, 0):
        return False
    try:
        importlib.import_module(module)
    except (ImportError, AttributeError):
        # Gluon is experimental: a Triton that lacks it, or a name of it, has the portable kernels.
        return False
    return True


class Launches:
    """Compiled kernels, ready to start again, by a key that names all that the choice of one depends on.

    Triton reads every argument of every launch to find the compiled form, which takes longer on the host than a small
    decode step on the device. Here it does so once for a key.
    """

    def __init__(self) -> None:
        self._ready: dict[Hashable, tuple[Callable[..., None], tuple[Any, ...]]] = {}

    def again(self, key: Hashable, *arguments: Any) -> bool:
        """Start the kernel that was started with this key before; false if there was none.

        Args:
            key: Sizes, strides, dtypes, device and options of a call whose pointers are multiples of 16 bytes.
            arguments: The run-time arguments that the key does not fix, which come first in the kernel; addresses in
                the place of tensors, so that Triton need not ask the driver about each.
        """
        found = self._ready.get(key)
        if found is None:
            return False
        start, fixed = found
        start(*arguments, *fixed)
        return True

    def first(
        self,
        key: Hashable,
        kernel: Any,
        programs: int,
        arguments: tuple[Any, ...],
        fixed: tuple[Any, ...],
        constants: dict[str, Any],
        **options: Any,
    ) -> None:
        """Start a kernel on a grid of one axis, and keep it under the key.

        Args:
            key: As for :meth:`again`; None for a launch that is not kept.
            kernel: A Triton or Gluon function.
            programs: Size of the grid.
            arguments: Run-time arguments that the key does not fix.
            fixed: Run-time arguments that it fixes, which come next in the kernel.
            constants: The ``constexpr`` parameters, which come last.
            options: Warps, stages and registers.
        """
        compiled = kernel[(programs,)](*arguments, *fixed, **constants, **options)
        # The interpreter gives nothing back.
        if key is None or compiled is None:
            return
        if len(self._ready) >= _REMEMBERED:
            self._ready.clear()
        given = constants | options
        last = tuple(given[name] for name in kernel.arg_names[len(arguments) + len(fixed) :])
        self._ready[key] = compiled[(programs, 1, 1)], (*fixed, *last)


@functools.cache
def _multiprocessors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count
