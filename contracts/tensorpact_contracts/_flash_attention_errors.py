"""Documented errors of flash attention, in firing order; ``flash_attention`` is where they are found."""

import functools

from tensorpact import DocumentedError

from ._flash_attention_rules import keys_of, rotary_rows
from ._wording import counted

MOST_COLUMNS = 256
"""Widest head of queries and keys that the kernel keeps in registers."""
MOST_VALUE_COLUMNS = 512
"""Widest head of values."""
MOST_SPLITS = 256
"""Most pieces that the keys of one query may be cut into."""

_documented = functools.partial(DocumentedError, module="tensorpact_contracts.flash_attention")

# The public checks of flash_attn_with_kvcache, then the one of flash_attn_varlen_func.
V_CACHE_MISSING = _documented("v-cache-required", ValueError, "v_cache must be provided")
V_CACHE_LAYOUT = _documented("v-cache-last-dim", AssertionError, "v_cache must have contiguous last dimension")
K_CACHE_MISSING = _documented(
    "k-cache-can-only-be-none-when-only-qv-true", ValueError, "k_cache can only be None when only_qv=True"
)
K_CACHE_LAYOUT = _documented("k-cache-last-dim", AssertionError, "k_cache must have contiguous last dimension")
Q_MISSING = _documented("q-can-only-be-none-when-only-qv-true", ValueError, "q can only be None when only_qv=True")
NO_QUERIES = _documented("q-and-qv-missing", ValueError, "q must be provided unless qv is provided with only_qv=True")
QV_MISSING = _documented("only-qv-requires-qv", ValueError, "only_qv=True requires qv to be provided")
MAX_LENGTHS = _documented("max-seqlens-required", ValueError, "max_seqlen_q and max_seqlen_k are required for FA3")

