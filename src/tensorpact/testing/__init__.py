"""Contracts checked against the functions that carry them: witnesses of documented errors, and ``verify``."""

from ._hooks import register_arguments, register_values
from ._raises import raises
from ._report import EntryReport, Finding, Report, Section
from ._space import CannotDrawError
from ._targets import TargetError
from ._verify import verify, witness
from ._witness import Witness

__all__ = [
    "CannotDrawError",
    "EntryReport",
    "Finding",
    "Report",
    "Section",
    "TargetError",
    "Witness",
    "raises",
    "register_arguments",
    "register_values",
    "verify",
    "witness",
]
