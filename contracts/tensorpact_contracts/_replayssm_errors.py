"""Documented errors of the KDA decode family, in firing order; ``replayssm`` is where they are found."""

import functools

from tensorpact import DocumentedError, axis_names

MAX_RING = 64
"""Longest ring that the kernel keeps in registers, in tokens."""

_documented = functools.partial(DocumentedError, module="tensorpact_contracts.replayssm")

A_LAYOUT = _documented("a-layout", ValueError, "KDA `a` must be a contiguous 2D or 3D tensor.")
DT_BIAS_LAYOUT = _documented("dt-bias-layout", ValueError, "KDA `dt_bias` must be a contiguous 1D or 2D tensor.")
A_ROWS = _documented(
    "a-rows", RuntimeError, "KDA `a` has {a.numel()} elements, which do not divide into the {B} rows of `mixed_qkv`."
)

# The validator that both entry points share. Where the text reads `a_shape`, one sees `a` flattened, the other as is.
MIXED_QKV_RANK = _documented(
    "mixed-qkv-rank", ValueError, "`mixed_qkv` must be a 2D tensor (got ndim={mixed_qkv.ndim})."
)
MIXED_QKV_LAYOUT = _documented("mixed-qkv-layout", ValueError, "`mixed_qkv` must be contiguous in the last dim.")
AB_RANK = _documented(
    "a-b-rank", ValueError, "`a` and `b` must be 2D tensors (got a.ndim={len(a_shape)}, b.ndim={b.ndim})."
)
AB_LAYOUT = _documented("a-b-layout", ValueError, "`a`/`b` must be contiguous in the last dim.")
GATE_PARAMETER_RANK = _documented("a-log-dt-bias-rank", ValueError, "`A_log`/`dt_bias` must be 1D tensors.")
GATE_PARAMETER_LAYOUT = _documented("a-log-dt-bias-layout", ValueError, "`A_log`/`dt_bias` must be contiguous.")
INDICES_RANK = _documented(
    "ssm-state-indices-rank",
    ValueError,
    "`ssm_state_indices` must be 1D for packed decode (got ndim={ssm_state_indices.ndim}).",
)
OUT_LAYOUT = _documented("out-layout", ValueError, "`out` must be contiguous.")
DEVICES = _documented("inputs-on-several-devices", ValueError, "All inputs must be on the same device.")
BATCH_SIZES = _documented(
    "batch-sizes-differ",
    ValueError,
    "Mismatched batch sizes: mixed_qkv.shape[0]={B}, a.shape[0]={a_shape[0]}, b.shape[0]={b.shape[0]}.",
)
INDICES_SHAPE = _documented(
    "ssm-state-indices-shape",
    ValueError,
    "`ssm_state_indices` must have shape [B] (got {tuple(ssm_state_indices.shape)}; expected ({B},)).",
)
STATE_RANK = _documented(
    "initial-state-rank", ValueError, "`initial_state` must be a 4D tensor (got ndim={initial_state.ndim})."
)
STATE_LAYOUT = _documented("initial-state-layout", ValueError, "`initial_state` must be contiguous in the last dim.")
A_WIDTH = _documented(
    "a-width", ValueError, "`a` must have shape [B, HV*K] with HV={HV}, K={K} (got a.shape={a_shape})."
)
B_WIDTH = _documented("b-width", ValueError, "`b` must have shape [B, HV] with HV={HV} (got b.shape={tuple(b.shape)}).")
A_LOG_LENGTH = _documented("a-log-length", ValueError, "`A_log` must have {HV} elements (got {A_log.numel()}).")
DT_BIAS_LENGTH = _documented(
    "dt-bias-length", ValueError, "`dt_bias` must have {HV * K} elements (got {dt_bias.numel()})."
)
OUT_SHAPE = _documented(
    "out-shape", ValueError, "`out` must have shape {(B, 1, HV, V)} (got out.shape={tuple(out.shape)})."
)
QKV_WIDTH = _documented("mixed-qkv-width", ValueError, "Invalid packed `mixed_qkv` last dim={C} for HV={HV}, V={V}.")
EMPTY_HEADS = _documented(
    "empty-heads", ValueError, "`initial_state` must have sizes above 0 behind its slots (got HV={HV}, V={V}, K={K})."
)
Q_SIZE = _documented(
    "packed-q-size",
    ValueError,
    "Invalid packed Q size {q_dim}: must be divisible by K={K}. KDA packed decode requires num_q_heads == num_k_heads"
    " and head_q_dim == head_k_dim.",
)
HEAD_CONFIG = _documented("head-config", ValueError, "Invalid head config inferred from mixed_qkv: H={H}, HV={HV}.")

