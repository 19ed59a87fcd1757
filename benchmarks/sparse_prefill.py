"""Times sparse prefill and paged decode: ours, the public Triton kernel if importable, and other tiles.

    PYTHONPATH=kernels:contracts:src:.public python benchmarks/sparse_prefill.py --out sparse_prefill.json

Every candidate's output is compared with float64 on a few tokens before it is timed. A time is the median over replays
of a CUDA graph that walks through several input sets, so that rows come from where they would in a real step.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import multiprocessing
import pathlib
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime

import torch
import triton
from sparse_prefill_ceilings import ceilings, graph_ms

from tensorpact_kernels.sparse_prefill.launch import (
    TileConfig,
    sparse_decode_triton,
    sparse_prefill_triton,
)
from tensorpact_kernels.sparse_prefill.naive import naive_sparse_decode, naive_sparse_prefill

PREFILL_SHAPES = [
    (4096, 128, 512, 512, 128),
    (4096, 64, 128, 512, 128),
    (1024, 16, 512, 1024, 128),
    (4096, 16, 512, 512, 128),
    (4096, 32, 512, 512, 128),
    (4096, 64, 256, 512, 128),
    (4096, 16, 256, 512, 128),
    (4096, 16, 128, 512, 128),
]
DECODE_SHAPES = [(b, h, 512, n) for h in (16, 128) for b in (1, 16, 64, 256) for n in (128, 512, 1024, 4096)]
DECODE_SHAPES += [(b, h, d, n) for d in (128, 256) for h in (16, 64) for b, n in ((16, 4096), (64, 4096), (256, 1024))]
PREFILL_TILES = {
    (128, 512): [(64, 64, 8, 2), (64, 64, 8, 1), (64, 32, 8, 3), (32, 64, 8, 2), (32, 32, 4, 3)],
    (32, 512): [(32, 32, 4, 3), (32, 64, 8, 2)],
    (64, 128): [
        (64, 128, 4, 3),
        (64, 128, 4, 2),
        (64, 64, 4, 2),
        (64, 64, 4, 3),
        (64, 128, 8, 3),
    ],
    (64, 256): [(64, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 3)],
    (16, 256): [(16, 64, 4, 3), (16, 32, 4, 3), (16, 64, 8, 2)],
    (16, 128): [(16, 64, 4, 2), (16, 128, 4, 2), (16, 64, 8, 3)],
    (16, 512): [(16, 64, 4, 2), (16, 64, 8, 2), (16, 32, 4, 3), (16, 32, 8, 3), (16, 128, 8, 2)],
}
DECODE_TILES = {
    16: [(16, 64, 4, 2), (16, 32, 4, 3)],
    128: [(64, 64, 8, 2), (64, 32, 8, 3)],
}
POOL_ROWS = {"prefill": 65536, "decode": 1 << 20}
COLD_BYTES = 256 << 20
ERROR_LIMIT = 1e-2


@dataclass(frozen=True)
class Candidate:
    """One thing to time: where the kernel comes from, and its tile and splits where those are chosen here."""

    source: str
    tile: tuple[int, int, int, int] | None = None
    splits: int | None = None

    def label(self) -> str:
        """Name the candidate in the table."""
        tile = " {}x{} w{} s{}".format(*self.tile) if self.tile else ""
        return self.source + tile + (f" /{self.splits}" if self.splits else "")


def public_prefill():
    """Return the public kernel, or None where it is not importable."""
    try:
        from sglang.kernels.ops.attention.dsv4.unified_kv_kernels.paged_prefill import sparse_attn_v4_paged_prefill
    except ImportError:
        return None
    return sparse_attn_v4_paged_prefill


def run(candidate: Candidate, arguments: list[torch.Tensor], scale: float) -> torch.Tensor:
    """Call a candidate; eight tensors are a prefill, five a decode."""
    config = TileConfig(*candidate.tile) if candidate.tile else None
    path = None if candidate.source == "ours" else "portable"
    if candidate.source == "public":
        return public_prefill()(*arguments, scale)
    if len(arguments) == 8:
        return sparse_prefill_triton(*arguments, scale, config=config, path=path)
    return sparse_decode_triton(*arguments, scale, kv_splits=candidate.splits, config=config, path=path)


def prefill_inputs(tokens, heads, dim, prefix, extend, rows=POOL_ROWS["prefill"]):
    """Return random top-k rows as the prefix and the last ``extend`` new rows, as in the middle of a long chunk."""
    gen = torch.Generator("cuda").manual_seed(tokens + heads)
    new = tokens + extend
    q = torch.randn(tokens, heads, dim, device="cuda", generator=gen).bfloat16()
    pool = torch.randn(rows, dim, device="cuda", generator=gen).bfloat16()
    kv = torch.randn(new, dim, device="cuda", generator=gen).bfloat16()
    top = torch.randint(0, rows, (tokens * prefix,), device="cuda", generator=gen, dtype=torch.int32)
    window = torch.arange(tokens, device="cuda")[:, None] + torch.arange(extend, device="cuda")
    steps = torch.arange(tokens + 1, device="cuda", dtype=torch.int32)
    sink = 0.4 * torch.randn(heads, device="cuda", generator=gen) + 0.5
    return [q, pool, top, steps * prefix, kv, window.flatten().int(), steps * extend, sink]


def decode_inputs(tokens, heads, dim, keys, rows=POOL_ROWS["decode"], sets=1, pool=None):
    """Return several steps over one pool, each with rows of its own."""
    gen = torch.Generator("cuda").manual_seed(tokens + keys)
    if pool is None:
        pool = torch.randn(rows, dim, device="cuda", generator=gen, dtype=torch.bfloat16)
    sink = 0.4 * torch.randn(heads, device="cuda", generator=gen) + 0.5
    steps = torch.arange(tokens + 1, device="cuda", dtype=torch.int32)
    result = []
    for _ in range(sets):
        q = torch.randn(tokens, heads, dim, device="cuda", generator=gen).bfloat16()
        listed = torch.randint(0, rows, (tokens * keys,), device="cuda", generator=gen, dtype=torch.int32)
        result.append([q, pool, listed, steps * keys, sink])
    return result


def reference(arguments, scale, count=6):
    """Return some tokens and their float64 outputs; every list has the same length here."""
    tokens = torch.randperm(len(arguments[0]), device="cuda")[:count]
    picked = list(arguments)
    picked[0] = arguments[0][tokens]
    for position in (2, 5)[: 1 if len(arguments) == 5 else 2]:
        length = int(arguments[position + 1][1])
        picked[position] = arguments[position].view(-1, length)[tokens].flatten() if length else arguments[position]
        picked[position + 1] = torch.arange(len(tokens) + 1, device="cuda") * length
    if len(arguments) == 5:
        # A pool of this size is not worth upcasting: keep only the rows that are read.
        picked[1], picked[2] = arguments[1][picked[2].long()], torch.arange(len(picked[2]), device="cuda")
    upcast = [a.double() if a.is_floating_point() else a for a in picked]
    naive = naive_sparse_prefill if len(arguments) == 8 else naive_sparse_decode
    return tokens, naive(*upcast, scale)


def relative_error(out, expected):
    """Return the distance from float64 on the reference's tokens, NaN if any element is not finite."""
    tokens, wanted = expected
    error = float((out[tokens].double() - wanted).norm() / wanted.norm())
    return error if bool(out.isfinite().all()) else float("nan")


