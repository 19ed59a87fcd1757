"""The catalogue of small cases, one test a case, named by its id."""

import copy
import gc
import inspect
import pickle
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Annotated, Any, NamedTuple, Optional

import pytest
import torch
from beartype.roar import BeartypeValeLambdaWarning
from beartype.vale import Is
from jaxtyping import Bool, Float, Float16, Int, Int32, Num, Shaped, UInt8
from torch import Tensor

from tensorpact import Contract, ContractDefinitionError, ContractViolation, DocumentedError, contract, enforcement
from tensorpact.clauses import (
    exclusive,
    layout,
    needs,
    no_overlap,
    require,
    same_device,
    same_dtype,
    shape,
    together,
)
from tensorpact.constraints import Aligned, Contiguous, DenseInner, DenseLast, OneOf, Reach32


def T(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:  # noqa: N802 - as the cases write it
    return torch.zeros(sizes, dtype=dtype)


@contract
def reference(
    q: Float[Tensor, "B H K"], k_cache: Float[Tensor, "slots H L K"], d_cache: Float[Tensor, "slots HV L V"]
) -> str:
    return "reached"


GOOD = {"q": T(2, 8, 64), "k_cache": T(16, 8, 4, 64), "d_cache": T(16, 2, 4, 32)}
A1 = {**GOOD, "k_cache": T(16, 4, 4, 64)}
case = pytest.mark.parametrize


def refused(make: Callable[[], Any], *parts: str) -> None:
    """State that a definition is refused, with a text that holds these parts."""
    with pytest.raises(ContractDefinitionError) as caught:
        make()
    for part in parts:
        assert part in str(caught.value)


class TestA:
    """Attribution and text."""

    def test_a1_binder_named(self, modes: Any) -> None:
        raised = modes.rejects(reference, **A1)
        assert str(raised) == (
            "k_cache: axis 1 (H) is 4, but H is 8 (q axis 1); expected [slots, H, L, K] = [16, 8, 4, 64],"
            " got [16, 4, 4, 64]"
        )

    def test_a2_rejected_argument_is_no_source(self, modes: Any) -> None:
        raised = modes.rejects(reference, **A1)
        sound = {name for name, binding in raised.bindings.items() if not binding.rejected}
        assert sound == {"B", "H", "K", "HV", "V"}
        assert "slots=16 (k_cache axis 0, itself rejected)" in raised.__notes__[0]
        assert "H=8 (q axis 1)," in raised.__notes__[0]

    def test_a4_optional_keeps_the_reason(self, modes: Any) -> None:
        @contract
        def f(q: Float[Tensor, "B H K"], bias: Optional[Float[Tensor, "B H"]] = None) -> None: ...  # noqa: UP045

        raised = modes.rejects(f, T(2, 8, 64), T(2, 7))
        assert str(raised).startswith("bias: axis 1 (H) is 7, but H is 8 (q axis 1)")

    def test_a5_author_bug_is_no_caller_bug(self, modes: Any) -> None:
        @contract
        def divides(v: Float[Tensor, "n m"], w: Float[Tensor, " n//m"]) -> None: ...

        @contract
        def reads(x: Float[Tensor, " {cfg.d}"], cfg: Any) -> None: ...

        @contract
        def quotes(x: Float[Tensor, " {cfg['d']}"], cfg: Any) -> None: ...

        for call in (partial(divides, T(3, 0), T(2)), partial(reads, T(3), None), partial(quotes, T(3), {})):
            error = modes(call)
            assert isinstance(error, ContractDefinitionError)
            assert error.__cause__ is not None
        modes.accepts(reads, T(3), SimpleNamespace(d=3))
        modes.accepts(quotes, T(3), {"d": 3})
        modes.rejects(quotes, T(3), {"d": 4})

    def test_a5_at_decoration_where_decidable(self) -> None:
        def keyword() -> Any:
            @contract
            def f(w: Float[Tensor, " in*2"]) -> None: ...

        refused(keyword, "f: w: axis 'in*2'", "does not parse")

    def test_a9_two_validators_on_one_line(self, modes: Any) -> None:
        three, four = Is[lambda t: t.ndim == 3], Is[lambda t: t.ndim == 4 and t.shape[1] == 8]

        @contract
        def f(q: Annotated[Shaped[Tensor, "..."], three], k: Annotated[Tensor, four]) -> None: ...

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BeartypeValeLambdaWarning)  # stock cannot tell the two apart
            modes.accepts(f, T(1, 2, 3), T(1, 8, 2, 3))
            raised = modes.rejects(f, T(1, 2, 3), T(1, 2, 3, 4))
            assert str(raised) == (
                "k: expected Annotated[Tensor, Is[lambda t: t.ndim == 4 and t.shape[1] == 8]], got Tensor"
            )
            assert str(modes.rejects(f, T(1, 2), T(1, 8, 2, 3))) == (
                "q: breaks Annotated[Tensor, Is[lambda t: t.ndim == 3]]"
            )

    @case(
        ("args", "kwargs", "text"),
        [
            ((), {}, "missing 3 required positional arguments: 'q', 'k_cache', and 'd_cache'"),
            (tuple(GOOD.values()), {"qq": 1}, "got an unexpected keyword argument 'qq'"),
            (tuple(GOOD.values()), {"q": 1}, "got multiple values for argument 'q'"),
            ((*GOOD.values(), 1), {}, "takes 3 positional arguments but 4 were given"),
        ],
        ids=["missing", "unexpected", "duplicate", "too-many"],
    )
    @case("mode", ["compiled", "beartype", "off"])
    def test_a11_native_texts(self, mode: Any, args: Any, kwargs: Any, text: str) -> None:
        with enforcement(mode), pytest.raises(TypeError) as caught:
            reference(*args, **kwargs)
        assert str(caught.value) == f"reference() {text}"
        assert not isinstance(caught.value, ContractViolation)

    def test_a13_documented_error_wins(self, modes: Any) -> None:
        error = DocumentedError("lb-rank", ValueError, "lb must be 3-D")

        @contract(Contract("f", clauses=[shape("lb", error=error)]))
        def f(lb: Float[Tensor, "B H K"]) -> None: ...

        raised = modes.rejects(f, T(2, 3))
        assert isinstance(raised, ValueError)
        assert str(raised) == "lb must be 3-D"

    def test_a15_keywords_in_any_order(self, modes: Any) -> None:
        raised = modes.rejects(reference, **dict(reversed(A1.items())))
        assert str(raised).startswith("k_cache: axis 1 (H) is 4")
        assert list(raised.arguments) == ["q", "k_cache", "d_cache"]

    def test_a16_structured_fields(self, modes: Any) -> None:
        error = modes.rejects(reference, **A1)
        again = pickle.loads(pickle.dumps(error))
        for raised in (error, again):
            assert raised.error is None
            assert raised.entry_point == f"{__name__}.reference"
            assert raised.bindings["H"].size == 8
            assert raised.bindings["H"].axes == (("q", 1, 8), ("k_cache", 1, 4))
            assert raised.arguments["k_cache"].shape == (16, 4, 4, 64)
            assert raised.arguments["k_cache"].expected == "[slots, H, L, K]"
        assert str(again) == str(error) == str(modes.rejects(reference, **A1))

    def test_a17_several_failures_are_deterministic(self, modes: Any) -> None:
        wrong = {**A1, "q": T(2, 8, 64, dtype=torch.int32)}
        texts = {str(modes.rejects(reference, **wrong)) for _ in range(3)}
        assert texts == {"q: dtype is torch.int32, expected Float"}

    def test_a18_cost_of_a_failure_is_independent_of_size(self) -> None:
        @contract
        def f(q: Float[Tensor, "n n"]) -> None: ...

        def cost(sizes: tuple[int, int]) -> float:
            wrong, best = torch.zeros(sizes), 1.0
            for _ in range(30):
                start = time.perf_counter()
                with pytest.raises(ContractViolation):
                    f(wrong)
                best = min(best, time.perf_counter() - start)
            return best

        small, large = cost((2, 3)), cost((4096, 4095))
        assert large < 3 * small
        assert large < 2e-3


