"""Torch side of the Kimi delta attention decode: which kernel, its tiles, and its launch.

Nothing here reads a tensor's contents, so both launchers can run inside a CUDA graph.
"""

# Triton has no stubs.
# pyright: reportMissingTypeStubs=false

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tensorpact_kernels._launching import Launcher, multiprocessors, on_device, padded, runs_on_hopper

_STAGED_MODULE = "tensorpact_kernels.replayssm.device_staged"
_STAGED_BYTES = 1 << 16
_VECTOR_BYTES = 16
_STRIDE_MULTIPLE = 16
_NO_RING = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class StreamedConfig:
    """How the portable kernel streams the state of one row and value head.

    Attributes:
        block_v: Rows of the state in a tile; a power of two, at least 16.
        num_warps: Warps of a program.
        num_stages: Tiles in flight.
        parts: Programs that share the rows; each reads the whole ring.
    """

    block_v: int
    num_warps: int
    num_stages: int
    parts: int = 1


@dataclass(frozen=True, slots=True)
class StagedConfig:
    """How the Gluon kernel stages the state of one row and value head in shared memory.

    Attributes:
        tile: Rows that are worked on at a time; a power of two, at least 16 for each warp.
        tiles: Tiles of a program; a power of two.
        num_warps: Warps of a program.
        registers: Most registers of a thread, which decides how many programs share a multiprocessor.
    """

    tile: int
    tiles: int
    num_warps: int
    registers: int | None = None


Config = StreamedConfig | StagedConfig


