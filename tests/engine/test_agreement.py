"""Random signatures and random near misses: the guard, the plain evaluation and stock reach one verdict."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from types import FunctionType
from typing import Annotated, Any, Optional, Union
from unittest.mock import patch

import torch
from beartype import beartype
from hypothesis import HealthCheck, event, given, note, reject, settings
from hypothesis import strategies as st
from jaxtyping import Bool, Float, Float32, Int, Num, Shaped, jaxtyped
from torch import Tensor

from tensorpact import Contract, ContractDefinitionError, ContractViolation, contract, enforcement, name_axes
from tensorpact import _entry as entries
from tensorpact.clauses import (
    Clause,
    any_of,
    at_least,
    at_most,
    distinct,
    dtype,
    ends_at,
    exclusive,
    finite,
    less_than,
    let,
    live,
    multiple_of,
    named_axes,
    needs,
    no_overlap,
    nondecreasing,
    present,
    rank,
    require,
    same_device,
    same_dim,
    same_dtype,
    same_empty,
    shape,
    starts_at,
    steps,
    steps_at_most,
    together,
    upto,
    values,
    within,
)
from tensorpact.constraints import Aligned, Constraint, Contiguous, DenseInner, DenseLast, NamedAxes, OnDevice, Reach32

#: Names inside names: what a guard writes about one dim must not be taken for another.
NAMES = ("A", "B", "A_B", "B_", "AB")
PARAMETERS = ("p", "q", "r", "s", "t")
FAMILIES = {
    Float: (torch.float32, torch.float16, torch.bfloat16, torch.float64),
    Float32: (torch.float32,),
    Int: (torch.int32, torch.int64),
    Num: (torch.float32, torch.int32),
    Shaped: (torch.float32, torch.bool),
    Bool: (torch.bool,),
}
DTYPES = (torch.float32, torch.float16, torch.int32, torch.int64, torch.bool, torch.uint8)
LAYOUTS = (
    *(DenseLast(), DenseLast(strict=True), Contiguous(), DenseInner(2), OnDevice("cpu"), Reach32(), Aligned(8)),
    *(NamedAxes(), NamedAxes()),
)
CONSTRAINTS = (*LAYOUTS, *(None for _ in range(4 * len(LAYOUTS))))
EXPRESSIONS = ("A+1", "2*A", "A*2", "A//2", "A-1", "A*B", "B-A_B", "A_B+B_-1", "{n}", "{n}+1", "A+{n}", "2*AB")


@dataclass(frozen=True)
class Drawn:
    """One tensor parameter of a random signature."""

    families: tuple[Any, ...]
    texts: tuple[str, ...]
    optional: bool
    constraint: Constraint | None = None

    @property
    def union(self) -> bool:
        return len(set(self.texts)) > 1

    def hint(self) -> Any:
        members: tuple[Any, ...] = tuple(f[Tensor, t] for f in self.families for t in self.texts)
        if self.constraint is not None:
            members = tuple(Annotated[m, self.constraint] for m in members)
        return Optional[Union[members]] if self.optional else Union[members]  # noqa: UP007, UP045


@dataclass(frozen=True)
class Case:
    """A signature with arguments."""

    parameters: tuple[Drawn, ...]
    scalars: bool
    fitting: tuple[Any, ...]
    values: tuple[Any, ...]
    odd_scalar: bool

    def function(self) -> FunctionType:
        """A fresh function of this signature, not decorated."""
        names = PARAMETERS[: len(self.parameters)]
        tail = ", n, x=0.5" if self.scalars else ""
        scope: dict[str, Any] = {"__name__": "random_signatures"}
        exec(f"def f({', '.join(names)}{tail}): return None", scope)
        made = scope["f"]
        hints = {n: p.hint() for n, p in zip(names, self.parameters, strict=True)}
        made.__annotations__ = {**hints, **({"n": int, "x": float} if self.scalars else {})}
        return made

    def comparable(self) -> bool:
        """Whether stock jaxtyping has no excuse: no deliberate divergence is in play."""
        sure: set[str] = set()
        for drawn in self.parameters:
            if drawn.constraint or drawn.union or "*#" in drawn.texts[0]:
                return False
            own: set[str] = set()
            for token in drawn.texts[0].split():
                if token.isidentifier() and token != "_":
                    own.add(token)
                    continue
                read = set(re.findall(r"[A-Za-z_]+", token)) & set(NAMES)
                if not token.startswith(("#", "*")) and not read <= sure | own:
                    return False
            if not drawn.optional:
                sure |= own
        return not self.odd_scalar

    def __repr__(self) -> str:
        lines = [f"{n}: {p.hint()}" for n, p in zip(PARAMETERS, self.parameters, strict=False)]
        shown = [f"{tuple(v.shape)} {v.dtype}" if isinstance(v, Tensor) else repr(v) for v in self.values]
        return f"Case({'; '.join(lines)} called with {', '.join(shown)})"


def size_of(token: str, sizes: dict[str, int], n: int) -> int:
    text = token.removeprefix("#").replace("{n}", str(n))
    return eval(text, dict(sizes))


def token(rng: Random, scalars: bool) -> str:
    kind = rng.choice("nnnnnf_be")
    if kind == "n":
        return rng.choice(NAMES)
    if kind == "f":
        return rng.choice("0123")
    if kind == "_":
        return "_"
    if kind == "b":
        return "#" + rng.choice([*NAMES, "2", "3"])
    return rng.choice([e for e in EXPRESSIONS if scalars or "{" not in e])


def shape_text(rng: Random, scalars: bool) -> str:
    axes = [token(rng, scalars) for _ in range(rng.randint(0, 4))]
    if rng.randint(0, 4) == 0:
        axes.insert(rng.randint(0, len(axes)), rng.choice(["...", "*v", "*v", "*w", "*#w"]))
    return " ".join(axes)


def parameter(rng: Random, scalars: bool) -> Drawn:
    families = rng.choice([(Float,), (Float,), (Float32,), (Int,), (Float, Int), (Num,), (Shaped,), (Bool,)])
    forms = tuple(shape_text(rng, scalars) for _ in range(2 if rng.randint(0, 6) == 0 else 1))
    return Drawn(families, forms, rng.randint(0, 4) == 0, rng.choice(CONSTRAINTS))


def fitting(rng: Random, drawn: Drawn, sizes: dict[str, Any], n: int) -> Any:
    if drawn.optional and rng.randint(0, 2) == 0:
        return None
    out: list[int] = []
    for text in rng.choice(drawn.texts).split():
        if text == "...":
            out += [rng.randint(1, 3) for _ in range(rng.randint(0, 2))]
        elif text.startswith("*"):
            whole: tuple[int, ...] = sizes[text.lstrip("*#")]
            out += [1 if "#" in text and rng.randint(0, 1) else s for s in whole]
        elif text == "_":
            out.append(rng.randint(0, 3))
        elif text.startswith("#") and rng.randint(0, 1):
            out.append(1)
        else:
            out.append(max(size_of(text, sizes, n), 0))
    return torch.zeros(out, dtype=rng.choice(FAMILIES[rng.choice(drawn.families)]))


def near_miss(rng: Random, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return rng.choice([torch.zeros(2), "text", 3])
    kind, sizes = rng.choice("aaaaaadrinsmexx"), list(value.shape)
    if kind == "a" and sizes:
        axis = rng.randrange(len(sizes))
        sizes[axis] = rng.choice([max(sizes[axis] - 1, 0), sizes[axis] + 1, 1, 2])
        return torch.zeros(sizes, dtype=value.dtype)
    if kind == "s" and sizes:
        return torch.zeros([*sizes[:-1], sizes[-1] * 2 + 1], dtype=value.dtype)[..., 1::2]
    if kind == "x" and sizes:
        return name_axes(value.clone(), " ".join(rng.choice(NAMES) for _ in sizes))
    if kind == "m":
        return value.to("meta")
    if kind == "e" and sizes:
        return torch.zeros([1, *sizes[1:]], dtype=value.dtype).expand(sizes)
    if kind == "d":
        return value.to(rng.choice(DTYPES))
    if kind == "r" and sizes:
        return torch.zeros(sizes[1:], dtype=value.dtype)
    if kind == "i":
        return torch.zeros([*sizes, rng.randint(1, 2)], dtype=value.dtype)
    return rng.choice([None, "text", 3, 2.5])


def draw_case(rng: Random) -> Case:
    scalars = bool(rng.randint(0, 1))
    parameters = tuple(parameter(rng, scalars) for _ in range(rng.randint(2, 5)))
    sizes: dict[str, Any] = {name: rng.randint(0, 4) for name in NAMES}
    sizes |= {name: tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 2))) for name in "vw"}
    n = rng.randint(0, 3)
    values = [fitting(rng, p, sizes, n) for p in parameters]
    right = [*values, n, 0.25] if scalars else list(values)
    for _ in range(rng.randint(0, 2)):
        place = rng.randrange(len(values))
        values[place] = near_miss(rng, values[place])
    odd = scalars and rng.randint(0, 9) == 0
    if scalars:
        values.append(rng.choice([True, "text", None, 2.0]) if odd else n)
        values.append(rng.choice([1, True, 0.25, "text"]) if odd else 0.25)
    return Case(parameters, scalars, tuple(right), tuple(values), odd)


#: A seeded generator is ten times as fast as drawn values but does not shrink: the long profile draws.
RANDOMS = st.randoms(use_true_random=settings.get_current_profile_name() == "ci")


def outcome(function: Any, values: tuple[Any, ...]) -> Exception | None:
    try:
        function(*values)
    except Exception as error:  # noqa: BLE001 - the outcome is what is compared
        return error
    return None


def verdict(error: Exception | None) -> tuple[Any, ...]:
    return () if error is None else (type(error).__name__, str(error), getattr(error, "clause", None))


def both_modes(function: FunctionType, values: tuple[Any, ...], fitting: tuple[Any, ...]) -> Exception | None:
    """The outcome of a call: the same in both modes, and after calls that the guard may remember."""
    forgiven: list[Any] = []

    def spy(*args: Any) -> Any:
        error = diagnose(*args)
        if error is None:
            forgiven.append(args)
        return error

    diagnose = entries.diagnose
    with enforcement("compiled"), patch.object(entries, "diagnose", spy):
        compiled = outcome(function, values)
        if outcome(function, fitting) is None:
            for _ in range(20):
                function(*fitting)
            assert verdict(outcome(function, values)) == verdict(compiled)
    with enforcement("beartype"):
        stock = outcome(function, values)
    assert verdict(stock) == verdict(compiled)
    entry = entries.entry_of(function)
    # The guard solves a dim from one expression; the diagnosis may find it in another one where that has no answer.
    excused = entry.built.plan.interpreted or entry.terms.solved
    assert excused or not forgiven, "the guard refused what the diagnosis finds right"
    return compiled


SUPPRESSED = [HealthCheck.filter_too_much, HealthCheck.too_slow]
#: The `long` profile asks for more.
STOCK_EXAMPLES = max(1_000, settings.default.max_examples)
CLAUSE_EXAMPLES = max(400, settings.default.max_examples)
VALUE_EXAMPLES = max(100, settings.default.max_examples)


@settings(max_examples=STOCK_EXAMPLES, suppress_health_check=SUPPRESSED)
@given(RANDOMS)
def test_modes_and_stock_agree(rng: Random) -> None:
    case = draw_case(rng)
    refusal = ""
    try:
        function = contract(case.function())
    except ContractDefinitionError as bad:
        refusal = str(bad)
    if refusal:
        assert "nothing binds" in refusal
        reject()
    note(repr(case))
    error = both_modes(function, case.values, case.fitting)
    assert error is None or isinstance(error, ContractViolation)
    event("accepted" if error is None else "rejected")
    if case.comparable():
        event("compared with stock")
        stock = outcome(jaxtyped(case.function(), typechecker=beartype), case.values)
        assert (stock is None) == (error is None), f"stock: {stock}, ours: {error}"


def rule(names: Iterable[str], text: str) -> Any:
    return eval(f"lambda {', '.join(dict.fromkeys(names))}: {text}")


def clause(rng: Random, count: int) -> Clause:
    names = rng.sample(PARAMETERS[:count], min(count, rng.randint(2, 3)))
    a, b = rng.choice(NAMES), rng.choice(NAMES)
    when = rng.choice([None, None, None, lambda p: p is not None, rule((a,), f"{a} > 1")])
    kind = rng.randint(0, 9)
    if kind == 9:
        return same_dtype(*names)
    if kind <= 1:
        return rng.choice([present, rank, dtype, shape, named_axes])(*names[: rng.randint(1, 3)], when=when)
    if kind == 2:
        return shape(names[0], axes=a, when=when)
    if kind == 3:
        return same_dim(a, *names, when=when)
    if kind == 4:
        return rng.choice([same_dtype, same_device, no_overlap])(*names, when=when)
    if kind == 5:
        return rng.choice([together, needs, exclusive])(*names, when=when)
    if kind == 6:
        return any_of(rng.choice([rank, shape])(*names), dtype(*names), when=when)
    if kind == 7:
        return let(**{rng.choice([a, f"h{a}"]): rule((b,), f"{b} + 1")})
    return require(rule((a, b, f"h{a}")[: rng.randint(1, 3)], f"{a} < 5"), when=when)


@settings(max_examples=CLAUSE_EXAMPLES, suppress_health_check=SUPPRESSED)
@given(RANDOMS)
def test_modes_agree_under_clauses(rng: Random) -> None:
    case = draw_case(rng)
    writes = rng.choice([(), (), ("p",), ("p", "q")])
    kept: list[Clause] = []
    for _ in range(rng.randint(1, 6)):
        candidate = clause(rng, len(case.parameters))
        try:
            contract(Contract("f", clauses=[*kept, candidate], mutates=writes))(case.function())
        except ContractDefinitionError:
            continue
        kept.append(candidate)
    if not kept:
        reject()
    function = contract(Contract("f", clauses=kept, mutates=writes))(case.function())
    values = list(case.values)
    if rng.randint(0, 5) == 0 and isinstance(values[0], Tensor):
        values[1] = values[0]
    note(f"{case!r}; clauses {', '.join(map(str, kept))}; writes {writes}")
    error = both_modes(function, tuple(values), case.fitting)
    event("accepted" if error is None else "rejected")
    assert error is None or isinstance(error, ContractViolation)


#: Shapes that vectors of offsets, lengths, indices and tables have.
NUMBER_SHAPES = ("A", "A", "A+1", "A+1", "B", "A B", "A B", "1", "B A")


def draw_numbers(rng: Random) -> Case:
    """A signature of integer tensors, now and then one of floats, with numbers in them that are mostly in order."""
    families = [rng.choice([(Int,), (Int,), (Int,), (Float,), (Int, Float)]) for _ in range(rng.randint(2, 4))]
    parameters = tuple(Drawn(f, (rng.choice(NUMBER_SHAPES),), rng.randint(0, 3) == 0) for f in families)
    sizes: dict[str, Any] = {"A": rng.randint(0, 4), "B": rng.choice((0, 1, 2, 3, 40))}
    n = rng.randint(-1, 4)
    right = [numbered(rng, fitting(rng, p, sizes, n)) for p in parameters]
    given = [v.clone() if isinstance(v, Tensor) else v for v in right]
    for _ in range(rng.randint(0, 2)):
        place = rng.randrange(len(given))
        value = given[place]
        if isinstance(value, Tensor) and value.numel() and rng.randint(0, 5):
            value[tuple(map(rng.randrange, value.shape))] = rng.choice((-9, -1, 0, 7, 99))
        else:
            given[place] = near_miss(rng, value)
    return Case(parameters, True, (*right, n, 0.25), (*given, n, 0.25), False)


def numbered(rng: Random, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    drawn = [rng.randint(0, 4) for _ in range(value.numel())]
    ordered = sorted(drawn) if rng.randint(0, 2) else drawn
    wide = (
        torch.zeros(*value.shape[:-1], 2 * value.shape[-1], dtype=value.dtype)[..., ::2] if rng.randint(0, 1) else value
    )
    return wide.copy_(torch.tensor(ordered, dtype=value.dtype).view(value.shape))


def bound(rng: Random, names: list[str]) -> Any:
    """What a number may be compared with, or what is added to it."""
    added = rule(rng.sample(("A", "B", "n"), 2), "3")
    return rng.choice([0, 1, 4, rng.randint(2, 9), "A", "B", "n", added, rng.choice(names), steps(rng.choice(names))])


def values_clause(rng: Random, parameters: tuple[Drawn, ...]) -> Clause:
    """A clause that its author may well have written, if not on these tensors."""
    known = dict(zip(PARAMETERS, parameters, strict=False))
    floats = [n for n, p in known.items() if p.families == (Float,)]
    integers = [n for n, p in known.items() if p.families == (Int,)] or ["p"]
    vectors = [n for n in integers if len(known[n].texts[0].split()) == 1]
    tables = [n for n in integers if n not in vectors]
    when = rng.choice([None, None, lambda n: n < 3, lambda A: A > 1])
    if floats and rng.randint(0, 4) == 0:
        return values(rng.choice(floats), finite(), when=when)
    if vectors and rng.randint(0, 2) == 0:
        along = [nondecreasing(), distinct(), starts_at(rng.randint(0, 1)), ends_at(bound(rng, vectors))]
        along.append(steps_at_most(bound(rng, vectors)))
        if rng.randint(0, 4) == 0:
            return values(rng.choice(vectors), rng.choice(vectors), same_empty(), when=when)
        return values(rng.choice(vectors), *rng.sample(along, rng.randint(1, 2)), when=when)
    near = vectors or integers
    ranges = [at_least(bound(rng, near)), at_most(bound(rng, near)), less_than(bound(rng, near)), multiple_of(2)]
    checks = rng.sample([*ranges, within(bound(rng, near), bound(rng, near))], rng.randint(1, 2))
    plus = tuple(bound(rng, near) for _ in range(rng.choice((0, 0, 1, 2))))
    lengths = upto(rng.choice(near), per=rng.choice((1, 2, "n")), plus=plus)
    return values(
        rng.choice(tables if tables and rng.randint(0, 1) else integers),
        *checks,
        active=rng.choice([None, rng.choice(near), lengths, lengths, live(rng.choice(near))]),
        padding=rng.choice([None, None, -1, "negative"]),
        plus=plus if rng.randint(0, 1) else (),
        when=when,
    )


@settings(max_examples=VALUE_EXAMPLES, suppress_health_check=SUPPRESSED)
@given(RANDOMS)
def test_modes_agree_on_numbers(rng: Random) -> None:
    case = draw_numbers(rng)
    kept: list[Clause] = []
    for _ in range(20):
        try:
            candidate = values_clause(rng, case.parameters)
            if rng.randint(0, 7) == 0:
                candidate = any_of(candidate, require(lambda n: n < 3, about="n"))
            contract(Contract("f", clauses=[*kept, candidate]))(case.function())
        except ContractDefinitionError:
            continue
        kept.append(candidate)
        if len(kept) == 3:
            break
    if not kept:
        reject()
    function = contract(Contract("f", clauses=kept))(case.function())
    note(f"{case!r}; {[v.tolist() if isinstance(v, Tensor) else v for v in case.values if not is_meta(v)]}; {kept}")
    error = both_modes(function, case.values, case.fitting)
    assert error is None or isinstance(error, ContractViolation)
    event("accepted" if error is None else "a number" if "values(" in str(error.clause) else "rejected")


def is_meta(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta
