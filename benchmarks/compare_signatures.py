"""One decode signature as each public checker writes it; nothing is imported before it is asked for."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Float, Float32, Int32, jaxtyped
from torch import Tensor

Q, Cache, Values = Float[Tensor, "B H D"], Float[Tensor, "pages page HKV D"], Float[Tensor, "pages page HKV Dv"]
Table, Lengths, Sinks = Int32[Tensor, "B W"], Int32[Tensor, " B"], Float32[Tensor, " H"]
Out = Float[Tensor, "B H Dv"]
FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Checker:
    """A public checker.

    Attributes:
        make: Makes the checked function.
        packages: Distributions that it consists of.
        dtypes: Whether its annotations say the dtypes.
    """

    make: Callable[[], Callable[..., Any]]
    packages: tuple[str, ...]
    dtypes: bool = True


def annotated(
    q: Q, k_cache: Cache, v_cache: Values, page_table: Table, cache_seqlens: Lengths, sinks: Sinks, out: Out,
    softmax_scale: float,
) -> Any:  # fmt: skip
    """The jaxtyping annotations, without a result to check."""


def by_hand(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cache_seqlens: Tensor, sinks: Tensor,
    out: Tensor, softmax_scale: float,
) -> Any:  # fmt: skip
    """Shapes and dtypes as a careful author checks them."""
    if not isinstance(softmax_scale, float) or not math.isfinite(softmax_scale):
        raise TypeError("softmax_scale must be a finite float")
    q_shape, k_shape, v_shape, table_shape = q.shape, k_cache.shape, v_cache.shape, page_table.shape
    if len(q_shape) != 3 or q.dtype not in FLOATS:
        raise ValueError("q must be floating point of shape [B, H, D]")
    batch, heads, dim = q_shape
    if len(k_shape) != 4 or k_shape[3] != dim or k_cache.dtype not in FLOATS:
        raise ValueError("k_cache must be floating point of shape [pages, page, HKV, D]")
    if len(v_shape) != 4 or v_shape[:3] != k_shape[:3] or v_cache.dtype not in FLOATS:
        raise ValueError("v_cache must be floating point of shape [pages, page, HKV, Dv]")
    if len(table_shape) != 2 or table_shape[0] != batch or page_table.dtype is not torch.int32:
        raise ValueError("page_table must be int32 of shape [B, W]")
    if cache_seqlens.shape != (batch,) or cache_seqlens.dtype is not torch.int32:
        raise ValueError("cache_seqlens must be int32 of shape [B]")
    if sinks.shape != (heads,) or sinks.dtype is not torch.float32:
        raise ValueError("sinks must be float32 of shape [H]")
    if out.shape != (batch, heads, v_shape[3]) or out.dtype not in FLOATS:
        raise ValueError("out must be floating point of shape [B, H, Dv]")


def tensorpact_contract() -> Callable[..., Any]:
    """This package, without a Contract."""
    from tensorpact import contract

    return contract(annotated)


def jaxtyping_beartype() -> Callable[..., Any]:
    """The pair that jaxtyping's documentation names first."""
    import beartype

    return jaxtyped(annotated, typechecker=beartype.beartype)


def jaxtyping_typeguard() -> Callable[..., Any]:
    """Typeguard 4 reads the source again, so it goes on the function and jaxtyping around it."""
    import typeguard

    return jaxtyped(typeguard.typechecked(annotated), typechecker=None)


def beartype_alone() -> Callable[..., Any]:
    """The same hints without jaxtyping's scope: no dim is shared between arguments."""
    import beartype

    return beartype.beartype(annotated)


def bearshape() -> Callable[..., Any]:
    """Annotations of bearshape under beartype."""
    import beartype
    from bearshape import Dimension
    from bearshape.torch import F32, I32, Float

    names = ("B", "H", "D", "pages", "page", "HKV", "Dv", "W")
    b, h, d, pages, page, hkv, dv, w = (Dimension(name) for name in names)
    return hinted(
        beartype.beartype,
        Float[b, h, d], Float[pages, page, hkv, d], Float[pages, page, hkv, dv], I32[b, w], I32[b], F32[h],
        Float[b, h, dv],
    )  # fmt: skip


def dltype() -> Callable[..., Any]:
    """Annotations of dltype, whose scope is its decorator."""
    import dltype as dl

    floating, i32, f32 = dl.FloatTensor, dl.Int32Tensor, dl.Float32Tensor
    hints = (
        floating["B H D"], floating["pages page HKV D"], floating["pages page HKV Dv"], i32["B W"], i32["B"],
        f32["H"], floating["B H Dv"],
    )  # fmt: skip
    return hinted(dl.dltyped(), *(Annotated[Tensor, hint] for hint in hints))


