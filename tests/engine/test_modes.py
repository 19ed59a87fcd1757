"""The switches: enforcement, backend, environment; and every way of handing over arguments."""

import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import tensorpact
from tensorpact import ContractViolation, backend, contract, enforcement, use_backend
from tensorpact._modes import current_mode

T = torch.zeros


@contract
def entry(x: Float[Tensor, "n n"], scale: float = 1.0) -> str:
    return "reached"


WRONG = T(2, 3)


class TestEnforcement:
    """One process-wide switch."""

    @pytest.fixture(autouse=True)
    def _restored(self) -> Any:
        with enforcement("compiled"):
            yield

    def test_compiled_is_the_default(self) -> None:
        script = "from tensorpact._modes import current_mode; print(current_mode())"
        environment = {k: v for k, v in os.environ.items() if k != "TENSORPACT"}
        assert run(script, environment) == "compiled"

    @pytest.mark.parametrize("mode", ["compiled", "beartype"])
    def test_checks(self, mode: Any) -> None:
        with enforcement(mode):
            assert current_mode() == mode
            assert entry(T(2, 2)) == "reached"
            with pytest.raises(ContractViolation, match="axis 1"):
                entry(WRONG)

    def test_off_goes_straight_to_the_body(self) -> None:
        with enforcement("off"):
            assert entry(WRONG) == "reached"
            assert entry("text", scale="text") == "reached"  # type: ignore[arg-type]
        with pytest.raises(ContractViolation):
            entry(WRONG)

    def test_restored_after_an_exception(self) -> None:
        with pytest.raises(KeyError), enforcement("off"):
            raise KeyError
        assert current_mode() == "compiled"

    def test_nested(self) -> None:
        with enforcement("off"):
            with enforcement("beartype"):
                assert current_mode() == "beartype"
            assert current_mode() == "off"
        assert current_mode() == "compiled"

    def test_as_a_statement(self) -> None:
        enforcement("off")
        assert current_mode() == "off"
        enforcement("compiled")
        assert current_mode() == "compiled"

    def test_it_is_process_wide(self) -> None:
        seen: list[str] = []
        with enforcement("beartype"):
            thread = threading.Thread(target=lambda: seen.append(current_mode()))
            thread.start()
            thread.join()
        assert seen == ["beartype"]

    @pytest.mark.parametrize("last", ["first", "second"])
    def test_overlapping_blocks_of_two_threads(self, last: str) -> None:
        first, second = enforcement("beartype"), enforcement("off")
        assert current_mode() == "off"
        one, other = (second, first) if last == "first" else (first, second)
        one.__exit__()
        assert current_mode() == ("beartype" if last == "first" else "off")
        other.__exit__()
        assert current_mode() == "compiled"

    def test_many_threads_leave_the_mode_as_it_was(self) -> None:
        barrier = threading.Barrier(8)

        def switch(mode: Any) -> None:
            barrier.wait()
            for _ in range(200):
                with enforcement(mode):
                    pass

        threads = [threading.Thread(target=switch, args=(("off", "beartype")[i % 2],)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert current_mode() == "compiled"

    def test_unknown_mode(self) -> None:
        with pytest.raises(ValueError, match="enforcement is one of compiled, beartype, off, not 'fast'"):
            enforcement("fast")  # type: ignore[arg-type]
        assert current_mode() == "compiled"

    def test_switching_back_and_forth_on_one_function(self) -> None:
        @contract
        def f(x: Float[Tensor, "n n"]) -> str:
            return "reached"

        for mode in ("off", "beartype", "compiled", "off", "compiled", "beartype"):
            with enforcement(mode):  # type: ignore[arg-type]
                assert f(T(2, 2)) == "reached"
                if mode == "off":
                    assert f(WRONG) == "reached"
                else:
                    with pytest.raises(ContractViolation):
                        f(WRONG)


def run(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


SCRIPT = """
import torch
from jaxtyping import Float
from torch import Tensor
from tensorpact import contract
from tensorpact._modes import current_mode
def plain(x: Float[Tensor, "n n"]): return "reached"
f = contract(plain)
try:
    outcome = f(torch.zeros(2, 3))
except Exception as error:
    outcome = type(error).__name__
print(current_mode(), f is plain, outcome)
"""


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("compiled", "compiled False ContractValueError"),
        ("beartype", "beartype False ContractValueError"),
        ("off", "off True reached"),
        ("", "compiled False ContractValueError"),
        ("fast", "ValueError: enforcement is one of compiled, beartype, off, not 'fast'"),
    ],
)
def test_environment(value: str, result: str) -> None:
    assert run(SCRIPT, {**os.environ, "TENSORPACT": value}) == result


NOTHING_LEFT = """
import dataclasses, inspect
import torch, torch._dynamo
from jaxtyping import Float
from torch import Tensor
from tensorpact import Contract, contract
from tensorpact.clauses import require

def plain(x: Float[Tensor, "n n"]) -> Tensor: return x + 1
async def later(x: Float[Tensor, "n n"]) -> Tensor: return x + 1
def each(x: Float[Tensor, "n n"]): yield x + 1
def method(self, x: Float[Tensor, "n n"]) -> Tensor: return x + 1
def read(self) -> Float[Tensor, "n n"]: return self.x
@dataclasses.dataclass
class Batch:
    x: Float[Tensor, "n n"]

made = Contract("plain", clauses=[require(lambda n: n > 4)])
init = Batch.__init__
assert all(contract(f) is f for f in (plain, later, each, method))
assert contract(made)(plain) is plain and contract(check_returns=True)(plain) is plain
assert contract(staticmethod(plain)).__func__ is plain and contract(classmethod(method)).__func__ is method
assert contract(property(read)).fget is read
assert contract(Batch) is Batch and Batch.__init__ is init
guards = []
for function in (plain, contract(made)(plain)):
    torch._dynamo.reset()
    guards.append(len(torch._dynamo.explain(function)(torch.zeros(2, 3)).out_guards))
assert guards[0] == guards[1] > 0
print("nothing left")
"""


def test_off_at_import_leaves_nothing_to_call_or_to_trace() -> None:
    assert run(NOTHING_LEFT, {**os.environ, "TENSORPACT": "off"}) == "nothing left"


class TestBackend:
    """The backend in force."""

    def test_default_and_restore(self) -> None:
        assert backend() == "auto"
        with use_backend("triton"):
            assert backend() == "triton"
            with use_backend("naive"):
                assert backend() == "naive"
            assert backend() == "triton"
        with pytest.raises(KeyError), use_backend("npu"):
            raise KeyError
        assert backend() == "auto"

    def test_as_a_statement(self) -> None:
        use_backend("naive")
        try:
            assert backend() == "naive"
        finally:
            use_backend("auto")
        assert backend() == "auto"

    def test_unknown(self) -> None:
        with pytest.raises(ValueError, match="a backend is one of auto, triton, naive, npu, not 'cuda'"):
            use_backend("cuda")  # type: ignore[arg-type]
        assert backend() == "auto"


class TestArguments:
    """Positional, keyword, keyword-only, positional-only and default arguments reach the body unchanged."""

    @staticmethod
    def make() -> Any:
        @contract
        def f(
            a: Float[Tensor, " n"], /, b: Float[Tensor, " n"], c: Float[Tensor, " n"] | None = None, *,
            d: Float[Tensor, " m"], e: int = 5, g: "Float[Tensor, 'm n'] | None" = None,
        ) -> tuple[Any, ...]:  # fmt: skip
            return a, b, c, d, e, g

        return f

    def test_they_reach_the_body(self, modes: Any) -> None:
        f, a, b, c, d, g = self.make(), T(2), T(2), T(2), T(3), T(3, 2)
        for args, kwargs, expected in (
            ((a, b), {"d": d}, (a, b, None, d, 5, None)),
            ((a,), {"b": b, "d": d, "c": c}, (a, b, c, d, 5, None)),
            ((a, b, c), {"g": g, "e": 7, "d": d}, (a, b, c, d, 7, g)),
        ):
            got = modes(f, *args, **kwargs)
            assert all(x is y or x == y for x, y in zip(got, expected, strict=True))

    def test_each_is_checked(self, modes: Any) -> None:
        f = self.make()
        right = {"b": T(2), "c": T(2), "d": T(3), "g": T(3, 2)}
        modes(f, T(2), **right)
        for name in right:
            raised = modes.rejects(f, T(2), **{**right, name: T(7, 7, 7)})
            assert str(raised).startswith(f"{name}: ")

    @pytest.mark.parametrize(
        ("args", "kwargs", "text"),
        [
            ((), {}, "missing 2 required positional arguments: 'a' and 'b'"),
            ((1, 2), {}, "missing 1 required keyword-only argument: 'd'"),
            ((1, 2, 3, 4), {"d": 1}, "takes from 2 to 3 positional arguments but 4 "),
            ((1,), {"b": 2, "a": 1, "d": 1}, "got some positional-only arguments passed as keyword arguments: 'a'"),
            ((1, 2), {"d": 1, "z": 1}, "got an unexpected keyword argument 'z'"),
        ],
        ids=["missing", "keyword-only", "too-many", "positional-only", "unexpected"],
    )
    @pytest.mark.parametrize("mode", ["compiled", "beartype"])
    def test_native_texts(self, mode: Any, args: Any, kwargs: Any, text: str) -> None:
        with enforcement(mode), pytest.raises(TypeError) as caught:
            self.make()(*args, **kwargs)
        assert "f() " in str(caught.value)
        assert text in str(caught.value)
        assert not isinstance(caught.value, ContractViolation)

    def test_defaults_are_those_of_the_function(self, modes: Any) -> None:
        kept = T(3)

        @contract
        def f(x: Float[Tensor, " n"] = kept, other: Any = ()) -> Any:
            return x, other

        assert modes(f)[0] is kept
        assert f.__defaults__ == (kept, ())  # type: ignore[attr-defined]

    def test_star_arguments_that_are_no_tensors(self, modes: Any) -> None:
        @contract
        def f(x: Float[Tensor, " n"], *rest: int, **more: str) -> Any:
            return rest, more

        assert modes(f, T(2), 1, 2, a="b") == ((1, 2), {"a": "b"})
        modes.rejects(f, T(2, 2), 1)

    def test_unannotated_parameters_are_free(self, modes: Any) -> None:
        @contract
        def f(x, y: Float[Tensor, " n"], z=None) -> Any:  # type: ignore[no-untyped-def]
            return x, z

        assert modes(f, "x", T(2), z=3) == ("x", 3)
        modes.rejects(f, "x", "y")

    @pytest.mark.parametrize(
        "name", ["known", "body", "memory", "self_", "error", "modes", "t1", "Tensor", "__x", "n_", "_n_"]
    )
    def test_names_that_generated_code_might_use(self, modes: Any, name: str) -> None:
        scope: dict[str, Any] = {"__name__": __name__}
        exec(f"def f({name}, _{name}, n=1): return {name}, _{name}", scope)
        function = scope["f"]
        function.__annotations__ = {name: Float[Tensor, "a b"], f"_{name}": Float[Tensor, " b"], "n": int}
        f = contract(function)
        one, two = T(2, 3), T(3)
        for _ in range(20):
            f(one, two)
        got = modes(f, one, two)
        assert got[0] is one
        assert got[1] is two
        modes.rejects(f, one, T(2))


class TestReturns:
    """Return annotations: always in beartype mode, on request in compiled mode."""

    @staticmethod
    def body(x: Float[Tensor, "n m"], wrong: bool) -> Float[Tensor, " m"]:
        return T(x.shape[1] + wrong)

    @pytest.mark.parametrize(
        ("mode", "options", "checked"),
        [
            ("compiled", {}, False),
            ("compiled", {"check_returns": True}, True),
            ("beartype", {}, True),
            ("off", {}, False),
        ],
        ids=["compiled", "on-request", "beartype", "off"],
    )
    def test_when(self, mode: Any, options: dict[str, Any], checked: bool) -> None:
        f = contract(**options)(self.body)
        with enforcement(mode):
            assert f(T(2, 3), False).shape == (3,)
            if not checked:
                assert f(T(2, 3), True).shape == (4,)
                return
            with pytest.raises(ContractViolation) as caught:
                f(T(2, 3), True)
        assert str(caught.value).startswith("return: axis 0 (m) is 4, but m is 3 (x axis 1)")

    def test_tuples(self) -> None:
        @contract(check_returns=True)
        def f(x: Float[Tensor, "n m"], out: Any) -> tuple[Float[Tensor, " n"], Float[Tensor, " m"] | None]:
            return out

        f(T(2, 3), (T(2), T(3)))
        f(T(2, 3), (T(2), None))
        for wrong, start in (
            ((T(2), T(2)), "return[1]: axis 0"),
            ((T(3), None), "return[0]: axis 0"),
            (T(2), "return: "),
        ):
            with pytest.raises(ContractViolation) as caught:
                f(T(2, 3), wrong)
            assert str(caught.value).startswith(start)


def test_a_body_that_raises_keeps_its_error(modes: Any) -> None:
    @contract
    def f(x: Float[Tensor, " n"]) -> None:
        raise LookupError("body")

    error = modes(f, T(2))
    assert type(error) is LookupError
    assert error.__context__ is None


def test_version() -> None:
    assert tensorpact.__version__.count(".") == 2
