"""Valid arguments as a hypothesis strategy: small ones first, then other sizes, dtypes, layouts and devices."""

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tensorpact import use_backend
from tensorpact._diagnosis import diagnose
from tensorpact._dims import DimKind
from tensorpact._errors import ContractDefinitionError
from tensorpact.clauses import SameDtype
from tensorpact.constraints import OnDevice

from ._accept import make
from ._drafts import Case, Draft, ImpossibleError, Move, complete, resolve
from ._draw import Drawer
from ._making import compiler_environment, drawer_of, space_of
from ._plans import Opaque, TensorPlan, plan_of
from ._probe import split
from ._space import COMMON_DTYPES, CannotDrawError, NothingFitsError
from ._targets import Target, find
from ._wholes import Whole, parts_of
from ._witness import program
from .hooks import fill_of

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

_BASES = 5
_SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16)
_LAYOUTS = ("offset", "step", "outer", "gap", "swap", "reversed", "expand")
_Change = Callable[[Draft], Draft]


class Arguments(dict[str, Any]):
    """Arguments of one call by parameter name, ready for ``function(**arguments)``.

    Attributes:
        case: What they were made from.
    """

    def __init__(self, target: Target, drawer: Drawer, case: Case, values: Mapping[str, Any]) -> None:
        self._target, self._drawer = target, drawer
        self._values = dict(values)
        self.case = case
        own: Any = values.get("self")
        fields = dataclasses.fields(own) if self._is_object else ()
        super().__init__({f.name: getattr(own, f.name) for f in fields if f.init} if self._is_object else values)

    @property
    def _is_object(self) -> bool:
        """Whether the arguments are those of the constructor of a contracted dataclass."""
        return self._target.cls is not None and self._target.name == self._target.cls.__qualname__

    def call(self) -> Any:
        """Call the function; also where ``**arguments`` would not do: for positional-only and starred parameters."""
        if self._is_object and self._target.cls is not None:
            return self._target.cls(**self)
        args, kwargs = split(self._target.entry, self._values)
        return self._target.function(*args, **kwargs)

    def code(self) -> str:
        """Python that makes such arguments and calls the function, ready to paste."""
        return program(self._target, self._drawer.space, self.case, self._values)

    def __repr__(self) -> str:
        plans = self.case.plans

        def shown(name: str) -> str:
            plan = plans[name]
            if isinstance(plan, Whole):
                return plan.text([shown(part) for part in plan.parts])
            return _shown(plan)

        prefix = "self." if self._is_object else ""
        texts = {n: shown(prefix + n) if prefix + n in plans else _shown(plan_of(value)) for n, value in self.items()}
        return f"Arguments({', '.join(f'{n}={text}' for n, text in texts.items())})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


def _shown(plan: Any) -> str:
    if isinstance(plan, Opaque):
        return f"<{type(plan.value).__name__}>"
    if not isinstance(plan, TensorPlan):
        return repr(plan)
    text = f"{str(plan.dtype).removeprefix('torch.')}{list(plan.shape)}"
    text += "" if plan.strides is None else f" strides {list(plan.strides)}"
    text += f" offset {plan.offset}" if plan.offset else ""
    return text + ("" if plan.device == "cpu" else f" on {plan.device}")


