"""KDA decode: shapes, layouts and values from public bug reports, refused or accepted as they must be.

R and A ids are those of the collected reports; a longer id names the public thread.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tensorpact
from tensorpact import ContractViolation
from tensorpact_contracts import replayssm as documented

pytestmark = pytest.mark.usefixtures("both_modes")
Call = Callable[..., Any]
POOLS = ("initial_state", "d_cache", "k_cache", "g_cache")


def T(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:  # noqa: N802 - as the cases write it
    return torch.zeros(sizes, dtype=dtype)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


REFUSED = {
    "R01": (
        documented.HEAD_CONFIG,
        "Invalid head config inferred from mixed_qkv: H=2, HV=3.",
        {
            "mixed_qkv": T(3, 160),
            "a": T(3, 3, 16),
            "b": T(3, 3),
            "A_log": T(3),
            "dt_bias": T(3, 16),
            "initial_state": T(6, 3, 32, 16),
            "out": T(3, 1, 3, 32),
        },
    ),
    "R17": (
        documented.G_CACHE_DTYPE,
        "`g_cache` must have dtype torch.float32.",
        {"g_cache": T(6, 2, 4, 16, dtype=torch.bfloat16)},
    ),
    "R21": (
        documented.A_LAYOUT,
        "KDA `a` must be a contiguous 2D or 3D tensor.",
        {"a": T(3, 16, 2).transpose(1, 2)},
    ),
    "R23": (
        documented.EXPANDED,
        "A tensor that is written needs memory for each of its elements; several share an address in: initial_state.",
        {"initial_state": T(1, 2, 32, 16).expand(6, 2, 32, 16)},
    ),
    "sglang-29678-slots-of-the-largest-batch": (
        documented.INDICES_SHAPE,
        "`ssm_state_indices` must have shape [B] (got (8,); expected (3,)).",
        {"ssm_state_indices": ints(1, 3, 5, 0, 0, 0, 0, 0)},
    ),
    "vllm-42684-strided-rows": (
        documented.MIXED_QKV_LAYOUT,
        "`mixed_qkv` must be contiguous in the last dim.",
        {"mixed_qkv": T(96, 3).t()},
    ),
    "vllm-41292-state-in-the-other-order": (
        documented.OUT_SHAPE,
        "`out` must have shape (3, 1, 2, 16) (got out.shape=(3, 1, 2, 32)).",
        {"initial_state": T(6, 2, 16, 32), "a": T(3, 2, 32), "dt_bias": T(2, 32)},
    ),
    "R40": (
        documented.SLOT_RANGE,
        "`ssm_state_indices[0]` is 6, but the pool has 6 slots; a negative slot is padding.",
        {"ssm_state_indices": ints(6, 3, 5)},
    ),
    "R41": (
        documented.WRITE_POS_RANGE,
        "`write_pos[0]` is 4, but a ring of 4 tokens is written at 0 to 3.",
        {"write_pos": ints(4, 0, 1)},
    ),
    "R41-before-the-ring": (
        documented.WRITE_POS_RANGE,
        "`write_pos[2]` is -1, but a ring of 4 tokens is written at 0 to 3.",
        {"write_pos": ints(0, 3, -1)},
    ),
    "record-heads-of-the-values-in-the-key-ring": (
        documented.K_CACHE_SHAPE,
        "`k_cache` must have shape [slots, H, L, K].",
        {"k_cache": T(6, 2, 4, 16)},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_reported_mistake_is_refused(replay: Call, name: str):
    error, text, changed = REFUSED[name]
    with pytest.raises(error.documented) as caught:
        replay(**changed)
    assert isinstance(caught.value, ContractViolation)
    assert (caught.value.error, str(caught.value)) == (error, text)


def test_R27_a_state_is_required(replay: Call):  # noqa: N802 - the id of the report
    with pytest.raises(TypeError, match=r"^initial_state: expected a Tensor \[slots, HV, V, K\].*, got None"):
        replay(initial_state=None)


def test_the_note_names_both_sides_of_the_key_ring(replay: Call):
    with pytest.raises(ContractViolation) as caught:
        replay(k_cache=T(6, 2, 4, 16))
    error = caught.value
    assert (error.bindings["H"].size, error.bindings["H"].source) == (1, "derived by let")
    assert error.arguments["k_cache"].shape == (6, 2, 4, 16)
    assert "k_cache" in error.__notes__[0].splitlines()[0]


class Plain(Tensor):
    """A subclass without behaviour of its own."""


ACCEPTED = {
    "A01": {
        "mixed_qkv": T(0, 96),
        "a": T(0, 2, 16),
        "b": T(0, 2),
        "out": T(0, 1, 2, 32),
        "ssm_state_indices": ints(),
        "write_pos": ints(),
    },
    "A09": {"mixed_qkv": torch.randn(3, 128)[:, :96]},
    "A11": {"initial_state": torch.randn(6, 2, 2, 32, 16)[:, 1]},
    "A11-padded-slots": {"initial_state": torch.randn(6, 1024 + 257)[:, :1024].view(6, 2, 32, 16)},
    "A13-one-row-of-gates": {"mixed_qkv": torch.randn(1, 96).expand(3, 96), "b": torch.randn(1, 2).expand(3, 2)},
    "A19": {"ssm_state_indices": ints(-1, 3, 5)},
    "A19-any-negative": {"ssm_state_indices": ints(-7, -(2**31), 5)},
    "A19-a-cursor-of-padding": {"ssm_state_indices": ints(-1, 3, 5), "write_pos": ints(99, 3, 1)},
    "A19-padding-twice": {"ssm_state_indices": ints(-1, -1, 5)},
    "A25-parameters": {"A_log": torch.nn.Parameter(T(2)), "dt_bias": torch.nn.Parameter(T(2, 16))},
    "A25-subclass": {"mixed_qkv": torch.randn(3, 96).as_subclass(Plain)},
    "A27-whole-number": {"scale": 1, "lower_bound": -5},
    "A27-numpy": {"scale": np.float64(0.25), "lower_bound": np.float32(-5)},
    "int64-slots": {"ssm_state_indices": torch.tensor([1, 3, 5])},
    "strided-slots": {"ssm_state_indices": ints(1, 9, 3, 9, 5, 9)[::2], "write_pos": ints(0, 9, 3, 9, 1, 9)[::2]},
    "16-bit-state": {"initial_state": torch.randn(6, 2, 32, 16).half()},
    "16-bit-rings-beside-an-fp32-state": {
        "d_cache": torch.randn(6, 2, 4, 32).bfloat16(),
        "k_cache": torch.randn(6, 1, 4, 16).bfloat16(),
    },
    "flat-gates": {"a": torch.randn(3, 32), "dt_bias": torch.randn(32)},
    "17-any-value-but-0-flushes": {"force_flush": ints(-1, 0, 7)},
    "10400-a-pool-with-nan-in-other-slots": {
        "initial_state": torch.randn(6, 2, 32, 16).index_fill_(0, torch.tensor([0, 2, 4]), math.nan)
    },
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_unusual_but_right_is_accepted(replay: Call, name: str):
    out, _ = replay(**ACCEPTED[name])
    assert out.isfinite().all()


def test_A15_sizes_that_are_no_power_of_two(replay: Call):  # noqa: N802 - the id of the report
    changed = {
        "mixed_qkv": torch.randn(3, 2 * 24 + 2 * 20),
        "a": torch.randn(3, 2, 24),
        "dt_bias": torch.randn(2, 24),
        "initial_state": torch.randn(6, 2, 20, 24),
        "d_cache": T(6, 2, 3, 20),
        "k_cache": T(6, 1, 3, 24),
        "g_cache": T(6, 2, 3, 24),
        "out": T(3, 1, 2, 20),
        "write_pos": ints(0, 2, 1),
    }
    assert replay(**changed)[0].isfinite().all()


def pools(seed: int = 0) -> dict[str, Tensor]:
    gen = torch.Generator().manual_seed(seed)
    shapes = {
        "initial_state": (6, 2, 32, 16),
        "d_cache": (6, 2, 4, 32),
        "k_cache": (6, 1, 4, 16),
        "g_cache": (6, 2, 4, 16),
    }
    return {name: -torch.rand(shape, generator=gen) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"write_pos": ints(4, 0, 1)}, id="R41"),
        pytest.param({"write_pos": ints(-1, 0, 1)}, id="4-before-the-ring"),
        pytest.param({"ssm_state_indices": ints(6, 3, 5)}, id="sglang-19415-index-beyond-the-pool"),
        pytest.param({"ssm_state_indices": ints(2**31 - 1, 3, 5)}, id="2-far-beyond-the-pool"),
        pytest.param({"ssm_state_indices": ints(-1, 3, 5)}, id="A19"),
    ],
)
def test_a_row_that_cannot_be_served_is_padding(replay: Call, changed: dict[str, Any]):
    """The contract refuses all but the last of these; unchecked, nothing is read or written out of bounds."""
    given = pools()
    before = {name: x.clone() for name, x in given.items()}
    cursors = changed.get("write_pos", ints(0, 3, 1)).clone()
    with tensorpact.enforcement("off"):
        out, _ = replay(**given, **changed)
    assert not out[0].any()
    assert out[1:].isfinite().all()
    for name in POOLS:
        assert torch.equal(given[name][[0, 1, 2, 4]], before[name][[0, 1, 2, 4]])
    assert torch.equal(changed.get("write_pos", ints(0, 3, 1)), cursors)
