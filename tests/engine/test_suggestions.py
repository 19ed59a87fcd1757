"""The smallest change: every one that a note names is applied to real tensors, and the broken clause then holds."""

import random
import re
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import torch
from jaxtyping import Bool, Float, Float32, Int32
from torch import Tensor

from tensorpact import Contract, ContractViolation, contract
from tensorpact.clauses import (
    exclusive,
    let,
    needs,
    no_overlap,
    require,
    same_device,
    same_dim,
    same_dtype,
    together,
)
from tensorpact.constraints import Aligned, Contiguous, DenseLast, OnDevice, OneOf

BF16, F32, I32 = torch.bfloat16, torch.float32, torch.int32


def T(*sizes: int, dtype: torch.dtype = F32) -> Tensor:  # noqa: N802 - as the cases write it
    return torch.zeros(sizes, dtype=dtype)


@contract(
    Contract(
        "decode",
        clauses=[
            same_dtype("q", "k_cache", "v_cache"),
            same_device("q", "k_cache", "v_cache"),
            same_dim("D", "q", "k_cache"),
            require(lambda H, HKV: H % HKV == 0),
            together("cos", "sin"),
            exclusive("page_table", "slots"),
        ],
        mutates=("out",),
    )
)
def decode(
    q: Annotated[Float[Tensor, "B H D"], DenseLast()],
    k_cache: Annotated[Float[Tensor, "pages page HKV D"], DenseLast()],
    v_cache: Annotated[Float[Tensor, "pages page HKV Dv"], DenseLast()],
    lens: Int32[Tensor, " B"],
    out: Annotated[Float[Tensor, "B H Dv"], Contiguous()],
    attn_sink: Float32[Tensor, " H"] | None = None,
    cos: Float[Tensor, "B R"] | None = None,
    sin: Float[Tensor, "B R"] | None = None,
    page_table: Int32[Tensor, "B W"] | None = None,
    slots: Int32[Tensor, " B"] | None = None,
) -> None: ...


def decode_call() -> dict[str, Any]:
    return {
        "q": T(3, 8, 16, dtype=BF16), "k_cache": T(10, 32, 4, 16, dtype=BF16), "v_cache": T(10, 32, 4, 6, dtype=BF16),
        "lens": T(3, dtype=I32), "out": T(3, 8, 6, dtype=BF16), "attn_sink": T(8), "page_table": T(3, 5, dtype=I32),
    }  # fmt: skip


@contract
def pool(q: Float[Tensor, "T H D"], unified_kv: Float[Tensor, "P D"], out: Float[Tensor, "T H D"]) -> None: ...


def pool_call() -> dict[str, Any]:
    return {"q": T(3, 4, 16), "unified_kv": T(100, 16), "out": T(3, 4, 16)}


@contract(Contract("either", clauses=[no_overlap("state", "mask")]))
def either(
    a: Float[Tensor, "B HV K"] | Float[Tensor, "B HV*K"],
    state: Annotated[Float[Tensor, "slots HV V K"], Contiguous(), Aligned(16)],
    mask: Bool[Tensor, "#B HV"],
    xs: list[Float[Tensor, "N K"]],
) -> None: ...


def either_call() -> dict[str, Any]:
    return {
        "a": T(2, 4, 16), "state": T(5, 4, 8, 16), "mask": T(2, 4, dtype=torch.bool), "xs": [T(7, 16), T(7, 16)],
    }  # fmt: skip


ENTRIES: list[tuple[Any, Callable[[], dict[str, Any]]]] = [
    (decode, decode_call),
    (pool, pool_call),
    (either, either_call),
]


def failure(function: Any, given: dict[str, Any]) -> ContractViolation | None:
    try:
        function(**given)
    except ContractViolation as error:
        return error
    return None


def suggestion(error: ContractViolation) -> str:
    lines = [line for line in error.__notes__[0].splitlines() if line.startswith("smallest change: ")]
    assert len(lines) <= 1
    return lines[0].removeprefix("smallest change: ") if lines else ""


def put(given: dict[str, Any], name: str, value: Any) -> None:
    owner, _, index = name.partition("[")
    if index:
        items = list(given[owner])
        items[int(index[:-1])] = value
        value = items
    given[owner] = value


