"""The generated passing path: plan → source → function.

A guard only decides whether everything holds; what is broken, and in which order, is the diagnosis' business.
"""

from .build import build, delegating_source, prefix_of, shim_source, unready_source, write_source
from .plan import GuardPlan, is_required, make_plan
from .traced import Traced
from .writer import GuardSource

__all__ = [
    "GuardPlan",
    "GuardSource",
    "Traced",
    "build",
    "delegating_source",
    "is_required",
    "make_plan",
    "prefix_of",
    "shim_source",
    "unready_source",
    "write_source",
]