def split_counts(shape):
    """Return split counts around the one that gives every multiprocessor a program."""
    tokens, heads, _, keys = shape
    blocks = tokens * (1 if heads <= 64 else heads // 64)
    even = max(1, round(132 / blocks))
    counts = {1, even // 2, max(1, even - 1), even, even + 1, 2 * even, 64 if tokens == 1 else 1}
    return sorted(count for count in counts if 1 <= count <= min(64, max(1, keys // 64)))


def candidates_for(kind, shape, options):
    """List what to time for one shape; the launcher's own choice comes first."""
    heads, dim = shape[1:3]
    found = [Candidate("ours")]
    if kind == "prefill" and public_prefill() and not options.no_public:
        found.append(Candidate("public"))
    if kind == "decode" and not options.sweep:
        found.append(Candidate("portable"))
    if options.sweep:
        tiles = PREFILL_TILES.get((heads, dim), []) if kind == "prefill" else DECODE_TILES.get(heads, [])
        found += [Candidate("portable"), *(Candidate("portable", tile) for tile in tiles)]
        if kind == "decode":
            found += [Candidate("ours", None, splits) for splits in split_counts(shape)]
    return found


def warm(kind, shape, candidate):
    """Compile one candidate into the cache on disk, with the specialisation that the timed call will have."""
    small = (16, *shape[1:])
    if kind == "prefill":
        run(candidate, prefill_inputs(*small, rows=1024), shape[2] ** -0.5)
    else:
        arguments = decode_inputs(*small[:3], 128, rows=1024)[0]
        for splits in (1, 2, 16):
            run(dataclasses.replace(candidate, splits=splits), arguments, shape[2] ** -0.5)
    torch.cuda.synchronize()


def warm_all(warm, jobs, workers, deadline):
    """Compile all candidates in parallel processes, by calling ``warm`` with each job."""
    context = multiprocessing.get_context("spawn")
    begin = time.monotonic()
    pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)
    futures = [pool.submit(warm, *job) for job in jobs]
    concurrent.futures.wait(futures, timeout=max(1.0, deadline - time.monotonic()))
    pool.shutdown(wait=False, cancel_futures=True)
    print(f"compiled {sum(f.done() for f in futures)}/{len(jobs)} in {time.monotonic() - begin:.0f} s", flush=True)


def measure(kind, shape, found, limits, deadline):
    """Check and time the candidates of one shape."""
    tokens, heads, dim = shape[:3]
    keys = sum(shape[3:])
    scale = dim**-0.5
    if kind == "prefill":
        sets = [prefill_inputs(*shape)]
    else:
        sets = decode_inputs(*shape, sets=max(2, min(256, COLD_BYTES // (tokens * keys * dim * 2))))
    expected = reference(sets[0], scale)
    flops = 4 * tokens * heads * keys * dim
    unique = 2 * tokens * keys * dim + 4 * tokens * heads * dim
    rows = []
    for candidate in found:
        row = {"kind": kind, "shape": list(shape), "candidate": candidate.label()}
        rows.append(row)
        if time.monotonic() > deadline:
            row["error"] = "out of time"
            continue
        try:
            row["relative_error"] = relative_error(run(candidate, sets[0], scale), expected)
            if not row["relative_error"] < ERROR_LIMIT:
                row["error"] = "wrong result"
                continue
            ms = graph_ms([functools.partial(run, candidate, arguments, scale) for arguments in sets])
        except Exception as error:  # noqa: BLE001  one failing candidate must not cost the others
            row["error"] = f"{type(error).__name__}: {str(error)[:160]}"
            traceback.print_exc(limit=2)
            continue
        row |= {"ms": ms, "tflop_s": flops / ms / 1e9, "gather_tb_s": unique / ms / 1e9}
        if kind == "decode":
            floor = max(unique / limits["copy_tb_s"] / 1e9, flops / 200e9)
            row |= {"floor_ms": floor, "of_floor": floor / ms}
    return rows


def rounded(value):
    """Return a report with its floats cut to four digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: rounded(entry) for name, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list) else value


def as_json(report):
    """Return a report as JSON with one line a row."""
    *head, rows = (json.dumps({name: entry})[1:-1] for name, entry in rounded(report | {"rows": []}).items())
    lines = ",\n".join(json.dumps(rounded(row)) for row in report["rows"])
    return "{" + ",\n".join([*head, rows[:-2]]) + f"[\n{lines}\n]}}\n"


def show(rows):
    """Print the table."""
    print(f"{'kind':8}{'shape':>26}  {'candidate':26}{'ms':>9}{'TFLOP/s':>9}{'TB/s':>7}{'of floor':>9}{'error':>10}")
    for row in rows:
        shape = "x".join(map(str, row["shape"]))
        head = f"{row['kind']:8}{shape:>26}  {row['candidate']:26}"
        if "ms" in row:
            share = f"{row['of_floor']:9.0%}" if "of_floor" in row else " " * 9
            rates = f"{row['tflop_s']:9.1f}{row['gather_tb_s']:7.2f}"
            print(f"{head}{row['ms']:9.4f}{rates}{share}{row['relative_error']:10.1e}")
        else:
            print(f"{head}  {row['error'][:60]}")


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default="prefill,decode")
    parser.add_argument("--sweep", action="store_true", help="time every listed tile, not only the chosen one")
    parser.add_argument("--no-public", action="store_true")
    parser.add_argument("--shapes", type=int, default=0, help="only the first so many shapes of each kind")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--budget-s", type=float, default=480)
    parser.add_argument("--out")
    options = parser.parse_args()
    deadline = time.monotonic() + options.budget_s
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")
    if public_prefill() is None:
        print("the public kernel is not importable: timing ours alone")
    plan = []
    for kind in options.kinds.split(","):
        shapes = {"prefill": PREFILL_SHAPES, "decode": DECODE_SHAPES}[kind][: options.shapes or None]
        plan += [(kind, shape, candidates_for(kind, shape, options)) for shape in shapes]
    jobs = {(kind, shape[1:3], c.source, c.tile): (kind, shape, c) for kind, shape, found in plan for c in found}
    if options.workers:
        warm_all(warm, list(jobs.values()), options.workers, deadline - options.budget_s / 2)
    limits = ceilings()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__, limits, flush=True)
    rows = []
    for kind, shape, found in plan:
        rows += measure(kind, shape, found, limits, deadline)
        torch.cuda.empty_cache()
        if options.out:
            report = {
                "card": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "triton": triton.__version__,
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "ceilings": limits,
                "rows": rows,
            }
            pathlib.Path(options.out).write_text(as_json(report))
    show(rows)


if __name__ == "__main__":
    main()
