"""What a mutation test of contracts found, for people and for machines."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ._mutants import Mutant

#: ``noticed``: a call of the corpus has another outcome. ``unnoticed``: none has, but the call in ``code`` would.
#: ``redundant``: no call was found that would.
Fate = Literal["noticed", "unnoticed", "redundant"]


@dataclass(slots=True)
class Trial:
    """One mutant and what became of it.

    Attributes:
        mutant: The changed contract.
        noticed_by: What noticed it first: ``witness``, ``page SLUG``, a test's id; None where nothing did.
        code: A program whose call would notice it, where the corpus has none; else None.
    """

    mutant: Mutant
    noticed_by: str | None = None
    code: str | None = None

    @property
    def fate(self) -> Fate:
        """What became of the mutant."""
        if self.noticed_by is not None:
            return "noticed"
        return "redundant" if self.code is None else "unnoticed"

    @property
    def level(self) -> Literal["ok", "warning", "error"]:
        """``error`` fails the run; a mutant that may be the same contract in other words only warns."""
        if self.fate == "noticed":
            return "ok"
        return "warning" if self.fate == "redundant" and self.mutant.doubtful else "error"

    def as_dict(self) -> dict[str, Any]:
        """The machine form."""
        return {
            "clause": self.mutant.clause,
            "text": self.mutant.text,
            "slug": self.mutant.slug,
            "kind": self.mutant.kind,
            "change": self.mutant.change,
            "fate": self.fate,
            "level": self.level,
            "noticedBy": self.noticed_by,
            "code": self.code,
        }


@dataclass(slots=True)
class MutationEntry:
    """The mutants of one entry point.

    Attributes:
        target: ``module:function``.
        trials: Its mutants in firing order of their clauses.
        calls: Refused calls that the mutants were tried on.
        note: What a reader should know, such as why no calls were searched for.
    """

    target: str
    trials: list[Trial] = field(default_factory=list[Trial])
    calls: int = 0
    note: str = ""

    @property
    def survivors(self) -> list[Trial]:
        """The mutants that nothing noticed."""
        return [t for t in self.trials if t.fate != "noticed"]

    @property
    def ok(self) -> bool:
        """Whether no survivor is an error."""
        return all(t.level != "error" for t in self.trials)

    def as_dict(self) -> dict[str, Any]:
        """The machine form."""
        return {
            "target": self.target,
            "ok": self.ok,
            "mutants": len(self.trials),
            "noticed": len(self.trials) - len(self.survivors),
            "calls": self.calls,
            "note": self.note,
            "trials": [t.as_dict() for t in self.trials],
        }


@dataclass(frozen=True, slots=True)
class MutationReport:
    """The outcome of a mutation test.

    Attributes:
        entries: One an entry point.
        seed: Seed of the searches.
    """

    entries: tuple[MutationEntry, ...]
    seed: int

    @property
    def ok(self) -> bool:
        """Whether every entry point is right."""
        return all(e.ok for e in self.entries)

    def as_dict(self) -> dict[str, Any]:
        """The machine form; its keys are stable."""
        return {"version": 1, "ok": self.ok, "seed": self.seed, "entries": [e.as_dict() for e in self.entries]}

    def lines(self) -> Iterator[str]:
        """The report for people: survivors first, then a table."""
        for entry in self.entries:
            for trial in entry.survivors:
                yield from _told(entry.target, trial)
        names = [e.target.rpartition(":")[2] for e in self.entries]
        width = max((len(n) for n in (*names, "entry point")), default=0)
        yield f"{'entry point':<{width}}  {'mutants':>7}  {'noticed':>7}  {'unnoticed':>9}  {'redundant':>9}"
        for entry, name in zip(self.entries, names, strict=True):
            fates = [t.fate for t in entry.trials]
            counts = [fates.count(f) for f in ("noticed", "unnoticed", "redundant")]
            row = f"{name:<{width}}  {len(fates):>7}  {counts[0]:>7}  {counts[1]:>9}  {counts[2]:>9}"
            yield f"{row}  {entry.note}".rstrip()


def _told(target: str, trial: Trial) -> Iterator[str]:
    mutant = trial.mutant
    slug = f" ({mutant.slug})" if mutant.slug is not None else ""
    what = f"{trial.level} {target} clause {mutant.clause} {mutant.text}{slug} {mutant.change}"
    if trial.code is None:
        yield f"{what}: no call tells the difference"
        return
    yield f"{what}: no call of the corpus tells the difference; this one would:"
    for line in trial.code.rstrip().splitlines():
        yield f"    {line}".rstrip()
