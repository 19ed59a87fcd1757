"""Where a contract or an annotation was written: the frame of a caller, the names that a function closes over."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def caller_frame(depth: int) -> FrameType:
    """The frame of a caller.

    Args:
        depth: 1 for the caller of the function that asks, 2 for that one's caller.
    """
    return sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]


def caller_module(depth: int) -> str:
    """Name of the module that a caller's code belongs to.

    Args:
        depth: As in :func:`caller_frame`.
    """
    return caller_frame(depth + 1).f_globals.get("__name__", "")


def closed_over(function: Callable[..., Any]) -> dict[str, Any]:
    """Names of the functions around one that it uses, with their values; without those that have none yet."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, getattr(function, "__closure__", None) or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found
