"""Runs kernels that report what they mask in Triton's interpreter; started by test_in_kernel_interpreter.py.

The guard of a right call offers it to the launch behind it; then the numbers go wrong, and the launch runs.
"""

import threading
from unittest import mock

import hostile
import interpreted
import pytest
from drained import drained
from jaxtyping import Float, Int
from torch import Tensor

import tensorpact
from tensorpact import Contract, ContractViolation, contract
from tensorpact._values import counts, in_kernel, pending
from tensorpact._values.mailbox import RING
from tensorpact.clauses import at_least, at_most, less_than, let, upto, values, within
from tensorpact.reporting import kernel_flag
from tensorpact_contracts import packed_attention, replayssm, sparse_prefill
from tensorpact_kernels import (
    fused_infer_attention_varlen,
    fused_recurrent_kda_packed_decode,
    fused_recurrent_kda_replayssm_decode,
    sparse_attn_v4_paged_decode,
    sparse_attn_v4_paged_prefill,
)
from tensorpact_kernels.packed_attention.launch import plan_tiles
from tensorpact_kernels.replayssm import launch

CASES = {}
MAKE = hostile.portable()
ENTRIES = {
    "sparse prefill": sparse_attn_v4_paged_prefill,
    "sparse prefill, wide indices": sparse_attn_v4_paged_prefill,
    "sparse decode": sparse_attn_v4_paged_decode,
    "sparse decode, split": sparse_attn_v4_paged_decode,
    "replay": fused_recurrent_kda_replayssm_decode,
    "replay, narrow slots": fused_recurrent_kda_replayssm_decode,
    "state": fused_recurrent_kda_packed_decode,
    "packed": fused_infer_attention_varlen,
}
OWN = ("config", "path", "kv_splits", "causal", "return_lse", "softmax_scale")


def case(function, **arguments):
    label = ",".join(str(v) for k, v in arguments.items() if k not in ("text", "error"))
    CASES[f"{function.__name__}[{label}]"] = (function, arguments)


def offered(name, scenario, arguments):
    """Have the guard of the entry point judge a right call, on the reference."""
    options = {k: v for k, v in scenario.options.items() if k not in OWN}
    if name.startswith("sparse"):
        options["softmax_scale"] = scenario.options["softmax_scale"]
    with tensorpact.use_backend("naive"):
        ENTRIES[name](**{k: v.clone() if k in scenario.held else v for k, v in arguments.items()}, **options)


def run(name, changes):
    """Launch a call whose numbers go wrong behind its guard."""
    scenario = MAKE[name]("cpu")
    arguments = {k: v.clone() for k, v in scenario.arguments.items()}
    offered(name, scenario, arguments)
    for tensor, place, number in changes:
        arguments[tensor].view(-1)[place] = number
    if name == "packed":
        # The plan is what reads boundaries, and what reports them.
        plan_tiles(*(arguments[x] for x in ("q", "k", "cu_seqlens_q", "cu_seqlens_k")), 16, causal=True)
    else:
        scenario.run(arguments, scenario.options)


def told(name, tensor, place, number, text, error):
    """One record for a call, whatever number of programs meets the number."""
    run(name, [(tensor, place, number)])
    (found,) = drained()
    assert str(found) == text, str(found)
    assert found.error is error
    assert found.call_number == 1
    assert found.__notes__[-1] == "found in the kernel of call 1, which masked it", found.__notes__
    assert tensorpact.value_report().in_kernel == 1


def nothing_told(name):
    run(name, [])
    assert drained() == []
    assert tensorpact.value_report().in_kernel == 1


def padding_is_none_of_it():
    run("sparse prefill", [("kv_indices_prefix", 3, -7), ("kv_indices_extend", 2, -(2**31))])
    run("replay", [("ssm_state_indices", 1, -5), ("write_pos", 1, 99)])
    assert drained() == []


def each_call_tells_of_itself():
    found = []
    for number in (23, 40, 99):
        run("sparse decode", [("kv_indices", 7, number)])
        found += drained()
    assert [e.call_number for e in found] == [1, 2, 3]
    assert [str(e).split(",")[0] for e in found] == [f"kv_indices[7] is {n}" for n in (23, 40, 99)]
    assert {e.error for e in found} == {sparse_prefill.DECODE_INDEX_RANGE}


def the_next_call_raises():
    run("sparse decode", [("kv_indices", 7, 23)])
    with pytest.raises(ContractViolation) as caught:
        run("sparse decode", [])
    assert caught.value.error is sparse_prefill.DECODE_INDEX_RANGE


