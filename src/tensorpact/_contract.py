"""A contract: what an entry point promises beyond its annotations, as immutable data."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ._errors import ContractDefinitionError, DocumentedError
from ._frames import caller_module
from .clauses import Clause


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Contract:
    """Clauses in firing order and the words that belong to them.

    Args:
        name: Name of the entry point.
        dims: Glossary: dim to what it counts.
        clauses: Statements in firing order.
        binds: Dim to the parameter that is its authority in messages; else the first one that has the bare name.
        tied: Dims that must equal the int argument of the same name.
        mutates: Parameters that the entry point writes.
        reference: The same function in plain torch, or ``"module:function"``, for ``tensorpact verify``.
        family: Where the documented errors live; the last part of the defining module's name by default.
    """

    name: str
    dims: Mapping[str, str]
    clauses: tuple[Clause, ...]
    binds: Mapping[str, str]
    tied: tuple[str, ...]
    mutates: tuple[str, ...]
    reference: Callable[..., Any] | str | None
    family: str
    module: str

    def __init__(
        self,
        name: str,
        *,
        dims: Mapping[str, str] | None = None,
        clauses: Iterable[Clause] = (),
        binds: Mapping[str, str] | None = None,
        tied: Iterable[str] = (),
        mutates: Iterable[str] = (),
        reference: Callable[..., Any] | str | None = None,
        family: str | None = None,
    ) -> None:
        items = (clauses,) if isinstance(clauses, Clause) else tuple(clauses)
        for item in items:
            checked: object = item
            if not isinstance(checked, Clause):
                raise ContractDefinitionError(f"{name}: {item!r} is no clause")
        slugs: dict[str, DocumentedError] = {}
        for error in (c.error for c in items if c.error is not None):
            if slugs.setdefault(error.slug, error) is not error:
                raise ContractDefinitionError(f"{name}: two errors have the slug {error.slug!r}")
        module = caller_module(1)
        values = {
            "name": name,
            "dims": MappingProxyType(dict(dims or {})),
            "clauses": items,
            "binds": MappingProxyType(dict(binds or {})),
            "tied": (tied,) if isinstance(tied, str) else tuple(tied),
            "mutates": (mutates,) if isinstance(mutates, str) else tuple(mutates),
            "reference": reference,
            "family": family or module.rpartition(".")[2],
            "module": module,
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)

    @property
    def errors(self) -> tuple[DocumentedError, ...]:
        """The documented errors in firing order, each once."""
        return tuple(dict.fromkeys(c.error for c in self.clauses if c.error is not None))

    def reference_function(self) -> Callable[..., Any] | None:
        """The reference, imported where it is given by name.

        Raises:
            ContractDefinitionError: There is no such function.
        """
        if not isinstance(self.reference, str):
            return self.reference
        module, _, function = self.reference.partition(":")
        try:
            return getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as bad:
            raise ContractDefinitionError(f"{self.name}: reference {self.reference!r} does not import: {bad}") from bad