class TestB:
    """Binding."""

    def test_b1_names_that_bind_later(self, modes: Any) -> None:
        @contract
        def f(a: Float[Tensor, " T+1"], b: Float[Tensor, " T"]) -> None: ...

        modes.accepts(f, T(4), T(3))
        assert str(modes.rejects(f, T(4), T(4))).startswith("a: axis 0 (T+1) is 4, but T+1 is 5 with T=4 (b axis 0)")

    def test_b2_solving(self, modes: Any) -> None:
        @contract
        def f(a: Float[Tensor, " n*2"], b: Float[Tensor, " {k}"], k: int) -> None: ...

        @contract(Contract("g", clauses=[require(lambda n, k: n == k)]))
        def g(a: Float[Tensor, " n*2"], k: int) -> None: ...

        assert "no n makes n*2 that size" in str(modes.rejects(f, T(5), T(1), 1))
        modes.accepts(g, T(6), 3)
        modes.rejects(g, T(6), 4)

    def test_b3_two_unknowns(self) -> None:
        def make() -> Any:
            @contract
            def f(a: Float[Tensor, " n*m"]) -> None: ...

        refused(make, "axis 'n*m' reads 'n', which nothing binds")

    @case("flip", [False, True])
    def test_b5_union_order(self, modes: Any, flip: bool) -> None:
        one, two = Float[Tensor, "foo bar"], Float[Tensor, "foo 1"]
        hint = two | one if flip else one | two

        @contract
        def f(x: hint, y: Float[Tensor, " bar"]) -> None: ...

        modes.accepts(f, T(2, 1), T(5))
        modes.accepts(f, T(2, 5), T(5))
        modes.rejects(f, T(2, 3), T(5))

    def test_b6_a_failed_branch_leaves_nothing(self, modes: Any) -> None:
        @contract
        def f(x: Float[Tensor, "a 3"] | Float[Tensor, "b 4"], y: Float[Tensor, " a"]) -> None: ...

        modes.accepts(f, T(5, 4), T(6))
        modes.rejects(f, T(5, 3), T(6))

    def test_b7_broadcasting(self, modes: Any) -> None:
        @contract
        def three(a: Float[Tensor, " #n"], b: Float[Tensor, " #n"], c: Float[Tensor, " #n"]) -> None: ...

        @contract
        def bare_first(a: Float[Tensor, " n"], b: Float[Tensor, " #n"]) -> None: ...

        @contract
        def bare_last(a: Float[Tensor, " #n"], b: Float[Tensor, " n"]) -> None: ...

        modes.rejects(three, T(1), T(5), T(7))
        modes.accepts(three, T(5), T(1), T(5))
        modes.accepts(three, T(1), T(1), T(1))
        for bare, loose, fits in ((5, 1, True), (5, 5, True), (1, 5, False), (1, 1, True)):
            outcomes = {modes(bare_first, T(bare), T(loose)) is None, modes(bare_last, T(loose), T(bare)) is None}
            assert outcomes == {fits}

    def test_b9_dim_and_int_parameter(self, modes: Any) -> None:
        def clash() -> Any:
            @contract
            def f(q: Float[Tensor, "B H"], H: int) -> None: ...

        refused(clash, "dim 'H' has the name of a parameter", "tied")

        @contract(Contract("f", tied="H"))
        def f(q: Float[Tensor, "B H"], H: int) -> None: ...

        raised = modes.rejects(f, T(2, 3), 4)
        assert str(raised).startswith("q: axis 1 (H) is 3, but H is 4 (argument H)")

    def test_b10_two_variadics(self) -> None:
        # jaxtyping refuses it at the hint, before a contract sees it.
        with pytest.raises(ValueError, match="variadic specifiers"):
            Float[Tensor, "*b *c"]

    @case("text", ["1, 2", "a,b"])
    def test_b12_commas(self, text: str) -> None:
        def make() -> Any:
            hint = Float[Tensor, text]

            @contract
            def f(x: hint) -> None: ...

        with pytest.raises((ContractDefinitionError, ValueError), match="comma"):
            make()

    def test_b12_blanks_and_names(self, modes: Any) -> None:
        @contract
        def f(a: Float[Tensor, "  n \t β"], b: Float[Tensor, "_x rows=4 β"]) -> None: ...

        modes.accepts(f, T(2, 3), T(9, 4, 3))
        modes.rejects(f, T(2, 3), T(9, 5, 3))
        modes.rejects(f, T(2, 3), T(9, 4, 2))

    def test_b13_true_division_and_negatives(self, modes: Any) -> None:
        @contract
        def half(x: Float[Tensor, " n"], y: Float[Tensor, " n/2"]) -> None: ...

        @contract
        def less(x: Float[Tensor, " n"], y: Float[Tensor, " n-5"]) -> None: ...

        modes.accepts(half, T(4), T(2))
        modes.rejects(half, T(5), T(2))
        assert "n-5 is -2 with n=3" in str(modes.rejects(less, T(3), T(0)))

    def test_b14_literal_below_zero(self) -> None:
        def make() -> Any:
            @contract
            def f(x: Float[Tensor, "-1"]) -> None: ...

        refused(make, "no axis has a size below 0")

    def test_b15_zero_sizes(self, modes: Any) -> None:
        @contract
        def f(x: Float[Tensor, "n m"], y: Float[Tensor, "n m"]) -> None: ...

        modes.accepts(f, T(0, 3), T(0, 3))
        assert "n is 0 (x axis 0)" in str(modes.rejects(f, T(0, 3), T(1, 3)))

    def test_b17_names_of_builtins_and_keywords(self, modes: Any) -> None:
        @contract
        def f(
            x: Float[Tensor, "in len"], y: Float[Tensor, "len max"], z: Float[Tensor, " in"], w: Float[Tensor, " len+1"]
        ) -> None: ...

        @contract
        def g(x: Float[Tensor, "a b"], y: Float[Tensor, " max(a,b)"]) -> None: ...

        modes.accepts(f, T(2, 3), T(3, 4), T(2), T(4))
        modes.rejects(f, T(2, 3), T(3, 4), T(5), T(4))
        modes.rejects(f, T(2, 3), T(3, 4), T(2), T(3))
        modes.accepts(g, T(2, 3), T(3))
        modes.rejects(g, T(2, 3), T(2))

    def test_b19_two_outputs_may_differ(self, modes: Any) -> None:
        class Outputs(NamedTuple):
            value: Float[Tensor, " n"]
            error: Float[Tensor, " n"]

        @contract
        @dataclass
        class Kept:
            value: Float[Tensor, " n"]
            error: Float[Tensor, " n"]

        @contract
        def shared(a: Outputs, b: Outputs) -> None: ...

        @contract
        def apart(a: Kept, b: Kept) -> None: ...

        # Fields of a tuple belong to the call; a contracted dataclass has looked at its own when it was made.
        modes.accepts(shared, Outputs(T(2), T(2)), Outputs(T(2), T(2)))
        assert str(modes.rejects(shared, Outputs(T(2), T(2)), Outputs(T(3), T(3)))).startswith(
            "b.value: axis 0 (n) is 3"
        )
        modes.accepts(apart, Kept(T(2), T(2)), Kept(T(3), T(3)))
        with pytest.raises(ContractViolation):
            Kept(T(2), T(3))


