"""What can be wrong with putting a contract on a function of somebody else."""


class ApplyError(Exception):
    """A contract could not be put on a foreign function; nothing was changed."""


class TargetNotFoundError(ApplyError, LookupError):
    """The module is not installed, or does not have the name."""


class NotCallableError(ApplyError, TypeError):
    """What stands under the name is no function that a checked one could take the place of."""


class OperatorTargetError(ApplyError, ValueError):
    """The name is that of an operator that torch needs as it is: one of its own, or a single overload."""


class AlreadyAppliedError(ApplyError):
    """The function has a contract already; it would be checked twice."""


class StubMismatchError(ApplyError, TypeError):
    """The stub does not fit the parameters of the function: another version than the stub was written for."""


class LeftInPlaceWarning(UserWarning):
    """A contract was taken off, but somebody else had put something in its place, which stays."""
