"""Overlays of functions of torch: what the bare function computes without a word is stopped, what is right passes."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from overlay_arguments import sdpa_arguments
from torch.nn import functional
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left

import tensorpact
from tensorpact import ContractViolation, DocumentedError
from tensorpact.testing import raises
from tensorpact_contracts.overlays import TABLE, apply_all, overlay_for, torch_sdpa

BARE = functional.scaled_dot_product_attention
Q, K, V = torch.randn(2, 6, 3, 8), torch.randn(2, 6, 5, 8), torch.randn(2, 6, 5, 4)


@pytest.fixture(params=["compiled", "beartype"])
def sdpa(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """The function under its contract, under the name that torch gives it."""
    with torch_sdpa.apply(), tensorpact.enforcement(request.param):
        yield functional.scaled_dot_product_attention


#: Faults that the bare function computes without a word, by public report or case where there is one.
SILENT: dict[str, tuple[DocumentedError, dict[str, Any]]] = {
    "rank of key and value": (torch_sdpa.RANKS, {"key": K[0], "value": V[0]}),
    "rank of query": (torch_sdpa.RANKS, {"query": Q[0]}),
    "batch of 1 in key and value": (torch_sdpa.BATCH, {"key": K[:1], "value": V[:1]}),
    "batch of 1 in query": (torch_sdpa.BATCH, {"query": Q[:1]}),
    "batch of 1 in value": (torch_sdpa.BATCH, {"value": V[:1]}),
    "one head of key and value": (torch_sdpa.HEADS, {"key": K[:, :1], "value": V[:, :1]}),
    "R01 groups of key and value differ": (
        torch_sdpa.GROUPS, {"key": K[:, :2], "value": V[:, :3], "enable_gqa": True},
    ),
    "R01 no key heads": (torch_sdpa.GROUPS, {"key": K[:, :0], "value": V[:, :0], "enable_gqa": True}),
    "one causal query over a cache": (torch_sdpa.ONE_QUERY, {"query": Q[:, :, :1], "is_causal": True}),
    "scale NaN": (torch_sdpa.NUMBER, {"scale": float("nan")}),
    "scale infinite": (torch_sdpa.NUMBER, {"scale": float("inf")}),
    "scale 0": (torch_sdpa.NUMBER, {"scale": 0.0}),
    "scale negative": (torch_sdpa.NUMBER, {"scale": -0.3}),
    "dropout negative": (torch_sdpa.NUMBER, {"dropout_p": -0.1}),
}  # fmt: skip
#: Faults that the bare function refuses late, or with a text that names no argument.
OBSCURE: dict[str, tuple[DocumentedError | None, dict[str, Any]]] = {
    "R01 heads do not divide": (torch_sdpa.GROUPS, {"key": K[:, :4], "value": V[:, :4], "enable_gqa": True}),
    "R11 heads and tokens swapped": (torch_sdpa.HEADS, {"query": Q.transpose(1, 2)}),
    "R09 head dim": (None, {"key": K[..., :4]}),
    "R35 fewer values than keys": (None, {"value": V[:, :, :4]}),
    "mask of two axes for the batch": (torch_sdpa.MASK, {"attn_mask": torch.ones(2, 5, dtype=torch.bool)}),
    "mask without heads": (torch_sdpa.MASK, {"attn_mask": torch.ones(2, 3, 5, dtype=torch.bool)}),
    "mask of one axis": (torch_sdpa.MASK, {"attn_mask": torch.ones(5, dtype=torch.bool)}),
    "mask of more axes": (torch_sdpa.MASK, {"attn_mask": torch.ones(7, 2, 6, 3, 5, dtype=torch.bool)}),
    "mask swapped": (torch_sdpa.MASK, {"attn_mask": torch.ones(5, 3, dtype=torch.bool)}),
    "mask beside the flag": (torch_sdpa.MASK_AND_CAUSAL, {"attn_mask": torch.ones(3, 5) > 0, "is_causal": True}),
    "dropout above 1": (torch_sdpa.NUMBER, {"dropout_p": 1.5}),
}


def arguments(**changed: Any) -> dict[str, Any]:
    return {"query": Q, "key": K, "value": V, **changed}


@pytest.mark.parametrize("case", SILENT)
def test_what_torch_computes_without_a_word_is_stopped(case: str, sdpa: Callable[..., Any]):
    error, changed = SILENT[case]
    call = arguments(**changed)
    assert isinstance(BARE(**call), torch.Tensor)
    with raises(error):
        sdpa(**call)


@pytest.mark.parametrize("case", OBSCURE)
def test_what_torch_says_late_is_said_first(case: str, sdpa: Callable[..., Any]):
    error, changed = OBSCURE[case]
    call = arguments(**changed)
    with pytest.raises((RuntimeError, IndexError)) as bare:
        BARE(**call)
    assert not isinstance(bare.value, ContractViolation)
    with pytest.raises(ContractViolation) as caught:
        sdpa(**call)
    assert caught.value.error is error


def test_every_error_has_a_call_that_raises_it():
    raised = [error for error, _ in (*SILENT.values(), *OBSCURE.values())]
    assert set(torch_sdpa.SDPA.errors) == {error for error in raised if error is not None}


def test_the_result_of_a_single_causal_query_is_the_first_value_row():
    assert torch.equal(BARE(Q[:, :, :1], K, V, is_causal=True), V[:, :, :1])


def test_right_calls_stay_right(sdpa: Callable[..., Any]):
    for seed in range(25):
        call = sdpa_arguments(random.Random(seed))
        torch.manual_seed(seed)
        expected = BARE(**call)
        torch.manual_seed(seed)
        assert torch.equal(sdpa(**call), expected)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"query": Q[:, :, :0]},
        {"key": K[:, :, :0], "value": V[:, :, :0]},
        {"query": Q[:0], "key": K[:0], "value": V[:0]},
        {"value": V[..., :0]},
        {"query": Q[:1].expand(2, -1, -1, -1)},
        {"is_causal": True},
        {"scale": torch.tensor(0.5)},
        {"scale": 1, "dropout_p": 0},
        {"attn_mask": torch.zeros(3, 5, dtype=torch.bool)},
        {"attn_mask": torch.zeros(1, 1, 1, 1)},
    ],
    ids=[
        "base", "no queries", "A03 no keys", "A01 no batch", "no width", "A13 expanded", "causal over a static cache",
        "scale in a tensor", "A27 whole numbers", "all masked", "mask of ones",
    ],
)  # fmt: skip
def test_what_a_strict_reader_might_refuse_passes(changed: dict[str, Any], sdpa: Callable[..., Any]):
    call = arguments(**changed)
    assert torch.equal(sdpa(**call), BARE(**call))


@pytest.mark.parametrize("shape", [(5,), (1,), ()], ids=["S", "1", "scalar"])
def test_a_mask_of_one_axis_passes_where_torch_takes_it(shape: tuple[int, ...], sdpa: Callable[..., Any]):
    mask = torch.randn(shape)
    for call in (
        {"query": Q[0, 0], "key": K[0, 0], "value": V[0, 0]},
        {"query": Q[0], "key": K[0], "value": V[0]},
        {"query": Q[0], "key": K[0, :2], "value": V[0, :2], "enable_gqa": True},
        {"query": Q[None], "key": K[None], "value": V[None]},
        {"query": Q, "key": K, "value": V, "dropout_p": 0.5},
    ):
        torch.manual_seed(0)
        expected = BARE(**call, attn_mask=mask)
        torch.manual_seed(0)
        assert torch.equal(sdpa(**call, attn_mask=mask), expected)
    with pytest.raises(IndexError):
        BARE(Q, K, V, attn_mask=mask)
    with raises(torch_sdpa.MASK):
        sdpa(Q, K, V, attn_mask=mask)


@pytest.mark.parametrize("size", [2, 3], ids=["short", "queries"])
def test_a_mask_of_one_axis_for_something_else_is_refused(size: int, sdpa: Callable[..., Any]):
    with pytest.raises(RuntimeError):
        BARE(Q[0], K[0], V[0], attn_mask=torch.zeros(size))
    with raises(torch_sdpa.MASK):
        sdpa(Q[0], K[0], V[0], attn_mask=torch.zeros(size))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("make", "below"), [(causal_upper_left, 0), (causal_lower_right, 2)])
def test_a_causal_bias_passes_under_every_name_of_the_function(
    make: Callable[[int, int], CausalBias], below: int, compiled: bool
):
    bias, mask = make(3, 5), torch.ones(3, 5, dtype=torch.bool).tril(below)
    expected = BARE(Q, K, V, attn_mask=mask)

    def right(function: Callable[..., Any]) -> None:
        torch.compiler.reset()
        call = torch.compile(function, backend="eager", fullgraph=True) if compiled else function
        torch.testing.assert_close(call(Q, K, V, bias), expected)

    def early(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: CausalBias) -> torch.Tensor:
        return BARE(q, k, v, attn_mask=bias)

    def late(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: CausalBias) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    before = vars(CausalBias)["__torch_function__"]
    right(early)
    with torch_sdpa.apply():
        held = functional.scaled_dot_product_attention
        for function in (early, late, held):
            right(function)
        if not compiled:
            right(torch_sdpa.scaled_dot_product_attention)
        with raises(torch_sdpa.BATCH):
            functional.scaled_dot_product_attention(Q[:1], K, V, attn_mask=bias)
    assert vars(CausalBias)["__torch_function__"] is before
    for function in (early, late, held):
        right(function)
    torch.compiler.reset()


def test_other_functions_of_a_causal_bias_stay_its_own():
    bias = causal_lower_right(3, 5)
    with torch_sdpa.apply(), pytest.raises(ValueError, match="should not be used with causal=True"):
        BARE(Q, K, V, attn_mask=bias, is_causal=True)
    shape = functional.dropout(bias, training=False).shape
    with torch_sdpa.apply():
        assert functional.dropout(bias, training=False).shape == shape


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_jagged_tensors_pass(sdpa: Callable[..., Any]):
    nested = torch.nested.nested_tensor([torch.randn(3, 6, 8), torch.randn(5, 6, 8)], layout=torch.jagged)
    x = nested.transpose(1, 2)
    assert sdpa(x, x, x).shape == x.shape


def test_subclasses_and_half_precision_pass(sdpa: Callable[..., Any]):
    weight = torch.nn.Parameter(Q.half())
    assert sdpa(weight, K.half(), V.half(), attn_mask=torch.zeros(3, 5)).dtype == torch.float16


def test_one_graph_over_changing_sizes(sdpa: Callable[..., Any]):
    def block(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True) + 1

    compiled = torch.compile(block, backend="eager", fullgraph=True, dynamic=True)
    for length in (3, 7):
        x = torch.randn(2, 6, length, 8)
        torch.testing.assert_close(compiled(x, x, x), BARE(x, x, x, is_causal=True) + 1)
    torch.compiler.reset()


def test_modules_of_torch_call_the_checked_function(sdpa: Callable[..., Any]):
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 3, 8)
    assert layer(x, x, x, need_weights=False)[0].shape == x.shape


def test_it_is_checked_without_touching_torch():
    torch_sdpa.scaled_dot_product_attention(Q, K, V)
    with raises(torch_sdpa.BATCH):
        torch_sdpa.scaled_dot_product_attention(Q, K[:1], V[:1])
    assert functional.scaled_dot_product_attention is BARE


def test_every_overlay_of_the_table_is_made_for_its_target():
    for target in TABLE:
        assert overlay_for(target).__overlay__.target == target  # type: ignore[attr-defined]


def test_all_that_fit_are_put_on_and_the_others_say_why():
    handles, skipped = apply_all()
    try:
        assert {h.target for h in handles} | set(skipped) == set(TABLE)
        assert all(skipped.values())
        assert "torch.nn.functional:scaled_dot_product_attention" in {h.target for h in handles}
    finally:
        for handle in handles:
            handle.remove()
    assert functional.scaled_dot_product_attention is BARE
