"""Overlay for torch's ``varlen_attn``: offsets, lengths and pages that its kernels trust."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int32
from torch import Tensor

import tensorpact
from tensorpact import Contract, DocumentedError
from tensorpact.clauses import (
    at_least,
    at_most,
    dtype,
    let,
    needs,
    nondecreasing,
    rank,
    require,
    shape,
    starts_at,
    steps,
    steps_at_most,
    values,
)
from tensorpact.integrations import Applied, overlay
from tensorpact_contracts._values import fits_float

OFFSET_DTYPE = DocumentedError(
    "offset-dtype",
    TypeError,
    "offsets must be int32, as the kernels read them; of another dtype: {names}",
)
OFFSET_COUNT = DocumentedError(
    "offset-count",
    ValueError,
    "cu_seq_q holds {cu_seq_q.numel()} offsets, one more than sequences; cu_seq_k, seqused_k and block_table are for "
    "another number of sequences: {name}",
)
KEY_VALUE = DocumentedError(
    "key-value-shapes-differ",
    ValueError,
    "key has shape {list(key.shape)} and value {list(value.shape)}; the kernels read both by the sizes of one",
)
PAGED = DocumentedError(
    "pages-without-table",
    ValueError,
    "key and value have {key.ndim} axes: [tokens, heads, dim] without block_table, [pages, page size, heads, dim] with "
    "it, and cu_seq_k may be left out with it alone",
)
TABLE_LENGTHS = DocumentedError(
    "table-without-lengths",
    ValueError,
    "block_table was given without seqused_k, so that nothing says how full the last pages are",
)
SCALE = DocumentedError("scale-of-logits", ValueError, "scale must be a finite number above 0, got {scale}")
USED = DocumentedError(
    "valid-keys-out-of-range",
    ValueError,
    "seqused_k[{position}] is {used}, expected {expected}: valid keys lie within the sequence or its pages, and no "
    "sequence has more than max_k={max_k}",
    # The function has an argument of the name that the number goes by.
    fields={"used": lambda value: value},
)
OFFSETS = DocumentedError(
    "offsets-out-of-range",
    ValueError,
    "{name} must start at 0, never fall, end within the rows that it cuts and cut no sequence longer than {longest}",
    fields={"longest": lambda max_q, max_k: f"its maximum (max_q={max_q}, max_k={max_k})"},
)


def _is_scale(scale: float | None) -> bool:
    return scale is None or (scale > 0 and fits_float(scale))


VARLEN = Contract(
    "varlen_attn",
    dims={
        "Tq": "query tokens of all sequences",
        "HQ": "query heads",
        "HK": "heads of key and value",
        "D": "head dim",
        "N": "sequences",
        "C": "columns of the page table",
    },
    clauses=[
        rank("query", "cu_seq_q", "cu_seq_k"),
        dtype("cu_seq_q", "cu_seq_k", error=OFFSET_DTYPE),
        shape("cu_seq_k", error=OFFSET_COUNT),
        shape("seqused_k", error=OFFSET_COUNT),
        shape("block_table", axes="N", error=OFFSET_COUNT),
        require(lambda key, value: key.shape == value.shape, error=KEY_VALUE, about="value"),
        require(
            lambda key, cu_seq_k, block_table: (
                key.ndim == 3 + (block_table is not None) and (cu_seq_k is not None or block_table is not None)
            ),
            error=PAGED,
            about="key",
        ),
        needs("block_table", "seqused_k", error=TABLE_LENGTHS),
        require(_is_scale, error=SCALE, about="scale"),
        values("cu_seq_q", starts_at(0), nondecreasing(), at_most("Tq"), steps_at_most("max_q"), error=OFFSETS),
        let(keys=lambda key: key.size(0)),
        let(slots=lambda key, C: key.size(1) * C),
        # Beside a table nothing reads them.
        values(
            "cu_seq_k",
            starts_at(0),
            nondecreasing(),
            at_most("keys"),
            when=lambda block_table: block_table is None,
            error=OFFSETS,
        ),
        values("cu_seq_k", steps_at_most("max_k"), when=lambda seqused_k: seqused_k is None, error=OFFSETS),
        values(
            "seqused_k",
            at_least(0),
            at_most(steps("cu_seq_k")),
            when=lambda block_table: block_table is None,
            error=USED,
        ),
        values(
            "seqused_k", at_least(0), at_most("slots"), when=lambda block_table: block_table is not None, error=USED
        ),
        values("seqused_k", at_most("max_k"), error=USED),
    ],
)


@overlay("torch.nn.attention.varlen:varlen_attn", VARLEN)
def varlen_attn(
    query: Float[Tensor, "Tq HQ D"],
    key: Float[Tensor, "*rows HK D"],
    value: Float[Tensor, "*rows HK D"],
    cu_seq_q: Int32[Tensor, " N+1"],
    cu_seq_k: Int32[Tensor, " N+1"] | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: Any = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Int32[Tensor, " N"] | None = None,
    block_table: Int32[Tensor, "N C"] | None = None,
    num_splits: int | None = None,
) -> Any:
    """Attend sequence by sequence over packed tokens, after a check of what the kernels trust.

    Args:
        query: Queries of all sequences, one after the other.
        key: Keys likewise, or pages.
        value: Values likewise.
        cu_seq_q: Where each sequence of queries starts, and where the last one ends.
        cu_seq_k: The same for the keys.
        max_q: No sequence of queries is longer.
        max_k: No sequence of keys is longer.
        return_aux: What else to return.
        scale: Factor on the scores.
        window_size: Keys that a query sees to its left and right; -1 for all.
        enable_gqa: Key heads serve groups of query heads.
        seqused_k: Valid keys of each sequence.
        block_table: Pages of each sequence.
        num_splits: Splits of the keys.
    """


def apply(*, packages: Sequence[str] = ()) -> Applied:
    """Put the contract on torch's function; torch before 2.12 has none, or one of other parameters.

    Args:
        packages: Imported packages in which other names of it are exchanged too.
    """
    return tensorpact.apply(varlen_attn, packages=packages)
