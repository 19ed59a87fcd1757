"""Operators of torch made of contracted functions: schemas, what comes back, what is refused."""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float, Float32, Int, Int32, Int64, Shaped
from torch import Tensor

from tensorpact import (
    Contract,
    ContractDefinitionError,
    ContractViolation,
    DocumentedError,
    contract,
    enforcement,
    torch_op,
)
from tensorpact.clauses import let, require, same_dim
from tensorpact.constraints import OneOf, SameDtype

Register = Callable[..., Any]
X, W = torch.arange(12.0).reshape(3, 4), torch.ones(4)


@pytest.fixture
def register() -> Iterator[Register]:
    """Registers an operator that is gone after the test."""
    made: list[Any] = []

    def registering(name: str, *args: Any, **kwargs: Any) -> Any:
        made.append(torch_op(f"tensorpact_test::{name}", *args, **kwargs))
        return made[-1]

    yield registering
    for op in made:
        op.unregister()


def schema_of(register: Register, function: Any, **settings: Any) -> str:
    op = register("f", function, **settings)
    return op.schema.removeprefix("tensorpact_test::f")


HINTS: list[tuple[str, Any, str]] = [
    ("tensor", Float[Tensor, " n"], "Tensor"),
    ("any tensor", Tensor, "Tensor"),
    ("annotated tensor", Annotated[Float[Tensor, " n"], OneOf(torch.float16)], "Tensor"),
    ("optional tensor", Float[Tensor, " n"] | None, "Tensor?"),
    ("tensor of either shape", Float[Tensor, "n m"] | Float[Tensor, " n"], "Tensor"),
    ("tensors", list[Float[Tensor, " n"]], "Tensor[]"),
    ("tensors in a tuple", tuple[Float[Tensor, " n"], ...], "Tensor[]"),
    ("optional tensors", Sequence[Float[Tensor, " n"] | None], "Tensor?[]"),
    ("no tensors or some", list[Float[Tensor, " n"]] | None, "Tensor[]?"),
    ("int", int, "SymInt"),
    ("optional int", int | None, "SymInt?"),
    ("float", float, "float"),
    ("optional float", float | None, "float?"),
    ("bool", bool, "bool"),
    ("str", str, "str"),
    ("optional str", str | None, "str?"),
    ("either number", int | float, "Scalar"),
    ("optional number", float | int | None, "Scalar?"),
    ("complex", complex, "Scalar"),
    ("dtype", torch.dtype, "ScalarType"),
    ("optional dtype", torch.dtype | None, "ScalarType?"),
    ("device", torch.device, "Device"),
    ("device by name", torch.device | str, "Device"),
    ("layout", torch.layout, "Layout"),
    ("memory format", torch.memory_format | None, "MemoryFormat?"),
    ("ints", list[int], "SymInt[]"),
    ("ints in a sequence", Sequence[int] | None, "SymInt[]?"),
    ("ints in a tuple", tuple[int, ...], "SymInt[]"),
    ("two ints", tuple[int, int], "SymInt[2]"),
    ("size", torch.Size, "SymInt[]"),
    ("floats", list[float], "float[]"),
    ("bools", tuple[bool, ...], "bool[]"),
    ("texts", list[str], "str[]"),
    ("literal text", Literal["neox", "gptj"], "str"),
    ("literal number", Literal[1, 2], "int"),
    ("optional literal", Literal["a"] | None, "str?"),
]


@pytest.mark.parametrize(("hint", "text"), [h[1:] for h in HINTS], ids=[h[0] for h in HINTS])
def test_the_schema_type_of_a_hint(register: Register, hint: Any, text: str):
    def f(x: Shaped[Tensor, "*any"], value: Any) -> None: ...

    f.__annotations__["value"] = hint
    assert schema_of(register, contract(f)) == f"(Tensor x, {text} value) -> ()"


DEFAULTS: list[tuple[str, Any, Any, str]] = [
    ("none", int | None, None, "SymInt? value=None"),
    ("none that the hint does not name", int, None, "SymInt? value=None"),
    ("int", int, -3, "SymInt value=-3"),
    ("the smallest int", int, -(2**63), f"SymInt value={-(2**63)}"),
    ("float", float, 1e-06, "float value=1e-06"),
    ("bool", bool, True, "bool value=True"),
    ("str", str, "two words", 'str value="two words"'),
    ("dtype", torch.dtype, torch.bfloat16, "ScalarType value=bfloat16"),
    ("device", torch.device, torch.device("cuda:1"), 'Device value="cuda:1"'),
    ("layout", torch.layout, torch.strided, "Layout value=strided"),
    ("ints", tuple[int, ...], (1, 2), "SymInt[] value=[1, 2]"),
]


@pytest.mark.parametrize(("hint", "value", "text"), [d[1:] for d in DEFAULTS], ids=[d[0] for d in DEFAULTS])
def test_the_default_of_a_parameter(register: Register, hint: Any, value: Any, text: str):
    seen: list[Any] = []

    def f(x: Shaped[Tensor, "*any"], *, value: Any = value) -> None:
        seen.append(value)

    f.__annotations__["value"] = hint
    op = register("f", contract(f))
    assert op.schema == f"tensorpact_test::f(Tensor x, *, {text}) -> ()"
    op(X)
    op.overload(X)
    assert seen == [value, value]
    assert type(seen[1]) is type(value)


def test_a_float_may_have_an_int_of_many_digits_as_its_default(register: Register):
    def f(x: Shaped[Tensor, "*any"], y: float = 10**20) -> None: ...

    op = register("f", contract(f))
    op(X)
    assert op.overload._schema.arguments[1].default_value == 1e20


def test_parameters_of_every_kind_keep_their_place(register: Register):
    @contract
    def f(
        x: Float[Tensor, "n m"], /, scale: float, y: Float[Tensor, " n"] | None = None, *, flag: bool, more: int = 2
    ) -> Float32[Tensor, "m n"]:
        return x.new_full((x.shape[1], x.shape[0]), scale + more + flag)

    op = register("f", f)
    text = "(Tensor x, float scale, Tensor? y=None, *, bool flag, SymInt more=2) -> Tensor"
    assert op.schema == f"tensorpact_test::f{text}"
    assert op(X, scale=1, flag=True).flatten()[0] == 4
    assert op.overload(X, 1.0, flag=False, more=5).shape == (4, 3)


def test_what_the_dispatcher_hands_over_becomes_what_the_hint_says(register: Register):
    seen: list[Any] = []

    @contract
    def f(
        x: Float[Tensor, "..."],
        pair: tuple[int, int],
        size: torch.Size,
        many: tuple[float, ...] | None,
        tensors: tuple[Float[Tensor, "..."], ...],
    ) -> None:
        seen.append((pair, size, many, type(tensors)))

    op = register("f", f)
    op(X, (1, 2), torch.Size([3]), (0.5,), (X, W))
    op(X, (1, 2), torch.Size([3]), None, ())
    assert seen[0] == ((1, 2), torch.Size([3]), (0.5,), tuple)
    assert seen[1] == ((1, 2), torch.Size([3]), None, tuple)
    assert type(seen[0][1]) is torch.Size


def test_numbers_of_numpy_pass(register: Register):
    @contract
    def f(x: Float[Tensor, "n m"], times: int, scale: float) -> Float32[Tensor, "n m"]:
        return x * (times * scale)

    op = register("f", f)
    assert op(X, np.int64(2), np.float32(0.5)).equal(X)


def test_what_is_written_is_in_the_schema_and_is_written(register: Register):
    @contract(Contract("f", mutates=("out", "spare")))
    def f(x: Float[Tensor, "n m"], out: Float[Tensor, " n"], spare: Float[Tensor, " m"] | None = None) -> None:
        out.copy_(x.sum(1))
        if spare is not None:
            spare.copy_(x.sum(0))

    op = register("f", f)
    assert op.schema == "tensorpact_test::f(Tensor x, Tensor(a!) out, Tensor(b!)? spare=None) -> ()"
    storage = torch.full((9,), torch.nan)
    out, spare = storage[:3], storage[3:7]
    assert op(X, out) is None
    assert spare.isnan().all()
    assert op(X, out, spare) is None
    assert (out.tolist(), spare.tolist()) == ([6, 22, 38], [12, 15, 18, 21])
    with pytest.raises(ContractViolation, match="spare: is written and shares memory with out"):
        op(X, out, storage[2:6])


class Pair(NamedTuple):
    rows: Float32[Tensor, "n m"]
    sums: Float32[Tensor, " n"]


def _pair(x: Float[Tensor, "n m"]) -> Pair:
    return Pair(x + 1, x.sum(1))


def _tuple(x: Float[Tensor, "n m"]) -> tuple[Float32[Tensor, "n m"], Float32[Tensor, " n"]]:
    return x + 1, x.sum(1)


