"""Whether the numbers in device memory are looked at, and how: one switch for the process, like the enforcement."""

import os
import threading
from typing import Literal

ValueMode = Literal["off", "sync", "async"]

OFF, SYNC, ASYNC = 0, 1, 2
#: Added to one of them where launches are given a flag; behind ``MODES`` lies the mode alone.
IN_KERNEL, MODES = 4, 3
_CODES: dict[str, int] = {"off": OFF, "sync": SYNC, "async": ASYNC}

#: 0 where device memory is left alone and no launch has a flag; generated code tests it once a call.
current: int = OFF
#: Whether an asynchronous check keeps the stack of its call.
stacks: bool = False
_open: list["value_checks | tuple[int, bool]"] = []
_lock = threading.Lock()


def _code(mode: str) -> int:
    if mode not in _CODES:
        raise ValueError(f"value checks are one of {', '.join(_CODES)}, not {mode!r}")
    return _CODES[mode]


class value_checks:
    """Choose how clauses on values read device memory, for the whole process.

    ``value_checks("sync")`` switches at once; as a context manager it switches back at the end. Blocks of several
    threads may overlap: the one that began last is in force until it ends. Host copies, int arguments and tensors in
    host memory are read in every mode.

    Args:
        mode: ``"off"`` leaves device memory alone, ``"sync"`` reads it on every call and waits, ``"async"`` lets a
            kernel look and tell later.
        stacks: Keep the stack of every call that is looked at later, for the note of its error. It costs some 20 µs.
        in_kernel: Whether kernels that can do so report the numbers that they mask; None leaves it as it is.

    Raises:
        ValueError: There is no such mode.
    """

    def __init__(self, mode: ValueMode, *, stacks: bool = False, in_kernel: bool | None = None) -> None:
        code = _code(mode)
        with _lock:
            flags = current & IN_KERNEL if in_kernel is None else IN_KERNEL * in_kernel
            self._state = (code | flags, stacks)
            if not _open:
                _open.append(_state())
            _open.append(self)
            _set(self._state)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        with _lock:
            if self in _open:
                _open.remove(self)
            last = _open[-1]
            _set(last._state if isinstance(last, value_checks) else last)
            if len(_open) == 1:
                _open.clear()


def _state() -> tuple[int, bool]:
    return current, stacks


def _set(state: tuple[int, bool]) -> None:
    global current, stacks
    current, stacks = state


def current_mode() -> str:
    """Name of the mode in force."""
    return next(name for name, code in _CODES.items() if code == current & MODES)


def _from_environment() -> int:
    code = _code(os.environ.get("TENSORPACT_VALUES", "off") or "off")
    flags = os.environ.get("TENSORPACT_VALUES_IN_KERNEL", "0") or "0"
    if flags not in ("0", "1"):
        raise ValueError(f"TENSORPACT_VALUES_IN_KERNEL is 0 or 1, not {flags!r}")
    return code | IN_KERNEL * int(flags)


current = _from_environment()
