"""Where a checker kernel finds the checks of a call and leaves what it found: memory of the host that it can reach.

A mailbox is one block of 64-bit words. Behind a head of 16 words (how many records the host has read; how many found
no room) lies a ring of records, 8 words each. Then come tables: one for each call in flight, used again once the kernel
has stamped it, and those of captured launches, kept for the replays. A table that comes again is copied to the memory
of the device, where a kernel reads it without the way over the bus.
"""

import ctypes
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .table import MOST_ROWS, WORDS, Table

RING = 64
HEAD, RECORD, HEADER = 16, 8, 8
#: Calls in flight; words for captured tables, and how many launches may be captured.
SLOTS, CAPTURED_WORDS, CAPTURED = 256, 1 << 20, 4096
#: Words for tables in the memory of the device; streams that checkers may run on.
RESIDENT_WORDS, STREAMS = 1 << 20, 256
_SLOT = HEADER + MOST_ROWS * WORDS
#: Words of the counters that say which calls have told of a number in their own kernel: plain ones, then captured ones.
TOLD = 1024
_COUNTERS = 3 + TOLD
#: What a kernel has in the place of nothing found.
NONE = 1 << 62
_TAGS = 65535


class Laid(NamedTuple):
    """Where the table of a launch lies.

    Attributes:
        address: Address of the words.
        stamp: Word that the kernel stamps with the number of the call; 0 for none.
    """

    address: int
    stamp: int


@dataclass(slots=True)
class _Resident:
    """A table in the memory of the device: its address, and the slot and call behind whose kernel it is there."""

    address: int
    slot: int
    call: int


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
        captured_words: Words for captured tables.
    """

    def __init__(self, device: torch.device, slots: int = SLOTS, captured_words: int = CAPTURED_WORDS) -> None:
        self.device = device
        size = HEAD + RING * RECORD + slots * _SLOT + captured_words
        # What is made under inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            #: The block as a tensor, which a launch takes.
            self.memory: Tensor = torch.zeros(size, dtype=torch.int64, device="cpu", pin_memory=device.type != "cpu")
            #: Tickets given, records dropped, and records read as far as the device knows; what kernels have told of
            #: themselves; then for each stream and each captured launch what was found, programs done, and runs.
            words = _COUNTERS + 4 * (STREAMS + CAPTURED)
            self.counters: Tensor = torch.zeros(words, dtype=torch.int64, device=device)
            self.counters[_COUNTERS::4].fill_(NONE)
            self._there: Tensor = torch.empty(RESIDENT_WORDS, dtype=torch.int64, device=device)
        #: The block for the host: a plain load and a plain store each.
        self.words: Any = memoryview((ctypes.c_int64 * size).from_address(self.memory.data_ptr())).cast("B").cast("q")
        #: Records read; where the next one begins, and the mark that it bears.
        self.next, self.at, self.tag = 0, HEAD, 1
        self._lock = threading.Lock()
        self._slots, self._slot, self._calls = slots, 0, [0] * slots
        #: Addresses of the block and of the counters.
        self.address, self.counters_address = self.memory.data_ptr(), self.counters.data_ptr()
        self._captured, self._captured_words = 0, HEAD + RING * RECORD + slots * _SLOT
        self._streams: dict[int, int] = {}
        self._resident: dict[bytes, _Resident] = {}
        self._resident_words = 0

    def counter(self, stream: int) -> int | None:
        """Where the counters of launches on a stream stand, which run one after the other; None where there is no room.

        Args:
            stream: The stream.
        """
        found = self._streams.get(stream)
        if found is None:
            with self._lock:
                if stream not in self._streams and len(self._streams) < STREAMS:
                    self._streams[stream] = _COUNTERS + 4 * len(self._streams)
            found = self._streams.get(stream)
        return found

    def captured_counter(self) -> int | None:
        """Where the counters of a captured launch stand; None where there is no room."""
        with self._lock:
            if self._captured == CAPTURED:
                return None
            self._captured += 1
            return _COUNTERS + 4 * (STREAMS + self._captured - 1)

    def lay(self, table: Table, call: int, *, captured: bool, again: bool) -> Laid | None:
        """Lay the table of a launch where its kernel finds it; None where there is no room.

        Args:
            table: The checks.
            call: Number of the call.
            captured: Whether the launch becomes part of a graph.
            again: Whether the same checks are going to be made again.
        """
        resident = self._resident.get(table.words)
        if resident is not None and self._has_run(resident):
            return Laid(resident.address, 0)
        with self._lock:
            length = len(table.words) // 8
            if captured:
                place = self._captured_words
                if place + length > len(self.words):
                    return None
                self._captured_words += length
                self._write(place, table.words)
                return Laid(self.address + 8 * place, 0)
            slot = self._free_slot()
            if slot is None:
                return None
            stamp = HEAD + RING * RECORD + slot * _SLOT
            self._calls[slot], self.words[stamp] = call, 0
            self._write(stamp + HEADER, table.words)
            if table.words not in self._resident:
                self._copy(table.words, stamp + HEADER, slot, call, again)
            return Laid(self.address + 8 * (stamp + HEADER), stamp)

    def take_back(self, table: Table, laid: Laid) -> None:
        """Undo that a table was laid, for a launch that has failed.

        Args:
            table: The checks.
            laid: What was handed out for them.
        """
        if not laid.stamp:
            return
        with self._lock:
            slot = (laid.stamp - HEAD - RING * RECORD) // _SLOT
            resident = self._resident.get(table.words)
            if resident is not None and (resident.slot, resident.call) == (slot, self._calls[slot]):
                # Nothing says when the copy is there.
                del self._resident[table.words]
            self.words[laid.stamp] = self._calls[slot]

    def _free_slot(self) -> int | None:
        """The next slot whose kernel has run; one that is late holds up no other."""
        for _ in range(self._slots):
            slot, self._slot = self._slot, (self._slot + 1) % self._slots
            if self._calls[slot] == self.words[HEAD + RING * RECORD + slot * _SLOT]:
                return slot
        return None

    def _copy(self, words: bytes, place: int, slot: int, call: int, again: bool) -> None:
        """Copy a table to the device in front of its kernel, on the same stream: once that has run, it is there."""
        begin, length = self._resident_words, len(words) // 8
        # Half of the room is for tables of which nobody knows yet whether they come again.
        if begin + length > (RESIDENT_WORDS if again else RESIDENT_WORDS // 2):
            return
        self._resident_words += length
        self._there[begin : begin + length].copy_(self.memory[place : place + length], non_blocking=True)
        self._resident[words] = _Resident(self._there.data_ptr() + 8 * begin, slot, call)

    def _has_run(self, resident: _Resident) -> bool:
        if not resident.call:
            return True
        stamp = HEAD + RING * RECORD + resident.slot * _SLOT
        # Another call has the slot only once the kernel of the one before has run.
        if self._calls[resident.slot] == resident.call and self.words[stamp] != resident.call:
            return False
        resident.call = 0
        return True

    def _write(self, place: int, words: bytes) -> None:
        self.words[place : place + len(words) // 8] = memoryview(words).cast("q")

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
