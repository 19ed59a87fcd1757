"""Asking for violations that asynchronous checks have found."""

from . import counts, pending
from .counts import ValueReport


def poll() -> None:
    """Raise the next violation that an asynchronous check or a kernel itself has found; nothing is waited for.

    Where nothing was found this is one plain load from host memory for each device. Every call of a function with
    clauses on values asks the same while ``value_checks("async")`` is in force, or kernels report.

    Raises:
        ContractViolation: The documented error of an earlier call; its note says which. Further ones stay for the next
            call of this.
    """
    if pending.waiting():
        error = pending.take()
        if error is not None:
            try:
                raise error
            finally:
                del error


def synchronize() -> None:
    """Wait until every asynchronous check has ended, and raise the next violation.

    Raises:
        ContractViolation: The documented error of an earlier call.
    """
    pending.wait()
    poll()


def value_report() -> ValueReport:
    """How often value checks of device memory ran, and how often and why they did not."""
    done, skipped = counts.taken()
    return ValueReport(
        sync=done.get("sync", 0),
        launched=done.get("launched", 0),
        skipped=skipped,
        dropped=pending.dropped(),
        pending=pending.pending(),
        in_kernel=done.get("in_kernel", 0),
    )
