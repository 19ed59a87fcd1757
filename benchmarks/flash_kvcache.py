"""Times attention with a key-value cache: ours, torch on the contiguous cache, the public Triton kernel, other cuts.

    PYTHONPATH=kernels:contracts:src:.public python benchmarks/flash_kvcache.py --sweep --out flash_kvcache.json

Ours reads a paged cache in random order of pages, torch the same keys from a contiguous cache. Every candidate's output
is compared with float64 before it is timed. A time is the median of rounds in which all candidates of a shape are
replayed from CUDA graphs in turn.
"""

import argparse
import concurrent.futures
import functools
import json
import math
import multiprocessing
import pathlib
import sys
import time
import traceback
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime

import torch
import triton
from packed_attention import captured, replay_ms
from sparse_prefill import as_json
from sparse_prefill_ceilings import ceilings
from torch.nn.functional import scaled_dot_product_attention

from tensorpact_kernels.flash_attention.launch import launch_kvcache
from tensorpact_kernels.flash_attention.naive import naive_kvcache
from tensorpact_kernels.flash_attention.plan import TileConfig


@dataclass(frozen=True)
class Shape:
    """One call: a batch of sequences of one length, heads, head sizes, and slots of a page."""

    batch: int
    length: int
    heads: int
    key_heads: int
    dim: int
    value_dim: int
    page: int
    queries: int = 1
    only_qv: bool = False

    def bytes(self) -> float:
        """Count each key and value once, queries and results beside them."""
        columns = self.value_dim if self.only_qv else self.dim + self.value_dim
        keys = self.batch * self.length * self.key_heads * columns
        return 2 * (keys + self.batch * self.queries * self.heads * columns)

    def flops(self) -> float:
        """Count both products, of the keys that are seen."""
        columns = 2 * self.value_dim if self.only_qv else self.dim + self.value_dim
        hidden = self.queries * (self.queries - 1) / 2
        return 2 * self.batch * (self.queries * self.length - hidden) * self.heads * columns

    def name(self) -> str:
        """Name the shape in the tables."""
        kind = "values alone, " if self.only_qv else ""
        dims = f"D {self.dim}" if self.dim == self.value_dim else f"D {self.dim}, {self.value_dim}"
        queries = "" if self.queries == 1 else f", {self.queries} queries"
        return (
            f"{kind}B {self.batch}, {self.length} keys{queries}, "
            f"{self.heads}/{self.key_heads} heads, {dims}, pages of {self.page}"
        )


SHAPES = [
    Shape(1, 131072, 32, 8, 128, 128, 64),
    Shape(16, 8192, 32, 8, 128, 128, 64),
    Shape(64, 8192, 32, 8, 128, 128, 64),
    Shape(128, 1024, 32, 8, 128, 128, 64),
    Shape(16, 8192, 32, 8, 128, 128, 16),
    Shape(16, 8192, 32, 8, 128, 128, 1),
    Shape(64, 8192, 16, 1, 64, 512, 64, only_qv=True),
    Shape(128, 2048, 16, 1, 64, 512, 64, only_qv=True),
    Shape(64, 8192, 128, 1, 64, 512, 64, only_qv=True),
    Shape(4, 8192, 32, 8, 128, 128, 64, queries=2048),
]
# Block of rows, slots of a tile, warps, tiles in flight, programs on a multiprocessor.
HOPPER_CUTS = {
    (128, 4): [
        (16, 64, 4, 2, 3),
        (16, 64, 4, 3, 2),
        (16, 64, 4, 2, 2),
        (16, 64, 4, 1, 4),
        (16, 64, 4, 6, 1),
        (16, 128, 4, 1, 3),
        (16, 128, 4, 3, 1),
        (16, 128, 8, 3, 1),
    ],
    (512, 16): [(16, 64, 4, 1, 2), (16, 64, 4, 2, 1), (16, 64, 4, 3, 1), (16, 64, 8, 2, 1), (16, 64, 8, 3, 1)],
    (512, 128): [(64, 64, 8, 2, 1), (64, 64, 8, 1, 1)],
}
PORTABLE_CUTS = {
    (128, 4): [
        (16, 64, 4, 3, 3),
        (16, 64, 4, 4, 2),
        (16, 64, 4, 6, 1),
        (16, 32, 4, 4, 4),
        (16, 32, 4, 6, 2),
        (16, 32, 2, 4, 4),
        (16, 64, 2, 4, 2),
        (16, 128, 4, 3, 1),
        (16, 128, 8, 3, 1),
    ],
    (512, 16): [(16, 32, 4, 2, 3), (16, 32, 4, 3, 2), (16, 64, 4, 2, 1), (16, 64, 8, 3, 1), (16, 32, 8, 3, 2)],
    (512, 128): [(64, 64, 8, 2, 1), (64, 64, 8, 3, 1), (64, 32, 8, 3, 1), (128, 32, 8, 3, 1), (64, 64, 4, 2, 1)],
    (128, 8192): [(128, 64, 8, 3, 1), (128, 64, 8, 2, 1), (128, 128, 8, 2, 1), (64, 64, 4, 3, 2), (128, 64, 4, 3, 1)],
}
SPLITS = {1: (16, 33, 66), 16: (1, 3, 4), 64: (2, 3), 128: (2, 3)}
LEAST_COPIED_PAGE = 8
ROUNDS = 5
ERROR_LIMIT = 1e-2


