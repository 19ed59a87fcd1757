"""Drafts of contracts: hand-written checks of a function read, and written down as annotations, clauses and errors."""

from dataclasses import dataclass

from ._clauses import Item, Translator
from ._conditions import Vocabulary
from ._logic import Logic
from ._reading import Reading
from ._source import DraftError, Source, locate
from ._syntax import constant
from ._tensors import arguments
from ._write import Writer

__all__ = ["Draft", "DraftError", "draft"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A contract drafted from the checks of a function.

    Attributes:
        target: ``module:function``.
        text: The draft, as Python.
        contract: Name of the contract in it.
        items: What became of each check, in firing order.
        source: The function and its module.
    """

    target: str
    text: str
    contract: str
    items: tuple[Item, ...]
    source: Source

    @property
    def checks(self) -> dict[int, str | None]:
        """Line of each check to the reason why it is not translated; None where it is.

        A check in a loop that is written out counts once, and only if every round of it is translated.
        """
        found: dict[int, str | None] = {}
        for item in self.items:
            if item.text:
                found[item.line] = found.get(item.line) or item.problem
        return found

    @property
    def translated(self) -> int:
        """How many checks are translated."""
        return sum(reason is None for reason in self.checks.values())

    @property
    def summary(self) -> str:
        """How much is translated, in one sentence."""
        count = len(self.checks)
        return f"{self.translated} of {count} check{'s' * (count != 1)} translated"


def draft(target: str) -> Draft:
    """Draft a contract; nothing is imported and nothing is run.

    Args:
        target: ``path.py:function``, ``module:function``, or either with ``Class.method``.

    Raises:
        DraftError: There is no such function.
    """
    source = locate(target)
    known = arguments(source.function)
    tensors = frozenset(n for n, a in known.items() if a.tensor)
    numbers = {n for n, v in source.constants.items() if type(constant(v)) is int}
    whole = frozenset(n for n, a in known.items() if a.hint == "int") | numbers
    reading = Reading(source, tensors, whole)
    outside = {*source.constants, *source.imports, *source.functions, *reading.imports}
    reserved = frozenset({*known, *outside, "name", "names", "self"})
    vocabulary = Vocabulary(tensors, source.constants)
    translator = Translator(reading.events, known, reading.names, vocabulary, Logic(whole), reserved)
    items = tuple(translator.items)
    writer = Writer(source, known, translator.facts, items, reading.imports)
    found = Draft(f"{source.module}:{source.name}", "", writer.contract, items, source)
    heading = f"Draft of a contract for {source.module}.{source.name}: {found.summary}."
    return Draft(found.target, writer.text(heading), writer.contract, items, source)
