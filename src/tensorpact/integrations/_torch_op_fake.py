"""The fake kernel of an operator, derived from the return annotation: shapes from the dims of the arguments."""

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch

from tensorpact._annotations import TensorSpec
from tensorpact._call import Call
from tensorpact._dims import Dim, DimKind
from tensorpact._errors import ContractDefinitionError
from tensorpact._evaluation import run_lets
from tensorpact._expansion import expand_call
from tensorpact._guard import is_required
from tensorpact._terms import Terms
from tensorpact.clauses import lambda_parameters

from ._torch_op_results import Form, Result, Results

Rule = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Stated:
    """What a registration says of returned tensors beside the annotation.

    Attributes:
        form: Rule that tells which member of the union is returned.
        dtypes: By place in the result: the parameter whose dtype it has, the dtype, or None.
        like: By place: the parameter that ``torch.empty_like`` would make it of, or None.
        device: Parameter on whose device new tensors are.
    """

    form: Rule | None
    dtypes: Sequence[str | torch.dtype | None]
    like: Sequence[str | None]
    device: str | None


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one new tensor is made.

    Attributes:
        dims: Its axes.
        dtype: The dtype, or the parameter whose dtype it has.
        device: The parameter on whose device it is.
        like: The parameter whose strides it has, or None for a contiguous one.
    """

    dims: tuple[Dim, ...]
    dtype: str | torch.dtype
    device: str
    like: str | None


class FakeBody:
    """Stands for the body of a function where tensors have no memory.

    Args:
        terms: The contract laid on the signature.
        results: The return annotation, read.
        stated: What the registration says beside it.

    Raises:
        ContractDefinitionError: A returned tensor cannot be derived from the arguments.
    """

    def __init__(self, terms: Terms, results: Results, stated: Stated, signature: inspect.Signature) -> None:
        self._terms = terms
        self._results = results
        self._signature = signature
        self._rule = stated.form
        self._recipes = {
            (i, j): self._recipe(result, j, stated)
            for i, form in enumerate(results.forms)
            for j, result in enumerate(form.results)
            if result.argument is None
        }
        #: Whether a returned axis is what a let derives; rules are not run for nothing, since they may ask symbols.
        self._derived = any(n in terms.lets for r in self._recipes.values() for d in r.dims for n in d.names)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        index = 0
        if self._rule is not None:
            index = int(self._rule(*[values[n] for n in lambda_parameters(self._rule)]))
        form: Form = self._results.forms[index]
        call: Call | None = None
        made: list[Any] = []
        for place, result in enumerate(form.results):
            if result.argument is not None:
                made.append(values[result.argument])
                continue
            call = call or self._scope(values)
            made.append(self._make(self._recipes[index, place], call, values))
        if form.shape == "tuple":
            return form.build(made)
        return made[0] if made else None

    def _scope(self, values: Mapping[str, Any]) -> Call:
        call = Call(*expand_call(self._terms, values))
        for name, axis in self._terms.solved.items():
            expression, size = axis.dim.expression, call.size(axis)
            if name in call.dims or expression is None or size is None or isinstance(size, tuple):
                continue
            # By two points of the line: solving as the diagnosis does would ask a symbol for its number.
            low, high = (expression.evaluate({**call.dims, name: n}, call.values) for n in (0, 1))
            call.dims[name] = size - low if high - low == 1 else (size - low) // (high - low)
        if self._derived:
            run_lets(call)
        return call

    def _make(self, recipe: Recipe, call: Call, values: Mapping[str, Any]) -> torch.Tensor:
        dtype = recipe.dtype if isinstance(recipe.dtype, torch.dtype) else values[recipe.dtype].dtype
        if recipe.like is not None:
            return torch.empty_like(values[recipe.like], dtype=dtype)
        sizes: list[Any] = []
        for dim in recipe.dims:
            if dim.kind is DimKind.FIXED:
                sizes.append(dim.size)
            elif dim.expression is not None:
                sizes.append(dim.expression.evaluate(call.dims, call.values))
            elif dim.variadic:
                sizes += cast("tuple[Any, ...]", call.dims[dim.name])
            else:
                sizes.append(call.dims[dim.name])
        return torch.empty(sizes, dtype=dtype, device=values[recipe.device].device)

    def _recipe(self, result: Result, place: int, stated: Stated) -> Recipe:
        if result.spec is None:
            self._fail(f"the fake kernel cannot tell what a returned {result.text} is; give fake=…")
        spec, terms = result.spec, self._terms
        where = f"returned value {place}"
        if spec.union:
            self._fail(f"{where}: no form of {spec.describe()} can be chosen; give fake=…")
        like = self._stated(stated.like, place)
        if like is not None:
            source = terms.parameters[self._tensor("like", like)].tensor
            texts = [d.text for d in spec.dims]
            if source is None or source.union or [d.text for d in source.dims] != texts:
                self._fail(f"{where}: like {like!r}, which is not annotated {spec.describe()} itself")
        else:
            for dim in spec.dims:
                self._derivable(dim, where)
        device = stated.device
        if device is None:
            device = next((p.name for p in terms.tensors if is_required(p)), None)
            if device is None:
                self._fail(f"{where}: no parameter is always a tensor, so that nothing says the device; give fake=…")
        return Recipe(spec.dims, self._dtype(spec, place, stated, where), self._tensor("device", device), like)

    def _dtype(self, spec: TensorSpec, place: int, stated: Stated, where: str) -> str | torch.dtype:
        said = self._stated(stated.dtypes, place)
        allowed = spec.dtypes()
        if isinstance(said, torch.dtype):
            if allowed is not None and said not in allowed:
                self._fail(f"{where}: {said} is no dtype of its annotation")
            return said
        said = said or self._stated(stated.like, place)
        if said is not None:
            return self._tensor("dtypes", said)
        if allowed is not None and len(allowed) == 1:
            return allowed[0]
        for variable in spec.dtype_variables():
            for name in self._terms.shared_dtypes.get(variable, ()):
                if name in self._terms.parameters and is_required(self._terms.parameters[name]):
                    return name
        return self._fail(
            f"{where}: its annotation allows several dtypes; annotate one, or SameDtype(…) with an argument, or name "
            "an argument or a dtype in dtypes=(…)"
        )

    def _stated(self, said: Sequence[Any], place: int) -> Any:
        return said[place] if place < len(said) else None

    def _tensor(self, what: str, name: str) -> str:
        parameter = self._terms.parameters.get(name)
        if parameter is None or not is_required(parameter):
            self._fail(f"{what}: {name!r} is no parameter that is always a tensor")
        return name

    def _derivable(self, dim: Dim, where: str) -> None:
        if dim.kind in (DimKind.ANONYMOUS, DimKind.ELLIPSIS) or dim.broadcast:
            self._fail(f"{where}: axis {dim.text!r} has no size of its own; give fake=…")
        arguments = dim.expression.arguments if dim.expression is not None else ()
        for name in arguments:
            if name not in self._terms.parameters:
                self._fail(f"{where}: axis {dim.text!r} reads {name!r}, which is no parameter")
        for name in dim.names:
            if not self._is_sure(name, set()):
                self._fail(
                    f"{where}: no argument that is always a tensor gives {name!r} of axis {dim.text!r}; give fake=…"
                )

    def _is_sure(self, name: str, asked: set[str]) -> bool:
        """Whether every valid call gives a dim its size."""
        terms = self._terms
        if name in terms.contract.tied or name in terms.lets:
            return True
        if any(is_required(axis.parameter) for axis in terms.bare.get(name, ())):
            return True
        axis = terms.solved.get(name)
        if axis is None or not is_required(axis.parameter) or axis.dim.expression is None or name in asked:
            return False
        tree = axis.dim.expression.tree
        if any(isinstance(node, ast.FloorDiv) for node in ast.walk(tree)):
            return False
        return all(self._is_sure(n, asked | {name}) for n in axis.dim.names if n != name)

    def _fail(self, why: str) -> NoReturn:
        raise ContractDefinitionError(f"{self._terms.owner}: {why}")


def rule_of(terms: Terms, form: Rule | str | None, needed: bool) -> Rule | None:
    """The rule that tells the form of what comes back.

    Args:
        terms: The contract laid on the signature.
        form: The rule, or the name of the parameter that is the index.
        needed: Whether there are several forms.

    Raises:
        ContractDefinitionError: There is none although one is needed, or it reads what is no parameter.
    """
    if form is None:
        if needed:
            raise ContractDefinitionError(
                f"{terms.owner}: the return annotation has several forms; say which one a call gives with form=…"
            )
        return None
    names = (form,) if isinstance(form, str) else lambda_parameters(form)
    for name in names:
        if name not in terms.parameters:
            raise ContractDefinitionError(f"{terms.owner}: form reads {name!r}, which is no parameter")
    return form if not isinstance(form, str) else eval(f"lambda {form}: {form}")