WRITE_POS = _documented("write-pos", ValueError, "`write_pos` must be a 1D int32 tensor.")
WRITE_POS_SHAPE = _documented("write-pos-shape", ValueError, "`write_pos` must have shape {(B,)}.")
FORCE_FLUSH = _documented("force-flush", ValueError, "`force_flush` must be a length-B int32 tensor or None.")
RING_EMPTY = _documented("ring-empty", ValueError, "ReplaySSM cache length must be at least 1.")
D_CACHE_SHAPE = _documented("d-cache-shape", ValueError, "`d_cache` must have shape [slots, HV, L, V].")
K_CACHE_SHAPE = _documented(
    "k-cache-must-have-shape-slots-h-l-k", ValueError, "`k_cache` must have shape [slots, H, L, K]."
)
G_CACHE_SHAPE = _documented("g-cache-shape", ValueError, "`g_cache` must have shape [slots, HV, L, K].")
G_CACHE_DTYPE = _documented("g-cache-dtype", ValueError, "`g_cache` must have dtype torch.float32.")
RING_DEVICES = _documented("ring-devices-differ", ValueError, "ReplaySSM inputs must be on the same device.")
FORCE_FLUSH_DEVICE = _documented(
    "force-flush-device", ValueError, "`force_flush` must be on the same device as the inputs."
)

# From here on: what the public checks let through.
SLOT_COUNTS = _documented(
    "slot-counts-differ",
    ValueError,
    "Rings must have one row for each of the {slots} slots of `initial_state`; of another length: {names}.",
)
A_SHAPE = _documented(
    "a-shape", ValueError, "`a` must have shape {(B, HV, K)} or {(B, HV * K)} (got {tuple(a.shape)})."
)
DT_BIAS_SHAPE = _documented(
    "dt-bias-shape", ValueError, "`dt_bias` must have shape {(HV, K)} or {(HV * K,)} (got {tuple(dt_bias.shape)})."
)
STATE_AXES = _documented(
    "initial-state-axes",
    ValueError,
    "`initial_state` must have the axes [slots, HV, V, K] (named [{named}]).",
    {"named": lambda initial_state: ", ".join(axis_names(initial_state) or ())},
)
RING_LIMIT = _documented(
    "ring-too-long",
    ValueError,
    "ReplaySSM cache length must be at most {limit} (got {L}).",
    {"limit": lambda d_cache: MAX_RING},
)
ACTIVATION_DTYPE = _documented(
    "activation-dtype", TypeError, "`mixed_qkv`, `a`, `b` and `out` are fp32, bf16 or fp16; of another dtype: {names}."
)
HALF_FORMATS = _documented(
    "bf16-beside-fp16",
    TypeError,
    "bf16 and fp16 must not stand side by side: mixed_qkv={mixed_qkv.dtype}, a={a.dtype}, b={b.dtype},"
    " out={out.dtype}.",
)
GATE_PARAMETER_DTYPE = _documented(
    "a-log-dt-bias-dtype", TypeError, "`A_log` and `dt_bias` are fp64, fp32, bf16 or fp16; of another dtype: {names}."
)
STATE_DTYPE = _documented(
    "initial-state-dtype", TypeError, "`initial_state` must be fp32, bf16 or fp16 (got {initial_state.dtype})."
)
RING_DTYPE = _documented(
    "ring-dtype",
    TypeError,
    "`d_cache` and `k_cache` share one dtype, fp32, bf16 or fp16 (got {d_cache.dtype} and {k_cache.dtype}).",
)
INDICES_DTYPE = _documented(
    "ssm-state-indices-dtype",
    TypeError,
    "`ssm_state_indices` must be int32 or int64 (got {ssm_state_indices.dtype}).",
)
SCALE = _documented("scale-not-finite", ValueError, "`scale` must be finite (got {scale}).")
LOWER_BOUND = _documented(
    "lower-bound-not-negative", ValueError, "`lower_bound` must be finite and below 0, or None (got {lower_bound})."
)
EXPANDED = _documented(
    "written-tensor-expanded",
    ValueError,
    "A tensor that is written needs memory for each of its elements; several share an address in: {names}.",
)
OUT_OVERLAP = _documented(
    "out-overlaps", ValueError, "`out` must have memory of its own; it shares some with: {names}."
)
POOL_OVERLAP = _documented(
    "state-and-rings-overlap",
    ValueError,
    "State and rings must share no memory with one another or an input; overlapped by one of them: {names}.",
)
REQUIRES_CUDA = _documented(
    "kda-requires-cuda-or-hip-tensors",
    RuntimeError,
    "Triton KDA decode requires CUDA/HIP tensors (got {mixed_qkv.device}).",
)

# Values, looked at behind everything else.
SLOT_RANGE = _documented(
    "slot-out-of-range",
    ValueError,
    "`ssm_state_indices[{position}]` is {value}, but the pool has {slots} slots; a negative slot is padding.",
)
SLOT_REPEATED = _documented(
    "slot-repeated",
    ValueError,
    "`ssm_state_indices[{position}]` is {value}, as in a row before it; two rows would write one slot at once.",
)
WRITE_POS_RANGE = _documented(
    "write-pos-out-of-range",
    ValueError,
    "`write_pos[{position}]` is {value}, but a ring of {L} tokens is written at 0 to {L - 1}.",
)
