"""Tensors in lists, tuples, mappings, named tuples, ``*args`` and ``**kwargs``: every item, named, every time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import tensorpact
from tensorpact import Contract, ContractDefinitionError, contract
from tensorpact._entry import entry_of
from tensorpact.clauses import require

T = torch.zeros


@pytest.fixture(params=("compiled", "beartype"), autouse=True)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both enforcing modes."""
    with tensorpact.enforcement(request.param):
        yield request.param


def forgiven(function: Any) -> list[Any]:
    """Calls in which the guard rejected what the diagnosis then let pass."""
    entry, seen = entry_of(function), []

    def diagnose(values: tuple[Any, ...]) -> Exception | None:
        error = entry.diagnose(values)
        if error is None:
            seen.append(values)
        return error

    function.__globals__["_diagnose"] = diagnose
    return seen


class Outputs(NamedTuple):
    """A named tuple of tensors."""

    k: Float[Tensor, "n K"]
    v: Float[Tensor, "n V"]
    label: str = ""


class Cache(TypedDict):
    """A mapping with known keys."""

    k: Float[Tensor, "n K"]
    v: Float[Tensor, "n V"]


@contract
def listed(x: Float[Tensor, " n"], xs: list[Float[Tensor, " n"]]) -> str:
    return "ran"


@contract
def alone(xs: list[Float[Tensor, "n 2"]]) -> str:
    return "ran"


@contract
def collected(x: Float[Tensor, " n"], *xs: Float[Tensor, " n"], **named: Int[Tensor, "n m"]) -> str:
    return "ran"


@contract
def paired(pair: tuple[Float[Tensor, " n"], Int[Tensor, " n"]] | None = None) -> str:
    return "ran"


@contract
def mapped(caches: Mapping[str, Float[Tensor, "slots K"]], layers: dict[str, list[Float[Tensor, " K"]]]) -> str:
    return "ran"


@contract
def outputs(out: Outputs, other: Sequence[Outputs] = ()) -> str:
    return "ran"


@contract
def typed(cache: Cache) -> str:
    return "ran"


@contract
def forwarding(x: Float[Tensor, " n"], *rest: Any, **named: Any) -> str:
    return "ran"


@contract
def counted(*counts: int, **flags: bool) -> str:
    return "ran"


GOOD = [
    pytest.param(listed, (T(2), [T(2), T(2)]), {}, id="list"),
    pytest.param(listed, (T(2), []), {}, id="empty-list"),
    pytest.param(alone, ([T(3, 2), T(3, 2)],), {}, id="list-alone"),
    pytest.param(collected, (T(2), T(2), T(2)), {"a": T(2, 5).int(), "b": T(2, 5).int()}, id="args-kwargs"),
    pytest.param(paired, ((T(2), T(2).int()),), {}, id="tuple"),
    pytest.param(paired, (), {}, id="optional-tuple"),
    pytest.param(mapped, ({"a": T(4, 3), "b": T(4, 3)}, {"x": [T(3)], "y": []}), {}, id="mappings"),
    pytest.param(outputs, (Outputs(T(2, 3), T(2, 5)), [Outputs(T(2, 3), T(2, 5))]), {}, id="named-tuple"),
    pytest.param(typed, ({"k": T(2, 3), "v": T(2, 5)},), {}, id="typed-dict"),
    pytest.param(counted, (1, 2), {"a": True}, id="plain-args"),
    pytest.param(forwarding, (T(2), 1, "a"), {"b": None}, id="any-args"),
]

