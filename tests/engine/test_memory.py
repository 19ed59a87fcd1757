"""The remembered signature: what it proves, what is still evaluated, when it is learnt."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
import torch
from beartype.vale import Is
from jaxtyping import Float, Int32
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import tensorpact
from tensorpact import Contract, contract
from tensorpact._guard.memory import CHANGES, MOST_PATIENCE, PATIENCE, Memory, is_pure, reads_only_attributes
from tensorpact.clauses import let, no_overlap, require
from tensorpact.constraints import Aligned, Constraint, DenseLast

LIMIT = 3
SWITCH = [True]


def memory_of(function: Any) -> Memory:
    """The memory of a guard."""
    return function.__globals__["_memory"]


def learn(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """Call until the signature is remembered."""
    before = memory_of(function).known
    for _ in range(4 * MOST_PATIENCE):
        function(*arguments)
        if memory_of(function).known not in (before, None):
            return function
    raise AssertionError("nothing was learnt")


def forbid_slow_path(function: Any) -> None:
    """Make every look at an attribute through the plain guard fail."""
    function.__globals__["_Tensor"] = None
    function.__globals__["_diagnose"] = lambda values: pytest.fail("not remembered")


def test_learns_after_the_patience_and_not_before() -> None:
    @contract
    def f(x: Float[Tensor, "n m"]) -> str:
        return "ran"

    for _ in range(PATIENCE):
        f(torch.zeros(2, 3))
        assert memory_of(f).known is None
    f(torch.zeros(2, 3))
    assert memory_of(f).known is not None


def test_a_match_needs_no_look_at_the_tensors() -> None:
    @contract
    def f(x: Float[Tensor, "n m"], y: Float[Tensor, " m"] | None = None, scale: float = 1.0) -> float:
        return scale

    learn(f, torch.zeros(2, 3), torch.zeros(3), 2.0)
    forbid_slow_path(f)
    assert f(torch.ones(2, 3), torch.ones(3), 5.0) == 5.0


BASE = torch.zeros(4, 6)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(torch.zeros(4, 5), id="size"),
        pytest.param(torch.zeros(4, 6, dtype=torch.int32), id="dtype"),
        pytest.param(torch.zeros(6, 4).t(), id="strides"),
        pytest.param(torch.zeros(4, 6, 1), id="rank"),
        pytest.param(torch.zeros(4, 6).to_sparse(), id="sparse"),
        pytest.param(None, id="none"),
        pytest.param(3, id="int"),
    ],
)
def test_nothing_but_the_same_signature_matches(other: Any) -> None:
    @contract
    def f(x: Annotated[Float[Tensor, "n 6"], DenseLast()]) -> str:
        return "ran"

    learn(f, BASE)
    with pytest.raises(tensorpact.ContractViolation):
        f(other)
    assert f(torch.ones(4, 6)) == "ran"


def test_another_device_does_not_match() -> None:
    made = Contract("f", clauses=[require(lambda x: not x.is_meta)])

    @contract(made)
    def f(x: Float[Tensor, " n"]) -> str:
        return "ran"

    learn(f, torch.zeros(2))
    with pytest.raises(ValueError, match=r"requirement 0 of f"):
        f(torch.zeros(2, device="meta"))


def test_optional_tensors_are_part_of_the_signature() -> None:
    @contract
    def f(x: Float[Tensor, " n"], bias: Float[Tensor, " n"] | None = None) -> str:
        return "ran"

    learn(f, torch.zeros(2))
    with pytest.raises(ValueError, match=r"^bias: axis 0"):
        f(torch.zeros(2), torch.zeros(3))
    learn(f, torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match=r"^bias: axis 0"):
        f(torch.zeros(2), torch.zeros(3))
    assert f(torch.zeros(2)) == "ran"


def test_a_number_in_the_place_of_a_tensor_is_not_remembered_and_takes_nothing_away() -> None:
    same = Contract("f", mutates=["x"], clauses=[no_overlap("x", "n")])

    @contract(same)
    def f(x: Float[Tensor, "b d"], n: Int32[Tensor, " b"] | int | None = None) -> str:
        return type(n).__name__

    x, lengths = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int32)
    learn(f, x, lengths)
    known = memory_of(f).known
    assert f(x, 5) == "int"
    assert f(x) == "NoneType"
    assert f(x, lengths.clone()) == "Tensor"
    assert memory_of(f).known is known
    assert memory_of(f).matched
    for wrong in (lengths.long(), torch.zeros(3, dtype=torch.int32), 0.5, "5", x[0, :2].view(torch.int32)):
        with pytest.raises((TypeError, ValueError)):
            f(x, wrong)


def test_scalars_are_checked_on_every_call() -> None:
    made = Contract("f", clauses=[require(lambda scale: scale > 0)])

    @contract(made)
    def f(x: Float[Tensor, " n"], scale: float) -> str:
        return "ran"

    learn(f, torch.zeros(2), 1.0)
    with pytest.raises(ValueError, match=r"requirement 0 of f"):
        f(torch.zeros(2), -1.0)
    with pytest.raises(TypeError, match=r"^scale: expected float, got str"):
        f(torch.zeros(2), "1")


def test_rules_that_read_more_than_metadata_run_on_every_call() -> None:
    made = Contract("f", clauses=[require(lambda x: x.is_cuda or SWITCH[0]), require(lambda n, scale: n * scale < 9)])

    @contract(made)
    def f(x: Float[Tensor, " n"], scale: float) -> str:
        return "ran"

    learn(f, torch.zeros(2), 1.0)
    SWITCH[0] = False
    try:
        with pytest.raises(ValueError, match=r"requirement 0 of f"):
            f(torch.zeros(2), 1.0)
    finally:
        SWITCH[0] = True
    with pytest.raises(ValueError, match="requirement 1"):
        f(torch.zeros(2), 5.0)
    assert f(torch.zeros(2), 4.0) == "ran"


def test_addresses_and_validators_are_looked_at_on_every_call() -> None:
    first = Is[lambda t: bool(t[0] == 0)]

    @contract
    def f(x: Annotated[Float[Tensor, " n"], Aligned(16)], y: Annotated[Float[Tensor, " n"], first]) -> str:
        return "ran"

    base = torch.zeros(9)
    learn(f, base[:4], torch.zeros(4))
    with pytest.raises(ValueError, match=r"starts 4 bytes past a multiple of 16"):
        f(base[1:5], torch.zeros(4))
    with pytest.raises(TypeError, match=r"^y: breaks"):
        f(base[:4], torch.ones(4))


def test_overlap_is_looked_at_on_every_call() -> None:
    made = Contract("f", clauses=[no_overlap("out", "x")], mutates=("out",))

    @contract(made)
    def f(x: Float[Tensor, " n"], out: Float[Tensor, " n"]) -> str:
        return "ran"

    base = torch.zeros(8)
    learn(f, base[:4], base[4:])
    with pytest.raises(ValueError, match=r"^out: shares memory with x"):
        f(base[:4], base[2:6])


def test_derived_dims_that_rules_read_are_kept() -> None:
    made = Contract("f", clauses=[let(half=lambda n: n // 2), require(lambda half, limit: half < limit)])

    @contract(made)
    def f(x: Float[Tensor, " n"], limit: int) -> str:
        return "ran"

    learn(f, torch.zeros(4), 3)
    forbid_slow_path(f)
    assert f(torch.zeros(4), 3) == "ran"


def twice_limit(limit: int) -> int:
    return 2 * limit


def test_lets_that_a_signature_does_not_settle_are_derived_anew() -> None:
    """A let may read a number, or call on what reads one; what it gives is no size that an annotation has."""
    made = Contract(
        "f",
        clauses=[
            let(most=lambda limit: twice_limit(limit), wide=lambda w: None if w is None else w.shape[0]),
            let(more=lambda most, wide: most + (wide or 0)),
            require(lambda n, more: n < more),
        ],
    )

    @contract(made)
    def f(x: Float[Tensor, " n"], w: Float[Tensor, " k"] | None = None, limit: int = 9) -> str:
        return "ran"

    x = torch.zeros(6)
    learn(f, x)
    slow, f.__globals__["_Tensor"] = f.__globals__["_Tensor"], None
    assert f(x, limit=4) == "ran"
    f.__globals__["_Tensor"] = slow
    with pytest.raises(tensorpact.ContractViolation):
        f(x, limit=3)
    assert f(x, torch.zeros(1), limit=3) == "ran"


def test_a_let_that_is_a_size_is_settled_or_nothing_is_remembered() -> None:
    @contract(Contract("f", clauses=[let(half=lambda limit: limit // 2)]))
    def f(x: Float[Tensor, " half"], limit: int = 9) -> str:
        return "ran"

    assert "_memory" not in f.__globals__
    assert f(torch.zeros(4)) == "ran"
    with pytest.raises(tensorpact.ContractViolation):
        f(torch.zeros(4), limit=3)


def test_a_smaller_limit_breaks_a_kept_dim() -> None:
    made = Contract("f", clauses=[let(half=lambda n: n // 2), require(lambda half, limit: half < limit)])

    @contract(made)
    def f(x: Float[Tensor, " n"], limit: int) -> str:
        return "ran"

    learn(f, torch.zeros(4), 3)
    with pytest.raises(ValueError, match="requirement 1 of f does not hold: half=2, limit=2"):
        f(torch.zeros(4), 2)


@pytest.mark.parametrize(
    ("rule", "pure"),
    [
        (lambda n, m: n % max(m, 1) == 0, True),
        (lambda n: n < LIMIT, False),
        (lambda x: x.dtype is torch.float8_e4m3fn, False),
        (lambda x: x.is_cuda, True),
        (lambda x: x.shape[0] > 2, True),
        (lambda x: x.numel() > 2, True),
        (lambda x: x.log() is None, False),
        (lambda x: x.any(), False),
        (lambda x: x.type("torch.LongTensor"), False),
        (lambda x: SWITCH[0], False),
        (lambda n: tensorpact.backend() == "naive", False),
    ],
)
def test_purity(rule: Callable[..., Any], pure: bool) -> None:
    assert is_pure(rule) is pure


@pytest.mark.parametrize(
    ("rule", "closed"),
    [
        (lambda x: x.shape[0], True),
        (lambda x: x is None, True),
        (lambda x: x[0], False),
        (lambda x: x > 0, False),
        (lambda x: x[None], False),
        (lambda x: bool(x), False),
    ],
)
def test_a_rule_that_reads_data_is_not_settled(rule: Callable[..., Any], closed: bool) -> None:
    assert reads_only_attributes(rule, {"x"}) is closed


def test_subclasses_are_not_remembered() -> None:
    class Mine(Tensor):
        pass

    @contract
    def f(x: Float[Tensor, " n"]) -> str:
        return "ran"

    for _ in range(3 * PATIENCE):
        assert f(torch.zeros(2).as_subclass(Mine)) == "ran"
    assert memory_of(f).known is None


def test_a_limit_that_moves_is_seen() -> None:
    limit = 5

    def lower() -> None:
        nonlocal limit
        limit = 2

    made = Contract("f", clauses=[require(lambda n: n < limit), require(lambda n: n < MOVING[0])])

    @contract(made)
    def f(x: Float[Tensor, " n"]) -> str:
        return "ran"

    learn(f, torch.zeros(3))
    lower()
    with pytest.raises(ValueError, match=r"requirement 0 of f"):
        f(torch.zeros(3))


MOVING = [9]


def test_constraints_of_others_are_looked_at_on_every_call() -> None:
    class FromTheStart(Constraint):
        def holds(self, tensor: Tensor) -> bool:
            return tensor.storage_offset() == 0

        def reason(self, tensor: Tensor) -> str:
            return "does not start where its storage starts"

    @contract
    def f(x: Annotated[Float[Tensor, " n"], FromTheStart()]) -> str:
        return "ran"

    base = torch.zeros(9)
    learn(f, base[:4])
    with pytest.raises(ValueError, match=r"^x: does not start"):
        f(base[1:5])


def watched(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> tuple[int, int]:
    """How many signatures were learnt over these calls, and at how many of them one was compared."""
    memory, learnt, compared = memory_of(function), 0, 0
    for arguments in calls:
        before = memory.known
        function(*arguments)
        learnt += memory.known not in (before, None)
        compared += before is not None
    return learnt, compared


def matrix() -> Callable[..., Any]:
    @contract
    def f(x: Float[Tensor, "n m"], y: Float[Tensor, "n m"]) -> str:
        return "ran"

    return f


def pair(n: int, m: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(n, m), torch.zeros(n, m)


def test_layers_of_one_step_match_from_the_second_learning_call_on() -> None:
    f = matrix()
    for n in range(2, 12):
        watched(f, [pair(n, 3)] * (PATIENCE + 1))
        known = memory_of(f).known
        assert watched(f, [pair(n, 3)] * 30) == (0, 30)
        assert memory_of(f).known is known
        assert known is not None
        assert known[0](*pair(n, 3))


def test_a_first_size_that_never_repeats_is_soon_not_compared() -> None:
    f = matrix()
    learn(f, *pair(2, 3))
    assert watched(f, [pair(3 + i, 3) for i in range(500)]) == (0, CHANGES)


def test_other_sizes_that_never_repeat_are_learnt_and_compared_rarely() -> None:
    f = matrix()
    learnt, compared = watched(f, [pair(2, 3 + i) for i in range(1_000)])
    assert 0 < learnt < 1_000 / MOST_PATIENCE
    assert compared < 1_000 / 5


def test_a_call_in_between_does_not_drive_out_what_is_in_use() -> None:
    f = matrix()
    learn(f, *pair(2, 3))
    calls = [pair(50 + i, 3) if i % 3 == 0 else pair(2, 3) for i in range(300)]
    assert watched(f, calls) == (0, 300)
    calls = [pair(2, 50 + i) if i % 3 == 0 else pair(2, 3) for i in range(300)]
    assert watched(f, calls) == (0, 300)


def test_what_was_of_use_gives_way_to_what_is_called_now() -> None:
    f = matrix()
    learn(f, *pair(2, 3))
    watched(f, [pair(2, 3)] * 5)
    assert watched(f, [pair(2, 9)] * (3 * PATIENCE))[0] == 1
    assert memory_of(f).known[0](*pair(2, 9))  # type: ignore[index]


def test_signatures_that_take_turns_are_not_learnt_over_and_over() -> None:
    for calls in ([pair(2 + i % 3, 3) for i in range(2_000)], [pair(2, 3 + i % 3) for i in range(2_000)]):
        assert watched(matrix(), calls)[0] < 25


def test_symbolic_sizes_are_neither_kept_nor_compared() -> None:
    f = matrix()
    learn(f, *pair(2, 3))

    def calls(x: Tensor) -> Tensor:
        assert isinstance(x.shape[0], torch.SymInt)
        for _ in range(3 * PATIENCE):
            f(x, x)
        return x + 1

    traced: Any = make_fx(calls, tracing_mode="symbolic")(torch.zeros(5, 7))
    assert memory_of(f).size == 2
    assert not traced.shape_env.guards
