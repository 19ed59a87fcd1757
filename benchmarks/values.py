"""Cost of looking at the numbers inside tensors: the asynchronous checker, and the poll.

    python benchmarks/values.py --out values.json
    TRITON_INTERPRET=1 python benchmarks/values.py --smoke

On a GPU every figure is a difference between modes in one run, round by round, and its spread. The unit of
the host figures is what a launch of an ordinary Triton kernel in front of the same call adds. ``--smoke`` runs every
part once on the CPU, through Triton's interpreter, and times nothing but the parts on the host. Kernels that report
have ``values_in_kernel.py``.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import torch
import triton

import tensorpact
from tensorpact import _decorator
from tensorpact._values import gate, launching, mailbox, pending, rows, table
from tensorpact._values.judging import is_capturing
from tensorpact_kernels import (
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    fused_infer_attention_varlen,
    fused_recurrent_kda_replayssm_decode,
    sparse_attn_v4_paged_decode,
)

TARGETS = {"gpu_us": 6.0, "host_launches": 1.2, "replay_us": 6.0, "poll_us": 0.3}
#: Mode, and whether kernels report.
SETTINGS: dict[str, tuple[Any, bool]] = {
    "off": ("off", False),
    "async": ("async", False),
    "sync": ("sync", False),
    "in_kernel": ("off", True),
}
Call = Callable[[], Any]


def decode_call(device: str, tokens: int = 64, keys: int = 64, dim: int = 128) -> Call:
    """Sparse decode: offsets and a list of rows."""
    given = {
        "q": torch.randn(tokens, 16, dim, device=device).bfloat16(),
        "unified_kv": torch.randn(4096, dim, device=device).bfloat16(),
        "kv_indices": torch.randint(0, 4096, (tokens * keys,), device=device, dtype=torch.int32),
        "kv_indptr": torch.arange(0, tokens * keys + 1, keys, device=device, dtype=torch.int32),
        "attn_sink": torch.randn(16, device=device),
        "softmax_scale": dim**-0.5,
    }
    return lambda: sparse_attn_v4_paged_decode(**given)


def replay_call(device: str, batch: int = 64) -> Call:
    """KDA decode: slots in range, all different, and cursors inside the ring."""
    heads, dim, length, slots = 4, 64, 16, 2 * batch
    zeros, random = (lambda *n: torch.zeros(n, device=device)), (lambda *n: torch.randn(n, device=device))
    given = {
        "mixed_qkv": random(batch, 3 * heads * dim),
        "a": random(batch, heads, dim),
        "b": random(batch, heads),
        "A_log": zeros(heads),
        "dt_bias": zeros(heads, dim),
        "scale": dim**-0.5,
        "initial_state": zeros(slots, heads, dim, dim),
        "d_cache": zeros(slots, heads, length, dim),
        "k_cache": zeros(slots, heads, length, dim),
        "g_cache": zeros(slots, heads, length, dim),
        "out": zeros(batch, 1, heads, dim),
        "ssm_state_indices": torch.randperm(slots, device=device)[:batch].int(),
        "write_pos": torch.randint(0, length, (batch,), device=device, dtype=torch.int32),
    }
    return lambda: fused_recurrent_kda_replayssm_decode(**given)


def packed_call(device: str, batch: int = 16, length: int = 64) -> Call:
    """Packed attention: two vectors of offsets."""
    ends = torch.arange(0, batch * length + 1, length, device=device, dtype=torch.int32)
    q, k, v = (torch.randn(batch * length, 4, 64, device=device).bfloat16() for _ in range(3))
    other = ends.clone()
    return lambda: fused_infer_attention_varlen(q, k, v, ends, other)


def cached_call(device: str, batch: int = 64, page: int = 16, columns: int = 8) -> Call:
    """Decode with pages and one new token: lengths, and the columns of a table that are in use."""
    floats = lambda *n: torch.randn(n, device=device).bfloat16()
    given = {
        "q": floats(batch, 1, 8, 64),
        "k_cache": floats(batch * columns, page, 2, 64),
        "v_cache": floats(batch * columns, page, 2, 64),
        "k": floats(batch, 1, 2, 64),
        "v": floats(batch, 1, 2, 64),
        "page_table": torch.randperm(batch * columns, device=device).int().view(batch, columns),
        "cache_seqlens": torch.randint(1, page * columns, (batch,), device=device, dtype=torch.int32),
        "causal": True,
    }
    return lambda: flash_attn_with_kvcache(**given)


def varlen_call(device: str, batch: int = 16, length: int = 64) -> Call:
    """Flash attention over packed sequences: two vectors of boundaries, with a longest sequence each."""
    ends = torch.arange(0, batch * length + 1, length, device=device, dtype=torch.int32)
    q, k, v = (torch.randn(batch * length, 4, 64, device=device).bfloat16() for _ in range(3))
    return lambda: flash_attn_varlen_func(q, k, v, ends, ends, length, length, causal=True)


CALLS: dict[str, Callable[[str], Call]] = {
    "flash_attn_with_kvcache": cached_call,
    "flash_attn_varlen_func": varlen_call,
    "sparse_attn_v4_paged_decode": decode_call,
    "fused_recurrent_kda_replayssm_decode": replay_call,
    "fused_infer_attention_varlen": packed_call,
}


def checks(setting: str) -> Any:
    """The switches of a setting."""
    mode, reports = SETTINGS[setting]
    return tensorpact.value_checks(mode, in_kernel=reports)


def host_us(call: Call, count: int, wait: Call) -> float:
    """Host time of one call, in microseconds, with the device never in the way."""
    wait()
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    spent = time.perf_counter_ns() - start
    wait()
    return spent / count / 1e3


def one_by_one(calls: Mapping[str, tuple[Call, str]], count: int) -> dict[str, list[float]]:
    """Host time of single calls under a setting each, in microseconds, in turn and the device never in the way."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(count):
        for name, (call, setting) in calls.items():
            with checks(setting):
                if number % 10 == 0:
                    torch.cuda.synchronize()
                start = time.perf_counter_ns()
                call()
                samples[name].append((time.perf_counter_ns() - start) / 1e3)
    torch.cuda.synchronize()
    return samples