class TestC:
    """Defaults, None, strings."""

    def test_c1_default_none(self, modes: Any) -> None:
        @contract
        def f(x: Float[Tensor, " n"] = None) -> str:  # type: ignore[assignment]
            return "reached"

        assert modes(f) == modes(f, None) == "reached"

    def test_c2_bad_default_is_checked_on_use(self, modes: Any) -> None:
        bad = T(4)

        @contract
        def f(x: Float[Tensor, "3"] = bad) -> None: ...

        assert str(modes.rejects(f)).startswith("x: axis 0 is 4, but must be 3")
        modes.accepts(f, T(3))

    def test_c4_closure_local_alias_under_future_annotations(self, modes: Any, tmp_path: Path) -> None:
        (tmp_path / "pep563.py").write_text(
            "from __future__ import annotations\n"
            "from jaxtyping import Float\n"
            "from torch import Tensor\n"
            "from tensorpact import contract\n"
            "def make():\n"
            "    T = Tensor\n"
            "    @contract\n"
            "    def f(x: Float[T, 'n d'], y: Float[T, 'n'] | None = None): return 'reached'\n"
            "    return f\n"
            "def broken():\n"
            "    @contract\n"
            "    def f(x: Float[Missing, 'n d']): ...\n"
            "    f(None)\n"
        )
        sys.path.insert(0, str(tmp_path))
        try:
            import pep563  # type: ignore[import-not-found]
        finally:
            sys.path.remove(str(tmp_path))
        f = pep563.make()
        assert modes(f, T(2, 3), T(2)) == "reached"
        assert str(modes.rejects(f, T(2, 3), T(3))).startswith("y: axis 0 (n) is 3, but n is 2 (x axis 0)")
        refused(pep563.broken, "the annotation of x", "Missing")

    def test_c6_string_annotations(self, modes: Any) -> None:
        @contract
        def f(x: "Float[Tensor, ' n']", y: "Float[Tensor, ' n'] | None" = None, count: "int" = 0) -> None: ...

        modes.accepts(f, T(2), T(2))
        modes.rejects(f, T(2), T(3))
        modes.rejects(f, T(2), T(2), "x")

    def test_c7_conditional_requirement(self, modes: Any) -> None:
        clauses = [
            needs("indices", "state"),
            require(
                lambda state, B, indices: state is None or indices is not None or state.shape[0] == B, about="state"
            ),
        ]

        @contract(Contract("f", clauses=clauses))
        def f(
            q: Float[Tensor, "B K"], indices: Int[Tensor, " B"] | None = None, state: Float[Tensor, "_ K"] | None = None
        ) -> None: ...

        index = T(2, dtype=torch.int32)
        modes.accepts(f, T(2, 3))
        modes.accepts(f, T(2, 3), index, T(9, 3))
        modes.accepts(f, T(2, 3), None, T(2, 3))
        assert str(modes.rejects(f, T(2, 3), index)) == "indices needs state, which is None"
        modes.rejects(f, T(2, 3), None, T(9, 3))

    def test_c8_groups(self, modes: Any) -> None:
        clauses = [
            require(lambda a, b: (a is None) != (b is None), about=("a", "b")),
            exclusive("a", "b"),
            together("c", "d"),
        ]

        @contract(Contract("f", clauses=clauses))
        def f(a: int | None = None, b: int | None = None, c: int | None = None, d: int | None = None) -> None: ...

        modes.accepts(f, a=1)
        modes.accepts(f, b=1, c=1, d=1)
        modes.rejects(f)
        modes.rejects(f, a=1, b=1)
        assert str(modes.rejects(f, a=1, d=1)) == "c, d go together: got d without c"


