"""From checks to clauses, in firing order: a word of the contract where one says exactly the same, else a rule."""

import ast
import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ._axes import Facts, shape_parts
from ._checks import Check, Event, Unpacking, not_none
from ._conditions import Axis, Says, Vocabulary
from ._logic import Logic, conjunction, terms_of
from ._messages import Template, slug_of, template_of
from ._syntax import UnreadableError, constant, is_none_test, names_in
from ._tensors import Argument


@dataclass(frozen=True, slots=True)
class Member:
    """A clause without its error: verb, names, and the axes of a ``shape``."""

    verb: str
    names: tuple[str, ...]
    axes: str | None = None


@dataclass(frozen=True, slots=True)
class Error:
    """A documented error to be."""

    slug: str
    exception: ast.expr
    template: Template

    @property
    def constant(self) -> str:
        """Name of the object in the draft."""
        return self.slug.upper().replace("-", "_")


@dataclass(slots=True)
class Item:
    """One line of the draft.

    Attributes:
        line: Of the original.
        text: The original statement.
        members: The clause, or those of an ``any_of``.
        rule: What a ``require`` holds to.
        when: What limits the clause.
        error: Its error; None for an unpacking.
        problem: Why nothing could be made of it.
        remark: What a reader should know.
    """

    line: int
    text: str
    members: tuple[Member, ...] = ()
    rule: ast.expr | None = None
    when: ast.expr | None = None
    error: Error | None = None
    problem: str | None = None
    remark: str | None = None


@dataclass(slots=True)
class _Condition:
    """A check brought into the form in which it is compared with clauses."""

    check: Check
    holds: ast.expr
    given: tuple[str, ...]
    guards: tuple[ast.expr, ...]
    said: tuple[Says | None, ...] = field(default=())


