"""Runtime tensor contracts: annotations enforced at call time, failures raised as documented errors."""

from ._contract import Contract
from ._entry import contract
from ._errors import (
    ArgumentInfo,
    Binding,
    ContractDefinitionError,
    ContractViolation,
    DocumentedError,
)
from ._modes import backend, enforcement, use_backend

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
    "use_backend",
]

__version__ = "0.1.0"
