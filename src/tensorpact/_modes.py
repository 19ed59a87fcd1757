"""The process-wide enforcement mode and backend: plain module attributes, so that Dynamo can guard on them."""

import os
import threading
from typing import Literal

Mode = Literal["compiled", "beartype", "off"]
Backend = Literal["auto", "triton", "naive", "npu"]

COMPILED, BEARTYPE, OFF = 0, 1, 2
_CODES: dict[str, int] = {"compiled": COMPILED, "beartype": BEARTYPE, "off": OFF}
_BACKENDS = ("auto", "triton", "naive", "npu")

#: 0 where the guard runs; generated code tests it once a call.
current: int = COMPILED
_backend: str = "auto"
#: The mode at the beginning, then every switch that has not been switched back, in order.
_open: list["enforcement | int"] = []
_lock = threading.Lock()


def mode_code(mode: str) -> int:
    """Number of a mode.

    Raises:
        ValueError: There is no such mode.
    """
    if mode not in _CODES:
        raise ValueError(f"enforcement is one of {', '.join(_CODES)}, not {mode!r}")
    return _CODES[mode]


class enforcement:
    """Switch how contracts are enforced, for the whole process.

    ``enforcement("beartype")`` switches at once; as a context manager it switches back at the end. Threads share the
    switch: a context variable could not be traced by Dynamo. Where blocks of two threads overlap, the one that began
    last is in force until it ends, and then whichever is still open.

    Args:
        mode: ``"compiled"`` runs the generated guard, ``"beartype"`` stock jaxtyping and beartype on every call and
            then every clause in plain Python, ``"off"`` calls straight through.

    Raises:
        ValueError: There is no such mode.
    """

    def __init__(self, mode: Mode) -> None:
        global current
        self._code = mode_code(mode)
        with _lock:
            if not _open:
                _open.append(current)
            _open.append(self)
            current = self._code

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        global current
        with _lock:
            if self in _open:
                _open.remove(self)
            last = _open[-1]
            current = last._code if isinstance(last, enforcement) else last
            if len(_open) == 1:
                _open.clear()


class use_backend:
    """Choose what runs behind the entry points, for the whole process.

    Args:
        name: ``"auto"`` runs Triton for CUDA tensors and the reference for CPU tensors, ``"triton"`` always Triton,
            ``"naive"`` always the reference, ``"npu"`` the vendor operator where there is one.

    Raises:
        ValueError: There is no such backend.
    """

    def __init__(self, name: Backend) -> None:
        global _backend
        if name not in _BACKENDS:
            raise ValueError(f"a backend is one of {', '.join(_BACKENDS)}, not {name!r}")
        self._before = _backend
        _backend = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        global _backend
        _backend = self._before


def backend() -> str:
    """Name of the backend in force."""
    return _backend


def current_mode() -> str:
    """Name of the enforcement mode in force."""
    return next(name for name, code in _CODES.items() if code == current)


def _from_environment() -> int:
    return mode_code(os.environ.get("TENSORPACT", "compiled") or "compiled")


current = _from_environment()
