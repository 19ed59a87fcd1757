"""The basic calls of the entry points, each with arguments to exchange."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tensorpact
from tensorpact_kernels import (
    fused_recurrent_kda_packed_decode,
    fused_recurrent_kda_replayssm_decode,
    sparse_attn_v4_paged_decode,
    sparse_attn_v4_paged_prefill,
)

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


def kda_arguments(
    B: int = 3, H: int = 1, HV: int = 2, K: int = 16, V: int = 32, L: int = 4, slots: int = 6
) -> dict[str, Any]:
    """E3 of the public reports: 3 rows, one query head and two value heads, rings of 4 tokens, a pool of 6 slots."""
    return {
        "mixed_qkv": torch.randn(B, 2 * H * K + HV * V, dtype=torch.bfloat16),
        "a": torch.randn(B, HV, K, dtype=torch.bfloat16),
        "b": torch.randn(B, HV, dtype=torch.bfloat16),
        "A_log": torch.randn(HV),
        "dt_bias": torch.randn(HV, K),
        "scale": K**-0.5,
        "initial_state": torch.randn(slots, HV, V, K),
        "d_cache": torch.randn(slots, HV, L, V),
        "k_cache": torch.randn(slots, H, L, K),
        "g_cache": -torch.rand(slots, HV, L, K),
        "out": torch.full((B, 1, HV, V), float("nan"), dtype=torch.bfloat16),
        "ssm_state_indices": torch.arange(1, 2 * B, 2, dtype=torch.int32),
        "write_pos": torch.tensor([0, 3, 1], dtype=torch.int32)[:B] if B <= 3 else torch.zeros(B, dtype=torch.int32),
    }


def packed_arguments(**sizes: int) -> dict[str, Any]:
    """The same without rings; gates are flat there."""
    given = kda_arguments(**sizes)
    given |= {"a": given["a"].flatten(1), "dt_bias": given["dt_bias"].flatten()}
    return {name: x for name, x in given.items() if name not in ("d_cache", "k_cache", "g_cache", "write_pos")}


@pytest.fixture
def replay() -> Call:
    return calling(fused_recurrent_kda_replayssm_decode, kda_arguments())


@pytest.fixture
def packed() -> Call:
    return calling(fused_recurrent_kda_packed_decode, packed_arguments())


def calling(function: Call, arguments: dict[str, Any]) -> Call:
    return lambda **changed: function(**{**arguments, **changed})