def a_captured_call_tells_again_when_it_was_read():
    run("state", [])
    with mock.patch.object(in_kernel, "is_capturing", return_value=True):
        scenario = MAKE["state"]("cpu")
        offered("state", scenario, scenario.arguments)
        scenario.arguments["ssm_state_indices"][2] = 13
        flag = kernel_flag(scenario.arguments["mixed_qkv"], launch.CHECKS)
    assert flag[2] < 0
    with mock.patch.object(launch, "kernel_flag", return_value=flag):
        for _ in range(2):
            for _ in range(2):
                scenario.run(scenario.arguments, scenario.options)
            (found,) = drained()
            assert found.error is replayssm.SLOT_RANGE
            assert "captured as call 2" in found.__notes__[-1], found.__notes__


def a_full_mailbox_counts_what_it_drops():
    scenario = MAKE["state"]("cpu")
    flags = []
    for _ in range(3):
        offered("state", scenario, scenario.arguments)
        flags.append(kernel_flag(scenario.arguments["mixed_qkv"], launch.CHECKS))
    scenario.arguments["ssm_state_indices"][2] = 13
    # As if all places but one were taken.
    flags[0][1][0] = RING - 1
    for flag in flags:
        with mock.patch.object(launch, "kernel_flag", return_value=flag):
            scenario.run(scenario.arguments, scenario.options)
    assert tensorpact.value_report().dropped == 2


def other_launches_carry_no_flag():
    scenario, other = MAKE["state"]("cpu"), MAKE["state"]("cpu")
    offered("state", scenario, scenario.arguments)
    other.arguments["ssm_state_indices"][2] = 13
    other.run(other.arguments, other.options)
    thread = threading.Thread(target=scenario.run, args=(scenario.arguments, scenario.options))
    thread.start()
    thread.join()
    assert tensorpact.value_report().in_kernel == 0
    scenario.run(scenario.arguments, scenario.options)
    # Once: the same tensors again are no part of the call.
    scenario.run(scenario.arguments, scenario.options)
    assert tensorpact.value_report().in_kernel == 1
    assert drained() == []


def off_gives_none():
    with tensorpact.value_checks("off", in_kernel=False):
        run("state", [("ssm_state_indices", 2, 13)])
    assert drained() == []
    assert tensorpact.value_report().in_kernel == 0


@contract(
    Contract(
        "cached",
        clauses=[
            let(capacity=lambda columns, slots: columns * slots),
            values("cache_seqlens", at_least(0), at_most("capacity")),
            values("cache_seqlens", at_most("capacity"), plus="new"),
            values(
                "page_table", within(0, "pages"), active=upto("cache_seqlens", per="slots"), when=lambda left: left < 0
            ),
            values("page_table", less_than("pages"), padding="negative", when=lambda left: left >= 0),
        ],
    )
)
def over_pages(
    q: Float[Tensor, "B T H D"],
    v_cache: Float[Tensor, "pages slots G Dv"],
    page_table: Int[Tensor, "B columns"],
    cache_seqlens: Int[Tensor, " B"],
    left: int,
    new: int,
) -> None:
    """Stands for the entry point, whose launch is called behind it."""


@contract(Contract("rows", clauses=[values("cache_batch_idx", within(0, "rows"))]))
def over_rows(
    q: Float[Tensor, "Tq H D"], v_cache: Float[Tensor, "rows slots G Dv"], cache_batch_idx: Int[Tensor, " B"]
) -> None:
    """Stands for the entry point, whose launch is called behind it."""


def cached(name, changes, left=-1, **options):
    scenario = MAKE[name]("cpu")
    given = {k: v.clone() for k, v in scenario.arguments.items()}
    if name == "rows":
        over_rows(given["q"], given["v_cache"], given["cache_batch_idx"])
    else:
        new = given["k"].shape[1]
        over_pages(given["q"], given["v_cache"], given["page_table"], given["cache_seqlens"], left, new)
    for tensor, place, number in changes:
        given[tensor].view(-1)[place] = number
    scenario.run(given, scenario.options | options)
    return [str(e) for e in drained()]


def cache_told(name, tensor, place, number, text, left=-1):
    window = {"window_size": (left, 0)} if left >= 0 else {}
    assert cached(name, [(tensor, place, number)], left, **window) == ([text] if text else [])


def fresh(function, **arguments):
    pending.forget()
    counts.clear()
    with tensorpact.value_checks("off", in_kernel=True):
        function(**arguments)


ROWS = "but there are {} rows to take; a negative index is skipped"
MARK = "paged decode takes a row for every entry and skips none"
ORDER = "offsets never decrease and stay inside the index list"
INDEX, INDPTR = sparse_prefill.INDEX_RANGE, sparse_prefill.INDPTR_VALUES
_name = "sparse prefill"
case(told, name="sparse prefill, wide indices", tensor="kv_indices_prefix", place=11, number=23, error=INDEX,
     text=f"kv_indices_prefix[11] is 23, {ROWS.format(23)}")  # fmt: skip
