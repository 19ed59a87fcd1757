"""Cost of kernels that report the numbers they mask: each kernel benchmark's shapes, with a flag and without one.

    python benchmarks/values_in_kernel.py --out values_in_kernel.json
    TRITON_INTERPRET=1 python benchmarks/values_in_kernel.py --smoke

A call is captured with the switch off and on, as often as makes about two milliseconds of work, and both graphs are
replayed in turn. The figure is the share that a flag adds, round by round, with its spread; the target is one percent
on every shape that a kernel's target of speed names, for the kernels that the card chooses. Calls marked ``beyond`` are
other shapes, and kernels that are not chosen. Calls marked ``small`` run for microseconds: there the difference is what
matters.
``--smoke`` runs every call once on the CPU, through Triton's interpreter, with few numbers, and times nothing.
"""

import argparse
import gc
import json
import pathlib
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import torch
import triton
from values import Call, checks, one_by_one

import tensorpact
from tensorpact import _decorator
from tensorpact_kernels import (
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    fused_infer_attention_varlen_causal,
    fused_recurrent_kda_packed_decode,
    fused_recurrent_kda_replayssm_decode,
    sparse_attn_v4_paged_decode,
    sparse_attn_v4_paged_prefill,
)
from tensorpact_kernels.flash_attention import launch_hopper

TARGET_SHARE = 0.01
WORK_US = 2000.0
RING = 16


def half(device: str, *shape: int) -> torch.Tensor:
    """Normal values."""
    return torch.randn(shape, device=device, dtype=torch.bfloat16)


