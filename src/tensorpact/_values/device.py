"""Triton kernel that looks at the numbers of one call: every check of a table, in one launch.

A check is 32 words of a table; ``table.py`` says what each of them is. The last program of a launch writes the first
entry that breaks a check into a mailbox, in memory of the host that the device can reach.
"""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

import triton
import triton.language as tl

WORDS = tl.constexpr(32)
RECORD = tl.constexpr(8)
MAIL = tl.constexpr(16)
#: Word of the counters that says how many records the host has read, as far as the device knows.
READ = tl.constexpr(2)
NONE = tl.constexpr(1 << 62)
PLACES = tl.constexpr(44)
PLACE_BITS = tl.constexpr((1 << 44) - 1)
LOWEST = tl.constexpr(-(2**63))
HIGHEST = tl.constexpr(2**63 - 1)
PAIRS = tl.constexpr(16)
ROUND = tl.constexpr(64)

ORDER = tl.constexpr(1)
MULTIPLE = tl.constexpr(2)
DISTINCT = tl.constexpr(3)
FINITE = tl.constexpr(4)
SAME_EMPTY = tl.constexpr(5)
STEPS = tl.constexpr(6)
BOUND_STEPS = tl.constexpr(1)
PLUS_STEPS = tl.constexpr(2)
LENGTH_STEPS = tl.constexpr(4)
SPAN = tl.constexpr(1)
COLUMNS = tl.constexpr(2)
LIVE = tl.constexpr(3)
NEGATIVE = tl.constexpr(1)
EXACT = tl.constexpr(2)
BELOW = tl.constexpr(1)
ABOVE = tl.constexpr(2)
UNSIGNED = tl.constexpr(4)
#: What a program that has found something adds to the number of those that are done.
FOUND = tl.constexpr(1 << 32)
INTEGERS = ["mailbox", "counts", "table", "counter", "call", "stamp", "programs", *(f"t{i}" for i in range(16))]


@no_type_check
@triton.jit
def _address(place, first, tensors):
    """Address of one of the tensors of a launch, 0 for none."""
    found = tl.where(place > 0, first, 0)
    for other in tl.static_range(len(tensors)):
        found = tl.where(place == other + 2, tensors[other], found)
    return found


@no_type_check
@triton.jit
def _load(address, code, offsets, mask):
    """Numbers of any width, read as one or two aligned words of 32 bits, so that no width needs code of its own."""
    places = address + offsets * tl.where(code < 2, 4 << code, tl.where(code == 2, 2, 1))
    words = (places & -4).to(tl.pointer_type(tl.uint32))
    low = tl.load(words, mask=mask, other=0).to(tl.int64)
    wide = tl.zeros_like(places) + code == 1
    high = tl.load(words + 1, mask=mask & wide, other=0).to(tl.int64)
    left = tl.where(code == 0, 32, tl.where(code == 1, 0, tl.where(code == 2, 48, 56)))
    value = (((high << 32) | low) >> ((places & 3) * 8)) << left >> left
    return tl.where(code == UNSIGNED, value & 0xFF, value)


@no_type_check
@triton.jit
def _step(here, behind):
    """How far an offset is from the next one; stops at the largest and the smallest number of 64 bits."""
    wrapped = behind - here
    return tl.where(((behind ^ here) & (behind ^ wrapped)) < 0, (behind >> 63) ^ HIGHEST, wrapped)


@no_type_check
@triton.jit
def _of_rows(address, code, stride, rows, mask, steps):
    """What another tensor says for each row, or how far its offsets are apart; zero where there is none."""
    value = tl.zeros_like(rows)
    if address != 0:
        value = _load(address, code, rows * stride, mask)
        if steps != 0:
            value = _step(value, _load(address, code, (rows + 1) * stride, mask))
    return value


@no_type_check
@triton.jit
def _total(one, other):
    """A sum that stops at the largest and the smallest number of 64 bits."""
    wrapped = one + other
    # It has wrapped where its sign is that of neither part; the shift leaves the sign alone.
    return tl.where(((one ^ wrapped) & (other ^ wrapped)) < 0, (one >> 63) ^ HIGHEST, wrapped)


@no_type_check
@triton.jit
def _counts(entry, padding, sentinel):
    """Which entries are no padding."""
    return ((padding != NEGATIVE) | (entry >= 0)) & ((padding != EXACT) | (entry != sentinel))