case(told, name=_name, tensor="kv_indices_extend", place=4, number=9, error=INDEX,
     text=f"kv_indices_extend[4] is 9, {ROWS.format(9)}")  # fmt: skip
case(told, name=_name, tensor="kv_indptr_prefix", place=0, number=-3, error=INDPTR,
     text=f"kv_indptr_prefix[0] is -3, expected at least 0: {ORDER}")  # fmt: skip
case(told, name=_name, tensor="kv_indptr_prefix", place=3, number=5, error=INDPTR,
     text=f"kv_indptr_prefix[3] is 5, expected at least the entry before it, 7: {ORDER}")  # fmt: skip
case(told, name=_name, tensor="kv_indptr_extend", place=5, number=99, error=INDPTR,
     text=f"kv_indptr_extend[5] is 99, expected at most NE = 27: {ORDER}")  # fmt: skip
for _name in ("sparse decode", "sparse decode, split"):
    case(told, name=_name, tensor="kv_indices", place=40, number=500, error=sparse_prefill.DECODE_INDEX_RANGE,
         text=f"kv_indices[40] is 500, expected below P = 23: {MARK}")  # fmt: skip
case(told, name="sparse decode", tensor="kv_indptr", place=5, number=61, error=INDPTR,
     text=f"kv_indptr[5] is 61, expected at most NI = 60: {ORDER}")  # fmt: skip
for _name in ("replay", "state"):
    case(told, name=_name, tensor="ssm_state_indices", place=4, number=13, error=replayssm.SLOT_RANGE,
         text="`ssm_state_indices[4]` is 13, but the pool has 13 slots; a negative slot is padding.")  # fmt: skip
for _number in (-1, 4):
    case(told, name="replay", tensor="write_pos", place=3, number=_number, error=replayssm.WRITE_POS_RANGE,
         text=f"`write_pos[3]` is {_number}, but a ring of 4 tokens is written at 0 to 3.")  # fmt: skip
for _name, _total in (("q", 40), ("k", 50)):
    _boundaries = f"cu_seqlens_{_name}"
    case(told, name="packed", tensor=_boundaries, place=0, number=-2, error=packed_attention.BOUNDARIES_START,
         text=f"{_boundaries} must start with 0 and contain at least one sequence")  # fmt: skip
    case(told, name="packed", tensor=_boundaries, place=2, number=0, error=packed_attention.BOUNDARIES_ORDER,
         text=f"{_boundaries} must be non-decreasing")  # fmt: skip
    case(told, name="packed", tensor=_boundaries, place=4, number=_total + 1, error=packed_attention.BOUNDARIES_END,
         text=f"{_boundaries} must end at the packed token count {_total}, got {_total + 1}")  # fmt: skip
for _name in ("pages", "whole tiles of a page"):
    case(
        cache_told,
        name=_name,
        tensor="page_table",
        place=0,
        number=19,
        text="page_table[0, 0] is 19, expected below pages = 19",
    )
    case(
        cache_told,
        name=_name,
        tensor="page_table",
        place=1,
        number=-5,
        text="page_table[0, 1] is -5, expected at least 0",
    )
case(cache_told, name="pages", tensor="page_table", place=9, number=-5, text="")
case(cache_told, name="pages", tensor="page_table", place=1, number=-5, text="", left=30)
case(cache_told, name="pages", tensor="page_table", place=1, number=19, left=30,
     text="page_table[0, 1] is 19, expected below pages = 19")  # fmt: skip
case(
    cache_told,
    name="pages",
    tensor="cache_seqlens",
    place=1,
    number=-1,
    text="cache_seqlens[1] is -1, expected at least 0",
)
case(cache_told, name="pages", tensor="cache_seqlens", place=1, number=21,
     text="cache_seqlens[1] is 21, expected at most capacity = 20")  # fmt: skip
case(cache_told, name="pages", tensor="cache_seqlens", place=1, number=19,
     text="cache_seqlens[1] + new is 21, expected at most capacity = 20")  # fmt: skip
case(cache_told, name="rows", tensor="cache_batch_idx", place=2, number=7,
     text="cache_batch_idx[2] is 7, expected below rows = 7")  # fmt: skip
for _name in ("sparse prefill", "sparse decode, split", "replay", "packed"):
    case(nothing_told, name=_name)
for _function in (
    padding_is_none_of_it,
    each_call_tells_of_itself,
    the_next_call_raises,
    a_captured_call_tells_again_when_it_was_read,
    a_full_mailbox_counts_what_it_drops,
    other_launches_carry_no_flag,
    off_gives_none,
):
    case(_function)
CASES = {name: (lambda f=f, a=a: fresh(f, **a), {}) for name, (f, a) in CASES.items()}

if __name__ == "__main__":
    interpreted.main(CASES)
