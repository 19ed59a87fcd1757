"""Whether a rule gives the same for the same arguments, so that what it gave may be kept with a signature."""

import builtins
import dis
import math
import operator
import types
from typing import Any

import torch

from tensorpact._clause import Rule

#: Modules whose names nobody binds anew.
_MODULES: tuple[types.ModuleType, ...] = (math, operator, torch)


def is_settled(rule: Rule) -> bool:
    """Whether a rule reads nothing but its arguments, builtins, classes, and functions of which the same is true.

    A closed-over name, or a global that is a number or a list, can be another one at the next call.

    Args:
        rule: A condition or a bound.
    """
    return _is_settled(rule, set())


def _is_settled(rule: Any, seen: set[types.CodeType]) -> bool:
    if not isinstance(rule, types.FunctionType) or rule.__defaults__ or rule.__kwdefaults__ or rule.__closure__:
        return False
    waiting: list[types.CodeType] = [rule.__code__]
    while waiting:
        code = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        waiting += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        for step in dis.get_instructions(code):
            if step.opname in ("IMPORT_NAME", "STORE_GLOBAL"):
                return False
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and not _is_fixed(_global(rule, step.argval), seen):
                return False
    return True


def _global(function: types.FunctionType, name: str) -> Any:
    return function.__globals__.get(name, getattr(builtins, name, None))


def _is_fixed(value: Any, seen: set[types.CodeType]) -> bool:
    if isinstance(value, types.FunctionType):
        return _is_settled(value, seen)
    return isinstance(value, (type, types.BuiltinFunctionType)) or any(value is module for module in _MODULES)
