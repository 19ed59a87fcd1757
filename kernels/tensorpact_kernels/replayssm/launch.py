"""Torch side of the Kimi delta attention decode: which kernel, its tiles, and its launch.

Nothing here reads a tensor's contents, so both launchers can run inside a CUDA graph.
"""

# Triton has no stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tensorpact.reporting import NO_FLAG, Flag, Told, kernel_flag
from tensorpact_kernels._launching import Launches, multiprocessors, on_device, padded, runs_on_hopper

_STAGED_MODULE = "tensorpact_kernels.replayssm.device_staged"
_STAGED_BYTES = 1 << 16
_VECTOR_BYTES = 16
_STRIDE_MULTIPLE = 16
_NO_RING = (0, 0, 0, 0)

#: Checks that both kernels make on what they mask, in the order of their device functions.
CHECKS = (Told("ssm_state_indices", "less_than"), Told("write_pos", "within"))


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
    return StagedConfig(64, 2, 4, None if size == 4 else 80)


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
    tensors = (mixed_qkv, a, b, A_log, dt_bias, initial_state, d_cache, k_cache, g_cache, out)
    steps = (ssm_state_indices, write_pos, force_flush)
    flags = (use_qk_l2norm_in_kernel, lower_bound is not None, round_beta)
    _start((*tensors, *steps), (float(scale), float(lower_bound or 0.0)), flags, config)


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
    tensors = (mixed_qkv, a, b, A_log, dt_bias, initial_state, None, None, None, out)
    flags = (use_qk_l2norm_in_kernel, lower_bound is not None, round_beta)
    _start((*tensors, ssm_state_indices, None, None), (float(scale), float(lower_bound or 0.0)), flags, config)


_Tensors = tuple[Tensor | None, ...]
_launches = Launches()


def _start(
    tensors: _Tensors, numbers: tuple[float, float], flags: tuple[bool, bool, bool], config: Config | None
) -> None:
    qkv, state = tensors[0], tensors[5]
    if qkv is None or state is None or not qkv.shape[0] or 0 in state.shape[1:]:
        return
    with on_device(qkv.device):
        if torch.compiler.is_compiling():
            _first(None, qkv, state, tensors, numbers, flags, config, NO_FLAG)
            return
        flag = kernel_flag(qkv, CHECKS)
        addresses, key = _key(qkv, state, tensors, flags, config, flag)
        if key is None or not _launches.again(key, *addresses, *numbers, *flag):
            _first(key, qkv, state, tensors, numbers, flags, config, flag)


def _key(
    qkv: Tensor, state: Tensor, tensors: _Tensors, flags: tuple[bool, bool, bool], config: Config | None, flag: Flag
) -> tuple[list[int | None], Hashable]:
    """Return the addresses, and a name for all else that a kernel is compiled for; None where an address is odd."""
    pointers = 0
    addresses: list[int | None] = []
    # The number of a call is compiled in as one of 32 bits while it is one.
    width = None if flag[2] is None else flag[2] >> 31
    parts: list[Any] = [qkv.device.index, qkv.shape, state.shape, flags, config, width]
    for tensor in tensors:
        if tensor is None:
            parts.append(None)
            addresses.append(None)
        else:
            address = tensor.data_ptr()
            addresses.append(address)
            pointers |= address
            parts += (tensor.dtype, tensor.stride())
    d_cache, k_cache = tensors[6], tensors[7]
    if d_cache is not None and k_cache is not None:
        parts += (d_cache.shape[2], k_cache.shape[1])
    return addresses, None if pointers % _VECTOR_BYTES else tuple(parts)


def _first(
    key: Hashable,
    qkv: Tensor,
    state: Tensor,
    tensors: _Tensors,
    numbers: tuple[float, float],
    flags: tuple[bool, bool, bool],
    config: Config | None,
    flag: Flag,
) -> None:
    slots, value_heads, value_dim, key_dim = state.shape
    _, a, b, _, _, _, d_cache, k_cache, g_cache, _, *steps = tensors
    programs = qkv.shape[0] * value_heads
    ring = 0 if d_cache is None else d_cache.shape[2]
    packed_heads = (qkv.shape[1] - value_heads * value_dim) // (2 * key_dim)
    strides = (
        *(0 if tensor is None else tensor.stride(0) for tensor in (qkv, a, b)),
        *state.stride()[:3],
        *(
            stride
            for tensor in (d_cache, k_cache, g_cache)
            for stride in (tensor.stride() if tensor is not None else _NO_RING)
        ),
        *(0 if step is None else step.stride(0) for step in steps),
    )
    normalise, bounded, round_beta = flags
    constants: dict[str, Any] = {
        "GROUP": value_heads // packed_heads,
        "K": key_dim,
        "V": value_dim,
        "L": ring,
        "BLOCK_L": padded(ring),
        "NORMALISE": normalise,
        "BOUNDED": bounded,
        "ROUND_BETA": round_beta,
        "RING": ring > 0,
    }
    copies = key is not None and qkv.is_cuda and all(stride % _STRIDE_MULTIPLE == 0 for stride in state.stride()[:3])
    if config is None and copies and runs_on_hopper(_STAGED_MODULE, qkv.device.index):
        config = staged_config(programs, state)
    config = config or streamed_config(key_dim, ring)
    if isinstance(config, StagedConfig):
        from tensorpact_kernels.replayssm.device_staged import kda_staged_kernel as kernel

        parts = value_dim // (config.tile * config.tiles)
        constants |= {"TILE": config.tile, "TILES": config.tiles, "PARTS": parts}
        options = {"num_warps": config.num_warps, "maxnreg": config.registers}
    else:
        from tensorpact_kernels.replayssm.device import kda_streamed_kernel as kernel

        block_v = min(config.block_v, padded(value_dim))
        rows = -(-value_dim // (config.parts * block_v)) * block_v
        parts = -(-value_dim // rows)
        constants |= {"BLOCK_K": padded(key_dim), "BLOCK_V": block_v, "ROWS": rows, "PARTS": parts}
        constants["STAGES"] = config.num_stages
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    fixed = (slots, value_heads, *strides)
    _launches.first(key, kernel, programs * parts, (*tensors, *numbers, *flag), fixed, constants, **options)