class Translator:
    """Makes the items of a draft.

    Args:
        events: Checks and unpackings in order.
        arguments: The parameters.
        names: What the function calls an axis.
        vocabulary: Reads terms.
        logic: Negates.
        reserved: Names that no dim may have.
    """

    def __init__(
        self,
        events: Sequence[Event],
        arguments: Mapping[str, Argument],
        names: Mapping[tuple[str, int], str],
        vocabulary: Vocabulary,
        logic: Logic,
        reserved: frozenset[str],
    ) -> None:
        self.arguments, self.vocabulary, self.logic = arguments, vocabulary, logic
        self.events = [self._condition(e) if isinstance(e, Check) and e.problem is None else e for e in events]
        said = [
            s for c in self.events if isinstance(c, _Condition) and self._claims(c) for s in c.said if s is not None
        ]
        unpacked: dict[str, int] = {}
        for e in self.events:
            if isinstance(e, Unpacking) and not e.guarded:
                unpacked.setdefault(e.tensor, len(e.names))
        self.facts = Facts(arguments, said, unpacked.items(), names, vocabulary, reserved)
        self.established: set[str] = set()
        self.proved: set[Axis] = set()
        self.errors: dict[str, Error] = {}
        self.items = [item for e in self.events for item in self._items(e)]

    # -- conditions -------------------------------------------------------------------------------------------------

    def _condition(self, check: Check) -> _Condition:
        holds = self.logic.negate(check.fires)
        given = [t[0] for g in check.guards if (t := is_none_test(g)) is not None and not t[1]]
        guards = [g for g in check.guards if not ((t := is_none_test(g)) is not None and not t[1])]
        if isinstance(holds, ast.BoolOp) and isinstance(holds.op, ast.Or):
            # `k is None or …` is a check of those who give k.
            absent = [v for v in holds.values if (t := is_none_test(v)) is not None and t[1]]
            rest = [v for v in holds.values if v not in absent]
            if rest and not all(is_none_test(v) for v in rest):
                given += [t[0] for v in absent if (t := is_none_test(v)) is not None]
                holds = rest[0] if len(rest) == 1 else ast.BoolOp(ast.Or(), rest)
        terms = terms_of(holds)
        said = tuple(self.vocabulary.says(t) for t in terms)
        return _Condition(check, holds, tuple(dict.fromkeys(given)), tuple(guards), said)

    def _claims(self, c: _Condition) -> bool:
        """Whether every call comes to the check, so that what it says may stand in the annotations."""
        if c.guards or any(s is None for s in c.said):
            return False
        if not all(self.arguments[n].tensor for n in c.given if n in self.arguments):
            return False
        return all(set(c.given) <= set(s.names) for s in c.said if s is not None)

    # -- items ------------------------------------------------------------------------------------------------------

    def _items(self, event: "_Condition | Event") -> Iterable[Item]:
        if isinstance(event, Unpacking):
            known = self.facts.rank.get(event.tensor) == len(event.names)
            if known and not event.guarded and event.tensor not in self.established:
                self.established.add(event.tensor)
                yield Item(event.line, "", (Member("rank", (event.tensor,)),))
            return
        if isinstance(event, Check):
            yield Item(event.line, event.text, problem=event.problem or "is not understood")
            return
        check = event.check
        item = Item(check.line, check.text)
        try:
            template = template_of(check.message, self.arguments)
        except UnreadableError as bad:
            item.problem = str(bad)
            yield item
            return
        if all(s is not None and s.what == "tensor" for s in event.said) and not event.guards:
            item.remark = "the annotation says it, with the default error"
            yield item
            return
        item.members = tuple(self._words(event))
        item.when = conjunction(event.guards) if event.guards and item.members else None
        if not item.members:
            self._rule(item, event)
        item.error = self._error(check, template)
        if not event.guards:
            self.established |= {n for m in item.members if m.verb in ("rank", "shape") for n in m.names}
            self._note(item.members)
        yield item

    def _error(self, check: Check, template: Template) -> Error:
        key = ast.dump(check.exception) + template.text + "".join(ast.dump(f) for f in template.fields.values())
        known = self.errors.get(key)
        if known is None:
            words = (
                template.literal if len(template.literal.split()) > 1 else f"{template.literal} {_gist(check.fires)}"
            )
            slugs = {e.slug for e in self.errors.values()}
            known = self.errors[key] = Error(slug_of(words, slugs), check.exception, template)
        return known

    # -- words ------------------------------------------------------------------------------------------------------

    def _words(self, c: _Condition) -> list[Member]:
        """The clause that says exactly the same; none where there is no such clause."""
        optional = self._optional_group(c)
        if optional is not None:
            return [optional]
        claims = self._claims(c)
        known = self.established | {s.names[0] for s in c.said if s is not None and s.what == "rank"}
        found: list[Member] = []
        for s in c.said:
            members = self._members(s, known) if s is not None and set(c.given) <= set(s.names) else None
            if members is None or not (claims or all(m.verb in ("same_dtype", "same_device") for m in members)):
                return []
            found += [m for m in members if m not in found]
        if c.guards and any(n not in self.arguments for g in c.guards for n in names_in(g)) and len(found) > 1:
            return []
        return _merged(found, self.facts.order)

    def _optional_group(self, c: _Condition) -> Member | None:
        if c.guards:
            return None
        tests = [is_none_test(t) for t in terms_of(c.holds)]
        if c.given and tests and all(t is not None and not t[1] for t in tests):
            return Member("needs", (c.given[0], *(t[0] for t in tests if t is not None))) if len(c.given) == 1 else None
        if c.given:
            return None
        if isinstance(c.holds, ast.BoolOp) and isinstance(c.holds.op, ast.Or) and len(c.holds.values) == 2:
            pair = [is_none_test(v) for v in c.holds.values]
            if pair[0] is not None and pair[1] is not None and pair[0][0] != pair[1][0]:
                absent = [t[0] for t in pair if t is not None and t[1]]
                given = [t[0] for t in pair if t is not None and not t[1]]
                if len(absent) == 2:
                    return Member("exclusive", tuple(absent))
                if len(absent) == 1:
                    return Member("needs", (absent[0], given[0]))
        node = c.holds
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.Eq, ast.Is)):
            a, b = is_none_test(node.left), is_none_test(node.comparators[0])
            if a is not None and b is not None and a[1] == b[1] and a[0] != b[0]:
                return Member("together", (a[0], b[0]))
        return None

    def _members(self, s: Says, known: set[str]) -> list[Member] | None:
        name, facts = s.names[0], self.facts
        if s.what == "present":
            argument = self.arguments.get(name)
            return [Member("present", (name,))] if argument is not None and not argument.optional else None
        if s.what in ("same_dtype", "same_device"):
            return [Member(s.what, tuple(sorted(s.names, key=facts.order.__getitem__)))]
        if s.what == "rank":
            return [Member("rank", (name,))] if facts.rank.get(name) == s.value else None
        if s.what in ("dtype", "device", "layout"):
            table: Mapping[str, object] = {"dtype": facts.dtypes, "device": facts.devices, "layout": facts.layouts}[
                s.what
            ]
            if table.get(name) != s.value or (s.axes and not self._is_last(s.axes[0], known)):
                return None
            return [Member(s.what, (name,))]
        if s.what == "size":
            axis = facts.at(s.axes[0])
            plain = axis is not None and facts.sizes.get(axis) == s.value and self._safe(s.axes[0], known)
            ranked = name not in facts.rank or name in known
            return [Member("shape", (name,), str(s.value))] if plain and ranked else None
        if s.what == "axes":
            return self._same_dim(s.axes[0], s.axes[1], known)
        if s.what == "shape":
            return self._shape(s, known)
        return self._alike(s, known) if s.what == "alike" else None

    def _is_last(self, axis: Axis, known: set[str]) -> bool:
        if axis.index == -1:
            return True
        return axis.tensor in known and self.facts.rank.get(axis.tensor) == axis.index + 1

    def _safe(self, axis: Axis, known: set[str]) -> bool:
        """Whether the axis is the same one to contract and function, whatever the rank is."""
        rank = self.facts.rank.get(axis.tensor)
        if rank is None or axis.tensor in known:
            return True
        return axis.index == -1 or 0 <= axis.index < rank - 1

    def _same_dim(self, a: Axis, b: Axis, known: set[str]) -> list[Member] | None:
        facts = self.facts
        dim = facts.dim(a)
        if dim is None or dim != facts.dim(b) or a.tensor == b.tensor or not (facts.alone(a) and facts.alone(b)):
            return None
        if not (self._safe(a, known) and self._safe(b, known)):
            return None
        pair = sorted((a.tensor, b.tensor), key=facts.order.__getitem__)
        return [Member("same_dim", tuple(pair), dim)]

    def _shape(self, s: Says, known: set[str]) -> list[Member] | None:
        part, elements = shape_parts(s)
        name, facts = s.names[0], self.facts
        if part is not None:
            pairs = facts.pairs(s)
            if name not in known or pairs is None or len(pairs) != len(elements):
                return None
            return self._all_same(pairs, known)
        if facts.rank.get(name) != len(elements):
            return None
        whole = True
        members = [Member("rank", (name,))]
        inner = known | {name}
        for i, element in enumerate(elements):
            own, other = Axis(name, i), self.vocabulary.axis(element)
            if other is None:
                if facts.sizes.get(own) != constant(element):
                    return None
                members.append(Member("shape", (name,), str(constant(element))))
                continue
            place = facts.at(other)
            if place == own:
                whole = whole and facts.authority(own) in (own, None)
                continue
            found = self._same_dim(other, own, inner)
            if found is None:
                return None
            members += found
            whole = whole and self._bound_by(other, own)
        return [Member("shape", (name,))] if whole else members

    def _alike(self, s: Says, known: set[str]) -> list[Member] | None:
        facts = self.facts
        if (
            s.value == (None, None)
            and s.names[0] in facts.whole
            and facts.whole[s.names[0]] == facts.whole.get(s.names[1])
        ):
            pair = sorted(s.names, key=facts.order.__getitem__)
            return [Member("same_dim", tuple(pair), facts.whole[s.names[0]])]
        pairs = facts.pairs(s)
        if pairs is None:
            return None
        a, b = s.names
        if s.value != (None, None):
            return self._all_same(pairs, known) if a in known and b in known else None
        if b not in known:
            a, b = b, a
        if b not in known:
            return None
        flipped = [(y, x) if x.tensor == a else (x, y) for x, y in pairs]
        members = self._all_same(flipped, known | {a})
        if members is None:
            return None
        if all(self._bound_by(x, y) for x, y in flipped):
            return [Member("shape", (a,))]
        return members if a in known else [Member("rank", (a,)), *members]

    def _bound_by(self, axis: Axis, other: Axis) -> bool:
        """Whether comparing the other axis with its dim compares it with this one."""
        place = self.facts.at(axis)
        authority = self.facts.authority(other)
        return authority != self.facts.at(other) and (authority == place or place in self.proved)

    def _note(self, members: Iterable[Member]) -> None:
        """Remember which axes the clauses so far hold equal to what binds their dim."""
        facts = self.facts
        for m in members:
            if any(self.arguments[n].optional for n in m.names):
                continue
            if m.verb == "same_dim":
                axes = [a for a in facts.named(m.axes or "") if a.tensor in m.names]
                if any(a in self.proved or facts.authority(a) == a for a in axes):
                    self.proved |= set(axes)
            elif m.verb == "shape" and m.axes is None:
                self.proved |= {a for n in m.names for a in facts.of(n)}

    def _all_same(self, pairs: list[tuple[Axis, Axis]], known: set[str]) -> list[Member] | None:
        members: list[Member] = []
        for a, b in pairs:
            found = self._same_dim(a, b, known)
            if found is None:
                return None
            members += found
        return members or None

    # -- rules ------------------------------------------------------------------------------------------------------

    def _rule(self, item: Item, c: _Condition) -> None:
        rule: ast.expr = _Dims(self).visit(copy.deepcopy(c.holds))
        item.rule = rule
        guards = [not_none(n) for n in c.given] + list(c.guards)
        asked = {t[0] for n in (c.holds, *c.guards) for e in ast.walk(n) if (t := is_none_test(e)) is not None}
        read = names_in(rule)
        for name, argument in self.arguments.items():
            if name not in read or name in asked or name in c.given or not argument.optional:
                continue
            if argument.tensor or argument.absent:
                guards.insert(0, not_none(name))
        item.when = conjunction(guards) if guards else None


