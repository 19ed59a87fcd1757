"""Statements about the dtypes and array classes of jaxtyping annotations, judged by stock and by both modes of ours."""

import re
from typing import Any, NewType, TypeVar, Union

import jaxtyping
import numpy as np
import pytest
import torch
from jaxtyping import AbstractDtype, Bool, Complex, Float, Float32, Inexact, Int, Int32, Key, Num, Real, Shaped, UInt
from torch import Tensor

#: Each family in the words of the documentation: the torch dtypes that belong to it, by name.
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
FLOATS = (*FLOAT8, "bfloat16", "float16", "float32", "float64")
INTS = ("int8", "int16", "int32", "int64")
UINTS = ("uint8", "uint16", "uint32", "uint64")
COMPLEXES = ("complex64", "complex128")
EVERY = (*FLOATS, *INTS, *UINTS, *COMPLEXES, "bool")
FAMILIES: dict[str, tuple[str, ...]] = {
    "Float": FLOATS,
    "Int": INTS,
    "UInt": UINTS,
    "Integer": (*INTS, *UINTS),
    "Bool": ("bool",),
    "Complex": COMPLEXES,
    "Inexact": (*FLOATS, *COMPLEXES),
    "Real": (*FLOATS, *INTS, *UINTS),
    "Num": (*FLOATS, *INTS, *UINTS, *COMPLEXES),
    "Shaped": EVERY,
    "BFloat16": ("bfloat16",),
    "Float8e4m3fn": ("float8_e4m3fn",),
    "Float8e4m3fnuz": ("float8_e4m3fnuz",),
    "Float8e5m2": ("float8_e5m2",),
    "Float8e5m2fnuz": ("float8_e5m2fnuz",),
    **{f"{kind}{bits}": (f"{kind.lower()}{bits}",) for kind in ("Int", "UInt") for bits in (8, 16, 32, 64)},
    **{f"Float{bits}": (f"float{bits}",) for bits in (16, 32, 64)},
    **{f"Complex{bits}": (f"complex{bits}",) for bits in (64, 128)},
}
#: Deliberate divergence: dtypes of torch that belong to families of jaxtyping which leave them out.
WIDENED = {
    "float8_e8m0fnu": ("Float", "Inexact", "Real", "Num"),
    "float4_e2m1fn_x2": ("Float", "Inexact", "Real", "Num"),
    "complex32": ("Complex", "Inexact", "Num"),
}


def one(hint: Any, value: Any) -> Any:
    """The program that checks one argument against one hint."""

    def program(check: Any) -> Any:
        def f(x: Any) -> None:
            return None

        f.__annotations__["x"] = hint
        checked = check(f)
        return lambda: checked(value)

    return program


def same(verdict: bool) -> dict[str, str]:
    return dict.fromkeys(("stock", "compiled", "beartype"), "accepts" if verdict else "refuses")


def meta(dtype: str) -> Tensor:
    return torch.empty_strided((2,), (1,), dtype=getattr(torch, dtype), device="meta")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_holds_its_dtypes_and_no_others(family: str, parity: Any) -> None:
    hint = getattr(jaxtyping, family)[Tensor, " n"]
    for dtype in EVERY:
        assert parity(one(hint, meta(dtype))) == same(dtype in FAMILIES[family]), dtype


@pytest.mark.parametrize("dtype", WIDENED)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")  # torch, at the first complex32
def test_dtypes_that_we_count_in_and_stock_leaves_out(dtype: str, parity: Any) -> None:
    for family in ("Float", "Int", "Bool", "Complex", "Inexact", "Real", "Num", "Float32", "Float8e4m3fn"):
        found = parity(one(getattr(jaxtyping, family)[Tensor, " n"], meta(dtype)))
        ours = "accepts" if family in WIDENED[dtype] else "refuses"
        assert found == {"stock": "refuses", "compiled": ours, "beartype": ours}, family


class Halves(AbstractDtype):
    """A family of one's own."""

    dtypes = ("float16", "bfloat16")  # type: ignore[assignment]


class Bytes(AbstractDtype):
    """A family by pattern."""

    dtypes = re.compile("u?int8$")


