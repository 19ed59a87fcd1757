"""Threads, memory, copies: contracts leak nothing and race with nobody."""

import copy
import gc
import linecache
import pickle
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import tensorpact
from tensorpact import Contract, contract
from tensorpact.clauses import require

T = torch.zeros


@contract
def by_name(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> str:
    """A function that pickle can find."""
    return "ran"


def make(contracted: Contract | None = None) -> Callable[..., str]:
    """A fresh decorated function."""

    def f(x: Float[Tensor, "n m"], y: Float[Tensor, " m"], scale: float = 1.0) -> str:
        return "ran"

    return contract(contracted)(f)


def test_functions_pickle_and_copy() -> None:
    assert pickle.loads(pickle.dumps(by_name)) is by_name
    assert copy.deepcopy(by_name) is by_name
    assert copy.copy(by_name) is by_name


def test_a_dropped_function_is_freed_without_the_collector() -> None:
    gc.disable()
    try:
        function = make()
        function(T(2, 3), T(3))
        with pytest.raises(ValueError, match=r"^y: axis 0"):
            function(T(2, 3), T(4))
        gone = weakref.ref(function)
        del function
        assert gone() is None
    finally:
        gc.enable()


def grown(work: Callable[[], Any], times: int) -> int:
    """Bytes that stay behind after the work was done many times."""
    for _ in range(20):
        work()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(times):
            work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_calls_leave_nothing_behind() -> None:
    function, x, y = make(), T(2, 3), T(3)
    assert grown(lambda: function(x, y), 100_000) < 20_000


def test_changing_shapes_leave_nothing_behind() -> None:
    function = make()
    sizes = iter(range(10**9))

    def work() -> None:
        n = next(sizes) % 97 + 1
        function(T(2, n), T(n))

    assert grown(work, 2_000) < 50_000


def test_failing_calls_leave_nothing_behind() -> None:
    function, x, y = make(), T(2, 3), T(4)

    def work() -> None:
        with pytest.raises(ValueError, match=r"^y: axis 0"):
            function(x, y)

    assert grown(work, 200) < 50_000


def test_decorating_again_leaves_nothing_behind() -> None:
    made = Contract("f", clauses=[require(lambda n: n > 0)])
    cached = len(linecache.cache)

    def work() -> None:
        function = make(made)
        function(T(2, 3), T(3))

    assert grown(work, 1_000) < 300_000
    assert len(linecache.cache) <= cached + 2


@pytest.mark.parametrize("kind", ["function", "method"])
def test_first_calls_of_many_threads(kind: str) -> None:
    class Holder:
        @contract
        def method(self, x: Float[Tensor, "n m"], y: Float[Tensor, " m"]) -> str:
            return "ran"

    call = make() if kind == "function" else Holder().method
    results: list[str] = []
    start = threading.Barrier(24)

    def work(wrong: bool) -> None:
        start.wait()
        for _ in range(40):
            try:
                results.append(call(T(2, 3), T(4 if wrong else 3)))
            except ValueError as error:
                results.append(str(error))
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test shows it
                results.append(repr(error))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    text = "y: axis 0 (m) is 4, but m is 3 (x axis 1); expected [m] = [3], got [4]"
    assert sorted(set(results)) == ["ran", text]
    assert results.count("ran") == 12 * 40


def test_recursion_and_reentrancy() -> None:
    @contract
    def down(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> int:
        return 0 if x.shape[0] == 0 else 1 + down(x[1:], y[1:])

    for mode in ("compiled", "beartype"):
        with tensorpact.enforcement(mode):
            assert down(T(5), T(5)) == 5


def test_a_failing_body_leaves_the_next_call_alone() -> None:
    @contract
    def f(x: Float[Tensor, " n"], y: Float[Tensor, " n"], fail: bool) -> str:
        if fail:
            raise KeyError("body")
        return "ran"

    for mode in ("compiled", "beartype"):
        with tensorpact.enforcement(mode):
            with pytest.raises(KeyError, match="body"):
                f(T(2), T(2), True)
            assert f(T(3), T(3), False) == "ran"
