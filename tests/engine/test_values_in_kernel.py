"""What a launch is given so that its kernel reports what it masks: the switch, the offer of a call, the checks."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import tensorpact
from tensorpact import Contract, ContractViolation, DocumentedError, contract
from tensorpact._values import counts, in_kernel, mailbox, modes, pending
from tensorpact._values.mailbox import HEAD
from tensorpact.clauses import at_least, at_most, less_than, let, values
from tensorpact.reporting import NO_FLAG, Told, kernel_flag

ROW = DocumentedError("no-such-row", IndexError, "{name}[{position}] is {value}, the pool has {P} rows")
CHECKS = (Told("indices", "less_than"), Told("indptr", "at_most"), Told("indices", "distinct"))
seen = []


def launch(anchor):
    seen.append(kernel_flag(anchor, CHECKS))


@contract(
    Contract(
        "gather",
        clauses=[
            values("indptr", at_least(0), at_most("N"), when=lambda strict: strict),
            values("indices", less_than("P"), padding="negative", error=ROW),
        ],
    )
)
def gather(
    pool: Float[Tensor, "P D"], indices: Int[Tensor, " N"], indptr: Int[Tensor, " T"], strict: bool = True
) -> Tensor:
    launch(pool)
    return pool * 2


@contract
def plain(pool: Float[Tensor, "P D"]) -> Tensor:
    launch(pool)
    return pool * 2


@pytest.fixture(autouse=True)
def fresh():
    pending.forget()
    counts.clear()
    seen.clear()
    in_kernel._waiting.offer = None
    with tensorpact.value_checks("off", in_kernel=True):
        yield
    pending.forget()


def arguments():
    return {"pool": torch.randn(8, 4), "indices": torch.tensor([0, 7, -1]), "indptr": torch.tensor([0, 2])}


def mail(flag, check, place, value, limit):
    """Write what a kernel would."""
    memory, _, call = flag
    box = pending.box_of(torch.device("cpu"))
    wide = [abs(call), check, place, value >> 32, value & 0xFFFFFFFF, limit >> 32, limit & 0xFFFFFFFF, 0]
    memory[box.at : box.at + 8] = torch.tensor([(word & 0xFFFFFFFF) << 16 | box.tag for word in wide])
    assert box.at >= HEAD


def test_the_launch_behind_a_guard_carries_a_flag():
    for _ in range(8):
        gather(**arguments())
    calls = [call for _, _, call in seen]
    assert calls == list(range(1, 9))
    assert tensorpact.value_report().in_kernel == 8
    assert pending._calls[1].facts["pool"].shape == (8, 4)


def test_the_record_becomes_the_documented_error():
    gather(**arguments())
    mail(seen[0], 0, 1, 9, 7)
    with pytest.raises(IndexError, match=r"^indices\[1\] is 9, the pool has 8 rows") as caught:
        tensorpact.poll()
    assert str(caught.value) == "indices[1] is 9, the pool has 8 rows"
    assert caught.value.error is ROW
    assert caught.value.call_number == 1
    assert caught.value.__notes__[-1] == "found in the kernel of call 1, which masked it"
    tensorpact.poll()


def test_the_next_call_raises_it():
    gather(**arguments())
    mail(seen[0], 0, 1, 9, 7)
    with pytest.raises(IndexError, match=r"^indices\[1\] is 9"):
        gather(**arguments())
    assert len(seen) == 1
    gather(**arguments())
    assert len(seen) == 2


def test_the_stack_of_the_call_is_kept_where_it_is_asked_for():
    with tensorpact.value_checks("off", in_kernel=True, stacks=True):
        gather(**arguments())
    mail(seen[0], 0, 1, 9, 7)
    with pytest.raises(IndexError) as caught:
        tensorpact.poll()
    assert "that call was made here:" in caught.value.__notes__[-1]
    assert "gather(**arguments())" in caught.value.__notes__[-1]


def test_a_check_that_the_contract_lacks_or_that_does_not_apply_is_not_told():
    gather(**arguments(), strict=False)
    mail(seen[0], 2, 1, 7, 7)
    tensorpact.poll()
    mail(seen[0], 1, 1, 5, 3)
    tensorpact.poll()
    gather(**arguments())
    mail(seen[1], 1, 1, 5, 3)
    with pytest.raises(ContractViolation, match=r"^indptr\[1\] is 5, expected at most N = 3"):
        tensorpact.poll()


def test_what_is_not_told_hides_nothing_behind_it():
    gather(**arguments())
    box = pending.box_of(torch.device("cpu"))
    mail(seen[0], 2, 1, 7, 7)
    assert pending.pending() == 1
    assert box.tag == 2
    mail(seen[0], 0, 1, 9, 7)
    with pytest.raises(IndexError, match=r"^indices\[1\] is 9"):
        tensorpact.poll()


def test_no_flag_without_the_switch():
    with tensorpact.value_checks("off", in_kernel=False):
        gather(**arguments())
    assert seen == [NO_FLAG]


def test_no_flag_without_clauses_on_values():
    gather(**arguments())
    plain(torch.randn(8, 4))
    assert seen[1] == NO_FLAG


def test_no_flag_where_the_enforcement_is_off():
    with tensorpact.enforcement("off"):
        gather(**arguments())
    assert seen == [NO_FLAG]


@pytest.mark.parametrize("mode", ["off", "sync", "async"])
@pytest.mark.parametrize("enforcement", ["compiled", "beartype"])
def test_every_mode_has_flags(mode, enforcement):
    with tensorpact.value_checks(mode, in_kernel=True), tensorpact.enforcement(enforcement):
        gather(**arguments())
    assert seen[0][2] == 1


def test_a_call_is_offered_once():
    given = arguments()
    gather(**given)
    launch(given["pool"])
    assert seen[1] == NO_FLAG


def test_a_launch_of_other_tensors_leaves_the_offer_alone():
    given = arguments()
    gather(**given)
    gate = pending._calls[1]
    in_kernel.offer(in_kernel.Source((), gate.terms), gate.facts, [given["pool"]])
    assert kernel_flag(torch.randn(8, 4), CHECKS) == NO_FLAG
    assert in_kernel._waiting.offer is not None


def test_an_offer_keeps_no_tensor_alive():
    @contract(Contract("idle", clauses=[values("indices", less_than("P"), error=ROW)]))
    def idle(pool: Float[Tensor, "P D"], indices: Int[Tensor, " N"]) -> None:
        """Launches nothing."""

    pool = torch.randn(8, 4)
    idle(pool, torch.tensor([3]))
    offer = in_kernel._waiting.offer
    assert offer.tensors[0]() is pool
    del pool
    gc.collect()
    assert offer.tensors[0]() is None


def test_nothing_inside_a_container_is_kept_alive():
    @contract(Contract("layers", clauses=[values("indices", less_than("P"), error=ROW)]))
    def layers(pool: Float[Tensor, "P D"], rest: list[Float[Tensor, "P D"]], indices: Int[Tensor, " N"]) -> None:
        launch(pool)

    rest = [torch.randn(8, 4)]
    gone = weakref.ref(rest[0])
    layers(torch.randn(8, 4), rest, torch.tensor([3]))
    ((_, _, call),) = seen
    assert pending._calls[call].facts["rest"][0].shape == (8, 4)
    del rest
    gc.collect()
    assert gone() is None


def test_a_condition_on_a_let_without_a_value_does_not_apply():
    @contract(
        Contract(
            "late",
            clauses=[
                let(twice=lambda M: M * 2),
                values("indices", less_than("P"), when=lambda twice: twice > 3),
                values("indices", less_than("P"), error=ROW),
            ],
        )
    )
    def late(pool: Float[Tensor, "P D"], indices: Int[Tensor, " N"], more: Float[Tensor, " M"] | None = None) -> None:
        launch(pool)

    late(torch.randn(8, 4), torch.tensor([3, 1]))
    mail(seen[0], 0, 1, 9, 7)
    with pytest.raises(IndexError, match=r"^indices\[1\] is 9, the pool has 8 rows"):
        tensorpact.poll()


def test_the_numbers_of_the_device_are_those_of_the_host():
    device_flag = pytest.importorskip("tensorpact._values.device_flag", reason="triton is not installed")
    assert (device_flag.RING.value, device_flag.FIRST.value, device_flag.HALF.value) == (
        mailbox.RING, mailbox._COUNTERS - mailbox.TOLD, mailbox.TOLD // 2,
    )  # fmt: skip


def test_facts_follow_the_signature():
    for rows in [8] * 9 + [5] * 9 + [8]:
        gather(torch.randn(rows, 4), torch.tensor([0, 4, -1]), torch.tensor([0, 2]))
    shapes = [pending._calls[call].facts["pool"].shape[0] for _, _, call in seen]
    assert shapes == [8] * 9 + [5] * 9 + [8]


def test_compiled_code_carries_no_flag():
    def step(pool, indices, indptr):
        return gather(pool, indices, indptr)

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    assert torch.equal(compiled(**(given := arguments())), given["pool"] * 2)
    assert tensorpact.value_report().in_kernel == 0


def test_a_capture_needs_a_mailbox_first(monkeypatch):
    monkeypatch.setattr(in_kernel, "is_capturing", lambda: True)
    gather(**arguments())
    assert seen == [NO_FLAG]
    assert tensorpact.value_report().skipped == {"the first check of a device cannot be captured": 1}
    pending.box_of(torch.device("cpu"))
    gather(**arguments())
    assert seen[1][2] == -1
    mail(seen[1], 0, 1, 9, 7)
    with pytest.raises(IndexError) as caught:
        tensorpact.poll()
    assert caught.value.__notes__[-1] == "found in the kernel captured as call 1, which masked it"


def test_captured_calls_are_bounded(monkeypatch):
    pending.box_of(torch.device("cpu"))
    monkeypatch.setattr(in_kernel, "is_capturing", lambda: True)
    monkeypatch.setattr(pending, "CAPTURED", 1)
    gather(**arguments())
    gather(**arguments())
    assert seen[1] == NO_FLAG
    assert tensorpact.value_report().skipped == {"no room for captured checks": 1}


def test_the_switch_nests_and_is_inherited():
    assert modes.current == modes.IN_KERNEL
    with tensorpact.value_checks("sync"):
        assert modes.current == modes.SYNC | modes.IN_KERNEL
        assert modes.current_mode() == "sync"
        with tensorpact.value_checks("async", in_kernel=False):
            assert modes.current == modes.ASYNC
        assert modes.current == modes.SYNC | modes.IN_KERNEL
    assert modes.current == modes.IN_KERNEL


@pytest.mark.parametrize(("given", "code"), [("1", 6), ("0", 2), ("", 2)])
def test_the_environment_switches_it_on(given, code):
    assert _at_import(given) == str(code)


def test_a_wrong_environment_is_an_error():
    assert "TENSORPACT_VALUES_IN_KERNEL is 0 or 1, not 'yes'" in _at_import("yes")


def _at_import(given):
    environment = {"TENSORPACT_VALUES": "async", "TENSORPACT_VALUES_IN_KERNEL": given}
    script = (
        f"import os; os.environ.update({environment!r})\nfrom tensorpact._values import modes\nprint(modes.current)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    return (done.stdout or done.stderr).strip()
