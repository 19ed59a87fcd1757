"""The import hook: named packages are instrumented as they are imported."""

import ast
import fnmatch
import hashlib
import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from importlib.util import cache_from_source, decode_source
from pathlib import PurePath
from types import CodeType, ModuleType
from typing import Any

from tensorpact._frames import caller_module

from ._hooked import ModuleHook, instrumented
from ._transform import HOOK, VERSION, instrument

#: Files that stay with pytest, whose rewriting of `assert` needs them.
_TEST_FILES = ("conftest.py", "test_*.py", "*_test.py")


class AlreadyImportedError(RuntimeError):
    """A package was imported before the hook could see it, so that nothing in it would be checked."""


class _Loader(SourceFileLoader):
    """Loads a module from its source, instrumented; its bytecode lies beside the plain one, under a name of its own."""

    def __init__(self, fullname: str, path: str, check_returns: bool) -> None:
        super().__init__(fullname, path)
        self._check_returns = check_returns

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
        tree: Any = compile(decode_source(data), path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True, optimize=_optimize)
        return compile(instrument(tree, self._check_returns), path, "exec", dont_inherit=True, optimize=_optimize)

    def get_data(self, path: str) -> bytes:
        return super().get_data(self._place(path))

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        super().set_data(self._place(path), data, _mode=_mode)

    def _place(self, path: str) -> str:
        """Where a file lies: the bytecode of each configuration has a place of its own."""
        if not str(path).endswith(".pyc") or path != cache_from_source(str(self.path)):
            return path
        key = hashlib.sha256(f"{VERSION} {self._check_returns}".encode()).hexdigest()[:8]
        return f"{path.removesuffix('.pyc')}.tensorpact-{key}.pyc"


class ImportHook(MetaPathFinder):
    """An import hook that is in force; a context manager that takes it out again.

    Attributes:
        packages: Packages whose modules are contracted, submodules included.
        check_returns: Whether return annotations are checked in ``compiled`` mode too.
    """

    def __init__(self, packages: Sequence[str], check_returns: bool) -> None:
        self.packages = tuple(packages)
        self.check_returns = check_returns

    def __enter__(self) -> "ImportHook":
        return self

    def __exit__(self, *exc: object) -> None:
        self.uninstall()

    def uninstall(self) -> None:
        """Leave what is imported from now on as it is; what has been contracted stays so. Once is enough."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def covers(self, module: str) -> bool:
        """Whether a module belongs to one of the packages."""
        return any(module == p or module.startswith(f"{p}.") for p in self.packages)

    @property
    def contracts(self) -> dict[str, int]:
        """How many contracts each imported module of the packages has."""
        return {name: len(hook.contracts) for name, hook in instrumented.items() if self.covers(name)}

    @property
    def missing(self) -> tuple[str, ...]:
        """Packages of which nothing was imported under a hook so far."""
        seen = self.contracts
        return tuple(p for p in self.packages if not any(m == p or m.startswith(f"{p}.") for m in seen))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Find a module as the finders behind this one do, and have it loaded by the hook."""
        if not self.covers(fullname):
            return None
        for spec in self._found(fullname, path, target):
            if type(spec.loader) is SourceFileLoader:
                spec.loader = _Loader(fullname, spec.loader.path, self.check_returns)
                return spec
            if _is_pytest(spec):
                if _is_test_file(spec):
                    return None
                continue  # a package that brings a pytest plugin is marked as a whole; its sources are found further on
            if spec.loader is not None and spec.origin is not None and not isinstance(spec.loader, ExtensionFileLoader):
                kind = type(spec.loader)
                warnings.warn(
                    f"the import hook of tensorpact cannot contract {fullname}: it is loaded by "
                    f"{kind.__module__}.{kind.__qualname__}, not from a source file",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return None
        return None

    def _found(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> Iterator[ModuleSpec]:
        for finder in tuple(sys.meta_path):
            find: Any = None if isinstance(finder, ImportHook) else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                yield spec

    def _imported(self, importer: str) -> Iterator[str]:
        """Modules of the packages that are there already, without or with another hook."""
        for name, module in tuple(sys.modules.items()):
            if not self.covers(name):
                continue
            known = getattr(module, "__dict__", {}).get(HOOK)
            if isinstance(known, ModuleHook) and known.check_returns == self.check_returns:
                continue
            # A package may contract its own parts, from its first lines.
            if name == importer and getattr(module.__spec__, "_initializing", False):
                continue
            yield name

    def install(self, importer: str) -> None:
        """Put the hook in force.

        Args:
            importer: Name of the module that asks for it.

        Raises:
            AlreadyImportedError: A module of the packages is imported already.
        """
        late = sorted(self._imported(importer))
        if late:
            shown = ", ".join(late[:5]) + (f" and {len(late) - 5} more" if len(late) > 5 else "")
            raise AlreadyImportedError(
                f"imported before the hook, and therefore unchecked: {shown}; install the hook before the first import "
                "(under pytest, name the packages with --tensorpact-packages)"
            )
        importlib.invalidate_caches()
        # Behind the finder that waits for modules to contract: it takes what this one finds.
        sys.meta_path.insert(int(getattr(next(iter(sys.meta_path), None), "stays_first", False)), self)


def _is_pytest(spec: ModuleSpec) -> bool:
    return type(spec.loader).__module__.startswith("_pytest.")


def _is_test_file(spec: ModuleSpec) -> bool:
    name = PurePath(spec.origin or "").name
    return any(fnmatch.fnmatch(name, pattern) for pattern in _TEST_FILES)


def install_import_hook(*packages: str, check_returns: bool = False) -> ImportHook:
    """Contract every annotated function, method, nested function and dataclass of some packages, as they are imported.

    What a decorator of tensorpact has contracted by hand is not contracted twice. Left alone are ``@no_type_check``, on
    a function or a class, with everything inside it; functions that Triton or another compiler reads as source; and
    functions without an annotation.

    Args:
        packages: Names of packages or modules; submodules belong to them.
        check_returns: Check return annotations in ``compiled`` mode too.

    Returns:
        The hook: a context manager, at whose end later imports are left alone again.

    Raises:
        AlreadyImportedError: A module of the packages is imported already.
        ValueError: A name is no module name, or none is given.
    """
    if not packages:
        raise ValueError("name at least one package")
    for name in packages:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{name!r} is no name of a package")
    hook = ImportHook(packages, check_returns)
    hook.install(caller_module(1))
    return hook


__all__ = ["AlreadyImportedError", "ImportHook", "install_import_hook"]
