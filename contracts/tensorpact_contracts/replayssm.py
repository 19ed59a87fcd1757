"""Contracts of decoding with Kimi Delta Attention: the state alone (packed decode), or a state with replay rings."""

from torch import Tensor

from tensorpact import Contract
from tensorpact.clauses import (
    Clause,
    any_of,
    distinct,
    dtype,
    layout,
    less_than,
    let,
    live,
    named_axes,
    no_overlap,
    require,
    same_device,
    same_dtype,
    shape,
    values,
    within,
)
from tensorpact.clauses import rank as rank_of

from ._backends import triton_forced
from ._replayssm_errors import (
    A_LAYOUT,
    A_LOG_LENGTH,
    A_ROWS,
    A_SHAPE,
    A_WIDTH,
    AB_LAYOUT,
    AB_RANK,
    ACTIVATION_DTYPE,
    B_WIDTH,
    BATCH_SIZES,
    D_CACHE_SHAPE,
    DEVICES,
    DT_BIAS_LAYOUT,
    DT_BIAS_LENGTH,
    DT_BIAS_SHAPE,
    EMPTY_HEADS,
    EXPANDED,
    FORCE_FLUSH,
    FORCE_FLUSH_DEVICE,
    G_CACHE_DTYPE,
    G_CACHE_SHAPE,
    GATE_PARAMETER_DTYPE,
    GATE_PARAMETER_LAYOUT,
    GATE_PARAMETER_RANK,
    HALF_FORMATS,
    HEAD_CONFIG,
    INDICES_DTYPE,
    INDICES_RANK,
    INDICES_SHAPE,
    K_CACHE_SHAPE,
    LOWER_BOUND,
    MAX_RING,
    MIXED_QKV_LAYOUT,
    MIXED_QKV_RANK,
    OUT_LAYOUT,
    OUT_OVERLAP,
    OUT_SHAPE,
    POOL_OVERLAP,
    Q_SIZE,
    QKV_WIDTH,
    REQUIRES_CUDA,
    RING_DEVICES,
    RING_DTYPE,
    RING_EMPTY,
    RING_LIMIT,
    SCALE,
    SLOT_COUNTS,
    SLOT_RANGE,
    SLOT_REPEATED,
    STATE_AXES,
    STATE_DTYPE,
    STATE_LAYOUT,
    STATE_RANK,
    WRITE_POS,
    WRITE_POS_RANGE,
    WRITE_POS_SHAPE,
)
from ._values import fits_float

_DIMS = {
    "B": "rows of the batch, one new token each, padding rows included",
    "C": "columns of a packed row: queries of all heads, then keys, then values",
    "H": "query heads on this rank, and as many key heads",
    "HV": "value heads on this rank, a multiple of H",
    "K": "head dim of queries and keys",
    "V": "head dim of values",
    "slots": "rows of the state pool, one a sequence",
}
_BINDS = {"B": "mixed_qkv", "HV": "initial_state", "K": "initial_state", "V": "initial_state"}


def _one_half_format(mixed_qkv: Tensor, a: Tensor, b: Tensor, out: Tensor) -> bool:
    return (
        (mixed_qkv.dtype == a.dtype or mixed_qkv.itemsize != a.itemsize)
        and (mixed_qkv.dtype == b.dtype or mixed_qkv.itemsize != b.itemsize)
        and (mixed_qkv.dtype == out.dtype or mixed_qkv.itemsize != out.itemsize)
        and (a.dtype == b.dtype or a.itemsize != b.itemsize)
        and (a.dtype == out.dtype or a.itemsize != out.itemsize)
        and (b.dtype == out.dtype or b.itemsize != out.itemsize)
    )


def _is_decay(lower_bound: float | None) -> bool:
    return lower_bound is None or (lower_bound < 0 and fits_float(lower_bound))


