"""Whether a catalogue keeps what it promises: pages, patterns, examples, ids."""

import re
from collections.abc import Iterable, Iterator

from tensorpact._errors import ContractViolation, DocumentedError

from ._ids import id_faults
from ._pages import HEADINGS, pages_of
from ._records import Record, load


def check(modules: Iterable[str] = (), examples: bool = True) -> tuple[int, list[str]]:
    """Check a catalogue.

    Args:
        modules: Where to look; the installed kernels by default.
        examples: Run the examples of the pages, and hold every pattern against the messages that they raise.

    Returns:
        Number of errors and what is wrong, one line a fault.
    """
    records = load(modules)
    faults = list(_page_faults(records))
    if examples:
        messages: list[tuple[DocumentedError, str]] = []
        for record in records:
            if record.page is not None:
                text, wrong = _run(record)
                faults += wrong
                messages += [(record.error, text)] if text is not None else []
        faults += pattern_faults([record.error for record in records], messages)
    return len(records), faults + id_faults(records)


def _page_faults(records: tuple[Record, ...]) -> Iterator[str]:
    yield from (f"{r.error.slug}: there is no page for it" for r in records if r.page is None)
    known = {(r.error.module, r.error.slug) for r in records}
    for module in dict.fromkeys(r.error.module for r in records):
        yield from (
            f"{s}: a page, but no error of that slug in {module}" for s in pages_of(module) if (module, s) not in known
        )
    for r in records:
        if r.page is not None:
            related = (s for s in r.page.related if (r.error.module, s) not in known)
            yield from (f"{r.error.slug}: its page names {s}, which is no error of {r.error.module}" for s in related)


def pattern_faults(errors: Iterable[DocumentedError], messages: Iterable[tuple[DocumentedError, str]]) -> list[str]:
    """Messages that their own pattern does not match, or that one of another template does.

    Args:
        errors: The whole catalogue.
        messages: Who raised it, and the text.
    """
    compiled = [(error, re.compile(error.pattern, re.DOTALL)) for error in errors]
    faults: list[str] = []
    for raised, text in messages:
        for error, pattern in compiled:
            fits = pattern.fullmatch(text) is not None
            if error is raised and not fits:
                faults.append(f"{error.slug}: its pattern does not match its message {text!r}")
            elif fits and error.template != raised.template:
                faults.append(f"{error.slug}: its pattern matches a message of {raised.slug}, {text!r}")
    return faults


def _run(record: Record) -> tuple[str | None, list[str]]:
    """The message of a page's failing example, and what is wrong with the two examples."""
    error, page, text = record.error, record.page, None
    if page is None:
        return None, []
    faults: list[str] = []
    for heading in HEADINGS[2:4]:
        fails = heading == HEADINGS[2]
        try:
            exec(compile(page.example(heading), f"<{heading}: {error.slug}>", "exec"), {"__name__": "__example__"})
        except ContractViolation as raised:
            if fails and raised.error is error and isinstance(raised, error.documented):
                text = str(raised)
                continue
            faults.append(f"{error.slug}: {heading}: {type(raised).__name__}: {raised}")
        except Exception as raised:  # noqa: BLE001 - an example of a page may do anything
            faults.append(f"{error.slug}: {heading}: {type(raised).__name__}: {raised}")
        else:
            if fails:
                faults.append(f"{error.slug}: {heading}: nothing is raised")
    return text, faults
