"""Exceptions of the engine and the record of a documented error."""

import builtins
import hashlib
import importlib
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, cast

from ._expressions import free_names
from ._frames import caller_module
from ._notes import Notes


class ContractDefinitionError(Exception):
    """A contract is wrong in itself; whoever wrote it must change it, never its caller."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One dim of a failed call.

    Attributes:
        size: The size that was bound (a tuple for a variadic dim).
        source: What bound it, for example ``"q axis 1"``.
        axes: Every argument axis that says the dim, with the size it says.
        rejected: Whether the argument that bound it is itself at fault, so that the size may be wrong.
    """

    size: int | tuple[int, ...]
    source: str
    axes: tuple[tuple[str, int, int], ...] = ()
    rejected: bool = False


@dataclass(frozen=True, slots=True)
class ArgumentInfo:
    """Metadata of one argument of a failed call; never its data.

    Attributes:
        name: Parameter name (``self.k`` for a field).
        expected: The annotated form, as written.
        shape: Sizes, or None for an argument that is no tensor.
        dtype: Dtype as text.
        device: Device as text.
        strides: Strides in elements, where the tensor has them.
        description: One line for a reader.
    """

    name: str
    expected: str
    shape: tuple[int, ...] | None
    dtype: str | None
    device: str | None
    strides: tuple[int, ...] | None
    description: str


class ContractViolation(Exception):
    """Mixin of every error that a contract raises.

    What is raised is also an instance of the documented class. ``str(error)`` is exactly the documented text.

    Attributes:
        error: The documented error, or None for a default text.
        entry_point: Qualified name of the function that was called.
        clause: The broken clause as text, or None where no clause claims what is broken.
        position: Its place in firing order, from 0, or None.
        bindings: Dim to :class:`Binding`.
        arguments: Parameter name to :class:`ArgumentInfo`.
        call_number: Number of the call that an asynchronous check is about; None where the call itself raises.
    """

    error: "DocumentedError | None" = None
    entry_point: str = ""
    clause: str | None = None
    position: int | None = None
    bindings: Mapping[str, Binding] = {}
    arguments: Mapping[str, ArgumentInfo] = {}
    call_number: int | None = None

    def __str__(self) -> str:
        # KeyError would show the text as a repr.
        return str(self.args[0]) if len(self.args) == 1 else super().__str__()

    def __reduce__(self) -> tuple[Any, ...]:
        state = dict(self.__dict__)
        notes = state.get("__notes__")
        if isinstance(notes, Notes):
            state |= {"__notes__": list(notes), "conflict": notes.subject}
        return _restore, (type(self).__bases__[1], str(self), state)


class ContractValueError(ContractViolation, ValueError):
    """A broken shape, layout, device or relation."""


class ContractTypeError(ContractViolation, TypeError):
    """A broken dtype or type."""


class ContractRuntimeError(ContractViolation, RuntimeError):
    """A clause whose documented class is RuntimeError."""


class ContractAssertionError(ContractViolation, AssertionError):
    """A clause whose documented class is AssertionError; raised, so it holds under ``python -O``."""


class ContractNotImplementedError(ContractViolation, NotImplementedError):
    """A clause whose documented class is NotImplementedError."""


class ContractIndexError(ContractViolation, IndexError):
    """A clause whose documented class is IndexError."""


_CLASSES: dict[type[Exception], type[ContractViolation]] = {
    ValueError: ContractValueError,
    TypeError: ContractTypeError,
    RuntimeError: ContractRuntimeError,
    AssertionError: ContractAssertionError,
    NotImplementedError: ContractNotImplementedError,
    IndexError: ContractIndexError,
}


def violation_class(documented: type[Exception]) -> type[ContractViolation]:
    """The class that is raised for a documented class: an instance of it and of ContractViolation."""
    found = _CLASSES.get(documented)
    if found is None:
        made = type(f"Contract{documented.__name__}", (ContractViolation, documented), {"__module__": __name__})
        found = _CLASSES.setdefault(documented, made)
    return found


def _restore(documented: type[Exception], text: str, state: dict[str, Any]) -> ContractViolation:
    error = violation_class(documented)(text)
    error.__dict__.update(state)
    return error


