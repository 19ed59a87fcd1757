"""``tensorpact mutate``: tests run as the corpus, the report printed."""

import contextlib
import functools
import importlib.util
import json
import sys
from collections.abc import Sequence

from ._mutate import mutate
from ._targets import TargetError

#: This package is imported before pytest could rewrite its asserts, and has none.
_REWRITTEN = "ignore::pytest.PytestAssertRewriteWarning"


def run(targets: Sequence[str], tests: Sequence[str], *, pages: bool, as_json: bool, seed: int) -> bool:
    """Run the mutation test and print what it found.

    Args:
        targets: ``MODULE`` or ``MODULE:FUNCTION``.
        tests: What pytest is to run as the corpus.
        pages: Whether the examples of error pages belong to the corpus.
        as_json: Print the machine form.
        seed: Seed of the searches.

    Returns:
        Whether every clause is noticed.

    Raises:
        TargetError: A target has no contract, or the tests fail.
    """
    if tests and importlib.util.find_spec("pytest") is None:
        raise TargetError("--tests needs pytest, which is not installed")
    corpus = [functools.partial(_run_tests, tests)] if tests else None
    report = mutate(targets, corpus=corpus, pages=pages, seed=seed, progress=_tell if _watched(as_json) else None)
    if as_json:
        sys.stdout.write(json.dumps(report.as_dict(), indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(report.lines()) + "\n")
    return report.ok


def _run_tests(tests: Sequence[str]) -> None:
    import pytest

    # What pytest prints belongs to no report.
    with contextlib.redirect_stdout(sys.stderr):
        code = pytest.main(["-q", "-p", "no:cacheprovider", "-W", _REWRITTEN, *tests])
    if code != pytest.ExitCode.OK:
        raise TargetError(f"the tests are the corpus, and pytest ended with exit code {int(code)}")


def _watched(as_json: bool) -> bool:
    return sys.stderr.isatty() and not as_json


def _tell(target: str, done: int, total: int) -> None:
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r{target}: clause {done} of {total}{end}")