def streamed_config(key_dim: int, ring: int) -> StreamedConfig:
    """Choose the portable tile: more warps only where a ring of keys would not fit the registers of one."""
    return StreamedConfig(16, max(1, min(8, padded(ring) * padded(key_dim) // 2048)), 3)


def staged_config(programs: int, state: Tensor) -> StagedConfig | None:
    """Choose how a state is staged; None if the Gluon kernel does not take its shape.

    Args:
        programs: Rows of the batch times value heads.
        state: The pool of states.
    """
    value_dim, key_dim = state.shape[2:]
    if key_dim not in (64, 128, 256) or value_dim % 64:
        return None
    size = state.element_size()
    pairs = value_dim % 128 == 0 and 128 * key_dim * size <= _STAGED_BYTES
    # Few programs leave multiprocessors idle: halves of a head then keep twice as many busy.
    if not pairs or programs <= 2 * multiprocessors(state.device):
        return StagedConfig(64, 1, 4)
    return StagedConfig(64, 2, 4, 128 if size == 4 else 80)


def replayssm_decode_triton(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    d_cache: Tensor,
    k_cache: Tensor,
    g_cache: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    write_pos: Tensor,
    force_flush: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
    *,
    round_beta: bool = False,
    config: Config | None = None,
) -> None:
    """Run ``fused_recurrent_kda_replayssm_decode`` in Triton; ``config`` takes the place of the chosen kernel."""
    rings = (d_cache, k_cache, g_cache)
    steps = (ssm_state_indices, write_pos, force_flush)
    weights = (a, b, A_log, dt_bias)
    heads = k_cache.shape[1]
    options = _Options(use_qk_l2norm_in_kernel, lower_bound, round_beta)
    _launch(mixed_qkv, weights, scale, initial_state, rings, out, steps, heads, options, config)


def packed_decode_triton(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
    *,
    round_beta: bool = False,
    config: Config | None = None,
) -> None:
    """Run ``fused_recurrent_kda_packed_decode`` in Triton; ``config`` takes the place of the chosen kernel."""
    value_heads, value_dim, key_dim = initial_state.shape[1:]
    heads = (mixed_qkv.shape[1] - value_heads * value_dim) // (2 * key_dim)
    steps = (ssm_state_indices, None, None)
    weights = (a, b, A_log, dt_bias)
    options = _Options(use_qk_l2norm_in_kernel, lower_bound, round_beta)
    _launch(mixed_qkv, weights, scale, initial_state, None, out, steps, heads, options, config)


@dataclass(frozen=True, slots=True)
class _Options:
    normalise: bool
    lower_bound: float | None
    round_beta: bool


def _launch(
    qkv: Tensor,
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    scale: float,
    state: Tensor,
    rings: tuple[Tensor, Tensor, Tensor] | None,
    out: Tensor,
    steps: tuple[Tensor, Tensor | None, Tensor | None],
    heads: int,
    options: _Options,
    config: Config | None,
) -> None:
    slots, value_heads, value_dim, key_dim = state.shape
    programs = qkv.shape[0] * value_heads
    if not programs * value_dim:
        return
    a, b, _, _ = weights
    d_cache, k_cache, g_cache = rings or (None, None, None)
    ring = 0 if d_cache is None else d_cache.shape[2]
    bounded = options.lower_bound is not None
    state_strides = state.stride()[:3]
    strides = (
        qkv.stride(0),
        a.stride(0),
        b.stride(0),
        *state_strides,
        *(_NO_RING if d_cache is None else d_cache.stride()),
        *(_NO_RING if k_cache is None else k_cache.stride()),
        *(_NO_RING if g_cache is None else g_cache.stride()),
        *(0 if step is None else step.stride(0) for step in steps),
    )
    # What Triton's choice of a compiled form depends on, besides sizes and strides; torch.compile makes its own.
    tensors = (qkv, *weights, state, d_cache, k_cache, g_cache, out)
    known = not torch.compiler.is_compiling() and _aligned(tensors)
    copies = known and qkv.is_cuda and all(stride % _STRIDE_MULTIPLE == 0 for stride in state_strides)
    if config is None and copies and runs_on_hopper(_STAGED_MODULE, qkv.device.index):
        config = staged_config(programs, state)
    config = config or streamed_config(key_dim, ring)
    constants: dict[str, Any] = {
        "GROUP": value_heads // heads,
        "K": key_dim,
        "V": value_dim,
        "L": ring,
        "BLOCK_L": padded(ring),
        "NORMALISE": options.normalise,
        "BOUNDED": bounded,
        "ROUND_BETA": options.round_beta,
        "RING": ring > 0,
    }
    if isinstance(config, StagedConfig):
        parts = value_dim // (config.tile * config.tiles)
        constants |= {"TILE": config.tile, "TILES": config.tiles, "PARTS": parts}
        launch_options = {"num_warps": config.num_warps, "maxnreg": config.registers}
    else:
        block_v = min(config.block_v, padded(value_dim))
        rows = -(-value_dim // (config.parts * block_v)) * block_v
        parts = -(-value_dim // rows)
        constants |= {"BLOCK_K": padded(key_dim), "BLOCK_V": block_v, "ROWS": rows, "PARTS": parts}
        constants["STAGES"] = config.num_stages
        launch_options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    key = None
    if known:
        dtypes = tuple(None if tensor is None else tensor.dtype for tensor in (*tensors, *steps))
        key = (qkv.device.index, config, dtypes, strides, options, state.shape[1:], ring, heads)
    lower_bound = options.lower_bound or 0.0
    numbers = (float(scale), float(lower_bound), slots, value_heads)
    with on_device(qkv.device):
        _launcher(staged=isinstance(config, StagedConfig))(
            key, programs * parts, (*tensors, *steps, *numbers, *strides), constants, **launch_options
        )


def _aligned(tensors: tuple[Tensor | None, ...]) -> bool:
    pointers = 0
    for tensor in tensors:
        if tensor is not None:
            pointers |= tensor.data_ptr()
    return pointers % _VECTOR_BYTES == 0


@cache
def _launcher(*, staged: bool) -> Launcher:
    if staged:
        from tensorpact_kernels.replayssm import device_staged

        return Launcher(device_staged.kda_staged_kernel)
    from tensorpact_kernels.replayssm import device

    return Launcher(device.kda_streamed_kernel)