class TestD:
    """Callables."""

    def test_d3_methods_of_every_kind(self, modes: Any) -> None:
        class Layer:
            @staticmethod
            @contract
            def static(x: Float[Tensor, "n n"]) -> str:
                return "reached"

            @contract
            @staticmethod
            def outer_static(x: Float[Tensor, "n n"]) -> str:
                return "reached"

            @classmethod
            @contract
            def of_class(cls, x: Float[Tensor, "n n"]) -> str:
                return cls.__name__

            @contract
            @classmethod
            def outer_of_class(cls, x: Float[Tensor, "n n"]) -> str:
                return cls.__name__

            @contract
            def __call__(self, x: Float[Tensor, "n n"]) -> str:
                return type(self).__name__

            @contract
            def bound(self, x: Float[Tensor, "n n"]) -> str:
                return type(self).__name__

        layer = Layer()
        assert type(layer.bound) is MethodType
        for call in (
            Layer.static, layer.static, layer.outer_static, Layer.of_class, layer.outer_of_class, layer, layer.bound,
            partial(Layer.bound, layer),
        ):  # fmt: skip
            assert modes(call, T(2, 2)) in ("reached", "Layer")
            assert str(modes.rejects(call, T(2, 3))).startswith("x: axis 1 (n) is 3, but n is 2 (x axis 0)")

    def test_d3_property(self, modes: Any) -> None:
        class Layer:
            def __init__(self) -> None:
                self.kept: Any = None

            @property
            def weight(self) -> Any:
                return self.kept

            @weight.setter
            @contract
            def weight(self, value: Float[Tensor, "n n"]) -> None:
                self.kept = value

        layer = Layer()
        modes.accepts(setattr, layer, "weight", T(2, 2))
        assert layer.weight.shape == (2, 2)
        modes.rejects(setattr, layer, "weight", T(2, 3))

    @case("thing", [partial(print), len, SimpleNamespace()], ids=["partial", "builtin", "object"])
    def test_d3_what_cannot_be_decorated(self, thing: Any) -> None:
        refused(lambda: contract(thing), "is no Python function")

    def test_d3_lambda(self) -> None:
        assert contract(lambda x: x)(3) == 3

    def test_d6_double_decoration(self, modes: Any) -> None:
        calls: list[int] = []
        clauses = [require(lambda n: calls.append(n) is None)]

        @contract
        @contract(Contract("f", clauses=clauses))
        def f(x: Float[Tensor, " n"]) -> None: ...

        f(T(3))
        assert calls == [3]

    def test_d8_recursion_and_exceptions_in_the_body(self, modes: Any) -> None:
        @contract
        def f(x: Float[Tensor, "n m"], y: Float[Tensor, " n"], depth: int) -> int:
            if depth:
                return f(T(depth + 5, 2), T(depth + 5), depth - 1) + 1
            raise KeyError("body")

        for _ in range(2):
            error = modes(f, T(2, 3), T(2), 3)
            assert isinstance(error, KeyError)
        modes.rejects(f, T(2, 3), T(3), 0)

    def test_d9_signature_and_hints(self) -> None:
        def plain(x: Float[Tensor, " n"], y: int = 3, *, z: float = 0.5) -> None: ...

        decorated = contract(plain)
        assert inspect.signature(decorated) == inspect.signature(plain)
        assert decorated.__annotations__ == plain.__annotations__
        assert decorated.__name__ == "plain"
        assert decorated.__wrapped__ is plain
        assert decorated.__doc__ == plain.__doc__

    def test_d10_pickle_copy_and_no_cycle(self) -> None:
        assert pickle.loads(pickle.dumps(reference)) is reference
        assert copy.deepcopy(reference) is reference

        def make() -> Any:
            @contract
            def f(x: Float[Tensor, " n"]) -> None: ...

            f(T(2))
            return f

        kept = make()
        watch = weakref.ref(kept)
        gc.collect()
        gc.disable()
        try:
            del kept
            assert watch() is None
        finally:
            gc.enable()


