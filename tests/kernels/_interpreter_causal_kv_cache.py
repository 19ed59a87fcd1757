"""Runs the causal KV cache through Triton's interpreter and prints one JSON line per case.

Started by test_causal_kv_cache_interpreter.py in a process of its own: Triton reads TRITON_INTERPRET once, at import.
"""

import itertools
import json
import random
import traceback

import torch

import tensorpact
from tensorpact_kernels import CausalSelfAttentionKVCache
from tensorpact_kernels.causal_kv_cache import launch
from tensorpact_kernels.causal_kv_cache.launch import Tile, shift_and_write_triton

CASES = {}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def case(function, /, **arguments):
    label = ",".join(f"{key}={value}" for key, value in arguments.items())
    CASES[f"{function.__name__}[{label}]".replace("torch.", "")] = (function, arguments)


def laid_out(tensor, layout):
    """Return the same numbers behind other strides, with NaN between them."""
    if layout == "dense":
        return tensor.clone()
    batch, tokens, heads, dim = tensor.shape
    if layout == "head-major":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "wide":
        wide = torch.full((batch, tokens + 2, heads + 3, dim), torch.nan, dtype=tensor.dtype)
        found = wide[:, 1 : tokens + 1, 2 : heads + 2]
    else:
        wide = torch.full((batch, tokens, heads, 2 * dim), torch.nan, dtype=tensor.dtype)
        found = wide[..., ::2]
    found.copy_(tensor)
    return found


def moves(shift, layout="dense", chunk_layout="dense", rows=4, columns=16, dtype=torch.float32):
    """Every start, count and chunk that fits 23 slots, against a copy made first."""
    torch.manual_seed(shift)
    tile = Tile(rows, columns, 4)
    slots, heads, dims = 23, 3, (5, 7)
    for first, kept, tokens in ((0, 9, 0), (4, 0, 6), (4, 9, 6), (0, 13, 1)):
        if first + kept + max(shift, tokens) > slots:
            continue
        buffers = [torch.randn(2, slots, heads, d).to(dtype) for d in dims]
        chunk = [torch.randn(2, tokens, heads, d).to(dtype) for d in dims]
        wanted = [b.clone() for b in buffers]
        for buffer, fresh, old in zip(wanted, chunk, buffers, strict=True):
            buffer[:, first : first + kept] = old[:, first + shift : first + shift + kept]
            buffer[:, first + kept : first + kept + tokens] = fresh
        k, v = (laid_out(b, layout) for b in buffers)
        around = [t if t._base is None else t._base.clone() for t in (k, v)]
        key, value = (laid_out(c, chunk_layout) for c in chunk)
        given = {"key": key, "value": value} if tokens else {}
        shift_and_write_triton(k, v, first=first, shift=shift, kept=kept, **given, tile=tile)
        for got, right in zip((k, v), wanted, strict=True):
            assert torch.equal(got, right), (first, kept, tokens)
        for tensor, before in zip((k, v), around, strict=True):
            if layout in ("wide", "spaced"):
                assert tensor._base.isnan().equal(before.isnan()), "a number was written between the rows"


def moves_right(shift, rows=4):
    for first, tokens in ((3, 1), (0, 5), (3, 11)):
        k, v = torch.randn(2, 23, 3, 5), torch.randn(2, 23, 3, 7)
        wanted = [b.clone() for b in (k, v)]
        for buffer in wanted:
            buffer[:, first + shift : first + shift + tokens] = buffer[:, first : first + tokens].clone()
        shift_and_write_triton(
            k, v, first=first + shift + tokens - 1, shift=shift, kept=tokens, backward=True, tile=Tile(rows, 16, 4)
        )
        assert torch.equal(k, wanted[0])
        assert torch.equal(v, wanted[1])


def caches(headroom, sink, chunk, heads=4, first=None):
    """A run of updates beside the reference backend."""
    slots, total = 16, 4
    width = heads if first is None else 2
    rng = random.Random(chunk)
    launch.ALONE, launch.SHARED = Tile(8, 16, 4), Tile(4, 16, 4)
    kinds = [("triton", headroom), ("naive", 0)]
    made = {
        name: CausalSelfAttentionKVCache(
            torch.zeros(2, slots, total, 5),
            torch.zeros(2, slots, total, 3),
            torch.zeros(1, dtype=torch.int64),
            torch.zeros(1, dtype=torch.int64),
            0,
            0,
            sink_tokens=sink,
            headroom=room,
        )
        for name, room in kinds
    }
    position = 0
    for step in range(9):
        tokens = chunk if step % 3 else rng.randint(1, chunk)
        key, value = torch.randn(2, tokens, width, 5), torch.randn(2, tokens, width, 3)
        views = []
        for name, cache in made.items():
            with tensorpact.use_backend(name):
                views.append(
                    cache.update_and_get_attention_kv(
                        key=key, value=value, current_chunk_start=position, cache_head_start=first
                    )
                )
        position += tokens if rng.random() < 0.8 else max(0, tokens - 1)
        one, other = views
        assert one[2:] == other[2:]
        assert torch.equal(one.k, other.k)
        assert torch.equal(one.v, other.v)
    assert torch.equal(made["triton"].k, made["naive"].k)
    assert torch.equal(made["triton"].v, made["naive"].v)


def empty(batch, tokens):
    k = torch.zeros(batch, 4, 2, 3)
    chunk = torch.zeros(batch, tokens, 2, 3)
    shift_and_write_triton(k, k.clone(), first=0, shift=1, kept=0, key=chunk, value=chunk)


for amount in (1, 3, 4, 5, 9):
    case(moves, shift=amount)
    case(moves_right, shift=amount)
for kind in ("head-major", "wide", "spaced"):
    case(moves, shift=2, layout=kind)
    case(moves, shift=6, layout=kind, chunk_layout="wide")
    case(moves, shift=5, chunk_layout=kind)
for kind in DTYPES[1:]:
    case(moves, shift=3, dtype=kind)
for room, front, count in itertools.product((0, 3, 20), (0, 2), (3,)):
    case(caches, headroom=room, sink=front, chunk=count)
case(caches, headroom=0, sink=0, chunk=1)
case(caches, headroom=20, sink=2, chunk=3, first=1)
case(empty, batch=0, tokens=2)
case(empty, batch=2, tokens=0)


def main():
    for name, (function, arguments) in CASES.items():
        error = None
        try:
            function(**arguments)
        except Exception:
            error = traceback.format_exc()
        print(json.dumps({"case": name, "error": error}), flush=True)


if __name__ == "__main__":
    main()
