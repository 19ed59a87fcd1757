"""Somebody who is told of contracts, calls and broken clauses: a test session that counts them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ._entry import Entry


class Observer(Protocol):
    """What a contracted function reports to."""

    def made(self, entry: "Entry", /) -> None:
        """A function was contracted."""
        ...

    def counted(self, entry: "Entry", body: Callable[..., Any], /) -> Callable[..., Any]:
        """The body of a contracted function, in a form that tells of the calls that reach it."""
        ...

    def broken(self, entry: "Entry", error: Exception, /) -> None:
        """A call was refused."""
        ...


#: Looked at when a function is contracted: without an observer, calls pay nothing.
current: Observer | None = None
