"""What a reading finds, checks and unpackings, and what it knows on the way."""

import ast
from dataclasses import dataclass, field

from ._syntax import Unknown, Value, constant, same, words

#: Methods that change a list, a dict or a set.
_CHANGING = words("append extend insert remove pop clear sort reverse update setdefault popitem add discard")


@dataclass(frozen=True, slots=True)
class Check:
    """One raise or assert.

    Attributes:
        line: Where it stands.
        text: The statement as written, on one line.
        guards: What has to hold for the check to be made at all, over the parameters.
        fires: What makes it raise.
        exception: The class, as an expression of the module.
        message: What the exception is made of, over the parameters; None where it is made of nothing.
        problem: Why it cannot be translated; None where it can.
    """

    line: int
    text: str
    guards: tuple[ast.expr, ...] = ()
    fires: ast.expr = field(default_factory=lambda: ast.Constant(True))
    exception: ast.expr = field(default_factory=lambda: ast.Name("AssertionError", ast.Load()))
    message: ast.expr | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Unpacking:
    """Sizes of a tensor bound to names, which says how many axes it has.

    Attributes:
        line: Where it stands.
        tensor: Parameter.
        names: One name an axis.
        guarded: Whether it is made in some calls only.
    """

    line: int
    tensor: str
    names: tuple[str, ...]
    guarded: bool


Event = Check | Unpacking


@dataclass(frozen=True, slots=True)
class Guard:
    """What holds where a statement is reached; guards of one chain of ``elif`` share a link."""

    test: ast.expr
    link: int = 0
    implied: bool = False

    def alone(self) -> "Guard":
        return Guard(self.test)


@dataclass(slots=True)
class State:
    values: dict[str, Value]
    guards: list[Guard]
    blocked: str | None = None

    def copy(self) -> "State":
        return State(dict(self.values), list(self.guards), self.blocked)


def not_none(name: str) -> ast.expr:
    return ast.Compare(ast.Name(name, ast.Load()), [ast.IsNot()], [ast.Constant(None)])


def is_detour(test: ast.expr) -> bool:
    """Whether a branch is for tensors that override torch's functions, or for TorchScript, which is no call at all."""
    func = test.func if isinstance(test, ast.Call) else None
    name = func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
    return name.startswith("has_torch_function") or name == "is_scripting"


def implies(guard: ast.expr, other: ast.expr) -> bool:
    """Whether ``mode == "b"`` makes ``mode != "a"`` go without saying."""
    if not (isinstance(guard, ast.Compare) and isinstance(other, ast.Compare)):
        return False
    if not (
        len(guard.ops) == len(other.ops) == 1
        and isinstance(guard.ops[0], ast.Eq)
        and isinstance(other.ops[0], ast.NotEq)
    ):
        return False
    a, b = constant(guard.comparators[0]), constant(other.comparators[0])
    return same(guard.left, other.left) and type(a) is type(b) and a is not ... and a != b


def index_of(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    return value if isinstance(value, int) else None


def as_load(node: ast.expr) -> ast.expr:
    return ast.Name(node.id, ast.Load()) if isinstance(node, ast.Name) else node


def names_stored(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def names_changed(node: ast.AST) -> set[str]:
    """Names of what a statement changes in place: an entry or an attribute is written, or a method does so."""
    found: set[str] = set()
    for n in ast.walk(node):
        owner: ast.expr | None = None
        if isinstance(n, (ast.Subscript, ast.Attribute)) and not isinstance(n.ctx, ast.Load):
            owner = n.value
        elif isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in _CHANGING:
            owner = n.func.value
        while isinstance(owner, (ast.Subscript, ast.Attribute)):
            owner = owner.value
        if isinstance(owner, ast.Name):
            found.add(owner.id)
    return found


def forget(node: ast.AST, state: State, line: int) -> None:
    for name in names_stored(node):
        state.values[name] = Unknown(f"depends on {name}, computed in line {line}")


def locals_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    spec = function.args
    names = {a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}
    stored = {n for s in function.body for n in names_stored(s)}
    return stored - names


def bound_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Names that mean nothing outside a function: parameters, locals, and classes and functions defined in it."""
    spec = function.args
    parameters = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *(a for a in (spec.vararg, spec.kwarg) if a)]
    inner = [n for s in function.body for n in ast.walk(s)]
    defined = {n.name for n in inner if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    return {a.arg for a in parameters} | locals_of(function) | defined


def may_raise(node: ast.stmt) -> bool:
    return any(
        isinstance(n, (ast.Raise, ast.Assert))
        or (isinstance(n, ast.Call) and ast.unparse(n.func).startswith("torch._check"))
        for n in ast.walk(node)
    )


def may_break(node: ast.stmt) -> bool:
    return any(isinstance(n, ast.Break) for n in ast.walk(node))
