"""What clauses on values cost where nobody looks at them: the mode is off, and the tensors are not in host memory.

    python benchmarks/values_off.py [--out FILE]

A call of each entry point on meta tensors, through its guard with all clauses and through one without those on values;
the body is left out of both. What is counted are the interpreter's instructions and not time, so that a busy machine
gives the figures of a quiet one; C code, such as reading an attribute of a tensor, counts as the instruction that calls
it.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import torch

import tensorpact
from tensorpact import Contract, contract
from tensorpact._terms import flat
from tensorpact._values.clauses import Values
from tensorpact_contracts import flash_attention, sparse_prefill
from tensorpact_kernels import (
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    sparse_attn_v4_paged_decode,
    sparse_attn_v4_paged_prefill,
)

WARM = 60


def ints(*sizes: int) -> torch.Tensor:
    """Integers without memory."""
    return torch.empty(sizes, dtype=torch.int32, device="meta")


def half(*sizes: int) -> torch.Tensor:
    """Floats without memory."""
    return torch.empty(sizes, dtype=torch.bfloat16, device="meta")


def caches(*sizes: int) -> dict[str, torch.Tensor]:
    """A cache of keys and one of values."""
    return {"k_cache": half(*sizes), "v_cache": half(*sizes)}


def new(*sizes: int) -> dict[str, torch.Tensor]:
    """New keys and values, and the tables that turn the keys."""
    rotary = {"rotary_cos": half(256, 32), "rotary_sin": half(256, 32)}
    return {"k": half(*sizes), "v": half(*sizes), **rotary}


ONE_QUERY = {"q": half(8, 1, 16, 128), "causal": True}
ROWS = {**ONE_QUERY, **caches(8, 128, 4, 128)}
SPARSE = {"q": half(8, 16, 512), "unified_kv": half(64, 512), "attn_sink": half(16).float(), "softmax_scale": 0.1}
CALLS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "flash_attn_with_kvcache, pages": (
        flash_attn_with_kvcache,
        flash_attention.KVCACHE,
        {**ONE_QUERY, **caches(64, 16, 4, 128), "page_table": ints(8, 8), "cache_seqlens": ints(8)},
    ),
    "flash_attn_with_kvcache, append": (
        flash_attn_with_kvcache,
        flash_attention.KVCACHE,
        {**ROWS, **new(8, 1, 4, 128), "cache_seqlens": ints(8)},
    ),
    "flash_attn_with_kvcache, one length": (
        flash_attn_with_kvcache,
        flash_attention.KVCACHE,
        {**ROWS, "cache_seqlens": 77},
    ),
    "flash_attn_varlen_func": (
        flash_attn_varlen_func,
        flash_attention.VARLEN,
        {
            **{n: half(100, 8, 64) for n in "qkv"},
            "cu_seqlens_q": ints(4),
            "cu_seqlens_k": ints(4),
            "max_seqlen_q": 70,
            "max_seqlen_k": 70,
        },
    ),
    "sparse_attn_v4_paged_prefill": (
        sparse_attn_v4_paged_prefill,
        sparse_prefill.SPARSE_PREFILL,
        {
            **SPARSE,
            "kv_indices_prefix": ints(160),
            "kv_indptr_prefix": ints(9),
            "kv": half(8, 512),
            "kv_indices_extend": ints(8),
            "kv_indptr_extend": ints(9),
        },
    ),
    "sparse_attn_v4_paged_decode": (
        sparse_attn_v4_paged_decode,
        sparse_prefill.SPARSE_DECODE,
        {**SPARSE, "kv_indices": ints(160), "kv_indptr": ints(9)},
    ),
}


def instructions(call: Callable[[], Any]) -> int:
    """Instructions of the interpreter that a call executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


def guarded(function: Any, given: dict[str, Any]) -> int:
    """Instructions of the guard of a function, once it knows the signature; its body apart."""
    counted: list[int] = []
    for mode in ("compiled", "off"):
        with tensorpact.enforcement(mode):
            for _ in range(WARM):
                function(**given)
            counted.append(instructions(lambda: function(**given)))
    return counted[0] - counted[1]


def without_values(function: Any, made: Any) -> Any:
    """The function under its contract without the clauses on values."""
    kept = tuple(c for c in made.clauses if not any(isinstance(m, Values) for m in flat(c)))
    bare = Contract(made.name, clauses=kept, binds=made.binds, mutates=made.mutates, family=made.family)
    return contract(bare)(function.__tensorpact__.body)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for name, (function, made, arguments) in CALLS.items():
        bare, full = guarded(without_values(function, made), arguments), guarded(function, arguments)
        found[name] = {"without": bare, "with": full, "ratio": round(full / bare, 3)}
        print(f"{name:40} {bare:6} {full:6}  {full / bare:.3f}")
    if given.out is not None:
        record = {"date": datetime.now(UTC).date().isoformat(), "python": sys.version.split()[0], "instructions": found}
        given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
