"""Times the ReplaySSM decode of Kimi delta attention: ours, the public Triton kernel if importable, other tiles.

    PYTHONPATH=kernels:contracts:src:.public python benchmarks/replayssm.py --out replayssm.json

Every candidate's outputs, states and rings are compared with float64 on a few rows before it is timed. The figure of a
candidate is what a decode step costs on average, ``((L - 1) * normal + flush) / L``: a normal step at the mean cursor,
and one where every row flushes. ``mixed`` is a step whose rows have their cursors evenly spread, as in a server.
"""

import argparse
import functools
import json
import pathlib
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime

import torch
import triton
from sparse_prefill import as_json, warm_all
from sparse_prefill_ceilings import ceilings, graph_ms

from tensorpact_kernels import fused_recurrent_kda_replayssm_decode
from tensorpact_kernels.replayssm.launch import Config, StagedConfig, StreamedConfig, replayssm_decode_triton
from tensorpact_kernels.replayssm.naive import naive_replayssm_decode

HEADS, DIM, RING = 32, 128, 16
SHAPES = [(batch, dtype) for dtype in ("float32", "bfloat16") for batch in (1, 16, 64, 256)]
TILES = [
    *(StagedConfig(64, 2, 4, registers) for registers in (None, 80, 128)),
    *(StagedConfig(64, 1, 4, registers) for registers in (None, 96)),
    StagedConfig(32, 1, 4),
    StagedConfig(32, 2, 4),
    StagedConfig(32, 4, 4),
    StagedConfig(32, 2, 2),
    StagedConfig(32, 4, 2),
    StagedConfig(128, 1, 8),
    StreamedConfig(16, 1, 3),
    StreamedConfig(16, 2, 3),
    StreamedConfig(16, 4, 3),
    StreamedConfig(32, 2, 2),
    StreamedConfig(16, 2, 3, 2),
]
COLD_BYTES = 256 << 20
ERROR_LIMITS = {"float32": 6e-3, "bfloat16": 1e-2}


@dataclass(frozen=True)
class Candidate:
    """One thing to time: where the kernel comes from, and its tile where that is chosen here."""

    source: str
    tile: Config | None = None

    def label(self) -> str:
        """Name the candidate in the table."""
        if self.tile is None:
            return self.source
        if isinstance(self.tile, StagedConfig):
            rows = f"{self.tile.tiles}x{self.tile.tile}"
            return f"staged {rows} w{self.tile.num_warps} r{self.tile.registers or '-'}"
        return f"streamed {self.tile.block_v} w{self.tile.num_warps} s{self.tile.num_stages} /{self.tile.parts}"


def public_decode():
    """Return the public kernel, or None where it is not importable."""
    try:
        from sglang.kernels.ops.attention.linear.fused_recurrent_linear_replayssm import (
            fused_recurrent_linear_replayssm_decode,
        )
    except ImportError:
        return None
    return functools.partial(fused_recurrent_linear_replayssm_decode, use_qk_l2norm_in_kernel=True, is_kda=True)


def caller(candidate):
    """Return the function of a candidate; ``entry`` is the whole call, the contract included."""
    if candidate.source == "public":
        return public_decode()
    if candidate.source == "entry":
        return functools.partial(fused_recurrent_kda_replayssm_decode, use_qk_l2norm_in_kernel=True)
    return functools.partial(replayssm_decode_triton, use_qk_l2norm_in_kernel=True, config=candidate.tile)


def make_inputs(batch, dtype, sets=1, seed=0):
    """Return several steps over one pool, each with slots of its own; cursors are filled in by the caller."""
    gen = torch.Generator("cuda").manual_seed(seed)
    state_dtype = getattr(torch, dtype)

    def random(*shape, scale=1.0):
        return torch.randn(*shape, device="cuda", generator=gen) * scale

    slots = batch * sets + 1
    pool = torch.empty(slots, HEADS, DIM, DIM, device="cuda", dtype=state_dtype)
    for slot in pool:
        slot.copy_(random(HEADS, DIM, DIM, scale=0.1))
    d = random(slots, HEADS, RING, DIM).bfloat16()
    k = random(slots, HEADS, RING, DIM, scale=DIM**-0.5).bfloat16()
    g = -0.1 * random(slots, HEADS, RING, DIM).abs()
    order = torch.randperm(slots, device="cuda", generator=gen)
    a_log, dt_bias = random(HEADS, scale=0.3) - 1, random(HEADS, DIM, scale=0.5)
    return [
        [
            random(batch, 3 * HEADS * DIM).bfloat16(),
            random(batch, HEADS, DIM).bfloat16(),
            random(batch, HEADS).bfloat16(),
            a_log,
            dt_bias,
            DIM**-0.5,
            pool,
            d,
            k,
            g,
            torch.empty(batch, 1, HEADS, DIM, device="cuda", dtype=torch.bfloat16),
            order[number * batch : (number + 1) * batch].int(),
            torch.zeros(batch, device="cuda", dtype=torch.int32),
        ]
        for number in range(sets)
    ]


