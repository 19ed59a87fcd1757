"""What ``verify`` found, for people and for machines."""

from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["error", "warning"]
Status = Literal["ok", "warning", "failed", "skipped"]
SECTIONS = ("lint", "accept", "reject", "agree")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        level: ``error`` fails the run, ``warning`` does not.
        message: What is wrong.
        slug: Documented error that it concerns, or None.
        clause: Place of the clause in firing order, or None.
        code: The smallest arguments that show it, as a program, or None.
    """

    level: Level
    message: str
    slug: str | None = None
    clause: int | None = None
    code: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The machine form."""
        return {
            "level": self.level,
            "message": self.message,
            "slug": self.slug,
            "clause": self.clause,
            "code": self.code,
        }


@dataclass(slots=True)
class Section:
    """One column of one entry point.

    Attributes:
        done: How many things were looked at.
        note: What a reader should know of how.
        skipped: Why nothing was looked at, or None.
        findings: What is wrong.
    """

    done: int = 0
    note: str = ""
    skipped: str | None = None
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def status(self) -> Status:
        """The worst of the findings."""
        if any(f.level == "error" for f in self.findings):
            return "failed"
        if self.skipped is not None:
            return "skipped"
        return "warning" if self.findings else "ok"

    def as_dict(self) -> dict[str, Any]:
        """The machine form."""
        return {
            "status": self.status,
            "done": self.done,
            "note": self.note,
            "skipped": self.skipped,
            "findings": [f.as_dict() for f in self.findings],
        }


@dataclass(slots=True)
class EntryReport:
    """All columns of one entry point.

    Attributes:
        target: ``module:function``.
        sections: Column name to what it holds.
        witnesses: For each clause with a documented error: slug, clause and the code of its witness.
    """

    target: str
    sections: dict[str, Section] = field(default_factory=lambda: {name: Section() for name in SECTIONS})
    witnesses: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def ok(self) -> bool:
        """Whether no finding is an error."""
        return all(s.status != "failed" for s in self.sections.values())

    def as_dict(self) -> dict[str, Any]:
        """The machine form."""
        return {
            "target": self.target,
            "ok": self.ok,
            **{name: section.as_dict() for name, section in self.sections.items()},
            "witnesses": self.witnesses,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one run.

    Attributes:
        entries: One report an entry point.
        seed: Seed of the run.
        examples: Valid calls an entry point.
    """

    entries: tuple[EntryReport, ...]
    seed: int
    examples: int

    @property
    def ok(self) -> bool:
        """Whether every entry point is right."""
        return all(e.ok for e in self.entries)

    def as_dict(self) -> dict[str, Any]:
        """The machine form; its keys are stable."""
        return {
            "version": 1,
            "ok": self.ok,
            "seed": self.seed,
            "examples": self.examples,
            "entries": [e.as_dict() for e in self.entries],
        }

    def findings(self) -> list[tuple[str, str, Finding]]:
        """Every finding with its entry point and column."""
        return [(e.target, name, f) for e in self.entries for name, s in e.sections.items() for f in s.findings]
