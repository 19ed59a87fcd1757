"""A foreign function found by name: where it hangs, what it is, and what is near where there is none."""

import difflib
import functools
import importlib.machinery
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import FunctionType, ModuleType
from typing import Any, cast

from ._apply_errors import ApplyError, NotCallableError, OperatorTargetError, TargetNotFoundError

_OPS = "torch.ops."
#: Namespaces of operators that torch defines and uses itself.
# fmt: off
_TORCHS_OWN = frozenset({
    "aten", "prim", "prims", "inductor", "inductor_prims", "_inductor_test", "debugprims", "rngprims",
    "debug_mode_ops", "export", "higher_order", "profiler", "streams", "static_runtime", "quantized", "_quantized",
    "quantization", "sparse", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "onnx", "onnx_symbolic", "c10d",
    "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "fsdp", "flex_lib", "_dtensor",
    "_native", "_test",
})
# fmt: on


@dataclass(frozen=True, slots=True)
class TargetName:
    """A name as it was given.

    Attributes:
        module: Module to find it in.
        path: Attributes from there.
    """

    module: str
    path: tuple[str, ...]

    @property
    def qualname(self) -> str:
        """The path as one name."""
        return ".".join(self.path)

    @property
    def operator(self) -> tuple[str, ...]:
        """Namespace, name and overload of an operator of torch; empty for anything else."""
        return self.path[1:] if self.module == "torch" and self.path[0] == "ops" else ()

    def __str__(self) -> str:
        return f"{self.module}{'.' if self.operator else ':'}{self.qualname}"


@dataclass(frozen=True, slots=True)
class Found:
    """A function where it hangs.

    Attributes:
        owner: The module, class or namespace.
        name: Its attribute there.
        raw: What stands there, descriptors included.
        function: What is called.
    """

    owner: Any
    name: str
    raw: Any
    function: Any


def parse(text: str) -> TargetName:
    """Read ``pkg.mod:fn``, ``pkg.mod:Class.method`` or ``torch.ops.ns.name``.

    Args:
        text: The name.

    Raises:
        ValueError: It is none.
    """
    module, colon, path = text.partition(":")
    if text.startswith(_OPS) or module == "torch.ops":
        # The namespaces of operators are objects of torch, whatever they look like.
        module, path, colon = "torch", text.replace(":", ".").removeprefix("torch."), ":"
    parts = (*module.split("."), *path.split("."))
    if not colon or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{text!r} names no function: write pkg.mod:function, pkg.mod:Class.method or torch.ops.ns.op")
    return TargetName(module, tuple(path.split(".")))


def require_exchangeable(target: TargetName) -> None:
    """Make sure that a name is not that of an operator that ``torch.compile`` needs as it is.

    Args:
        target: The name.

    Raises:
        OperatorTargetError: It is one of torch's own, or a single overload.
    """
    instead = "put the contract on the Python function that calls it"
    if target.operator and target.operator[0] in _TORCHS_OWN:
        raise OperatorTargetError(
            f"{target} is one of torch's own operators, which torch.compile looks up by these names and needs as they "
            f"are; {instead}"
        )
    if len(target.operator) > 2:
        packet = ".".join(("torch.ops", *target.operator[:2]))
        raise OperatorTargetError(
            f"{target} is one overload of an operator, and torch.compile traces no function in its place; name the "
            f"operator, {packet}, or {instead}"
        )


def look_up(target: TargetName, module: ModuleType) -> Found:
    """Find a function in its module.

    Args:
        target: Its name.
        module: The imported module.

    Raises:
        TargetNotFoundError: A part of the name does not exist.
        NotCallableError: It is no function.
    """
    owner: Any = module
    seen = target.module
    for part in target.path[:-1]:
        owner = _attribute(owner, part, target, seen)
        seen += f".{part}"
    name = target.path[-1]
    value = _attribute(owner, name, target, seen)
    raw: Any = inspect.getattr_static(owner, name) if isinstance(owner, type) else value
    function: Any = cast(Any, raw).__func__ if isinstance(raw, (staticmethod, classmethod)) else raw
    refusal = _refusal(cast("object", raw), cast("object", function))
    if refusal:
        raise NotCallableError(f"{target} is {refusal}")
    return Found(owner, name, raw, function)


def _attribute(owner: Any, name: str, target: TargetName, seen: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        around = near(name, [n for n in dir(owner) if not n.startswith("__")])
        state = " although the module is imported" if owner is sys.modules.get(target.module) else ""
        raise TargetNotFoundError(f"{target}: {seen} has no {name!r}{state}{around}") from None


def near(name: str, names: Iterable[str]) -> str:
    """A hint at names that look like one; empty where there is none."""
    found = difflib.get_close_matches(name, dict.fromkeys(names), n=3, cutoff=0.6)
    return f"; near it: {', '.join(found)}" if found else ""


def _refusal(raw: object, function: object) -> str | None:
    """Why a checked function cannot take the place of something, or None."""
    kind = type(function)
    if isinstance(function, type):
        return "a class; name a method of it, or its __init__"
    if isinstance(raw, (property, functools.cached_property)):
        return "a property, which is read and not called"
    if hasattr(kind, "__getitem__") and not isinstance(function, FunctionType):
        return f"a {kind.__module__}.{kind.__qualname__}, which is subscripted before it is called; name its launcher"
    if not callable(function):
        return f"a {kind.__qualname__}, and not callable"
    return None


def require_findable(target: TargetName) -> None:
    """Make sure that a module can be found, without importing it or the packages around it.

    Args:
        target: The name of a function in it.

    Raises:
        TargetNotFoundError: No finder knows the module.
    """
    path: Sequence[str] | None = None
    parts = target.module.split(".")
    for i, part in enumerate(parts):
        name = ".".join(parts[: i + 1])
        loaded = sys.modules.get(name)
        if loaded is not None:
            path = getattr(loaded, "__path__", None)
            continue
        try:
            spec = _spec(name, path)
        except KeyError:
            # A namespace package inside one that is not imported: its finder wants the parent, which stays unimported.
            path = [str(PurePath(folder, part)) for folder in path or sys.path if Path(folder, part).is_dir()]
            continue
        if spec is None:
            known = [info.name for info in pkgutil.iter_modules(path)]
            known += [n for n in sys.modules if "." not in n] if path is None else []
            where = f"{name.rpartition('.')[0]} has no module {part!r}" if i else f"no module {part!r} is installed"
            raise TargetNotFoundError(f"{target}: {where}{near(part, known)}")
        path = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        if path is None and i + 1 < len(parts):
            raise TargetNotFoundError(f"{target}: {name} is a module, not a package")


def _spec(name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    for finder in tuple(sys.meta_path):
        find: Any = getattr(finder, "find_spec", None)
        spec = None if find is None else find(name, path, None)
        if spec is not None:
            return spec
    return None


def set_attribute(owner: Any, name: str, value: Any) -> None:
    """Put something under a name.

    Raises:
        ApplyError: The owner does not allow it.
    """
    try:
        setattr(owner, name, value)
    except (AttributeError, TypeError) as bad:
        raise ApplyError(f"{name} of {owner!r} cannot be exchanged: {bad}") from bad
