"""Contracts on dataclasses: the fields of an object share one scope and are looked at when it is made."""

import dataclasses
import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

from ._errors import ContractDefinitionError

_CHECK = "__tensorpact_check__"
#: On the ``__init__`` of a contracted dataclass: the class whose fields it checks.
_CHECKED = "__tensorpact_fields__"


def check_of(cls: type) -> Callable[[Any], None] | None:
    """The function that checks the fields of an object of a contracted dataclass; None for other classes."""
    made: object = vars(cls).get("__init__")
    return vars(made).get(_CHECK) if isinstance(made, FunctionType) else None


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
    init.__dict__[_CHECK] = check
    follow: Callable[..., None] | None = getattr(cls, "__post_init__", None)

    def post_init(self: Any, *args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        if follow is not None:
            follow(self, *args, **kwargs)
        # A dataclass that derives from this one has an ``__init__`` of its own, which ends here.
        if type(self).__init__ is not init:
            check(self)

    cls.__init__ = init
    cls.__post_init__ = post_init
    return cls