RECORD = jaxtyping.make_numpy_struct_dtype(np.dtype([("a", np.uint8), ("b", np.int8)]), "Record")
OTHER = np.dtype([("a", np.uint8), ("c", np.int8)])
Image = Float[Tensor, "channels h w"]
Bound = TypeVar("Bound", bound=Tensor)
Either = TypeVar("Either", Tensor, np.ndarray)
Free = TypeVar("Free")
f32, f16, i32 = torch.zeros(2), torch.zeros(2, dtype=torch.float16), torch.zeros(2, dtype=torch.int32)


class Duck:
    """Anything with a shape and a dtype is an array where the hint says ``Any``."""

    shape, dtype = (2,), "float32"


class Mine(Tensor):
    """A subclass."""


STATEMENTS: list[tuple[str, Any, Any, bool]] = [
    ("a family of one's own", Halves[Tensor, " n"], f16, True),
    ("a family of one's own holds no others", Halves[Tensor, " n"], f32, False),
    ("a family by pattern", Bytes[Tensor, " n"], torch.zeros(2, dtype=torch.uint8), True),
    ("a pattern matches from the start", Bytes[Tensor, " n"], torch.zeros(2, dtype=torch.bool), False),
    ("a structured dtype of NumPy", RECORD[np.ndarray, " n"], np.zeros(2, np.dtype([("a", "u1"), ("b", "i1")])), True),
    ("a structured dtype with other fields", RECORD[np.ndarray, " n"], np.zeros(2, OTHER), False),
    ("an array of NumPy", Float[np.ndarray, " n"], np.zeros(2), True),
    ("an array of NumPy of another dtype", Float32[np.ndarray, " n"], np.zeros(2), False),
    ("an array of NumPy of another rank", Float[np.ndarray, " n"], np.zeros((2, 2)), False),
    ("a bool array of NumPy", Bool[np.ndarray, " n"], np.zeros(2, bool), True),
    ("an unsigned array of NumPy", UInt[np.ndarray, " n"], np.zeros(2, np.uint16), True),
    ("a tensor is no array of NumPy", Float[np.ndarray, " n"], f32, False),
    ("an array of NumPy is no tensor", Float[Tensor, " n"], np.zeros(2, np.float32), False),
    ("a list is no tensor", Float[Tensor, " n"], [0.0, 1.0], False),
    ("a number is no tensor without axes", Float[Tensor, ""], 1.0, False),
    ("None is no tensor", Float[Tensor, " n"], None, False),
    ("a parameter is a tensor", Float[Tensor, " n"], torch.nn.Parameter(f32), True),
    ("a subclass is a tensor", Float[Tensor, " n"], f32.as_subclass(Mine), True),
    ("a hint of a subclass takes that", Float[Mine, " n"], f32.as_subclass(Mine), True),
    ("a hint of a subclass takes no plain tensor", Float[Mine, " n"], f32, False),
    ("Any takes arrays of all classes", Float[Any, " n"], np.zeros(2), True),
    ("Any takes tensors", Float[Any, " n"], f32, True),
    ("Any takes whatever has a shape and a dtype", Float[Any, " n"], Duck(), True),
    ("and looks at the dtype", Int[Any, " n"], Duck(), False),
    ("and at the shape", Float[Any, "n m"], Duck(), False),
    ("Any takes nothing without them", Float[Any, " n"], [1.0], False),
    ("an array class may be a union", Float[Tensor | np.ndarray, " n"], np.zeros(2), True),
    ("each class of the union will do", Float[Tensor | np.ndarray, " n"], f32, True),
    ("no others", Float[Tensor | np.ndarray, " n"], 1.0, False),
    ("an array class may be a bound type variable", Float[Bound, " n"], f32, True),
    ("which is its bound", Float[Bound, " n"], np.zeros(2), False),
    ("an array class may be a type variable of several", Float[Either, " n"], np.zeros(2), True),
    ("a free type variable is Any", Float[Free, " n"], Duck(), True),
    ("a hint extends another one in front", Float[Image, "batch"], torch.zeros(2, 3, 4, 5), True),
    ("the axes of both count", Float[Image, "batch"], torch.zeros(3, 4, 5), False),
    ("the dtype is what both allow", Float32[Image, "batch"], torch.zeros(2, 3, 4, 5).half(), False),
    ("a family is no dtype of another", Shaped[Image, "batch"], torch.zeros(2, 3, 4, 5).int(), False),
    ("a number where the hint has no axes", Float[float, ""], 1.0, True),
    ("an int is an int without axes", Int[int, ""], 3, True),
    ("a text is none", Int[int, ""], "3", False),
    ("a union of dtypes", Float[Tensor, " n"] | Int[Tensor, " n"], i32, True),
    ("a union of dtypes takes no third", Float[Tensor, " n"] | Int[Tensor, " n"], f32.bool(), False),
    ("a union with a number", Float[Tensor, ""] | float, 1.5, True),
    ("a union with a number takes the tensor too", Float[Tensor, ""] | float, torch.tensor(1.5), True),
    ("a union with a text takes no other", Float[Tensor, ""] | str, 3, False),
    ("None where the hint says so", Float[Tensor, " n"] | None, None, True),
    ("a tensor where the hint says None as well", Union[Float[Tensor, " n"], None], f32, True),  # noqa: UP007
    ("a wrong tensor where the hint says None as well", Float[Tensor, " n"] | None, i32, False),
    ("a hint behind a NewType", NewType("Vector", Float[Tensor, " n"]), f32, True),  # type: ignore[valid-newtype]
    ("a wrong tensor behind a NewType", NewType("Vector", Float[Tensor, " n"]), i32, False),  # type: ignore[valid-newtype]
    ("a complex tensor is inexact", Inexact[Tensor, " n"], torch.zeros(2, dtype=torch.complex64), True),
    ("a complex tensor is not real", Real[Tensor, " n"], torch.zeros(2, dtype=torch.complex64), False),
    ("a bool tensor is no number", Num[Tensor, " n"], torch.zeros(2, dtype=torch.bool), False),
    ("a key of JAX is no array of NumPy", Key[np.ndarray, ""], np.zeros((), np.uint32), False),
    ("Int32 is one dtype", Int32[Tensor, " n"], i32.long(), False),
    ("Complex is no Float", Complex[Tensor, " n"], f32, False),
    ("a meta tensor is a tensor", Float[Tensor, " n"], torch.zeros(2, device="meta"), True),
    ("an expanded tensor has its logical shape", Float[Tensor, "n n"], torch.zeros(1, 3).expand(3, 3), True),
]