# What the public kernels check behind them, with the names that the caller knows.
HALF_ONLY = _documented(
    "half-precision-only", RuntimeError, "FlashAttention only supports fp16 and bf16 data type; of another: {names}"
)
SAME_DTYPE = _documented(
    "one-dtype-with-the-query",
    RuntimeError,
    "{leader} and {name} must have the same dtype",
    fields={"leader": lambda q: "v_cache" if q is None else "q"},
)
ON_CUDA = _documented("flash-attention-on-cuda", RuntimeError, "{name} must be on CUDA for the Triton kernel")
INT32 = _documented("lengths-not-int32", RuntimeError, "{name} must have dtype torch.int32")
MAX_LENGTH_Q = _documented(
    "max-seqlen-q-required", RuntimeError, "max_seqlen_q must be provided if cu_seqlens_q is provided"
)
QUERY_RANK = _documented(
    "query-layout",
    RuntimeError,
    "with cu_seqlens_q, queries have shape (total_q, num_heads, head_size), without it (batch_size, seqlen_q, "
    "num_heads, head_size); another number of axes: {names}",
)
BOUNDARIES = _documented(
    "cu-seqlens-length",
    RuntimeError,
    "{name} must be a vector of batch_size + 1 boundaries, here {max(B, 0) + 1}",
)
CACHE_BATCH = _documented(
    "batch-size-of-the-cache",
    RuntimeError,
    "batch_size must be equal to batch_size_k: {sequences}, {held} of {holder}, and no cache_batch_idx",
    fields={
        "sequences": lambda B: counted(B, "sequence"),
        "held": lambda v_cache, page_table: counted((v_cache if page_table is None else page_table).shape[0], "row"),
        "holder": lambda page_table: "k_cache and v_cache" if page_table is None else "page_table",
    },
)
EMPTY_HEADS = _documented(
    "no-heads-or-columns", ValueError, "head counts and head dims must be at least 1; empty in: {names}"
)
HEAD_DIM = _documented(
    "head-dim-limit",
    RuntimeError,
    "FlashAttention forward only supports head dimension at most 256, and 512 for values; wider: {names}",
)
HEAD_GROUPS = _documented(
    "kv-heads-must-divide-query-heads",
    RuntimeError,
    "Number of heads in key/value must divide number of heads in query, got {Hk} and {H} in {names}",
)
CACHE_SHAPE = _documented(
    "cache-shapes-differ",
    RuntimeError,
    "k_cache has the axes [rows, slots, kv heads, D] with the D of q, v_cache the same with a head dim of its own; "
    "does not fit: {names}",
)
KEY_SHAPE = _documented(
    "packed-key-shapes-differ",
    RuntimeError,
    "k has the tokens and heads of v and the head dim of q, in 3 axes with cu_seqlens_k and in 4 without; "
    "does not fit: {names}",
)
SEQUENCE_COUNT = _documented(
    "sequence-counts-differ",
    RuntimeError,
    "the key side must hold the {sequences} of the query side; another number in: {names}",
    fields={"sequences": lambda B: counted(B, "sequence")},
)
PAGE_TABLE_RANK = _documented(
    "page-table-rank",
    RuntimeError,
    "page_table must have one row a sequence and one column a page, got {page_table.ndim} axes",
)
ONE_A_SEQUENCE = _documented("one-number-a-sequence", RuntimeError, "{name} must have shape (batch_size,), here ({B},)")
QUERY_SHAPE = _documented(
    "qv-or-out-shape",
    RuntimeError,
    "qv and out have the tokens and heads of the queries and the head dim of the values, {Dv}; does not fit: {names}",
)
OUT_LAYOUT = _documented("out-last-dim", RuntimeError, "out must have contiguous last dimension")
NEW_PAIR = _documented("k-and-v-together", RuntimeError, "k and v are appended together; missing: {names}")
NEW_LENGTHS = _documented(
    "append-needs-cache-seqlens", RuntimeError, "If k is supplied, cache_seqlens must also be passed in"
)
NEW_SHAPE = _documented(
    "new-token-shape",
    RuntimeError,
    "k and v to append have {sequences} and {heads}, [B, Sn, heads, head dim], or [Tn, heads, head dim] with "
    "cu_seqlens_k_new; does not fit: {names}",
    fields={"sequences": lambda B: counted(B, "sequence"), "heads": lambda Hk: counted(Hk, "head")},
)
NEW_TOO_LONG = _documented(
    "more-new-tokens-than-slots",
    RuntimeError,
    "If k is supplied, it must have seqlen <= the seqlen of the KV cache, got {tokens_of_k} and {slots_of_a_row}",
    fields={
        "tokens_of_k": lambda k: counted(k.shape[0 if k.ndim == 3 else 1], "new token"),
        "slots_of_a_row": lambda capacity: counted(capacity, "slot"),
    },
)
ROTARY_PAIR = _documented(
    "rotary-cos-and-sin-together", RuntimeError, "rotary_cos and rotary_sin are given together; missing: {names}"
)
ROTARY_WITHOUT_KEYS = _documented(
    "rotary-needs-new-keys",
    RuntimeError,
    "If rotary_cos and rotary_sin are provided, new k and v to be appended to the cache must also be provided",
)
ROTARY_SHAPE = _documented(
    "rotary-table-shape",
    RuntimeError,
    "rotary_cos and rotary_sin have shape (seqlen_ro, rotary_dim / 2), both the same; does not fit: {names}",
)
ROTARY_DIM = _documented(
    "rotary-dim",
    RuntimeError,
    "rotary_dim must be <= headdim and divisible by 16, got {rotary_dim} for {D}",
    fields={"rotary_dim": lambda half: 2 * half},
)
SPLITS = _documented("num-splits-limit", RuntimeError, "num_splits > 256 not supported, got {num_splits}")
SINKS = _documented(
    "sinks-shape-or-dtype",
    RuntimeError,
    "sinks must have shape (num_heads,), here ({H},), in bf16, fp16 or fp32, got {sinks.dtype} {tuple(sinks.shape)}",
)

