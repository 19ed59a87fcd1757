"""Looking at device memory in the call itself: the checker's kernel, a wait for its stream, a look at the mailbox."""

import itertools
import threading
from collections.abc import Sequence

import torch

from . import launching
from .mailbox import Mailbox
from .rows import Row
from .table import Table, Unsuitable, encode

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
    fit: list[Row] = []
    rest: list[Row] = []
    for row in rows:
        try:
            encode([row])
            fit.append(row)
        except Unsuitable:
            rest.append(row)
    with _lock, launching.current(device):
        return not fit or all(_look(device, table) for table in encode(fit)), rest


def _look(device: torch.device, table: Table) -> bool:
    """Whether the checks of one table hold."""
    box = _boxes.get(device)
    if box is None:
        box = _boxes[device] = Mailbox(device, _SLOTS, captured_words=0)
    stream, call = launching.stream_of(device), next(_numbers)
    laid, counter = box.lay(table, call, captured=False, again=True), box.counter(stream)
    if laid is None or counter is None:
        raise RuntimeError("the device has not run a check of values that was waited for")
    launching.start(box, laid, counter, call, table, [tensor.data_ptr() for tensor in table.tensors], stream)
    launching.wait(device)
    return box.read() is None
