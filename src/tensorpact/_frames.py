"""The frame of a caller: where a contract or a string annotation was written."""

import sys
from types import FrameType


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