def _single(x: Float[Tensor, "n m"]) -> tuple[Float32[Tensor, "n m"]]:
    return (x + 1,)


def _nothing(x: Float[Tensor, "n m"]) -> None:
    return None


@pytest.mark.parametrize(
    ("function", "text"),
    [(_pair, "(Tensor, Tensor)"), (_tuple, "(Tensor, Tensor)"), (_single, "Tensor"), (_nothing, "()")],
)
def test_what_comes_back_is_what_the_annotation_says(register: Register, function: Any, text: str):
    op = register("f", contract(function))
    assert op.schema == f"tensorpact_test::f(Tensor x) -> {text}"
    result, expected = op(X), function(X)
    assert type(result) is type(expected)
    if expected is not None:
        assert all(a.equal(b) for a, b in zip(result, expected, strict=True))


def test_arguments_are_handed_back_outside_of_the_operator(register: Register):
    @contract(Contract("f", mutates=("out", "state")))
    def f(
        x: Float[Tensor, "n m"], out: Float[Tensor, "n m"], state: Float[Tensor, " m"]
    ) -> tuple[Float[Tensor, "n m"], Float32[Tensor, " n"], Float[Tensor, " m"]]:
        state += 1
        out.copy_(x + state)
        return out, out.sum(1), state

    op = register("f", f, returns=("out", None, "state"))
    assert op.schema == "tensorpact_test::f(Tensor x, Tensor(a!) out, Tensor(b!) state) -> Tensor"
    out, state = torch.full_like(X, torch.nan), W.clone()
    first, sums, last = op(X, out, state)
    assert first is out
    assert last is state
    assert sums.tolist() == [14, 30, 46]


def test_one_argument_is_handed_back(register: Register):
    @contract(Contract("f", mutates=("x",)))
    def f(x: Float[Tensor, "n m"], wrong: bool = False) -> Float[Tensor, "n m"]:
        x += 1
        return x.clone() if wrong else x

    op = register("f", f, returns="x")
    assert op.schema == "tensorpact_test::f(Tensor(a!) x, bool wrong=False) -> ()"
    x = X.clone()
    assert op(x) is x
    assert x.equal(X + 1)
    with pytest.raises(ContractDefinitionError) as error:
        op(x, wrong=True)
    assert str(error.value) == (
        "tensorpact_test::f: the function is registered to return its argument x, and returned another object"
    )


def test_forms_of_a_union_are_told_by_a_rule(register: Register):
    @contract
    def f(
        x: Float[Tensor, "n m"], *, more: bool = False, none: bool = False
    ) -> Float32[Tensor, "n m"] | tuple[Float32[Tensor, "n m"], Float32[Tensor, " n"]] | None:
        if none:
            return None
        return (x + 1, x.sum(1)) if more else x + 1

    op = register("f", f, form=lambda more, none: 2 if none else more)
    assert op.schema.endswith(" -> Tensor[]")
    assert op(X).equal(X + 1)
    rows, sums = op(X, more=True)
    assert (rows.equal(X + 1), sums.tolist()) == (True, [6, 22, 38])
    assert op(X, none=True) is None
    meta = X.to("meta")
    assert op.overload(meta, none=True) == []
    assert [t.shape for t in op.overload(meta, more=True)] == [(3, 4), (3,)]


# Fake kernels, seen by tensors of the device meta.


def fake(op: Any, *args: Any, **kwargs: Any) -> Any:
    moved = [a.to("meta") if isinstance(a, Tensor) else a for a in args]
    return op.overload(*moved, **kwargs)