def arguments(
    function: Any,
    *,
    given: "Mapping[str, SearchStrategy[Any]] | None" = None,
    distinct: bool = True,
    layouts: bool = True,
    devices: Iterable[str] = ("cpu",),
    seed: int = 0,
) -> "SearchStrategy[Arguments]":
    """A hypothesis strategy of arguments that a contract allows.

    Dims differ from one another and are above 1 where the contract allows it; optional arguments come and go; tensors
    are also slices, transposed and expanded views, and start behind others in their storage, where no constraint
    refuses it. Floats are random and integers zero, unless :func:`register_values` says better. What is found shrinks
    to few arguments, small sizes and dense tensors.

    Args:
        function: A contracted function or method, or a contracted dataclass: the arguments are then its fields.
        given: Strategies for arguments that are to be drawn otherwise, or cannot be drawn from their annotation.
        distinct: Draw pairwise different sizes above 1; else also equal ones, 1 and 0.
        layouts: Draw views too; else every tensor is dense.
        devices: Devices to choose from, by name; all tensors that may be there are on one of them.
        seed: Another seed starts from other arguments.

    Raises:
        CannotDrawError: An argument cannot be drawn; the text names it and what to register.
        TargetError: The function has no contract.
        ContractDefinitionError: Annotations or contract are wrong.
    """
    from hypothesis import reject
    from hypothesis import strategies as st

    target = find([function])[0]
    if not isinstance(target, Target):
        raise target.error
    names = dict(given or {})
    # Without arguments from elsewhere all is prepared here: what cannot be drawn is said before a test runs.
    options = _Options(distinct, layouts, tuple(devices), seed)
    ready = None if names else _Source(target, {}, options)

    @st.composite
    def drawn(draw: "DrawFn") -> Arguments:
        known = {name: draw(strategy) for name, strategy in names.items()}
        try:
            source = ready or _Source(target, known, options, bases=1)
        except NothingFitsError:
            # What came from elsewhere goes with no other arguments.
            reject()
        draft = source.bases[draw(st.integers(0, len(source.bases) - 1))]
        for choices in source.choices:
            picked = [draw(st.sampled_from(some)) for some in choices]
            draft = source.changed(draft, [change for change in picked if change is not None])
        made = source.arguments(draft, draw(st.integers(0, 2**16)))
        return reject() if made is None else made

    return drawn()


@dataclass(frozen=True, slots=True)
class _Options:
    distinct: bool
    layouts: bool
    devices: tuple[str, ...]
    seed: int


class _Source:
    """Valid drafts to start from, and the changes that may be made to each."""

    def __init__(self, target: Target, known: Mapping[str, Any], options: _Options, bases: int = _BASES) -> None:
        self.target = target
        self.distinct = options.distinct
        with compiler_environment():
            self.drawer = Drawer(space_of(target, known)) if known else drawer_of(target, options.seed)
            drawn = [self._base(random.Random(f"{options.seed}:{i}")) for i in range(bases)]
        # The smallest first: hypothesis shrinks towards it.
        self.bases = sorted(drawn, key=lambda d: sum(n for n in d.dims.values() if isinstance(n, int)))
        plans = [resolve(self.drawer.space, draft).plans for draft in self.bases]
        #: Tensors among the plans of the bases, items of containers included.
        self._tensors = list(dict.fromkeys(n for p in plans for n, v in p.items() if isinstance(v, TensorPlan)))
        #: Groups of choices; of each the first option is the simplest, and None leaves the draft as it is.
        self.choices = [list(group) for group in self._choices(options)]

    def _base(self, rng: random.Random) -> Draft:
        for distinct in (True, False) if self.distinct else (False,):
            try:
                draft = self.drawer.draw(rng, distinct=distinct, presence=True)
            except CannotDrawError:
                if not distinct:
                    raise
            else:
                return self.drawer.reduced(draft)
        raise NothingFitsError("no valid arguments found")

    def _choices(self, options: _Options) -> Iterator[list[list[_Change | None]]]:
        space = self.drawer.space
        optional = [p for p in (*space.tensors, *space.nests) if p.optional and p.name not in space.known]
        yield [[_without(p.name), None] for p in optional]
        if self.drawer.factory is None:
            dims = {n: k for n, k in space.dims.items() if n not in space.terms.lets and n not in space.pinned()}
            extra = tuple(n for n in space.sizes if n > 16)
            yield [[None, *_sizes(name, kind, self.distinct, extra)] for name, kind in dims.items()]
            yield [[_typed(group, dtype) for dtype in some] for group, some in self._groups() if some]
        # What a factory made of an object stays as it is.
        free = {p.name for p in space.plain if p.name != "self"}
        scalars = {n: s for n, s in self.drawer.scalars.items() if n in free and s.good}
        yield [[_valued(name, value) for value in scalar.good] for name, scalar in scalars.items()]
        if options.layouts:
            yield [[None, *(_laid(name, how) for how in self._layouts(name))] for name in self._tensors]
        movable = [n for n in self._tensors if not any(isinstance(c, OnDevice) for c in self._constraints(n))]
        yield [[_placed(movable, device) for device in options.devices]]

    def _layouts(self, name: str) -> tuple[str, ...]:
        """Layouts that a tensor may have; what a fill writes into is not expanded, as its elements would be one."""
        dtypes = self.drawer.space.dtypes.get(name, (torch.float32,))
        written = fill_of(self.target.entry) is not None and not all(d.is_floating_point for d in dtypes)
        return _LAYOUTS[:-1] if written else _LAYOUTS

    def _constraints(self, name: str) -> tuple[Any, ...]:
        parameter = self.drawer.space.terms.parameters.get(name)
        return () if parameter is None or parameter.tensor is None else parameter.tensor.constraints

    def _groups(self) -> Iterator[tuple[list[str], tuple[torch.dtype, ...]]]:
        """Tensors that have to have one dtype, and the dtypes that all of them may have."""
        space = self.drawer.space
        clauses = [c.names for c in space.terms.contract.clauses if isinstance(c, SameDtype)]
        joined = {n: {n} for n in space.dtypes}
        for names in (*clauses, *(space.twins(n) for n in space.dtypes)):
            whole = set[str]().union(*(joined[n] for n in names if n in joined))
            joined |= dict.fromkeys(whole, whole)
        for group in {id(g): g for g in joined.values()}.values():
            names = sorted(group)
            common = [d for d in space.dtypes[names[0]] if all(d in space.dtypes[n] for n in names)]
            yield names, tuple(sorted(common, key=lambda d: COMMON_DTYPES.index(d) if d in COMMON_DTYPES else 99))

    def changed(self, draft: Draft, changes: list[_Change]) -> Draft:
        """The draft with those of the changes that leave it valid; tried together first."""
        if not changes:
            return draft
        tried = draft
        for change in changes:
            tried = change(tried)
        if tried == draft:
            return draft
        try:
            settled, verdict = self.drawer.settle(tried)
        except ImpossibleError:
            pass
        else:
            if verdict.valid and (not self.distinct or self._as_distinct(settled, draft)):
                return settled
        if len(changes) == 1:
            return draft
        half = len(changes) // 2
        return self.changed(self.changed(draft, changes[:half]), changes[half:])

    def _as_distinct(self, settled: Draft, before: Draft) -> bool:
        return self.drawer.is_distinct(settled) or not self.drawer.is_distinct(before)

    def arguments(self, draft: Draft, seed: int) -> Arguments | None:
        """The arguments of a draft with random values; None where the contract refuses these values."""
        space = self.drawer.space
        case = resolve(space, draft)
        values = make(space.entry, case, seed)
        inner = parts_of(case.plans)
        with use_backend(case.backend):  # type: ignore[arg-type]
            try:
                refused = diagnose(space.terms, complete(space, values))
            except ContractDefinitionError:
                return None
        kept = {n: v for n, v in values.items() if n not in inner}
        return Arguments(self.target, self.drawer, case, kept) if refused is None else None


