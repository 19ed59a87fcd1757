"""Starting the checker kernel on the stream of the call."""

# Triton has no stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

import contextlib
import functools
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import torch

from .mailbox import RING, Laid, Mailbox
from .table import BLOCK, MOST_TENSORS, Table

WARPS = 4
_NOTHING = (0,) * MOST_TENSORS
#: The kernel as it is compiled, by device.
_compiled: dict[torch.device, Any] = {}


@functools.cache
def kernel() -> Any:
    """The kernel, or None without Triton."""
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module(".device", __package__).check_values_kernel


def start(
    box: Mailbox, laid: Laid, counter: int, call: int, table: Table, addresses: Sequence[int], stream: int
) -> None:
    """Start the kernel.

    Args:
        box: Mailbox of the device.
        laid: Where the table lies.
        counter: Where its counters stand.
        call: Number of the call.
        table: The checks.
        addresses: One for each tensor of the table.
        stream: Where the kernel runs: the current stream of the device, which is current.
    """
    numbers = (
        box.address, box.counters_address, laid.address, counter, call, laid.stamp, table.programs, *addresses,
        *_NOTHING[len(addresses) :],
    )  # fmt: skip
    grid = (table.count, table.parts, 1)
    compiled = _compiled.get(box.device)
    if compiled is not None:
        # Every argument has one type only, so that nothing is to be looked up.
        compiled[grid](*numbers, RING, BLOCK, stream=stream)
        return
    compiled = kernel()[grid](*numbers, RING=RING, BLOCK=BLOCK, num_warps=WARPS, num_stages=1)
    # The interpreter has none.
    if compiled is not None:
        _compiled[box.device] = compiled


def stream_of(device: torch.device) -> int:
    """The current stream of a device, as a number.

    Args:
        device: The device; a CPU has the stream 0.
    """
    if device.type != "cuda":
        return 0
    return _driver().get_current_stream(device.index)


@functools.cache
def _driver() -> Any:
    return importlib.import_module("triton.runtime.driver").driver.active


def reaches(device: torch.device) -> bool:
    """Whether the kernel can look at the memory of a device.

    Args:
        device: The device.
    """
    return device.type == "cuda" and kernel() is not None


def wait(device: torch.device) -> None:
    """Wait for what has been started on the current stream of a device.

    Args:
        device: The device.
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def is_current(device: torch.device) -> bool:
    """Whether kernels are started on a device without more.

    Args:
        device: The device.
    """
    return device.type != "cuda" or device.index == torch.cuda.current_device()


def current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make a device current, where it is not.

    Args:
        device: The device.
    """
    return contextlib.nullcontext() if is_current(device) else torch.cuda.device(device)