def set_cursors(sets, kind):
    """Put every row's cursor to the mean, to the last place, or spread them evenly."""
    for arguments in sets:
        cursor = arguments[-1]
        if kind == "mixed":
            cursor.copy_(torch.arange(len(cursor), device="cuda") % RING)
        else:
            cursor.fill_(RING // 2 if kind == "normal" else RING - 1)


def relative_error(candidate, arguments, kind, rows=3):
    """Return the largest distance from float64 over output, state and rings, on some rows and their slots."""
    set_cursors([arguments], kind)
    picked = torch.randperm(len(arguments[11]), device="cuda")[:rows]
    slots = arguments[11][picked].long()
    small = [x[picked].double() for x in arguments[:3]] + [x.double() for x in arguments[3:5]] + [arguments[5]]
    small += [x[slots].double() for x in arguments[6:10]]
    small += [arguments[10][picked].double(), torch.arange(len(slots), device="cuda"), arguments[12][picked]]
    wanted = naive_replayssm_decode(*small, use_qk_l2norm_in_kernel=True)
    arguments[10].fill_(float("nan"))
    caller(candidate)(*arguments)
    if not bool(arguments[10].isfinite().all()):
        return float("nan")
    got = [arguments[10][picked], *(x[slots] for x in arguments[6:10])]
    return max(float((g.double() - w).norm() / w.norm()) for g, w in zip(got, wanted, strict=True))


def eager_us(calls, repeats=100, warm=50, rounds=15):
    """Return the time of each call from Python to Python, in loops taken in turns that the device keeps up with."""
    found = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(warm):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            torch.cuda.synchronize()
            found[name].append((time.perf_counter() - begin) / repeats)
    return {name: 1e6 * sorted(times)[rounds // 2] for name, times in found.items()}


def warm(dtype, candidate):
    """Compile one candidate into the cache on disk, with the specialisation that the timed call will have."""
    caller(candidate)(*make_inputs(64, dtype)[0])
    torch.cuda.synchronize()


def bytes_of(batch, dtype, cursor, *, flush):
    """Return what one step must move: state, ring up to the cursor, its new row, inputs and outputs."""
    state = DIM * DIM * (4 if dtype == "float32" else 2)
    ring = DIM * (2 + 2 + 4)
    step = state * (2 if flush else 1) + cursor * ring + (0 if flush else ring) + 2 * (4 + 2) * DIM
    return batch * HEADS * step


def measure(shape, found, limits, *, full):
    """Check and time the candidates of one shape."""
    batch, dtype = shape
    state_bytes = batch * HEADS * DIM * DIM * (4 if dtype == "float32" else 2)
    sets = make_inputs(batch, dtype, sets=max(2, min(16, COLD_BYTES // state_bytes)))
    rows = []
    for candidate in found:
        row = {"shape": list(shape), "candidate": candidate.label()}
        rows.append(row)
        try:
            if candidate.source == "entry":
                continue
            row["relative_error"] = max(
                relative_error(candidate, sets[0], kind) for kind in ("normal", "flush", "mixed")
            )
            if not row["relative_error"] < ERROR_LIMITS[dtype]:
                row["error"] = "wrong result"
                continue
            calls = [functools.partial(caller(candidate), *arguments) for arguments in sets]
            for kind in ("normal", "flush", "mixed") if full or candidate.tile is None else ("normal", "flush"):
                set_cursors(sets, kind)
                row[f"{kind}_us"] = 1e3 * graph_ms(calls)
            row["step_us"] = ((RING - 1) * row["normal_us"] + row["flush_us"]) / RING
            moved = bytes_of(batch, dtype, RING // 2, flush=False) / row["normal_us"] / 1e6
            row |= {"normal_tb_s": moved, "of_copy": moved / limits["copy_tb_s"]}
            row["flush_tb_s"] = bytes_of(batch, dtype, RING - 1, flush=True) / row["flush_us"] / 1e6
        except Exception as error:  # noqa: BLE001  one failing candidate must not cost the others
            row["error"] = f"{type(error).__name__}: {str(error)[:160]}"
            traceback.print_exc(limit=2)
    set_cursors(sets, "normal")
    whole = {c.label(): functools.partial(caller(c), *sets[0]) for c in found if c.tile is None}
    for row, spent in zip(rows, eager_us(whole).values(), strict=False):
        row["eager_us"] = spent
    return rows


def show(rows):
    """Print the table."""
    names = ["normal_us", "flush_us", "mixed_us", "step_us", "normal_tb_s", "of_copy", "flush_tb_s", "eager_us"]
    print(f"{'shape':>14}  {'candidate':24}" + "".join(f"{name:>12}" for name in [*names, "error"]))
    for row in rows:
        cells = "".join(f"{row[name]:12.2f}" if name in row else " " * 12 for name in names)
        note = row.get("error") or (f"{row['relative_error']:.1e}" if "relative_error" in row else "")
        print(f"{'x'.join(map(str, row['shape'])):>14}  {row['candidate']:24}{cells}{note:>12}")


def main():
    """Time what the options ask for and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true", help="time other tiles too")
    parser.add_argument("--batches", default="1,16,64,256")
    parser.add_argument("--out")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")
    found = [Candidate("ours"), Candidate("entry")]
    if public_decode() is None:
        print("the public kernel is not importable: timing ours alone")
    else:
        found.insert(0, Candidate("public"))
    if options.sweep:
        found += [Candidate("ours", tile) for tile in TILES]
    dtypes = {dtype for _, dtype in SHAPES}
    warm_all(warm, [(dtype, c) for dtype in dtypes for c in found if c.source != "entry"], 12, time.monotonic() + 240)
    limits = ceilings()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__, limits, flush=True)
    rows = []
    for shape in SHAPES:
        if str(shape[0]) not in options.batches.split(","):
            continue
        rows += measure(shape, found, limits, full=not options.sweep)
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
    print(json.dumps({"rows": len(rows)}))


if __name__ == "__main__":
    main()
