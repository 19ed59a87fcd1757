"""Times updates of the causal KV cache and counts the bytes they move, beside the public form on the same tensors.

    PYTHONPATH=kernels:contracts:src python benchmarks/causal_kv_cache.py --device cuda --out causal_kv_cache.json

The public form clones what survives an eviction, copies it back and writes the chunk. Ours moves tokens in place
(headroom 0) or moves a window over spare slots (headroom as a multiple of the cache). Every step is an eviction by one
chunk, in the steady state. Bytes moved are counted where they are written: what copies and clones write is added up by
a dispatch mode, what the kernel writes is known from its arguments. The results of all candidates are compared.
"""

import argparse
import json
import pathlib
import platform
import statistics
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorpact_kernels import CausalSelfAttentionKVCache
from tensorpact_kernels.causal_kv_cache import launch, rolling
from tensorpact_kernels.causal_kv_cache.naive import naive_update_and_get_attention_kv

CACHES = [1024, 4096, 16384, 65536]
CHUNKS = [1, 16, 256, 1024, 4096]
HEADROOMS = [0.0, 0.25, 0.5, 1.0, 2.0]
TILES = [(32, 64, 4), (64, 64, 4), (32, 128, 4), (128, 32, 8), (128, 64, 8), (256, 32, 8), (64, 32, 4), (512, 32, 8)]