BAD = [
    pytest.param(
        listed,
        (T(2), [T(2)] * 4 + [T(3)]),
        {},
        r"^xs\[4\]: axis 0 \(n\) is 3, but n is 2 \(x axis 0\)",
        id="fifth-item",
    ),
    pytest.param(
        alone,
        ([T(3, 2), T(4, 2)],),
        {},
        r"^xs\[1\]: axis 0 \(n\) is 4, but n is 3 \(xs\[0\] axis 0\)",
        id="item-against-item",
    ),
    pytest.param(alone, ([T(3, 5)],), {}, r"^xs\[0\]: axis 1 is 5, but must be 2", id="fixed"),
    pytest.param(alone, ((T(3, 2),),), {}, r"^xs: expected list, got tuple", id="wrong-container"),
    pytest.param(alone, ([T(3, 2), None],), {}, r"^xs\[1\]: expected a Tensor \[n, 2\], got None", id="none-item"),
    pytest.param(alone, ([T(3, 2).int()],), {}, r"^xs\[0\]: dtype is torch\.int32, expected Float", id="dtype"),
    pytest.param(collected, (T(2), T(2), T(3)), {}, r"^xs\[1\]: axis 0 \(n\) is 3, but n is 2 \(x axis 0\)", id="args"),
    pytest.param(
        collected, (T(2),), {"b": T(3, 1).int()}, r"^named\['b'\]: axis 0 \(n\) is 3, but n is 2", id="kwargs"
    ),
    pytest.param(paired, ((T(2), T(3).int()),), {}, r"^pair\[1\]: axis 0 \(n\) is 3", id="tuple-item"),
    pytest.param(paired, ((T(2),),), {}, r"^pair: expected tuple", id="tuple-length"),
    pytest.param(
        mapped, ({"a": T(4, 3)}, {"y": [T(3), T(2)]}), {}, r"^layers\['y'\]\[1\]: axis 0 \(K\) is 2", id="nested"
    ),
    pytest.param(
        outputs,
        (Outputs(T(2, 3), T(4, 5)),),
        {},
        r"^out\.v: axis 0 \(n\) is 4, but n is 2 \(out\.k axis 0\)",
        id="field",
    ),
    pytest.param(outputs, ((T(2, 3), T(2, 5)),), {}, r"^out: expected Outputs, got tuple", id="plain-tuple"),
    pytest.param(typed, ({"k": T(2, 3), "v": T(3, 5)},), {}, r"^cache\['v'\]: axis 0 \(n\) is 3", id="key"),
    pytest.param(counted, (1, "2"), {}, r"^counts\[1\]: expected int, got str '2'", id="plain-args"),
]