def gpu_us(run: Call, count: int) -> float:
    """Device time of one run, in microseconds."""
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    before.record()
    for _ in range(count):
        run()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after) * 1e3 / count


def captured(call: Call, setting: str, copies: int) -> torch.cuda.CUDAGraph:
    """A graph of several calls."""
    with checks(setting):
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(copies):
                call()
    return graph


def spread(samples: list[float]) -> dict[str, float]:
    """Median, and half of what lies between the quartiles."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return {"median": round(middle, 3), "spread": round((high - low) / 2, 3)}


def measured(name: str, rounds: int) -> dict[str, Any]:
    """All figures of one entry point on a GPU."""
    call = CALLS[name]("cuda")
    for mode in ("off", "async"):
        with checks(mode):
            for _ in range(20):
                call()
    copies = 20
    graphs = {mode: captured(call, mode, copies) for mode in ("off", "async")}
    replay = {mode: [] for mode in graphs}
    for _ in range(rounds):
        for mode, graph in graphs.items():
            replay[mode].append(gpu_us(graph.replay, 10) / copies)
    launch = a_launch()

    def after_a_launch() -> None:
        launch()
        call()

    launch()
    calls = {mode: (call, mode) for mode in ("off", "async", "sync")} | {"launch": (after_a_launch, "off")}
    host = one_by_one(calls, 20 * rounds)
    tensorpact.synchronize()

    def more(samples: dict[str, list[float]], mode: str) -> dict[str, float]:
        return spread([a - b for a, b in zip(samples[mode], samples["off"], strict=True)])

    return {
        "replay_us_off": spread(replay["off"]),
        "replay_us_async": more(replay, "async"),
        "host_us_off": spread(host["off"]),
        "host_us_async": more(host, "async"),
        "host_us_sync": more(host, "sync"),
        "host_us_launch": more(host, "launch"),
    }


def alone(device: torch.device) -> Iterator[tuple[str, Call]]:
    """The checker by itself, on tables of several kinds; smaller ones for the interpreter."""
    box = mailbox.Mailbox(device)
    less = 16 if device.type == "cpu" else 1

    def numbers(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    kinds = {
        "one_range_of_64": [rows.Row(rows.RANGE, numbers(64), 0, 9)],
        "eight_ranges_of_64": [rows.Row(rows.RANGE, numbers(64), 0, 9) for _ in range(8)],
        "a_range_of_65536": [rows.Row(rows.RANGE, numbers(65536 // less), 0, 9)],
        "a_page_table_256_x_128": [
            rows.Row(rows.RANGE, numbers(256, 128 // less), 0, 9, mode=rows.COLUMNS, active=numbers(256) + 99, per=1)
        ],
        "256_that_differ": [rows.Row(rows.DISTINCT, torch.arange(256, device=device).int())],
    }
    calls = itertools.count(1)
    for label, checks in kinds.items():
        (made,) = table.encode(checks)

        def start(made: table.Table = made) -> None:
            stream, call = launching.stream_of(device), next(calls)
            laid, counter = box.lay(made, call, captured=is_capturing(), again=True), box.counter(stream)
            if laid is None or counter is None:
                raise RuntimeError("no table is free")
            launching.start(box, laid, counter, call, made, [tensor.data_ptr() for tensor in made.tensors], stream)

        yield label, start


@triton.jit
def nothing(t0, t1, t2, t3, t4, t5, n0, n1, n2, n3, n4, n5, n6, n7, n8):
    """A kernel with six tensors and nine numbers, for what a launch costs."""


def a_launch() -> Call:
    """Start it, as a kernel of a library is started."""
    x = torch.zeros(16, device="cuda")
    return lambda: nothing[(1,)](x, x, x, x, x, x, 2, 3, 4, 5, 6, 7, 8, 9, 10)


def on_gpu(rounds: int) -> dict[str, Any]:
    """Every figure."""
    if _decorator.disabled:
        raise SystemExit("contracts are off: there is nothing to measure")
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "targets": TARGETS}
    kernel: dict[str, Any] = {}
    for label, start in alone(torch.device("cuda", torch.cuda.current_device())):
        for _ in range(2):
            start()
            torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                start()
        kernel[label] = {
            "gpu_us": spread([gpu_us(graph.replay, 10) / 20 for _ in range(rounds)]),
            "host_us": spread([host_us(start, 50, torch.cuda.synchronize) for _ in range(rounds)]),
        }
    found["checker"] = kernel
    launch = a_launch()
    launch()
    found["launch_us"] = spread([host_us(launch, 50, torch.cuda.synchronize) for _ in range(rounds)])
    found["poll_us"] = spread([host_us(tensorpact.poll, 5000, torch.cuda.synchronize) for _ in range(rounds)])
    found["entry_points"] = {name: measured(name, rounds) for name in CALLS}
    found["report"] = str(tensorpact.value_report())
    return found


def smoke() -> dict[str, Any]:
    """Every part once on the CPU, and the host figures that need no device."""
    cpu = torch.device("cpu")
    found: dict[str, Any] = {"device": "cpu", "checker": []}
    for label, start in alone(cpu):
        start()
        found["checker"].append(label)
    pending.box_of(cpu)
    found["poll_us"] = spread([host_us(tensorpact.poll, 5000, int) for _ in range(5)])
    call = decode_call("cpu", tokens=2, keys=4)
    elsewhere, nothing = mock.Mock(return_value=False), mock.Mock(return_value=None)
    with tensorpact.value_checks("async"), mock.patch.object(gate, "is_at_hand", elsewhere):
        call()
        tensorpact.synchronize()
        with mock.patch.object(launching, "start", nothing):
            call()
    found["report"] = str(tensorpact.value_report())
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--smoke", action="store_true", help="run once on the CPU; needs TRITON_INTERPRET=1")
    given = parser.parse_args()
    found = smoke() if given.smoke else on_gpu(given.rounds)
    found |= {"torch": torch.__version__, "triton": triton.__version__, "date": datetime.now(UTC).date().isoformat()}
    text = json.dumps(found, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
