"""Rewrites the tables of docs/benchmarks.md from the figures in benchmarks/results.

    python benchmarks/tables.py

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; a table without figures stays as it is.
"""

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent
RESULTS = ROOT / "results"
PAGE = ROOT.parent / "docs" / "benchmarks.md"
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
        return f"B {tokens}, {keys[0]} keys"
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
    """Return what each other tile and design gave."""
    report = figures("sparse_prefill")
    if report is None:
        return None
    rows = [
        [name, label, f"{row['ms']:.3f}", f"{row['tflop_s']:.0f}"]
        for name, group in by_shape(report["rows"])
        for label, row in group.items()
        if label not in ("ours", "public", "portable")
    ]
    return table(["shape", "design or portable tile", "ms", "TFLOP/s"], rows, words=2)


def decode(heads: int) -> str | None:
    """Return the table of decode for one number of heads."""
    report = figures("sparse_decode")
    if report is None:
        return None
    rows = []
    for name, group in by_shape([row for row in report["rows"] if row["shape"][1] == heads]):
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


def overhead(name: str) -> str | None:
    """Return the table of what checking costs on one machine."""
    report = figures(name)
    if report is None:
        return None
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    head = ["signature", "variant", "µs per call"]
    rows = [
        [result["signature"], name.replace("_", " "), f"{value:.2f}"]
        for result in report["results"]
        for name, value in result["microseconds"].items()
    ]
    for result in report["results"]:
        failing = max(result["failing_microseconds"].values())
        rows.append([result["signature"], "ours, failing", f"{failing:.0f}"])
        rows.append([result["signature"], "ours, decorating once", f"{result['decorating_microseconds']:.0f}"])
    ratios = [
        [result["signature"], name, f"{value:.2f}"]
        for result in report["results"]
        for name, value in result.items()
        if "/" in name
    ]
    machine = f"Tensors on {report['device']}, {report['processor']}, Python {report['python']}"
    line = f"{machine}, {versions}, {report['date'][:10]}.\n\n"
    return line + table(head, rows, words=2) + "\n" + table(["signature", "ratio", "value"], ratios, words=2)


TABLES = {
    "sparse-prefill": prefill,
    "sparse-prefill-designs": designs,
    "sparse-decode-16": lambda: decode(16),
    "sparse-decode-128": lambda: decode(128),
    "packed-attention": packed,
    "packed-attention-designs": packed_designs,
    "overhead": lambda: overhead("overhead"),
    "overhead-h200": lambda: overhead("overhead_h200"),
}


def main() -> None:
    """Rewrite the page."""

    def filled(found: re.Match[str]) -> str:
        made = TABLES[found["name"]]()
        return found[0] if made is None else f"{found['begin']}{made}{found['end']}"

    PAGE.write_text(BLOCK.sub(filled, PAGE.read_text()))


if __name__ == "__main__":
    main()