@pytest.mark.parametrize(("function", "args", "kwargs"), GOOD)
def test_accepted(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    seen = forgiven(function)
    assert function(*args, **kwargs) == "ran"
    assert seen == []


@pytest.mark.parametrize(("function", "args", "kwargs", "text"), BAD)
def test_d4_rejected(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(tensorpact.ContractViolation, match=text):
        function(*args, **kwargs)


def test_a7_a8_every_call_fails_with_the_same_item() -> None:
    good, bad = [T(5, 2)] * 9, [T(6, 2)]
    for _ in range(50):
        with pytest.raises(ValueError, match=r"^xs\[9\]: axis 0 \(n\) is 6, but n is 5 \(xs\[0\] axis 0\)"):
            alone(good + bad)


def test_rules_see_the_container_and_its_dims() -> None:
    made = Contract("f", clauses=[require(lambda xs: len(xs) < 3), require(lambda n: n % 2 == 0)])

    @contract(made)
    def f(xs: list[Float[Tensor, " n"]]) -> str:
        return "ran"

    assert f([T(2), T(2)]) == "ran"
    assert f([]) == "ran"
    with pytest.raises(ValueError, match="requirement 0"):
        f([T(2)] * 3)
    with pytest.raises(ValueError, match="requirement 1 of f does not hold: n=3"):
        f([T(3)])


def test_what_a_loop_cannot_compare_is_still_checked() -> None:
    @contract
    def f(xs: list[Float[Tensor, " n+1"]], y: Float[Tensor, "#m"], zs: list[Float[Tensor, " m"]]) -> str:
        return "ran"

    assert f([T(4)], T(1), [T(5)]) == "ran"
    with pytest.raises(ValueError, match=r"^xs\[1\]: axis 0 \(n\+1\) is 5, but n\+1 is 4"):
        f([T(4), T(5)], T(1), [])
    with pytest.raises(ValueError, match=r"^y: axis 0 \(m\) is 3, but m is 5 \(zs\[0\] axis 0\)"):
        f([], T(3), [T(5)])


def test_containers_that_would_be_used_up_are_refused() -> None:
    with pytest.raises(ContractDefinitionError, match="cannot be checked"):

        @contract
        def f(xs: Iterator[Float[Tensor, " n"]]) -> None:
            pass


def test_returned_containers() -> None:
    @contract(check_returns=True)
    def f(x: Float[Tensor, " n"], size: int) -> dict[str, list[Float[Tensor, " n"]]]:
        return {"a": [T(2), T(size)]}

    assert f(T(2), 2)["a"][1].shape == (2,)
    with pytest.raises(ValueError, match=r"^return\['a'\]\[1\]: axis 0 \(n\) is 3, but n is 2 \(x axis 0\)"):
        f(T(2), 3)


def test_keys_of_a_mapping(mode: str) -> None:
    @contract
    def f(x: Float[Tensor, " n"], ys: dict[str, Float[Tensor, " n"]], zs: dict[int, dict[str, Tensor]] | None = None):  # type: ignore[no-untyped-def]
        return "ran"

    assert f(T(3), {"a": T(3)}) == "ran"
    with pytest.raises(TypeError, match=r"^ys key 1: expected str, got int 1"):
        f(T(3), {"a": T(3), 1: T(3)})
    with pytest.raises(ValueError, match=r"^ys\['b'\]: axis 0 \(n\) is 4"):
        f(T(3), {"a": T(3), "b": T(4)})


@pytest.mark.parametrize(
    ("hint", "right", "wrong", "text"),
    [
        (list[int], [1, 2, 3], [1, 2, "3"], "n[2]: expected int, got str '3'"),
        (list[int], [], (1, 2), "n: expected list[int], got tuple"),
        (list[int], [1], [True], "n[0]: expected int, got bool True"),
        (list[float], [1, 0.5], [0.5, None], "n[1]: expected float, got NoneType"),
        (list[int | None], [1, None], [None, 0.5], "n[1]: expected int or None, got float 0.5"),
        (tuple[int, ...], (1, 2, 3), (1, 2, 0.5), "n[2]: expected int, got float 0.5"),
        (tuple[int, str], (1, "a"), (1, 2), "n[1]: expected str, got int 2"),
        (tuple[int, str], (1, "a"), (1, "a", 2), "n: expected tuple[int, str], got tuple"),
        (Sequence[int], (1, 2), [1, "b"], "n[1]: expected int, got str 'b'"),
        (Sequence[str], "abc", 3, "n: expected collections.abc.Sequence[str], got int 3"),
        (dict[str, int], {"a": 1}, {"a": 1, "b": "2"}, "n['b']: expected int, got str '2'"),
        (dict[str, int], {"a": 1}, {"a": 1, 2: 2}, "n key 2: expected str, got int 2"),
        (Mapping[str, list[int]], {"a": [1]}, {"a": [1, "2"]}, "n['a'][1]: expected int, got str '2'"),
        (set[int], {1, 2}, {1, "b"}, "n item 'b': expected int, got str 'b'"),
        (list[list[int]], [[1], [2]], [[1], [2, "3"]], "n[1][1]: expected int, got str '3'"),
        (list[int] | int, 3, ["3"], "n[0]: expected int, got str '3'"),
        (list[int] | None, None, ["3"], "n[0]: expected int, got str '3'"),
        (list[int] | dict[str, int], {"a": 1}, {"a": "1"}, "n['a']: expected int, got str '1'"),
        (list[int] | list[str], ["a", "b"], ["a", 1], "n: expected list[int] or list[str], got list"),
        (list, [None], 3, "n: expected list, got int 3"),
    ],
    ids=str,
)
def test_every_item_without_a_tensor(hint: Any, right: Any, wrong: Any, text: str, mode: str) -> None:
    @contract
    def f(x: Float[Tensor, " k"], n: hint = right) -> str:
        return "ran"

    for _ in range(20):
        assert f(T(2), right) == "ran"
        with pytest.raises(TypeError) as caught:
            f(T(2), wrong)
        assert str(caught.value) == text


def test_one_wrong_item_of_many_is_found_every_time(mode: str) -> None:
    """Case A7 without tensors: beartype would look at one item in a hundred calls."""

    @contract
    def f(n: list[int]) -> str:
        return "ran"

    many = [*range(99), "99"]
    for _ in range(100):
        with pytest.raises(TypeError, match=r"^n\[99\]: expected int, got str '99'"):
            f(many)
