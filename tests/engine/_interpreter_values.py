"""Runs the checker kernel in Triton's interpreter and prints one JSON line a case.

Started by test_values_interpreter.py in a process of its own: Triton reads TRITON_INTERPRET once, at import.
"""

import contextlib
import gc
import itertools
import os
import random
import threading
import weakref
from unittest import mock

import interpreted
import pytest
import torch
from jaxtyping import Float, Int
from reported_values import REPORTED, called
from torch import Tensor

import tensorpact
from tensorpact import Contract, ContractViolation, contract
from tensorpact._values import counts, gate, judging, launching, mailbox, pending, rows, synchronous, table
from tensorpact._values.rows import (
    BOUND_STEPS,
    COLUMNS,
    DISTINCT,
    FINITE,
    LENGTH_STEPS,
    LIVE,
    MULTIPLE,
    ORDER,
    PLUS_STEPS,
    RANGE,
    SAME_EMPTY,
    SPAN,
    STEPS,
    Row,
)
from tensorpact.clauses import at_least, at_most, distinct, less_than, let, nondecreasing, starts_at, values
from tensorpact.testing._probe import call

CASES = {}
CPU = torch.device("cpu")
NUMBERS = itertools.count(1)


def case(function, /, **arguments):
    label = ",".join(f"{key}={value}" for key, value in arguments.items())
    CASES[f"{function.__name__}[{label}]"] = (function, arguments)


