"""Times packed attention: ours, torch's FlashAttention-2 and cuDNN, the public Triton kernel, other tiles.

    PYTHONPATH=kernels:contracts:src:.public python benchmarks/packed_attention.py --out packed_attention.json

Every candidate's output is compared with float64 before it is timed. A time is the median of rounds in which
all candidates of a shape are replayed from CUDA graphs in turn.
"""

import argparse
import concurrent.futures
import functools
import inspect
import json
import multiprocessing
import pathlib
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import torch
import triton
from sparse_prefill import as_json
from sparse_prefill_ceilings import ceilings
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tensorpact_kernels.packed_attention import launch_hopper
from tensorpact_kernels.packed_attention.launch import TileConfig, packed_attention_triton
from tensorpact_kernels.packed_attention.launch_hopper import HopperConfig
from tensorpact_kernels.packed_attention.naive import naive_packed_attention

RAGGED = (131, 4096, 900, 2048, 77, 1000, 8100)
EVEN = (4096,) * 4


@dataclass(frozen=True)
class Shape:
    """Sequences of one call, heads and head size."""

    lengths: tuple[int, ...]
    heads: int
    key_heads: int
    dim: int
    causal: bool

    def flops(self) -> float:
        """Count both products, half of them where the upper triangle is hidden."""
        pairs = sum(n * (n + 1) / 2 if self.causal else n * n for n in self.lengths)
        return 4 * pairs * self.heads * self.dim

    def bounds(self) -> list[int]:
        """Return where the sequences begin, and the last one's end."""
        ends = [0]
        for length in self.lengths:
            ends.append(ends[-1] + length)
        return ends


