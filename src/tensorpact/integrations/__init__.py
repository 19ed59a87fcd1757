"""Taking contracts up where nothing is decorated: the import hook, its pytest plugin, functions of somebody else.

Nothing here loads torch before a contract is made, and nothing at all before it is asked for: pytest imports this
package in every session, for the plugin.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._apply import Applied, apply
    from ._apply_errors import (
        AlreadyAppliedError,
        ApplyError,
        LeftInPlaceWarning,
        NotCallableError,
        OperatorTargetError,
        StubMismatchError,
        TargetNotFoundError,
    )
    from ._apply_overlay import Overlay, judge, overlay
    from ._import_hook import AlreadyImportedError, ImportHook, install_import_hook
    from ._torch_op import TorchOp, torch_op

__all__ = [
    "AlreadyAppliedError",
    "AlreadyImportedError",
    "Applied",
    "ApplyError",
    "ImportHook",
    "LeftInPlaceWarning",
    "NotCallableError",
    "OperatorTargetError",
    "Overlay",
    "StubMismatchError",
    "TargetNotFoundError",
    "TorchOp",
    "apply",
    "install_import_hook",
    "judge",
    "overlay",
    "torch_op",
]

_HOMES = {
    "Applied": "_apply",
    "apply": "_apply",
    "Overlay": "_apply_overlay",
    "judge": "_apply_overlay",
    "overlay": "_apply_overlay",
    "AlreadyImportedError": "_import_hook",
    "ImportHook": "_import_hook",
    "install_import_hook": "_import_hook",
    "TorchOp": "_torch_op",
    "torch_op": "_torch_op",
}

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = _HOMES.get(name, "_apply_errors")
        return getattr(importlib.import_module(f"{__name__}.{home}"), name)
