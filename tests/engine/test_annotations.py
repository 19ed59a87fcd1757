"""A signature read: forms, positions of axes, dtype families, what is left to beartype."""

from typing import Annotated, Any, NewType, Optional, TypeVar, Union

import jaxtyping
import numpy as np
import pytest
import torch
from beartype.vale import Is
from jaxtyping import Complex, Float, Float32, Inexact, Int, Num, Shaped
from torch import Tensor

from tensorpact import contract
from tensorpact._annotations import EMPTY, array_dtype, read_hint
from tensorpact._entry import entry_of
from tensorpact.constraints import DenseLast, OneOf


def read(hint: Any) -> Any:
    return read_hint("x", hint, "f")


@pytest.mark.parametrize(
    ("text", "rank", "places"),
    [
        ("B H K", 3, [0, 1, 2]),
        ("B H K", 2, [0, 1, 1]),
        ("B H K", 1, [0, None, 0]),
        ("B H K", 0, [None, None, None]),
        ("B H K", 5, [0, 1, 4]),
        ("K", 3, [2]),
        ("B *v K", 2, [0, slice(1, 1), 1]),
        ("B *v K", 4, [0, slice(1, 3), 3]),
        ("B *v K", 1, [0, None, 0]),
        ("*v H K", 4, [slice(0, 2), 2, 3]),
        ("*v H K", 1, [None, None, 0]),
        ("... K", 3, [slice(0, 2), 2]),
        ("B ...", 3, [0, slice(1, 3)]),
    ],
)
def test_position(text: str, rank: int, places: list[Any]) -> None:
    form = read(Float[Tensor, text]).tensor.forms[0]
    assert [form.position(i, rank) for i in range(len(form.dims))] == places


@pytest.mark.parametrize(
    ("hint", "optional", "forms", "other"),
    [
        (Float[Tensor, " n"], False, ["n"], EMPTY),
        (Float[Tensor, " n"] | None, True, ["n"], EMPTY),
        (Optional[Float[Tensor, " n"]], True, ["n"], EMPTY),  # noqa: UP045
        (Annotated[Float[Tensor, " n"] | None, DenseLast()], True, ["n"], EMPTY),
        (Annotated[Float[Tensor, " n"], DenseLast()] | None, True, ["n"], EMPTY),
        (Float[Tensor, " n"] | Int[Tensor, "n m"], False, ["n", "n m"], EMPTY),
        (Float[Tensor, " n"] | int, False, ["n"], int),
        (Union[Float[Tensor, " n"], int, None], True, ["n"], int),  # noqa: UP007
        (int | None, True, None, int),
        (int, False, None, int),
        (Tensor, False, None, Tensor),
    ],
    ids=str,
)
def test_hint(hint: Any, optional: bool, forms: list[str] | None, other: Any) -> None:
    parameter = read(hint)
    assert parameter.optional is optional
    assert (None if parameter.tensor is None else [f.text for f in parameter.tensor.forms]) == forms
    assert parameter.other == other


def test_metadata_is_split() -> None:
    parameter = read(Annotated[Float[Tensor, " n"], DenseLast(), "prose", OneOf(torch.float16), Is[lambda t: True]])
    assert [type(c).__name__ for c in parameter.tensor.constraints] == ["DenseLast", "OneOf"]
    assert parameter.tensor.dtypes() == (torch.float16,)
    assert parameter.extra is not EMPTY


@pytest.mark.parametrize(
    ("family", "name", "belongs"),
    [
        (Float, "float8_e8m0fnu", True),
        (Float, "float4_e2m1fn_x2", True),
        (Float, "float8_e4m3fnuz", True),
        (Float, "bfloat16", True),
        (Float, "int32", False),
        (Inexact, "float8_e8m0fnu", True),
        (Inexact, "complex32", True),
        (Num, "float4_e2m1fn_x2", True),
        (Complex, "complex32", True),
        (Complex, "float32", False),
        (Float32, "float8_e8m0fnu", False),
        (Int, "float8_e8m0fnu", False),
        (Int, "uint8", False),
        (jaxtyping.UInt, "uint8", True),
        (jaxtyping.Bool, "bool", True),
        (jaxtyping.Bool, "uint8", False),
        (Shaped, "complex32", True),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")  # torch, at the first complex32
def test_family(family: Any, name: str, belongs: bool, modes: Any) -> None:
    form = read(family[Tensor, " n"]).tensor.forms[0]
    assert form.allows(name) is belongs

    @contract
    def f(x: family[Tensor, " n"]) -> None: ...

    x = torch.empty_strided((4,), (1,), dtype=getattr(torch, name), device="meta")
    (modes.accepts if belongs else modes.rejects)(f, x)


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (torch.zeros(1, dtype=torch.bfloat16), "bfloat16"),
        (np.zeros(1, np.float32), "float32"),
        (np.zeros(1, np.int64), "int64"),
        (np.zeros(1, bool), "bool"),
    ],
    ids=["torch", "numpy-float", "numpy-int", "numpy-bool"],
)
def test_array_dtype(array: Any, name: str) -> None:
    assert array_dtype(array).rstrip("_") == name