@no_type_check
@triton.jit
def _first_repeat(address, code, end, stride, padding, sentinel, part, parts):
    """The first place of this program whose number stands further in front too."""
    found = tl.full((PAIRS,), NONE, tl.int64)
    for start in range(part * PAIRS, end, parts * PAIRS):
        places = start + tl.arange(0, PAIRS).to(tl.int64)
        mine = _load(address, code, places * stride, places < end)
        counts = (places < end) & _counts(mine, padding, sentinel)
        equal = tl.full((PAIRS, ROUND), 0, tl.int1)
        for other in range(0, start + PAIRS, ROUND):
            others = other + tl.arange(0, ROUND).to(tl.int64)
            theirs = _load(address, code, others * stride, others < end)
            equal = equal | ((mine[:, None] == theirs[None, :]) & (others[None, :] < places[:, None]))
        repeated = (tl.max(equal.to(tl.int32), axis=1) > 0) & counts
        found = tl.minimum(found, tl.where(repeated, places, NONE))
    return tl.min(found, axis=0)


@no_type_check
@triton.jit
def records_read(memory, counters):
    """How many records the host has read, the same for all warps of a program.

    A plain load gives each warp what it finds at its own time. An atomic has one answer for all of them, but the memory
    of the host may not have any; so the largest count that was seen is kept in a word of the device.
    """
    tl.atomic_max(counters + READ, tl.load(memory, volatile=True))
    return tl.atomic_add(counters + READ, 0)


@no_type_check
@triton.jit
def write_record(memory, counters, call, key, value, limit, runs, RING: tl.constexpr):
    """Write the first violation of a launch where there is room, else count it; whether there was."""
    ticket = tl.atomic_add(counters, 0)
    state = 0
    while state == 0:
        if ticket - records_read(memory, counters) >= RING:
            state = 2
        else:
            seen = tl.atomic_cas(counters, ticket, ticket + 1)
            if seen == ticket:
                state = 1
            else:
                ticket = seen
    if state == 1:
        # Every word carries the number of its record, so that a reader sees for itself which are there.
        tag = ticket % 65535 + 1
        record = memory + MAIL + (ticket % RING) * RECORD
        tl.store(record + 0, (call << 16) | tag)
        tl.store(record + 1, ((key >> PLACES) << 16) | tag)
        tl.store(record + 2, ((key & PLACE_BITS) << 16) | tag)
        tl.store(record + 3, (((value >> 32) & 0xFFFFFFFF) << 16) | tag)
        tl.store(record + 4, ((value & 0xFFFFFFFF) << 16) | tag)
        tl.store(record + 5, (((limit >> 32) & 0xFFFFFFFF) << 16) | tag)
        tl.store(record + 6, ((limit & 0xFFFFFFFF) << 16) | tag)
        tl.store(record + 7, (runs << 16) | tag)
    else:
        tl.store(memory + 1, tl.atomic_add(counters + 1, 1) + 1)
    return state == 1


