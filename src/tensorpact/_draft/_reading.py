"""A function read from top to bottom: its checks in firing order, with what has to be so for each to be reached."""

import ast
import copy

from ._checks import (
    Check,
    Event,
    Guard,
    State,
    Unpacking,
    as_load,
    bound_in,
    forget,
    implies,
    index_of,
    is_detour,
    locals_of,
    may_break,
    may_raise,
    names_changed,
    names_stored,
    not_none,
)
from ._logic import Logic, conjunction
from ._loops import arguments_of, match, unrolled
from ._resolve import Resolver
from ._source import Source, bound_by
from ._syntax import Filled, Unknown, UnreadableError, Value, is_none_test, names_in, plain_elements, same

_TORCH_CHECKS = {
    "_check": "RuntimeError",
    "_check_value": "ValueError",
    "_check_type": "TypeError",
    "_check_index": "IndexError",
    "_check_not_implemented": "NotImplementedError",
}


class Reading:
    """A function read from top to bottom.

    Args:
        source: The function and its module.
        tensors: Parameters that are tensors.
        whole: Parameters that are whole numbers.

    Attributes:
        events: Checks and unpackings in order.
        names: What single assignments call an axis: ``(tensor, index)`` to name.
        imports: Imports made inside the function.
        filled: Parameters that the function replaces where they are None.
    """

    def __init__(self, source: Source, tensors: frozenset[str], whole: frozenset[str]) -> None:
        self.source, self.tensors = source, tensors
        self.logic = Logic(whole)
        self.events: list[Event] = []
        self.names: dict[tuple[str, int], str] = {}
        self.imports: dict[str, str] = {}
        self.filled: set[str] = set()
        self._chain = 0
        self._depth = 0
        self._local = locals_of(source.function)
        self._bound = bound_in(source.function)
        # What the module binds is no local, whatever a helper calls its own.
        self._helpers = {n: f for n, f in source.functions.items() if n not in self._local}
        self._body(source.function.body, State({}, []))

    def _body(self, body: list[ast.stmt], state: State) -> str | None:
        """Walk statements; ``raise`` or ``return`` where they never reach their end."""
        for statement in body:
            ended = self._statement(statement, state)
            if ended:
                return ended
        return None

    def _statement(self, node: ast.stmt, state: State) -> str | None:
        if isinstance(node, ast.Raise):
            self._raise(node, state)
            return "raise"
        if isinstance(node, (ast.Return, ast.Continue, ast.Break)):
            return "return"  # of the function, or of this round of a loop
        if isinstance(node, ast.Assert):
            message = node.msg
            self._check(node, state, node.test, False, ast.Name("AssertionError", ast.Load()), message)
        elif isinstance(node, ast.If):
            return self._body(node.orelse, state) if is_detour(node.test) else self._if(node, state)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            self._assign(node, state)
            self._change(node, state)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._call(node, node.value, state)
            self._change(node, state)
        elif isinstance(node, ast.Delete):
            self._change(node, state)
        elif isinstance(node, ast.For):
            return self._for(node, state)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    forget(item.optional_vars, state, node.lineno)
            return self._body(node.body, state)
        elif isinstance(node, ast.Try):
            if node.handlers:
                self._blocked([*node.body, *node.orelse], state, "inside a try with handlers")
                self._forget(node, state)
                return self._body(node.finalbody, state)
            return self._body([*node.body, *node.orelse, *node.finalbody], state)
        elif isinstance(node, (ast.While, ast.AsyncFor)):
            self._blocked(node.body, state, "inside a loop")
            self._forget(node, state)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                self._blocked(case.body, state.copy(), "inside a match statement")
            self._forget(node, state)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found = bound_by(node, self.source.module)
            self.imports |= found
            self._local -= set(found)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            state.values[node.name] = Unknown(f"uses {node.name}, defined inside the function")
        return None

    def _blocked(self, body: list[ast.stmt], state: State, reason: str) -> None:
        inner = state.copy()
        inner.blocked = state.blocked or reason
        for statement in body:
            self._forget(statement, inner)
        self._body(body, inner)

    def _forget(self, node: ast.stmt, state: State) -> None:
        """Know nothing of what a statement binds or changes, somewhere in it."""
        forget(node, state, node.lineno)
        self._change(node, state)

    def _change(self, node: ast.stmt, state: State) -> None:
        """Know nothing of what a statement changes in place; a tensor keeps its sizes when it is written."""
        for name in sorted(names_changed(node)):
            value = state.values.get(name, ast.Name(name, ast.Load()))
            if isinstance(value, ast.expr) and not self._resolver(state).is_tensor(value):
                state.values[name] = Unknown(f"depends on {name}, changed in line {node.lineno}")

    def _resolver(self, state: State) -> Resolver:
        return Resolver(state.values, self.tensors, frozenset(self._local), self._helpers)

    def _read(self, node: ast.expr, state: State) -> tuple[ast.expr, set[str]]:
        resolver = self._resolver(state)
        return resolver.resolve(node), resolver.given

    def _text(self, node: ast.stmt) -> str:
        lines = self.source.lines[node.lineno - 1 : node.end_lineno]
        return " ".join(line.strip() for line in lines)

    # -- branches ---------------------------------------------------------------------------------------------------

    def _if(self, node: ast.If, state: State, chain: int | None = None) -> str | None:
        self._chain += chain is None
        link = self._chain if chain is None else chain
        then, other = state.copy(), state.copy()
        test: ast.expr | None = None
        unknown: str | None = None
        try:
            test, given = self._read(node.test, state)
            test = self.logic.tidy(test)
            then.guards += [Guard(not_none(n)) for n in sorted(given)]
            if given:
                # Which way a call goes that gave None is not known.
                unknown = f"its condition depends on {min(given)}, replaced where it is None"
            then.guards.append(Guard(test, link))
        except UnreadableError as bad:
            then.blocked = then.blocked or f"its condition {bad}"
        start = len(then.guards)
        ended = self._body(node.body, then)
        # Whoever comes past a raise has not met its condition: the clause of the raise has said so.
        implied = ended == "raise"
        if test is not None:
            other.guards.append(Guard(self.logic.negate(test), link, implied))
            other.blocked = other.blocked or (None if implied else unknown)
        elif not implied:
            other.blocked = then.blocked
        start_other = len(other.guards)
        if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
            ended_other = self._if(node.orelse[0], other, link)
        else:
            ended_other = self._body(node.orelse, other)
        if ended and ended_other:
            return "return" if "return" in (ended, ended_other) else "raise"
        late_then, late_other = then.guards[start:], other.guards[start_other:]
        if ended:
            state.values = other.values
            state.blocked = other.blocked if ended == "return" or late_other else state.blocked
            kept = [] if implied else [g.alone() for g in other.guards[len(state.guards) : start_other]]
            state.guards += [*kept, *late_other]
        elif ended_other:
            state.values = then.values
            gone = then.blocked or (unknown if ended_other == "return" else None)
            state.blocked = gone if ended_other == "return" or late_then else state.blocked
            kept = [g.alone() for g in then.guards[len(state.guards) : start]] if ended_other == "return" else []
            state.guards += [*kept, *late_then]
        else:
            self._join(test, then, other, state, node.lineno)
            if test is not None:
                # A way out of one branch: what follows is reached by the other branch, or past the way out.
                ways = ((self.logic.negate(test), late_then), (test, late_other))
                for past, late in ways:
                    if late:
                        state.blocked = state.blocked or unknown
                        alive = conjunction(g.test for g in late)
                        state.guards.append(Guard(ast.BoolOp(ast.Or(), [past, alive])))
        return None

    def _join(self, test: ast.expr | None, then: State, other: State, state: State, line: int) -> None:
        known = is_none_test(test) if test is not None else None
        for name in sorted({*then.values, *other.values}):
            a, b = then.values.get(name), other.values.get(name)
            if a is b or (isinstance(a, ast.expr) and isinstance(b, ast.expr) and same(a, b)):
                if a is not None:
                    state.values[name] = a
                continue
            parameter = ast.Name(name, ast.Load())
            if name not in self._local or name in self._parameters():
                a, b = a or parameter, b or parameter
            if known is not None and known[0] == name and name in self._parameters():
                replaced, kept = (a, b) if known[1] else (b, a)
                plain = isinstance(kept, ast.Name) and kept.id == name
                if plain and (isinstance(replaced, Unknown) or name in self.tensors):
                    state.values[name] = Filled(name)
                    self.filled.add(name)
                    continue
            if test is not None and isinstance(a, ast.expr) and isinstance(b, ast.expr):
                both = self._as_is(name, a, b)
                state.values[name] = both if both is not None else ast.IfExp(test, a, b)
            else:
                state.values[name] = Unknown(f"depends on {name}, set on some ways through line {line}")

    def _as_is(self, name: str, a: ast.expr, b: ast.expr) -> ast.expr | None:
        """A tensor made contiguous on one way keeps its sizes on both."""
        resolver = Resolver({}, self.tensors, frozenset(), {})
        if resolver.is_tensor(a) and resolver.is_tensor(b) and names_in(a) == names_in(b):
            return a if isinstance(a, ast.Call) else b
        return None

    def _parameters(self) -> set[str]:
        spec = self.source.function.args
        return {a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)} if not self._depth else set()

    def _for(self, node: ast.For, state: State) -> str | None:
        try:
            over, given = self._read(node.iter, state)
            rows = unrolled(node.target, over) if not given else None
        except UnreadableError:
            rows = None
        if rows is None or node.orelse or len(rows) > 16 or any(may_break(s) for s in node.body):
            self._blocked(node.body, state, "inside a loop that is not written out")
            self._forget(node, state)
            return None
        ways, blocked = list(state.guards), state.blocked
        for row in rows:
            state.values |= row
            ended = self._body(node.body, state)
            if any(isinstance(n, ast.Return) for s in node.body for n in ast.walk(s)):
                ways, blocked = list(state.guards), state.blocked
            elif ended == "raise":
                return ended
            # A round that is left early says nothing of the next one.
            state.guards, state.blocked = list(ways), blocked
        return None

    # -- statements -------------------------------------------------------------------------------------------------

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, state: State) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value
        if value is None:
            return
        if isinstance(node, ast.AugAssign):
            value = ast.BinOp(copy.deepcopy(as_load(node.target)), node.op, value)
        elif isinstance(value, ast.Call) and self._inline(value, state) and not isinstance(targets[0], ast.Name):
            pass
        for target in targets:
            self._bind(target, value, state, node.lineno)

    def _bind(self, target: ast.expr, value: ast.expr, state: State, line: int) -> None:
        if isinstance(target, (ast.Tuple, ast.List)) and self._unpack(target, value, state, line):
            return
        left, right = plain_elements(target), plain_elements(value)
        if left is not None and right is not None and len(left) == len(right):
            # The right side is read as a whole before anything is bound.
            values = dict(state.values)
            for part, each in zip(left, right, strict=True):
                reading = state.copy()
                self._bind(part, each, reading, line)
                values |= {n: reading.values[n] for n in names_stored(part) if n in reading.values}
            state.values = values
            return
        if not isinstance(target, ast.Name):
            try:
                read, given = self._read(value, state)
                bound = match(target, read) if not given else None
            except UnreadableError:
                bound = None
            if bound is None:
                forget(target, state, line)
            else:
                state.values |= bound
            return
        try:
            read, given = self._read(value, state)
            filled = Filled(sorted(given)[0]) if given else None
            if filled is not None and isinstance(read, ast.Name):
                state.values[target.id] = filled
            elif given:
                state.values[target.id] = Unknown(f"depends on {target.id}, made of an argument that may be replaced")
            elif len(ast.dump(read)) > 4000:
                state.values[target.id] = Unknown(f"depends on {target.id}, computed at length")
            else:
                state.values[target.id] = read
                self._name(target.id, read)
        except UnreadableError as bad:
            state.values[target.id] = Unknown(f"depends on {target.id}, which {bad} (line {line})")

    def _name(self, name: str, read: ast.expr) -> None:
        if (
            isinstance(read, ast.Subscript)
            and isinstance(read.value, ast.Attribute)
            and read.value.attr == "shape"
            and isinstance(read.value.value, ast.Name)
        ):
            place = index_of(read.slice)
            if place is not None and not self._depth:
                self.names.setdefault((read.value.value.id, place), name)

    def _unpack(self, target: ast.Tuple | ast.List, value: ast.expr, state: State, line: int) -> bool:
        """``B, H, D = q.shape``."""
        try:
            read, given = self._read(value, state)
        except UnreadableError:
            return False
        part: slice | None = None
        if isinstance(read, ast.Subscript) and isinstance(read.slice, ast.Slice) and read.slice.step is None:
            low = 0 if read.slice.lower is None else index_of(read.slice.lower)
            high = None if read.slice.upper is None else index_of(read.slice.upper)
            known = low is not None and (read.slice.upper is None or high is not None)
            part, read = (slice(low, high), read.value) if known else (None, read)
        if not (isinstance(read, ast.Attribute) and read.attr == "shape" and isinstance(read.value, ast.Name)):
            return False
        tensor, count = read.value.id, len(target.elts)
        star = next((i for i, e in enumerate(target.elts) if isinstance(e, ast.Starred)), None)
        low = (part.start or 0) if part is not None else 0
        if part is not None and not (part.stop is None and low < 0) and (part.stop is None or part.stop < 0 or low < 0):
            return False
        names: list[str] = []
        for i, element in enumerate(target.elts):
            at = low + i if star is None or i < star else i - count
            if isinstance(element, ast.Starred):
                forget(element.value, state, line)
                continue
            axis = ast.Subscript(
                read, ast.Constant(at) if at >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-at)), ast.Load()
            )
            if not isinstance(element, ast.Name):
                forget(element, state, line)
                names.append("_")
                continue
            names.append(element.id)
            state.values[element.id] = axis
            if element.id.strip("_"):
                self._name(element.id, axis)
        if star is None and part is None:
            guarded = bool(state.guards or state.blocked or given)
            self.events.append(Unpacking(line, tensor, tuple(names), guarded))
        return True

    def _call(self, node: ast.Expr, call: ast.Call, state: State) -> None:
        text = ast.unparse(call.func)
        kind = _TORCH_CHECKS.get(text.removeprefix("torch.")) if text.startswith("torch.") else None
        if kind is not None and call.args:
            message = call.args[1] if len(call.args) > 1 else None
            if isinstance(message, ast.Lambda):
                message = message.body
            fallback = ast.Constant(
                "Expected cond to be True, but got False. (Could this error message be improved? If so, please report "
                "an enhancement request to PyTorch.)"
            )
            self._check(node, state, call.args[0], False, ast.Name(kind, ast.Load()), message or fallback)
        elif not self._inline(call, state) and isinstance(call.func, ast.Name):
            name = call.func.id
            if any(w in name.lower() for w in ("check", "assert", "validate", "verify")):
                where = "one level further down" if name in self.source.functions else "another module"
                self.events.append(Check(node.lineno, self._text(node), problem=f"calls a helper of {where}"))

    def _inline(self, call: ast.Call, state: State) -> bool:
        """Read the checks of a helper of the same module, one level deep."""
        if not isinstance(call.func, ast.Name) or self._depth:
            return False
        helper = self.source.functions.get(call.func.id)
        if helper is None or call.func.id in state.values or not any(may_raise(s) for s in helper.body):
            return False
        values = arguments_of(helper, call)
        if values is None:
            self.events.append(Check(call.lineno, ast.unparse(call), problem="hands on *args or **kwargs"))
            return True
        bound: dict[str, Value] = {}
        for name, value in values.items():
            if isinstance(value, ast.Lambda):
                bound[name] = value
                continue
            try:
                read, given = self._read(value, state) if isinstance(value, ast.expr) else (value, set[str]())
                bound[name] = Filled(sorted(given)[0]) if given and isinstance(read, ast.Name) else read
                if given and not isinstance(read, ast.Name):
                    bound[name] = Unknown(f"depends on {name}, made of an argument that may be replaced")
            except UnreadableError as bad:
                bound[name] = Unknown(f"depends on {name}, which {bad}")
        inner = State(bound, list(state.guards), state.blocked)
        outer, self._depth = (self._local, self._bound), 1
        self._local, self._bound = locals_of(helper), bound_in(helper)
        before = len(self.events)
        self._body(helper.body, inner)
        (self._local, self._bound), self._depth = outer, 0
        for name in {n for s in helper.body for n in names_changed(s)}:
            given = values.get(name)
            if isinstance(given, ast.Name) and not self._resolver(state).is_tensor(given):
                state.values[given.id] = Unknown(f"depends on {given.id}, changed by {helper.name}")
        return len(self.events) > before

    # -- the checks themselves --------------------------------------------------------------------------------------

    def _raise(self, node: ast.Raise, state: State) -> None:
        made = node.exc
        if made is None:
            return
        message: ast.expr | None = None
        exception = made
        problem = state.blocked
        if isinstance(made, ast.Call):
            exception = made.func
            if made.keywords or any(isinstance(a, ast.Starred) for a in made.args):
                problem = problem or "makes its exception of more than a text"
            elif made.args:
                message = made.args[0] if len(made.args) == 1 else ast.Tuple(list(made.args), ast.Load())
        last = state.guards[-1].link if state.guards else 0
        own = len(state.guards)
        while last and own and state.guards[own - 1].link == last:
            own -= 1
        chain = state.guards[own:]
        fires = conjunction(g.test for g in chain if not g.implied or all(c.implied for c in chain))
        guards = [g.test for g in state.guards[:own] if not g.implied]
        self._add(node, state, guards, fires, exception, message, problem)

    def _check(
        self, node: ast.stmt, state: State, test: ast.expr, when: bool, exception: ast.expr, message: ast.expr | None
    ) -> None:
        guards = [g.test for g in state.guards if not g.implied]
        problem = state.blocked
        fires: ast.expr = ast.Constant(True)
        try:
            read, given = self._read(test, state)
            guards += [not_none(n) for n in sorted(given)]
            fires = self.logic.tidy(read) if when else self.logic.negate(read)
        except UnreadableError as bad:
            problem = problem or str(bad)
        self._add(node, state, guards, fires, exception, message, problem)

    def _add(
        self,
        node: ast.stmt,
        state: State,
        guards: list[ast.expr],
        fires: ast.expr,
        exception: ast.expr,
        message: ast.expr | None,
        problem: str | None,
    ) -> None:
        if isinstance(fires, ast.Constant) and fires.value is True and guards and problem is None:
            # `assert False` at the end of a branch, or a raise behind a return: the way there is the condition.
            fires = guards.pop()
        if isinstance(fires, ast.Constant) and problem is None:
            if not fires.value:
                return  # a loop written out may hold rounds that never fire
            problem = "is raised by every call that comes so far"
        inside = sorted(names_in(exception) & self._bound)
        if inside:
            # A documented error stands outside the function, where nobody can import the name.
            problem = problem or f"raises {ast.unparse(exception)}, and {inside[0]} is bound in the function"
        text = self._text(node)
        unique = [g for i, g in enumerate(guards) if not any(same(g, e) for e in guards[:i])]
        unique = [g for g in unique if not any(implies(e, g) for e in unique)]
        said: ast.expr | None = None
        if message is not None and problem is None:
            try:
                said = self._read(message, state)[0]
            except UnreadableError as bad:
                problem = f"its message {bad}"
        self.events.append(Check(node.lineno, text, tuple(unique), fires, exception, said, problem))