@dataclass(frozen=True, slots=True)
class TemplateField:
    """One placeholder of a message template."""

    source: str
    code: CodeType
    conversion: str
    spec: str
    names: tuple[str, ...]


def _parse_template(slug: str, template: str) -> tuple[str | TemplateField, ...]:
    parts: list[str | TemplateField] = []
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as bad:
        raise ContractDefinitionError(f"{slug}: message template {template!r} does not parse: {bad}") from bad
    for literal, source, spec, conversion in pieces:
        if literal:
            parts.append(literal)
        if source is None:
            continue
        try:
            code = compile(source.strip(), f"<message of {slug}>", "eval")
            names = free_names(source.strip())
        except SyntaxError as bad:
            raise ContractDefinitionError(f"{slug}: {{{source}}} in the message template is no expression") from bad
        parts.append(TemplateField(source.strip(), code, conversion or "", spec or "", names))
    return tuple(parts)


@dataclass(frozen=True, slots=True, eq=False)
class DocumentedError:
    """An error that an entry point documents: stable slug, exact class, exact text.

    Attributes:
        slug: Stable name, unique within a family; lower case with hyphens.
        documented: Exception class that callers may rely on.
        template: F-string body over arguments, dims, lets, ``names`` and ``name``.
        fields: Extra values for the template, as functions of arguments and dims.
        module: Module that defines the error.
    """

    slug: str
    documented: type[Exception]
    template: str
    fields: Mapping[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])
    module: str = ""
    parts: tuple[str | TemplateField, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.slug) or len(self.slug) > 50:
            raise ContractDefinitionError(
                f"slug {self.slug!r}: lower-case words joined by hyphens, at most 50 characters"
            )
        documented: object = self.documented
        if not (isinstance(documented, type) and issubclass(documented, Exception)):
            raise ContractDefinitionError(f"{self.slug}: {self.documented!r} is no exception class")
        try:
            violation_class(self.documented)("probe")
        except Exception as bad:
            raise ContractDefinitionError(
                f"{self.slug}: {self.documented.__name__} cannot be raised with a text alone: {bad!r}"
            ) from bad
        object.__setattr__(self, "parts", _parse_template(self.slug, self.template))
        if not self.module:
            object.__setattr__(self, "module", caller_module(2))

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_documented, (self.module, self.slug, self.documented, self.template)

    @property
    def family(self) -> str:
        """Last part of the defining module's name: where the error's page lives."""
        return self.module.rpartition(".")[2]

    @property
    def pattern(self) -> str:
        """Regular expression that matches every rendering of the template (use ``fullmatch``)."""
        return "".join(re.escape(p) if isinstance(p, str) else "(.*?)" for p in self.parts)

    @property
    def names(self) -> frozenset[str]:
        """Names that the template reads, Python builtins left out."""
        read = {n for p in self.parts if isinstance(p, TemplateField) for n in p.names}
        return frozenset(n for n in read if n in self.fields or not hasattr(builtins, n))

    def record_id(self) -> str:
        """Stable id of 16 hex digits, made from family and slug."""
        return hashlib.sha256(f"tensorpact/{self.family}/{self.slug}".encode()).hexdigest()[:16]

    def render(self, namespace: Mapping[str, Any]) -> str:
        """The exact text for one call.

        Args:
            namespace: Arguments, dims, lets, ``names`` and ``name``.

        Raises:
            ContractDefinitionError: A placeholder cannot be evaluated.
        """
        scope = {"__builtins__": builtins, **namespace}
        out: list[str] = []
        for part in self.parts:
            if isinstance(part, str):
                out.append(part)
                continue
            try:
                value = eval(part.code, scope)
                if part.conversion:
                    value = {"r": repr, "s": str, "a": ascii}[part.conversion](value)
                out.append(format(value, part.spec))
            except Exception as bad:
                raise ContractDefinitionError(
                    f"{self.slug}: {{{part.source}}} of the message template failed: {bad!r}"
                ) from bad
        return "".join(out)


def _find_documented(module: str, slug: str, documented: type[Exception], template: str) -> DocumentedError:
    try:
        found = vars(importlib.import_module(module)).values()
    except ImportError:
        found = ()
    for value in found:
        if isinstance(value, DocumentedError) and value.slug == slug:
            return value
    return DocumentedError(slug, documented, template, cast("dict[str, Callable[..., Any]]", {}), module)