def listed(device: str, tokens: int, keys: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of each token, drawn, and where each token's begin and end."""
    indices = torch.randint(0, rows, (tokens * keys,), device=device, dtype=torch.int32)
    return indices, torch.arange(tokens + 1, device=device, dtype=torch.int32) * keys


def sparse_decode(device: str, tokens: int, heads: int, dim: int, keys: int, rows: int = 1 << 20) -> Call:
    """Sparse decode: offsets and a list of rows."""
    pool, sink = half(device, rows, dim), torch.randn(heads, device=device)
    given = (half(device, tokens, heads, dim), pool, *listed(device, tokens, keys, rows), sink, dim**-0.5)
    return lambda: sparse_attn_v4_paged_decode(*given)


def sparse_prefill(device: str, tokens: int, heads: int, dim: int, prefix: int, extend: int, rows: int = 65536) -> Call:
    """Sparse prefill: drawn rows of the pool, and a window of the new ones."""
    window = torch.arange(tokens, device=device)[:, None] + torch.arange(extend, device=device)
    steps = torch.arange(tokens + 1, device=device, dtype=torch.int32)
    kv, sink = half(device, tokens + extend, dim), torch.randn(heads, device=device)
    given = (half(device, tokens, heads, dim), half(device, rows, dim), *listed(device, tokens, prefix, rows))
    given += (kv, window.flatten().int(), steps * extend, sink, dim**-0.5)
    return lambda: sparse_attn_v4_paged_prefill(*given)


def kda(device: str, batch: int, heads: int, dim: int, ring: int = RING) -> Call:
    """KDA decode with a ring in its middle, or on the plain state: slots, and cursors."""
    slots = batch + 1
    given = {
        "mixed_qkv": half(device, batch, 3 * heads * dim),
        "a": half(device, batch, heads, dim) if ring else half(device, batch, heads * dim),
        "b": half(device, batch, heads),
        "A_log": torch.zeros(heads, device=device),
        "dt_bias": torch.zeros((heads, dim) if ring else heads * dim, device=device),
        "scale": dim**-0.5,
        "initial_state": torch.zeros(slots, heads, dim, dim, device=device),
        "out": half(device, batch, 1, heads, dim),
        "ssm_state_indices": torch.randperm(slots, device=device)[:batch].int(),
        "use_qk_l2norm_in_kernel": True,
    }
    if not ring:
        return lambda: fused_recurrent_kda_packed_decode(**given)
    given |= {f"{name}_cache": half(device, slots, heads, ring, dim) for name in "dk"}
    given["g_cache"] = torch.zeros(slots, heads, ring, dim, device=device)
    given["write_pos"] = torch.full((batch,), ring // 2, device=device, dtype=torch.int32)
    return lambda: fused_recurrent_kda_replayssm_decode(**given)


def pages(
    device: str,
    batch: int,
    length: int,
    heads: int,
    key_heads: int,
    dim: int,
    value_dim: int,
    page: int = 64,
    new: int = 0,
    hopper: bool = True,
) -> Call:
    """Decode with a cache in pages of random order; without ``dim`` of values alone. ``new`` tokens are appended."""
    columns = -(-(length + new) // page)
    count = batch * columns
    given: dict[str, Any] = {
        "v_cache": half(device, count, page, key_heads, value_dim),
        "page_table": torch.randperm(count, device=device).view(batch, columns).int(),
        "cache_seqlens": torch.full((batch,), length, device=device, dtype=torch.int32),
    }
    if dim:
        given |= {"q": half(device, batch, 1, heads, dim), "k_cache": half(device, count, page, key_heads, dim)}
    else:
        given |= {"q": None, "k_cache": None, "qv": half(device, batch, 1, heads, value_dim), "only_qv": True}
    if new:
        given |= {"k": half(device, batch, new, key_heads, dim), "v": half(device, batch, new, key_heads, value_dim)}

    def portable() -> Any:
        with mock.patch.object(launch_hopper, "applies", return_value=False):
            return flash_attn_with_kvcache(**given)

    return (lambda: flash_attn_with_kvcache(**given)) if hopper else portable


def packed(device: str, batch: int, length: int, heads: int, key_heads: int, dim: int) -> Call:
    """Packed attention: two vectors of offsets, read by the plan."""
    ends = torch.arange(batch + 1, device=device, dtype=torch.int32) * length
    q, k, v = (half(device, batch * length, n, dim) for n in (heads, key_heads, key_heads))
    other = ends.clone()
    return lambda: fused_infer_attention_varlen_causal(q, k, v, ends, other)


def varlen(device: str, batch: int, length: int, heads: int, dim: int) -> Call:
    """Flash attention over packed sequences: boundaries, with a longest sequence each."""
    ends = torch.arange(batch + 1, device=device, dtype=torch.int32) * length
    q, k, v = (half(device, batch * length, heads, dim) for _ in range(3))
    return lambda: flash_attn_varlen_func(q, k, v, ends, ends, length, length, causal=True)


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        make: Draws its tensors.
        sizes: Sizes on a GPU.
        tiny: Sizes in the interpreter.
        options: Other arguments, alike in both.
        small: Whether it runs for microseconds.
        beyond: Whether no target names the shape, or the kernel is not the one that the card chooses.
    """

    make: Callable[..., Call]
    sizes: tuple[int, ...]
    tiny: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    small: bool = False
    beyond: bool = False


_PORTABLE = {"hopper": False}
CASES = {
    "sparse prefill, T 4096, H 128, D 512, 512 + 128 keys": Case(
        sparse_prefill, (4096, 128, 512, 512, 128), (2, 2, 16, 5, 3, 9)
    ),
    "sparse prefill, T 4096, H 64, D 128, 512 + 128 keys": Case(
        sparse_prefill, (4096, 64, 128, 512, 128), (2, 2, 16, 5, 3, 9)
    ),
    "sparse prefill, T 1024, H 16, D 512, 1024 + 128 keys": Case(
        sparse_prefill, (1024, 16, 512, 1024, 128), (2, 2, 16, 5, 3, 9)
    ),
    **{
        f"sparse prefill, T 4096, H {heads}, D {dim}, 512 + 128 keys": Case(
            sparse_prefill, (4096, heads, dim, 512, 128), (2, 2, 16, 5, 3, 9), beyond=True
        )
        for heads, dim in ((64, 256), (16, 256), (16, 128))
    },
    **{
        f"sparse decode, {tokens} tokens, H 16, D 512, {keys} keys": Case(
            sparse_decode, (tokens, 16, 512, keys), (2, 2, 16, 5, 9)
        )
        for tokens, keys in ((64, 4096), (256, 1024), (64, 1024))
    },
    **{f"KDA decode, B {batch}, H 32, D 128": Case(kda, (batch, 32, 128), (2, 1, 16, 4)) for batch in (64, 256)},
    **{
        f"{name}, {kernels}": Case(pages, sizes, tiny, options, beyond=bool(options))
        for name, sizes, tiny in (
            ("flash decode, B 16, 8192 keys", (16, 8192, 32, 8, 128, 128), (2, 9, 2, 1, 16, 16, 8)),
            ("flash decode, B 128, 1024 keys", (128, 1024, 32, 8, 128, 128), (2, 9, 2, 1, 16, 16, 8)),
            ("flash decode of values alone, B 64, 8192 keys", (64, 8192, 16, 1, 0, 512), (2, 9, 2, 1, 0, 512, 8)),
        )
        for kernels, options in (("Hopper kernels", {}), ("portable kernel", _PORTABLE))
    },
    "packed attention, 4 x 4096, causal": Case(packed, (4, 4096, 32, 8, 128), (2, 5, 2, 1, 16)),
    "small sparse prefill": Case(sparse_prefill, (256, 64, 512, 64, 64, 4096), (2, 2, 16, 5, 3, 9), small=True),
    "small sparse decode of 512 columns": Case(sparse_decode, (64, 16, 512, 64, 4096), (2, 2, 16, 5, 9), small=True),
    "small sparse decode": Case(sparse_decode, (64, 16, 128, 64, 4096), (2, 2, 16, 5, 9), small=True),
    "small KDA decode": Case(kda, (64, 4, 64), (2, 1, 16, 4), small=True),
    "small KDA decode on the state": Case(kda, (64, 4, 64, 0), (2, 1, 16, 0), small=True),
    "small flash decode, Hopper kernels": Case(
        pages, (64, 120, 8, 2, 64, 64, 16), (2, 9, 2, 1, 16, 16, 8), {"new": 1}, small=True
    ),
    "small flash decode, portable kernel": Case(
        pages, (64, 120, 8, 2, 64, 64, 16), (2, 9, 2, 1, 16, 16, 8), {"new": 1, **_PORTABLE}, small=True
    ),
    "small packed attention": Case(packed, (16, 64, 4, 4, 64), (2, 5, 2, 1, 16), small=True),
    "small flash attention of packed sequences": Case(varlen, (16, 64, 4, 64), (2, 5, 1, 16), small=True),
}  # fmt: skip


def spread(samples: list[float], digits: int = 3) -> dict[str, float]:
    """Median, and half of what lies between the quartiles."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return {"median": round(middle, digits), "spread": round((high - low) / 2, digits)}


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


def in_turn(graphs: dict[str, torch.cuda.CUDAGraph], times: int) -> dict[str, float]:
    """Device time of each graph in microseconds: all are replayed in turn, several times, in both orders."""
    marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in graphs}
    torch.cuda.synchronize()
    for number in range(times):
        for name in list(graphs)[:: 1 if number % 2 else -1]:
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            graphs[name].replay()
            after.record()
            marks[name].append((before, after))
    torch.cuda.synchronize()
    return {name: sum(a.elapsed_time(b) for a, b in pairs) * 1e3 / times for name, pairs in marks.items()}


def measured(case: Case, rounds: int) -> dict[str, Any]:
    """What a flag costs the kernels of one call, and its launch."""
    call = case.make("cuda", *case.sizes, **case.options)
    before = tensorpact.value_report().in_kernel
    for setting in ("off", "in_kernel"):
        with checks(setting):
            for _ in range(5):
                call()
    carried = tensorpact.value_report().in_kernel - before
    alone = in_turn({"off": captured(call, "off", 10)}, 4)["off"] / 10
    copies = max(1, min(200, round(WORK_US / alone)))
    graphs = {setting: captured(call, setting, copies) for setting in ("off", "in_kernel")}
    in_turn(graphs, 2)
    replay: list[dict[str, float]] = [in_turn(graphs, 4) for _ in range(rounds)]
    host = one_by_one({setting: (call, setting) for setting in graphs}, 10 * rounds)
    tensorpact.synchronize()
    return {
        "small": case.small,
        "beyond": case.beyond,
        "launches_with_a_flag": carried,
        "calls_in_a_graph": copies,
        "replay_us_off": spread([x["off"] / copies for x in replay]),
        "replay_us_in_kernel": spread([(x["in_kernel"] - x["off"]) / copies for x in replay]),
        "replay_share": spread([x["in_kernel"] / x["off"] - 1 for x in replay], 5),
        "host_us_in_kernel": spread([a - b for a, b in zip(host["in_kernel"], host["off"], strict=True)]),
    }


def on_gpu(rounds: int, wanted: str, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Every figure, and the shapes of a kernel benchmark that miss the target; kept after each of them."""
    if _decorator.disabled:
        raise SystemExit("contracts are off: there is nothing to measure")
    calls: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        if wanted not in name:
            continue
        calls[name] = measured(case, rounds)
        print(name, calls[name]["replay_us_off"], calls[name]["replay_share"], flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        meant = {n: x for n, x in calls.items() if not (x["small"] or x["beyond"])}
        missed = [n for n, x in meant.items() if x["replay_share"]["median"] > TARGET_SHARE]
        found = {"device": torch.cuda.get_device_name(), "target_share": TARGET_SHARE, "missed": missed, "calls": calls}
        keep(found | {"report": str(tensorpact.value_report())})
    return found | {"report": str(tensorpact.value_report())}


def smoke() -> dict[str, Any]:
    """Every call once on the CPU; each carries a flag."""
    for name, case in CASES.items():
        call, before = case.make("cpu", *case.tiny, **case.options), tensorpact.value_report().in_kernel
        with checks("in_kernel"), tensorpact.use_backend("triton"):
            call()
        if tensorpact.value_report().in_kernel == before:
            raise SystemExit(f"{name}: no launch of it carries a flag")
    tensorpact.synchronize()
    return {"device": "cpu", "calls": list(CASES), "report": str(tensorpact.value_report())}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="part of the name of the calls to measure")
    parser.add_argument("--smoke", action="store_true", help="run once on the CPU; needs TRITON_INTERPRET=1")
    given = parser.parse_args()
    versions = {"torch": torch.__version__, "triton": triton.__version__, "date": datetime.now(UTC).date().isoformat()}

    def keep(found: dict[str, Any]) -> None:
        if given.out is not None:
            given.out.write_text(json.dumps(found | versions, indent=1) + "\n", encoding="utf-8")

    found = smoke() if given.smoke else on_gpu(given.rounds, given.only, keep)
    keep(found)
    print(json.dumps(found | versions, indent=1))


if __name__ == "__main__":
    main()