def test_sizes_of_a_fake_result(register: Register):
    @contract(Contract("f", clauses=[let(half=lambda m: m // 2)], tied=("n",)))
    def f(
        x: Float[Tensor, "*batch n m"], cu: Int[Tensor, " B+1"], wide: Float[Tensor, "m k*3"], n: int, times: int
    ) -> tuple[
        Float32[Tensor, "*batch half k"],
        Float32[Tensor, "B n*m 2"],
        Float32[Tensor, "{times}*m max(n,k)"],
    ]:
        raise NotImplementedError

    op = register("f", f)
    x, cu, wide = torch.zeros(2, 7, 3, 4), torch.zeros(6, dtype=torch.int64), torch.zeros(4, 15)
    assert [tuple(t.shape) for t in fake(op, x, cu, wide, 3, 8)] == [(2, 7, 2, 5), (5, 12, 2), (32, 5)]


def test_dtypes_of_a_fake_result(register: Register):
    @contract
    def f(
        q: Float[Tensor, "n m"], k: Annotated[Float[Tensor, " m"], SameDtype("T")], i: Int[Tensor, " n"]
    ) -> tuple[
        Annotated[Float[Tensor, " n"], SameDtype("T")],
        Bool[Tensor, " n"],
        Annotated[Float[Tensor, " n"], OneOf(torch.float16)],
        Float[Tensor, " n"],
        Int[Tensor, " n"],
        Float[Tensor, "n m"],
    ]:
        raise NotImplementedError

    op = register("f", f, dtypes=(None, None, None, torch.float64, "i"), like=(None, None, None, None, None, "q"))
    results = fake(op, torch.zeros(4, 3, dtype=torch.bfloat16).T, W, torch.zeros(3, dtype=torch.int16))
    assert [t.dtype for t in results] == [
        torch.float32, torch.bool, torch.float16, torch.float64, torch.int16, torch.bfloat16
    ]  # fmt: skip
    assert [t.stride() for t in results] == [(1,)] * 5 + [(1, 3)]


def test_a_fake_result_is_on_the_device_of_the_argument_that_is_named(register: Register):
    @contract
    def f(offsets: Int64[Tensor, " n"], x: Float[Tensor, "n m"]) -> Float32[Tensor, "n m"]:
        raise NotImplementedError

    op = register("f", f, device="x")
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.zeros(3, 4, device="cuda")
        assert op.overload(torch.zeros(3, dtype=torch.int64), x).device.type == "cuda"


def test_a_fake_kernel_of_the_author(register: Register):
    @contract
    def f(x: Float[Tensor, "n m"], most: int) -> tuple[Float[Tensor, "k m"], int]:
        return x[:most].clone(), most

    op = register("f", f, fake=lambda x, most: (x.new_empty((most, x.shape[1])), most))
    assert op.schema == "tensorpact_test::f(Tensor x, SymInt most) -> (Tensor, SymInt)"
    rows, count = fake(op, X, 2)
    assert (rows.shape, count) == ((2, 4), 2)
    assert op(X, 2)[0].equal(X[:2])


# What is refused.

WRONG: list[tuple[str, Any, dict[str, Any], str]] = []


def wrong(text: str, **settings: Any) -> Callable[[Any], Any]:
    def note(function: Any) -> Any:
        WRONG.append((function.__name__, function, settings, text))
        return function

    return note


@wrong("x: a schema has no form for dict; name one in types={'x': …}")
def mapping(x: dict[str, int]) -> None: ...


@wrong("x: a schema has no form for an annotation that says nothing; name one in types={'x': …}")
def silent(x: object) -> None: ...


@wrong("x: a schema has no form for one of Tensor, float; name one in types={'x': …}")
def either(x: Float[Tensor, " n"] | float) -> None: ...


@wrong("x: a schema has no form for lists of SymInt[]; name one in types={'x': …}")
def nested(x: list[list[int]]) -> None: ...


@wrong("x: a starred parameter has no form in a schema")
def starred(*x: int) -> None: ...


@wrong("x: the default inf has no form in a schema")
def infinite(x: float = float("inf")) -> None: ...


@wrong(f"x: the default {10**20} has no form in a schema")
def enormous(x: int = 10**20) -> None: ...


@wrong(f"x: the default {-(10**20)} has no form in a schema")
def enormous_below(x: int | float = -(10**20)) -> None: ...


@wrong(f"x: the default {10**20} has no form in a schema")
def enormous_inside(x: list[int] = [1, 10**20]) -> None: ...  # noqa: B006 - nothing calls it


@wrong("the return value has no annotation")
def unsaid(x: Float[Tensor, " n"]): ...


@wrong("a schema has no form for dict[str, int] in the return annotation")
def returns_mapping(x: Float[Tensor, " n"]) -> dict[str, int]: ...


@wrong("a schema has no form for", returns=None)
def returns_either(x: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"] | None, int]: ...


@wrong(
    "returned value 0: its annotation allows several dtypes; annotate one, or SameDtype(…) with an argument, or name "
    "an argument or a dtype in dtypes=(…)"
)
def open_dtype(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]: ...


@wrong("returned value 0: torch.int64 is no dtype of its annotation", dtypes=torch.int64)
def wrong_dtype(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]: ...


@wrong("dtypes: 'y' is no parameter that is always a tensor", dtypes="y")
def absent_dtype(x: Float[Tensor, " n"], y: Float[Tensor, " n"] | None) -> Float[Tensor, " n"]: ...


@wrong("returned value 0: no argument that is always a tensor gives 'k' of axis 'k'; give fake=…")
def unknown_size(x: Float[Tensor, " n"]) -> Float32[Tensor, " k"]: ...


@wrong("returned value 0: no argument that is always a tensor gives 'k' of axis 'n*k'; give fake=…")
def optional_size(x: Float[Tensor, " n"], y: Float[Tensor, " k"] | None) -> Float32[Tensor, " n*k"]: ...


@wrong("returned value 0: no argument that is always a tensor gives 'k' of axis 'k'; give fake=…")
def halved_size(x: Float[Tensor, " k//2"]) -> Float32[Tensor, " k"]: ...


@wrong("returned value 0: axis '_' has no size of its own; give fake=…")
def anonymous(x: Float[Tensor, " n"]) -> Float32[Tensor, "_ n"]: ...


@wrong("returned value 0: axis '...' has no size of its own; give fake=…")
def anything(x: Float[Tensor, " n"]) -> Float32[Tensor, "..."]: ...


@wrong("returned value 0: no parameter is always a tensor, so that nothing says the device; give fake=…")
def no_device(x: int) -> Float32[Tensor, "3"]: ...


@wrong("returned value 0: like 'y', which is not annotated [n] itself", like="y")
def unlike(x: Float[Tensor, " n"], y: Float[Tensor, "n m"]) -> Float[Tensor, " n"]: ...


@wrong("the fake kernel cannot tell what a returned SymInt is; give fake=…")
def returns_int(x: Float[Tensor, " n"]) -> int: ...


@wrong("the fake kernel cannot tell what a returned Tensor[] is; give fake=…")
def returns_list(x: Float[Tensor, " n"]) -> list[Float32[Tensor, " n"]]: ...


@wrong("the return annotation has several forms; say which one a call gives with form=…")
def several(x: Float[Tensor, " n"]) -> Float32[Tensor, " n"] | None: ...


@wrong("form reads 'y', which is no parameter", form=lambda y: y)
def misspelt_form(x: Float[Tensor, " n"]) -> Float32[Tensor, " n"] | None: ...


@wrong("forms of the return annotation must differ in their number of tensors, and hold nothing else")
def same_count(x: Float[Tensor, " n"]) -> Float32[Tensor, " n"] | tuple[Float32[Tensor, " n"]]: ...


@wrong("returns: 'z' is no parameter that is always a tensor", returns="z")
def returns_nobody(x: Float[Tensor, " n"]) -> Float32[Tensor, " n"]: ...


@wrong("returns names 2 values; the return annotation has another number, or several forms", returns=("x", None))
def returns_too_many(x: Float[Tensor, " n"]) -> Float32[Tensor, " n"]: ...


@wrong("types: 'z' is no parameter", types={"z": int})
def types_of_nobody(x: Float[Tensor, " n"]) -> None: ...


@wrong("without: 'z' is no parameter", without=("z",))
def without_nobody(x: Float[Tensor, " n"]) -> None: ...


@wrong("x: a parameter without a default cannot be left out", without=("x",))
def without_default(x: Float[Tensor, " n"]) -> None: ...


@wrong("y: types gives a type to a parameter that is left out", without=("y",), types={"y": "int"})
def without_but_typed(x: Float[Tensor, " n"], y: object = None) -> None: ...


@wrong("convert: 'z' is no parameter of the operator", convert={"z": lambda x: x})
def converts_nobody(x: Float[Tensor, " n"]) -> None: ...


@wrong("convert: 'y' is no parameter of the operator", without=("y",), convert={"y": lambda y: y})
def converts_what_is_left_out(x: Float[Tensor, " n"], y: int = 0) -> None: ...


@wrong("x: convert reads 'z', which is no parameter", convert={"x": lambda z: z})
def converts_by_nobody(x: Float[Tensor, " n"]) -> None: ...


@wrong("an operator is no coroutine")
async def awaited(x: Float[Tensor, " n"]) -> None: ...


@wrong("torch refuses", types={"x": "Tensr"})
def misspelt_type(x: Float[Tensor, " n"]) -> None: ...


@pytest.mark.parametrize(("function", "settings", "text"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_what_cannot_be_an_operator_is_refused_where_it_is_registered(function: Any, settings: Any, text: str):
    with pytest.raises(ContractDefinitionError) as error:
        torch_op("tensorpact_test::wrong", contract(function), **settings)
    assert text in str(error.value)
    assert str(error.value).startswith(f"{function.__module__}.{function.__qualname__}: ")
    assert not hasattr(torch.ops.tensorpact_test, "wrong")


def test_a_type_takes_the_place_of_a_silent_annotation(register: Register):
    @contract
    def f(x: Float[Tensor, " n"], host: object = None, other: object = None) -> Float32[Tensor, " n"]:
        return x * len(host or ())  # type: ignore[arg-type]

    op = register("f", f, types={"host": Sequence[int] | None, "other": "Scalar?"})
    assert op.schema == "tensorpact_test::f(Tensor x, SymInt[]? host=None, Scalar? other=None) -> Tensor"
    assert op(W, (1, 2)).tolist() == [2.0] * 4


def test_what_no_schema_can_say_is_left_out_and_kept_at_its_default(register: Register):
    seen: list[Any] = []

    @contract(
        Contract(
            "f",
            mutates=("x", "out"),
            clauses=[require(lambda ver: ver in (3, 4), error=SCALE, about="ver")],
        )
    )
    def f(
        x: Float[Tensor, "n m"],
        score: Callable[..., Any] | None = None,
        scale: float = 2.0,
        ver: int = 3,
        *,
        out: Float32[Tensor, "n m"] | None = None,
    ) -> Float32[Tensor, "n m"]:
        seen.append((score, ver, out))
        return x.mul_(scale).clone()

    op = register("f", f, without=("score", "ver", "out"))
    assert op.schema == "tensorpact_test::f(Tensor(a!) x, float scale=2.0) -> Tensor"
    torch.library.opcheck(op.overload, (X.clone(), 3.0))
    seen.clear()
    x = X.clone()
    # The fourth by place is one that the operator lacks.
    assert op(x, None, 3.0, 3).equal(X * 3)
    assert x.equal(X * 3)
    assert op(x=X.clone()).equal(X * 2)
    assert seen == [(None, 3, None)] * 2
    for given, text in [({"score": max}, "score: leave it None"), ({"ver": 4}, "ver: leave it 3")]:
        for mode in ("compiled", "off"):
            with enforcement(mode), pytest.raises(TypeError, match=f"^tensorpact_test::f has no {text}, as"):
                op(x, **given)
    with pytest.raises(TypeError, match=r"^tensorpact_test::f has no out: leave it None, as the operator does$"):
        op(x, out=torch.empty(3, 4))
    with pytest.raises(ContractViolation, match=r"^scale must be positive, got 2\.0"):
        op(x, ver=5)
    assert x.equal(X * 3)
    assert len(seen) == 2


def test_what_is_written_and_left_out_leaves_a_list_of_tensors(register: Register):
    @contract(Contract("f", mutates=("out",)))
    def f(
        x: Float32[Tensor, " n"], both: bool = False, out: Float32[Tensor, " n"] | None = None
    ) -> Float32[Tensor, " n"] | tuple[Float32[Tensor, " n"], Float32[Tensor, " n"]]:
        return (x + 1, x + 2) if both else x + 1

    op = register("f", f, form="both", without=("out",))
    assert op.schema == "tensorpact_test::f(Tensor x, bool both=False) -> Tensor[]"
    assert op(W, True)[1].equal(W + 2)


def test_what_fills_up_a_form_is_made_of_what_is_always_written(register: Register):
    @contract(Contract("f", mutates=("k", "v")))
    def f(
        k: Float[Tensor, " n"] | None, v: Float[Tensor, " n"], both: bool = False
    ) -> Float32[Tensor, " n"] | tuple[Float32[Tensor, " n"], Float32[Tensor, " n"]]:
        return (v + 1.0, v + 2.0) if both else v + 1.0

    op = register("f", f, form="both")
    assert op.schema == "tensorpact_test::f(Tensor(a!)? k, Tensor(b!) v, bool both=False) -> (Tensor, Tensor)"
    for device in ("cpu", "meta"):
        first, second = op.overload(None, torch.ones(4, device=device))
        assert (first.shape, second.shape, second.device) == ((4,), (0,), first.device)


def test_an_argument_is_converted_behind_the_contract(register: Register):
    seen: list[Any] = []

    missing = DocumentedError("rate", ValueError, "a rate is needed by {by}")

    @contract(Contract("f", clauses=[require(lambda rate: rate is not None, error=missing, about="rate")]))
    def f(
        x: Float32[Tensor, " n"], rate: Float32[Tensor, " n"] | float | None, by: float = 1.0
    ) -> Float32[Tensor, " n"]:
        seen.append((rate, by))
        return x * rate * by

    rules = {
        "rate": lambda rate, x, by: rate if isinstance(rate, Tensor) else x.new_full(x.shape, rate * by),
        "by": lambda rate, by: by if isinstance(rate, Tensor) else 1.0,
    }
    op = register("f", f, types={"rate": "Tensor?"}, convert=rules, dtypes="x")
    assert op.schema == "tensorpact_test::f(Tensor x, Tensor? rate, float by=1.0) -> Tensor"
    assert op(W, 3.0, 2.0).equal(W * 6)
    assert op(W, W * 3, 2.0).equal(W * 6)
    # Each rule reads what the caller gave, and not what another made of it.
    assert [(rate.tolist(), by) for rate, by in seen] == [([6.0] * 4, 1.0), ([3.0] * 4, 2.0)]
    with pytest.raises(ContractViolation, match=r"^a rate is needed by 1\.0"):
        op(W, None)
    compiled = torch.compile(lambda x: op(x, 3.0, 2.0), backend="aot_eager", fullgraph=True)
    assert compiled(W).equal(W * 6)


def test_what_is_written_is_not_converted():
    @contract(Contract("f", mutates=("x",)))
    def f(x: Float[Tensor, " n"]) -> None: ...

    with pytest.raises(ContractDefinitionError, match="x: convert would hand over another tensor than the one that is"):
        torch_op("tensorpact_test::wrong", f, convert={"x": lambda x: x.contiguous()})


# Names and lifetime.


@contract
def double(x: Float[Tensor, "n m"]) -> Float32[Tensor, "n m"]:
    return x * 2


def test_a_name_is_registered_once(register: Register):
    register("f", double)
    with pytest.raises(ContractDefinitionError) as error:
        torch_op("tensorpact_test::f", double)
    assert str(error.value) == f"tensorpact_test::f is registered already, for {__name__}.double"
    with pytest.raises(ContractDefinitionError, match="aten::add is registered already, and not by tensorpact"):
        torch_op("aten::add", double)
    with pytest.raises(ContractDefinitionError, match="an operator is named 'namespace::name', not 'double'"):
        torch_op("double", double)


def test_what_is_unregistered_is_gone_and_its_name_is_free(register: Register):
    first = register("f", double)
    first.unregister()
    first.unregister()
    assert not hasattr(torch.ops.tensorpact_test, "f")
    with pytest.raises(RuntimeError, match="tensorpact_test::f is no longer registered"):
        first(X)
    second = register("f", double)
    first.unregister()
    assert second(X).equal(X * 2)
    assert torch.ops.tensorpact_test.f(X).equal(X * 2)


def test_a_function_without_a_contract_and_the_decorator_form(register: Register):
    @torch_op("tensorpact_test::plain", dtypes="x")
    def plain(x: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """What it does."""
        return x * 3

    try:
        assert (plain.__name__, plain.__doc__) == ("plain", "What it does.")
        assert plain(X).equal(X * 3)
        with pytest.raises(ContractViolation):
            plain(W)
    finally:
        plain.unregister()


@pytest.mark.parametrize(
    "settings", [{"backward": lambda ctx, grad: None}, {"devices": ("abacus",)}], ids=["backward", "device"]
)
def test_what_torch_refuses_leaves_nothing_behind(register: Register, settings: Any):
    @contract(Contract("f", mutates=("x",)))
    def f(x: Float[Tensor, "n m"]) -> None: ...

    with pytest.raises(ContractDefinitionError, match="torch refuses tensorpact_test::f: "):
        torch_op("tensorpact_test::f", f, **settings)
    assert not hasattr(torch.ops.tensorpact_test, "f")
    register("f", f)


# The contract, in front of the operator.

WIDTH = DocumentedError("width", RuntimeError, "width mismatch: x={x.size(-1)}, w={w.size(-1)}")
SCALE = DocumentedError("scale", ValueError, "scale must be positive, got {scale}")


@contract(
    Contract(
        "scaled",
        clauses=[same_dim("m", "x", "w", error=WIDTH), require(lambda scale: scale > 0, error=SCALE, about="scale")],
    )
)
def scaled(x: Float[Tensor, "n m"], w: Float[Tensor, " m"], scale: float = 1.0) -> Float32[Tensor, "n m"]:
    return x * w * scale


@pytest.mark.parametrize("mode", ["compiled", "beartype"])
def test_documented_errors_are_raised_before_the_operator(register: Register, mode: Any):
    op = register("f", scaled)
    with enforcement(mode):
        assert op(X, W, 2).equal(X * 2)
        for arguments in [(X, torch.ones(5)), (X, W, 0.0), (X[0], W)]:
            with pytest.raises(ContractViolation) as plain:
                scaled(*arguments)
            with pytest.raises(ContractViolation) as error:
                op(*arguments)
            assert (type(error.value), str(error.value)) == (type(plain.value), str(plain.value))
            assert error.value.error is plain.value.error


def test_the_operator_itself_checks_nothing(register: Register):
    op = register("f", scaled)
    assert op.overload(X, W, -1.0).equal(-X)
    with enforcement("off"):
        assert op(X, W, -1.0).equal(-X)


def test_a_body_that_asks_for_dims_sees_those_of_its_call(register: Register):
    @contract
    def f(x: Float[Tensor, "n m"], y: Float[Tensor, "..."]) -> Float32[Tensor, "n m"]:
        return x + isinstance(y, Float[Tensor, "m n"])

    op = register("f", f)
    assert op(X, X.T).equal(X + 1)
    assert op(X, X).equal(X)


def test_under_off_the_operator_is_called_straight(register: Register, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tensorpact._decorator.disabled", True)

    @contract(Contract("f", mutates=("out",)))
    def f(x: Float[Tensor, "n m"], out: Float[Tensor, "n m"]) -> Float32[Tensor, "n m"]:
        out.copy_(x)
        return x * 2

    op = register("f", f)
    assert op.schema == "tensorpact_test::f(Tensor x, Tensor(a!) out) -> Tensor"
    assert not hasattr(op, "__tensorpact__")
    out = torch.zeros(3, 4)
    assert op(torch.ones(1, 4), out).shape == (1, 4)
    assert out.sum() == 12


def test_parameters_may_have_names_of_builtins(register: Register):
    @contract
    def f(
        len: list[Float[Tensor, " m"]],  # noqa: A002
        any: bool,  # noqa: A002
        list: Float[Tensor, "n m"],  # noqa: A002
    ) -> Float32[Tensor, "n m"] | tuple[Float32[Tensor, "n m"], Float32[Tensor, "n m"]]:
        return (list + len[0], list.clone()) if any else list + len[0]

    op = register("f", f, form="any")
    assert op([W], False, X).equal(X + 1)
    assert [t.sum() for t in op([W], True, X)] == [78, 66]


# Gradients and devices.


def test_a_gradient_that_nobody_could_give_is_refused(register: Register):
    @contract
    def f(
        x: Float[Tensor, "n m"], i: Int32[Tensor, " n"], w: Float[Tensor, " m"] | None, more: list[Float[Tensor, " m"]]
    ) -> Float32[Tensor, "n m"]:
        return x * 2

    op = register("f", f)
    i, learnt = torch.zeros(3, dtype=torch.int32), W.clone().requires_grad_()
    for arguments in [(X.clone().requires_grad_(), i, None, []), (X, i, learnt, []), (X, i, None, [W, learnt])]:
        with pytest.raises(RuntimeError) as error:
            op(*arguments)
        assert str(error.value) == (
            "tensorpact_test::f has no backward, and an argument requires a gradient: call it under torch.no_grad(), "
            "or register it with backward=…"
        )
        with torch.no_grad():
            assert op(*arguments).requires_grad is False
    assert op(X, i, W, [W]).requires_grad is False


def test_an_operator_with_a_backward(register: Register):
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.scale = inputs[2]

    op = register("f", scaled, backward=lambda ctx, grad: (grad * ctx.scale, None, None), setup_context=setup)
    x = X.clone().requires_grad_()
    op(x, W, 3.0).sum().backward()
    assert x.grad is not None
    assert x.grad.equal(torch.full_like(X, 3))


def test_an_operator_for_some_devices(register: Register):
    op = register("f", double, devices=("cuda",))
    with pytest.raises(NotImplementedError, match="CPU"):
        op(X)
    op.unregister()
    assert register("f", double, devices=("cpu", "cuda"))(X).equal(X * 2)