def eincheck() -> Callable[..., Any]:
    """Shapes as text, one a parameter."""
    from eincheck import check_func

    return check_func(
        q="B H D", k_cache="pages page HKV D", v_cache="pages page HKV Dv", page_table="B W", cache_seqlens="B",
        sinks="H", out="B H Dv",
    )(plain())  # fmt: skip


def jax_shapeguard() -> Callable[..., Any]:
    """Shapes as tuples of Dim objects."""
    from shapeguard import Dim, expects

    b, h, d, pages, page, hkv, dv, w = (Dim(n) for n in ("B", "H", "D", "pages", "page", "HKV", "Dv", "W"))
    return expects(
        q=(b, h, d),
        k_cache=(pages, page, hkv, d),
        v_cache=(pages, page, hkv, dv),
        page_table=(b, w),
        cache_seqlens=(b,),
        sinks=(h,),
        out=(b, h, dv),
    )(plain())


def ktyping() -> Callable[..., Any]:
    """The checker of kauldron, with its annotations for any array."""
    from kauldron import ktyping as kt

    floating, i32, f32 = kt.XFloat, kt.XInt32, kt.XFloat32
    return hinted(
        kt.typechecked,
        floating["B H D"], floating["pages page HKV D"], floating["pages page HKV Dv"], i32["B W"], i32["B"],
        f32["H"], floating["B H Dv"],
    )  # fmt: skip


def tensor_shape_assert() -> Callable[..., Any]:
    """Shapes and dtypes in one string."""
    from tensor_shape_assert import ShapedTensor, check_tensor_shapes

    texts = (
        "float B H D", "float pages page HKV D", "float pages page HKV Dv", "int32 B W", "int32 B", "float32 H",
        "float B H Dv",
    )  # fmt: skip
    return hinted(check_tensor_shapes(), *(ShapedTensor[text] for text in texts))


def torchtyping() -> Callable[..., Any]:
    """Annotations of torchtyping under typeguard 2."""
    from torchtyping import TensorType, patch_typeguard
    from typeguard import typechecked

    patch_typeguard()
    return hinted(
        typechecked,
        TensorType["B", "H", "D"], TensorType["pages", "page", "HKV", "D"], TensorType["pages", "page", "HKV", "Dv"],
        TensorType["B", "W", torch.int32], TensorType["B", torch.int32], TensorType["H", torch.float32],
        TensorType["B", "H", "Dv"],
    )  # fmt: skip


def plain() -> Callable[..., Any]:
    """The function without an annotation."""

    def decode(
        q: Any, k_cache: Any, v_cache: Any, page_table: Any, cache_seqlens: Any, sinks: Any, out: Any,
        softmax_scale: float,
    ) -> Any:  # fmt: skip
        """No check."""

    return decode


def hinted(decorate: Callable[[Any], Any], *hints: Any) -> Callable[..., Any]:
    """The function with one hint a tensor and none for the result, decorated."""
    function = plain()
    names = ("q", "k_cache", "v_cache", "page_table", "cache_seqlens", "sinks", "out")
    function.__annotations__ = {**dict(zip(names, hints, strict=True)), "softmax_scale": float}
    checked: Callable[..., Any] = decorate(function)
    return checked


del annotated.__annotations__["return"]
CHECKERS = {
    "hand-written": Checker(lambda: by_hand, ()),
    "tensorpact": Checker(tensorpact_contract, ("tensorpact",)),
    "jaxtyping + beartype": Checker(jaxtyping_beartype, ("jaxtyping", "beartype")),
    "jaxtyping + typeguard": Checker(jaxtyping_typeguard, ("jaxtyping", "typeguard")),
    "beartype alone": Checker(beartype_alone, ("beartype",)),
    "bearshape": Checker(bearshape, ("bearshape", "beartype")),
    "dltype": Checker(dltype, ("dltype",)),
    "eincheck": Checker(eincheck, ("eincheck",), dtypes=False),
    "jax-shapeguard": Checker(jax_shapeguard, ("jax-shapeguard",), dtypes=False),
    "kauldron ktyping": Checker(ktyping, ("kauldron",)),
    "tensor-shape-assert": Checker(tensor_shape_assert, ("tensor-shape-assert",)),
    "torchtyping": Checker(torchtyping, ("torchtyping", "typeguard")),
}