class TestE:
    """dtype."""

    @case("name", ["float8_e8m0fnu", "float4_e2m1fn_x2"])
    def test_e1_mx_dtypes_are_floats(self, modes: Any, name: str) -> None:
        @contract
        def f(x: Float[Tensor, " n"]) -> None: ...

        @contract
        def g(x: Int[Tensor, " n"]) -> None: ...

        x = torch.empty(4, dtype=getattr(torch, name))
        modes.accepts(f, x)
        assert str(modes.rejects(g, x)) == f"x: dtype is torch.{name}, expected Int"

    def test_e2_fp8_flavours(self, modes: Any) -> None:
        @contract
        def f(x: Annotated[Float[Tensor, " n"], OneOf(torch.float8_e4m3fn)]) -> None: ...

        @contract
        def g(x: Annotated[Shaped[Tensor, " n"], OneOf(torch.float8_e4m3fn, torch.uint8)]) -> None: ...

        fn, fnuz = (torch.empty(4, dtype=d) for d in (torch.float8_e4m3fn, torch.float8_e4m3fnuz))
        modes.accepts(f, fn)
        raised = modes.rejects(f, fnuz)
        assert str(raised) == "x: dtype is torch.float8_e4m3fnuz, expected torch.float8_e4m3fn"
        modes.rejects(f, fn.view(torch.uint8))
        modes.accepts(g, fn.view(torch.uint8))

    def test_e3_int64_for_int32(self, modes: Any) -> None:
        @contract
        def f(indptr: Int32[Tensor, " n"]) -> None: ...

        assert str(modes.rejects(f, T(2, dtype=torch.int64))) == "indptr: dtype is torch.int64, expected Int32"

    def test_e4_odd_dtypes(self, modes: Any) -> None:
        from jaxtyping import Complex

        def one(hint: Any) -> Any:
            @contract
            def f(x: hint) -> None: ...

            return f

        modes.rejects(one(UInt8[Tensor, " n"]), T(2, dtype=torch.bool))
        modes.accepts(one(Bool[Tensor, " n"]), T(2, dtype=torch.bool))
        modes.rejects(one(Num[Tensor, " n"]), T(2, dtype=torch.bool))
        with warnings.catch_warnings(action="ignore"):
            half = T(2, dtype=torch.complex32)
        modes.accepts(one(Complex[Tensor, " n"]), half)
        modes.accepts(one(Shaped[Tensor, " n"]), half)


