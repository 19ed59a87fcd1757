"""A signature read once: jaxtyping hints become tensor specs, every other hint stays with beartype."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, cast

import torch
from jaxtyping import Complex, Float

from ._dims import Dim, DimKind, parse_shape
from ._errors import ContractDefinitionError
from ._frames import closed_over
from ._hints import evaluate_hint, is_none, is_tensor_hint, members, signature_of
from ._items import is_nested, starred_hint
from .constraints import Constraint, NamedAxes, OneOf, SameDtype

EMPTY = inspect.Parameter.empty
_FLOATS = frozenset(cast("tuple[str, ...]", cast(Any, Float).dtypes))
_COMPLEXES = frozenset(cast("tuple[str, ...]", cast(Any, Complex).dtypes))
#: Dtypes that torch has and jaxtyping's families leave out.
EXTRA_FLOATS = ("float8_e8m0fnu", "float4_e2m1fn_x2")
EXTRA_COMPLEXES = ("complex32",)
TORCH_DTYPES: Mapping[str, torch.dtype] = {
    repr(d).rpartition(".")[2]: d for d in vars(torch).values() if isinstance(d, torch.dtype)
}
#: Commonest first: membership in a tuple is found sooner, and Dynamo can trace it.
_COMMON = ("bfloat16", "float16", "float32", "int32", "int64", "bool", "uint8", "float64", "float8_e4m3fn")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TensorForm:
    """One jaxtyping hint.

    Attributes:
        array_type: Class of the array, or ``typing.Any``.
        dtype_class: The jaxtyping dtype class it was made from.
        dtypes: Names or patterns of the allowed dtypes; None allows all.
        dims: Axes in order.
        text: The shape string.
        variadic: Index of the variadic axis.
    """

    array_type: Any
    dtype_class: Any
    dtypes: tuple[str | re.Pattern[str], ...] | None
    dims: tuple[Dim, ...]
    text: str
    variadic: int | None = None

    def allows(self, dtype: str) -> bool:
        """Whether a dtype, by name, belongs to the hint."""
        return _allows(self.dtypes, dtype)

    def rank_fits(self, rank: int) -> bool:
        """Whether a tensor of this rank can fit."""
        return rank == len(self.dims) if self.variadic is None else rank >= len(self.dims) - 1

    def position(self, index: int, rank: int) -> int | slice | None:
        """Where an annotated axis lies in a tensor of this rank; None where it does not exist.

        The last axis is addressed from the end, and so are axes behind a variadic one; all others from the front.
        """
        variadic = self.variadic
        if variadic is not None and index == variadic:
            tail = len(self.dims) - 1 - variadic
            return slice(variadic, rank - tail) if rank >= len(self.dims) - 1 else None
        if index == len(self.dims) - 1 or (variadic is not None and index > variadic):
            place = rank - (len(self.dims) - index)
            return place if place >= 0 else None
        return index if index < rank else None

    def torch_dtypes(self) -> tuple[torch.dtype, ...]:
        """The torch dtypes among the allowed ones, commonest first."""
        return _torch_dtypes(self.dtypes)


@functools.lru_cache(maxsize=256)
def _torch_dtypes(dtypes: tuple[str | re.Pattern[str], ...] | None) -> tuple[torch.dtype, ...]:
    order = sorted(TORCH_DTYPES, key=lambda n: _COMMON.index(n) if n in _COMMON else len(_COMMON))
    return tuple(dict.fromkeys(TORCH_DTYPES[n] for n in order if _allows(dtypes, n)))


def _allows(dtypes: tuple[str | re.Pattern[str], ...] | None, dtype: str) -> bool:
    return dtypes is None or any(dtype == d if isinstance(d, str) else d.match(dtype) is not None for d in dtypes)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TensorSpec:
    """What an annotation says of one tensor: one form, or several of a union, and the constraints."""

    forms: tuple[TensorForm, ...]
    constraints: tuple[Constraint, ...] = ()

    @property
    def union(self) -> bool:
        """Whether the forms differ in their axes, so that the axes are one obligation and bind nothing."""
        return len({f.text for f in self.forms}) > 1

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Axes of a spec that is no union."""
        return self.forms[0].dims

    def dtypes(self) -> tuple[torch.dtype, ...] | None:
        """Allowed torch dtypes with ``OneOf`` taken in; None allows all."""
        limits = [set(c.dtypes) for c in self.constraints if isinstance(c, OneOf)]
        if not limits and any(f.dtypes is None for f in self.forms):
            return None
        allowed = dict.fromkeys(d for f in self.forms for d in f.torch_dtypes())
        return tuple(d for d in allowed if all(d in limit for limit in limits))

    def dtype_variables(self) -> tuple[str, ...]:
        """Names of the dtype variables that the tensor is under."""
        return tuple(c.variable for c in self.constraints if isinstance(c, SameDtype))

    def describe(self) -> str:
        """The forms as text: ``[slots, H, L, K]``, joined by ``or``."""
        return " or ".join(dict.fromkeys("[" + ", ".join(f.text.split()) + "]" for f in self.forms))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Parameter:
    """One parameter, or one annotated field of ``self``.

    Attributes:
        name: Parameter name, or ``self.field``.
        kind: Kind as ``inspect`` has it.
        default: Default value or ``EMPTY``.
        hint: The annotation, evaluated; ``EMPTY`` where there is none.
        tensor: Tensor part of the hint.
        other: Non-tensor part of the hint, None left out; ``EMPTY`` where there is none.
        optional: Whether None is allowed.
        extra: Hint that carries beartype validators written beside a tensor hint.
        nested: Whether the tensors are inside a container, so that a call has to be taken apart.
        repeated: Whether this stands for the items of a container.
    """

    name: str
    kind: Any
    default: Any
    hint: Any
    tensor: TensorSpec | None
    other: Any
    optional: bool
    extra: Any = EMPTY
    nested: bool = False
    repeated: bool = False

    @property
    def is_field(self) -> bool:
        """Whether this is a field of ``self`` and no parameter of its own."""
        return "." in self.name


