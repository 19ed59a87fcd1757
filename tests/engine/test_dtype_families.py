"""Families beyond jaxtyping: which dtypes belong to them, that others are refused, and that ``verify`` draws them."""

from typing import Any

import jaxtyping
import pytest
import torch
from jaxtyping import Float, Float8e4m3fn, Float8e4m3fnuz, Inexact, Int, Num, Shaped, UInt, UInt8
from torch import Tensor

import tensorpact.dtypes as families
from tensorpact import contract
from tensorpact.dtypes import Float4e2m1fnx2, Float8, Float8e8m0fnu, Float8fn, Float8fnuz, Packed, Quantized
from tensorpact.testing import verify

FAMILIES = {
    "Float8": ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    "Float8fn": ("float8_e4m3fn", "float8_e5m2"),
    "Float8fnuz": ("float8_e4m3fnuz", "float8_e5m2fnuz"),
    "Float8e8m0fnu": ("float8_e8m0fnu",),
    "Float4e2m1fnx2": ("float4_e2m1fn_x2",),
    "Packed": ("float4_e2m1fn_x2", "bits1x8", "bits2x4", "bits4x2", "quint4x2", "quint2x4"),
    "Complex32": ("complex32",),
    "Quantized": ("qint8", "quint8", "qint32", "quint4x2", "quint2x4"),
    "Bits": ("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"),
}
#: Dtypes of torch, each under its one name.
EVERY = sorted({repr(d).removeprefix("torch.") for d in vars(torch).values() if isinstance(d, torch.dtype)})
pytestmark = pytest.mark.filterwarnings(
    "ignore:ComplexHalf support is experimental:UserWarning",  # torch, at the first complex32
)


class OfDtype(Tensor):
    """A tensor that says it has a dtype: torch makes no tensors of some that it names."""

    said: torch.dtype

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.said


def tensor(name: str) -> Tensor:
    made = torch.zeros(4).as_subclass(OfDtype)
    made.said = getattr(torch, name)
    return made


def one(hint: Any) -> Any:
    @contract
    def f(x: hint) -> str:
        return "reached"

    return f


def test_the_module_has_these_and_no_others() -> None:
    assert sorted(families.__all__) == sorted(FAMILIES)
    assert set(FAMILIES["Packed"]) <= set(EVERY)


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str, modes: Any) -> None:
    f = one(getattr(families, family)[Tensor, " n"])
    for name in EVERY:
        if name in FAMILIES[family]:
            modes.accepts(f, tensor(name))
        else:
            assert str(modes.rejects(f, tensor(name))) == f"x: dtype is torch.{name}, expected {family}"


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("float8_e8m0fnu", (Float, Inexact, Num, Shaped, Float8e8m0fnu)),
        ("float4_e2m1fn_x2", (Float, Inexact, Num, Shaped, Float4e2m1fnx2, Packed)),
        ("float8_e4m3fn", (Float, Inexact, Num, Shaped, Float8, Float8fn, Float8e4m3fn)),
        ("float8_e4m3fnuz", (Float, Inexact, Num, Shaped, Float8, Float8fnuz, Float8e4m3fnuz)),
        ("quint8", (Shaped, Quantized)),
        ("qint32", (Shaped, Quantized)),
        ("quint4x2", (Shaped, Quantized, Packed)),
        ("bits8", (Shaped, families.Bits)),
        ("complex32", (Num, jaxtyping.Complex, Inexact, Shaped, families.Complex32)),
        ("bool", (jaxtyping.Bool, Shaped)),
        ("uint4", (UInt, Num, Shaped)),
        ("uint3", (Shaped,)),
    ],
)
def test_e1_e2_e4_every_family_that_a_dtype_belongs_to(name: str, members: tuple[Any, ...], modes: Any) -> None:
    """Cases E1, E2 and E4: no dtype is in a family, or out of one, by omission."""
    own = [getattr(families, n) for n in FAMILIES]
    named = (Float8e4m3fn, Float8e4m3fnuz, UInt8, jaxtyping.Bool, jaxtyping.Complex, Inexact)
    for family in dict.fromkeys((Float, Int, UInt, Num, Shaped, *named, *own)):
        (modes.accepts if family in members else modes.rejects)(one(family[Tensor, " n"]), tensor(name))


def test_e2_bytes_are_fp8_only_where_that_is_declared(modes: Any) -> None:
    values = torch.zeros(4, dtype=torch.float8_e4m3fn)
    strict, loose = one(Float8fn[Tensor, " n"]), one(Float8fn[Tensor, " n"] | UInt8[Tensor, " n"])
    modes.accepts(strict, values)
    assert str(modes.rejects(strict, values.view(torch.uint8))) == "x: dtype is torch.uint8, expected Float8fn"
    modes.accepts(loose, values.view(torch.uint8))
    modes.accepts(loose, values)
    assert str(modes.rejects(loose, values.view(torch.int8))) == ("x: dtype is torch.int8, expected Float8fn or UInt8")


@contract
def mx_matmul(
    a: Float4e2m1fnx2[Tensor, "m half"],
    a_scale: Float8e8m0fnu[Tensor, "m blocks"],
    b: Float8fn[Tensor, "n k"],
    b_scale: Float8e8m0fnu[Tensor, "n blocks"],
) -> int:
    """For ``verify``: every dtype has to be drawn."""
    return a.shape[0] + b.shape[0] + a_scale.shape[1] + b_scale.shape[1]


def test_packed_dtypes_trace_and_are_drawn(modes: Any) -> None:
    def given(scale: torch.dtype) -> tuple[Tensor, ...]:
        return (
            torch.zeros(2, 8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
            torch.zeros(2, 3, dtype=torch.uint8).view(torch.float8_e8m0fnu),
            torch.zeros(5, 16, dtype=torch.float8_e4m3fn),
            torch.zeros(5, 3, dtype=torch.uint8).view(scale),
        )

    for _ in range(20):
        mx_matmul(*given(torch.float8_e8m0fnu))
    modes.accepts(mx_matmul, *given(torch.float8_e8m0fnu))
    assert str(modes.rejects(mx_matmul, *given(torch.float8_e4m3fn))) == (
        "b_scale: dtype is torch.float8_e4m3fn, expected Float8e8m0fnu"
    )
    assert torch.compile(mx_matmul, fullgraph=True, backend="eager")(*given(torch.float8_e8m0fnu)) == 13
    (report,) = verify([mx_matmul], examples=6).entries
    assert report.ok, report
