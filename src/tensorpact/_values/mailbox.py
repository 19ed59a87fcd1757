"""Where a checker kernel finds the checks of a call and leaves what it found: memory of the host that it can reach.

A mailbox is one block of 64-bit words. Behind a head of 16 words (how many records the host has read; how many found
no room) lies a ring of records, 8 words each. Then come tables: one for each call in flight, used again once the kernel
has stamped them, and one for every captured launch, kept for the replays.
"""

import ctypes
import threading
from array import array
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .table import WORDS, Table

RING = 64
HEAD, RECORD, HEADER = 16, 8, 8
#: Longest table; calls in flight; words for captured tables, and how many these may be.
MOST_ROWS, SLOTS, CAPTURED_WORDS, CAPTURED = 32, 256, 1 << 20, 4096
_SLOT = HEADER + MOST_ROWS * WORDS
#: Words of the counters that say which calls have told of a number in their own kernel: plain ones, then captured ones.
TOLD = 1024
_COUNTERS = 2 + TOLD
#: What a kernel has in the place of nothing found.
NONE = 1 << 62
_TAGS = 65535


@dataclass(frozen=True, slots=True)
class Record:
    """What a kernel found.

    Attributes:
        call: Number of the call.
        row: Which of its checks.
        place: Place of the entry.
        value: The number there.
        limit: What it breaks.
        run: Which run of the launch it was: above 1 in a replayed graph.
    """

    call: int
    row: int
    place: int
    value: int
    limit: int
    run: int


class Mailbox:
    """The block of one device.

    Args:
        device: Where the kernels run. For a CPU the block is plain memory.
        slots: Calls that may be in flight.
    """

    def __init__(self, device: torch.device, slots: int = SLOTS) -> None:
        self.device = device
        size = HEAD + RING * RECORD + slots * _SLOT + CAPTURED_WORDS
        #: The block as a tensor, which a launch takes.
        self.memory: Tensor = torch.zeros(size, dtype=torch.int64, pin_memory=device.type != "cpu")
        #: The same for the host: a plain load and a plain store each.
        self.words: Any = memoryview((ctypes.c_int64 * size).from_address(self.memory.data_ptr())).cast("B").cast("q")
        #: Tickets given and records dropped; what kernels have told of themselves; then for each table what was found,
        #: programs done, and runs.
        self.counters: Tensor = torch.zeros(_COUNTERS + 4 * (slots + CAPTURED), dtype=torch.int64, device=device)
        self.counters[_COUNTERS::4].fill_(NONE)
        #: Records read; where the next one begins, and the mark that it bears.
        self.next, self.at, self.tag = 0, HEAD, 1
        self._lock = threading.Lock()
        self._slots = slots
        self._at = 0
        self._calls = [0] * slots
        self._captured = 0
        self._captured_words = HEAD + RING * RECORD + slots * _SLOT

    def room(self, captured: bool, table: Table) -> tuple[int, int] | None:
        """Where the table of a call may stand, and its counter; None where there is no room.

        Args:
            captured: Whether the launch becomes part of a graph.
            table: The checks.
        """
        with self._lock:
            if captured:
                length = HEADER + len(table.words)
                if self._captured == CAPTURED or self._captured_words + length > len(self.words):
                    return None
                place, counter = self._captured_words, self._slots + self._captured
                self._captured_words += length
                self._captured += 1
                return place, _COUNTERS + 4 * counter
            slot = self._at
            place = HEAD + RING * RECORD + slot * _SLOT
            if self._calls[slot] != self.words[place + 2]:
                # The kernel of the call that stands here has not run yet.
                return None
            self._calls[slot] = -1
            self._at = (slot + 1) % self._slots
            return place, _COUNTERS + 4 * slot

    def write(self, place: int, call: int, words: "array[int]") -> None:
        """Write the table of a call.

        Args:
            place: Where it stands.
            call: Number of the call.
            words: The checks.
        """
        slot = (place - HEAD - RING * RECORD) // _SLOT
        if slot < self._slots:
            self._calls[slot] = call
        self.words[place : place + HEADER] = array("q", (call, 0, 0, 0, 0, 0, 0, 0))
        self.words[place + HEADER : place + HEADER + len(words)] = words

    def has_mail(self) -> bool:
        """Whether a record has come: one plain load."""
        return self.words[self.at] & 0xFFFF == self.tag

    def read(self) -> Record | None:
        """The next record, where all of it is there."""
        with self._lock:
            words = self.words[self.at : self.at + RECORD].tolist()
            if any(word & 0xFFFF != self.tag for word in words):
                return None
            self.next += 1
            self.at, self.tag = HEAD + self.next % RING * RECORD, self.next % _TAGS + 1
            self.words[0] = self.next
        call, row, place, high, low, limit_high, limit_low, run = [word >> 16 & (1 << 48) - 1 for word in words]
        return Record(call, row, place, _signed(high, low), _signed(limit_high, limit_low), run)

    @property
    def dropped(self) -> int:
        """Violations that found no room; may lag a moment behind."""
        return self.words[1]


def _signed(high: int, low: int) -> int:
    number = high << 32 | low
    return number - (1 << 64) if number >> 63 else number