def _form(hint: Any, owner: str) -> TensorForm:
    dtypes: Any = hint.dtypes
    if isinstance(dtypes, (tuple, list)):
        names = tuple(cast("tuple[Any, ...]", dtypes))
        if names and isinstance(names[0], str):
            names += EXTRA_FLOATS if _FLOATS.issubset(names) else ()
            names += EXTRA_COMPLEXES if _COMPLEXES.issubset(names) else ()
    else:
        names = None
    dims = parse_shape(hint.dim_str, owner)
    variadic = next((i for i, d in enumerate(dims) if d.variadic), None)
    return TensorForm(hint.array_type, hint.dtype, names, dims, hint.dim_str.strip(), variadic)


def _axis_label(dim: Dim) -> str:
    """What the axis is called where a program names its axes; ``_`` for any name, ``...`` for any number of axes."""
    if dim.variadic:
        return "..."
    if dim.kind is DimKind.NAMED:
        return dim.name
    return dim.text if dim.kind is DimKind.EXPRESSION else "_"


def is_torch_class(array_type: Any) -> bool:
    """Whether an array class is ``torch.Tensor`` or derived from it."""
    return isinstance(array_type, type) and issubclass(array_type, torch.Tensor)


def _is_validator(metadata: Any) -> bool:
    return type(metadata).__module__.startswith("beartype.vale")


