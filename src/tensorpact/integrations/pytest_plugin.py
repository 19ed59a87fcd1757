"""The pytest plugin: the mode of a session, packages contracted at import, and a report of what the tests broke.

Without one of its options it does nothing, and loads neither the engine nor torch.
"""

import json
import os
import pathlib
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tensorpact._observing import Observer

    from ._import_hook import ImportHook

__all__: list[str] = []

_KEY = "tensorpact"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("tensorpact", "tensor contracts")
    group.addoption(
        "--tensorpact",
        choices=("compiled", "beartype", "off"),
        help="enforce contracts by the generated guards, by stock jaxtyping and beartype, or not at all; and report",
    )
    group.addoption(
        "--tensorpact-packages",
        metavar="A,B",
        help="contract every annotated function and dataclass of these packages as they are imported; and report",
    )
    group.addoption("--tensorpact-json", metavar="PATH", help="write the report as JSON too")
    group.addoption(
        "--tensorpact-min-coverage",
        metavar="PERCENT",
        type=float,
        help="fail the session where tests broke less than this percentage of the clauses",
    )
    parser.addini("tensorpact_packages", "packages for --tensorpact-packages", type="args", default=[])


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start before a conftest can import what is to be contracted."""
    options = early_config.known_args_namespace
    given = getattr(options, "tensorpact_packages", None)
    packages = list(early_config.getini("tensorpact_packages")) if given is None else given.split(",")
    packages = [p.strip() for p in packages if p.strip()]
    mode = getattr(options, "tensorpact", None)
    minimum = getattr(options, "tensorpact_min_coverage", None)
    path = getattr(options, "tensorpact_json", None)
    if not (packages or mode or path or minimum is not None):
        return
    # A relative path is meant where pytest was started.
    written = None if path is None else pathlib.Path(path).absolute()
    early_config.pluginmanager.register(Session(mode, packages, written, minimum), "tensorpact-session")


class Session:
    """A session with contracts.

    Args:
        mode: How they are enforced; None for what the environment says.
        packages: Packages to contract at import.
        path: Where the report is written as JSON, or None.
        minimum: Percentage of the clauses that tests have to break, or None.

    Raises:
        pytest.UsageError: A package is imported already, or a name is none.
    """

    def __init__(self, mode: str | None, packages: list[str], path: pathlib.Path | None, minimum: float | None) -> None:
        self._environment = os.environ.get("TENSORPACT")
        if mode is not None:
            # Before the engine is loaded: under `off` its decorators give back bare functions. Subprocesses follow.
            os.environ["TENSORPACT"] = mode
        import tensorpact._modes as modes
        import tensorpact._observing as observing

        from ._coverage import Record, Recorder
        from ._import_hook import AlreadyImportedError, install_import_hook

        self._modes: Any = modes
        self._observing: Any = observing
        self._mode_before: int = modes.current
        if mode is not None:
            modes.current = modes.mode_code(mode)
        self.record: Record = Record(modes.current_mode(), packages=tuple(packages))
        self._observer_before: Observer | None = observing.current
        observing.current = Recorder(self.record)
        self._path, self._minimum = path, minimum
        self._hook: ImportHook | None = None
        if packages:
            try:
                self._hook = install_import_hook(*packages, check_returns=True)
            except (AlreadyImportedError, ValueError) as error:
                self._restore()
                raise pytest.UsageError(f"tensorpact: {error}") from error

    def _restore(self) -> None:
        self._observing.current = self._observer_before
        self._modes.current = self._mode_before
        if self._environment is None:
            os.environ.pop("TENSORPACT", None)
        else:
            os.environ["TENSORPACT"] = self._environment

    def pytest_report_header(self) -> str:
        """Say what is done."""
        named = f", contracting {', '.join(self.record.packages)}" if self.record.packages else ""
        return f"tensorpact: {self.record.mode}{named}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the figures of a worker of pytest-xdist."""
        figures = getattr(node, "workeroutput", {}).get(_KEY)
        if figures is None:
            self.record.lost += 1
        else:
            self.record.merge(json.loads(figures))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Close the record: hand it to the controller, or write it and judge the coverage."""
        if self._hook is not None:
            self.record.modules |= {m: max(n, self.record.modules.get(m, 0)) for m, n in self._hook.contracts.items()}
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_KEY] = json.dumps(self.record.as_dict())
            return
        if self._path is not None:
            self._path.write_text(json.dumps(self.record.as_dict(), indent=2) + "\n", encoding="utf-8")
        if self._too_little() and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _too_little(self) -> str:
        """Why the coverage does not suffice; empty where it does."""
        if self._minimum is None:
            return ""
        coverage = self.record.coverage
        if coverage is None:
            return f"no clause was loaded, and {self._minimum:g}% of the clauses are to be broken"
        return (
            ""
            if coverage >= self._minimum
            else f"rule coverage is {coverage:.1f}%, below the minimum of {self._minimum:g}%"
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the report."""
        terminalreporter.section("tensorpact")
        for line in self.record.lines():
            terminalreporter.line(line)
        reason = self._too_little()
        if reason:
            terminalreporter.line(f"FAILED: {reason}", red=True, bold=True)

    def pytest_unconfigure(self) -> None:
        """Leave the process as it was found."""
        if self._hook is not None:
            self._hook.uninstall()
        self._restore()
