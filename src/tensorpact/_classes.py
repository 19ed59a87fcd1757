"""Contracts on dataclasses: the fields of an object share one scope, are looked at when it is made, and by methods."""

import dataclasses
import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

from ._errors import ContractDefinitionError
from ._hints import annotations_of, evaluate_hint, holds_text

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


def fields_of(cls: type, body: FunctionType) -> dict[str, Any] | None:
    """Annotated dataclass fields of the class that a method belongs to."""
    if body.__name__ in ("__init__", "__new__"):
        return None
    home = body.__qualname__.rpartition(".")[0]
    owner = next((c for c in cls.__mro__ if c.__qualname__ == home and c.__module__ == body.__module__), cls)
    if not dataclasses.is_dataclass(owner):
        return None
    return {f.name: _field_hint(owner, f.name, f.type) for f in dataclasses.fields(owner)}


def _field_hint(owner: type, name: str, hint: Any) -> Any:
    """A field's annotation, text evaluated in the module of the class that has the field."""
    home = next((c for c in owner.__mro__ if name in annotations_of(c)), owner)
    scope = vars(sys.modules[home.__module__])
    return evaluate_hint(hint, scope, {}) if holds_text(hint) and home is not owner else hint
