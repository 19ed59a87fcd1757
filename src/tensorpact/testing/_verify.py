"""The main job: every contract linted, accepted, rejected and agreed on."""

import difflib
import importlib.util
import re
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

from tensorpact._decorator import disabled
from tensorpact._errors import ContractDefinitionError, DocumentedError
from tensorpact._terms import Step

from . import _accept, _agree, _interpreter, _lint
from ._accept import Problem
from ._drafts import resolve
from ._draw import Drawer
from ._making import compiler_environment, drawer_of
from ._report import EntryReport, Finding, Report, Section
from ._search import Missed, Suite
from ._space import CannotDrawError
from ._targets import Target, TargetError, find
from ._witness import Witness, confirm, make_witness, program

#: Called with target, column, things done and things to do.
Progress = Callable[[str, str, int, int], None]

_INTERPRETED = 12
_INTERPRETER_SECONDS = 300.0
_REPORTED = 3
#: Mutated calls for each valid one; a refused call costs stock jaxtyping some 10 ms.
_MUTATED = 12
_NUMBERS = re.compile(r"[\d.e+-]+")


def verify(
    targets: Iterable[Any] = ("tensorpact_kernels",),
    *,
    seed: int = 0,
    examples: int = 12,
    only: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check contracts against the functions that carry them.

    Args:
        targets: ``"MODULE"``, ``"MODULE:FUNCTION"`` or contracted functions.
        seed: The same seed draws the same arguments.
        examples: Valid calls an entry point.
        only: Slug of the one documented error to witness; everything else is skipped.
        progress: Told how far the run is.

    Raises:
        TargetError: A target has no contract, contracts are off, or no target documents ``only``.
    """
    if disabled:
        raise TargetError("TENSORPACT=off: the decorators returned the bare functions, so there is nothing to verify")
    found = find(targets)
    if only is not None:
        _check_only(found, only)
    entries: list[EntryReport] = []
    runs: list[_Run] = []
    with compiler_environment():
        try:
            for target in found:
                if not isinstance(target, Target):
                    entries.append(_unimportable(target.name, target.error))
                    continue
                runs.append(_Run(target, seed, examples, only, progress))
                entries.append(runs[-1].run())
                # The interpreter of one entry point works beside the checks of the next one.
                for run in runs[:-1]:
                    run.finish()
            for run in runs:
                run.finish()
        finally:
            for run in runs:
                run.stop()
    return Report(tuple(entries), seed, examples)


def _check_only(found: Iterable[Any], only: str) -> None:
    slugs = sorted({e.slug for t in found if isinstance(t, Target) for e in t.entry.contract.errors})
    if only not in slugs:
        near = difflib.get_close_matches(only, slugs, 3, 0.4)
        raise TargetError(f"no target documents {only!r}; " + (f"near: {', '.join(near)}" if near else "none is near"))


def _unimportable(name: str, error: ContractDefinitionError) -> EntryReport:
    report = EntryReport(name)
    report.sections["lint"].findings.append(Finding("error", f"the contract is wrong in itself: {error}"))
    for column in ("accept", "reject", "agree"):
        report.sections[column].skipped = "the contract does not import"
    return report


class _Run:
    """One entry point."""

    def __init__(self, target: Target, seed: int, examples: int, only: str | None, progress: Progress | None) -> None:
        self.target = target
        self.seed = seed
        self.examples = examples
        self.only = only
        self.report = EntryReport(target.text)
        self._progress = progress
        self._interpreter: subprocess.Popen[str] | None = None

    def run(self) -> EntryReport:
        """All columns, but for what the interpreter still works on."""
        try:
            drawer = drawer_of(self.target, self.seed)
        except CannotDrawError as bad:
            return self._skip(str(bad))
        except ContractDefinitionError as bad:
            return _unimportable(self.target.text, bad)
        try:
            if self.only is None:
                self._accept(drawer)
            suite = Suite(drawer, self.seed)
        except CannotDrawError as bad:
            return self._undrawable(drawer, str(bad))
        if self.only is None:
            self._lint(suite)
        self._reject(suite)
        if self.only is None:
            self._agree(suite)
        else:
            for column in ("lint", "accept", "agree"):
                self._section(column).skipped = f"only {self.only} was asked for"
        return self.report

    def finish(self) -> None:
        """Wait for the interpreter, where one was started, and take in what it found."""
        if self._interpreter is not None:
            process, self._interpreter = self._interpreter, None
            self._collect(process)

    def stop(self) -> None:
        """End an interpreter that is still at work."""
        if self._interpreter is not None:
            self._interpreter.kill()
            self._interpreter.communicate()
            self._interpreter = None

    def _section(self, column: str) -> Section:
        return self.report.sections[column]

    def _tell(self, column: str, done: int, total: int) -> None:
        self._section(column).done = done
        if self._progress is not None:
            self._progress(self.target.text, column, done, total)

    def _skip(self, reason: str) -> EntryReport:
        for section in self.report.sections.values():
            section.skipped = reason
        return self.report

    def _undrawable(self, drawer: Drawer, reason: str) -> EntryReport:
        self._section("lint").findings += _lint.static_lint(drawer.space.terms)
        for column in ("lint", "accept", "reject", "agree"):
            self._section(column).skipped = "there are no valid arguments to start from"
        self._section("accept").findings.append(Finding("error", reason))
        return self.report

    def _lint(self, suite: Suite) -> None:
        section = self._section("lint")
        section.findings += _lint.lint(suite)
        self._tell("lint", len(suite.space.terms.steps), len(suite.space.terms.steps))

    def _accept(self, drawer: Drawer) -> None:
        section, target = self._section("accept"), self.target
        reference = target.entry.contract.reference
        own = False
        try:
            for i, (draft, distinct) in enumerate(_accept.examples(drawer, self.seed, self.examples)):
                if i == 0 and not distinct and drawer.factory is None:
                    section.findings.append(
                        Finding("warning", "no valid call has pairwise different dim sizes above 1")
                    )
                seed = _accept.example_seed(self.seed, i)
                done = _accept.check(target.entry, target.function, resolve(drawer.space, draft), seed)
                if done.own_reference and not own:
                    own = True
                    self._start_interpreter()
                if done.problem is not None:
                    problem = _accept.smallest(target.entry, target.function, drawer, draft, seed) or done.problem
                    self._found(section, drawer, problem)
                self._tell("accept", i + 1, self.examples)
                if len(section.findings) >= _REPORTED:
                    break
        except ContractDefinitionError as bad:
            section.findings.append(Finding("error", f"code of the contract fails: {bad}"))
        if reference is None:
            section.note = "no reference to compare with"

    def _found(self, section: Section, drawer: Drawer, problem: Problem) -> None:
        message, level = problem.message, "error"
        if _accept.mixes_dtypes(drawer, problem.case):
            # The contract is looser than the code; what any sensible caller passes still works.
            level = "warning"
            message += " (dtypes that the contract lets differ: same_dtype would say so)"
        if _is_new(section, message):
            code = program(self.target, drawer.space, problem.case, problem.values, problem.mode)
            section.findings.append(Finding(level, message, code=code))

    def _start_interpreter(self) -> None:
        missing = [name for name in ("triton", "numpy") if importlib.util.find_spec(name) is None]
        if missing:
            text = f"without {' and '.join(missing)} the entry point runs its own reference: nothing was compared"
            self._section("accept").findings.append(Finding("warning", text))
            return
        self._interpreter = _interpreter.start(self.target.text, self.seed, min(self.examples, _INTERPRETED))

    def _collect(self, process: "subprocess.Popen[str]") -> None:
        section = self._section("accept")
        lines, errors = _interpreter.collect(process, _INTERPRETER_SECONDS)
        closing = next((line for line in lines if "examples" in line), None)
        for line in lines:
            if line.get("error"):
                message = f"in Triton's interpreter: {line['error']}"
                if _is_new(section, message):
                    section.findings.append(Finding(line["level"], message, code=line.get("code")))
        if closing is None:
            section.findings.append(Finding("error", f"the run in Triton's interpreter did not end: {errors}"))
        elif not closing["launches"]:
            section.findings.append(
                Finding("warning", "the entry point runs its own reference and no Triton kernel: nothing was compared")
            )
        else:
            section.note = f"{closing['launches']} launches interpreted"

    def _reject(self, suite: Suite) -> None:
        section = self._section("reject")
        steps = [
            s
            for s in suite.space.terms.steps
            if s.clause.error is not None and self.only in (None, s.clause.error.slug)
        ]
        if self.only is not None and not steps:
            section.skipped = f"does not document {self.only}"
        for i, step in enumerate(steps):
            self._witness(section, suite, step)
            self._tell("reject", i + 1, len(steps))

    def _witness(self, section: Section, suite: Suite, step: Step) -> None:
        error = step.clause.error
        slug = None if error is None else error.slug
        found = suite.find(step)
        if isinstance(found, Missed):
            section.findings.append(Finding("error", f"{_lint.label(step)} is {found.reason}", slug, step.index))
            return
        made = make_witness(self.target, suite, step, found)
        self.report.witnesses.append({"slug": slug, "clause": step.index, "code": made.code()})
        wrong = confirm(made, suite, step)
        if wrong is not None:
            section.findings.append(Finding("error", f"{_lint.label(step)}: {wrong}", slug, step.index, made.code()))

    def _agree(self, suite: Suite) -> None:
        section = self._section("agree")
        count = _MUTATED * self.examples
        for i, found in enumerate(_agree.agree(suite, self.target, self.seed, count)):
            self._tell("agree", i + 1, count)
            if found is not None and _is_new(section, found.message):
                values = found.case.arguments() if found.case.fill is not None else None
                code = program(self.target, suite.space, found.case, values)
                section.findings.append(Finding("error", found.message, code=code))
                if len(section.findings) >= _REPORTED:
                    break


def _is_new(section: Section, message: str) -> bool:
    """Whether no finding of a section says the same with other numbers."""
    plain = _NUMBERS.sub("", message)
    return not any(_NUMBERS.sub("", f.message) == plain for f in section.findings)


def witness(function: Any, error: DocumentedError | str, *, seed: int = 0) -> Witness:
    """Arguments and a backend that make one documented error of a function fire first.

    Args:
        function: The contracted function.
        error: The documented error, or its slug.
        seed: Seed of the search.

    Raises:
        LookupError: The contract does not document the error, or no witness was found; the text says why.
        CannotDrawError: No valid arguments can be drawn to start from.
    """
    target = find([function])[0]
    if not isinstance(target, Target):
        raise target.error
    slug = error if isinstance(error, str) else error.slug
    with compiler_environment():
        suite = Suite(drawer_of(target, seed), seed)
        reasons: list[str] = []
        for step in suite.space.terms.steps:
            if step.clause.error is None or step.clause.error.slug != slug:
                continue
            found = suite.find(step)
            if not isinstance(found, Missed):
                return make_witness(target, suite, step, found)
            reasons.append(f"{_lint.label(step)} is {found.reason}")
    raise LookupError("; ".join(reasons) or f"{target.text} does not document {slug!r}")
