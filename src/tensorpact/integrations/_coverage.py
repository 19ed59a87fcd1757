"""What a test session did with its contracts: calls, and which clauses were ever broken; counted, merged, written."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorpact._entry import Entry

#: Widest line of the table, in characters.
_WIDTH = 100


@dataclass(slots=True)
class Rule:
    """One clause of a contract.

    Attributes:
        index: Its place in firing order, from 0.
        text: The clause, as errors name it.
        slug: Its documented error, or None.
        broken: How many calls were refused by it.
        by: The test that broke it first, or None.
    """

    index: int
    text: str
    slug: str | None
    broken: int = 0
    by: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The machine form."""
        return {"index": self.index, "clause": self.text, "slug": self.slug, "broken": self.broken, "by": self.by}


@dataclass(slots=True)
class Function:
    """One contracted function, or the fields of a dataclass.

    Attributes:
        name: Module and qualified name.
        calls: Calls while contracts were enforced, refused ones included.
        refused: Calls that were refused.
        unclaimed: Calls that were refused for what an annotation says and no clause claims.
        rules: The clauses that a call can break, in firing order.
    """

    name: str
    calls: int = 0
    refused: int = 0
    unclaimed: int = 0
    rules: list[Rule] = field(default_factory=list[Rule])

    @property
    def never(self) -> list[Rule]:
        """The clauses that no call has broken."""
        return [r for r in self.rules if not r.broken]

    def as_dict(self) -> dict[str, Any]:
        """The machine form."""
        return {
            "calls": self.calls,
            "refused": self.refused,
            "unclaimed": self.unclaimed,
            "rules": [r.as_dict() for r in self.rules],
        }


@dataclass(slots=True)
class Record:
    """The figures of a session, of one process or of several that were merged.

    Attributes:
        mode: How contracts were enforced at the start.
        functions: Every contracted function, by name.
        packages: Packages that were to be contracted at import.
        modules: Their modules that were, with the number of contracts in each.
        lost: Processes that ended without handing in their figures.
    """

    mode: str
    functions: dict[str, Function] = field(default_factory=dict[str, Function])
    packages: tuple[str, ...] = ()
    modules: dict[str, int] = field(default_factory=dict[str, int])
    lost: int = 0

    @property
    def calls(self) -> int:
        """Calls of all functions."""
        return sum(f.calls for f in self.functions.values())

    @property
    def rules(self) -> list[Rule]:
        """The clauses of all functions."""
        return [r for f in self.functions.values() for r in f.rules]

    @property
    def coverage(self) -> float | None:
        """Percentage of the clauses that a call has broken; None where there are no clauses."""
        rules = self.rules
        return 100 * sum(r.broken > 0 for r in rules) / len(rules) if rules else None

    def as_dict(self) -> dict[str, Any]:
        """The machine form."""
        return {
            "mode": self.mode,
            "calls": self.calls,
            "contracts": len(self.functions),
            "rules": len(self.rules),
            "coverage": self.coverage,
            "functions": {name: f.as_dict() for name, f in sorted(self.functions.items())},
            "packages": {p: {m: n for m, n in sorted(self.modules.items()) if _within(m, p)} for p in self.packages},
            "lost": self.lost,
        }

    def merge(self, other: dict[str, Any]) -> None:
        """Add the figures of another process, in their machine form."""
        for name, figures in other["functions"].items():
            rules = [Rule(r["index"], r["clause"], r["slug"]) for r in figures["rules"]]
            mine = self.functions.setdefault(name, Function(name, rules=rules))
            mine.calls += figures["calls"]
            mine.refused += figures["refused"]
            mine.unclaimed += figures["unclaimed"]
            known = {(r.index, r.text, r.slug): r for r in mine.rules}
            for rule in figures["rules"]:
                key = (rule["index"], rule["clause"], rule["slug"])
                if key not in known:
                    known[key] = Rule(*key)
                    mine.rules.append(known[key])
                known[key].broken += rule["broken"]
                known[key].by = known[key].by or rule["by"]
        for modules in other["packages"].values():
            for module, contracts in modules.items():
                self.modules[module] = max(contracts, self.modules.get(module, 0))
        self.lost += other["lost"]

    def lines(self) -> Iterator[str]:
        """The report for people."""
        called = sum(f.calls > 0 for f in self.functions.values())
        calls = f"{self.calls} contracted call{'' if self.calls == 1 else 's'}"
        yield f"{self.mode}: {calls}, of {called} of {len(self.functions)} contracted functions"
        yield from self._package_lines()
        if self.lost:
            yield f"worker processes that ended without handing in figures: {self.lost}"
        rules = self.rules
        if not rules:
            return
        broken = sum(r.broken > 0 for r in rules)
        yield f"rule coverage: {broken} of {len(rules)} clauses were broken by a test ({self.coverage:.0f}%)"
        with_rules = sorted((f for f in self.functions.values() if f.rules), key=lambda f: f.name)
        width = max(len(f.name) for f in with_rules)
        yield ""
        yield f"{'function':<{width}}  {'calls':>7}  {'refused':>7}  {'clauses':>9}"
        for f in with_rules:
            share = f"{len(f.rules) - len(f.never)}/{len(f.rules)}"
            yield f"{f.name:<{width}}  {f.calls:>7}  {f.refused:>7}  {share:>9}"
        never = [(f, r) for f in with_rules for r in f.never]
        if never:
            yield ""
            yield "never broken:"
        for f, rule in never:
            slug = f" [{rule.slug}]" if rule.slug else ""
            text = f"{f.name}, clause {rule.index} {rule.text}"
            room = _WIDTH - len(slug) - 2
            yield f"  {text if len(text) <= room else text[: room - 1] + '…'}{slug}"

    def _package_lines(self) -> Iterator[str]:
        for package in self.packages:
            found = {m: n for m, n in self.modules.items() if _within(m, package)}
            contracts = sum(found.values())
            if not found:
                yield f"{package}: named, but never imported"
            elif not contracts:
                yield f"{package}: imported, but without a single contract"
            else:
                modules = f"{len(found)} module{'' if len(found) == 1 else 's'}"
                yield f"{package}: {contracts} contract{'' if contracts == 1 else 's'} in {modules}"


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


