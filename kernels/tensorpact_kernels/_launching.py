"""Starting Triton kernels: on which device, with what it can do, and again without a second look at the arguments."""

# Triton has no stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

import contextlib
import functools
import importlib
from collections.abc import Hashable
from typing import Any

import torch

_REMEMBERED = 256
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


class Launcher:
    """Starts one kernel, and starts a compiled form of it directly where the caller's key was seen before.

    Triton reads every argument of every launch to find the compiled form, which takes longer on the host than a small
    decode step on the device. The key names all that the choice depends on, so that it is made once.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[Hashable, tuple[Any, tuple[Any, ...]]] = {}

    def __call__(
        self, key: Hashable, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any], **options: Any
    ) -> None:
        """Start the kernel on a grid of one axis.

        Args:
            key: Device, dtypes, strides and constants, of a call whose pointers are multiples of 16 bytes; None for
                a launch that Triton is to look at.
            programs: Size of the grid.
            arguments: Run-time arguments, in the kernel's order.
            constants: The ``constexpr`` parameters, which stand behind them in the kernel.
            options: Warps, stages and registers.
        """
        found = None if key is None else self._compiled.get(key)
        if found is not None:
            compiled, trailing = found
            compiled[(programs, 1, 1)](*arguments, *trailing)
            return
        compiled = self._kernel[(programs,)](*arguments, **constants, **options)
        if key is not None and type(compiled).__name__ == "CompiledKernel":
            if len(self._compiled) >= _REMEMBERED:
                self._compiled.clear()
            given = constants | options
            trailing = tuple(given[name] for name in self._kernel.arg_names[len(arguments) :])
            self._compiled[key] = compiled, trailing


@functools.cache
def _multiprocessors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count
