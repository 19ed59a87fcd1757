"""Mutations of valid arguments: the near misses that a caller makes."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from tensorpact._annotations import Parameter
from tensorpact._dims import DimKind
from tensorpact._terms import Step, flat
from tensorpact.clauses import Layout, SameDevice, SameDtype
from tensorpact.constraints import NamedAxes

from ._drafts import Case, Draft, Move, plan_at
from ._plans import TensorPlan
from ._space import COMMON_DTYPES, Scalar, Space
from ._wholes import Whole

LAYOUTS = ("step", "reversed", "gap", "offset", "swap", "outer")
BACKENDS = ("triton", "naive", "npu")
_SIZES = (0, 1, 2, 3, 4, 5, 6, 8)


def dim_moves(space: Space, draft: Draft, names: Iterable[str]) -> Iterator[Move]:
    """Another size for a dim, wherever it stands."""
    for name in names:
        old = draft.dims.get(name)
        if isinstance(old, int):
            near = (old + 1, old - 1, 2 * old)
            sizes = [n for n in dict.fromkeys((*near, *_SIZES, *space.sizes)) if n >= 0 and n != old]
            yield from (Move("dim", name, n) for n in sizes)
        elif isinstance(old, tuple):
            yield from (Move("dim", name, n) for n in ((), (2,), (1,), (3, 2)) if n != old)


def tensor_moves(space: Space, parameter: Parameter, plan: TensorPlan, others: Iterable[str]) -> Iterator[Move]:
    """Another rank, axis, dtype, device, layout or storage for one tensor."""
    name, rank = parameter.name, len(plan.shape)
    for axis in range(rank):
        yield from (Move("grow", name, (axis, step)) for step in (1, -1))
        yield from (Move("axis", name, (axis, n)) for n in _SIZES if n != plan.shape[axis])
        yield Move("expand", name, axis)
        yield Move("drop", name, axis)
    yield from (Move("add", name, (0, n)) for n in (1, 2))
    yield from (Move("add", name, (-1, n)) for n in (1, 2))
    dtypes = dict.fromkeys((*space.dtypes.get(name, ()), *COMMON_DTYPES, *_kin(parameter)))
    yield from (Move("dtype", name, d) for d in dtypes if d != plan.dtype)
    yield Move("device", name, "meta" if plan.device == "cpu" else "cpu")
    yield from (Move("layout", name, how) for how in LAYOUTS)
    yield Move("huge", name)
    yield from (Move("alias", name, other) for other in others if other != name)
    yield from (Move("names", name, order) for order in _orders(parameter, rank))
    if parameter.optional:
        yield Move("value", name, None)


def _kin(parameter: Parameter) -> tuple[torch.dtype, ...]:
    """Dtypes of the annotated family that ``OneOf`` leaves out."""
    spec = parameter.tensor
    allowed = spec.dtypes() if spec is not None else None
    family = (d for f in spec.forms for d in f.torch_dtypes()) if spec is not None and allowed is not None else ()
    return tuple(itertools.islice((d for d in family if d not in (allowed or ())), 3))


def _orders(parameter: Parameter, rank: int) -> Iterator[tuple[str, ...]]:
    """Names for the axes where the annotation asks for names: the annotated ones, two exchanged, others."""
    found = (c for c in parameter.tensor.constraints if isinstance(c, NamedAxes)) if parameter.tensor else ()
    for order in (o for c in found for o in c.orders if len(o) == rank):
        yield order
        yield from ((*order[:i], order[i + 1], order[i], *order[i + 2 :]) for i in range(rank - 1))
        yield tuple(f"x{i}" for i in range(rank))


def _whole_moves(space: Space, parameter: Parameter, plan: Whole, case: Case, others: list[str]) -> Iterator[Move]:
    """More or fewer items, and moves of the tensors among them."""
    frames = (space.nest(parameter, count) for count in (0, 1, 3))
    yield from (Move("value", parameter.name, f) for f in frames if f.repeats and len(f.items) != len(plan.parts))
    if parameter.optional:
        yield Move("value", parameter.name, None)
    for part, hint in zip(plan.parts, plan.hints, strict=True):
        inner = case.plans[part]
        if isinstance(inner, Whole):
            yield from (m for m in _whole_moves(space, parameter, inner, case, others) if m.name != parameter.name)
        elif isinstance(inner, TensorPlan) and hint is not None:
            yield from tensor_moves(space, replace(hint, name=part), inner, others)


def scalar_moves(name: str, scalar: Scalar, old: Any) -> Iterator[Move]:
    """Another value for an argument that is no tensor, boundary values included."""
    seen: list[Any] = [old]
    for value in (*scalar.odd, *scalar.good):
        if not any(value is s or (type(value) is type(s) and value == s) for s in seen):
            seen.append(value)
            yield Move("value", name, value)


def wrong_moves(space: Space, scalars: dict[str, Scalar], case: Case) -> list[Move]:
    """Values of a type that the annotation refuses."""
    found: list[Move] = []
    for name, plan in case.plans.items():
        if isinstance(plan, TensorPlan):
            found += [Move("value", name, v) for v in ("text", None, 3, [1.0])]
        elif name in scalars:
            found += [Move("value", name, v) for v in scalars[name].wrong]
        elif isinstance(plan, Whole) and plan.form != "object" and "*" not in space.marks.get(name, ""):
            found += [Move("value", name, v) for v in ("text", None, 3)]
    return found


def joint_moves(step: Step, plans: Mapping[str, Any]) -> Iterator[tuple[Move, ...]]:
    """Changes that only tell together.

    Of tensors that have to agree, all but one change alike: other clauses may bind some of them together. And a last
    axis of one element gets a stride, which only a strict ``DenseLast`` minds.
    """
    for clause in flat(step.clause):
        if isinstance(clause, Layout):
            for name in clause.names:
                plan = plan_at(dict(plans), name)
                if isinstance(plan, TensorPlan) and plan.shape:
                    yield Move("axis", name, (-1, 1)), Move("layout", name, "step")
        if not isinstance(clause, (SameDtype, SameDevice)):
            continue
        given = [n for n in clause.names if isinstance(plan_at(dict(plans), n), TensorPlan)]
        for left_out in given if len(given) > 2 else ():
            rest = [n for n in given if n != left_out]
            if isinstance(clause, SameDevice):
                yield tuple(Move("device", n, "meta") for n in rest)
                continue
            for dtype in COMMON_DTYPES[:3]:
                yield tuple(Move("dtype", n, dtype) for n in rest)


class Mutations:
    """All moves from one valid draft, and those that concern given names.

    Args:
        space: What arguments may be made of.
        scalars: Values of arguments that are no tensors.
        draft: A valid draft.
        case: The same, made concrete.
    """

    def __init__(self, space: Space, scalars: dict[str, Scalar], draft: Draft, case: Case) -> None:
        self.draft = draft
        self.plans = case.plans
        self.by_parameter: dict[str, list[Move]] = {}
        self.by_dim: dict[str, list[Move]] = {}
        tensors = [n for n, p in case.plans.items() if isinstance(p, TensorPlan)]
        for p in space.plain:
            plan = case.plans[p.name]
            if isinstance(plan, TensorPlan):
                self.by_parameter[p.name] = list(tensor_moves(space, p, plan, tensors))
            elif isinstance(plan, Whole):
                self.by_parameter[p.name] = list(_whole_moves(space, p, plan, case, tensors))
            elif p.tensor is not None and p.optional and p.name in draft.dtypes:
                self.by_parameter[p.name] = [Move("give", p.name)]
            elif p.name in scalars:
                self.by_parameter[p.name] = list(scalar_moves(p.name, scalars[p.name], plan))
        self._add_fields(space, scalars, case)
        for name, kind in space.dims.items():
            if kind is not DimKind.ELLIPSIS and name not in space.terms.lets:
                self.by_dim[name] = list(dim_moves(space, draft, [name]))
        self.wide = [*(Move("backend", "", b) for b in BACKENDS), Move("devices", "", "meta")]
        self.wide += [Move("mistake", "", i) for i in range(len(space.mistakes))]
        own = [*(moves for n, moves in self.by_parameter.items() if n != "self"), *self.by_dim.values()]
        self.all = [*(move for moves in own for move in moves), *self.wide]

    def _add_fields(self, space: Space, scalars: dict[str, Scalar], case: Case) -> None:
        """Moves of the fields of ``self``, which count as moves of ``self`` too; arguments may alias its tensors."""
        arguments = [n for n, p in case.plans.items() if isinstance(p, TensorPlan)]
        plans = {p.name: plan_at(dict(case.plans), p.name) for p in space.fields}
        for p in space.fields:
            plan = plans[p.name]
            if isinstance(plan, TensorPlan) and p.tensor is not None:
                like = (n for n, o in plans.items() if isinstance(o, TensorPlan) and o.dtype == plan.dtype)
                found = list(tensor_moves(space, p, plan, like))
                found += [Move("alias", name, p.name) for name in arguments if case.plans[name].dtype == plan.dtype]
            else:
                found = list(scalar_moves(p.name, scalars[p.name], plan)) if p.name in scalars else []
            self.by_parameter[p.name] = found
            self.by_parameter.setdefault("self", []).extend(found)

    def about(self, names: Iterable[str], dims: Iterable[str]) -> list[Move]:
        """Moves of these parameters and dims, and those that concern every argument."""
        found = [m for n in sorted(names) for m in self.by_parameter.get(n, ())]
        found += [m for n in sorted(dims) for m in self.by_dim.get(n, ())]
        return [*self.wide, *found]
