"""Taking contracts up where nothing is decorated: the import hook, and the pytest plugin that is built on it.

Nothing here loads torch before a contract is made, and nothing at all before it is asked for: pytest imports this
package in every session, for the plugin.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._import_hook import AlreadyImportedError, ImportHook, install_import_hook
    from ._torch_op import TorchOp, torch_op

__all__ = ["AlreadyImportedError", "ImportHook", "TorchOp", "install_import_hook", "torch_op"]

_HOMES = {"TorchOp": "_torch_op", "torch_op": "_torch_op"}

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, '_import_hook')}"), name)
