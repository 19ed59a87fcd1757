"""Both modes in one call, and texts compared with files."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError, jaxtyped

from tensorpact import ContractDefinitionError, ContractViolation, contract, enforcement

SNAPSHOTS = Path(__file__).parent / "snapshots"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-snapshots", action="store_true", help="write the snapshot files of tests/engine anew")


def _outcome(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the outcome is looked at by the test
        return error


def _verdict(outcome: Any) -> Any:
    if not isinstance(outcome, Exception):
        return "accepted"
    notes = getattr(outcome, "__notes__", [])
    return type(outcome).__name__, str(outcome), getattr(outcome, "clause", None), notes


class Modes:
    """Calls a contracted function in both modes, which must agree on class, text, clause and note."""

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the call gives: a result, or the exception that it raises."""
        with enforcement("compiled"):
            compiled = _outcome(function, args, kwargs)
        with enforcement("beartype"):
            stock = _outcome(function, args, kwargs)
        assert _verdict(stock) == _verdict(compiled)
        return compiled

    def accepts(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """State that the call is right."""
        outcome = self(function, *args, **kwargs)
        if isinstance(outcome, Exception):
            raise AssertionError(f"refused: {outcome}") from outcome  # noqa: TRY004 - it is a failed test

    def rejects(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> ContractViolation:
        """State that the call breaks the contract.

        Returns:
            The violation, which survives pickling as it is.
        """
        outcome = self(function, *args, **kwargs)
        if isinstance(outcome, Exception) and not isinstance(outcome, ContractViolation):
            raise AssertionError(f"no violation: {outcome!r}") from outcome  # noqa: TRY004 - as above
        assert isinstance(outcome, ContractViolation), "accepted"
        assert str(pickle.loads(pickle.dumps(outcome))) == str(outcome)
        return outcome


@pytest.fixture
def modes() -> Modes:
    return Modes()


class Parity:
    """Runs one program under stock jaxtyping with beartype and under both modes of ours.

    A program takes a decorator, defines what it is about with it, and returns the call to judge.
    """

    compiled = staticmethod(contract(check_returns=True))
    stock = staticmethod(jaxtyped(typechecker=beartype))

    def __call__(self, program: Callable[[Any], Callable[[], Any]]) -> dict[str, str]:
        """Who says what: ``accepts``, ``refuses``, ``is undefined`` (no definition) or ``fails`` (another error)."""
        with enforcement("compiled"):
            compiled = self._verdict(program, self.compiled)
        with enforcement("beartype"):
            checked = self._verdict(program, contract)
        return {"stock": self._verdict(program, self.stock), "compiled": compiled, "beartype": checked}

    @staticmethod
    def _verdict(program: Callable[[Any], Callable[[], Any]], check: Any) -> str:
        try:
            call = program(check)
        except (ContractDefinitionError, ValueError):
            return "is undefined"
        try:
            call()
        except (TypeCheckError, BeartypeCallHintViolation, ContractViolation):
            return "refuses"
        except Exception:  # noqa: BLE001 - whatever else is raised is an error of the definition, found late
            return "fails"
        return "accepts"


@pytest.fixture
def parity() -> Parity:
    return Parity()


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a file under ``snapshots``."""

    def compare(name: str, text: str) -> None:
        path = SNAPSHOTS / f"{name}.txt"
        if request.config.getoption("--update-snapshots"):
            path.write_text(text + "\n", encoding="utf-8")
        assert path.is_file(), f"no snapshot {path.name}; run with --update-snapshots"
        assert text + "\n" == path.read_text(encoding="utf-8")

    return compare
