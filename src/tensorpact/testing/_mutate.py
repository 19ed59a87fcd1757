"""Mutation test of a contract: each clause left out or loosened in turn, and whether a refused call notices."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tensorpact import use_backend
from tensorpact._decorator import disabled
from tensorpact._diagnosis import diagnose
from tensorpact._entry import Entry
from tensorpact._errors import ContractDefinitionError, ContractViolation
from tensorpact._terms import Terms

from ._drafts import complete
from ._making import compiler_environment, drawer_of
from ._mutants import mutants_of
from ._mutation import MutationEntry, MutationReport, Trial
from ._recording import refused_calls, run_pages, running_test
from ._search import Found, Suite
from ._space import CannotDrawError
from ._targets import Target, TargetError, find
from ._witness import program

#: Told which target is at work, and how many of how many clauses are done.
Progress = Callable[[str, int, int], None]
#: What the corpus of a mutation test is made of: something to run, or arguments by name.
Corpus = Iterable[Callable[[], Any] | Mapping[str, Any]]


def mutate(
    targets: Iterable[Any] = ("tensorpact_kernels",),
    *,
    corpus: Corpus | None = None,
    pages: bool = False,
    seed: int = 0,
    budget: int = 4000,
    progress: Progress | None = None,
) -> MutationReport:
    """Leave out or loosen every clause of contracts in turn, and see whether a refused call notices.

    Without a corpus, calls are searched for: a mutant that none of them notices changes nothing, so that its clause,
    or a part of it, is redundant. With a corpus, the contract is what the tests are tested against: a mutant that no
    call of the corpus notices is reported with a call that would.

    Args:
        targets: ``"MODULE"``, ``"MODULE:FUNCTION"`` or contracted functions.
        corpus: Functions that call the targets, such as a test, or arguments by name of the one target.
        pages: Take the failing examples of the pages of documented errors into the corpus.
        seed: The same seed searches through the same calls.
        budget: Most calls to look at for one clause.
        progress: Told how far the run is.

    Raises:
        TargetError: A target has no contract, contracts are off, or arguments come with several targets.
    """
    if disabled:
        raise TargetError("TENSORPACT=off: the decorators returned the bare functions, so there is nothing to mutate")
    found: list[Target] = []
    for target in find(targets):
        if not isinstance(target, Target):
            raise TargetError(f"{target.name}: the contract is wrong in itself: {target.error}")
        found.append(target)
    given = None if corpus is None and not pages else list(corpus or ())
    with compiler_environment():
        experiments = [_Experiment(target, seed, budget) for target in found]
        if given is not None:
            _run_corpus(experiments, given, pages)
        for experiment in experiments:
            experiment.search(given is not None, progress)
    return MutationReport(tuple(e.report for e in experiments), seed)


def _run_corpus(experiments: "list[_Experiment]", corpus: list[Any], pages: bool) -> None:
    by_entry = {e.target.entry: e for e in experiments}
    outside, source = running_test(), ""

    def look(entry: Entry, arguments: Mapping[str, Any]) -> None:
        # A test suite among the corpus tells which of its tests is at work.
        now = running_test()
        by_entry[entry].look(arguments, source if now in ("", outside) else now)

    with refused_calls(by_entry, look):
        for item in corpus:
            source = str(getattr(item, "__name__", "corpus"))
            if callable(item):
                item()
            elif len(experiments) == 1:
                experiments[0].look(item, source)
            else:
                raise TargetError("arguments belong to one entry point, and several are mutated")
        for entry in by_entry if pages else ():
            for name, run in run_pages(entry):
                source = name
                run()


class _Experiment:
    """The mutants of one entry point, those still unnoticed tried on every refused call."""

    def __init__(self, target: Target, seed: int, budget: int) -> None:
        self.target = target
        self.budget = budget
        self.report = MutationEntry(target.text)
        self._suite: Suite | None = None
        try:
            drawer = drawer_of(target, seed)
            self._suite = Suite(drawer, seed)
        except CannotDrawError as bad:
            self.report.note = f"no calls were searched for: {bad}"
        self._terms = target.entry.terms
        self.report.trials = [Trial(mutant) for mutant in mutants_of(self._terms)]

    def look(self, arguments: Mapping[str, Any], source: str) -> None:
        """Try the mutants on a call."""
        before = _outcome(self._terms, arguments)
        if before is None:
            return
        self.report.calls += 1
        for trial in self.report.trials:
            if trial.noticed_by is None and _outcome(trial.mutant.terms, arguments) != before:
                trial.noticed_by = source

    def search(self, only_code: bool, progress: Progress | None) -> None:
        """Look for calls that notice what is left.

        Args:
            only_code: Say them as programs rather than count them as noticing: the corpus should have had them.
            progress: Told how far this is.
        """
        if self._suite is None:
            return
        steps = self._suite.space.terms.steps
        for step in steps:
            live = [t for t in self.report.trials if t.mutant.clause == step.index and t.noticed_by is None]
            if live:
                self._search(self._suite, step.index, live, only_code)
            if progress is not None:
                progress(self.target.text, step.index + 1, len(steps))

    def _search(self, suite: Suite, index: int, live: list[Trial], only_code: bool) -> None:
        for found in suite.firing(suite.space.terms.steps[index], self.budget):
            self.report.calls += not only_code
            for trial in [t for t in live if self._differs(suite, t, found)]:
                live.remove(trial)
                if only_code:
                    trial.code = self._program(suite, trial, found)
                else:
                    trial.noticed_by = "witness"
            if not live:
                return

    def _differs(self, suite: Suite, trial: Trial, found: Found) -> bool:
        arguments = complete(suite.space, found.case.arguments())
        with use_backend(found.case.backend):  # type: ignore[arg-type]
            before = _outcome(self._terms, arguments)
            return before is not None and _outcome(trial.mutant.terms, arguments) != before

    def _program(self, suite: Suite, trial: Trial, found: Found) -> str:
        small = suite.shrink(found, lambda f: f.verdict.violation is not None and self._differs(suite, trial, f))
        values = small.case.arguments() if small.case.fill is not None else None
        return program(self.target, suite.space, small.case, values)


def _outcome(terms: Terms, arguments: Mapping[str, Any]) -> tuple[str, ...] | None:
    """What a caller sees of a call: class, text and documented error; None where the call is right."""
    try:
        error = diagnose(terms, arguments)
    except ContractDefinitionError as bad:
        return ("code of the contract fails", str(bad))
    if error is None:
        return None
    slug = "" if not isinstance(error, ContractViolation) or error.error is None else error.error.slug
    return (type(error).__bases__[-1].__name__, str(error), slug)