class TestF:
    """Device, layout, values."""

    def test_f1_devices_named(self, modes: Any) -> None:
        @contract(Contract("f", clauses=[same_device("q", "k_cache")]))
        def f(q: Float[Tensor, " n"], k_cache: Float[Tensor, " n"]) -> None: ...

        assert str(modes.rejects(f, T(2), T(2).to("meta"))) == "k_cache: is on meta, but q is on cpu"

    def test_f3_dense_inner(self, modes: Any) -> None:
        @contract
        def last(x: Annotated[Float[Tensor, "a b c"], DenseLast()]) -> None: ...

        @contract
        def inner(x: Annotated[Float[Tensor, "a b c"], DenseInner(2)]) -> None: ...

        padded = T(2, 3, 8)[..., :4]
        modes.accepts(last, padded)
        assert str(modes.rejects(inner, padded)) == (
            "x: last 2 axes are not dense: shape (2, 3, 4) has strides (24, 8, 1)"
        )
        modes.accepts(inner, T(2, 6, 4)[:, :3])

    def test_f5_alignment(self, modes: Any) -> None:
        @contract
        def f(x: Annotated[Float16[Tensor, " n"], Aligned(16)]) -> None: ...

        x = T(64, dtype=torch.float16)
        modes.accepts(f, x)
        modes.accepts(f, x[8:])
        assert str(modes.rejects(f, x[1:])) == "x: starts 2 bytes past a multiple of 16"

    def test_f6_expanded_output(self, modes: Any) -> None:
        @contract(Contract("f", mutates="out"))
        def f(out: Float[Tensor, "n m"], x: Float[Tensor, "n m"]) -> None: ...

        modes.accepts(f, T(2, 3), T(1, 3).expand(2, 3))
        assert "stride 0" in str(modes.rejects(f, T(1, 3).expand(2, 3), T(2, 3)))

    def test_f7_partial_overlap(self, modes: Any) -> None:
        @contract(Contract("f", clauses=[no_overlap("out", "x")], mutates="out"))
        def f(out: Float[Tensor, " n"], x: Float[Tensor, " n"]) -> None: ...

        @contract(Contract("g", mutates="out"))
        def g(out: Float[Tensor, " n"], x: Float[Tensor, " n"]) -> None: ...

        pool = T(8)
        assert str(modes.rejects(f, pool[:4], pool[2:6])) == "out: shares memory with x"
        modes.rejects(f, pool, pool)
        modes.accepts(g, pool, pool)

    def test_f9_index_reach(self, modes: Any) -> None:
        @contract
        def f(pool: Annotated[Float[Tensor, "slots n"], Reach32()]) -> None: ...

        reach = torch.empty_strided((3, 4), (2**30, 1), device="meta")
        assert str(modes.rejects(f, reach)) == "pool: reaches element offset 2147483651, beyond 32-bit addressing"
        modes.accepts(f, torch.empty_strided((2, 4), (2**30, 1), device="meta"))
        modes.accepts(f, torch.empty_strided((0, 4), (2**40, 1), device="meta"))

    def test_f12_head_dim_multiple(self, modes: Any) -> None:
        @contract(Contract("f", clauses=[require(lambda D: D % 64 == 0)]))
        def f(q: Float[Tensor, "T D"]) -> None: ...

        modes.accepts(f, T(2, 128))
        for size in (96, 72):
            assert f"D={size}" in str(modes.rejects(f, T(2, size)))

    def test_f13_mask_shape(self, modes: Any) -> None:
        @contract
        def f(q: Float[Tensor, "qo D"], k: Float[Tensor, "kv D"], mask: Bool[Tensor, "qo kv"]) -> None: ...

        modes.accepts(f, T(2, 4), T(3, 4), T(2, 3, dtype=torch.bool))
        modes.rejects(f, T(2, 4), T(3, 4), T(3, 2, dtype=torch.bool))

    def test_f15_grouped_value_heads(self, modes: Any) -> None:
        @contract(Contract("f", clauses=[require(lambda H, HV: HV % H == 0)]))
        def f(q: Float[Tensor, "T H"], v: Float[Tensor, "T HV"], beta: Float[Tensor, "T HV"]) -> None: ...

        modes.accepts(f, T(1, 2), T(1, 4), T(1, 4))
        modes.rejects(f, T(1, 2), T(1, 3), T(1, 3))
        assert str(modes.rejects(f, T(1, 2), T(1, 4), T(1, 2))).startswith("beta: axis 1 (HV) is 2, but HV is 4")

    def test_f16_two_pools_share_slots(self, modes: Any) -> None:
        raised = modes.rejects(reference, **{**GOOD, "d_cache": T(15, 2, 4, 32)})
        assert str(raised).startswith("d_cache: axis 0 (slots) is 15, but slots is 16 (k_cache axis 0)")

    def test_f_contiguous_and_same_dtype(self, modes: Any) -> None:
        clauses = [layout("x"), same_dtype("x", "y")]

        @contract(Contract("f", clauses=clauses))
        def f(x: Annotated[Float[Tensor, "n m"], Contiguous()], y: Float[Tensor, "n m"]) -> None: ...

        raised = modes.rejects(f, T(3, 2).T, T(2, 3))
        assert str(raised) == "x: is not contiguous: shape (2, 3) has strides (1, 2)"
        modes.rejects(f, T(2, 3), T(2, 3).half())