#: Public checks that both entry points make alike; between them stand those of `a`, `b` and the gate parameters.
_PACKED_ROW: list[Clause] = [
    rank_of("mixed_qkv", error=MIXED_QKV_RANK),
    layout("mixed_qkv", error=MIXED_QKV_LAYOUT),
]
_INDICES_AND_DEVICES: list[Clause] = [
    rank_of("ssm_state_indices", error=INDICES_RANK),
    layout("out", error=OUT_LAYOUT),
    same_device("mixed_qkv", "a", "b", "A_log", "dt_bias", "initial_state", "out", "ssm_state_indices", error=DEVICES),
]
_STATE: list[Clause] = [
    shape("ssm_state_indices", error=INDICES_SHAPE),
    rank_of("initial_state", error=STATE_RANK),
    layout("initial_state", error=STATE_LAYOUT),
]
_HEADS: list[Clause] = [
    shape("out", error=OUT_SHAPE),
    let(qk=lambda C, HV, V: C - HV * V),
    require(lambda qk: qk > 0 and qk % 2 == 0, error=QKV_WIDTH, about="mixed_qkv"),
    let(q_dim=lambda qk: qk // 2),
    require(lambda K: K >= 1, error=EMPTY_HEADS, about="initial_state"),
    require(lambda q_dim, K: q_dim % K == 0, error=Q_SIZE, about="mixed_qkv"),
    let(H=lambda q_dim, K: q_dim // K),
    require(lambda H, HV: HV % H == 0, error=HEAD_CONFIG, about="mixed_qkv"),
]


def _beyond_the_public_checks(*rings: str) -> list[Clause]:
    """What both entry points hold against mistakes that the public checks let through.

    Args:
        *rings: Names of the rings, which are written like the state.
    """
    inputs = ("mixed_qkv", "a", "b", "A_log", "dt_bias")
    integers = ("ssm_state_indices", "write_pos", "force_flush") if rings else ("ssm_state_indices",)
    pools = ("initial_state", *rings)
    return [
        named_axes("initial_state", error=STATE_AXES),
        require(lambda HV, V: HV >= 1 and V >= 1, error=EMPTY_HEADS, about="initial_state"),
        dtype("mixed_qkv", "a", "b", "out", error=ACTIVATION_DTYPE),
        require(_one_half_format, error=HALF_FORMATS),
        dtype("A_log", "dt_bias", error=GATE_PARAMETER_DTYPE),
        dtype("initial_state", error=STATE_DTYPE),
        dtype("ssm_state_indices", error=INDICES_DTYPE),
        require(lambda scale: fits_float(scale), error=SCALE, about="scale"),
        require(_is_decay, error=LOWER_BOUND, about="lower_bound"),
        any_of(*(no_overlap(name) for name in ("out", *pools)), error=EXPANDED),
        no_overlap("out", *inputs, "initial_state", *rings, *integers, error=OUT_OVERLAP),
        # Inputs may share memory with one another, but not with what is written; each clause names the pools behind it.
        *(no_overlap(*pools[i:], *inputs, *integers, error=POOL_OVERLAP) for i in range(len(pools))),
        require(lambda mixed_qkv: mixed_qkv.is_cuda or not triton_forced(), error=REQUIRES_CUDA, about="mixed_qkv"),
        values("ssm_state_indices", less_than("slots"), padding="negative", error=SLOT_RANGE),
        values("ssm_state_indices", distinct(), padding="negative", error=SLOT_REPEATED),
    ]


REPLAYSSM_DECODE = Contract(
    "fused_recurrent_kda_replayssm_decode",
    dims={**_DIMS, "L": "length of a ring: tokens between two writes of the state"},
    binds={**_BINDS, "L": "d_cache"},
    mutates=("out", "initial_state", "d_cache", "k_cache", "g_cache"),
    reference="tensorpact_kernels.replayssm.naive:naive_replayssm_decode_",
    clauses=[
        any_of(rank_of("a"), layout("a"), error=A_LAYOUT),
        any_of(rank_of("dt_bias"), layout("dt_bias"), error=DT_BIAS_LAYOUT),
        require(lambda a, B: a.numel() % max(B, 1) == 0, error=A_ROWS, about="a"),
        # The shared checks see `a` flattened.
        let(a_shape=lambda a, B: (B, a.numel() // max(B, 1))),
        *_PACKED_ROW,
        rank_of("b", error=AB_RANK),
        layout("b", error=AB_LAYOUT),
        rank_of("A_log", error=GATE_PARAMETER_RANK),
        layout("A_log", error=GATE_PARAMETER_LAYOUT),
        *_INDICES_AND_DEVICES,
        shape("b", axes="B", error=BATCH_SIZES),
        *_STATE,
        require(lambda a, B, HV, K: a.numel() == B * HV * K, error=A_WIDTH, about="a"),
        shape("b", axes="HV", error=B_WIDTH),
        shape("A_log", error=A_LOG_LENGTH),
        require(lambda dt_bias, HV, K: dt_bias.numel() == HV * K, error=DT_BIAS_LENGTH, about="dt_bias"),
        *_HEADS,
        any_of(rank_of("write_pos"), dtype("write_pos"), error=WRITE_POS),
        shape("write_pos", error=WRITE_POS_SHAPE),
        any_of(rank_of("force_flush"), dtype("force_flush"), shape("force_flush"), error=FORCE_FLUSH),
        require(lambda L: L >= 1, error=RING_EMPTY, about="d_cache"),
        shape("d_cache", axes="HV L V", error=D_CACHE_SHAPE),
        shape("k_cache", axes="H L K", error=K_CACHE_SHAPE),
        shape("g_cache", axes="HV L K", error=G_CACHE_SHAPE),
        dtype("g_cache", error=G_CACHE_DTYPE),
        same_device("mixed_qkv", "d_cache", "k_cache", "g_cache", "write_pos", error=RING_DEVICES),
        same_device("mixed_qkv", "force_flush", error=FORCE_FLUSH_DEVICE),
        shape("d_cache", "k_cache", "g_cache", axes="slots", error=SLOT_COUNTS),
        shape("a", error=A_SHAPE),
        shape("dt_bias", error=DT_BIAS_SHAPE),
        require(lambda L: L <= MAX_RING, error=RING_LIMIT, about="d_cache"),
        any_of(dtype("d_cache", "k_cache"), same_dtype("d_cache", "k_cache"), error=RING_DTYPE),
        *_beyond_the_public_checks("d_cache", "k_cache", "g_cache"),
        # The cursor of a row of padding may be anything: nothing is read there.
        values("write_pos", within(0, "L"), active=live("ssm_state_indices"), error=WRITE_POS_RANGE),
    ],
)

PACKED_DECODE = Contract(
    "fused_recurrent_kda_packed_decode",
    dims=_DIMS,
    binds=_BINDS,
    mutates=("out", "initial_state"),
    reference="tensorpact_kernels.replayssm.naive:naive_packed_decode_",
    clauses=[
        let(a_shape=lambda a: tuple(a.shape)),
        *_PACKED_ROW,
        rank_of("a", "b", error=AB_RANK),
        layout("a", "b", error=AB_LAYOUT),
        rank_of("A_log", "dt_bias", error=GATE_PARAMETER_RANK),
        layout("A_log", "dt_bias", error=GATE_PARAMETER_LAYOUT),
        *_INDICES_AND_DEVICES,
        shape("a", "b", axes="B", error=BATCH_SIZES),
        *_STATE,
        shape("a", axes="HV*K", error=A_WIDTH),
        shape("b", axes="HV", error=B_WIDTH),
        shape("A_log", error=A_LOG_LENGTH),
        shape("dt_bias", error=DT_BIAS_LENGTH),
        *_HEADS,
        *_beyond_the_public_checks(),
    ],
)