def ints(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


def look(given, box=None):
    """The first record of one launch, or None."""
    box = box or mailbox.Mailbox(CPU, 4)
    (made,) = table.encode(given)
    call = next(NUMBERS)
    laid = box.lay(made, call, captured=False, again=False)
    launching.start(box, laid, box.counter(0), call, made, [tensor.data_ptr() for tensor in made.tensors], 0)
    assert not laid.stamp or box.words[laid.stamp] == call
    return box.read()


def random_row(rng):
    """A row and tensors of any width, stride and kind, with few enough numbers that breaches and passes both occur."""
    kind = rng.choice((RANGE, RANGE, RANGE, RANGE, ORDER, MULTIPLE, DISTINCT, SAME_EMPTY, STEPS, FINITE))
    count = rng.choice((0, 1, 2, 7, 64, 65, 300))
    wide = rng.choice((torch.int32, torch.int64))
    narrow = rng.choice((torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8))

    def vector(size, low, high, dtype=wide):
        whole = torch.tensor([rng.randint(low, high) for _ in range(size)] or [], dtype=dtype)
        if rng.random() < 0.5:
            return whole
        apart = torch.zeros(2 * size, dtype=dtype)[::2]
        return apart.copy_(whole)

    if kind == FINITE:
        dtype = rng.choice((torch.float32, torch.float16, torch.bfloat16, torch.float64))
        numbers = torch.zeros(rng.randint(1, 40), rng.randint(1, 20), dtype=dtype)[:, : rng.randint(1, 20)]
        if rng.random() < 0.6:
            numbers[rng.randrange(numbers.shape[0]), rng.randrange(numbers.shape[1])] = rng.choice(
                (float("nan"), float("inf"), -float("inf"))
            )
        return Row(kind, numbers)
    if kind == ORDER:
        steps = vector(count, 0, 3).cumsum(0).to(wide)
        if count and rng.random() < 0.6:
            steps[rng.randrange(count)] -= rng.randint(0, 3)
        return Row(kind, steps)
    if kind == SAME_EMPTY:
        return Row(kind, vector(max(count, 1), 0, 1), other=vector(max(count, 1), 0, 1))
    if kind == STEPS:
        return Row(kind, vector(count, 0, 9, narrow), upper=rng.choice((5, 9)), plus=rng.choice((0, 2)))
    if kind == DISTINCT:
        numbers = torch.tensor(rng.sample(range(2000), count), dtype=wide)
        if count and rng.random() < 0.6:
            numbers[rng.randrange(count)] = numbers[rng.randrange(count)]
        if rng.random() < 0.5:
            numbers[: count // 3] = -1
        return Row(kind, numbers, padding=rng.choice((-1, "negative")))
    if kind == MULTIPLE:
        numbers = (vector(count, 0, 9) * 4).to(wide)
        if count and rng.random() < 0.6:
            numbers[rng.randrange(count)] += 1
        return Row(kind, numbers, lower=4, padding=rng.choice((None, 3)))
    flat = rng.random() < 0.5
    if flat:
        numbers = vector(count, 0, 9, narrow)
    else:
        lines, columns = rng.randint(1, 20), rng.randint(1, 20)
        numbers = vector(lines * columns, 0, 9, narrow).reshape(lines, columns)
        numbers = numbers.t() if rng.random() < 0.3 else numbers
    row = Row(kind, numbers, 0, rng.choice((5, 9)), padding=rng.choice((None, 7, "negative")))
    lines = numbers.shape[0]
    choice = rng.randrange(11)
    if choice >= 7 and flat:
        row.steps = rng.choice((PLUS_STEPS, BOUND_STEPS))
        row.plus_of, row.upper_of = vector(lines + 1, -2, 3), vector(lines + 1, 0, 9)
        row.upper_of = None if row.steps == PLUS_STEPS else row.upper_of
        row.plus_of = None if row.steps == BOUND_STEPS else row.plus_of
        row.upper = 5
    elif choice >= 7:
        row.mode, row.active, row.per, row.longer = COLUMNS, vector(lines, 0, 30), 3, rng.choice((0, 4))
        row.active = [12] if choice == 7 else row.active
        if choice > 8:
            row.steps, row.longer_of = LENGTH_STEPS, vector(lines + 1, 0, 12)
    elif choice == 0:
        row.upper_of, row.upper = vector(lines, 0, 9), -1
    elif choice == 1:
        row.lower_of, row.lower = vector(lines, 0, 9), 0
    elif choice == 2:
        row.plus_of, row.plus = vector(lines, -2, 2), 1
    elif choice == 3 and flat:
        row.mode, row.active = SPAN, torch.tensor(sorted(rng.randint(0, max(count, 1)) for _ in range(4)), dtype=wide)
    elif choice == 3:
        row.mode, row.active, row.per = COLUMNS, vector(lines, 0, 40), 3
    elif choice == 4 and numbers.numel():
        row.first, row.upper, row.padding = True, 3, None
    elif choice == 5:
        row.last, row.upper, row.padding = True, 3, None
    elif choice == 6:
        row.mode, row.active = LIVE, vector(lines, -1, 1)
    return row


def one_by_one(seed):
    rng = random.Random(seed)
    broken = 0
    for _ in range(18):
        row = random_row(rng)
        place, value, limit = rows.reduced(row).tolist()
        found = look([row])
        if place < 0:
            assert found is None, (row, found)
            continue
        broken += 1
        assert found is not None, (row, place, value)
        assert found.place == place, (row, found, place)
        if row.kind == FINITE:
            as_float = rows.as_float(found.value, row.numbers)
            assert as_float != as_float or abs(as_float) == float("inf")
        else:
            assert (found.value, found.limit) == (value, limit), (row, found, value, limit)
    assert broken > 3


def edges_of_64_bits():
    largest, smallest = 2**63 - 1, -(2**63)

    def wide(*numbers):
        return ints(*numbers, dtype=torch.int64)

    for row, expected in (
        (Row(MULTIPLE, wide(-1, 0, 4), lower=0, padding="negative"), (1, 0, 0)),
        (Row(MULTIPLE, wide(4, 8), lower=-4), (0, 4, -4)),
        (Row(MULTIPLE, wide(4, 9, 8), lower=0, lower_of=wide(4, 3, 5)), (2, 8, 5)),
        (Row(RANGE, wide(4, largest), upper=5, plus=1), (1, largest, 5)),
        (Row(RANGE, wide(0, smallest), 0, 5, plus_of=wide(1, -3)), (1, smallest, 0)),
        (Row(RANGE, wide(0, 4), upper=5, plus=2**64), (0, largest, 5)),
        (Row(RANGE, wide(9, 9), upper=1, upper_of=wide(largest, 7)), (1, 9, 8)),
        (Row(RANGE, wide(4, largest), -(2**64), 2**64), None),
        (Row(RANGE, wide(0, 9, 9, 9).view(2, 2), 0, 5, mode=COLUMNS, active=wide(7, 0), per=2**64), None),
        (Row(RANGE, wide(0, 9), 0, 5, padding=2**64), (1, 9, 5)),
        (Row(STEPS, wide(smallest, largest, smallest), upper=5), (0, largest, 5)),
        (Row(RANGE, wide(0, 0), 0, 5, plus_of=wide(largest, smallest, 4), steps=PLUS_STEPS), (0, smallest, 0)),
    ):
        found = look([row])
        assert (found and (found.place, found.value, found.limit)) == expected, row


def first_of_several():
    right, late, early = Row(RANGE, ints(1, 2), 0, 5), Row(RANGE, ints(*range(1000)), 0, 900), Row(RANGE, ints(9), 0, 5)
    assert look([right, right]) is None
    found = look([right, late, early])
    assert (found.row, found.place, found.value, found.limit) == (1, 901, 901, 900)
    assert (look([right, early, late]).row, look([early]).run) == (1, 1)


def ring_is_bounded():
    with mock.patch.object(mailbox, "RING", 8), mock.patch.object(launching, "RING", 8):
        box = mailbox.Mailbox(CPU, 4)
        wrong = [Row(RANGE, ints(9), 0, 5)]
        (made,) = table.encode(wrong)
        for i in range(8 + 3):
            laid = box.lay(made, i + 1, captured=False, again=False)
            launching.start(box, laid, box.counter(0), i + 1, made, [made.tensors[0].data_ptr()], 0)
        assert box.dropped == 3
        calls = []
        while (record := box.read()) is not None:
            calls.append(record.call)
        assert calls == list(range(1, 9))
        for _ in range(2):
            assert look(wrong, box).value == 9
        assert not box.has_mail()


def a_table_that_comes_again_is_on_the_device():
    box = mailbox.Mailbox(CPU, 4)
    (made,) = table.encode([Row(RANGE, ints(9), 0, 5)])
    first = box.lay(made, 1, captured=False, again=False)
    assert first.stamp
    # As long as the first kernel has not run, neither has the copy in front of it.
    assert box.lay(made, 2, captured=False, again=False).stamp not in (0, first.stamp)
    box.words[first.stamp] = 1
    third = box.lay(made, 3, captured=False, again=False)
    assert (third.stamp, box.lay(made, 4, captured=True, again=False)) == (0, third)
    assert not box.memory.data_ptr() <= third.address < box.memory.data_ptr() + 8 * box.memory.numel()
    launching.start(box, third, box.counter(0), 3, made, [made.tensors[0].data_ptr()], 0)
    assert (box.read().call, box.read()) == (3, None)


def a_table_that_finds_no_room_on_the_device():
    with mock.patch.object(mailbox, "RESIDENT_WORDS", 96):
        box, half = mailbox.Mailbox(CPU, 64), (1, False, True)
        for upper, again, there in (half, (2, False, False), (3, True, True), (4, True, True), (5, True, False)):
            row = Row(RANGE, ints(9), 0, upper)
            assert look([row], box).limit == upper
            (made,) = table.encode([row])
            laid = box.lay(made, 99, captured=False, again=again)
            if laid.stamp:
                box.words[laid.stamp] = 99
            assert (box.lay(made, 100, captured=False, again=again).stamp == 0) == there, upper


def more_than_a_table_holds():
    rows_of = [Row(RANGE, ints(i), 0, 99) for i in range(40)]
    made = table.encode(rows_of)
    assert [(t.count, len(t.tensors)) for t in made] == [(16, 16), (16, 16), (8, 8)]
    shared = ints(3)
    assert [(t.count, len(t.tensors)) for t in table.encode([Row(RANGE, shared, 0, 9)] * 40)] == [(32, 1), (8, 1)]

    names = [f"x{i}" for i in range(20)]
    given = {}
    exec(
        f"def many({', '.join(f'{n}: hint' for n in names)}): return 1",
        {"hint": Int[Tensor, " N"]},
        given,
    )
    many = contract(Contract("many", clauses=[values(n, at_most(5)) for n in names]))(given["many"])
    with on_a_device():
        many(*[ints(1, 2)] * 19, ints(1, 7))
        refused("x19[1] is 7, expected at most 5")
        many(*[ints(1, i) for i in range(5)], ints(6, 2), *[ints(1, 2) for _ in range(13)], ints(1, 7))
        refused("x5[0] is 6, expected at most 5")
        refused("x19[1] is 7, expected at most 5")
        tensorpact.poll()


@contract(
    Contract(
        "gather",
        clauses=[
            values("indptr", starts_at(0), nondecreasing(), at_most("N")),
            values("indices", less_than("P"), active="indptr", padding="negative"),
        ],
    )
)
def gather(pool: Float[Tensor, "P D"], indices: Int[Tensor, " N"], indptr: Int[Tensor, " T+1"]) -> int:
    return 1


POOL, OFFSETS = torch.zeros(8, 2), ints(0, 2, 3)


def thread(device):
    return threading.get_ident()


@contextlib.contextmanager
def on_a_device(mode="async", **options):
    """Tensors in host memory looked at as if a device held them, by the kernel."""
    pending.forget()
    counts.clear()
    elsewhere = mock.Mock(return_value=False)
    with (
        mock.patch.object(gate, "is_at_hand", elsewhere),
        mock.patch.object(judging, "is_at_hand", elsewhere),
        # A thread's launches run one after the other, those of several threads do not.
        mock.patch.object(launching, "stream_of", thread),
        tensorpact.value_checks(mode, **options),
    ):
        yield
    pending.forget()


def refused(text, function=tensorpact.poll, *arguments):
    with pytest.raises(ContractViolation) as caught:
        function(*arguments)
    assert str(caught.value) == text
    return caught.value


def told_at_the_poll(mode):
    with tensorpact.enforcement(mode), on_a_device():
        tensorpact.poll()
        assert gather(POOL, ints(0, 7, -1), OFFSETS) == 1
        tensorpact.synchronize()
        assert gather(POOL, ints(0, 9, -1), OFFSETS) == 1
        error = refused("indices[1] is 9, expected below P = 8")
        assert (error.call_number, error.arguments["indices"].shape, error.bindings["P"].size) == (2, (3,), 8)
        assert "asynchronous check of call 2" in error.__notes__[-1]
        assert str(error.clause).startswith("values('indices'")
        tensorpact.poll()
        assert (tensorpact.value_report().launched, tensorpact.value_report().pending) == (2, 0)


def told_at_the_next_call(mode):
    with tensorpact.enforcement(mode), on_a_device():
        gather(POOL, ints(0, 9, -1), OFFSETS)
        error = refused("indices[1] is 9, expected below P = 8", gather, POOL, ints(0, 1, -1), OFFSETS)
        assert error.call_number == 1
        assert gather(POOL, ints(0, 1, -1), OFFSETS) == 1


def one_after_the_other():
    with on_a_device():
        with mock.patch.object(pending, "waiting", return_value=False):
            gather(POOL, ints(0, 9, -1), OFFSETS)
            gather(torch.zeros(5, 2), ints(6, 5, -1), ints(0, 3))
            gather(POOL, ints(0, 1, -1), ints(0, 2, 1))
        refused("indices[1] is 9, expected below P = 8")
        assert tensorpact.value_report().pending == 2
        refused("indices[0] is 6, expected below P = 5", tensorpact.synchronize)
        refused("indptr[2] is 1, expected at least the entry before it, 2")
        tensorpact.synchronize()


def a_remembered_signature():
    indices = ints(0, 7, -1)
    with on_a_device():
        with mock.patch.object(launching, "start", return_value=None):
            for _ in range(9):
                gather(POOL, indices, OFFSETS)
        assert gather.__tensorpact__.built.plan.gate._ready is not None
        assert not gather.__tensorpact__.built.plan.gate._ready.table.tensors
        with mock.patch.object(gate, "encode", side_effect=AssertionError("the table is made anew")):
            gather(POOL, ints(0, 7, 5), OFFSETS)
            tensorpact.poll()
            gather(POOL, ints(0, 7, 8), OFFSETS.clone().copy_(ints(0, 3, 3)))
        error = refused("indices[2] is 8, expected below P = 8")
        assert error.call_number == 11
        assert error.arguments["indices"].shape == (3,)


def a_tensor_that_is_given_twice():
    """A table that is kept must not take what two parameters shared for what one of them has now."""

    @contract(Contract("pair", clauses=[values("one", at_least(0)), values("other", at_least(0))]))
    def pair(x: Float[Tensor, " D"], one: Int[Tensor, " N"] | None = None, other: Int[Tensor, " N"] | None = None):
        return x

    x, shared = torch.zeros(2), ints(1, 2)
    with on_a_device():
        for _ in range(9):
            pair(x, shared, shared)
        tensorpact.synchronize()
        with mock.patch.object(gate, "encode", side_effect=AssertionError("the table is made anew")):
            pair(x, again := ints(1, -2), again)
        refused("one[1] is -2, expected at least 0")
        pair(x, ints(1, -2), ints(1, 2))
        refused("one[1] is -2, expected at least 0")


def a_captured_launch_tells_of_each_run():
    indices, starts = ints(0, 7, -1), []

    def start(*given):
        starts.append(given)
        launching_start(*given)

    launching_start = launching.start
    with on_a_device(), mock.patch.object(launching, "start", start):
        gather(POOL, indices, OFFSETS)
        with mock.patch.object(gate, "is_capturing", return_value=True):
            gather(POOL, indices, OFFSETS)
        tensorpact.poll()
        for _ in range(3):
            gather(POOL, indices, OFFSETS)
        replayed = starts[1]
        launching_start(*replayed)
        indices[0] = 11
        launching_start(*replayed)
        error = refused("indices[0] is 11, expected below P = 8")
        assert "in run 3 of the launch captured as call 2" in error.__notes__[-1]
        launching_start(*replayed)
        assert "in run 4" in refused("indices[0] is 11, expected below P = 8").__notes__[-1]


def a_first_call_is_not_captured():
    with on_a_device(), mock.patch.object(gate, "is_capturing", return_value=True):
        gather(POOL, ints(9, 9, 9), OFFSETS)
        tensorpact.poll()
        assert tensorpact.value_report().skipped == {"the first check of a device cannot be captured": 1}


def the_stack_if_asked():
    with on_a_device(stacks=True):
        gather(POOL, ints(0, 9, -1), OFFSETS)
        note = refused("indices[1] is 9, expected below P = 8").__notes__[-1]
        assert "the_stack_if_asked" in note
        assert "gate.py" not in note


def calls_in_flight_are_bounded():
    with on_a_device(), mock.patch.object(launching, "start", return_value=None):
        for _ in range(mailbox.SLOTS + 3):
            gather(POOL, ints(0, 9, -1), OFFSETS)
        assert tensorpact.value_report().skipped == {"too many calls in flight": 3}


def a_call_that_is_no_longer_remembered():
    with on_a_device(), mock.patch.object(pending, "_REMEMBERED", 0):
        gather(POOL, ints(0, 9, -1), OFFSETS)
        refused(
            "a number of call 1, which is no longer remembered, breaks its contract: check 3 at place 1 found 9, "
            "the limit is 7"
        )


def threads():
    wrong, one_at_a_time, start = [], threading.Lock(), launching.start

    def alone(*given):
        # The interpreter has one grid for the process.
        with one_at_a_time:
            start(*given)

    def work(rows):
        for i in range(2):
            try:
                gather(torch.zeros(rows, 2), ints(rows + i, 0, -1), OFFSETS)
            except ContractViolation as error:
                wrong.append(error)

    with on_a_device(), mock.patch.object(launching, "start", alone):
        all_threads = [threading.Thread(target=work, args=(rows,)) for rows in (5, 50, 500)]
        for thread in all_threads:
            thread.start()
        for thread in all_threads:
            thread.join()
        while True:
            try:
                tensorpact.synchronize()
                break
            except ContractViolation as error:
                wrong.append(error)
        assert len(wrong) == len({e.call_number for e in wrong}) == tensorpact.value_report().launched
        for error in wrong:
            pool = error.arguments["pool"].shape[0]
            value = int(str(error).split(" is ")[1].split(",")[0])
            assert pool <= value < pool + 4
            assert str(error) == f"indices[0] is {value}, expected below P = {pool}"


def read_in_the_call(mode):
    with tensorpact.enforcement(mode), on_a_device("sync"):
        assert gather(POOL, ints(0, 7, -1), OFFSETS) == 1
        error = refused("indices[1] is 9, expected below P = 8", gather, POOL, ints(0, 9, -1), OFFSETS)
        assert error.call_number is None
        with (
            mock.patch.object(gate, "is_capturing", return_value=True),
            mock.patch.object(judging, "is_capturing", return_value=True),
        ):
            assert gather(POOL, ints(0, 9, -1), OFFSETS) == 1


def a_kernel_looks_in_the_call():
    """Without torch's reductions for what the kernel can look at, and with them for the rest."""

    @contract(
        Contract("pairs", clauses=[values("one", at_most(5)), values("many", distinct())]),
    )
    def pairs(one: Int[Tensor, " N"], many: Int[Tensor, " M"]) -> int:
        return 1

    spy = mock.Mock(side_effect=rows.first_breaches)
    right, long, repeated = ints(1, 5), torch.arange(5000), torch.arange(5000)
    repeated[4999] = 7
    with (
        on_a_device("sync"),
        mock.patch.object(launching, "reaches", mock.Mock(return_value=True)),
        mock.patch.object(gate, "first_breaches", spy),
    ):
        for _ in range(3):
            assert pairs(right, ints(1, 2)) == 1
        refused("one[1] is 6, expected at most 5", pairs, ints(1, 6), ints(1, 2))
        refused("many[2] is 1, expected no number twice", pairs, right, ints(1, 2, 1))
        assert spy.call_count == 0
        assert pairs(right, long) == 1
        assert [len(given.args[0]) for given in spy.call_args_list] == [1]
        refused("many[4999] is 7, expected no number twice", pairs, right, repeated)
        assert pairs(right, ints(3)) == 1
        assert tensorpact.value_report().sync == 5


def reported(name, mode):
    _, _, error, text = REPORTED[name]
    function, given = called(name)
    with on_a_device(mode):
        outcome = call(function.__tensorpact__, function, given, "compiled", "auto")
        if mode == "async" or error is None:
            assert outcome.raised is None, outcome.describe()
            assert outcome.accepted
        if mode == "async" and error is not None:
            found = refused(text)
            assert found.error is error
            assert isinstance(found, error.documented)
        elif error is not None:
            assert (outcome.documented, str(outcome.raised)) == (error, text)
        tensorpact.synchronize()


def a_capture_is_left_alone():
    """A21: no copy on the host is asked for, and nothing is read."""
    function, given = called("R29-flash")
    with (
        on_a_device("sync"),
        mock.patch.object(gate, "is_capturing", return_value=True),
        mock.patch.object(judging, "is_capturing", return_value=True),
    ):
        assert function(**given).shape == (5, 4, 16)
        assert tensorpact.value_report().skipped == {"a graph is being captured": 1}


def no_offsets():
    assert look([Row(RANGE, ints(9, 9), 0, 5, mode=SPAN, active=ints())]) is None


def a_default_device():
    row = Row(RANGE, ints(9), 0, 5)
    with torch.device("meta"):
        assert look([row]).value == 9
        assert rows.as_float(0x7F80, torch.zeros(2, dtype=torch.bfloat16, device="cpu")) == float("inf")
        assert rows.as_tensor([1, 2]).tolist() == [1, 2]


def a_launch_that_fails():
    """It takes no place away from later ones, and its copy on the device is not relied on."""
    with on_a_device(), mock.patch.object(mailbox, "SLOTS", 2):
        with mock.patch.object(pending, "box_of", return_value=mailbox.Mailbox(CPU, 2)):
            for _ in range(3):
                fails = mock.patch.object(launching, "start", side_effect=RuntimeError("no memory"))
                with fails, pytest.raises(RuntimeError, match="no memory"):
                    gather(POOL, ints(0, 9, -1), OFFSETS)
            assert not pending.box_of(CPU)._resident
            for rows_of in range(3, 9):
                gather(torch.zeros(rows_of, 2), ints(0, 1, -1), OFFSETS)
        assert tensorpact.value_report().skipped == {}


def a_late_launch_holds_up_no_other():
    box = mailbox.Mailbox(CPU, 3)
    made = [table.encode([Row(RANGE, ints(1), 0, upper)])[0] for upper in range(9)]
    assert box.lay(made[0], 1, captured=False, again=False).stamp
    for number, later in enumerate(made[1:], 2):
        laid = box.lay(later, number, captured=False, again=False)
        box.words[laid.stamp] = number
    assert not box._has_run(box._resident[made[0].words])


LIMIT = 5


def rules_that_read_more_than_arguments(where):
    limit, source = [5], (lambda N: limit[0]) if where == "closure" else (lambda N: LIMIT)
    bound = "most" if where == "let" else source
    derived = [let(most=lambda N: limit[0])] if where == "let" else []

    @contract(Contract("bounded", clauses=[*derived, values("x", at_most(bound))]))
    def bounded(x: Int[Tensor, " N"]):
        return 1

    with on_a_device():
        for _ in range(9):
            bounded(ints(1, 2))
        tensorpact.synchronize()
        limit[0] = 1
        with mock.patch.dict(globals(), {"LIMIT": 1}):
            bounded(ints(1, 2))
        with pytest.raises(ContractViolation, match="expected at most"):
            tensorpact.synchronize()


def calls_that_are_left_out_do_not_keep_others():
    with on_a_device(), mock.patch.object(pending, "_REMEMBERED", 4):
        for _ in range(5):
            for _ in range(4):
                gather(POOL, ints(0, 1, -1), OFFSETS)
            with mock.patch.object(mailbox.Mailbox, "lay", return_value=None):
                for _ in range(4):
                    gather(POOL, ints(0, 1, -1), OFFSETS)
        assert len(pending._calls) <= 4


def reasons_do_not_grow_with_shapes():
    @contract(Contract("blocks", clauses=[values("x", at_most(5))]))
    def blocks(x: Int[Tensor, "a b c"]):
        return 1

    with on_a_device():
        for size in range(1, 5):
            blocks(torch.zeros(2 + size, 7, 8, dtype=torch.int32)[:, :6:3, ::2])
        assert list(tensorpact.value_report().skipped.values()) == [4]


class Elsewhere(Tensor):
    """A tensor that says it is on another device."""

    device = property(lambda self: torch.device(PLACE))


PLACE = "cpu:1"


@contract(Contract("two", clauses=[values("x", at_most(5)), values("y", at_most(5))]))
def two(x: Int[Tensor, " N"], y: Int[Tensor, " M"]):
    return 1


def several_devices():
    spy = mock.Mock(side_effect=launching.start)
    with on_a_device(), mock.patch.object(launching, "start", spy):
        for _ in range(9):
            two(ints(1), ints(2).as_subclass(Elsewhere))
        tensorpact.synchronize()
        assert {(given.args[0].device, given.args[4].count) for given in spy.call_args_list} == {
            (CPU, 1),
            (torch.device("cpu", 1), 1),
        }
        two(ints(1), ints(7).as_subclass(Elsewhere))
        refused("y[0] is 7, expected at most 5")


def a_device_without_a_kernel():
    with on_a_device(), mock.patch.dict(globals(), {"PLACE": "xpu:0"}):
        two(ints(1), ints(7).as_subclass(Elsewhere))
        tensorpact.synchronize()
        assert tensorpact.value_report().skipped == {"no kernel for numbers on xpu": 1}


def more_streams_than_counters():
    spy = mock.Mock(side_effect=rows.first_breaches)
    with (
        on_a_device("sync"),
        mock.patch.object(mailbox, "STREAMS", 1),
        mock.patch.object(synchronous, "_boxes", {}),
        mock.patch.object(launching, "reaches", mock.Mock(return_value=True)),
        mock.patch.object(launching, "stream_of", mock.Mock(side_effect=itertools.count())),
        mock.patch.object(gate, "first_breaches", spy),
    ):
        for _ in range(3):
            assert gather(POOL, ints(0, 7, -1), OFFSETS) == 1
        assert (spy.call_count, tensorpact.value_report().sync) == (2, 3)
        refused("indices[1] is 9, expected below P = 8", gather, POOL, ints(0, 9, -1), OFFSETS)


class Batch:
    """What a model hands from layer to layer."""


def objects_are_not_kept_alive():
    @contract(Contract("step", clauses=[values("x", at_most(5))]))
    def step(x: Int[Tensor, " N"], batch: object):
        return 1

    with on_a_device():
        batches = [Batch(), Batch()]
        step(ints(1, 2), batches[0])
        step(ints(1, 7), batches[1])
        refused("x[1] is 7, expected at most 5")
        alive = [weakref.ref(batch) for batch in batches]
        del batches
        gc.collect()
        assert [batch() for batch in alive] == [None, None]


def a_let_that_reads_numbers():
    """Its clause cannot be told of later in full, but what was found is."""

    @contract(Contract("topped", clauses=[let(top=lambda y: int(y.max())), values("x", at_most("top"))]))
    def topped(x: Int[Tensor, " N"], y: Int[Tensor, " M"]):
        return 1

    with on_a_device():
        topped(ints(1, 9), ints(3, 4))
        with pytest.raises(
            ContractViolation, match=r"call 1 of .*topped breaks its contract: .* place 1 found 9, the limit is 4"
        ):
            tensorpact.synchronize()
        tensorpact.synchronize()


def torch_looks_where_the_kernel_does_not_start():
    spy = mock.Mock(side_effect=rows.first_breaches)
    with (
        on_a_device("sync"),
        mock.patch.object(synchronous, "_boxes", {}),
        mock.patch.object(launching, "reaches", mock.Mock(return_value=True)),
        mock.patch.object(launching, "start", side_effect=RuntimeError("no compiler")),
        mock.patch.object(gate, "first_breaches", spy),
    ):
        for _ in range(20):
            assert gather(POOL, ints(0, 7, -1), OFFSETS) == 1
        found = tensorpact.value_report()
        assert (spy.call_count, found.sync, sum(found.skipped.values())) == (20, 20, 20)
        refused("indices[1] is 9, expected below P = 8", gather, POOL, ints(0, 9, -1), OFFSETS)


def a_child_leaves_errors_to_its_parent():
    with on_a_device():
        gather(POOL, ints(0, 9, -1), OFFSETS)
        child = os.fork()
        if child == 0:
            os._exit(int(pending.waiting() or pending.pending() > 0))
        assert os.waitpid(child, 0)[1] == 0
        refused("indices[1] is 9, expected below P = 8")


for seed in range(2):
    case(one_by_one, seed=seed)
for function in (
    edges_of_64_bits,
    first_of_several,
    ring_is_bounded,
    one_after_the_other,
    a_remembered_signature,
    a_tensor_that_is_given_twice,
    a_table_that_comes_again_is_on_the_device,
    a_table_that_finds_no_room_on_the_device,
    a_kernel_looks_in_the_call,
    more_than_a_table_holds,
    threads,
    no_offsets,
    a_default_device,
    a_launch_that_fails,
    a_late_launch_holds_up_no_other,
    calls_that_are_left_out_do_not_keep_others,
    reasons_do_not_grow_with_shapes,
    several_devices,
    a_device_without_a_kernel,
    more_streams_than_counters,
    torch_looks_where_the_kernel_does_not_start,
    a_child_leaves_errors_to_its_parent,
    objects_are_not_kept_alive,
    a_let_that_reads_numbers,
):
    case(function)
for function in (a_captured_launch_tells_of_each_run, a_first_call_is_not_captured, the_stack_if_asked):
    case(function)
for where in ("closure", "global", "let"):
    case(rules_that_read_more_than_arguments, where=where)
case(calls_in_flight_are_bounded)
case(a_capture_is_left_alone)
case(a_call_that_is_no_longer_remembered)
for mode in ("compiled", "beartype"):
    case(told_at_the_poll, mode=mode)
    case(told_at_the_next_call, mode=mode)
    case(read_in_the_call, mode=mode)
for name in REPORTED:
    for mode in ("sync", "async"):
        case(reported, name=name, mode=mode)

if __name__ == "__main__":
    interpreted.main(CASES)
