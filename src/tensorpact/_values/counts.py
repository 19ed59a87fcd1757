"""What became of clauses on values: how often device memory was looked at, and why it was not."""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

_lock = threading.Lock()
_done: Counter[str] = Counter()
_skipped: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class ValueReport:
    """How often value checks of device memory ran, and how often they could not.

    Attributes:
        sync: Calls that were checked before they ran.
        launched: Checker kernels that were started, or captured into a graph.
        skipped: Reason to number of calls in which a check of device memory was left out.
        dropped: Violations that found no room in the mailbox.
        pending: Violations that are known and not raised yet.
        in_kernel: Launches that were told to report what they mask, or captured into a graph.
    """

    sync: int
    launched: int
    skipped: Mapping[str, int]
    dropped: int
    pending: int
    in_kernel: int = 0


def did(what: str) -> None:
    """Count a call that was checked."""
    with _lock:
        _done[what] += 1


def skip(reason: str) -> None:
    """Count a call in which something was not looked at."""
    with _lock:
        _skipped[reason] += 1


def taken() -> tuple[dict[str, int], dict[str, int]]:
    """The counts as they are."""
    with _lock:
        return dict(_done), dict(_skipped)


def clear() -> None:
    """Begin anew."""
    with _lock:
        _done.clear()
        _skipped.clear()
