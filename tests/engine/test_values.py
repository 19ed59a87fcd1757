"""Clauses on values: what they refuse, in which words, where, and what their author may not write."""

import random
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

import tensorpact
from tensorpact import Contract, ContractDefinitionError, ContractViolation, DocumentedError, contract
from tensorpact._values import rows
from tensorpact.clauses import (
    any_of,
    at_least,
    at_most,
    distinct,
    ends_at,
    finite,
    less_than,
    let,
    live,
    multiple_of,
    nondecreasing,
    require,
    same_empty,
    starts_at,
    steps,
    steps_at_most,
    upto,
    values,
    within,
)

OUTSIDE = DocumentedError(
    "index-outside", IndexError, "{name}[{position}] = {value} of {P} rows: {expected}, limit {limit}"
)
END = DocumentedError(
    "ends-elsewhere", ValueError, "{name} ends at {last}, wanted {wanted}", {"wanted": lambda limit: limit}
)


@contract(
    Contract(
        "gather",
        clauses=[
            values("indptr", starts_at(0), nondecreasing(), at_most("N")),
            values("indices", less_than("P"), active="indptr", padding="negative", error=OUTSIDE),
        ],
    )
)
def gather(pool: Float[Tensor, "P D"], indices: Int[Tensor, " N"], indptr: Int[Tensor, " T+1"]) -> int:
    return 1


@contract(
    Contract(
        "paged",
        clauses=[
            let(most=lambda M, page: M * page),
            values("lens", at_least(0), at_most("most"), plus="new"),
            values("table", within(0, "P"), active=upto("lens", per="page")),
            values("slots", distinct(), padding=-1),
            values("cursor", within(0, lambda page: 2 * page), active=live("slots")),
            values("size", multiple_of(8)),
            values("scale", finite()),
        ],
    )
)
def paged(
    pool: Float[Tensor, "P D"],
    table: Int32[Tensor, "B M"],
    lens: Int32[Tensor, " B"],
    page: int,
    *,
    new: Int32[Tensor, " B"] | None = None,
    slots: Int32[Tensor, " B"] | None = None,
    cursor: Int32[Tensor, " B"] | None = None,
    size: int = 16,
    scale: Float[Tensor, "..."] | None = None,
) -> int:
    return 1


@contract(
    Contract(
        "packed",
        clauses=[
            any_of(require(lambda cu_q: cu_q.shape[0] >= 2, about="cu_q"), values("cu_q", starts_at(0))),
            values("cu_q", ends_at("T"), error=END),
            values("cu_q", "cu_k", nondecreasing()),
            values("cu_q", "cu_k", same_empty()),
        ],
    )
)
def packed(
    q: Float[Tensor, "T D"],
    cu_q: Int[Tensor, " B+1"],
    cu_k: Int[Tensor, " B+1"],
    *,
    cu_q_host: Any = None,
) -> int:
    return 1


@contract(
    Contract(
        "appending",
        clauses=[
            values("cu", nondecreasing(), steps_at_most("longest")),
            values("cu", steps_at_most("M"), plus="spare"),
            values("used", at_most(steps("cu"))),
            values("lens", at_most(lambda M: 4 * M), plus=(lambda more: more, steps("cu"))),
            values("table", within(0, "P"), active=upto("lens", per=4, plus=(lambda more: more, steps("cu")))),
        ],
    )
)
def appending(
    pool: Float[Tensor, "P D"],
    table: Int32[Tensor, "B M"],
    lens: Int32[Tensor, " B"] | int | None,
    cu: Int32[Tensor, " B+1"] | None = None,
    longest: int = 9,
    spare: int | None = None,
    more: int = 0,
    used: Int32[Tensor, " B"] | None = None,
) -> int:
    return 1


