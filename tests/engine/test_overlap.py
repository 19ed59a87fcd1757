"""Shared memory: what counts as shared, against the bytes themselves, and in guards that have learnt a signature."""

import random
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from tensorpact import Contract, ContractViolation, contract
from tensorpact._overlap import overlaps_itself, shares_bytes
from tensorpact.clauses import no_overlap


def bytes_of(tensor: Tensor) -> set[int]:
    """Address of every byte of every element."""
    addresses = torch.zeros(tensor.shape, dtype=torch.int64)
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        steps = torch.arange(size) * stride * tensor.element_size()
        addresses += steps.view([-1 if i == axis else 1 for i in range(tensor.ndim)])
    first = tensor.data_ptr()
    return {first + a + i for a in addresses.flatten().tolist() for i in range(tensor.element_size())}


def random_view(buffer: Tensor, rng: random.Random) -> Tensor:
    """A view with sizes, strides, offset and dtype of its own, inside the buffer."""
    flat = buffer.view(rng.choice((torch.float32, torch.bfloat16, torch.uint8)))
    while True:
        rank = rng.randint(0, 3)
        sizes = [rng.randint(0 if rng.random() < 0.1 else 1, 4) for _ in range(rank)]
        strides = [rng.choice((0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 48)) for _ in range(rank)]
        offset = rng.randrange(40)
        if offset + sum((max(n, 1) - 1) * s for n, s in zip(sizes, strides, strict=True)) < flat.numel():
            return flat.as_strided(sizes, strides, offset)


def test_no_shared_byte_is_overlooked():
    rng = random.Random(0)
    buffer = torch.zeros(256, dtype=torch.uint8)
    told = meeting = 0
    for _ in range(6000):
        one, other = random_view(buffer, rng), random_view(buffer, rng)
        shared = bytes_of(one) & bytes_of(other)
        assert shares_bytes(one, other) == shares_bytes(other, one)
        if shared:
            assert shares_bytes(one, other), (one.shape, one.stride(), other.shape, other.stride())
        elif one.numel() and other.numel():
            ours, theirs = bytes_of(one), bytes_of(other)
            if max(min(ours), min(theirs)) <= min(max(ours), max(theirs)):
                meeting += 1
                told += not shares_bytes(one, other)
    assert told > 100
    assert told / meeting > 0.6


def test_a_tensor_overlaps_itself_where_two_elements_have_one_address():
    rng = random.Random(1)
    buffer = torch.zeros(256, dtype=torch.uint8)
    overlapping = apart = 0
    for _ in range(4000):
        view = random_view(buffer, rng)
        repeats = view.numel() * view.element_size() > len(bytes_of(view))
        assert overlaps_itself(view) == repeats, (view.shape, view.stride())
        overlapping += repeats
        apart += not repeats and not view.is_contiguous()
    assert min(overlapping, apart) > 500


def test_steps_that_do_not_nest_may_be_apart():
    numbers = torch.zeros(2_000_000)
    assert not overlaps_itself(numbers.as_strided((2, 3), (3, 2)))
    assert not overlaps_itself(numbers.as_strided((999, 1000), (1000, 999)))
    assert overlaps_itself(numbers.as_strided((1000, 1001), (1000, 999)))
    assert overlaps_itself(numbers.unfold(0, 4, 2))
    assert not overlaps_itself(numbers.as_strided((0, 3), (0, 0)))
    # A search that would not end soon counts as overlapping.
    assert overlaps_itself(numbers.as_strided((50, 50, 50, 50), (4001, 4003, 4007, 4013)))


def test_fields_of_a_page_share_nothing():
    pages = torch.zeros(5, 60)
    state, ring, gates = pages[:, :24].view(5, 2, 3, 4), pages[:, 24:40].view(5, 4, 4), pages[:, 40:].view(5, 4, 5)
    assert not any(shares_bytes(a, b) for a, b in ((state, ring), (state, gates), (gates, ring)))
    assert shares_bytes(pages[:, :25], ring)
    assert shares_bytes(ring, pages[:, 39:])
    assert not shares_bytes(state[1:3], ring[4])


def test_fields_of_several_dtypes():
    pages = torch.zeros(3, 32, dtype=torch.uint8)
    wide, narrow = pages[:, :16].view(torch.float32), pages[:, 16:].view(torch.bfloat16)
    assert not shares_bytes(wide, narrow)
    assert shares_bytes(wide, pages[:, 15:])


def test_keys_and_values_that_take_turns():
    both = torch.zeros(7, 2, 4, 3)
    assert not shares_bytes(both[:, 0], both[:, 1])
    assert not shares_bytes(both[..., 0], both[..., 1:])
    assert shares_bytes(both[:, 0], both[:, :, 3])


def test_what_has_no_memory_shares_none():
    x = torch.zeros(4)
    assert not shares_bytes(x, x[4:])
    assert not shares_bytes(x.to("meta"), x.to("meta"))
    assert not shares_bytes(x, x.to_sparse())


@contract(Contract("written", clauses=[no_overlap("out", "x", "y")], mutates=("out", "state")))
def written(
    out: Float[Tensor, "n m"],
    x: Float[Tensor, "n m"],
    state: Float[Tensor, "n m"],
    y: Float[Tensor, "n m"] | None = None,
) -> str:
    return "reached"


@pytest.fixture
def learnt() -> dict[str, Any]:
    """Fields of a page, passed so often that the guard knows their signature."""
    pages = torch.zeros(4, 12)
    given = dict(zip(("out", "x", "state", "y"), pages.split(3, dim=1), strict=True))
    for _ in range(200):
        assert written(**given) == "reached"
    return {**given, "pages": pages}


def views(pages: Tensor, **starts: int) -> dict[str, Tensor]:
    return {name: pages[:, at : at + 3] for name, at in starts.items()}


@pytest.mark.parametrize(
    ("starts", "text"),
    [
        ({"out": 0, "x": 2, "state": 6, "y": 9}, "out: shares memory with x"),
        ({"out": 0, "x": 3, "state": 6, "y": 1}, "out: shares memory with y"),
        ({"out": 0, "x": 3, "state": 1, "y": 9}, "state: is written and shares memory with out, also written"),
    ],
)
def test_a_learnt_signature_hides_no_overlap(learnt: dict[str, Any], starts: dict[str, int], text: str):
    with pytest.raises(ContractViolation) as caught:
        written(**views(learnt["pages"], **starts))
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "starts",
    [
        {"out": 0, "x": 6, "state": 3, "y": 6},
        {"out": 9, "x": 0, "state": 4, "y": 1},
        {"out": 5, "x": 0, "state": 0, "y": 8},
    ],
)
def test_what_is_only_read_may_overlap(learnt: dict[str, Any], starts: dict[str, int]):
    assert written(**views(learnt["pages"], **starts)) == "reached"


def test_an_absent_tensor_overlaps_nothing(learnt: dict[str, Any]):
    given = views(learnt["pages"], out=0, x=3, state=6)
    for _ in range(200):
        assert written(**given) == "reached"
    with pytest.raises(ContractViolation, match=r"^out: shares memory with x"):
        written(**{**given, "x": given["out"]})