# What the public checks let through.
DEVICES = _documented(
    "one-device-a-call", ValueError, "all tensors of one call must be on one device; on another: {names}"
)
PAGE_TABLE_UNUSED = _documented(
    "varlen-has-no-page-table",
    NotImplementedError,
    "flash_attn_varlen_func reads k and v as they lie: page_table must be None",
)
DESCALES = _documented(
    "descale-without-fp8", ValueError, "descales belong to fp8 tensors, and fp16 and bf16 have none; given: {names}"
)
UNSUPPORTED = _documented(
    "argument-not-supported", NotImplementedError, "not supported by this kernel, leave the default: {names}"
)
COMPANIONS = _documented(
    "has-no-effect-alone",
    ValueError,
    "rotary_seqlens acts through rotary_cos, and cu_seqlens_k_new through k; missing: {names}",
)
QUERY_IGNORED = _documented(
    "only-qv-ignores-q-and-k-cache",
    ValueError,
    "only_qv=True scores qv against v_cache alone: q and k_cache must not both be given",
)
LENGTHS_TYPE = _documented(
    "cache-seqlens-bool", TypeError, "cache_seqlens must be an int or an int32 tensor, got a bool"
)
LENGTH_RANGE = _documented(
    "cache-seqlens-beyond-the-cache",
    ValueError,
    "cache_seqlens and the new tokens must fit the {slots_of_a_row}, got {held} and {added}",
    fields={
        "slots_of_a_row": lambda capacity: counted(capacity, "slot of a row", "slots of a row"),
        "held": lambda cache_seqlens: int(cache_seqlens),
        "added": lambda k: 0 if k is None or k.ndim != 4 else k.shape[1],
    },
)
SCALE = _documented(
    "flash-scale-not-positive", ValueError, "softmax_scale must be None, or finite and above 0, got {softmax_scale}"
)
SOFTCAP = _documented("softcap-negative", ValueError, "softcap must be 0 or a finite cap above 0, got {softcap}")
WINDOW = _documented(
    "window-size-pair",
    ValueError,
    "window_size must be two integers, each -1 for no bound or a number of keys, got {window_size}",
)
CAUSAL_WINDOW = _documented(
    "causal-with-right-window",
    ValueError,
    "causal=True hides every key on the right: window_size[1] must be -1 or 0, got {window_size[1]}",
)
CHUNK = _documented("attention-chunk-negative", ValueError, "attention_chunk must be at least 0, got {attention_chunk}")
CHUNK_QUERIES = _documented(
    "attention-chunk-before-the-first-key",
    ValueError,
    "attention_chunk counts from the first key, but {queries} at {keys}",
    fields={
        "queries": lambda tokens: counted(tokens[1], "query ends", "queries end"),
        "keys": lambda k, cache_seqlens, cache_leftpad, capacity: counted(
            keys_of(k, cache_seqlens, cache_leftpad, capacity) or 0, "key"
        ),
    },
)
ROTARY_ROWS = _documented(
    "rotary-table-too-short",
    ValueError,
    "rotary_cos has {table}, and positions below {needed} are rotated",
    fields={
        "table": lambda So: counted(So, "row"),
        "needed": lambda turned, cached, rotary_seqlens: rotary_rows(turned, cached, rotary_seqlens),
    },
)
EXPANDED = _documented(
    "written-tensor-repeats-itself",
    ValueError,
    "what a call may write needs an address for each element; an axis has stride 0 in: {names}",
)
OUT_OVERLAP = _documented(
    "out-shares-memory", ValueError, "out must have memory of its own, and shares some with: {names}"
)
CACHE_OVERLAP = _documented(
    "caches-share-memory",
    ValueError,
    "k_cache and v_cache are appended to, and must share no memory with one another or with what is read: {names}",
)
