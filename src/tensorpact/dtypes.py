"""Dtype families that jaxtyping has no name for: fp8 by flavour, MX formats, packed, quantized and raw bits.

Used as jaxtyping's own are: ``Float8[Tensor, "n k"]``. A family of stored bytes is declared where it is wanted, as a
union: ``Float8fn[Tensor, "n k"] | UInt8[Tensor, "n k"]`` takes fp8 that was viewed as ``uint8``, ``Float8fn`` does not.
"""

from typing import TYPE_CHECKING, Any

from jaxtyping import AbstractDtype

__all__ = [
    "Bits",
    "Complex32",
    "Float4e2m1fnx2",
    "Float8",
    "Float8e8m0fnu",
    "Float8fn",
    "Float8fnuz",
    "Packed",
    "Quantized",
]

if TYPE_CHECKING:
    # As jaxtyping does: a type checker sees the array class alone.
    from typing import (
        Annotated as Bits,
    )
    from typing import (
        Annotated as Complex32,
    )
    from typing import (
        Annotated as Float4e2m1fnx2,
    )
    from typing import (
        Annotated as Float8,
    )
    from typing import (
        Annotated as Float8e8m0fnu,
    )
    from typing import (
        Annotated as Float8fn,
    )
    from typing import (
        Annotated as Float8fnuz,
    )
    from typing import (
        Annotated as Packed,
    )
    from typing import (
        Annotated as Quantized,
    )
else:

    def _family(name: str, says: str, *dtypes: str) -> Any:
        return type(name, (AbstractDtype,), {"dtypes": dtypes, "__doc__": says, "__module__": __name__})

    _FN = ("float8_e4m3fn", "float8_e5m2")
    _FNUZ = ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz")
    _BITS = ("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2")
    _PACKED = ("float4_e2m1fn_x2", "bits1x8", "bits2x4", "bits4x2", "quint4x2", "quint2x4")

    Float8 = _family("Float8", "Eight bits that hold an element, of either flavour; no scales.", *_FN, *_FNUZ)
    Float8fn = _family("Float8fn", "fp8 as OCP and NVIDIA have it: signed zeros, e5m2 with infinities.", *_FN)
    Float8fnuz = _family("Float8fnuz", "fp8 as older AMD GPUs have it: no negative zero, another bias.", *_FNUZ)
    Float8e8m0fnu = _family("Float8e8m0fnu", "A power of two: the scale of a block in MX formats.", "float8_e8m0fnu")
    Float4e2m1fnx2 = _family("Float4e2m1fnx2", "Two fp4 elements a byte: half the columns.", "float4_e2m1fn_x2")
    Packed = _family("Packed", "Several values an element, so that the last axis is shorter than it means.", *_PACKED)
    Complex32 = _family("Complex32", "Two halves.", "complex32")
    Quantized = _family(
        "Quantized", "Integers with a scale, as ``torch.quantize_per_tensor`` makes them.",
        "qint8", "quint8", "qint32", "quint4x2", "quint2x4",
    )  # fmt: skip
    Bits = _family("Bits", "Bits without a meaning.", *_BITS)
