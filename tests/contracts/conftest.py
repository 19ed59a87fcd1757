"""The basic calls of the entry points, each with arguments to exchange."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tensorpact
from tensorpact_kernels import sparse_attn_v4_paged_decode, sparse_attn_v4_paged_prefill

Call = Callable[..., Any]


@pytest.fixture(params=["compiled", "beartype"])
def both_modes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Runs a test once in each enforcement mode, without Triton's interpreter."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with tensorpact.enforcement(request.param):
        yield request.param


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture
def prefill_arguments() -> dict[str, Any]:
    """E2 of the public reports: 3 tokens, 6 heads, rows of 16 columns, a pool of 8 rows, 3 new rows."""
    return {
        "q": torch.randn(3, 6, 16, dtype=torch.bfloat16),
        "unified_kv": torch.randn(8, 16, dtype=torch.bfloat16),
        "kv_indices_prefix": ints(0, 7, -1, 3),
        "kv_indptr_prefix": ints(0, 2, 2, 4),
        "kv": torch.randn(3, 16, dtype=torch.bfloat16),
        "kv_indices_extend": ints(0, 0, 1, 0, 1, 2),
        "kv_indptr_extend": ints(0, 1, 3, 6),
        "attn_sink": torch.randn(6),
        "softmax_scale": 0.25,
    }


@pytest.fixture
def prefill(prefill_arguments: dict[str, Any]) -> Call:
    return calling(sparse_attn_v4_paged_prefill, prefill_arguments)


@pytest.fixture
def decode() -> Call:
    arguments = {
        "q": torch.randn(3, 6, 128, dtype=torch.bfloat16),
        "unified_kv": torch.randn(8, 128, dtype=torch.bfloat16),
        "kv_indices": ints(0, 7, 3, 1),
        "kv_indptr": ints(0, 2, 2, 4),
        "attn_sink": torch.randn(6),
        "softmax_scale": 0.25,
    }
    return calling(sparse_attn_v4_paged_decode, arguments)


def calling(function: Call, arguments: dict[str, Any]) -> Call:
    return lambda **changed: function(**{**arguments, **changed})