def ints(*numbers: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


@pytest.fixture(params=["compiled", "beartype"], autouse=True)
def both_modes(request: pytest.FixtureRequest) -> Iterator[str]:
    with tensorpact.enforcement(request.param):
        yield request.param


POOL = torch.zeros(8, 2)
RIGHT: dict[str, Any] = {
    "pool": POOL,
    "table": ints(0, 1, -1, -1, -1, 2, -1, -1, -1, -1, 3, 4, 5, -1, -1).view(3, 5),
    "lens": ints(5, 3, 9),
    "page": 4,
}


TABLE = ints(0, 1, -1, 2, -1, -1).view(2, 3)
APPENDING: dict[str, Any] = {"pool": POOL, "table": TABLE, "lens": ints(5, 1), "cu": ints(0, 3, 6)}


def gathering(indices: Tensor, indptr: Tensor) -> int:
    return gather(POOL, indices, indptr)


REFUSED = {
    "within": (lambda: paged(**RIGHT | {"table": ints(7, 8, 9, 9, 9, *([0] * 10)).view(3, 5)}),
        "table[0, 1] is 8, expected below P = 8"),
    "R37-negative": (lambda: paged(**RIGHT | {"lens": ints(9, 3, 9)}), "table[0, 2] is -1, expected at least 0"),
    "R35": (lambda: paged(**RIGHT | {"lens": ints(21, 3, 9)}), "lens[0] is 21, expected at most most = 20"),
    "R35-new-rows": (lambda: paged(**RIGHT, new=ints(16, 1, 1)), "lens[0] + new is 21, expected at most most = 20"),
    "at-least": (lambda: paged(**RIGHT | {"lens": ints(5, -1, 9)}), "lens[1] is -1, expected at least 0"),
    "distinct": (lambda: paged(**RIGHT, slots=ints(3, -1, 3)), "slots[2] is 3, expected no number twice"),
    "R41": (lambda: paged(**RIGHT, slots=ints(3, -1, 4), cursor=ints(7, 99, 8)), "cursor[2] is 8, expected below 8"),
    "an-int-argument": (lambda: paged(**RIGHT, size=12), "size is 12, expected a multiple of 8"),
    "a-numpy-int": (lambda: paged(**RIGHT, size=np.int64(12)), "size is 12, expected a multiple of 8"),
    "finite": (lambda: paged(**RIGHT, scale=torch.tensor([[1.0, 2.0], [float("nan"), 0.0]])),
        "scale[1, 0] is nan, expected a finite number"),
    "starts-at": (lambda: gathering(ints(0, 1), ints(1, 2)), "indptr[0] is 1, expected 0 at the start"),
    "R30": (lambda: gathering(ints(0, 1), ints(0, 2, 1)), "indptr[2] is 1, expected at least the entry before it, 2"),
    "R38": (lambda: gathering(ints(0, 1), ints(0, 2, 3)), "indptr[2] is 3, expected at most N = 2"),
    "R39": (lambda: gathering(ints(0, 99), ints(0, 2)), "indices[1] = 99 of 8 rows: below P = 8, limit 8"),
    "a-number-of-64-bits": (lambda: gathering(ints(0, 2**40, dtype=torch.int64), ints(0, 2)),
        "indices[1] = 1099511627776 of 8 rows: below P = 8, limit 8"),
    "no-sequence": (lambda: packed(torch.zeros(0, 2), ints(0), ints(0)),
        "requirement 0 of packed does not hold: cu_q=<Tensor[1]>"),
    "R29": (lambda: packed(torch.zeros(5, 2), ints(1, 3, 5), ints(0, 3, 5)), "cu_q[0] is 1, expected 0 at the start"),
    "R31": (lambda: packed(torch.zeros(5, 2), ints(0, 5, 15), ints(0, 3, 5)), "cu_q ends at 15, wanted 5"),
    "the-second-name": (lambda: packed(torch.zeros(5, 2), ints(0, 3, 5), ints(0, 3, 2)),
        "cu_k[2] is 2, expected at least the entry before it, 3"),
    "same-empty": (lambda: packed(torch.zeros(5, 2), ints(0, 3, 5), ints(0, 0, 5)),
        "sequence 0 has 3 rows in cu_q and 0 in cu_k: empty on one side only"),
    "a-copy-on-the-host": (
        lambda: packed(torch.zeros(5, 2), ints(0, 3, 5), ints(0, 3, 5), cu_q_host=(0, 6, 5)),
        "cu_q[2] is 5, expected at least the entry before it, 6"),
    "a-copy-larger-than-any-tensor": (
        lambda: packed(torch.zeros(5, 2), ints(0, 3, 5), ints(0, 3, 5), cu_q_host=(0, 2**70, 5)),
        f"cu_q[2] is 5, expected at least the entry before it, {2**70}"),
    "R34": (lambda: appending(**APPENDING, longest=2), "sequence 0 has 3 rows in cu, expected at most longest = 2"),
    "R34-the-last": (lambda: appending(**APPENDING | {"cu": ints(0, 0, 3)}, longest=2),
        "sequence 1 has 3 rows in cu, expected at most longest = 2"),
    "a-step-and-a-number": (lambda: appending(**APPENDING, spare=1),
        "sequence 0 has 4 rows in cu + spare, expected at most M = 3"),
    "more-used-than-there-are": (lambda: appending(**APPENDING, used=ints(3, 4)),
        "used[1] is 4, expected at most the 3 rows of sequence 1 in cu"),
    "a-sum-of-three": (lambda: appending(**APPENDING | {"lens": ints(5, 9)}, more=1),
        "lens[1] + rule(more) + steps('cu') is 13, expected at most 12"),
    "a-column-of-new-rows": (lambda: appending(**APPENDING, more=1), "table[0, 2] is -1, expected at least 0"),
    "one-length-for-all": (lambda: appending(POOL, TABLE, 5), "table[1, 1] is -1, expected at least 0"),
    "no-length": (lambda: appending(POOL, TABLE, None), "table[0, 2] is -1, expected at least 0"),
    "a-wrong-dtype-comes-first": (lambda: gathering(ints(0, 1), torch.zeros(2)), "indptr: dtype is torch.float32"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_number_that_breaks_a_check_is_told(name: str):
    call, text = REFUSED[name]
    with pytest.raises(ContractViolation, match=rf"^{re.escape(text)}") as caught:
        call()
    documented = {"R39": OUTSIDE, "a-number-of-64-bits": OUTSIDE, "R31": END}.get(name)
    assert caught.value.error is documented
    assert isinstance(caught.value, documented.documented if documented else (ValueError, TypeError))


ACCEPTED = {
    "steps": lambda: appending(**APPENDING, longest=3, spare=0, used=ints(3, 0)),
    "steps-of-none": lambda: appending(POOL, ints(0, 1, -1, 2, -1, -1).view(2, 3), ints(7, 4)),
    "steps-of-no-row": lambda: appending(POOL, ints().view(0, 3), ints(), ints(0), used=ints()),
    "A08-leftovers": lambda: paged(**RIGHT),
    "A06-nothing-cached": lambda: paged(**RIGHT | {"lens": ints(0, 0, 0), "table": torch.full((3, 5), 99).int()}),
    "A19": lambda: gathering(ints(-1, -99, 7), ints(0, 3)),
    "A29": lambda: gathering(ints(0, 99, 99), ints(0, 1)),
    "A20-a-slice": lambda: gather(POOL, ints(99, 1, 99), ints(0, 0)),
    "A03": lambda: packed(torch.zeros(1, 2), ints(0, 0, 0, 0, 1), ints(0, 0, 0, 0, 1)),
    "A01": lambda: paged(POOL, torch.zeros(0, 5).int(), ints(), 4, slots=ints()),
    "padding-may-repeat": lambda: paged(**RIGHT, slots=ints(-1, 2, -1)),
    "a-cursor-of-padding": lambda: paged(**RIGHT, slots=ints(-1, 2, 3), cursor=ints(99, 0, 7)),
    "strided": lambda: gathering(ints(0, 99, 1, 99)[::2], ints(0, 9, 2, 9)[::2]),
    "a-copy-of-numpy-ints": lambda: packed(
        torch.zeros(5, 2), ints(0, 3, 5), ints(0, 3, 5), cu_q_host=[np.int32(0), np.int64(3), 5]
    ),
    "meta": lambda: gather(
        *(torch.empty(n, dtype=d, device="meta") for n, d in (((8, 2), None), (3, torch.int32), (2, torch.int64)))
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_holds_or_is_not_looked_at_passes(name: str):
    assert ACCEPTED[name]() == 1


def test_R47_a_remembered_signature_remembers_no_numbers():  # noqa: N802 - the id of the report
    indices, indptr = ints(0, 7, -1, 3), ints(0, 2, 4)
    for _ in range(12):
        assert gathering(indices, indptr) == 1
    indices[1] = 8
    with pytest.raises(IndexError, match=r"indices\[1\] = 8"):
        gathering(indices, indptr)
    indices[1] = 7
    indptr[2] = 5
    with pytest.raises(ValueError, match=r"indptr\[2\] is 5"):
        gathering(indices, indptr)


@pytest.mark.parametrize("seed", range(3))
def test_lists_and_tensors_are_judged_alike(seed: int):
    """Few numbers are looked at one by one, many by torch."""
    rng = random.Random(seed)
    broken = 0
    for _ in range(150):
        row = row_of(rng)
        place, value, limit = rows.reduced(row).tolist()
        found = rows._in_sequence(rows._listed(row))
        assert found == (None if place < 0 else rows.Breach(place, value, limit)), row
        broken += place >= 0
    assert 30 < broken < 140


LARGEST, SMALLEST = 2**63 - 1, -(2**63)


def wide(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


EDGES: dict[str, tuple[rows.Row, rows.Breach | None]] = {
    "a-unit-of-none": (rows.Row(rows.MULTIPLE, wide(-1, 0, 4), lower=0, padding="negative"), rows.Breach(1, 0, 0)),
    "a-negative-unit": (rows.Row(rows.MULTIPLE, wide(4, 8), lower=-4), rows.Breach(0, 4, -4)),
    "a-unit-by-row": (rows.Row(rows.MULTIPLE, wide(4, 9, 8), lower=0, lower_of=wide(4, 3, 5)), rows.Breach(2, 8, 5)),
    "a-unit-of-more-bits": (rows.Row(rows.MULTIPLE, wide(0, 4), lower=2**64), rows.Breach(1, 4, LARGEST)),
    "a-sum-above": (rows.Row(rows.RANGE, wide(4, LARGEST), upper=5, plus=1), rows.Breach(1, LARGEST, 5)),
    "a-sum-below": (rows.Row(rows.RANGE, wide(0, SMALLEST), 0, 5, plus_of=wide(1, -3)), rows.Breach(1, SMALLEST, 0)),
    "more-added-than-64-bits": (rows.Row(rows.RANGE, wide(0, 4), upper=5, plus=2**64), rows.Breach(0, LARGEST, 5)),
    "a-bound-by-row-above": (
        rows.Row(rows.RANGE, wide(9, 9), upper=1, upper_of=wide(LARGEST, 7)),
        rows.Breach(1, 9, 8),
    ),
    "a-bound-of-more-bits": (rows.Row(rows.RANGE, wide(4, LARGEST), -(2**64), 2**64), None),
    "a-page-of-more-bits": (
        rows.Row(rows.RANGE, wide(0, 9, 9, 9).view(2, 2), 0, 5, mode=rows.COLUMNS, active=wide(7, 0), per=2**64),
        None,
    ),
    "a-step-of-more-bits": (rows.Row(rows.STEPS, wide(SMALLEST, LARGEST), upper=5), rows.Breach(0, LARGEST, 5)),
    "a-step-down-of-more-bits": (
        rows.Row(rows.RANGE, wide(0, 0), 0, 5, plus_of=wide(LARGEST, SMALLEST, 4), steps=rows.PLUS_STEPS),
        rows.Breach(0, SMALLEST, 0),
    ),
    "a-mark-of-more-bits": (rows.Row(rows.RANGE, wide(0, 9), 0, 5, padding=2**64), rows.Breach(1, 9, 5)),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_of_64_bits_are_judged_alike(name: str):
    row, expected = EDGES[name]
    place, value, limit = rows.reduced(row).tolist()
    assert (None if place < 0 else rows.Breach(place, value, limit)) == expected
    assert rows._in_sequence(rows._listed(row)) == expected


@pytest.mark.parametrize("count", [3, 2000])
@pytest.mark.parametrize("n", [0, -8])
def test_nothing_is_a_multiple_of_a_unit_that_is_none(count: int, n: int):
    aligned = DocumentedError("out-of-step", ValueError, "{name}[{position}] = {value}, not {expected}")

    @contract(Contract("f", clauses=[values("x", multiple_of("n"), padding="negative", error=aligned)]))
    def f(x: Int[Tensor, " k"], n: int) -> int:
        return 1

    x = torch.full((count,), 16)
    x[0] = -1
    assert f(x, 8) == 1
    with pytest.raises(ValueError, match=rf"^x\[1\] = 16, not a multiple of n = {n}\n"):
        f(x, n)


@pytest.mark.parametrize("count", [3, 2000])
def test_bounds_and_sums_of_more_than_64_bits(count: int):
    @contract(Contract("f", clauses=[values("x", at_most("n"), plus="m")]))
    def f(x: Int[Tensor, " k"], n: int, m: int) -> int:
        return 1

    x = torch.full((count,), LARGEST)
    assert f(x, 2**64, 0) == 1
    with pytest.raises(ValueError, match=rf"^x\[0\] \+ m is {LARGEST}, expected at most n = 5\n"):
        f(x, 5, 1)


def row_of(rng: random.Random) -> rows.Row:
    kinds = (rows.RANGE, rows.RANGE, rows.RANGE, rows.ORDER, rows.MULTIPLE, rows.DISTINCT, rows.SAME_EMPTY, rows.STEPS)
    kind = rng.choice(kinds)
    count = rng.choice((0, 1, 2, 7, 12))

    def vector(size: int, low: int, high: int) -> Tensor:
        return torch.tensor([rng.randint(low, high) for _ in range(size)], dtype=torch.int64)

    padding = rng.choice((None, 3, "negative"))
    if kind == rows.SAME_EMPTY:
        return rows.Row(kind, vector(max(count, 1), 0, 1), other=vector(max(count, 1), 0, 1))
    if kind == rows.STEPS:
        return rows.Row(kind, vector(count, 0, 9), upper=rng.choice((5, 9)), plus=rng.choice((0, 2)))
    if kind != rows.RANGE:
        numbers = vector(count, -2, 40) * (4 if kind == rows.MULTIPLE else 1)
        padding = None if kind == rows.ORDER else padding
        return rows.Row(kind, numbers.sort().values if rng.random() < 0.5 else numbers, lower=4, padding=padding)
    wide = rng.random() < 0.5
    numbers = vector(12, -1, 9).view(4, 3) if wide else vector(count, -1, 9)
    lines = numbers.shape[0]
    row = rows.Row(kind, numbers, -1, rng.choice((5, 9)), padding=padding)
    choice = rng.randrange(11)
    if choice == 7:
        row.plus_of, row.steps = vector(lines + 1, -2, 3), rows.PLUS_STEPS
    elif choice == 8:
        row.upper_of, row.upper, row.steps = vector(lines + 1, 0, 9), 5, rows.BOUND_STEPS
    elif choice >= 9 and wide:
        row.mode, row.active, row.per, row.longer = rows.COLUMNS, vector(lines, 0, 5), 3, choice - 9
        row.longer_of, row.steps = vector(lines + 1, 0, 5), rows.LENGTH_STEPS
    elif choice == 0:
        row.upper_of, row.upper = vector(lines, 4, 9), -1
    elif choice == 1:
        row.lower_of, row.lower = vector(lines, -1, 3), 0
    elif choice == 2:
        row.plus_of, row.plus = vector(lines, -2, 2), 1
    elif choice == 3:
        row.mode, row.active = rows.LIVE, vector(lines, -1, 1)
    elif choice == 4 and wide:
        row.mode, row.active, row.per = rows.COLUMNS, vector(lines, 0, 7), 3
    elif choice == 4:
        row.mode, row.active = rows.SPAN, vector(3, 0, 12).sort().values
    elif choice == 5:
        row.first, row.padding = True, None
    elif choice == 6:
        row.last, row.padding = True, None
    return row


A = "cu"
AUTHORS = {
    "no-check": (lambda: values("cu"), "at least one check"),
    "a-check-first": (lambda: values(at_least(0), "cu"), "parameter names and then"),
    "no-name": (lambda: values(at_least(0)), "at least 1 parameter name"),
    "twice": (lambda: values("cu", at_least(0), at_least(1)), "at_least stands twice"),
    "never": (lambda: values("cu", at_least(3), at_most(2)), "no number is at least 3 and at most 2"),
    "never-within": (lambda: values("cu", within(3, 3)), "no number is at least 3 and at most 2"),
    "zero": (lambda: values("cu", multiple_of(0)), "above 0"),
    "a-float": (lambda: values("cu", at_least(0.5)), "a number, a name or a function"),
    "a-bool": (lambda: values("cu", at_least(True)), "a number, a name or a function"),
    "one-side": (lambda: values("cu", same_empty()), "compares two tensors"),
    "finite-and": (lambda: values("x", finite(), at_least(0)), "finite stands alone"),
    "plus-order": (lambda: values("cu", nondecreasing(), plus="n"), "plus belongs to"),
    "active-order": (lambda: values("cu", nondecreasing(), active="cu"), "active does not go with nondecreasing"),
    "plus-a-float": (lambda: values("cu", at_least(0), plus=(0.5,)), "plus takes a number, a name or a function"),
    "active-steps": (lambda: values("cu", steps_at_most(1), active="cu"), "active does not go with steps_at_most"),
    "padding": (lambda: values("cu", at_least(0), padding="minus one"), "padding is an int"),
    "stars": (lambda: values("cu", at_least(lambda *n: 0)), "plain function"),
}  # fmt: skip


@pytest.mark.parametrize("name", AUTHORS)
def test_a_clause_that_cannot_be_is_refused_when_it_is_written(name: str):
    make, says = AUTHORS[name]
    with pytest.raises(ContractDefinitionError, match=says):
        make()


LAID = {
    "a-misspelt-name": (values("cuu", at_least(0)), "'cuu' is no parameter; near: cu"),
    "a-misspelt-bound": (values("cu", at_most("TT")), "'TT' is no parameter, dim or let; near: T"),
    "a-misspelt-rule": (values("cu", at_most(lambda TT: TT)), "'TT' is no parameter, dim or let"),
    "a-later-let": (values("cu", at_most("late")), "'late', which a later let derives"),
    "a-float-tensor": (values("x", at_least(0)), "numbers are integers, but for finite"),
    "finite-integers": (values("cu", finite()), "finite is for floating dtypes"),
    "a-float-argument": (values("rate", at_least(0)), "rate is no integer"),
    "two-axes": (values("table", nondecreasing()), "looks along one axis, and table has 2"),
    "an-int-in-order": (values("count", nondecreasing()), "count is an argument of another kind"),
    "columns-of-a-vector": (values("cu", at_least(0), active=upto("cu")), "needs two axes"),
    "offsets-of-two-axes": (values("cu", at_least(0), active="table"), "offsets lie along one axis"),
    "bounds-by-other-rows": (values("table", at_most("cu")), "needs the first axis of table"),
    "a-rule-on-a-tensor": (values("cu", at_most(lambda x: x.shape[0])), "a bound reads the tensor x"),
    "steps-of-an-int": (values("cu", at_least(0), plus=steps("count")), "steps are those of offsets along one axis"),
    "steps-of-other-rows": (values("x", finite(), active=upto("cu", plus=steps("cu"))), "needs the first axis of x"),
    "steps-of-as-many": (
        values("cu", at_most(steps("cu"))),
        "cu has the axis [B+1], and steps for the rows of cu need [B+1+1]",
    ),
    "empties-of-others": (values("cu", "rows", same_empty()), "same_empty compares vectors of one length"),
    "two-by-row": (values("table", at_least(0), plus=("rows", steps("cu"))), "('rows', steps('cu')) both do"),
    "steps-and-a-tensor": (
        values("rows", within("rows", steps("cu"))),
        "bounds by steps and by the tensor rows do not go into one check; write two",
    ),
    "last-of-another": (
        values("cu", at_least(0), error=DocumentedError("a-b", ValueError, "{last}")),
        "'last' is no parameter, dim or let",
    ),
    "the-numbers-of-none": (
        require(lambda T: T > 0, error=DocumentedError("a-c", ValueError, "{value}")),
        "'value' is no parameter, dim or let",
    ),
}


@pytest.mark.parametrize("name", LAID)
def test_a_clause_that_does_not_fit_is_refused_at_the_definition(name: str):
    clause, says = LAID[name]
    with pytest.raises(ContractDefinitionError, match=re.escape(says)):

        @contract(Contract("f", clauses=[clause, let(late=lambda T: T)]))
        def f(
            x: Float[Tensor, "T D"],
            cu: Int[Tensor, " B+1"],
            table: Int[Tensor, "B M"],
            count: int,
            rate: float,
            rows: Int[Tensor, " B"],
        ) -> int:
            return 1


def test_a_condition_limits_a_clause():
    @contract(Contract("f", clauses=[values("x", at_least(0), when=lambda strict: strict)]))
    def f(x: Int[Tensor, " n"], strict: bool) -> int:
        return 1

    assert f(ints(-1), False) == 1
    with pytest.raises(ValueError, match=r"^x\[0\] is -1"):
        f(ints(-1), True)


def test_a_rule_that_fails_is_its_authors():
    @contract(Contract("f", clauses=[values("x", at_most(lambda n: 1 // (n - 1)))]))
    def f(x: Int[Tensor, " n"]) -> int:
        return 1

    assert f(ints(0, 0)) == 1
    with pytest.raises(ContractDefinitionError, match="ZeroDivisionError"):
        f(ints(0))


def test_a_clause_reads_as_its_author_wrote_it():
    clause = values("t", within(0, "P"), at_most(lambda P: P), active=upto("lens", per=4), padding=0, plus="new")
    assert str(clause) == (
        "values('t', within(0, 'P'), at_most(rule(P)), active=upto('lens', per=4), padding=0, plus='new')"
    )
    clause = values("t", at_most(steps("cu")), active=upto("lens", plus=(2, steps("cu"))), plus=("new", lambda n: n))
    assert str(clause) == (
        "values('t', at_most(steps('cu')), active=upto('lens', plus=(2, steps('cu'))), plus=('new', rule(n)))"
    )


def test_a_tracer_sees_copies_on_the_host(both_modes: str):
    if both_modes == "beartype":
        pytest.skip("a tracer runs the guard in every mode")
    torch._dynamo.reset()
    traced = torch.compile(packed, backend="eager")
    q, ends = torch.zeros(5, 2), ints(0, 3, 5)
    assert traced(q, ends, ends, cu_q_host=(0, 3, 5)) == 1
    assert traced(q, ints(0, 3, 99), ends) == 1
    with pytest.raises(ContractViolation, match=r"^cu_q ends at 6, wanted 5"):
        traced(q, ends, ends, cu_q_host=(0, 3, 6))


def test_the_mode_is_a_block_for_all_threads():
    from tensorpact._values import modes

    assert modes.current_mode() == "off"
    with tensorpact.value_checks("async"):
        inner = tensorpact.value_checks("sync")
        assert modes.current_mode() == "sync"
        with inner:
            pass
        assert modes.current_mode() == "async"
    assert modes.current_mode() == "off"
    with pytest.raises(ValueError, match=r"^value checks are one of off, sync, async, not 'on'$"):
        tensorpact.value_checks("on")  # type: ignore[arg-type]


def test_a_number_is_looked_at_where_a_clause_is_about_numbers(both_modes: str):
    if both_modes == "beartype":
        pytest.skip("what is at hand is the guard's question")

    @contract(
        Contract(
            "f",
            clauses=[
                values("x", at_least(0), when=lambda x: isinstance(x, Tensor)),
                values("x", at_most(9), when=lambda strict: strict),
            ],
        )
    )
    def f(x: Int[Tensor, " n"] | int | None, strict: bool = False) -> int:
        return 1

    gate = f.__tensorpact__.built.plan.gate
    looked: list[Any] = []
    with mock.patch.object(type(gate), "__call__", lambda _, *given: looked.append(given) or True):
        for x, strict in ((-1, False), (None, False), (None, True), (99, False)):
            assert f(x, strict) == 1
        assert not looked
        assert f(5, True) == f(ints(5)) == 1
        assert len(looked) == 2
    for x, strict in ((99, True), (ints(-1), False)):
        with pytest.raises(ContractViolation, match=r"^x"):
            f(x, strict)