@dataclass(frozen=True)
class Candidate:
    """One thing to time: where the kernel comes from, its cut, and how many programs share the keys."""

    source: str
    cut: tuple[int, ...] | None = None
    splits: int = 0

    def label(self) -> str:
        """Name the candidate in the table."""
        cut = "" if self.cut is None else " {}x{} w{} s{} on {}".format(*self.cut)
        return f"{self.source}{cut}" + (f", {self.splits} shares" if self.splits else "")


@dataclass
class Inputs:
    """Tensors of one call."""

    shape: Shape
    arguments: dict[str, torch.Tensor | int | bool | None]
    contiguous: tuple[torch.Tensor, torch.Tensor] | None
    slots: torch.Tensor

    @classmethod
    def random(cls, shape: Shape):
        """Draw normal values, and pages in random order."""
        gen = torch.Generator("cuda").manual_seed(shape.batch + shape.length)

        def draw(*size):
            return torch.randn(size, device="cuda", generator=gen, dtype=torch.float32).bfloat16()

        columns = -(-shape.length // shape.page)
        pages = shape.batch * columns
        table = torch.randperm(pages, device="cuda", generator=gen).reshape(shape.batch, columns).int()
        v = draw(pages, shape.page, shape.key_heads, shape.value_dim)
        arguments = {"v_cache": v, "page_table": table, "q": None, "k_cache": None, "only_qv": shape.only_qv}
        arguments["cache_seqlens"] = torch.full((shape.batch,), shape.length, dtype=torch.int32, device="cuda")
        arguments["causal"] = shape.queries > 1
        contiguous = None
        if shape.only_qv:
            arguments["qv"] = draw(shape.batch, shape.queries, shape.heads, shape.value_dim)
        else:
            arguments["q"] = draw(shape.batch, shape.queries, shape.heads, shape.dim)
            k = draw(pages, shape.page, shape.key_heads, shape.dim)
            arguments["k_cache"] = k
            if shape.queries == 1:
                size = (shape.batch, columns * shape.page, shape.key_heads)
                contiguous = tuple(x[table].reshape(*size, x.shape[3])[:, : shape.length] for x in (k, v))
        slots = table[:, :, None] * shape.page + torch.arange(shape.page, device="cuda", dtype=torch.int32)
        return cls(shape, arguments, contiguous, slots.reshape(-1).int())

    @property
    def scale(self) -> float:
        """Return the usual factor."""
        return (self.shape.value_dim if self.shape.only_qv else self.shape.dim) ** -0.5


def run_torch(inputs):
    """Call torch's attention on the contiguous cache."""
    k, v = inputs.contiguous
    q = inputs.arguments["q"].transpose(1, 2)
    out = scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), enable_gqa=True)
    return out.transpose(1, 2)


