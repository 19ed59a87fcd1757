"""Runtime tensor contracts: annotations enforced at call time, failures raised as documented errors.

The engine, and torch with it, is loaded when a name of it is first asked for: the pytest plugin costs nothing in a
session without contracts.
"""

import gc
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._axis_names import axis_names, name_axes
    from ._contract import Contract
    from ._decorator import contract
    from ._errors import (
        ArgumentInfo,
        Binding,
        ContractDefinitionError,
        ContractViolation,
        DocumentedError,
    )
    from ._explain import explain
    from ._modes import backend, enforcement, use_backend
    from ._values.counts import ValueReport
    from ._values.modes import value_checks
    from ._values.polling import poll, synchronize, value_report
    from .integrations import apply, install_import_hook, torch_op

__all__ = [
    "ArgumentInfo",
    "Binding",
    "Contract",
    "ContractDefinitionError",
    "ContractViolation",
    "DocumentedError",
    "ValueReport",
    "apply",
    "axis_names",
    "backend",
    "contract",
    "enforcement",
    "explain",
    "install_import_hook",
    "name_axes",
    "poll",
    "synchronize",
    "torch_op",
    "use_backend",
    "value_checks",
    "value_report",
]

__version__ = "0.1.0"

_HOMES = {
    "axis_names": "_axis_names",
    "name_axes": "_axis_names",
    "Contract": "_contract",
    "contract": "_decorator",
    "ArgumentInfo": "_errors",
    "Binding": "_errors",
    "ContractDefinitionError": "_errors",
    "ContractViolation": "_errors",
    "DocumentedError": "_errors",
    "explain": "_explain",
    "backend": "_modes",
    "enforcement": "_modes",
    "use_backend": "_modes",
    "ValueReport": "_values.counts",
    "value_checks": "_values.modes",
    "poll": "_values.polling",
    "synchronize": "_values.polling",
    "value_report": "_values.polling",
}
#: Names of a package that loads their modules itself.
_LATE = ("apply", "install_import_hook", "torch_op")
_MODULES = ("clauses", "constraints", "dtypes", "integrations", "reporting", "testing")


if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name in _LATE:
            # By itself: the hook has to be there before what the engine loads, and needs none of it.
            return getattr(importlib.import_module(f"{__name__}.integrations"), name)
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Each class made here lets the collector walk all that torch has just made: three quarters of the import.
        collecting = gc.isenabled()
        gc.disable()
        try:
            found = {
                public: getattr(importlib.import_module(f"{__name__}.{home}"), public)
                for public, home in _HOMES.items()
            }
        finally:
            if collecting:
                gc.enable()
        # All at once, so that a tracer sees plain attributes.
        globals().update(found)
        return found[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
