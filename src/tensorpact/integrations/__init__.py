"""Taking contracts up where nothing is decorated: the import hook, and the pytest plugin that is built on it.

Nothing here loads torch before a contract is made, and nothing at all before it is asked for: pytest imports this
package in every session, for the plugin.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._import_hook import AlreadyImportedError, ImportHook, install_import_hook

__all__ = ["AlreadyImportedError", "ImportHook", "install_import_hook"]

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}._import_hook"), name)