def read_hint(name: str, hint: Any, owner: str, kind: Any = None, default: Any = EMPTY) -> Parameter:
    """Read one annotation.

    Args:
        name: Parameter name.
        hint: Its annotation, evaluated.
        owner: The function, for messages.
        kind: Parameter kind.
        default: Default value.

    Raises:
        ContractDefinitionError: The hint says what no tensor can meet.
    """
    label = f"{owner}: {name}"
    if hint is EMPTY:
        return Parameter(name, kind, default, hint, None, EMPTY, True)
    if is_nested(hint, label):
        absent = default is None or any(is_none(m) for m, _ in members(hint))
        return Parameter(name, kind, default, hint, None, EMPTY, absent, nested=True)
    forms: list[TensorForm] = []
    constraints: list[Constraint] = []
    validators: list[Any] = []
    others: list[Any] = []
    optional = default is None
    for member, metadata in members(hint):
        own = tuple(m for m in metadata if isinstance(m, Constraint))
        constraints += [c for c in own if c not in constraints]
        if is_none(member):
            optional = True
        elif is_tensor_hint(member):
            forms.append(_form(member, label))
            validators += [m for m in metadata if _is_validator(m)]
        else:
            foreign = tuple(m for m in metadata if not isinstance(m, Constraint))
            others.append(Annotated[(member, *foreign)] if foreign else member)
    if constraints and not forms:
        raise ContractDefinitionError(f"{label}: {constraints[0]!r} stands beside no tensor hint")
    foreign_arrays = [f.array_type for f in forms if not is_torch_class(f.array_type)]
    if constraints and foreign_arrays:
        raise ContractDefinitionError(
            f"{label}: {constraints[0]!r} looks at torch tensors; {foreign_arrays[0]!r} is another array class"
        )
    orders = tuple(tuple(_axis_label(d) for d in f.dims) for f in forms)
    settled = (NamedAxes(orders) if isinstance(c, NamedAxes) else c for c in constraints)
    tensor = TensorSpec(tuple(forms), tuple(settled)) if forms else None
    if tensor is not None and not foreign_arrays and tensor.dtypes() == ():
        what = repr(tensor.constraints) if constraints else "torch"
        raise ContractDefinitionError(f"{label}: {what} leaves no dtype that the hint allows")
    extra: Any = EMPTY
    if validators:
        array: Any = forms[0].array_type
        extra = Annotated[(array, *validators)]
    other: Any = Union[tuple(others)] if others else EMPTY  # noqa: UP007 - members are known at run time only
    if not forms and not others:
        other, optional = type(None), False
    return Parameter(name, kind, default, hint, tensor, other, optional, extra)


class UnresolvedHintError(ContractDefinitionError):
    """A string annotation names something that does not exist, or not yet."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Signature:
    """Parameters of a function in order, fields of ``self`` behind it, and the return annotation."""

    owner: str
    parameters: tuple[Parameter, ...]
    returns: Any

    def named(self) -> dict[str, Parameter]:
        """Name to parameter."""
        return {p.name: p for p in self.parameters}


def read_signature(
    function: Callable[..., Any], owner: str, local: Mapping[str, Any], fields: Mapping[str, Any] | None = None
) -> Signature:
    """Read the annotations of a function.

    Args:
        function: The undecorated function.
        owner: Its qualified name, for messages.
        local: Names visible where it is defined, for string annotations.
        fields: Annotated fields of the class of ``self``.

    Raises:
        ContractDefinitionError: A hint cannot be resolved or is wrong.
    """
    signature = signature_of(function)
    # Of a generic class, the names in its square brackets are known inside it.
    generic = (*local.get("__type_params__", ()), *getattr(function, "__type_params__", ()))
    scope = {**local, **closed_over(function), **{t.__name__: t for t in generic}}

    def resolve(name: str, hint: Any) -> Any:
        try:
            return evaluate_hint(hint, function.__globals__, scope)
        except Exception as bad:
            wrong = UnresolvedHintError if isinstance(bad, NameError) else ContractDefinitionError
            raise wrong(f"{owner}: the annotation of {name}, {hint!r}, fails: {bad!r}") from bad

    parameters: list[Parameter] = []
    names = list(signature.parameters)
    for name, parameter in signature.parameters.items():
        hint = resolve(name, parameter.annotation) if parameter.annotation is not EMPTY else EMPTY
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and hint is not EMPTY:
            hint = starred_hint(hint, parameter.kind is parameter.VAR_KEYWORD)
            parameters.append(Parameter(name, parameter.kind, EMPTY, hint, None, EMPTY, False, nested=True))
            continue
        parameters.append(read_hint(name, hint, owner, parameter.kind, parameter.default))
        if name == names[0] and fields:
            parameters += [read_hint(f"{name}.{f}", resolve(f, h), owner) for f, h in fields.items()]
    returns = resolve("the return value", signature.return_annotation)
    return Signature(owner, tuple(parameters), returns)


def array_dtype(array: Any) -> str:
    """Name of an array's dtype, as jaxtyping reads it: torch, NumPy and JAX alike."""
    dtype = array.dtype
    if isinstance(dtype, torch.dtype):
        return repr(dtype).rpartition(".")[2]
    if isinstance(dtype, str):
        return dtype
    kind = getattr(dtype, "type", None)
    name = getattr(kind, "__name__", None)
    if name == "void":
        return str(dtype)
    return name if name is not None else repr(dtype).rpartition(".")[2]