def public():
    """Return the public kernel, or None where it is not importable."""
    try:
        from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd
    except ImportError:
        return None
    return decode_attention_fwd


def run_public(inputs, splits):
    """Call the public Triton decode, which takes a list of slots."""
    shape, arguments = inputs.shape, inputs.arguments
    v = arguments["v_cache"].flatten(0, 1)
    k = v if shape.only_qv else arguments["k_cache"].flatten(0, 1)
    q = (arguments["qv"] if shape.only_qv else arguments["q"]).squeeze(1)
    out = torch.empty(shape.batch, shape.heads, shape.value_dim, dtype=q.dtype, device="cuda")
    room = torch.empty(shape.batch, shape.heads, splits, shape.value_dim, device="cuda")
    lse = torch.empty(shape.batch, shape.heads, splits, device="cuda")
    counts = torch.full((shape.batch,), splits, dtype=torch.int32, device="cuda")
    ends = torch.arange(shape.batch + 1, dtype=torch.int32, device="cuda") * shape.length
    public()(q, k, v, out, ends, inputs.slots, room, lse, counts, splits, inputs.scale, 1.0, 1.0)
    return out[:, None]


def run(candidate, inputs):
    """Call a candidate."""
    if candidate.source == "torch, contiguous":
        return run_torch(inputs)
    if candidate.source == "public Triton":
        return run_public(inputs, candidate.splits)
    path = None if candidate.source == "ours" else candidate.source
    config = TileConfig(*candidate.cut) if candidate.cut else None
    return launch_kvcache(**inputs.arguments, num_splits=candidate.splits, path=path, config=config)


def candidates_for(shape, options):
    """List what to time for one shape; the launcher's own choice comes first."""
    rows = shape.queries * shape.heads // shape.key_heads
    cuts = shape.value_dim, rows
    found = [Candidate("ours"), Candidate("portable")]
    if options.sweep:
        # The copy unit is for pages of eight slots and more.
        found += [Candidate("hopper", cut) for cut in HOPPER_CUTS.get(cuts, []) if shape.page >= LEAST_COPIED_PAGE]
        found += [Candidate("portable", cut) for cut in PORTABLE_CUTS.get(cuts, [])]
        found += [Candidate("ours", None, splits) for splits in SPLITS.get(shape.batch, ())]
    if options.peers and shape.queries == 1:
        if not shape.only_qv:
            found.append(Candidate("torch, contiguous"))
        if public():
            found += [Candidate("public Triton", None, splits) for splits in (4, 8, 16, 32)]
            if shape.batch == 1:
                found += [Candidate("public Triton", None, splits) for splits in (64, 128)]
    return found


def warm(shape, candidate):
    """Compile one candidate into the cache on disk."""
    small = replace(shape, batch=2, length=max(256, shape.page) * 4)
    if candidate.source in ("ours", "portable", "hopper"):
        # The real number of shares is more than one, or not.
        for splits in (1, 2):
            run(replace(candidate, splits=splits), Inputs.random(small))
    else:
        run(candidate, Inputs.random(small))
    torch.cuda.synchronize()


def warm_all(jobs, workers, deadline):
    """Compile all candidates in parallel processes."""
    context = multiprocessing.get_context("spawn")
    begin = time.monotonic()
    pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)
    futures = {pool.submit(warm, *job): job for job in jobs}
    concurrent.futures.wait(futures, timeout=max(1.0, deadline - time.monotonic()))
    for future, (shape, candidate) in futures.items():
        if future.done() and future.exception():
            print("cannot compile", candidate.label(), shape.name(), repr(future.exception())[:300], flush=True)
    workers_left = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers_left:
        worker.kill()
    print(f"compiled {sum(f.done() for f in futures)}/{len(jobs)} in {time.monotonic() - begin:.0f} s", flush=True)


