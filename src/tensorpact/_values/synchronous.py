"""Looking at device memory in the call itself: the checker's kernel, a wait for its stream, a look at the mailbox."""

import itertools
import threading
from collections.abc import Sequence

import torch

from . import counts, launching
from .mailbox import Mailbox
from .rows import Row
from .table import Table, encode, why_not

#: Tables that may wait to be copied to the device; each call waits for its own.
_SLOTS = 8
_numbers = itertools.count(1)
# A mailbox has one reader. Several threads would wait for the device one after the other anyway.
_lock = threading.Lock()
_boxes: dict[torch.device, Mailbox] = {}


def holds(device: torch.device, rows: Sequence[Row]) -> tuple[bool, list[Row]]:
    """Whether the checks hold that the kernel can make, and the checks that it cannot.

    Args:
        device: Where the numbers lie.
        rows: The checks.
    """
    if not launching.reaches(device):
        return True, list(rows)
    reasons = [why_not(row) for row in rows]
    fit = [row for row, reason in zip(rows, reasons, strict=True) if not reason]
    rest = [row for row, reason in zip(rows, reasons, strict=True) if reason]
    with _lock, launching.current(device):
        box = _boxes.get(device)
        if box is None:
            box = _boxes[device] = Mailbox(device, _SLOTS, captured_words=0)
        stream = launching.stream_of(device)
        counter = box.counter(stream)
        if counter is None:
            # More streams than there are counters for.
            return True, list(rows)
        try:
            return not fit or all(_look(box, table, stream, counter) for table in encode(fit)), rest
        except Exception as reason:  # noqa: BLE001 - a kernel that cannot be compiled, say: torch looks instead
            counts.skip(f"the kernel has not looked, but torch: {type(reason).__name__}")
            return True, list(rows)


def _look(box: Mailbox, table: Table, stream: int, counter: int) -> bool:
    """Whether the checks of one table hold."""
    call = next(_numbers)
    laid = box.lay(table, call, captured=False, again=True)
    if laid is None:
        raise RuntimeError("the device has not run a check of values that was waited for")
    try:
        launching.start(box, laid, counter, call, table, [tensor.data_ptr() for tensor in table.tensors], stream)
        launching.wait(box.device)
    except BaseException:
        box.take_back(table, laid)
        raise
    return box.read() is None