def applied(text: str, error: ContractViolation, given: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments after the change that a note names; None where it names sizes of a relation."""
    given = dict(given)
    codes = re.findall(r"`([^`]+)`", text)
    if "look swapped" in text:
        first, second = codes
        given[first], given[second] = given[second], given[first]
        return given
    shape = re.search(r"`(\w+)` of shape (\[.*\]) would", text)
    if shape is not None:
        put(given, shape[1], torch.zeros(eval(shape[2]), dtype=given[shape[1]].dtype))
        return given
    scope = {**given, "torch": torch}
    for code in codes:
        if re.fullmatch(r"\w+=None(, \w+=None)*", code):
            given.update(eval(f"dict({code})"))
            continue
        expression = code.rpartition(" = ")[2]
        name = max((n for n in error.arguments if expression.startswith(n)), key=len)
        put(given, name, eval(expression, scope))
    return given if codes else None


def check(function: Any, given: dict[str, Any]) -> str:
    """Whether what the note names repairs what is broken; the suggestion."""
    error = failure(function, given)
    assert error is not None
    text = suggestion(error)
    changed = applied(text, error, given) if text else None
    if changed is not None:
        again = failure(function, changed)
        if again is not None:
            assert str(again) != str(error)
            assert (again.clause, again.args) != (error.clause, error.args)
            was, now = (e.__notes__.subject for e in (error, again))
            assert (was.names, was.point, was.faulty) != (now.names, now.point, now.faulty)
    return text


EXACT: list[tuple[Any, Callable[[], dict[str, Any]], dict[str, Any], str]] = [
    (decode, decode_call, {"v_cache": T(10, 4, 32, 6, dtype=BF16)}, "`v_cache.transpose(1, 2)` would fit"),
    (decode, decode_call, {"k_cache": T(320, 4, 16, dtype=BF16)}, "`k_cache.unflatten(0, (10, 32))` would fit"),
    (decode, decode_call, {"lens": T(3, 1, dtype=I32)}, "`lens.squeeze(1)` would fit"),
    (decode, decode_call, {"lens": T(3, dtype=torch.int64)}, "`lens.to(torch.int32)` would fit"),
    (decode, decode_call, {"k_cache": T(10, 32, 4, 16)}, "`k_cache.to(q.dtype)` would fit"),
    (
        decode, decode_call, {"attn_sink": T(64)},
        "attn_sink has 64 for H=8: pass one of its 8 slices, such as `attn_sink[0:8]`",
    ),
    (
        decode, decode_call,
        {"k_cache": T(10, 32, 4, 6, dtype=BF16), "v_cache": T(10, 32, 4, 16, dtype=BF16)},
        "`k_cache` and `v_cache` look swapped: exchanged, they would fit",
    ),
    (
        decode, decode_call, {"out": T(3, 6, 8, dtype=BF16).transpose(1, 2)},
        "`out = out.contiguous()` would fit (a copy of what is written: read out from there)",
    ),
    (decode, decode_call, {"cos": T(3, 4)}, "`cos=None` would fit, or give sin as well"),
    (decode, decode_call, {"slots": T(3, dtype=I32)}, "`page_table=None` would fit: give only slots"),
    (pool, pool_call, {"unified_kv": T(100, 1, 16)}, "`unified_kv.squeeze(1)` would fit"),
    (pool, pool_call, {"unified_kv": T(25, 4, 16)}, "`unified_kv.flatten(0, 1)` would fit"),
    (pool, pool_call, {"q": T(4, 3, 16)}, "`out.transpose(0, 1)` would fit"),
    (either, either_call, {"a": T(2, 16, 4)}, "`a.transpose(1, 2)` would fit"),
    (either, either_call, {"xs": [T(7, 16), T(16, 7)]}, "`xs[1].transpose(0, 1)` would fit"),
    (either, either_call, {"state": T(2561)[1:].view(5, 4, 8, 16)}, "`state.clone()` would fit"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "right", "change", "text"), EXACT, ids=[case[3][:40] for case in EXACT])
def test_exact(function: Any, right: Any, change: dict[str, Any], text: str) -> None:
    assert check(function, {**right(), **change}) == text


def test_two_arguments_of_one_mistake() -> None:
    @contract
    def f(q: Float[Tensor, "B H"], k: Float[Tensor, "page H D"], v: Float[Tensor, "page H D"]) -> None: ...

    assert check(f, {"q": T(2, 3), "k": T(3, 5, 7), "v": T(3, 5, 7)}) == (
        "`k.transpose(0, 1)` and `v.transpose(0, 1)` would fit"
    )


def test_two_steps_on_one_argument() -> None:
    @contract
    def f(q: Float[Tensor, "B H"], k: Annotated[Float[Tensor, "page H D"], Contiguous()]) -> None: ...

    assert check(f, {"q": T(2, 3), "k": T(3, 5, 7)}) == "`k.transpose(0, 1).contiguous()` would fit"


def test_sizes_of_a_relation() -> None:
    error = failure(
        decode, {**decode_call(), "k_cache": T(10, 32, 3, 16, dtype=BF16), "v_cache": T(10, 32, 3, 6, dtype=BF16)}
    )
    assert error is not None
    assert suggestion(error) == (
        "HKV=3 does not divide H=8; changing one size, it holds for H=6 or H=9, HKV=2 or HKV=4"
    )


def test_sizes_behind_a_let() -> None:
    made = Contract("packed", clauses=[let(rest=lambda C, H, K: C - H * K), require(lambda rest: rest > 0)])

    @contract(made)
    def packed(x: Float[Tensor, "B C"], state: Float[Tensor, "S H K"]) -> None: ...

    error = failure(packed, {"x": T(3, 32), "state": T(5, 2, 16)})
    assert error is not None
    assert suggestion(error).endswith("it holds for C=33, H=1, K=15")


def test_a_rule_over_tensors_is_not_tried() -> None:
    seen: list[int] = []

    @contract(Contract("f", clauses=[require(lambda x: seen.append(1))]))
    def f(x: Float[Tensor, " n"]) -> None: ...

    error = failure(f, {"x": T(3)})
    assert error is not None
    assert suggestion(error) == ""


def test_a_device_is_named_without_being_touched() -> None:
    @contract
    def f(x: Annotated[Float[Tensor, " n"], OnDevice("cuda")]) -> None: ...

    error = failure(f, {"x": T(3)})
    assert error is not None
    assert suggestion(error) == '`x.to("cuda")` would fit'


@pytest.mark.parametrize(
    ("wanted", "given"), [(torch.float8_e4m3fn, BF16), (torch.int32, F32), (BF16, torch.int64), (torch.bool, I32)]
)
def test_no_conversion_that_loses_the_meaning(wanted: torch.dtype, given: torch.dtype) -> None:
    @contract
    def f(x: Annotated[Float[Tensor, " n"] | Int32[Tensor, " n"] | Bool[Tensor, " n"], OneOf(wanted)]) -> None: ...

    error = failure(f, {"x": T(3, dtype=given)})
    assert error is not None
    assert suggestion(error) == ""


def test_what_cannot_be_tried_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> str:
        raise RuntimeError("no stand-in")

    monkeypatch.setattr("tensorpact._changes.Outline.stand_in", broken)
    error = failure(pool, {**pool_call(), "unified_kv": T(100, 1, 16)})
    assert error is not None
    assert suggestion(error) == ""


def test_no_data_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial reads no data, even of a rule that would, and makes no tensor with memory."""
    given = {**pool_call(), "unified_kv": T(100, 1, 16)}

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a tensor was computed with")

    for name in ("__repr__", "item", "tolist", "cpu", "to", "contiguous", "clone", "transpose", "squeeze"):
        monkeypatch.setattr(Tensor, name, forbidden)
    error = failure(pool, given)
    assert error is not None
    assert suggestion(error) == "`unified_kv.squeeze(1)` would fit"


def _mutant(value: Any, rng: random.Random) -> Any:
    if isinstance(value, list):
        at = rng.randrange(len(value))
        return [_mutant(v, rng) if i == at else v for i, v in enumerate(value)]
    kind = rng.choice(["transpose", "unsqueeze", "squeeze", "flatten", "longer", "one", "dtype", "stride", "split"])
    axis = rng.randrange(value.ndim)
    if kind == "transpose":
        return value.transpose(axis, rng.randrange(value.ndim))
    if kind == "unsqueeze":
        return value.unsqueeze(axis)
    if kind == "squeeze":
        return value.select(axis, 0)
    if kind == "flatten" and value.ndim > 1:
        return value.flatten(max(axis - 1, 0), max(axis, 1))
    if kind == "longer":
        return torch.cat([value] * rng.choice([2, 3]), axis)
    if kind == "one":
        return value.narrow(axis, 0, 1)
    if kind == "dtype":
        return value.to(rng.choice([BF16, F32, torch.float16, I32, torch.int64, torch.bool]))
    if kind == "stride":
        return torch.stack([value, value], -1)[..., 0]
    return value.unflatten(axis, (1, value.shape[axis]))


@pytest.mark.parametrize("seed", range(12))
def test_every_suggestion_repairs(seed: int) -> None:
    rng = random.Random(seed)
    told = failed = 0
    for _ in range(60):
        function, right = rng.choice(ENTRIES)
        given = right()
        for name in rng.sample(sorted(given), rng.choice([1, 1, 2])):
            given[name] = _mutant(given[name], rng)
        if failure(function, given) is not None:
            failed += 1
            told += check(function, given) != ""
    assert told > failed / 3


def test_needs() -> None:
    @contract(Contract("f", clauses=[needs("cos", "x")]))
    def f(x: Float[Tensor, " n"] | None = None, cos: Float[Tensor, " n"] | None = None) -> None: ...

    assert check(f, {"cos": T(3)}) == "`cos=None` would fit, or give x as well"
