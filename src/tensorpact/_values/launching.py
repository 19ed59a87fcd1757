"""Starting the checker kernel on the stream of the call."""

# Triton has no stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

import contextlib
import functools
import importlib
import importlib.util
from typing import Any

import torch

from .mailbox import RING, Mailbox
from .table import BLOCK


@functools.cache
def kernel() -> Any:
    """The kernel, or None without Triton."""
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module(".device", __package__).check_values_kernel


def start(box: Mailbox, place: int, counter: int, checks: int, parts: int) -> None:
    """Start the kernel.

    Args:
        box: Mailbox of the device.
        place: Where the table stands in it.
        counter: Where its counters stand.
        checks: Checks in the table.
        parts: Programs for each.
    """
    with current(box.device):
        kernel()[(checks, parts)](
            box.memory, box.counters, place, counter, RING=RING, BLOCK=BLOCK, num_warps=4, num_stages=1
        )


def current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make a device current, where it is not."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)
