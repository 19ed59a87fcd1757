"""Signatures that `overhead.py` times: each unchecked, checked by hand, by stock, by a contract, and as a floor."""

from .case import Case
from .decode import DECODE_CASES
from .kinds import KIND_CASES
from .ring import RING_CASES

CASES: tuple[Case, ...] = (*DECODE_CASES, *RING_CASES, *KIND_CASES)

__all__ = ["CASES", "Case"]
