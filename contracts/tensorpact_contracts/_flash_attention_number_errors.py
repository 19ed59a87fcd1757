"""Documented errors of flash attention about numbers in tensors, which the public functions read without a look."""

import functools

from tensorpact import DocumentedError

from ._flash_attention_rules import keys_beside
from ._wording import counted

_documented = functools.partial(DocumentedError, module="tensorpact_contracts.flash_attention")

BOUNDARIES_ORDER = _documented(
    "boundaries-out-of-order",
    ValueError,
    "{name}[{position}] is {value}, expected {expected}: boundaries begin at 0 and never decrease",
)
BOUNDARIES_END = _documented(
    "boundaries-elsewhere-than-the-tokens",
    ValueError,
    "{name}[{position}] is {value}, but there {tokens_to_cut} to cut{hint}",
    fields={
        "tokens_to_cut": lambda limit: f"{'is' if limit == 1 else 'are'} {counted(limit, 'token')}",
        "hint": lambda value, limit: "; only allow_padded_tail=True lets some over at the end" if value < limit else "",
    },
)
LONGER = _documented(
    "longer-than-max-seqlen",
    ValueError,
    "sequence {position} of {name} has {tokens_of_it}, but the longest was said to have {limit}",
    fields={"tokens_of_it": lambda value: counted(value, "token")},
)
LENGTHS_RANGE = _documented(
    "cache-seqlens-out-of-range",
    ValueError,
    "cache_seqlens[{position}] is {value}, but a row holds 0 to {capacity} tokens",
)
APPEND_RANGE = _documented(
    "appended-beyond-the-row",
    ValueError,
    "sequence {position} would have {tokens_of_it} with its new ones, but a row has {slots_of_a_row}",
    fields={
        "tokens_of_it": lambda value: counted(value, "token"),
        "slots_of_a_row": lambda capacity: counted(capacity, "slot"),
    },
)
LEFTPAD_RANGE = _documented(
    "cache-leftpad-out-of-range",
    ValueError,
    "cache_leftpad[{position}] is {value}, expected {expected}: padding is counted in the length of the row",
)
CACHE_ROW_RANGE = _documented(
    "cache-batch-idx-out-of-range",
    ValueError,
    "cache_batch_idx[{position}] is {value}, expected {expected}: a row for each sequence",
)
CACHE_ROW_REPEATED = _documented(
    "cache-batch-idx-repeated",
    ValueError,
    "cache_batch_idx[{position}] is {value}, as for a sequence before it; both would append to one row at once",
)
PAGE_RANGE = _documented(
    "page-out-of-range",
    ValueError,
    "page_table[{position}] is {value}, but the cache has {pages}, and tokens lie in this one",
    fields={"pages": lambda rows: counted(rows, "page")},
)
USED_RANGE = _documented(
    "seqused-out-of-range",
    ValueError,
    "{name}[{position}] is {value}, expected {expected}: no more tokens can be used than there are",
)
ROTARY_RANGE = _documented(
    "rotary-position-out-of-range",
    ValueError,
    "{name} leads sequence {position} to {value}, but rotary_cos has {table}: positions are its rows, from 0 on",
    fields={"table": lambda So: counted(So, "row")},
)
CHUNK_KEYS = _documented(
    "attention-chunk-before-the-first-key-of-a-row",
    ValueError,
    "attention_chunk counts from the first key, but sequence {position} has {queries} and {keys}",
    fields={
        "queries": lambda cached, k, value, limit: counted(
            limit if cached < 0 else value + keys_beside(cached, k), "query", "queries"
        ),
        "keys": lambda cached, k, value, limit: counted(value if cached < 0 else limit + keys_beside(cached, k), "key"),
    },
)
