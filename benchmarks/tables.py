"""Rewrites the tables of docs/benchmarks.md and docs/comparison.md from the figures in benchmarks/results.

    python benchmarks/tables.py

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; a table without figures stays as it is.
"""

import json
import pathlib
import re
import statistics
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent
RESULTS = ROOT / "results"
PAGES = [
    ROOT.parent / "docs" / name
    for name in ("benchmarks.md", "comparison.md", "drafting.md", "torch-library.md", "values.md")
]
#: Head dim of the tables of sparse decode by heads.
HEAD_DIM = 512
BLOCK = re.compile(r"(?P<begin><!-- table: (?P<name>\S+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def figures(name: str) -> dict[str, Any] | None:
    """Return what a benchmark wrote, None where it wrote nothing."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def table(head: list[str], rows: list[list[str]], words: int = 1) -> str:
    """Return a Markdown table; the columns behind the first ``words`` hold numbers."""
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, rule, *rows])


def shape_of(row: dict[str, Any]) -> str:
    """Name a shape as the text does."""
    tokens, heads, dim, *keys = row["shape"]
    if row["kind"] == "decode":
        return f"B {tokens}, " + (f"H {heads}, D {dim}, " if dim != HEAD_DIM else "") + f"{keys[0]} keys"
    return f"T {tokens}, H {heads}, D {dim}, {keys[0]} + {keys[1]} keys"


def by_shape(rows: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Group timed rows by shape, each group by candidate."""
    shapes: dict[tuple[int, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        if "ms" in row:
            shapes.setdefault(tuple(row["shape"]), {})[row["candidate"]] = row
    for group in shapes.values():
        yield shape_of(next(iter(group.values()))), group


def run_line(report: dict[str, Any]) -> str:
    """Say which card, which versions and which ceilings the figures belong to."""
    found = report["ceilings"]
    return (
        f"{report['card']}, torch {report['torch']}, triton {report['triton']}, {report['date'][:10]}. "
        f"In the same run: copy {found['copy_tb_s']:.2f} TB/s, rows of 1 KiB gathered from a pool of 64 MiB "
        f"{found['gather_tb_s_pool_64_mib']:.2f} TB/s and of 1 GiB {found['gather_tb_s_pool_1_gib']:.2f} TB/s, "
        f"matrix product {found['matmul_tflop_s']:.0f} TFLOP/s, empty launch in a graph "
        f"{found['launch_us']:.1f} µs.\n\n"
    )


def prefill() -> str | None:
    """Return the table of prefill: ours, the portable kernel and the public one."""
    report = figures("sparse_prefill")
    if report is None:
        return None
    rows = []
    for name, group in by_shape(report["rows"]):
        ours, public = group["ours"], group.get("public")
        portable = [row for label, row in group.items() if label.startswith("portable")]
        best = min(portable, key=lambda row: row["ms"]) if portable else None
        rows.append(
            [
                name,
                f"{ours['ms']:.3f}",
                f"**{ours['tflop_s']:.0f}**",
                f"{ours['gather_tb_s']:.2f}",
                f"{best['tflop_s']:.0f}" if best else "–",
                f"{public['tflop_s']:.0f}" if public else "–",
                f"{public['ms'] / ours['ms']:.1f} ×" if public else "–",
            ]
        )
    head = ["shape", "ms", "TFLOP/s", "rows, TB/s", "portable, best tile", "public Triton", "faster by"]
    return run_line(report) + table(head, rows)


def designs() -> str | None:
    """Return what each other tile gave."""
    report = figures("sparse_prefill")
    if report is None:
        return None
    rows = [
        [name, label, f"{row['ms']:.3f}", f"{row['tflop_s']:.0f}"]
        for name, group in by_shape(report["rows"])
        for label, row in group.items()
        if label not in ("ours", "public", "portable")
    ]
    return table(["shape", "tile", "ms", "TFLOP/s"], rows, words=2)


def decode(heads: int | None) -> str | None:
    """Return the table of decode for one number of heads, or that of the other head dims."""
    report = figures("sparse_decode")
    if report is None:
        return None
    rows = []
    found = [row for row in report["rows"] if heads == (row["shape"][1] if row["shape"][2] == HEAD_DIM else None)]
    for name, group in by_shape(found):
        ours, portable = group["ours"], group.get("portable")
        rows.append(
            [
                name,
                f"{1e3 * ours['ms']:.1f}",
                f"{ours['gather_tb_s']:.2f}",
                f"{ours['gather_tb_s'] / report['ceilings']['copy_tb_s']:.0%}",
                f"{ours['tflop_s']:.0f}",
                f"{1e3 * ours['floor_ms']:.1f}",
                f"{1e3 * portable['ms']:.1f}" if portable else "–",
            ]
        )
    head = ["shape", "µs", "rows, TB/s", "of the copy", "TFLOP/s", "floor, µs", "portable, µs"]
    return run_line(report) + table(head, rows)


def causal_cache(name: str) -> str | None:
    """Return bytes moved and time of an update of the causal cache: the public form, in place, with spare slots."""
    report = figures(name)
    if report is None:
        return None
    sizes: dict[tuple[int, int, int], dict[str, dict[str, Any]]] = {}
    for row in report["rows"]:
        if "us" in row:
            sizes.setdefault((row["slots"], row["chunk"], row["sink"]), {})[row["candidate"]] = row
    ways = ["public form", "headroom 0", "headroom 0.25", "headroom 1", "headroom 2"]
    rows = []
    for (slots, chunk, sink), group in sizes.items():
        if all(way in group for way in ways):
            cells = [f"{group[way]['times_the_chunk']:.2f}" for way in ways]
            times = [f"{group[way]['us']:.0f}" for way in ways]
            rows.append([f"{slots} slots, chunk {chunk}" + (f", sink {sink}" if sink else ""), *cells, *times])
    machine = f"{report['card']}" if report["card"] != "none" else f"Tensors on cpu, {report['processor']}"
    line = (
        f"{machine}, torch {report['torch']}, triton {report['triton']}, {report['date'][:10]}. "
        f"Batch {report['batch']}, {report['heads']} heads, head dim {report['dim']}, {report['dtype']}.\n\n"
    )
    names = ["public", "in place", "¼", "1", "2"]
    head = ["size", *(f"bytes, {n}" for n in names), *(f"µs, {n}" for n in names)]
    return line + table(head, rows)


def replayssm(dtype: str) -> str | None:
    """Return the table of the ReplaySSM decode for one state dtype: ours beside the public kernel."""
    report = figures("replayssm")
    if report is None:
        return None
    shapes: dict[int, dict[str, dict[str, Any]]] = {}
    for row in report["rows"]:
        batch, state = row["shape"]
        if state == dtype:
            shapes.setdefault(batch, {})[row["candidate"]] = row
    rows = []
    for batch, group in shapes.items():
        ours, public, entry = group["ours"], group["public"], group["entry"]
        rows.append(
            [
                f"B {batch}",
                f"{ours['normal_us']:.1f}",
                f"{ours['normal_tb_s']:.2f}",
                f"{ours['of_copy']:.0%}",
                f"{ours['flush_us']:.1f}",
                f"**{ours['step_us']:.1f}**",
                f"{public['step_us']:.1f}",
                f"{public['step_us'] / ours['step_us']:.2f} ×",
                f"{public['mixed_us'] / ours['mixed_us']:.2f} ×",
                f"{entry['eager_us']:.0f}",
                f"{public['eager_us']:.0f}",
            ]
        )
    head = ["rows", "normal, µs", "TB/s", "of the copy", "flush, µs", "step, µs", "public step", "faster by"]
    return run_line(report) + table([*head, "mixed cursors", "whole call, µs", "public call"], rows)


def replayssm_designs() -> str | None:
    """Return the table of kernels and tiles tried for the ReplaySSM decode."""
    report = figures("replayssm")
    if report is None:
        return None
    steps: dict[str, dict[str, str]] = {}
    for row in report["rows"]:
        if "step_us" in row and row["candidate"] not in ("ours", "public"):
            place = f"B {row['shape'][0]}, {row['shape'][1]}"
            steps.setdefault(row["candidate"], {})[place] = f"{row['normal_us']:.0f} / {row['flush_us']:.0f}"
    places = [f"B {batch}, {dtype}" for dtype in ("float32", "bfloat16") for batch in (64, 256)]
    return table(["kernel and tile", *places], [[n, *(found[p] for p in places)] for n, found in steps.items()])


def packed_shape(row: dict[str, Any]) -> str:
    """Name a batch of packed sequences as the text does."""
    lengths, (heads, key_heads) = row["lengths"], row["heads"]
    batch = f"{len(lengths)} × {lengths[0]}" if len(set(lengths)) == 1 else f"{len(lengths)} ragged"
    return f"{batch}, {heads}/{key_heads} heads, D {row['dim']}, {'causal' if row['causal'] else 'full'}"


def by_packed_shape(report: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Group timed rows of packed attention by shape, each group by candidate."""
    shapes: dict[str, dict[str, dict[str, Any]]] = {}
    for row in report["rows"]:
        if "ms" in row:
            shapes.setdefault(packed_shape(row), {})[row["candidate"]] = row
    return shapes


def packed() -> str | None:
    """Return the table of packed attention: ours beside torch's kernels and the public one."""
    report = figures("packed_attention")
    if report is None:
        return None
    peers = ["portable", "FlashAttention-2 packed", "cuDNN dense", "public Triton"]
    rows = []
    for name, group in by_packed_shape(report).items():
        ours = group["ours"]
        rates = [f"{group[peer]['tflop_s']:.0f}" if peer in group else "–" for peer in peers]
        flash = group.get("FlashAttention-2 packed")
        faster = f"{flash['ms'] / ours['ms']:.2f} ×" if flash else "–"
        rows.append([name, f"{ours['ms']:.3f}", f"**{ours['tflop_s']:.0f}**", *rates, faster])
    head = ["shape", "ms", "TFLOP/s", "portable", "FlashAttention-2", "cuDNN, dense", "public Triton", "over FA-2"]
    found = report["ceilings"]
    line = (
        f"{report['card']}, torch {report['torch']}, triton {report['triton']}, {report['date'][:10]}. "
        f"In the same run: copy {found['copy_tb_s']:.2f} TB/s, "
        f"matrix product {found['matmul_tflop_s']:.0f} TFLOP/s.\n\n"
    )
    return line + table(head, rows)


def packed_designs() -> str | None:
    """Return what each other cut of the packed kernels gave."""
    report = figures("packed_attention")
    if report is None:
        return None
    rows = [
        [name, label, f"{row['ms']:.3f}", f"{row['tflop_s']:.0f}"]
        for name, group in by_packed_shape(report).items()
        for label, row in group.items()
        if label.startswith(("hopper", "portable "))
    ]
    return table(["shape", "cut", "ms", "TFLOP/s"], rows, words=2)


def by_name(report: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Group timed rows by the name of their shape, each group by candidate."""
    shapes: dict[str, dict[str, dict[str, Any]]] = {}
    for row in report["rows"]:
        if "ms" in row:
            shapes.setdefault(row["name"], {})[row["candidate"]] = row
    return shapes


def kvcache() -> str | None:
    """Return the table of attention with a cache: ours beside torch on a contiguous cache and the public kernel."""
    report = figures("flash_kvcache")
    if report is None:
        return None
    rows = []
    for name, group in by_name(report).items():
        ours, dense = group["ours"], group.get("torch, contiguous")
        public = [row for label, row in group.items() if label.startswith("public")]
        best = min(public, key=lambda row: row["ms"]) if public else None
        rows.append(
            [
                name,
                f"{1e3 * ours['ms']:.1f}",
                f"**{ours['tb_s']:.2f}**",
                f"{ours['tb_s'] / report['ceilings']['copy_tb_s']:.0%}",
                f"{ours['tflop_s']:.0f}",
                f"{1e3 * group['portable']['ms']:.1f}" if "portable" in group else "–",
                f"{1e3 * dense['ms']:.1f}" if dense else "–",
                f"{dense['ms'] / ours['ms']:.2f} ×" if dense else "–",
                f"{1e3 * best['ms']:.1f}" if best else "–",
                f"{best['ms'] / ours['ms']:.2f} ×" if best else "–",
            ]
        )
    head = ["shape", "µs", "TB/s", "of the copy", "TFLOP/s", "portable, µs", "torch, contiguous", "over torch"]
    found = report["ceilings"]
    line = (
        f"{report['card']}, torch {report['torch']}, triton {report['triton']}, {report['date'][:10]}. "
        f"In the same run: copy {found['copy_tb_s']:.2f} TB/s, "
        f"matrix product {found['matmul_tflop_s']:.0f} TFLOP/s. {report.get('note', '')}\n\n"
    )
    return line + table([*head, "public Triton, best", "over public"], rows)


def kvcache_designs() -> str | None:
    """Return what each other cut of the kernels for a cache gave."""
    report = figures("flash_kvcache")
    if report is None:
        return None
    rows = [
        [name, label, f"{1e3 * row['ms']:.1f}", f"{row['tb_s']:.2f}", f"{row['tflop_s']:.0f}"]
        for name, group in by_name(report).items()
        for label, row in group.items()
        if label.startswith(("hopper", "portable ", "ours,"))
    ]
    return table(["shape", "cut", "µs", "TB/s", "TFLOP/s"], rows, words=2)


def overhead(name: str) -> str | None:
    """Return the tables of what checking costs on one machine."""
    report = figures(name)
    if report is None:
        return None
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    machine = f"Tensors on {report['device']}, {report['processor']}, Python {report['python']}"
    results = report["results"]
    shares = [share for r in results for share in r.get("spread", {}).values()]
    spread = (
        f" Half of the middle range of a ratio: {statistics.median(shares):.0%}, at most {max(shares):.0%}."
        if shares
        else ""
    )
    line = f"{machine}, {versions}, {report['date'][:10]}.{spread}\n\n"
    head = [
        "µs per call",
        "no check",
        "by hand",
        "stock",
        "floor",
        "first calls",
        "repeated",
        "off",
        "failing",
        "decorating",
    ]
    variants = ["none", "by_hand", "stock", "floor", "ours_unremembered", "ours", "ours_off"]
    times = [
        [
            r["signature"],
            *(f"{r['microseconds'][v]:.2f}" if v in r["microseconds"] else "–" for v in variants),
            f"{max(r['failing_microseconds'].values()):.0f}",
            f"{r['decorating_microseconds']:.0f}",
        ]
        for r in results
    ]
    ways = {
        "repeated": "ours",
        "first calls": "unremembered",
        "32 layers, a new batch each step": "layers",
        "two kinds of layers in turns": "turns",
        "each call another batch": "changing",
    }
    ratios = [
        [r["signature"], label, f"{r[f'{way}/by_hand']:.2f}", f"{r[f'stock/{way}']:.1f}", f"{r[f'{way}/floor']:.2f}"]
        for r in results
        for label, way in ways.items()
        if f"{way}/by_hand" in r
    ]
    return line + table(head, times) + "\n" + table(["signature", "calls", *RATIOS], ratios, words=2)


RATIOS = ["ours ÷ by hand", "stock ÷ ours", "ours ÷ floor"]


def memory_designs() -> str | None:
    """Return what each way to recognise a signature costs."""
    report = figures("memory_designs")
    if report is None:
        return None
    line = f"{report['processor']}, Python {report['python']}, torch {report['torch']}, {report['date'][:10]}.\n\n"
    signatures = {r["signature"]: r["designs"] for r in report["results"]}
    names = [n for n in next(iter(signatures.values())) if n not in ("floor", "stock")]
    rows = [
        [
            f"*{name}*" if found[0]["proves_less"] else name,
            *(f"{row['of_floor']:.2f} ± {row['spread'] * row['of_floor']:.2f}" for row in found),
            *(f"{row['stock']:.0f}" for row in found),
        ]
        for name, found in ((n, [designs[n] for designs in signatures.values()]) for n in names)
    ]
    head = ["design", *(f"{s}: ÷ floor" for s in signatures), *(f"{s}: stock ÷ it" for s in signatures)]
    return line + table(head, rows)


def outcome(found: dict[str, Any]) -> str:
    """Say what a call did."""
    return "passes" if found["raises"] is None else f"`{found['raises']}`"


def comparison() -> str | None:
    """Return the table of public checkers."""
    report = figures("compare_checkers")
    if report is None:
        return None
    line = f"{report['processor']}, Python {report['python']}, torch {report['torch']}, {report['date'][:10]}.\n\n"
    costs, fates, missing = list[list[str]](), list[list[str]](), list[str]()
    for name, row in report["results"].items():
        versions = [f"{package} {version}" for package, version in row.get("versions", {}).items()]
        label = " + ".join(versions) if " + " in name else f"{name} {versions[0].split()[-1]}" if versions else name
        if "skipped" in row or row["valid"]["raises"]:
            why = row.get("skipped") or f"a valid call raises `{row['valid']['raises']}: {row['valid']['text']}`"
            missing.append(f"* {label}: {why}.\n")
            continue
        named = [word for word, told in row["names"].items() if told]
        faults = row["faults"]
        bad = row["compiled_fault"]
        same = bad["raises"] == faults["shape"]["raises"] and bad.get("text") == faults["shape"].get("text")
        costs.append(
            [
                label,
                f"{row['microseconds']:.1f}",
                f"{row['microseconds'] / row['by_hand']:.1f}",
                f"{row['by_hand']:.2f} ± {row['by_hand'] * row['spread']:.2f}",
                outcome(row["bf16"]),
                outcome(faults["shape"]),
                outcome(faults["dtype"]) if row["dtypes"] else "cannot be said",
                outcome(faults["none"]),
                ", ".join(named) or ("–" if faults["shape"]["raises"] else "passes"),
            ]
        )
        fates.append(
            [label, *(outcome(row[w]) for w in ("fullgraph", "compiled", "compiled_fault")), "yes" if same else "no"]
        )
    costs_of = ["µs", "by hand, µs", "÷ by hand"]
    head = ["checker", *costs_of, "bf16", "wrong size", "wrong dtype", "None", "a wrong size names"]
    compiled = ["checker", "fullgraph, valid", "default, valid", "default, wrong size", "same as eager"]
    return (
        line
        + table(head, costs, words=9)
        + "\n"
        + table(compiled, fates, words=5)
        + ("\nNot measured:\n\n" + "".join(missing) if missing else "")
    )


def torch_op() -> str | None:
    """Return what an operator of torch costs, made in each way."""
    report = figures("torch_op")
    if report is None:
        return None
    versions = report["versions"]
    line = f"2-core CPU, Python {report['python']}, torch {versions['torch']}, {report['date'][:10]}; the least of "
    line += f"{report['rounds']} turns of {report['calls_a_round']} calls.\n\n"
    words = {
        "plain": "the undecorated function",
        "contracted": "the function under its contract",
        "library": "operator of `Library.define`, unchecked",
        "operator": "`torch_op(…).overload`, unchecked",
        "torch_op": "**`torch_op`, checked**",
        "torch_op_off": "`torch_op`, enforcement off",
        "custom_op": "`torch.library.custom_op`, unchecked",
    }
    cases = [case for case in report["cases"] if case["mode"] == "no_grad"]
    kinds = {"small": "2 tensors", "decode": "8 tensors, 4 written"}
    head = ["called as", *(f"{kinds[c['case']]}: {what}" for c in cases for what in ("µs", "ratio"))]
    rows = [
        [text, *(f for c in cases for f in (f"{c['us'][name]:.1f}", f"{c['to_library'][name]:.2f}"))]
        for name, text in words.items()
    ]
    return line + table(head, rows)


def drafts() -> str | None:
    """Return how many checks of real functions are translated, and how many calls raise the same."""
    report = figures("drafts")
    if report is None:
        return None
    rows = report["functions"]
    compared = [r for r in rows if r["compared"]]
    total = [sum(r[key] for r in rows) for key in ("translated", "checks")]
    calls = [sum(r.get(key, 0) for r in compared) for key in ("equal", "compared")]
    fired = sum(r.get("witnessed", 0) for r in compared)
    lines = [
        [
            f"`{r['target'].partition(':')[0].partition('.')[0]}` `{r['target'].rpartition(':')[2]}`",
            f"{r['translated']} / {r['checks']}",
            f"{r['witnessed']}" if r["compared"] else "",
            f"{r['equal']} / {r['compared']}" if r["compared"] else "",
        ]
        for r in rows
    ]
    last = [f"all {len(rows)}; {len(compared)} compared", f"{total[0]} / {total[1]}", f"{fired}"]
    last += [f"{calls[0]} / {calls[1]}"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report["packages"].items()))
    text = f"{report['date']}, Python {report['python']}: {versions}.\n\n"
    return text + table(["function", "checks translated", "fired", "calls alike"], [*lines, last])


def values_line(report: dict[str, Any]) -> str:
    """Say which run it was."""
    return f"{report['device']}, torch {report['torch']}, triton {report['triton']}, {report['date']}. In µs.\n\n"


def values() -> str | None:
    """Return what the asynchronous checker adds to a call."""
    report = figures("values")
    if report is None:
        return None
    rows = [
        [
            f"`{name}`",
            f"{found['replay_us_off']['median']:.1f}",
            f"**{found['replay_us_async']['median']:.1f}**",
            f"{found['host_us_off']['median']:.0f}",
            f"{found['host_us_async']['median']:.0f} ± {found['host_us_async']['spread']:.0f}",
            f"{found['host_us_launch']['median']:.0f}",
            f"**{found['host_us_async']['median'] / found['host_us_launch']['median']:.2f}**",
            f"{found['host_us_sync']['median']:.0f}",
        ]
        for name, found in report["entry_points"].items()
    ]
    head = ["call", "replay, off", "async adds", "host, off", "async adds", "a launch adds", "in launches", "sync adds"]
    return values_line(report) + table(head, rows)


def values_checker() -> str | None:
    """Return what the checker's kernel takes by itself."""
    report = figures("values")
    if report is None:
        return None
    rows = [
        [name.replace("_", " "), f"{found['gpu_us']['median']:.1f}", f"{found['host_us']['median']:.1f}"]
        for name, found in report["checker"].items()
    ]
    rows.append(["a launch of an ordinary kernel", "", f"{report['launch_us']['median']:.1f}"])
    rows.append(["poll", "", f"{report['poll_us']['median']:.2f}"])
    return table(["checker alone", "GPU, µs", "host, µs"], rows)


def values_in_kernel() -> str | None:
    """Return what a flag adds to each kernel."""
    report = figures("values_in_kernel")
    if report is None:
        return None
    rows = [
        [
            name,
            f"{found['replay_us_off']['median']:.1f}",
            f"{found['replay_us_in_kernel']['median']:+.2f}",
            f"**{found['replay_share']['median']:+.1%}**"
            if not (found["small"] or found["beyond"])
            else f"{found['replay_share']['median']:+.1%}",
            f"{found['host_us_in_kernel']['median']:.0f}",
        ]
        for name, found in report["calls"].items()
    ]
    head = ["call", "replay without a flag", "a flag adds", "share", "host, a flag adds"]
    return values_line(report) + table(head, rows)


TABLES = {
    "values": values,
    "values-in-kernel": values_in_kernel,
    "values-checker": values_checker,
    "sparse-prefill": prefill,
    "sparse-prefill-designs": designs,
    "sparse-decode-16": lambda: decode(16),
    "sparse-decode-128": lambda: decode(128),
    "sparse-decode-dims": lambda: decode(None),
    "replayssm-float32": lambda: replayssm("float32"),
    "replayssm-bfloat16": lambda: replayssm("bfloat16"),
    "replayssm-designs": replayssm_designs,
    "causal-kv-cache": lambda: causal_cache("causal_kv_cache"),
    "causal-kv-cache-cpu": lambda: causal_cache("causal_kv_cache_cpu"),
    "packed-attention": packed,
    "packed-attention-designs": packed_designs,
    "flash-kvcache": kvcache,
    "flash-kvcache-designs": kvcache_designs,
    "overhead": lambda: overhead("overhead"),
    "overhead-h200": lambda: overhead("overhead_h200"),
    "memory-designs": memory_designs,
    "comparison": comparison,
    "torch-op": torch_op,
    "drafts": drafts,
}


def main() -> None:
    """Rewrite the pages."""

    def filled(found: re.Match[str]) -> str:
        made = TABLES[found["name"]]()
        return found[0] if made is None else f"{found['begin']}{made}{found['end']}"

    for page in PAGES:
        page.write_text(BLOCK.sub(filled, page.read_text()))


if __name__ == "__main__":
    main()
