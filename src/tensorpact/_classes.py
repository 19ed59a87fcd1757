"""Contracts on dataclasses: the fields of an object share one scope and are looked at when it is made."""

import dataclasses
import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

from ._errors import ContractDefinitionError

#: On the ``__init__`` of a contracted dataclass: the class whose fields it checks.
_CHECKED = "__tensorpact_fields__"


def contract_dataclass(cls: Any, decorate: Callable[[FunctionType], Callable[[Any], None]]) -> Any:
    """Check the annotated fields of a dataclass at the end of its ``__init__``, defaults included.

    Args:
        cls: The dataclass.
        decorate: Turns a method without parameters into one that checks the fields of ``self``.

    Raises:
        ContractDefinitionError: The class is no dataclass.
    """
    made: Callable[..., None] = cls.__init__
    if getattr(made, _CHECKED, None) is cls:
        return cls  # decorated twice
    if not dataclasses.is_dataclass(cast(object, cls)):
        raise ContractDefinitionError(
            f"{cls.__qualname__} is no dataclass: decorate its methods, or put @contract above @dataclass"
        )

    def fields(self: Any) -> None:
        """Nothing but the checks around it."""

    scope: dict[str, Any] = vars(sys.modules[cls.__module__])
    checked = FunctionType(fields.__code__, scope, "fields")
    checked.__qualname__ = f"{cls.__qualname__}.fields"
    checked.__module__ = cls.__module__
    check = decorate(checked)

    @functools.wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        made(self, *args, **kwargs)
        check(self)

    init.__dict__[_CHECKED] = cls
    cls.__init__ = init
    return cls
