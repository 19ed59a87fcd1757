"""Notes that are written when somebody reads them: many failing calls are caught and never shown."""

from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex


class Notes(list[str]):
    """The ``__notes__`` of a violation.

    Until it is read it keeps the arguments alive, as the traceback does, and tells of them as they are then.

    Args:
        write: Makes the note and what it was made from; called once.
    """

    def __init__(self, write: Callable[[], tuple[str, Any]]) -> None:
        super().__init__()
        self._write: Callable[[], tuple[str, Any]] | None = write
        self._subject: Any = None

    def _read(self) -> None:
        if self._write is not None:
            write, self._write = self._write, None
            text, self._subject = write()
            self.insert(0, text)

    @property
    def subject(self) -> Any:
        """What the note was made from."""
        self._read()
        return self._subject

    def __len__(self) -> int:
        self._read()
        return super().__len__()

    def __iter__(self) -> Iterator[str]:
        self._read()
        return super().__iter__()

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        self._read()
        return super().__getitem__(index)

    def __contains__(self, item: object) -> bool:
        self._read()
        return super().__contains__(item)

    def __eq__(self, other: object) -> bool:
        # Another one has to be read as well before its items can be compared.
        return list(self) == (list(other) if isinstance(other, Notes) else other)

    def __repr__(self) -> str:
        self._read()
        return super().__repr__()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return list, (list(self),)

    __hash__ = None
