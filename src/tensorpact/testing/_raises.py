"""A context manager that expects one documented error."""

from types import TracebackType

from tensorpact._errors import ContractViolation, DocumentedError


class raises:
    """Expect a block to raise one documented error, by identity and not by words.

    Attributes:
        value: What was raised, behind the block.

    Args:
        error: The documented error.
    """

    def __init__(self, error: DocumentedError) -> None:
        self._error = error
        self.value: ContractViolation

    def __enter__(self) -> "raises":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        __tracebackhide__ = True
        if raised is None:
            raise AssertionError(f"{self._error.slug} was not raised: nothing was")
        if not isinstance(raised, ContractViolation):
            return False
        if raised.error is not self._error:
            other = "a default error" if raised.error is None else raised.error.slug
            raise AssertionError(f"{self._error.slug} was not raised, but {other}: {raised}") from raised
        if not isinstance(raised, self._error.documented):
            text = f"{self._error.slug} is no {self._error.documented.__name__} here"
            raise AssertionError(text) from raised  # noqa: TRY004 - a failed expectation, as pytest has it
        self.value = raised
        return True