def expected_output(inputs):
    """Return float64 outputs of a few sequences, the first and the last among them, and their numbers."""
    batch = inputs.shape.batch
    chosen = sorted({0, batch // 2, batch - 1}) if inputs.shape.queries == 1 else [batch - 1]
    rows = torch.tensor(chosen, device="cuda")
    arguments = dict(inputs.arguments)
    for name in ("q", "qv", "page_table", "cache_seqlens"):
        if arguments.get(name) is not None:
            arguments[name] = arguments[name][rows]
    table = arguments["page_table"]
    for name in ("k_cache", "v_cache"):
        if arguments[name] is not None:
            arguments[name] = arguments[name][table.flatten()].double()
    arguments["page_table"] = torch.arange(table.numel(), device="cuda", dtype=torch.int32).reshape(table.shape)
    for name in ("q", "qv"):
        if arguments.get(name) is not None:
            arguments[name] = arguments[name].double()
    return chosen, naive_kvcache(**arguments)


def relative_error(out, chosen, wanted):
    """Return the largest distance from float64 of any chosen sequence, NaN if an element is not finite."""
    if not bool(out.isfinite().all()):
        return math.nan
    return max(
        float((out[number].double() - wanted[at]).norm() / wanted[at].norm()) for at, number in enumerate(chosen)
    )


def measure(shape, found, deadline):
    """Check and time the candidates of one shape."""
    inputs = Inputs.random(shape)
    chosen, wanted = expected_output(inputs)
    rows, timed = [], []
    for candidate in found:
        row = {"shape": list(astuple(shape)), "name": shape.name(), "candidate": candidate.label()}
        rows.append(row)
        if time.monotonic() > deadline:
            row["error"] = "out of time"
            continue
        try:
            row["relative_error"] = relative_error(run(candidate, inputs), chosen, wanted)
            if not row["relative_error"] < ERROR_LIMIT:
                row["error"] = f"wrong result: {row['relative_error']}"
                continue
            timed.append((row, captured(functools.partial(run, candidate, inputs))))
        except Exception as error:  # noqa: BLE001  one failing candidate must not cost the others
            row["error"] = f"{type(error).__name__}: {str(error)[:160]}"
            if candidate.source in ("ours", "hopper", "portable"):
                traceback.print_exc(limit=3)
    for _ in range(ROUNDS):
        # In turn, so that a card that gets warm slows all of them down alike.
        for row, graph in timed:
            row.setdefault("times", []).append(replay_ms(graph))
    for row, _ in timed:
        ms = sorted(row.pop("times"))[ROUNDS // 2]
        row |= {"ms": ms, "tb_s": shape.bytes() / ms / 1e9, "tflop_s": shape.flops() / ms / 1e9}
    return rows


def show(rows):
    """Print the table."""
    print(rows[0]["name"])
    for row in rows:
        if "ms" in row:
            print(
                f"  {row['candidate']:38}{1e3 * row['ms']:9.1f} us {row['tb_s']:6.2f} TB/s"
                f" {row['tflop_s']:6.0f} TFLOP/s  error {row['relative_error']:.1e}"
            )
        else:
            print(f"  {row['candidate']:38}  {row['error'][:90]}")


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", action="store_true", help="time every listed cut, not only the chosen one")
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--shapes", help="numbers of the shapes to run, comma separated")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--budget-s", type=float, default=480)
    parser.add_argument("--out")
    options = parser.parse_args()
    deadline = time.monotonic() + options.budget_s
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")
    if options.peers and public() is None:
        print("the public kernel is not importable")
    numbers = [int(n) for n in options.shapes.split(",")] if options.shapes else range(len(SHAPES))
    plan = [(SHAPES[n], candidates_for(SHAPES[n], options)) for n in numbers]
    jobs = {
        (replace(shape, batch=1, length=shape.page), c.source, c.cut): (shape, c)
        for shape, found in plan
        for c in found
    }
    if options.workers:
        warm_all(list(jobs.values()), options.workers, deadline - options.budget_s / 2)
    limits = ceilings()
    torch.cuda.empty_cache()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__, limits, flush=True)
    rows = []
    for shape, found in plan:
        new = measure(shape, found, deadline)
        show(new)
        sys.stdout.flush()
        rows += new
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
    failed = [row for row in rows if "error" in row and row["candidate"].startswith("ours")]
    sys.exit(json.dumps(failed[0]) if failed else 0)


if __name__ == "__main__":
    main()
