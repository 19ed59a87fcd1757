"""Triton kernel that looks at the numbers of one call: every check of a table, in one launch.

A check is 32 words of a table in host memory that the device can read; ``table.py`` says what each of them is. The last
program of a launch writes the first entry that breaks a check into a mailbox, also in host memory.
"""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

import triton
import triton.language as tl

WORDS = tl.constexpr(32)
HEADER = tl.constexpr(8)
RECORD = tl.constexpr(8)
MAIL = tl.constexpr(16)
NONE = tl.constexpr(1 << 62)
PLACES = tl.constexpr(44)
PLACE_BITS = tl.constexpr((1 << 44) - 1)
LOWEST = tl.constexpr(-(2**63))
HIGHEST = tl.constexpr(2**63 - 1)
PAIRS = tl.constexpr(64)

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


@no_type_check
@triton.jit
def _word(words, index: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, WORDS) == index, words, 0), axis=0)


@no_type_check
@triton.jit
def _wide(address, code, offsets, mask):
    """Numbers of 32 or 64 bits."""
    value = tl.zeros_like(offsets)
    if code == 0:
        value = tl.load(address.to(tl.pointer_type(tl.int32)) + offsets, mask=mask, other=0).to(tl.int64)
    else:
        value = tl.load(address.to(tl.pointer_type(tl.int64)) + offsets, mask=mask, other=0)
    return value


@no_type_check
@triton.jit
def _load(address, code, offsets, mask):
    """Numbers of any width."""
    value = tl.zeros_like(offsets)
    if code < 2:
        value = _wide(address, code, offsets, mask)
    elif code == 2:
        value = tl.load(address.to(tl.pointer_type(tl.int16)) + offsets, mask=mask, other=0).to(tl.int64)
    elif code == 3:
        value = tl.load(address.to(tl.pointer_type(tl.int8)) + offsets, mask=mask, other=0).to(tl.int64)
    else:
        value = tl.load(address.to(tl.pointer_type(tl.uint8)) + offsets, mask=mask, other=0).to(tl.int64)
    return value


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
        value = _wide(address, code, rows * stride, mask)
        if steps != 0:
            value = _step(value, _wide(address, code, (rows + 1) * stride, mask))
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
    found = tl.full((), NONE, tl.int64)
    for start in range(part * PAIRS, end, parts * PAIRS):
        places = start + tl.arange(0, PAIRS).to(tl.int64)
        mine = _wide(address, code, places * stride, places < end)
        counts = (places < end) & _counts(mine, padding, sentinel)
        for other in range(0, start + PAIRS, PAIRS):
            others = other + tl.arange(0, PAIRS).to(tl.int64)
            theirs = _wide(address, code, others * stride, others < end)
            equal = (mine[:, None] == theirs[None, :]) & (others[None, :] < places[:, None]) & counts[:, None]
            found = tl.minimum(found, tl.min(tl.min(tl.where(equal, places[:, None], NONE), axis=1), axis=0))
    return found


@no_type_check
@triton.jit
def write_record(memory, counters, call, key, value, limit, runs, RING: tl.constexpr):
    """Write the first violation of a launch where there is room, else count it; whether there was."""
    ticket = tl.load(counters, volatile=True)
    state = 0
    while state == 0:
        if ticket - tl.load(memory, volatile=True) >= RING:
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
@triton.jit(do_not_specialize=["table", "counter"])
def check_values_kernel(memory, counters, table, counter, RING: tl.constexpr, BLOCK: tl.constexpr):
    part, parts = tl.program_id(1), tl.num_programs(1)
    header = memory + table
    slot = counters + counter
    key = tl.full((), NONE, tl.int64)
    # The second round is for the program that comes last: it looks once more at the first place that any has found.
    line = tl.program_id(0).to(tl.int64)
    again = 0
    while again < 2:
        words = tl.load(header + HEADER + line * WORDS + tl.arange(0, WORDS))
        kind, address, code, end = _word(words, 0), _word(words, 1), _word(words, 2), _word(words, 3)
        size, stride, step = _word(words, 4), _word(words, 7), _word(words, 8)
        least, most, side = _word(words, 11), _word(words, 12), _word(words, 15)
        bound_at, bound_code, bound_step = _word(words, 16), _word(words, 17), _word(words, 18)
        plus_at, plus_code, plus_step = _word(words, 19), _word(words, 20), _word(words, 21)
        active_at, active_code, active_step = _word(words, 22), _word(words, 23), _word(words, 24)
        longer_at, longer_code, longer_step = _word(words, 5), _word(words, 6), _word(words, 9)
        steps, longer = _word(words, 10), _word(words, 13)
        mode, per = _word(words, 25), _word(words, 26)
        padding, sentinel, plus, begin = _word(words, 27), _word(words, 28), _word(words, 29), _word(words, 31)
        if mode == SPAN:
            ends = tl.arange(0, 2).to(tl.int64)
            offsets = _wide(active_at, active_code, ends * active_step, ends >= 0)
            begin = tl.maximum(begin, tl.sum(tl.where(ends == 0, offsets, 0), axis=0))
            end = tl.minimum(end, tl.sum(tl.where(ends == 1, offsets, 0), axis=0))
        begin += part * BLOCK
        if again == 1:
            begin = key & PLACE_BITS
            end = begin + 1
        found = tl.full((), NONE, tl.int64)
        if (kind == DISTINCT) & (again == 0):
            found = _first_repeat(address, code, end, stride, padding, sentinel, part, parts)
            end = begin
        value, limit = tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
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
            found = tl.minimum(found, tl.min(tl.where(broken, places, NONE), axis=0))
            value = tl.max(tl.where(places == start, values, LOWEST), axis=0)
            limit = tl.max(tl.where(places == start, limits, LOWEST), axis=0)
        if again == 1:
            write_record(memory, counters, tl.load(header), key, value, limit, tl.atomic_add(slot + 2, 0), RING)
            again = 2
        else:
            again = 2
            if found < NONE:
                tl.atomic_min(slot, (line << PLACES) + found)
            if tl.atomic_add(slot + 1, 1) == tl.num_programs(0) * parts - 1:
                key = tl.atomic_xchg(slot, NONE)
                tl.atomic_xchg(slot + 1, 0)
                tl.atomic_add(slot + 2, 1)
                if key < NONE:
                    line = key >> PLACES
                    again = 1
                else:
                    tl.store(header + 2, tl.load(header))
    if key < NONE:
        tl.store(header + 2, tl.load(header))
