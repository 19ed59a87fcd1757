"""Cost of calling a contracted function through an operator of torch, beside the other ways of making one.

All of it in one run and in turns, as ratios to a bare operator of ``Library.define``, since absolute times of a shared
CPU say little:

    python benchmarks/torch_op.py [--out FILE] [--rounds N]

    plain           the undecorated function
    contracted      the same under its contract
    library         an operator of ``torch.library.Library.define`` and ``impl``, without any check
    operator        ``torch_op(…).overload``: ours without the contract
    torch_op        ours: the contract, then the operator
    torch_op_off    ours, with enforcement switched off
    custom_op       ``torch.library.custom_op``, without any check

The function does nothing: it hands back a tensor that was made before, which no tracer is asked about here.
"""

import argparse
import datetime as dt
import importlib.metadata
import json
import pathlib
import platform
import time
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from tensorpact import Contract, contract, enforcement, torch_op

NOTHING = torch.zeros(0)
CALLS = 100
Call = Callable[..., Any]


def small(q: Float[Tensor, "T D"], w: Float[Tensor, " D"]) -> Float[Tensor, "T D"]:
    """Two tensors in, a new one out."""
    return NOTHING


def decode(
    mixed_qkv: Float[Tensor, "B C"],
    a: Float[Tensor, "B HV*K"],
    b: Float[Tensor, "B HV"],
    initial_state: Float[Tensor, "slots HV V K"],
    d_cache: Float[Tensor, "slots HV L V"],
    k_cache: Float[Tensor, "slots H L K"],
    out: Float[Tensor, "B 1 HV V"],
    ssm_state_indices: Int32[Tensor, " B"],
    scale: float,
    force_flush: Int32[Tensor, " B"] | None = None,
) -> Float[Tensor, "B 1 HV V"]:
    """A step of decoding: eight tensors, four of them written, one handed back."""
    return out


def bare(function: Call, schema: str) -> tuple[Any, torch.library.Library]:
    """An operator without checks, and what keeps it alive."""
    library = torch.library.Library("tensorpact_bench", "FRAGMENT")
    library.define(f"{function.__name__}_bare{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(f"{function.__name__}_bare", function, "CompositeExplicitAutograd")
    return getattr(torch.ops.tensorpact_bench, f"{function.__name__}_bare").default, library


def small_case() -> tuple[dict[str, Call], tuple[Any, ...], Any]:
    """The ways of calling ``small``."""
    library, keep = bare(small, "(Tensor q, Tensor w) -> Tensor")

    @torch.library.custom_op("tensorpact_bench::small_custom", mutates_args=())
    def custom(q: Tensor, w: Tensor) -> Tensor:
        return NOTHING

    ours = torch_op("tensorpact_bench::small", contract(small), dtypes="q")
    calls = {
        "plain": small,
        "contracted": contract(small),
        "library": library,
        "operator": ours.overload,
        "torch_op": ours,
        "torch_op_off": ours,
        "custom_op": custom,
    }
    return calls, (torch.zeros(5, 8), torch.zeros(8)), keep


def decode_case() -> tuple[dict[str, Call], tuple[Any, ...], Any]:
    """The ways of calling ``decode``."""
    written = ("initial_state", "d_cache", "k_cache", "out")

    def body(*arguments: Any) -> None:
        return None

    body.__name__ = "decode"
    library, keep = bare(
        body,
        "(Tensor mixed_qkv, Tensor a, Tensor b, Tensor(a!) initial_state, Tensor(b!) d_cache, Tensor(c!) k_cache, "
        "Tensor(d!) out, Tensor ssm_state_indices, float scale, Tensor? force_flush=None) -> ()",
    )

    @torch.library.custom_op("tensorpact_bench::decode_custom", mutates_args=written)
    def custom(
        mixed_qkv: Tensor,
        a: Tensor,
        b: Tensor,
        initial_state: Tensor,
        d_cache: Tensor,
        k_cache: Tensor,
        out: Tensor,
        ssm_state_indices: Tensor,
        scale: float,
        force_flush: Tensor | None = None,
    ) -> None:
        return None

    contracted = contract(Contract("decode", mutates=written))(decode)
    ours = torch_op("tensorpact_bench::decode", contracted, returns="out")
    rows, heads, value_heads, k, v, length, slots = 6, 2, 4, 16, 8, 5, 9
    arguments = (
        torch.zeros(rows, 2 * heads * k + value_heads * v),
        torch.zeros(rows, value_heads * k),
        torch.zeros(rows, value_heads),
        torch.zeros(slots, value_heads, v, k),
        torch.zeros(slots, value_heads, length, v),
        torch.zeros(slots, heads, length, k),
        torch.zeros(rows, 1, value_heads, v),
        torch.arange(rows, dtype=torch.int32),
        0.25,
    )
    calls = {
        "plain": decode,
        "contracted": contracted,
        "library": library,
        "operator": ours.overload,
        "torch_op": ours,
        "torch_op_off": ours,
        "custom_op": custom,
    }
    return calls, arguments, keep


def timed(call: Call, arguments: tuple[Any, ...]) -> float:
    """Microseconds a call."""
    start = time.perf_counter()
    for _ in range(CALLS):
        call(*arguments)
    return (time.perf_counter() - start) / CALLS * 1e6


def measured(calls: dict[str, Call], arguments: tuple[Any, ...], rounds: int) -> dict[str, float]:
    """The least of many short turns, each candidate once a round: what others on the machine disturbed is left out."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            with enforcement("off" if name == "torch_op_off" else "compiled"):
                times[name].append(timed(call, arguments))
    return {name: min(found) for name, found in times.items()}


def main() -> None:
    """Measure and print; write JSON where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": {n: importlib.metadata.version(n) for n in ("torch", "jaxtyping", "beartype", "tensorpact")},
        "rounds": options.rounds,
        "calls_a_round": CALLS,
        "cases": [],
    }
    for name, make in {"small": small_case, "decode": decode_case}.items():
        calls, arguments, keep = make()
        for mode in ("grad", "no_grad"):
            with torch.set_grad_enabled(mode == "grad"):
                us = measured(calls, arguments, options.rounds)
            ratios = {candidate: value / us["library"] for candidate, value in us.items()}
            report["cases"].append({"case": name, "mode": mode, "us": us, "to_library": ratios})
            print(f"{name}, {mode}: " + ", ".join(f"{c} {us[c]:.2f} µs ({r:.2f} ×)" for c, r in ratios.items()))
        del keep
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
