"""Taking contracts up where nothing is decorated: the import hook, and the pytest plugin that is built on it.

Nothing here loads torch before a contract is made.
"""

from ._import_hook import AlreadyImportedError, ImportHook, install_import_hook

__all__ = ["AlreadyImportedError", "ImportHook", "install_import_hook"]