@pytest.mark.parametrize(("hint", "value", "fits"), [pytest.param(*s[1:], id=s[0]) for s in STATEMENTS])
def test_hint(hint: Any, value: Any, fits: bool, parity: Any) -> None:
    assert parity(one(hint, value)) == same(fits)


@pytest.mark.parametrize(
    ("hint", "value", "stock", "ours"),
    [
        (float, 1, "refuses", "accepts"),
        (float, np.float32(1), "refuses", "accepts"),
        (int, np.int64(1), "refuses", "accepts"),
        (int, True, "accepts", "refuses"),
        (float, True, "refuses", "refuses"),
    ],
)
def test_scalars_are_ours(hint: Any, value: Any, stock: str, ours: str, parity: Any) -> None:
    """Deliberate divergence: numbers as kernels take them."""
    assert parity(one(hint, value)) == {"stock": stock, "compiled": ours, "beartype": ours}


def test_a_hint_that_no_tensor_can_meet_is_refused_at_once(parity: Any) -> None:
    """Deliberate divergence: torch has no key arrays, so the hint is its author's error."""
    found = parity(one(Key[Tensor, ""], torch.zeros((), dtype=torch.uint32)))
    assert found == {"stock": "refuses", "compiled": "is undefined", "beartype": "is undefined"}


def refused(make: Any) -> bool:
    try:
        make()
    except ValueError:
        return True
    return False


def test_hints_that_cannot_be_made() -> None:
    assert refused(lambda: Float[Tensor])
    assert refused(lambda: Float["n m"])
    assert refused(lambda: Bool[Image, "batch"])
