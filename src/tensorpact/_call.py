"""One call looked at: its bindings, and whether each obligation holds, is broken or cannot be told."""

from collections.abc import Mapping
from typing import Any

import torch

from ._annotations import TensorForm, array_dtype
from ._dims import Dim, DimKind
from ._errors import ContractDefinitionError
from ._fitting import Size, broadcastable, fits, form_fits, has_no_sizes, is_array, is_one, is_sharded
from ._overlap import overlaps_itself
from ._terms import Axis, Obligation, Terms
from ._types import describe_hint
from ._verdicts import Broken, Status, Unknown, class_text, odd_tensor, scalar_text, unequal_dtype
from ._wording import axes_text, axis_text, rank_text, sizes_text
from .constraints import OneOf, SameDtype, has_strides


class Call:
    """Arguments of one call against the terms.

    Args:
        terms: The contract laid on the signature.
        values: Parameter name to argument.
        scope: A call whose dims hold here too.
    """

    def __init__(self, terms: Terms, values: Mapping[str, Any], scope: "Call | None" = None) -> None:
        self.terms = terms
        self.values: dict[str, Any] = dict(values)
        for name in terms.parameters:
            if "." in name and name not in self.values:
                owner, _, attribute = name.partition(".")
                self.values[name] = getattr(values[owner], attribute)
        self.dims: dict[str, Size] = {}
        self.sources: dict[str, tuple[str, Axis | None]] = {}
        self.unbound: dict[str, tuple[Obligation, ...]] = {}
        self.lets: dict[str, Any] = {}
        #: Dtype variables: who gave each its dtype, and which.
        self.dtypes: dict[str, tuple[str, Any]] = {}
        self._status: dict[Obligation, Status] = {}
        self._tensors: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int, ...] | None] = {}
        if scope is not None:
            self.dims.update(scope.dims)
            self.sources.update(scope.sources)
            self.dtypes.update(scope.dtypes)
        self._bind()
        for name, variable in ((p.name, v) for p in terms.tensors if p.tensor for v in p.tensor.dtype_variables()):
            if self.tensor(name) is not None:
                self.dtypes.setdefault(variable, (name, self.tensor(name).dtype))

    def tensor(self, name: str) -> Any:
        """The argument where it is an array of the annotated class, else None."""
        if name not in self._tensors:
            spec, value = self.terms.parameters[name].tensor, self.values[name]
            fits = spec is not None and value is not None and any(is_array(form, value) for form in spec.forms)
            self._tensors[name] = value if fits else None
        return self._tensors[name]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Sizes of a tensor argument, read once."""
        if name not in self._shapes:
            tensor = self.tensor(name)
            self._shapes[name] = None if tensor is None else tuple(tensor.shape)
        return self._shapes[name]

    def size(self, axis: Axis) -> Size | None:
        """What an argument says for one annotated axis; None where the axis does not exist."""
        shape, spec = self.shape(axis.parameter.name), axis.parameter.tensor
        if shape is None or spec is None:
            return None
        place = spec.forms[0].position(axis.index, len(shape))
        return None if place is None else shape[place]

    def where(self, axis: Axis) -> str:
        """Where an axis lies in this call, for a reader: ``q axis 1``, and ``-2`` behind a variadic one."""
        shape, spec = self.shape(axis.parameter.name), axis.parameter.tensor
        if shape is None or spec is None or spec.forms[0].variadic is not None:
            return axis_text(axis)
        return f"{axis.parameter.name} axis {spec.forms[0].position(axis.index, len(shape))}"

    def _bind(self) -> None:
        for name in self.terms.contract.tied:
            if self.values[name] is not None:
                self.dims[name] = self.values[name]
                self.sources[name] = (f"argument {name}", None)
        for name, axes in self.terms.bare.items():
            if name not in self.dims and name not in self.terms.lets:
                self._bind_bare(name, axes)
        self._solve()

    def _bind_bare(self, name: str, axes: list[Axis]) -> None:
        ones: Axis | None = None
        because: tuple[Obligation, ...] = ()
        for axis in axes:
            parameter = axis.parameter
            if self.tensor(parameter.name) is None:
                if not (parameter.optional and self.values[parameter.name] is None) and not because:
                    because = (self.terms.find(parameter.name, "type"),)
                continue
            size = self.size(axis)
            if size is None:
                self.unbound[name] = (self.terms.find(parameter.name, "rank"),)
                return
            if axis.dim.broadcast and is_one(size):
                ones = ones or axis
            elif axis.dim.broadcast and isinstance(size, tuple):
                before = self.dims.get(name, ())
                joint = broadcastable(size, before if isinstance(before, tuple) else ())
                self.dims[name] = size if joint is None else joint
                self.sources.setdefault(name, (self.where(axis), axis))
            else:
                self.dims[name] = size
                self.sources[name] = (self.where(axis), axis)
                return
        if name not in self.dims:
            if ones is not None:
                self.dims[name] = 1
                self.sources[name] = (self.where(ones), ones)
            else:
                self.unbound[name] = because

    def _solve(self) -> None:
        pending = {n for n in self.terms.dims if n not in self.dims and n not in self.terms.lets}
        progress = bool(pending)
        while progress:
            progress = False
            for axis in self.terms.expressions:
                expression, size = axis.dim.expression, self.size(axis)
                unknown = [n for n in axis.dim.names if n not in self.dims]
                if expression is None or len(unknown) != 1 or unknown[0] not in pending or not isinstance(size, int):
                    continue
                if self.unbound.get(unknown[0]) or (axis.dim.broadcast and is_one(size)):
                    continue
                broken = self._broken_types(expression.arguments)
                if broken:
                    self.unbound[unknown[0]] = broken
                    continue
                value = self._solution(axis.dim, axis.parameter.name, unknown[0], size, raising=False)
                if value is not None:
                    self.dims[unknown[0]] = value
                    self.sources[unknown[0]] = (f"{self.where(axis)}, {axis.dim.text} = {size}", axis)
                    self.unbound.pop(unknown[0], None)
                    pending.discard(unknown[0])
                    progress = True
        for name in pending:
            self.unbound.setdefault(name, ())

    def _broken_types(self, names: tuple[str, ...]) -> tuple[Obligation, ...]:
        types = (self.terms.find(n, "type") for n in names)
        return tuple(ob for ob in types if isinstance(self.status(ob), Broken))

    def _solution(self, dim: Dim, name: str, unknown: str, size: int, *, raising: bool = True) -> int | None:
        # While dims are bound nobody has looked at the types yet, so that an error of the author waits until then.
        if dim.expression is None:
            return None
        try:
            return dim.expression.solve(unknown, size, self.dims, self.values)
        except Exception as bad:
            if raising:
                raise self._failed(dim, name, bad) from bad
            return None

    def _failed(self, dim: Dim, name: str, bad: Exception) -> ContractDefinitionError:
        known = ", ".join(f"{n}={self.dims.get(n)}" for n in dim.names)
        return ContractDefinitionError(
            f"{self.terms.owner}: {name}: axis {dim.text!r} fails with {known or 'these arguments'}: {bad!r}"
        )

    def missing(self, names: tuple[str, ...] | list[str]) -> Unknown | None:
        """Why some of these dims have no value; None where all have one."""
        absent = [n for n in names if n not in self.dims]
        if not absent:
            return None
        return Unknown(tuple(dict.fromkeys(o for n in absent for o in self.unbound.get(n, ()))))

    def status(self, obligation: Obligation) -> Status:
        """Whether an obligation holds (None), is broken, or cannot be told."""
        if obligation not in self._status:
            found = self._look(obligation)
            if isinstance(found, Unknown):
                return found
            self._status[obligation] = found
        return self._status[obligation]

    def _look(self, obligation: Obligation) -> Status:
        if obligation.kind == "type":
            return self._type(obligation)
        name, spec = obligation.parameter.name, obligation.parameter.tensor
        tensor, shape = self.tensor(name), self.shape(name)
        if spec is None or tensor is None or shape is None:
            return None
        if obligation.kind == "rank":
            if any(form.rank_fits(len(shape)) for form in spec.forms):
                return None
            wanted = "" if spec.union else f"{rank_text(spec.forms[0])} "
            return Broken(
                (name,), f"{name}: expected {wanted}{spec.describe()}, got {axes_text(len(shape))}: {list(shape)}"
            )
        if obligation.kind == "dtype":
            return self._dtype(obligation)
        if obligation.kind == "constraint":
            constraint = spec.constraints[obligation.index]
            if isinstance(constraint, SameDtype):
                first, wanted = self.dtypes[constraint.variable]
                return None if tensor.dtype == wanted else unequal_dtype(name, tensor.dtype, first, wanted)
            try:
                if isinstance(constraint, OneOf) or constraint.holds(tensor):
                    return None
                told = constraint.kind != "layout" or has_strides(tensor)
            except (RuntimeError, NotImplementedError):
                told = False  # compressed sparse tensors raise where they are asked for strides
            if told:
                return Broken((name,), f"{name}: {constraint.reason(tensor)}")
            return Broken((name,), f"{name}: layout is {tensor.layout}, which has none of what {constraint} asks")
        if obligation.kind == "written":
            return self._written(name, tensor)
        if obligation.kind == "axes":
            dtype = array_dtype(tensor)
            if any(self.form_fits(form, tensor, shape, dtype) for form in spec.forms):
                return None
            return Broken((name,), f"{name}: expected {self._union_sizes(obligation)}, got {list(shape)}")
        return self._axis(obligation, shape)

    def _type(self, obligation: Obligation) -> Status:
        parameter = obligation.parameter
        value = self.values[parameter.name]
        if value is None and parameter.optional:
            return None
        checks = self.terms.checks[parameter.name]
        if self.tensor(parameter.name) is not None:
            if checks.extra is None or checks.extra(value):
                return None
            return Broken((parameter.name,), f"{parameter.name}: breaks {describe_hint(parameter.extra)}", TypeError)
        if parameter.tensor is None and checks.other is None:
            return None
        if checks.other is not None and checks.other(value):
            return None
        if parameter.tensor is not None and (is_sharded(value) or has_no_sizes(value)):
            return Broken((parameter.name,), f"{parameter.name}: {odd_tensor(parameter.name, value)}", TypeError)
        item = checks.other.wrong_item(value) if checks.other is not None else None
        if item is not None:
            suffix, hint, found = item
            shown = class_text(found) + scalar_text(found)
            text = f"{parameter.name}{suffix}: expected {describe_hint(hint)}, got {shown}"
            return Broken((parameter.name,), text, TypeError)
        wanted: list[str] = []
        if parameter.tensor is not None:
            form = parameter.tensor.forms[0]
            array = "array" if form.array_type is Any else getattr(form.array_type, "__name__", str(form.array_type))
            wanted.append(f"a {array} {parameter.tensor.describe()}")
        if checks.other is not None:
            wanted.append(describe_hint(parameter.other))
        if parameter.optional:
            wanted.append("None")
        got = "None" if value is None else class_text(value)
        if parameter.tensor is None:
            got += scalar_text(value)
        return Broken((parameter.name,), f"{parameter.name}: expected {' or '.join(wanted)}, got {got}", TypeError)

    def _dtype(self, obligation: Obligation) -> Status:
        name, spec = obligation.parameter.name, obligation.parameter.tensor
        tensor = self.tensor(name)
        if spec is None:
            return None
        got = array_dtype(tensor)
        limits = [c for c in spec.constraints if isinstance(c, OneOf)]
        if any(form.allows(got) for form in spec.forms) and all(c.holds(tensor) for c in limits):
            return None
        if limits:
            wanted = " or ".join(str(d) for d in (spec.dtypes() or ()))
        else:
            wanted = " or ".join(dict.fromkeys(form.dtype_class.__name__ for form in spec.forms))
        shown = str(tensor.dtype) if isinstance(tensor, torch.Tensor) else got
        return Broken((name,), f"{name}: dtype is {shown}, expected {wanted}", TypeError)

    def _written(self, name: str, tensor: Any) -> Status:
        if not isinstance(tensor, torch.Tensor):
            return None
        if not has_strides(tensor):
            return Broken((name,), f"{name}: is written, but its layout {tensor.layout} has no strides")
        if not overlaps_itself(tensor):
            return None
        for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            if size > 1 and stride == 0:
                return Broken((name,), f"{name}: is written, but axis {axis} of size {size} has stride 0", axis=axis)
        layout = f"sizes {list(tensor.shape)} and strides {list(tensor.stride())}"
        return Broken((name,), f"{name}: is written, but elements of it share memory: {layout}")

    def _axis(self, obligation: Obligation, shape: tuple[int, ...]) -> Status:
        parameter, spec = obligation.parameter, obligation.parameter.tensor
        if spec is None:
            return None
        dim = spec.dims[obligation.index]
        if dim.kind in (DimKind.ANONYMOUS, DimKind.ELLIPSIS):
            return None
        place = spec.forms[0].position(obligation.index, len(shape))
        if place is None:
            return Unknown((self.terms.find(parameter.name, "rank"),))
        size: Size = shape[place]
        if dim.broadcast and is_one(size):
            return None
        unbound = self.missing(dim.names)
        if unbound is not None:
            if not unbound.because and self._unsolvable(dim, parameter.name, size):
                free = next(n for n in dim.names if n not in self.dims)
                return self._axis_broken(obligation, shape, size, f"no {free} makes {dim.text} that size")
            return unbound
        if dim.kind is DimKind.FIXED:
            wanted: Any = dim.size
            because = f"must be {dim.size}"
        elif dim.expression is not None:
            wanted = self.evaluate(dim, parameter.name)
            known = ", ".join(f"{n}={self.dims[n]} ({self.source(n)})" for n in dim.names)
            because = f"{dim.text} is {wanted}" + (f" with {known}" if known else "")
        else:
            wanted = self.dims[dim.name]
            because = f"{dim.name} is {sizes_text(wanted)} ({self.source(dim.name)})"
        if fits(dim, size, wanted):
            return None
        return self._axis_broken(obligation, shape, size, because)

    def _unsolvable(self, dim: Dim, name: str, size: Size) -> bool:
        unknown = [n for n in dim.names if n not in self.dims]
        if dim.expression is None or len(unknown) != 1 or not isinstance(size, int):
            return False
        return dim.expression.solvable(unknown[0]) and self._solution(dim, name, unknown[0], size) is None

    def _axis_broken(self, obligation: Obligation, shape: tuple[int, ...], size: Size, because: str) -> Broken:
        parameter, spec = obligation.parameter, obligation.parameter.tensor
        name = parameter.name
        if spec is None:
            return Broken((name,), because)
        dim = spec.dims[obligation.index]
        place = spec.forms[0].position(obligation.index, len(shape))
        label = "" if dim.kind is DimKind.FIXED else f" ({dim.text})"
        where = f"axis {place}{label} is" if isinstance(place, int) else f"axes {dim.text} are"
        text = f"{name}: {where} {sizes_text(size)}, but {because}"
        expected = self.expected(name)
        names = spec.describe()
        shown = names if names == expected else f"{names} = {expected}"
        text += f"; expected {shown}, got {list(shape)}"
        axis = place if isinstance(place, int) else None
        return Broken((name,), text, axis=axis, dim=dim.names[0] if dim.names else None)

    def expected(self, name: str) -> str:
        """The sizes that a parameter should have, ``?`` where nothing says."""
        spec, shape = self.terms.parameters[name].tensor, self.shape(name)
        if spec is None or spec.union:
            return spec.describe() if spec else ""
        return "[" + ", ".join(self._expected_axis(name, i, dim, shape) for i, dim in enumerate(spec.dims)) + "]"

    def _expected_axis(self, name: str, index: int, dim: Dim, shape: tuple[int, ...] | None) -> str:
        if dim.kind is DimKind.FIXED:
            return f"1 or {dim.size}" if dim.broadcast and dim.size != 1 else str(dim.size)
        if (dim.names or dim.expression is not None) and all(n in self.dims for n in dim.names):
            value = self.evaluate(dim, name) if dim.expression is not None else self.dims[dim.name]
            if dim.broadcast and value != 1 and isinstance(value, int):
                return f"1 or {value}"
            return sizes_text(value)[1:-1] if isinstance(value, tuple) else str(value)
        spec = self.terms.parameters[name].tensor
        place = spec.forms[0].position(index, len(shape)) if spec is not None and shape is not None else None
        if isinstance(place, int) and shape is not None and dim.kind is DimKind.ANONYMOUS:
            return str(shape[place])
        return "..." if dim.variadic else "?"

    def _union_sizes(self, obligation: Obligation) -> str:
        spec = obligation.parameter.tensor
        forms = spec.forms if spec is not None else ()
        out: list[str] = []
        for form in forms:
            known = ", ".join(self._expected_axis(obligation.parameter.name, -1, d, None) for d in form.dims)
            out.append(f"[{', '.join(form.text.split())}] = [{known}]")
        return " or ".join(dict.fromkeys(out))

    def evaluate(self, dim: Dim, name: str) -> Any:
        """Value of an expression axis; what it raises is its author's error."""
        if dim.expression is None:
            raise ContractDefinitionError(f"{self.terms.owner}: {name}: {dim.text} is no expression")
        try:
            return dim.expression.evaluate(self.dims, self.values)
        except Exception as bad:
            raise self._failed(dim, name, bad) from bad

    def source(self, dim: str) -> str:
        """What bound a dim, as text."""
        return self.sources[dim][0] if dim in self.sources else "derived"

    def form_fits(self, form: TensorForm, tensor: Any, shape: tuple[int, ...], dtype: str) -> bool:
        """Whether one form of a union fits whole, given the dims that are bound."""
        if not (is_array(form, tensor) and form.allows(dtype)):
            return False
        try:
            return form_fits(form, shape, self.dims, self.values)
        except Exception as bad:
            raise ContractDefinitionError(f"{self.terms.owner}: {form.text!r} fails with {self.dims}: {bad!r}") from bad