class TestNumpy:
    """NumPy arrays where the annotation says so."""

    def test_ndarray(self, modes: Any) -> None:
        @contract
        def f(x: Float[np.ndarray, "n m"], y: Float[Tensor, " n"]) -> None: ...

        modes.accepts(f, np.zeros((2, 3)), torch.zeros(2))
        raised = modes.rejects(f, np.zeros((2, 3)), torch.zeros(3))
        assert str(raised).startswith("y: axis 0 (n) is 3, but n is 2 (x axis 0)")
        assert str(modes.rejects(f, torch.zeros(2, 3), torch.zeros(2))) == "x: expected a ndarray [n, m], got Tensor"
        assert str(modes.rejects(f, np.zeros((2, 3), np.int32), torch.zeros(2))) == "x: dtype is int32, expected Float"
        assert "float64[2, 3]" in modes.rejects(f, np.zeros((2, 3)), torch.zeros(3)).__notes__[0]

    def test_any_array(self, modes: Any) -> None:
        @contract
        def f(x: Float[Any, " n"]) -> None: ...

        modes.accepts(f, np.zeros(2))
        modes.accepts(f, torch.zeros(2))
        modes.rejects(f, [0.0, 1.0])

    def test_union_of_classes(self, modes: Any) -> None:
        @contract
        def f(x: Float[Tensor, " n"] | Float[np.ndarray, " n"], y: Float[Tensor, " n"]) -> None: ...

        modes.accepts(f, np.zeros(2), torch.zeros(2))
        modes.accepts(f, torch.zeros(2), torch.zeros(2))
        modes.rejects(f, np.zeros(2), torch.zeros(3))


class TestScalars:
    """Scalars by our rule: ``float`` takes int and NumPy floats, ``int`` takes NumPy integers, neither takes bool."""

    @pytest.mark.parametrize(
        ("hint", "value", "fits"),
        [
            (float, 0.5, True), (float, 1, True), (float, np.float32(1), True), (float, np.float64(1), True),
            (float, True, False), (float, "1", False), (float, None, False), (float, 1j, False),
            (int, 1, True), (int, np.int64(1), True), (int, np.uint8(1), True), (int, True, False), (int, 1.0, False),
            (int, np.bool_(True), False), (bool, True, True), (bool, 1, False), (str, "a", True), (str, b"a", False),
            (int | str, "a", True), (int | None, None, True), (int | bool, True, True), (float | None, "x", False),
            (list[int], [1, 2], True), (list[int], ["x"], False), (Any, object(), True), (object, 1, True),
            (torch.dtype, torch.float32, True), (torch.dtype, "float32", False),
        ],
    )  # fmt: skip
    def test_value(self, modes: Any, hint: Any, value: Any, fits: bool) -> None:
        @contract
        def f(x: Float[Tensor, " n"], scalar: hint) -> None: ...

        call = modes.accepts if fits else modes.rejects
        call(f, torch.zeros(1), value)


class TestValidators:
    """beartype validators beside a tensor hint or on a plain one."""

    def test_beside_a_tensor_hint(self, modes: Any) -> None:
        @contract
        def f(x: Annotated[Float[Tensor, " n"], DenseLast(), Is[lambda t: t.numel() > 1]]) -> None: ...

        modes.accepts(f, torch.zeros(2))
        assert isinstance(modes.rejects(f, torch.zeros(1)), TypeError)
        assert "stride 2" in str(modes.rejects(f, torch.zeros(4)[::2]))

    def test_on_a_scalar(self, modes: Any) -> None:
        @contract
        def f(x: Annotated[int, Is[lambda n: n > 0]]) -> None: ...

        modes.accepts(f, 1)
        modes.rejects(f, 0)


def test_signature_is_read_once() -> None:
    @contract
    def f(x: Float[Tensor, " n"], y: int = 3) -> Float[Tensor, " n"]: ...  # type: ignore[empty-body]

    entry = entry_of(f)
    assert entry is not None
    assert [p.name for p in entry.signature.parameters] == ["x", "y"]
    assert entry.signature.parameters[1].default == 3


Bound = TypeVar("Bound", bound=Float[Tensor, " n"])
Either = TypeVar("Either", Float[Tensor, " n"], Int[Tensor, " n"])
Named = NewType("Named", Float[Tensor, " n"])  # type: ignore[valid-newtype]


@pytest.mark.parametrize("hint", [Bound, Either, Named])
def test_hints_behind_a_name_are_checked(hint: Any, modes: Any) -> None:
    def f(x: Float[Tensor, " n"], y: hint) -> str:
        return "reached"

    f = contract(f)
    assert modes(f, torch.zeros(2), torch.zeros(2)) == "reached"
    assert str(modes.rejects(f, torch.zeros(2), torch.zeros(3))).startswith("y: axis 0 (n) is 3, but n is 2")
    modes.rejects(f, torch.zeros(2), "no tensor")


def test_validators_do_not_let_a_bool_pass_for_an_int(modes: Any) -> None:
    @contract
    def f(count: Annotated[int, Is[lambda n: n > 0]]) -> str:
        return "reached"

    assert modes(f, 3) == "reached"
    modes.rejects(f, 0)
    modes.rejects(f, True)


class TestNumpyScalars:
    """Numbers of NumPy where the annotation asks for Python's."""

    def test_what_fits(self, modes: Any) -> None:
        @contract
        def f(x: Float[Tensor, " d"], n: int = 1, scale: float | None = None, flag: bool = False) -> None: ...

        x = torch.zeros(2)
        for scale in (np.float32(0.5), np.float64(0.5), np.int64(2), np.uint8(2)):
            modes.accepts(f, x, np.int64(3), scale)
        assert str(modes.rejects(f, x, 1, np.True_)) == "scale: expected float or None, got numpy.bool"
        assert str(modes.rejects(f, x, np.float32(1))) == "n: expected int, got numpy.float32"
        assert str(modes.rejects(f, x, 1, 1.0, np.True_)) == "flag: expected bool, got numpy.bool"
