"""Device function by which a kernel reports a number that it masks; ``kernel_flag`` says what it is given."""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

import triton
import triton.language as tl

from .device import PLACES, records_read, write_record

RING = tl.constexpr(64)
#: Counters in front of the words that say who has told, and half as many of these as there are.
FIRST = tl.constexpr(3)
HALF = tl.constexpr(512)


@no_type_check
@triton.jit
def tell(memory, counters, call, check, place, value, limit):
    """Write a number that breaks a check into the mailbox, unless its call has told of one already.

    A captured call tells again when the host has read what it told before.

    Args:
        memory (pointer): The mailbox.
        counters (pointer): Its counters.
        call (scalar): Number of the call, below zero in a graph.
        check (scalar): Place of the check among those that the launch named.
        place (scalar): Place of the number in its tensor, counted along all axes.
        value (scalar): The number.
        limit (scalar): The largest or smallest one that would have been right.
    """
    captured = call < 0
    number = tl.where(captured, -call, call).to(tl.int64)
    word = counters + FIRST + tl.where(captured, HALF, 0) + number % HALF
    # An atomic has one answer for all warps of a program, which must go one way: there are barriers on it.
    seen = tl.atomic_add(word, 0)
    fresh = tl.where(captured, seen <= records_read(memory, counters), seen != number)
    if fresh:
        # The next record at the earliest.
        mark = tl.where(captured, tl.load(counters, volatile=True) + 1, number)
        if tl.atomic_cas(word, seen, mark) == seen:
            # Constants become numbers of 64 bits by being added to one.
            wide = number * 0
            key = ((wide + check) << PLACES) + place
            told = write_record(memory, counters, number, key, wide + value, wide + limit, wide, RING)
            if captured & (told == 0):
                # Nothing will be read of it: the next replay tells.
                tl.store(word, 0)
