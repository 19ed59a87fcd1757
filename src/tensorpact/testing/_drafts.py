"""A draft of a call: sizes, choices and mutations, from which concrete argument plans follow."""

import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tensorpact._annotations import Parameter
from tensorpact._call import Call
from tensorpact._errors import ContractDefinitionError
from tensorpact._evaluation import Violation, first_violation
from tensorpact._expansion import expand_call

from ._plans import Opaque, TensorPlan, build, dense_strides, plan_of
from ._space import Space, axis_size, free_axis
from ._wholes import Skeleton, flattened
from .hooks import Fill, Mistake

#: A tensor with memory behind it is never larger; huge sizes and strides are for meta tensors.
_MOST_ELEMENTS = 1 << 18


@dataclass(frozen=True, slots=True)
class Move:
    """One change of a draft.

    Attributes:
        kind: ``dim``, ``value``, ``give``, ``dtype``, ``backend``, ``devices``, ``mistake``, or one that acts on one
            finished tensor plan: ``axis``, ``grow``, ``drop``, ``add``, ``device``, ``layout``, ``expand``, ``huge``,
            ``alias``, ``names``.
        name: Parameter or dim.
        value: What it becomes.
    """

    kind: str
    name: str = ""
    value: Any = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A call before it is made.

    Attributes:
        dims: Dim to size; a tuple for a variadic dim.
        dtypes: Tensor parameter to dtype.
        values: Argument of every parameter that is no tensor, and None for an absent tensor.
        forms: Which form of a union a tensor takes.
        moves: Changes, applied in order.
        fixed: Plans made elsewhere, which take the place of the dims.
    """

    dims: Mapping[str, Any]
    dtypes: Mapping[str, torch.dtype]
    values: Mapping[str, Any]
    forms: Mapping[str, int] = field(default_factory=dict[str, int])
    moves: tuple[Move, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def moved(self, *moves: Move) -> "Draft":
        """The draft with further changes."""
        return replace(self, moves=(*self.moves, *moves))


class ImpossibleError(Exception):
    """A draft has no arguments, for example because an axis would have a size below 0."""


@dataclass(frozen=True, slots=True)
class Case:
    """A draft made concrete.

    Attributes:
        plans: Parameter name to plan or plain value.
        backend: Backend in force.
        fill: Writes the values that make sense, where rules read values.
        mistakes: Write values that break a rule, after it.
    """

    plans: dict[str, Any]
    backend: str
    fill: Fill | None = None
    mistakes: tuple[Mistake, ...] = ()

    def arguments(self) -> dict[str, Any]:
        """The arguments, made afresh: zeros, and the values that rules read."""
        made = build(self.plans)
        if self.fill is None:
            return made
        # What is written was meant for valid arguments; a mutated one may not take it, and keeps its zeros.
        with contextlib.suppress(Exception):
            self.fill(made, random.Random(0))
        for mistake in self.mistakes:
            with contextlib.suppress(Exception):
                mistake(made)
        return made


def resolve(space: Space, draft: Draft) -> Case:
    """The plans of a draft.

    Raises:
        ImpossibleError: There are none.
    """
    dims, dtypes, values = dict(draft.dims), dict(draft.dtypes), dict(draft.values)
    fixed = dict(draft.fixed)
    backend = "auto"
    late: list[Move] = []
    mistakes: list[Mistake] = []
    fields = {p.name for p in space.fields}
    for move in draft.moves:
        if (move.name in fields and move.kind != "value") or (draft.fixed and move.kind == "dim"):
            late.append(move)
        elif move.kind == "dim":
            dims[move.name] = move.value
        elif move.kind == "value":
            values[move.name] = move.value
            fixed.pop(move.name, None)
        elif move.kind == "give":
            values.pop(move.name, None)
        elif move.kind == "dtype" and move.name not in fixed:
            dtypes[move.name] = move.value
        elif move.kind == "backend":
            backend = move.value
        elif move.kind == "mistake":
            number: int = move.value
            mistakes.append(space.mistakes[number])
        else:
            late.append(move)
    for name in space.terms.contract.tied:
        if not any(m.kind == "value" and m.name == name for m in draft.moves) and values.get(name) is not None:
            values[name] = dims[name]
    plans: dict[str, Any] = {} if space.made is None else {"self": space.made}

    def tensor(p: Parameter) -> TensorPlan:
        form = p.tensor.forms[draft.forms.get(p.name, 0)] if p.tensor is not None else None
        axes = enumerate(form.dims) if form is not None else ()
        try:
            shape = tuple(n for i, d in axes for n in axis_size(d, dims, values, free_axis(p.name, i)))
        except Exception as bad:
            raise ImpossibleError(str(bad)) from bad
        return TensorPlan(shape, dtypes[p.name])

    for p in space.plain:
        if p.name in fixed:
            plans[p.name] = fixed[p.name]
        elif isinstance(values.get(p.name), Skeleton):
            for name, part in flattened(p.name, values[p.name]):
                plans[name] = tensor(part) if isinstance(part, Parameter) else part
        elif p.name in values:
            plans[p.name] = values[p.name]
        elif p.tensor is not None:
            plans[p.name] = tensor(p)
    plans |= {name: value for name, value in values.items() if name in fields}
    for move in late:
        if move.kind == "dim":
            # The tensors are given, so that another size of a dim is another size of each of their axes.
            for name, axis in space.axes_named(move.name):
                if isinstance(plans.get(name), TensorPlan):
                    _apply(plans, Move("axis", name, (axis, move.value)))
        else:
            _apply(plans, move)
    for plan in plans.values():
        if isinstance(plan, TensorPlan) and plan.device != "meta" and plan.span() > _MOST_ELEMENTS:
            raise ImpossibleError("too large to be made")
        if isinstance(plan, TensorPlan) and plan.base is not None:
            base = plans.get(plan.base)
            if not isinstance(base, TensorPlan) or base.base is not None or "meta" in (base.device, plan.device):
                raise ImpossibleError(f"{plan.base} has no storage to share")
    return Case(plans, backend, space.fill, tuple(mistakes))


def _apply(plans: dict[str, Any], move: Move) -> None:
    if move.kind == "devices":
        for name, plan in plans.items():
            if isinstance(plan, TensorPlan):
                plans[name] = replace(plan, device=move.value)
        return
    plan = plan_at(plans, move.name)
    if not isinstance(plan, TensorPlan):
        raise ImpossibleError(f"{move.name} is no tensor here")
    plans[move.name] = _changed(plan, move, plans)


def plan_at(plans: dict[str, Any], name: str) -> Any:
    """The plan of an argument, or of a field of one as the object has it, which then is among the plans too."""
    owner, dot, attribute = name.partition(".")
    holder = plans.get(owner)
    if dot and name not in plans and isinstance(holder, Opaque):
        plans[name] = plan_of(getattr(holder.value, attribute))
    return plans.get(name)


def _changed(plan: TensorPlan, move: Move, plans: dict[str, Any]) -> TensorPlan:
    shape, strides, at = list(plan.shape), list(plan.stride()), move.value
    if move.kind == "device":
        return replace(plan, device=at)
    if move.kind == "dtype":
        return replace(plan, dtype=at)
    if move.kind == "names":
        if len(at) != len(shape):
            raise ImpossibleError("as many names as axes")
        return replace(plan, axes=" ".join(at))
    if move.kind == "alias":
        other = plan_at(plans, at)
        if not isinstance(other, TensorPlan) or other.base is not None or other.device != plan.device:
            raise ImpossibleError(f"{at} has no storage to share")
        return replace(plan, base=at)
    if move.kind == "axis":
        index, size = at
        if not -len(shape) <= index < len(shape) or size < 0:
            raise ImpossibleError("no such axis")
        shape[index] = size
        return replace(plan, shape=tuple(shape), strides=None)
    if move.kind == "grow":
        index, step = at
        if not -len(shape) <= index < len(shape) or shape[index] + step < 0:
            raise ImpossibleError("no such axis")
        shape[index] += step
        return replace(plan, shape=tuple(shape), strides=None)
    if move.kind == "drop":
        if not -len(shape) <= at < len(shape):
            raise ImpossibleError("no such axis")
        del shape[at]
        return replace(plan, shape=tuple(shape), strides=None, axes=None)
    if move.kind == "add":
        index, size = at
        shape.insert(index if index >= 0 else len(shape) + 1 + index, size)
        return replace(plan, shape=tuple(shape), strides=None, axes=None)
    if not shape:
        raise ImpossibleError("a scalar tensor has no strides")
    if move.kind == "expand":
        if not -len(shape) <= at < len(shape):
            raise ImpossibleError("no such axis")
        strides[at] = 0
        return replace(plan, strides=tuple(strides))
    if move.kind == "huge":
        strides[0] = 2**31
        return replace(plan, strides=tuple(strides), device="meta")
    return _laid_out(plan, at, shape, strides)


def _laid_out(plan: TensorPlan, how: str, shape: list[int], strides: list[int]) -> TensorPlan:
    if how == "offset":
        return replace(plan, offset=plan.offset + 1)
    if how == "step":
        return replace(plan, strides=tuple(2 * s for s in strides))
    if how == "gap":
        if len(shape) < 2:
            raise ImpossibleError("one axis leaves no gap")
        inner = dense_strides((shape[0], *shape[1:-1], shape[-1] + 3))
        return replace(plan, strides=inner)
    if how == "outer":
        return replace(plan, strides=(strides[0] + 5, *strides[1:]))
    if how == "swap" and len(shape) > 1:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    elif how == "reversed" and len(shape) > 1:
        order = list(reversed(range(len(shape))))
    else:
        raise ImpossibleError(f"{how} needs two axes")
    turned = dense_strides(tuple(shape[i] for i in order))
    return replace(plan, strides=tuple(turned[order.index(i)] for i in range(len(shape))))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What plain evaluation says of a case.

    Attributes:
        violation: The first thing that is broken, or None.
        failure: What code of the contract's author raised, or None.
        lets: Values that the lets derived.
    """

    violation: Violation | None
    failure: str | None = None
    lets: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def valid(self) -> bool:
        """Whether everything holds."""
        return self.violation is None and self.failure is None

    @property
    def index(self) -> int | None:
        """Place of the clause that fired; None where none did."""
        step = None if self.violation is None else self.violation.step
        return None if step is None else step.index


def judge(space: Space, case: Case) -> Verdict:
    """Evaluate every clause in plain Python on freshly made arguments.

    Raises:
        ImpossibleError: The arguments cannot be made.
    """
    from tensorpact import use_backend

    try:
        arguments = case.arguments()
    except Exception as bad:
        # Torch refuses the storage, or the constructor of an object its fields.
        raise ImpossibleError(str(bad)) from bad
    with use_backend(case.backend):  # type: ignore[arg-type]
        try:
            call = Call(*expand_call(space.terms, complete(space, arguments)))
            violation = first_violation(call)
        except ContractDefinitionError as bad:
            return Verdict(None, str(bad))
    return Verdict(violation, None, call.lets)


def complete(space: Space, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments in signature order with empty ``*args`` and ``**kwargs``."""
    kinds = {p.name: p.kind for p in space.terms.signature.parameters if not p.is_field}
    return {n: arguments[n] if n in arguments else (() if kinds[n].name == "VAR_POSITIONAL" else {}) for n in kinds}