@no_type_check
@triton.jit(do_not_specialize=INTEGERS)
def check_values_kernel(
    mailbox: tl.int64,
    counts: tl.int64,
    table: tl.int64,
    counter: tl.int64,
    call: tl.int64,
    stamp: tl.int64,
    programs: tl.int64,
    t0: tl.int64,
    t1: tl.int64,
    t2: tl.int64,
    t3: tl.int64,
    t4: tl.int64,
    t5: tl.int64,
    t6: tl.int64,
    t7: tl.int64,
    t8: tl.int64,
    t9: tl.int64,
    t10: tl.int64,
    t11: tl.int64,
    t12: tl.int64,
    t13: tl.int64,
    t14: tl.int64,
    t15: tl.int64,
    RING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Look at the numbers of one call, a program for every block of a check.

    All arguments are plain numbers, addresses too: a launch then costs the host least.
    """
    memory, counters = mailbox.to(tl.pointer_type(tl.int64)), counts.to(tl.pointer_type(tl.int64))
    others = (t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15)
    part = tl.program_id(1)
    lines = table.to(tl.pointer_type(tl.int64))
    slot = counters + counter
    key = tl.full((), NONE, tl.int64)
    # The second round is for the program that comes last: it looks once more at the first place that any has found.
    line = tl.program_id(0).to(tl.int64)
    again = 0
    while again < 2:
        words = lines + line * WORDS
        kind, code, end, size = tl.load(words), tl.load(words + 2), tl.load(words + 3), tl.load(words + 4)
        stride, step = tl.load(words + 7), tl.load(words + 8)
        least, most, longer = tl.load(words + 11), tl.load(words + 12), tl.load(words + 13)
        steps, parts, side = tl.load(words + 10), tl.load(words + 14), tl.load(words + 15)
        bound_code, bound_step = tl.load(words + 17), tl.load(words + 18)
        plus_code, plus_step = tl.load(words + 20), tl.load(words + 21)
        active_code, active_step = tl.load(words + 23), tl.load(words + 24)
        longer_code, longer_step = tl.load(words + 6), tl.load(words + 9)
        mode, per = tl.load(words + 25), tl.load(words + 26)
        padding, sentinel = tl.load(words + 27), tl.load(words + 28)
        plus, begin = tl.load(words + 29), tl.load(words + 31)
        address, bound_at = _address(tl.load(words + 1), t0, others), _address(tl.load(words + 16), t0, others)
        plus_at, active_at = _address(tl.load(words + 19), t0, others), _address(tl.load(words + 22), t0, others)
        longer_at = _address(tl.load(words + 5), t0, others)
        if mode == SPAN:
            ends = tl.arange(0, 2).to(tl.int64)
            offsets = _load(active_at, active_code, ends * active_step, (ends >= 0) & (ends + active_at != 0))
            begin = tl.maximum(begin, tl.sum(tl.where(ends == 0, offsets, 0), axis=0))
            end = tl.minimum(end, tl.sum(tl.where(ends == 1, offsets, 0), axis=0))
        begin += part * BLOCK
        if again == 1:
            begin = key & PLACE_BITS
            end = begin + 1
        first = tl.full((BLOCK,), NONE, tl.int64)
        if (kind == DISTINCT) & (again == 0):
            first = tl.minimum(first, _first_repeat(address, code, end, stride, padding, sentinel, part, parts))
            end = begin
        values, limits = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64)
        for start in range(begin, end, parts * BLOCK):
            places = start + tl.arange(0, BLOCK).to(tl.int64)
            mask = places < end
            rows, columns = places, tl.zeros_like(places)
            if size > 0:
                rows = places // size
                columns = places - rows * size
            offsets = rows * stride + columns * step
            entry = _load(address, code, offsets, mask)
            if kind == STEPS:
                entry = _step(entry, _load(address, code, offsets + stride, mask))
            added = _of_rows(plus_at, plus_code, plus_step, rows, mask, steps & PLUS_STEPS)
            values = _total(_total(entry, plus), added)
            bound = _of_rows(bound_at, bound_code, bound_step, rows, mask, steps & BOUND_STEPS)
            lower = _total(least, tl.where((side & BELOW) != 0, bound, 0))
            upper = _total(most, tl.where((side & ABOVE) != 0, bound, 0))
            limits = tl.where(values < lower, lower, upper)
            broken = (values < lower) | (values > upper)
            if (kind == ORDER) | (kind == SAME_EMPTY):
                # Both look along one axis: at the entry before, or at the one behind.
                beside = _load(address, code, offsets + tl.where(kind == ORDER, -stride, stride), mask)
                if kind == ORDER:
                    limits = beside
                    broken = values < beside
                else:
                    values = beside - entry
                    limits = _of_rows(bound_at, bound_code, bound_step, rows + 1, mask, 0) - bound
                    broken = (values == 0) != (limits == 0)
            elif kind == MULTIPLE:
                limits = lower
                broken = (lower < 1) | (values % tl.maximum(lower, 1) != 0)
            elif kind == FINITE:
                broken = (values & most) == most
            elif kind == DISTINCT:
                limits = values
            if mode >= COLUMNS:
                active = _total(_of_rows(active_at, active_code, active_step, rows, mask, 0), longer)
                active = _total(active, _of_rows(longer_at, longer_code, longer_step, rows, mask, steps & LENGTH_STEPS))
                broken = broken & tl.where(mode == LIVE, active >= 0, columns * per < active)
            broken = broken & mask & _counts(entry, padding, sentinel)
            first = tl.minimum(first, tl.where(broken, places, NONE))
        if again == 1:
            lane = tl.arange(0, BLOCK)
            value = tl.sum(tl.where(lane == 0, values, 0), axis=0)
            limit = tl.sum(tl.where(lane == 0, limits, 0), axis=0)
            write_record(memory, counters, call, key, value, limit, tl.load(slot + 2, volatile=True), RING)
            again = 2
        else:
            again = 2
            # A check may have fewer programs than the longest one of the launch.
            if part < parts:
                found = tl.min(first, axis=0)
                done = tl.full((), 0, tl.int64) + programs - 1
                if found < NONE:
                    tl.atomic_min(slot, (line << PLACES) + found)
                    # Who comes last has to see the place, and that there is one.
                    if programs > 1:
                        done = tl.atomic_add(slot + 1, FOUND + 1)
                elif programs > 1:
                    done = tl.atomic_add(slot + 1, 1, sem="relaxed")
                if (done % FOUND) == programs - 1:
                    tl.atomic_add(slot + 2, 1, sem="relaxed")
                    if programs > 1:
                        tl.store(slot + 1, 0)
                    if (found < NONE) | (done >= FOUND):
                        key = tl.atomic_xchg(slot, NONE)
                        line = key >> PLACES
                        again = 1
                    elif stamp > 0:
                        tl.store(memory + stamp, call)
    if (key < NONE) & (stamp > 0):
        tl.store(memory + stamp, call)
