"""Runtime tensor contracts: annotations enforced at call time, failures raised as documented errors."""

import gc

# Each class made here lets the collector walk all the objects that torch has just made: three quarters of the import.
_collecting = gc.isenabled()
gc.disable()
try:
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
finally:
    if _collecting:
        gc.enable()

__all__ = [
    "ArgumentInfo",
    "Binding",
    "Contract",
    "ContractDefinitionError",
    "ContractViolation",
    "DocumentedError",
    "backend",
    "contract",
    "enforcement",
    "explain",
    "use_backend",
]

__version__ = "0.1.0"
