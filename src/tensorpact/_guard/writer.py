"""Lines of generated text and the names in them."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from tensorpact._annotations import EMPTY, Parameter
from tensorpact._fitting import is_array_like, is_local, is_local_class, is_sharded

from .plan import GuardPlan
from .runtime import Miss


@dataclass(frozen=True, slots=True)
class GuardSource:
    """Text of a guard and the values it reads through globals."""

    text: str
    values: dict[str, Any]
    filename: str


@dataclass(frozen=True, slots=True)
class Pending:
    """A test, or a statement that gives a dim its value, that waits until what it reads is known.

    Attributes:
        text: The condition, or the statement.
        reads: Dims and lets that it reads.
        condition: Condition under which the parameter is given at all.
        order: Place among the statements: bare axes bind first, broadcasting ones next, solved dims last in order.
            None for a test; tests follow the statements.
    """

    text: str
    reads: frozenset[str]
    condition: str = ""
    order: int | None = None


BARE, BROADCAST, ONES, SOLVED = range(4)


class Writer:
    """Lines of one guard."""

    def __init__(self, plan: GuardPlan, remembering: "Writer | None" = None, symbolic: Any = None) -> None:
        self.plan = plan
        #: The module of symbolic claims where the text is for a tracer, which may not know a size.
        self.symbolic = symbolic
        self.terms = plan.terms
        self.prefix = "_"
        while any(p.name.startswith(self.prefix) for p in self.terms.signature.parameters):
            self.prefix += "_"
        self.values: dict[str, Any] = {} if remembering is None else remembering.values
        #: Where dims that a remembered signature keeps begin in it; 0 outside a match.
        self.stored = 0
        self.kept: list[str] = []
        #: Lets that a match derives anew.
        self.fresh: set[str] = set()
        self.items: dict[str, str] = {}
        self.lines: list[str] = []
        self.tests: list[str] = []
        self.bound: set[str] = set()
        self.later: list[Pending] = []
        self.read: dict[tuple[str, str], str] = {}
        self.count = 0
        self.depth = 2

    def line(self, text: str) -> None:
        """Write a statement, after the tests collected so far."""
        self.flush()
        self.lines.append("    " * self.depth + text)

    def test(self, text: str) -> None:
        """Add a condition that must hold."""
        self.tests.append(text)

    def flush(self) -> None:
        """Write the collected tests as one conjunction."""
        if self.tests:
            tests, self.tests = self.tests, []
            joined = f"\n{'    ' * (self.depth + 1)}and ".join(tests)
            pad = "    " * self.depth
            if len(tests) == 1:
                self.lines.append(f"{pad}if not ({joined}):")
            else:
                self.lines.append(f"{pad}if not (\n{pad}    {joined}\n{pad}):")
            self.lines.append(f"{pad}    raise {self.value('Miss', Miss)}")

    def equal(self, one: str, other: str) -> str:
        """Test that two sizes are equal."""
        return self.claim(f"{one} == {other}")

    def claim(self, text: str) -> str:
        """A test that a tracer may not be able to decide."""
        return f"{self.value('agree', self.symbolic.agree)}({text})" if self.symbolic else text

    def sizes(self, one: str, other: str) -> str:
        """Test that two tuples of sizes are equal."""
        if self.symbolic:
            return f"{self.value('sizes_agree', self.symbolic.sizes_agree)}({one}, {other})"
        return f"{one} == {other}"

    def is_one(self, size: str) -> str:
        """Condition that a size is 1."""
        return f"{self.value('is_one', self.symbolic.is_one)}({size})" if self.symbolic else f"{size} == 1"

    def one_or(self, size: str, other: str) -> str:
        """Test that a size is 1 or another one."""
        if self.symbolic:
            return f"{self.value('one_or', self.symbolic.one_or)}({size}, {other})"
        return f"({size} == 1 or {size} == {other})"

    def value(self, label: str, value: Any) -> str:
        """Name of a global that holds a value."""
        name = f"{self.prefix}{words(label)}"
        while self.values.setdefault(name, value) is not value:
            name += "x"
        return name

    def builtin(self, function: Any) -> str:
        """A builtin by its name, unless a parameter has taken that."""
        name: str = function.__name__
        return self.value(name, function) if name in self.terms.parameters else name

    def var(self, name: str) -> str:
        """Variable of a parameter, a field or the item of a container that a loop is at."""
        if name in self.items:
            return self.items[name]
        return name if "." not in name else f"{self.prefix}field_{name.partition('.')[2]}"

    def dim(self, name: str) -> str:
        """Variable of a dim or let; in a match, its place in the remembered signature unless it is derived anew."""
        if self.stored and name not in self.fresh:
            if name not in self.kept:
                self.kept.append(name)
            return f"{self.prefix}known[{self.stored + self.kept.index(name)}]"
        return f"{self.prefix}{name}_"

    def temporary(self) -> str:
        """A fresh variable."""
        self.count += 1
        return f"{self.prefix}t{self.count}"

    def argument(self, name: str) -> str:
        """Variable of anything that a rule may read."""
        return self.var(name) if name in self.terms.parameters else self.dim(name)

    def given(self, parameter: Parameter) -> str:
        """Condition under which a parameter is a tensor."""
        if parameter.other is EMPTY:
            return f"{self.var(parameter.name)} is not None"
        return self.is_array(parameter)

    def is_array(self, parameter: Parameter) -> str:
        """Condition that a parameter is an array of the annotated class."""
        name, spec = parameter.name, parameter.tensor
        types: tuple[Any, ...] = tuple(dict.fromkeys(f.array_type for f in spec.forms)) if spec else ()
        if types == (torch.Tensor,):
            exact = f"{self.builtin(type)}({self.var(name)}) is {self.value('Tensor', torch.Tensor)}"
            return f"({exact} or {self.value('is_local', is_local)}({self.var(name)}))"
        if Any in types:
            return f"{self.value('is_array', is_array_like)}({self.var(name)})"
        known = f"{self.builtin(isinstance)}({self.var(name)}, {self.value(f'class_{name}', types)})"
        if any(hasattr(t, "to_local") for t in types) or not any(is_local_class(t) for t in types):
            return known
        return f"({known} and not {self.value('is_sharded', is_sharded)}({self.var(name)}))"

    def attribute(self, name: str, what: str) -> str:
        """An attribute of a tensor, kept in a variable when it is read again."""
        key = (name, what)
        if key in self.read:
            return self.read[key]
        self.read[key] = f"{self.prefix}{what}_of_{words(name)}"
        return f"({self.read[key]} := {self.var(name)}.{what})"


def words(text: str) -> str:
    """A text as part of a name."""
    return "".join(c if c.isalnum() else "_" for c in text)


def unless(condition: str) -> str:
    """The opposite of a condition."""
    if condition.endswith(" is not None"):
        return f"{condition.removesuffix(' is not None')} is None"
    return f"not {condition}"


def signature_text(parameters: list[Parameter]) -> str:
    """The parameter list of a guard; defaults are set on the function afterwards."""
    out: list[str] = []
    kinds = inspect.Parameter
    starred = False
    for i, p in enumerate(parameters):
        if p.kind is kinds.KEYWORD_ONLY and not starred:
            out.append("*")
            starred = True
        text = p.name
        if p.kind is kinds.VAR_POSITIONAL:
            text, starred = f"*{p.name}", True
        elif p.kind is kinds.VAR_KEYWORD:
            text = f"**{p.name}"
        elif p.default is not EMPTY:
            text += "=None"
        out.append(text)
        if p.kind is kinds.POSITIONAL_ONLY and (i + 1 == len(parameters) or parameters[i + 1].kind is not p.kind):
            out.append("/")
    return ", ".join(out)


def call_text(parameters: list[Parameter]) -> str:
    """The arguments as the guard hands them on."""
    kinds = inspect.Parameter
    forms = {kinds.VAR_POSITIONAL: "*{0}", kinds.VAR_KEYWORD: "**{0}", kinds.KEYWORD_ONLY: "{0}={0}"}
    return ", ".join(forms.get(p.kind, "{0}").format(p.name) for p in parameters)
