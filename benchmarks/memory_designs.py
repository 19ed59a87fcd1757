"""Ways to recognise a remembered signature, side by side: what each costs against the attribute-read floor.

    python benchmarks/memory_designs.py [--out FILE] [--rounds N]

Every design stands in the place of the match in one generated guard; what it does not prove (the scalar, rules on
scalars) is tested as in the guard. A design may not use the identity of a tensor: caches are views made anew. The
designs marked as proving less are no candidates; they show what a part of the comparison costs.
"""

import argparse
import datetime as dt
import importlib
import json
import pathlib
import platform
import re
from collections.abc import Callable
from typing import Any

import torch
from overhead import COUNTS, forgetful
from overhead_cases import CASES, Case
from overhead_cases.timing import middle, repeated, sampled

from tensorpact._guard import memory as kept

GUARDS: Any = importlib.import_module("torch._C._dynamo.guards")
READ = "({0}.shape, {0}.dtype, {0}.device, {0}.stride())"
#: From the name of a design to the text of its match and what it remembers.
Design = Callable[[list[str], tuple[torch.Tensor, ...]], tuple[str, Any]]


def signature(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All that a match has to compare, read from Python."""
    return tensor.shape, tensor.dtype, tensor.device, tensor.stride()


def key_in_set(names: list[str], tensors: tuple[torch.Tensor, ...]) -> tuple[str, Any]:
    """One tuple of all attributes, looked up in a set: as many signatures as one likes."""
    return f"({', '.join(READ.format(n) for n in names)}) in _known", {tuple(signature(t) for t in tensors)}


def key_compared(names: list[str], tensors: tuple[torch.Tensor, ...]) -> tuple[str, Any]:
    """The same tuple compared with the last one: no hash, and it stops at the first difference."""
    return f"({', '.join(READ.format(n) for n in names)}) == _known", tuple(signature(t) for t in tensors)


def nested_dicts(names: list[str], tensors: tuple[torch.Tensor, ...]) -> tuple[str, Any]:
    """A dict a tensor, from its attributes to the dict of the next tensor."""
    known: Any = True
    for tensor in reversed(tensors):
        known = {signature(tensor): known}
    return "_known" + "".join(f"[{READ.format(n)}]" for n in names), known


def one_by_one(names: list[str], tensors: tuple[torch.Tensor, ...]) -> tuple[str, Any]:
    """Each attribute compared with what is remembered, no tuple made."""
    what = ("shape", "dtype", "device", "stride()")
    tests = [
        f"{n}.{w} {'is' if w == 'dtype' else '=='} _known[{4 * i + j}]"
        for i, n in enumerate(names)
        for j, w in enumerate(what)
    ]
    return " and ".join(tests), tuple(value for t in tensors for value in signature(t))


def shapes_compared(names: list[str], tensors: tuple[torch.Tensor, ...]) -> tuple[str, Any]:
    """The shapes in one tuple, compared in C."""
    return f"({', '.join(f'{n}.shape' for n in names)}) == _known", tuple(t.shape for t in tensors)


def size_and_stride(names: list[str], tensors: tuple[torch.Tensor, ...]) -> tuple[str, Any]:
    """Torch's assertion on sizes and strides, a tensor at a time, with dtype and device read from Python."""
    tests = [
        f"_assert({n}, _known[{4 * i}], _known[{4 * i + 3}]) is None and {n}.dtype is _known[{4 * i + 1}]"
        f" and {n}.device == _known[{4 * i + 2}]"
        for i, n in enumerate(names)
    ]
    return " and ".join(tests), tuple(value for t in tensors for value in signature(t))


def not_nested(names: list[str]) -> str:
    """What has to be asked before torch's check: it ends the process when it meets a strided nested tensor."""
    return f"not ({' or '.join(f'{n}.is_nested' for n in names)})"


def tensor_guards(names: list[str], tensors: tuple[torch.Tensor, ...]) -> tuple[str, Any]:
    """Torch's signature check over all tensors: what the guard does."""
    return f"{not_nested(names)} and _known({', '.join(names)})", kept._check_of(tensors)


def tensor_guards_each(names: list[str], tensors: tuple[torch.Tensor, ...]) -> tuple[str, Any]:
    """The same check, one for each tensor."""
    tests = [f"not {n}.is_nested and _known[{i}]({n})" for i, n in enumerate(names)]
    return " and ".join(tests), tuple(kept._check_of((t,)) for t in tensors)


def tensor_guards_unsafe(names: list[str], tensors: tuple[torch.Tensor, ...]) -> tuple[str, Any]:
    """The same check without asking for nested tensors: it may not be used."""
    return f"_known({', '.join(names)})", kept._check_of(tensors)


def open_sizes(names: list[str], tensors: tuple[torch.Tensor, ...]) -> tuple[str, Any]:
    """Torch's check with sizes and strides left open: class, dtype, device and rank alone."""
    loose: list[list[None]] = [[None] * t.ndim for t in tensors]
    check = GUARDS.TensorGuards(*tensors, dynamic_dims_sizes=loose, dynamic_dims_strides=loose).check
    return f"{not_nested(names)} and _known({', '.join(names)})", check


DESIGNS: dict[str, Design] = {
    "a tuple of all attributes, in a set": key_in_set,
    "a tuple of all attributes, compared": key_compared,
    "a dict a tensor": nested_dicts,
    "attribute by attribute": one_by_one,
    "torch's assertion on sizes and strides, a tensor at a time": size_and_stride,
    "torch's signature check, a tensor at a time": tensor_guards_each,
    "torch's signature check, all tensors (kept)": tensor_guards,
}
PROVE_LESS: dict[str, Design] = {
    "the shapes alone, in one tuple": shapes_compared,
    "torch's check without sizes": open_sizes,
    "torch's check without asking for nested tensors": tensor_guards_unsafe,
}


def with_match(case: Case, design: Design, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """The guard of a case with another match."""
    function = case.decorated()
    text: str = function.__tensorpact__.source
    tensors = tuple(a for a in arguments if isinstance(a, torch.Tensor))
    names = [n for n, a in zip(function.__code__.co_varnames, arguments, strict=False) if isinstance(a, torch.Tensor)]
    match, known = design(names, tensors)
    text, count = re.subn(
        r"not \((?:\w+\.is_nested(?: or )?)+\)\n\s+and _known\[0\]\([^)]*\)", lambda _: f"({match})", text
    )
    if count != 1:
        raise RuntimeError("the text of the guard has changed: this script looks for its match")
    scope = {**function.__globals__, "_assert": GUARDS.assert_size_stride}
    scope["_memory"] = memory = kept.Memory()
    memory.known = known
    exec(compile(text, "<match>", "exec"), scope)
    guarded: Callable[..., Any] = scope["guarded"]
    # What a design lets through has to be a match: the plain guard would hide that it never hits.
    scope["_Tensor"] = None
    guarded(*arguments)
    memory.misses = -(10**9)
    scope["_Tensor"] = torch.Tensor
    for i, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor) and design is not open_sizes:
            refused(guarded, (*arguments[:i], torch.zeros(1, *argument.shape), *arguments[i + 1 :]))
    return guarded


def refused(guarded: Callable[..., Any], wrong: tuple[Any, ...]) -> None:
    """See that a call with a wrong tensor does not pass."""
    try:
        guarded(*wrong)
    except (TypeError, ValueError):
        return
    raise RuntimeError("a design lets a wrong call pass")


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Every design on one signature."""
    arguments = case.arguments(3)
    right = [arguments]
    plain = forgetful(case, arguments)
    if plain is None or case.floor is None:
        raise RuntimeError(f"{case.name} has no memory or no floor")
    loops = {"floor": repeated(case.floor, right), "stock": repeated(case.stock(), right)}
    loops["no memory: the plain guard"] = repeated(plain, right)
    for name, design in (DESIGNS | PROVE_LESS).items():
        loops[name] = repeated(with_match(case, design, arguments), right)
    samples = sampled(loops, rounds, COUNTS)
    out: dict[str, Any] = {}
    for name, times in samples.items():
        ratio, spread = middle([a / b for a, b in zip(times, samples["floor"], strict=True)])
        against, _ = middle([b / a for a, b in zip(times, samples["stock"], strict=True)])
        out[name] = {
            "microseconds": round(middle(times)[0], 3),
            "of_floor": round(ratio, 3),
            "spread": round(spread, 3),
            "stock": round(against, 2),
            "proves_less": name in PROVE_LESS,
        }
    return {"signature": case.name, "designs": out}


def main() -> None:
    """Measure, print, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="file for the figures as JSON")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    results = [measure(case, options.rounds) for case in CASES if case.extended]
    for result in results:
        print(result["signature"])
        for name, row in result["designs"].items():
            print(
                f"  {name:60} {row['microseconds']:7.2f} µs  {row['of_floor']:5.2f} × floor ± {row['spread']:.0%}"
                f"  stock {row['stock']:5.1f} ×"
            )
    if options.out:
        record = {
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "results": results,
        }
        pathlib.Path(options.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
