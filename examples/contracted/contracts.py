"""What each entry point promises: the texts of the hand-written checks, in the order in which they were written."""

from torch import Tensor

from tensorpact import Contract, DocumentedError
from tensorpact.clauses import dtype, layout, let, rank, require, same_device, same_dim, same_dtype, shape

POOL_RANK = DocumentedError("pool-rank", ValueError, "gather_rows: pool must be [rows, columns], got {pool.ndim} axes")
POOL_COLUMNS = DocumentedError(
    "pool-columns", ValueError, "gather_rows: the columns of pool must be dense, their stride is {pool.stride(1)}"
)
ROWS_DTYPE = DocumentedError("rows-dtype", TypeError, "gather_rows: rows must be int32 or int64, got {rows.dtype}")
ROWS_DEVICE = DocumentedError("rows-device", ValueError, "gather_rows: rows is on {rows.device}, pool on {pool.device}")
GATHER_ROWS = Contract(
    "gather_rows",
    dims={"P": "rows of the pool", "D": "columns", "N": "rows that are asked for"},
    clauses=[
        rank("pool", error=POOL_RANK),
        layout("pool", error=POOL_COLUMNS),
        dtype("rows", error=ROWS_DTYPE),
        same_device("pool", "rows", error=ROWS_DEVICE),
    ],
)

WEIGHT_LENGTH = DocumentedError(
    "weight-length", ValueError, "rms_norm: weight has {weight.shape[0]} entries, x has {x.shape[-1]} columns"
)
WEIGHT_DTYPE = DocumentedError("weight-dtype", TypeError, "rms_norm: weight is {weight.dtype}, x is {x.dtype}")
EPS = DocumentedError("eps", ValueError, "rms_norm: eps must be positive, got {eps}")
RMS_NORM = Contract(
    "rms_norm",
    dims={"T": "tokens", "D": "columns"},
    clauses=[
        rank("weight"),
        same_dim("D", "x", "weight", error=WEIGHT_LENGTH),
        same_dtype("x", "weight", error=WEIGHT_DTYPE),
        require(lambda eps: eps > 0, error=EPS, about="eps"),
    ],
)

ODD_HEAD = DocumentedError("odd-head", ValueError, "rotary: the head dim must be even, got {D}")
TABLES = DocumentedError("tables", ValueError, "rotary: cos is {list(cos.shape)}, sin is {list(sin.shape)}")
TABLE_COLUMNS = DocumentedError(
    "table-columns", RuntimeError, "rotary: cos has {cos.shape[-1]} columns, half of the head dim is {D // 2}"
)
ROTARY = Contract(
    "rotary",
    dims={"T": "tokens", "H": "heads", "D": "head dim"},
    clauses=[
        require(lambda D: D % 2 == 0, error=ODD_HEAD),
        require(lambda cos, sin: cos.shape == sin.shape, error=TABLES),
        shape("cos", axes="D//2", error=TABLE_COLUMNS),
    ],
)


def _ends(cu_seqlens: Tensor, T: int) -> bool:
    return cu_seqlens.is_meta or int(cu_seqlens[-1]) == T


BOUNDARIES = DocumentedError(
    "boundaries", ValueError, "segment_sum: cu_seqlens must be a vector of boundaries, got {list(cu_seqlens.shape)}"
)
LAST_BOUNDARY = DocumentedError(
    "last-boundary", ValueError, "segment_sum: cu_seqlens ends at {int(cu_seqlens[-1])}, x has {T} rows"
)
INITIAL_COLUMNS = DocumentedError(
    "initial-columns", RuntimeError, "segment_sum: initial has {initial.shape[-1]} columns, x has {x.shape[-1]}"
)
SEGMENT_SUM = Contract(
    "segment_sum",
    dims={"T": "tokens of all sequences", "D": "columns", "B": "sequences"},
    clauses=[
        rank("cu_seqlens", error=BOUNDARIES),
        require(lambda cu_seqlens: cu_seqlens.numel() >= 1, error=BOUNDARIES, about="cu_seqlens"),
        let(B=lambda cu_seqlens: cu_seqlens.numel() - 1),
        require(_ends, error=LAST_BOUNDARY, about="cu_seqlens"),
        same_dim("D", "x", "initial", error=INITIAL_COLUMNS),
    ],
)

TOO_MANY = DocumentedError("too-many", RuntimeError, "RingCache: {n} keys do not fit into {S} slots")
HEAD_DIM = DocumentedError("head-dim", ValueError, "RingCache: head dim is {key.shape[-1]}, the cache has {D}")
KEY_DEVICE = DocumentedError(
    "key-device", ValueError, "RingCache: key is on {key.device}, the cache on {self.keys.device}"
)
APPEND = Contract(
    "RingCache.append",
    dims={"n": "keys to write", "S": "slots", "H": "heads", "D": "head dim"},
    binds={"H": "self.keys", "D": "self.keys"},
    clauses=[
        require(lambda n, S: n <= S, error=TOO_MANY),
        shape("key", axes="D", error=HEAD_DIM),
        same_device("self.keys", "key", error=KEY_DEVICE),
    ],
)