class _Dims(ast.NodeTransformer):
    """Says a dim where a rule reads the axis that binds it."""

    def __init__(self, translator: Translator) -> None:
        self.of = translator

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        axis = self.of.vocabulary.axis(node)
        facts = self.of.facts
        if axis is not None and (dim := facts.dim(axis)) is not None:
            settled = axis.tensor not in facts.rank or axis.tensor in self.of.established
            # An argument that may be None binds nothing then; the rule is written so that it is asked first.
            if settled and not self.of.arguments[axis.tensor].optional and facts.authority(axis) == facts.at(axis):
                return ast.Name(dim, ast.Load())
        return self.generic_visit(node)


def _merged(members: list[Member], order: Mapping[str, int]) -> list[Member]:
    """``rank("q"), rank("k")`` as one clause."""
    verbs = {m.verb for m in members}
    if len(verbs) == 1 and verbs <= {"rank", "dtype", "device", "layout", "present"}:
        return [Member(members[0].verb, tuple(sorted({n for m in members for n in m.names}, key=order.__getitem__)))]
    if len({(m.verb, m.axes) for m in members}) == 1 and members[0].verb == "same_dim" and _linked(members):
        names = tuple(sorted({n for m in members for n in m.names}, key=order.__getitem__))
        return [Member("same_dim", names, members[0].axes)]
    if len(verbs) == 1 and verbs <= {"same_dtype", "same_device"} and _linked(members):
        return [Member(members[0].verb, tuple(sorted({n for m in members for n in m.names}, key=order.__getitem__)))]
    return members


def _linked(members: list[Member]) -> bool:
    """Whether equality of each pair makes all of them equal."""
    return all(i == 0 or any(set(m.names) & set(e.names) for e in members[:i]) for i, m in enumerate(members))


def _gist(fires: ast.expr) -> str:
    """Words of a condition, for an error that says little."""
    return " ".join(
        w for w in re.findall(r"[A-Za-z_]\w*", ast.unparse(fires)) if w not in ("and", "or", "not", "torch")
    )