SHAPES = [
    Shape(lengths, heads, key_heads, dim, causal)
    for lengths, heads, key_heads, dim in (
        (EVEN, 32, 8, 128),
        (EVEN, 24, 24, 64),
        (RAGGED, 32, 8, 128),
        (RAGGED, 32, 32, 128),
        (EVEN, 16, 4, 256),
        ((16384,), 32, 8, 128),
        ((512,) * 64, 32, 8, 128),
    )
    for causal in (False, True)
]
HOPPER_CUTS = {
    64: [
        (3, 128, 3, True, False),
        (3, 128, 3, True, True),
        (3, 64, 4, True, False),
        (3, 64, 4, True, True),
        (2, 128, 3, True, True),
    ],
    128: [
        (2, 128, 2, True, False),
        (2, 128, 2, True, True),
        (2, 64, 4, True, True),
        (3, 64, 3, True, False),
        (3, 64, 3, True, True),
    ],
    256: [(2, 64, 2, False, False), (2, 64, 2, False, True)],
}
TILES = {
    64: [(128, 64, 4, 3), (128, 128, 8, 3), (128, 64, 8, 3), (64, 64, 4, 3)],
    128: [(128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (128, 64, 4, 3)],
    256: [(128, 32, 8, 2), (128, 64, 8, 2), (64, 64, 4, 2)],
}
ROUNDS = 5
CALLS = 4
ERROR_LIMIT = 1e-2


@dataclass(frozen=True)
class Candidate:
    """One thing to time: where the kernel comes from, and how it is cut where that is chosen here."""

    source: str
    cut: tuple[int, ...] | None = None

    def label(self) -> str:
        """Name the candidate in the table."""
        if self.cut is None:
            return self.source
        if self.source == "portable":
            return "portable {}x{} w{} s{}".format(*self.cut)
        consumers, block_n, stages, own_out, in_turn = self.cut
        marks = ("" if own_out else ", out in q") + (", in turn" if in_turn else "")
        return f"{self.source} {64 * consumers}x{block_n} s{stages}{marks}"


@dataclass
class Inputs:
    """Tensors of one call."""

    shape: Shape
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cu: torch.Tensor

    @classmethod
    def random(cls, shape: Shape):
        """Draw normal values."""
        gen = torch.Generator("cuda").manual_seed(sum(shape.lengths) + shape.heads)
        tokens = sum(shape.lengths)
        q, k, v = (
            torch.randn(tokens, heads, shape.dim, device="cuda", generator=gen).bfloat16()
            for heads in (shape.heads, shape.key_heads, shape.key_heads)
        )
        return cls(shape, q, k, v, torch.tensor(shape.bounds(), dtype=torch.int32, device="cuda"))

    @functools.cached_property
    def repeated(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a key head for each query head, for what knows no groups; made outside the timing."""
        group = self.shape.heads // self.shape.key_heads
        return self.k.repeat_interleave(group, 1), self.v.repeat_interleave(group, 1)

    @property
    def scale(self) -> float:
        """Return the usual factor."""
        return self.shape.dim**-0.5


def run_ours(inputs, candidate):
    """Call the launcher, with a cut of the candidate's where it has one."""
    arguments = inputs.q, inputs.k, inputs.v, inputs.cu, inputs.cu, inputs.scale
    causal = inputs.shape.causal
    if candidate.source == "hopper":
        out = torch.empty_like(inputs.q)
        launch_hopper.attend(*arguments, out, None, causal=causal, config=HopperConfig(*candidate.cut))
        return out
    config = TileConfig(*candidate.cut) if candidate.cut else None
    path = "portable" if candidate.source == "portable" else None
    return packed_attention_triton(*arguments, causal=causal, config=config, path=path)[0]


def run_varlen(inputs):
    """Call torch's packed FlashAttention-2."""
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    options = {"window_size": (-1, 0 if inputs.shape.causal else -1)}
    if "window_size" not in known:
        options = {"is_causal": inputs.shape.causal}
    k, v = inputs.k, inputs.v
    if inputs.shape.heads != inputs.shape.key_heads:
        if "enable_gqa" in known:
            options["enable_gqa"] = True
        else:
            k, v = inputs.repeated
    longest = max(inputs.shape.lengths)
    return varlen_attn(inputs.q, k, v, inputs.cu, inputs.cu, longest, longest, **options)


def run_dense(inputs, backend):
    """Call torch's attention on the batch as one dense tensor; its lengths are equal."""
    batch, length = len(inputs.shape.lengths), inputs.shape.lengths[0]
    q, k, v = (
        tensor.view(batch, length, tensor.shape[1], tensor.shape[2]).transpose(1, 2)
        for tensor in (inputs.q, inputs.k, inputs.v)
    )
    with sdpa_kernel(backend):
        out = scaled_dot_product_attention(
            q, k, v, is_causal=inputs.shape.causal, enable_gqa=inputs.shape.heads != inputs.shape.key_heads
        )
    return out.transpose(1, 2).reshape(inputs.q.shape)


def public():
    """Return the public kernel, or None where it is not importable."""
    try:
        from sglang.kernels.ops.attention.prefill_attention import context_attention_fwd
    except ImportError:
        return None
    return context_attention_fwd


def run_public(inputs):
    """Call the public Triton kernel."""
    out = torch.empty_like(inputs.q)
    lengths = inputs.cu[1:] - inputs.cu[:-1]
    longest = max(inputs.shape.lengths)
    public()(
        inputs.q, inputs.k, inputs.v, out, inputs.cu[:-1], lengths, longest, inputs.shape.causal, inputs.scale
    )  # fmt: skip
    return out


def run(candidate, inputs):
    """Call a candidate."""
    if candidate.source == "FlashAttention-2 packed":
        return run_varlen(inputs)
    if candidate.source == "FlashAttention-2 dense":
        return run_dense(inputs, SDPBackend.FLASH_ATTENTION)
    if candidate.source == "cuDNN dense":
        return run_dense(inputs, SDPBackend.CUDNN_ATTENTION)
    if candidate.source == "public Triton":
        return run_public(inputs)
    return run_ours(inputs, candidate)


def candidates_for(shape, options):
    """List what to time for one shape; the launcher's own choice comes first."""
    found = [Candidate("ours"), Candidate("portable")]
    if options.sweep:
        found += [Candidate("hopper", cut) for cut in HOPPER_CUTS.get(shape.dim, [])]
        found += [Candidate("portable", cut) for cut in TILES.get(shape.dim, [])]
    if options.peers:
        found.append(Candidate("FlashAttention-2 packed"))
        if len(set(shape.lengths)) == 1:
            found += [Candidate("FlashAttention-2 dense"), Candidate("cuDNN dense")]
        if public():
            found.append(Candidate("public Triton"))
    return found


def warm(shape, candidate):
    """Compile one candidate into the cache on disk."""
    small = Shape((256, 256), shape.heads, shape.key_heads, shape.dim, shape.causal)
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
            print("cannot compile", candidate.label(), shape.dim, repr(future.exception())[:300], flush=True)
    workers_left = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers_left:
        worker.kill()
    print(f"compiled {sum(f.done() for f in futures)}/{len(jobs)} in {time.monotonic() - begin:.0f} s", flush=True)


def expected_output(inputs):
    """Return float64 outputs of every row, computed from the same bf16 inputs."""
    bounds = inputs.shape.bounds()
    out = torch.empty(inputs.q.shape, dtype=torch.float64, device="cuda")
    group = inputs.shape.heads // inputs.shape.key_heads
    for head in range(0, inputs.shape.heads, group):
        heads, key = slice(head, head + group), slice(head // group, head // group + 1)
        q, k, v = inputs.q[:, heads].double(), inputs.k[:, key].double(), inputs.v[:, key].double()
        out[:, heads] = naive_packed_attention(q, k, v, bounds, bounds, inputs.scale, causal=inputs.shape.causal)[0]
    return out


def relative_error(out, wanted, bounds):
    """Return the largest distance from float64 of any sequence, NaN if an element is not finite."""
    if not bool(out.isfinite().all()):
        return float("nan")
    return max(
        float((out[begin:end].double() - wanted[begin:end]).norm() / wanted[begin:end].norm())
        for begin, end in pairwise(bounds)
    )


def measure(shape, found, deadline):
    """Check and time the candidates of one shape."""
    inputs = Inputs.random(shape)
    wanted = expected_output(inputs)
    rows, timed = [], []
    for candidate in found:
        row = {
            "lengths": list(shape.lengths),
            "heads": [shape.heads, shape.key_heads],
            "dim": shape.dim,
            "causal": shape.causal,
            "candidate": candidate.label(),
        }
        rows.append(row)
        if time.monotonic() > deadline:
            row["error"] = "out of time"
            continue
        try:
            row["relative_error"] = relative_error(run(candidate, inputs), wanted, shape.bounds())
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
        row |= {"ms": ms, "tflop_s": shape.flops() / ms / 1e9}
    return rows


def captured(call):
    """Return a graph of a few calls."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    return graph


def replay_ms(graph):
    """Return the time of one call, after a replay that is not counted."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / CALLS


def name_of(row):
    """Name a shape in the printed table."""
    lengths = row["lengths"]
    batch = f"{len(lengths)}x{lengths[0]}" if len(set(lengths)) == 1 else f"{len(lengths)} ragged"
    return f"{batch} {row['heads'][0]}/{row['heads'][1]} D{row['dim']} {'causal' if row['causal'] else 'full'}"


def show(rows):
    """Print the table."""
    for row in rows:
        head = f"{name_of(row):28} {row['candidate']:34}"
        if "ms" in row:
            print(f"{head}{row['ms']:9.4f} ms {row['tflop_s']:7.1f} TFLOP/s  error {row['relative_error']:.1e}")
        else:
            print(f"{head}  {row['error'][:90]}")


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", action="store_true", help="time every listed cut, not only the chosen one")
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--shapes", help="numbers of the shapes to run, comma separated")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--budget-s", type=float, default=300)
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
        (shape.heads, shape.key_heads, shape.dim, shape.causal, c): (shape, c) for shape, found in plan for c in found
    }
    if options.workers:
        warm_all(list(jobs.values()), options.workers, deadline - options.budget_s / 2)
    limits = ceilings()
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
