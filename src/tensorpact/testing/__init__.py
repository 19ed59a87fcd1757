"""Contracts checked against the functions that carry them: witnesses of documented errors, and ``verify``."""

from ._arguments import Arguments, arguments
from ._mutants import Mutant
from ._mutate import mutate
from ._mutation import MutationEntry, MutationReport, Trial
from ._raises import raises
from ._report import EntryReport, Finding, Report, Section
from ._space import CannotDrawError
from ._targets import TargetError
from ._verify import verify, witness
from ._witness import Witness
from .hooks import register_argument, register_arguments, register_values

__all__ = [
    "Arguments",
    "CannotDrawError",
    "EntryReport",
    "Finding",
    "Mutant",
    "MutationEntry",
    "MutationReport",
    "Report",
    "Section",
    "TargetError",
    "Trial",
    "Witness",
    "arguments",
    "mutate",
    "raises",
    "register_argument",
    "register_arguments",
    "register_values",
    "verify",
    "witness",
]