class TestH:
    """Concurrency and lifetime."""

    def test_h2_threads_race_for_the_first_use(self) -> None:
        @dataclass
        class Layer:
            weight: Float[Tensor, "n m"]

            @contract
            def forward(self, x: Float[Tensor, " m"], s: float | str) -> str:
                return "reached"

        layer, outcomes = Layer(T(2, 3)), list[Any]()
        barrier = threading.Barrier(24)

        def call(size: int) -> None:
            barrier.wait()
            try:
                outcomes.append(layer.forward(T(size), "s"))
            except ContractViolation as error:
                outcomes.append(str(error)[:26])

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=call, args=(3 + i % 2,)) for i in range(24)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)
        assert sorted(outcomes) == ["reached"] * 12 + ["x: axis 0 (m) is 4, but m "] * 12

    def test_h3_no_growth(self) -> None:
        import tracemalloc

        def define() -> None:
            @contract
            def f(x: Float[Tensor, "n n"]) -> None: ...

            f(T(2, 2))
            with pytest.raises(ContractViolation):
                f(T(2, 3))

        for _ in range(50):
            define()
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(200):
                define()
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert grown < 200 * 1_500


def test_a14_under_optimisation() -> None:
    """``python -O`` gives the same errors."""
    script = (
        "import torch\n"
        "from jaxtyping import Float\n"
        "from torch import Tensor\n"
        "from tensorpact import contract, enforcement\n"
        "@contract\n"
        "def f(q: Float[Tensor, 'B H'], k: Float[Tensor, 'B H']): ...\n"
        "for mode in ('compiled', 'beartype'):\n"
        "    for wrong in (torch.zeros(2, 4), torch.zeros(2), None, torch.zeros(2, 3).int()):\n"
        "        try:\n"
        "            with enforcement(mode): f(torch.zeros(2, 3), wrong)\n"
        "        except Exception as error:\n"
        "            print(type(error).__name__, error, error.__notes__)\n"
    )
    plain, optimised = (
        subprocess.run(
            [sys.executable, *flags, "-c", script], capture_output=True, text=True, check=True, timeout=120
        ).stdout
        for flags in ((), ("-O",))
    )
    assert plain == optimised
    assert plain.count("Contract") == 8
