"""Runs the checker kernel in Triton's interpreter and prints one JSON line a case.

Started by test_values_interpreter.py in a process of its own: Triton reads TRITON_INTERPRET once, at import.
"""

import random

import interpreted
import torch

from tensorpact._values import launching, mailbox, rows, table
from tensorpact._values.rows import COLUMNS, DISTINCT, FINITE, MULTIPLE, ORDER, RANGE, SAME_EMPTY, SPAN, Row

CASES = {}
CPU = torch.device("cpu")


def case(function, /, **arguments):
    label = ",".join(f"{key}={value}" for key, value in arguments.items())
    CASES[f"{function.__name__}[{label}]"] = (function, arguments)


def ints(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


def look(given, box=None):
    """The first record of one launch, or None."""
    box = box or mailbox.Mailbox(CPU, 4)
    made = table.encode(given)
    place, counter = box.room(False, made)
    words = made.words[:]
    for at, tensor in made.pointers:
        words[at] = tensor.data_ptr()
    box.write(place, 7, words)
    launching.start(box, place, counter, made.count, made.parts)
    assert box.words[place + 2] == 7
    return box.read()


def random_row(rng):
    """A row and tensors of any width, stride and kind, with few enough numbers that breaches and passes both occur."""
    kind = rng.choice((RANGE, RANGE, RANGE, ORDER, MULTIPLE, DISTINCT, SAME_EMPTY, FINITE))
    count = rng.choice((0, 1, 2, 7, 64, 65, 300, 700))
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
    choice = rng.randrange(6)
    if choice == 0:
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
    return row


def one_by_one(seed):
    rng = random.Random(seed)
    broken = 0
    for _ in range(30):
        row = random_row(rng)
        place, value, limit = rows.reduced(row).tolist()
        found = look([row])
        if place < 0:
            assert found is None, (row, found)
            continue
        broken += 1
        assert found is not None, (row, place, value)
        assert (found.place, found.limit) == (place, limit), (row, found, place, limit)
        if row.kind == FINITE:
            as_float = rows.as_float(found.value, row.numbers)
            assert as_float != as_float or abs(as_float) == float("inf")
        else:
            assert found.value == value, (row, found, value)
    assert broken > 5


def lists_agree(seed):
    rng = random.Random(seed)
    for _ in range(200):
        row = random_row(rng)
        if row.kind != FINITE:
            place, value, limit = rows.reduced(row).tolist()
            found = rows._in_sequence(rows._listed(row))
            assert found == (None if place < 0 else rows.Breach(place, value, limit)), (row, found, place, value, limit)


def first_of_several():
    right, late, early = Row(RANGE, ints(1, 2), 0, 5), Row(RANGE, ints(*range(1000)), 0, 900), Row(RANGE, ints(9), 0, 5)
    assert look([right, right]) is None
    found = look([right, late, early])
    assert (found.row, found.place, found.value, found.limit) == (1, 901, 901, 900)
    assert (look([right, early, late]).row, look([early]).run) == (1, 1)


def ring_is_bounded():
    box = mailbox.Mailbox(CPU, 4)
    wrong, count = [Row(RANGE, ints(9), 0, 5)], mailbox.RING + 5
    for i in range(count):
        made = table.encode(wrong)
        place, counter = box.room(False, made)
        words = made.words[:]
        words[made.pointers[0][0]] = made.pointers[0][1].data_ptr()
        box.write(place, i + 1, words)
        launching.start(box, place, counter, 1, 1)
    assert box.dropped == 5
    calls = []
    while (record := box.read()) is not None:
        calls.append(record.call)
    assert calls == list(range(1, mailbox.RING + 1))
    for _ in range(3):
        assert look(wrong, box).value == 9
    assert not box.has_mail()


for seed in range(4):
    case(one_by_one, seed=seed)
    case(lists_agree, seed=seed)
case(first_of_several)
case(ring_is_bounded)

if __name__ == "__main__":
    interpreted.main(CASES)