class Recorder:
    """Keeps the record of this process: the observer of its contracts."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def made(self, entry: "Entry", /) -> None:
        """Note a function and its clauses; one that is defined again goes on where it was."""
        from tensorpact.clauses import Let

        function = self.record.functions.setdefault(entry.owner, Function(entry.owner))
        known = {(r.index, r.text, r.slug) for r in function.rules}
        for index, clause in enumerate(entry.contract.clauses):
            rule = Rule(index, str(clause), None if clause.error is None else clause.error.slug)
            if not isinstance(clause, Let) and (index, rule.text, rule.slug) not in known:
                function.rules.append(rule)

    def counted(self, entry: "Entry", body: Callable[..., Any], /) -> Callable[..., Any]:
        """A body that counts its calls, but for those that a tracer makes."""
        import torch

        import tensorpact._modes as modes

        function = self.record.functions[entry.owner]
        is_tracing = torch.compiler.is_dynamo_compiling

        def counting(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if not is_tracing() and modes.current != modes.OFF:
                function.calls += 1
            return body(*args, **kwargs)

        return counting

    def broken(self, entry: "Entry", error: Exception, /) -> None:
        """Note a call that was refused, and by which clause."""
        function = self.record.functions[entry.owner]
        function.calls += 1
        function.refused += 1
        # By place: two clauses may read alike. A function that is defined again may have others at the same places.
        position, text = getattr(error, "position", None), getattr(error, "clause", None)
        slug = getattr(getattr(error, "error", None), "slug", None)
        for rule in function.rules:
            if (rule.index, rule.text, rule.slug) == (position, text, slug):
                rule.broken += 1
                rule.by = rule.by or os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0] or None
                return
        function.unclaimed += 1
