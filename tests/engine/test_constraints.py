"""Constraints hold or say why not, on plain, 0-d, size-1, empty, meta and expanded tensors."""

from typing import Annotated, Any

import pytest
import torch
from jaxtyping import Shaped
from torch import Tensor

from tensorpact import contract
from tensorpact.constraints import Aligned, Constraint, Contiguous, DenseInner, DenseLast, OnDevice, OneOf, Reach32

T = torch.zeros
STRICT = DenseLast(strict=True)

CASES: list[tuple[str, Constraint, Tensor, bool]] = [
    ("last-dense", DenseLast(), T(2, 3), True),
    ("last-strided", DenseLast(), T(2, 6)[:, ::2], False),
    ("last-transposed", DenseLast(), T(3, 2).T, False),
    ("last-0d", DenseLast(), T(()), True),
    ("last-size-1", DenseLast(), T(2, 6)[:, ::6], True),
    ("last-size-1-strict", STRICT, T(2, 6)[:, ::6], False),
    ("last-size-0-strict", STRICT, T(2, 6)[:, :0], True),
    ("last-0d-strict", STRICT, T(()), True),
    ("last-expanded", DenseLast(), T(2, 1).expand(2, 3), False),
    ("last-padded-rows", DenseLast(), T(2, 8)[:, :3], True),
    ("last-meta", DenseLast(), T(2, 3, device="meta").T, False),
    ("contiguous", Contiguous(), T(2, 3), True),
    ("contiguous-padded", Contiguous(), T(2, 8)[:, :3], False),
    ("contiguous-one-row", Contiguous(), T(1, 8)[:, :3], True),
    ("contiguous-empty", Contiguous(), T(3, 0, 2).transpose(0, 2), True),
    ("contiguous-0d", Contiguous(), T(()), True),
    ("contiguous-expanded", Contiguous(), T(1, 3).expand(2, 3), False),
    ("inner-whole", DenseInner(2), T(2, 3, 4), True),
    ("inner-outer-free", DenseInner(2), T(2, 6, 4)[:, :3], True),
    ("inner-broken", DenseInner(2), T(2, 3, 8)[..., :4], False),
    ("inner-size-1", DenseInner(2), T(2, 1, 8)[..., :4], True),
    ("inner-too-many", DenseInner(5), T(2, 3), True),
    ("inner-empty", DenseInner(2), T(0, 3, 8)[..., :4], True),
    ("inner-0d", DenseInner(2), T(()), True),
    ("device", OnDevice("cpu"), T(2), True),
    ("device-other", OnDevice("cuda"), T(2), False),
    ("device-several", OnDevice("cuda", "meta"), T(2, device="meta"), True),
    ("one-of", OneOf(torch.float32, torch.int8), T(2), True),
    ("one-of-other", OneOf(torch.int8), T(2), False),
    ("aligned", Aligned(16), T(8), True),
    ("aligned-view", Aligned(16), T(8)[4:], True),
    ("misaligned-view", Aligned(16), T(8)[1:], False),
    ("aligned-meta", Aligned(16), T(8, device="meta")[1:], True),
    ("reach", Reach32(), T(8), True),
    ("reach-far", Reach32(), torch.empty_strided((3, 1), (2**30, 1), device="meta"), False),
    ("reach-just", Reach32(), torch.empty_strided((2, 2**30), (2**30, 1), device="meta"), True),
    ("reach-expanded", Reach32(), T(1, device="meta").expand(2**40), True),
    ("reach-empty", Reach32(), torch.empty_strided((0, 2), (2**40, 1), device="meta"), True),
    ("reach-0d", Reach32(), T(()), True),
]


@pytest.mark.parametrize(("constraint", "tensor", "holds"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_holds(modes: Any, constraint: Constraint, tensor: Tensor, holds: bool) -> None:
    assert constraint.holds(tensor) is holds

    @contract
    def f(x: Annotated[Shaped[Tensor, "..."], constraint]) -> None: ...

    if holds:
        modes.accepts(f, tensor)
    elif isinstance(constraint, OneOf):
        assert isinstance(modes.rejects(f, tensor), TypeError)
    else:
        assert str(modes.rejects(f, tensor)) == f"x: {constraint.reason(tensor)}"


@pytest.mark.parametrize(
    ("constraint", "tensor", "reason"),
    [
        (DenseLast(), T(3, 2).T, "last axis has stride 2, not 1 (strides (1, 2))"),
        (Contiguous(), T(3, 2).T, "is not contiguous: shape (2, 3) has strides (1, 2)"),
        (DenseInner(2), T(2, 3, 8)[..., :4], "last 2 axes are not dense: shape (2, 3, 4) has strides (24, 8, 1)"),
        (OnDevice("cuda", "meta"), T(2), "is on cpu, not on cuda or meta"),
        (OneOf(torch.int8, torch.bool), T(2), "dtype is torch.float32, not torch.int8 or torch.bool"),
        (Aligned(32), T(9)[1:], "starts 4 bytes past a multiple of 32"),
    ],
    ids=repr,
)
def test_reason(constraint: Constraint, tensor: Tensor, reason: str) -> None:
    assert constraint.reason(tensor) == reason


def test_kinds_and_equality() -> None:
    assert [c.kind for c in (DenseLast(), OnDevice("cpu"), OneOf(torch.int8))] == ["layout", "device", "dtype"]
    assert DenseInner(2) == DenseInner(2) != DenseInner(3)
    assert hash(OneOf(torch.int8)) == hash(OneOf(torch.int8))


def test_a_remembered_signature_does_not_hide_a_constraint(modes: Any) -> None:
    """The same sizes and strides at another address."""

    @contract
    def f(x: Annotated[Shaped[Tensor, " n"], Aligned(16)]) -> None: ...

    pool = T(64)
    for _ in range(30):
        f(pool[4:8])
    assert "past a multiple of 16" in str(modes.rejects(f, pool[1:5]))