class CountWrites(TorchDispatchMode):
    """Adds up the bytes that copies, clones and concatenations write."""

    WRITES = ("copy_", "clone", "cat", "zero_", "_to_copy")

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operator and count what it writes."""
        out = func(*args, **(kwargs or {}))
        if func._schema.name.rpartition("::")[2] in self.WRITES and isinstance(out, torch.Tensor):
            self.bytes += out.numel() * out.element_size()
        return out


def kernel_writes(k, v, *, kept, key=None, **_):
    """Bytes that one launch of the kernel writes."""
    tokens = kept + (0 if key is None else key.shape[1])
    return sum(t.shape[0] * tokens * t.shape[2] * t.shape[3] * t.element_size() for t in (k, v))


@dataclass
class Candidate:
    """One way to keep a cache, with the cache it works on."""

    name: str
    cache: CausalSelfAttentionKVCache
    public: bool = False
    tile: tuple[int, int, int] | None = None
    position: int = field(default=0, init=False)

    def step(self, key, value):
        """Append one chunk and return what it sees."""
        update = naive_update_and_get_attention_kv if self.public else type(self.cache).update_and_get_attention_kv
        view = update(self.cache, key=key, value=value, current_chunk_start=self.position)
        self.position = view.visible_global_end
        return view


def candidates(options, slots, chunk, sink):
    """Make every candidate for one size."""
    dtype = getattr(torch, options.dtype)

    def cache(headroom):
        k, v = (torch.zeros(1, slots, options.heads, options.dim, dtype=dtype, device=options.device) for _ in "kv")
        index = [torch.full((1,), slots, dtype=torch.int64, device=options.device) for _ in range(2)]
        return CausalSelfAttentionKVCache(k, v, *index, slots, slots, sink_tokens=sink, headroom=headroom)

    yield Candidate("public form", cache(0), public=True)
    for share in HEADROOMS:
        yield Candidate(f"headroom {share:g}", cache(round(share * slots)))
    if options.tiles and torch.device(options.device).type == "cuda":
        for tile in TILES:
            yield Candidate("in place {}x{} w{}".format(*tile), cache(0), tile=tile)


def bytes_of(candidate, chunks, steps):
    """Return the bytes written in each of some steps."""
    written = []
    launched = launch.shift_and_write_triton

    def counted(k, v, **arguments):
        counts[0] += kernel_writes(k, v, **arguments)
        return launched(k, v, **arguments)

    counts = [0]
    with mock.patch.object(launch, "shift_and_write_triton", counted):
        for i in range(steps):
            counts[0] = 0
            with CountWrites() as copies:
                candidate.step(*chunks[i % len(chunks)])
            written.append(copies.bytes + counts[0])
    return written


def seconds_of(candidate, chunks, steps, device):
    """Return the seconds of each of some steps; on a card between events, so that launches may run ahead."""
    found = []
    for i in range(steps):
        key, value = chunks[i % len(chunks)]
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            candidate.step(key, value)
            end.record()
            found.append((begin, end))
        else:
            begin = time.perf_counter()
            candidate.step(key, value)
            found.append(time.perf_counter() - begin)
    if device.type == "cuda":
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in found]
    return found


def period(slots, chunk, headroom):
    """Steps until the window is where it was: what an average has to span."""
    return headroom // chunk + 1


def measure(options, slots, chunk, sink, deadline):
    """Check, count and time every candidate of one size."""
    device = torch.device(options.device)
    shape = (1, chunk, options.heads, options.dim)
    chunks = [
        tuple(torch.randn(shape, device=device).to(getattr(torch, options.dtype)) for _ in "kv") for _ in range(3)
    ]
    chunk_bytes = 2 * chunks[0][0].numel() * chunks[0][0].element_size()
    rows, reference = [], None
    for candidate in candidates(options, slots, chunk, sink):
        row = {"slots": slots, "chunk": chunk, "sink": sink, "candidate": candidate.name}
        rows.append(row)
        if time.monotonic() > deadline:
            row["error"] = "out of time"
            continue
        candidate.position = slots
        headroom = candidate.cache.headroom or 0
        whole = period(slots, chunk, headroom)
        tile = launch.Tile(*candidate.tile) if candidate.tile else None
        chosen = (lambda shift, columns, tile=tile: tile) if tile else launch.tile_for
        with mock.patch.object(launch, "tile_for", chosen):
            # The first evictions allocate the spare slots and compile the kernel.
            for i in range(3):
                view = candidate.step(*chunks[i])
            if reference is None:
                reference = view.k.clone(), view.v.clone()
            row["right"] = torch.equal(view.k, reference[0]) and torch.equal(view.v, reference[1])
            # An average over whole periods is the amortised figure; long ones are cut, at a whole number of steps.
            counted = bytes_of(candidate, chunks, whole if whole <= 2000 else 2000)
            exact = sum(counted) / len(counted)
            if whole > 2000:
                once = (slots - chunk) * chunk_bytes / chunk
                exact = statistics.median(counted) + once / whole
                row["counted"] = "one step, the return of the window from its size"
            row["bytes"] = exact
            row["times_the_chunk"] = exact / chunk_bytes
            times = seconds_of(candidate, chunks, max(options.steps, min(whole, 50)), device)
            row["us"] = 1e6 * statistics.mean(times)
            row["median_us"] = 1e6 * statistics.median(times)
        del candidate
    return rows


def as_json(report):
    """Return a report as JSON with one line a row."""

    def cut(value):
        return float(f"{value:.4g}") if isinstance(value, float) else value

    rows = report.pop("rows")
    head = ",\n".join(json.dumps({name: entry})[1:-1] for name, entry in report.items())
    lines = ",\n".join(json.dumps({name: cut(value) for name, value in row.items()}) for row in rows)
    return "{" + head + f',\n"rows": [\n{lines}\n]}}\n'


def show(rows):
    """Print the table."""
    print(f"{'slots':>6}{'chunk':>6}{'sink':>5}  {'candidate':22}{'x chunk':>9}{'us':>10}{'median':>10}  right")
    for row in rows:
        head = f"{row['slots']:6}{row['chunk']:6}{row['sink']:5}  {row['candidate']:22}"
        if "us" in row:
            print(f"{head}{row['times_the_chunk']:9.2f}{row['us']:10.1f}{row['median_us']:10.1f}  {row['right']}")
        else:
            print(f"{head}  {row.get('error')}")


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--heads", type=int, default=None, help="default: 40 on a card, 4 on the host")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--steps", type=int, default=None, help="timed steps; default: 50 on a card, 10 on the host")
    parser.add_argument("--tiles", action="store_true", help="time every listed tile of the kernel too")
    parser.add_argument("--quick", action="store_true", help="two small sizes, to see that everything runs")
    parser.add_argument("--budget-s", type=float, default=420)
    parser.add_argument("--out")
    options = parser.parse_args()
    deadline = time.monotonic() + options.budget_s
    on_card = torch.device(options.device).type == "cuda"
    options.heads = options.heads or (40 if on_card else 4)
    options.steps = options.steps or (50 if on_card else 10)
    sizes = [(s, c) for s in CACHES for c in CHUNKS if 2 * c <= s]
    plan = [(s, c, sink) for s, c in sizes for sink in ((0, c // 2) if c > 1 and s == 16384 else (0,))]
    if options.quick:
        plan, options.heads, options.steps = [(256, 16, 0), (256, 16, 8), (256, 1, 0)], 2, 4
    rows = []
    for slots, chunk, sink in plan:
        rows += measure(options, slots, chunk, sink, deadline)
        if options.out:
            report = {
                "card": torch.cuda.get_device_name() if on_card else "none",
                "processor": platform.machine(),
                "torch": torch.__version__,
                "triton": _triton_version(),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "batch": 1,
                "heads": options.heads,
                "dim": options.dim,
                "dtype": options.dtype,
                "default_headroom": rolling.spare_slots(torch.empty(1, 1000, 1, 1, device="meta"), 0) / 1000,
                "default_headroom_sink": rolling.spare_slots(torch.empty(1, 1000, 1, 1, device="meta"), 1) / 1000,
                "rows": rows,
            }
            pathlib.Path(options.out).write_text(as_json(report))
    show(rows)
    wrong = [row for row in rows if row.get("right") is False]
    assert not wrong, wrong


def _triton_version():
    try:
        import triton
    except ImportError:
        return "none"
    return triton.__version__


if __name__ == "__main__":
    main()
