"""Refused calls of contracted functions, seen while something else runs: a page's example, or a test suite."""

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from tensorpact import enforcement
from tensorpact._catalogue._pages import page_of
from tensorpact._entry import Entry
from tensorpact._errors import ContractDefinitionError

#: Called with the entry point and its arguments by name, before the error is raised.
Look = Callable[[Entry, Mapping[str, Any]], None]


@contextlib.contextmanager
def refused_calls(entries: Iterable[Entry], look: Look) -> Generator[None]:
    """Show every call that these contracts refuse, in ``compiled`` mode.

    Args:
        entries: The contracts.
        look: What is shown; nothing is kept, so that arguments live no longer than in the call.
    """
    watched = list(dict.fromkeys(entries))

    def judge_of(entry: Entry) -> Callable[[tuple[Any, ...]], Exception | None]:
        judge = entry.judge

        def judged(arguments: tuple[Any, ...]) -> Exception | None:
            look(entry, entry.values(arguments))
            return judge(arguments)

        return judged

    with enforcement("compiled"):
        for entry in watched:
            vars(entry)["judge"] = judge_of(entry)
        try:
            yield
        finally:
            for entry in watched:
                vars(entry).pop("judge", None)


def run_pages(entry: Entry) -> Iterable[tuple[str, Callable[[], None]]]:
    """The failing example of every page of a contract, and what to call it."""
    for error in entry.contract.errors:
        try:
            page = page_of(error)
        except ContractDefinitionError:
            continue  # `tensorpact catalog check` says what is wrong with it
        example = "" if page is None else page.example("Example that fails")
        if example:
            yield f"page {error.slug}", _runner(example, f"<page {error.slug}>")


def _runner(text: str, name: str) -> Callable[[], None]:
    def run() -> None:
        with contextlib.suppress(Exception):  # the documented error, if the page is right
            exec(compile(text, name, "exec"), {"__name__": "__example__"})

    return run


def running_test() -> str:
    """The test of pytest that runs just now; empty outside of one."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