def _without(name: str) -> _Change:
    return _valued(name, None)


def _sizes(name: str, kind: DimKind, distinct: bool, extra: tuple[int, ...]) -> Iterator[_Change]:
    sizes: tuple[Any, ...] = (*(() if distinct else (1, 0)), *_SIZES, *extra)
    if kind in (DimKind.VARIADIC, DimKind.ELLIPSIS):
        sizes = ((), (2,), (3,), (4, 3))
    return (_sized(name, size) for size in sizes)


def _sized(name: str, size: Any) -> _Change:
    return lambda draft: replace(draft, dims={**draft.dims, name: size})


def _typed(names: list[str], dtype: torch.dtype) -> _Change:
    return lambda draft: replace(draft, dtypes={**draft.dtypes, **dict.fromkeys(names, dtype)})


def _valued(name: str, value: Any) -> _Change:
    def change(draft: Draft) -> Draft:
        if name in draft.fixed:
            return draft.moved(Move("value", name, value))
        return replace(draft, values={**draft.values, name: value})

    return change


def _laid(name: str, how: str) -> _Change:
    move = Move("expand", name, 0) if how == "expand" else Move("layout", name, how)
    return lambda draft: draft if draft.values.get(name, draft) is None else draft.moved(move)


def _placed(names: list[str], device: str) -> _Change:
    def place(draft: Draft) -> Draft:
        given = [n for n in names if draft.values.get(n, draft) is not None]
        return draft if device == "cpu" else draft.moved(*(Move("device", n, device) for n in given))

    return place
