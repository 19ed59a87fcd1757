"""The rules of the language, one after the other; every call is made in both modes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest
import torch
from jaxtyping import Float, Float32, Int, Int32
from torch import Tensor

from tensorpact import Contract, ContractDefinitionError, DocumentedError, contract
from tensorpact.clauses import (
    Clause,
    any_of,
    device,
    dtype,
    exclusive,
    layout,
    let,
    needs,
    no_overlap,
    present,
    rank,
    require,
    same_device,
    same_dim,
    same_dtype,
    shape,
    together,
)
from tensorpact.constraints import Contiguous, DenseLast, OnDevice, OneOf


def T(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:  # noqa: N802 - as the cases write it
    return torch.zeros(sizes, dtype=dtype)


def documented(slug: str, template: str = "", kind: type[Exception] = RuntimeError) -> DocumentedError:
    return DocumentedError(slug, kind, template or slug)


FIRST, SECOND, THIRD = documented("first"), documented("second"), documented("third")


def with_clauses(*clauses: Clause, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return contract(Contract("entry", clauses=clauses, **options))


def attention(*clauses: Clause, **options: Any) -> Callable[..., Any]:
    """q, k, v and an optional mask and scale under these clauses."""

    @with_clauses(*clauses, **options)
    def entry(
        q: Annotated[Float[Tensor, "B H K"], DenseLast(), OnDevice("cpu", "meta")],
        k: Annotated[Float[Tensor, "B T H K"], OneOf(torch.float32, torch.float16)],
        v: Float[Tensor, "B T H V"],
        mask: Int32[Tensor, "B T"] | None = None,
        scale: float | None = None,
    ) -> str:
        return "reached"

    return entry


def right() -> dict[str, Any]:
    """B 2, H 3, K 4, T 5, V 6."""
    return {"q": T(2, 3, 4), "k": T(2, 5, 3, 4), "v": T(2, 5, 3, 6), "mask": T(2, 5, dtype=torch.int32), "scale": 0.5}


NARROW = torch.zeros(2, 3, 8)[..., ::2]


class TestObligations:
    """Everything that an annotation says is enforced, claimed or not."""

    @pytest.mark.parametrize(
        ("change", "kind", "text"),
        [
            ({"q": "text"}, TypeError, "q: expected a Tensor [B, H, K], got str"),
            ({"q": None}, TypeError, "q: expected a Tensor [B, H, K], got None"),
            ({"q": T(2, 3)}, ValueError, "q: expected 3 axes [B, H, K], got 2 axes: [2, 3]"),
            ({"q": T(2, 3, 4, dtype=torch.int32)}, TypeError, "q: dtype is torch.int32, expected Float"),
            (
                {"k": T(2, 5, 3, 4, dtype=torch.bfloat16)},
                TypeError,
                "k: dtype is torch.bfloat16, expected torch.float16 or torch.float32",
            ),
            (
                {"k": T(2, 5, 2, 4)},
                ValueError,
                "k: axis 2 (H) is 2, but H is 3 (q axis 1); expected [B, T, H, K] = [2, 5, 3, 4], got [2, 5, 2, 4]",
            ),
            ({"q": NARROW}, ValueError, "q: last axis has stride 2, not 1 (strides (24, 8, 2))"),
            ({"mask": T(2, 5)}, TypeError, "mask: dtype is torch.float32, expected Int32"),
            ({"mask": T(2)}, ValueError, "mask: expected 2 axes [B, T], got 1 axis: [2]"),
            ({"scale": "text"}, TypeError, "scale: expected float or None, got str 'text'"),
            ({"scale": True}, TypeError, "scale: expected float or None, got bool True"),
        ],
        ids=["class", "none", "rank", "dtype", "one-of", "axis", "layout", "mask-dtype", "mask-rank", "scalar", "bool"],
    )
    def test_default_errors(self, modes: Any, change: dict[str, Any], kind: type[Exception], text: str) -> None:
        for entry in (attention(), attention(rank("v", error=FIRST), same_device("q", "v", error=SECOND))):
            raised = modes.rejects(entry, **{**right(), **change})
            assert isinstance(raised, kind)
            assert str(raised) == text
            assert raised.error is None
            assert raised.clause is None

    @pytest.mark.parametrize("change", [{}, {"mask": None}, {"scale": 1}, {"scale": None}, {"k": T(2, 5, 3, 4).half()}])
    def test_right_calls(self, modes: Any, change: dict[str, Any]) -> None:
        assert modes(attention(), **{**right(), **change}) == "reached"


class TestClaims:
    """A claim gives an obligation its time and its documented error."""

    @pytest.mark.parametrize(
        ("clause", "change"),
        [
            (rank("q", error=FIRST), {"q": T(2, 3)}),
            (dtype("q", error=FIRST), {"q": T(2, 3, 4, dtype=torch.int64)}),
            (dtype("k", error=FIRST), {"k": T(2, 5, 3, 4).bfloat16()}),
            (layout("q", error=FIRST), {"q": NARROW}),
            (shape("k", error=FIRST), {"k": T(2, 5, 3)}),
            (shape("k", error=FIRST), {"k": T(2, 5, 3, 5)}),
            (shape("k", axes="H", error=FIRST), {"k": T(2, 5, 2, 4)}),
            (same_dim("H", "q", "v", error=FIRST), {"v": T(2, 5, 2, 6)}),
            (any_of(rank("q"), dtype("q"), error=FIRST), {"q": T(2, 3, 4, dtype=torch.int64)}),
        ],
        ids=str,
    )
    def test_documented_error(self, modes: Any, clause: Clause, change: dict[str, Any]) -> None:
        raised = modes.rejects(attention(clause), **{**right(), **change})
        assert type(raised).__name__ == "ContractRuntimeError"
        assert (raised.error, str(raised), raised.clause) == (FIRST, "first", str(clause))
        modes.accepts(attention(clause), **right())

    def test_device(self, modes: Any) -> None:
        @with_clauses(device("q", error=FIRST))
        def entry(q: Annotated[Float[Tensor, " K"], OnDevice("meta")]) -> None: ...

        assert modes.rejects(entry, T(2)).error is FIRST
        modes.accepts(entry, T(2).to("meta"))

    def test_present_claims_only_none(self, modes: Any) -> None:
        @with_clauses(rank("q", error=FIRST), present("v", error=SECOND))
        def entry(q: Float[Tensor, "B K"], v: Float[Tensor, "B K"]) -> None: ...

        assert modes.rejects(entry, T(2, 3), None).error is SECOND
        assert modes.rejects(entry, T(2), None).error is FIRST
        raised = modes.rejects(entry, T(2), "text")
        assert str(raised) == "v: expected a Tensor [B, K], got str"

    def test_present_on_an_optional_argument(self, modes: Any) -> None:
        entry = attention(present("mask", error=FIRST, when=lambda scale: scale is not None))
        assert modes.rejects(entry, **{**right(), "mask": None}).error is FIRST
        modes.accepts(entry, **{**right(), "mask": None, "scale": None})

    def test_shape_with_axes_leaves_the_others_to_later_claims(self, modes: Any) -> None:
        entry = attention(shape("k", axes="B H", error=FIRST), shape("k", axes="K", error=SECOND))
        assert modes.rejects(entry, **{**right(), "k": T(2, 5, 3, 5)}).error is SECOND
        assert modes.rejects(entry, **{**right(), "k": T(3, 5, 3, 5)}).error is FIRST

    def test_an_axis_that_the_parameter_itself_binds_cannot_fail(self, modes: Any) -> None:
        entry = attention(shape("q", error=FIRST), shape("k", error=SECOND))
        assert modes.rejects(entry, **{**right(), "q": T(4, 3, 4)}).error is SECOND

    def test_same_dim_compares_only_its_parameters(self, modes: Any) -> None:
        entry = attention(same_dim("H", "k", "v", error=FIRST), same_dim("H", "q", "k", error=SECOND))
        assert modes.rejects(entry, **{**right(), "q": T(2, 7, 4)}).error is SECOND
        assert modes.rejects(entry, **{**right(), "k": T(2, 5, 7, 4)}).error is FIRST

    def test_same_dim_says_which_differs(self, modes: Any) -> None:
        raised = modes.rejects(attention(same_dim("H", "k", "v")), **{**right(), "v": T(2, 5, 7, 6)})
        assert str(raised) == "v: axis 2 (H) is 7, but H is 3 (k axis 2); got [2, 5, 7, 6]"

    def test_an_obligation_claimed_twice_fires_at_the_first(self, modes: Any) -> None:
        entry = attention(rank("k", error=FIRST), shape("k", error=SECOND))
        assert modes.rejects(entry, **{**right(), "k": T(2, 5)}).error is FIRST
        assert modes.rejects(entry, **{**right(), "k": T(3, 5, 3, 4)}).error is SECOND

    def test_a_skipped_claim_drops_nothing(self, modes: Any) -> None:
        entry = attention(rank("k", error=FIRST, when=lambda scale: scale is None))
        assert modes.rejects(entry, **{**right(), "k": T(2, 5), "scale": None}).error is FIRST
        raised = modes.rejects(entry, **{**right(), "k": T(2, 5)})
        assert raised.error is None
        assert str(raised) == "k: expected 4 axes [B, T, H, K], got 2 axes: [2, 5]"

    def test_a_claim_on_an_absent_optional_holds(self, modes: Any) -> None:
        entry = attention(any_of(rank("mask"), dtype("mask"), shape("mask"), error=FIRST))
        modes.accepts(entry, **{**right(), "mask": None})
        assert modes.rejects(entry, **{**right(), "mask": T(2, 5)}).error is FIRST

    def test_any_of_fires_for_each_member_and_names_in_signature_order(self, modes: Any) -> None:
        error = documented("members", "wrong: {names}, first {name}")
        entry = attention(any_of(rank("v"), dtype("k", "q"), error=error))
        wrong = {"v": T(2), "k": T(2, 5, 3, 4).bfloat16(), "q": T(2, 3, 4, dtype=torch.int32)}
        assert str(modes.rejects(entry, **{**right(), **wrong})) == "wrong: q, k, v, first q"
        assert str(modes.rejects(entry, **{**right(), "v": T(2)})) == "wrong: v, first v"

    def test_any_of_with_added_statements(self, modes: Any) -> None:
        error = documented("devices", "not together: {names}")
        entry = attention(any_of(device("q"), same_device("q", "k", "v"), error=error))
        wrong = {"k": right()["k"].to("meta"), "v": right()["v"].to("meta")}
        assert str(modes.rejects(entry, **{**right(), **wrong})) == "not together: k, v"

    def test_any_of_with_when(self, modes: Any) -> None:
        entry = attention(any_of(rank("k"), rank("v"), error=FIRST, when=lambda scale: scale is None))
        assert modes.rejects(entry, **{**right(), "k": T(2), "scale": None}).error is FIRST
        assert modes.rejects(entry, **{**right(), "k": T(2)}).error is None


class TestAdditions:
    """A clause that adds a statement of its own."""

    def test_same_dtype(self, modes: Any) -> None:
        error = documented("dtypes", "{names} differ from q, {name} is {k.dtype}")
        entry = attention(same_dtype("q", "k", "v", error=error))
        wrong = {"k": right()["k"].half(), "v": right()["v"].double()}
        assert str(modes.rejects(entry, **{**right(), **wrong})) == "k, v differ from q, k is torch.float16"
        modes.accepts(entry, **right())

    def test_same_dtype_default(self, modes: Any) -> None:
        raised = modes.rejects(attention(same_dtype("q", "v")), **{**right(), "v": right()["v"].half()})
        assert str(raised) == "v: dtype is torch.float16, but q has torch.float32"
        assert isinstance(raised, TypeError)

    def test_same_device(self, modes: Any) -> None:
        raised = modes.rejects(attention(same_device("q", "v")), **{**right(), "v": right()["v"].to("meta")})
        assert str(raised) == "v: is on meta, but q is on cpu"
        assert isinstance(raised, ValueError)
        modes.accepts(attention(same_device("q", "mask")), **{**right(), "mask": None})

    def test_same_device_without_its_reference_compares_those_given(self, modes: Any) -> None:
        entry = attention(same_device("mask", "q", "k", error=FIRST))
        wrong = {"mask": None, "k": right()["k"].to("meta")}
        assert modes.rejects(entry, **{**right(), **wrong}).error is FIRST

    def test_together(self, modes: Any) -> None:
        @with_clauses(together("k", "v", "w"))
        def entry(
            q: Float[Tensor, " K"], k: Float[Tensor, " K"] | None = None, v: int | None = None, w: Any = None
        ) -> None: ...

        modes.accepts(entry, T(2))
        modes.accepts(entry, T(2), T(2), 1, "w")
        raised = modes.rejects(entry, T(2), None, 1)
        assert str(raised) == "k, v, w go together: got v without k, w"

    def test_needs(self, modes: Any) -> None:
        error = documented("cos", "{names} missing")

        @with_clauses(needs("cos", "sin", "k", error=error))
        def entry(cos: Float[Tensor, " K"] | None = None, sin: int | None = None, k: int | None = None) -> None: ...

        modes.accepts(entry)
        modes.accepts(entry, sin=1)
        modes.accepts(entry, T(2), 1, 1)
        assert str(modes.rejects(entry, T(2), None, 1)) == "sin missing"
        assert str(modes.rejects(entry, T(2))) == "sin, k missing"

    def test_exclusive(self, modes: Any) -> None:
        @with_clauses(exclusive("table", "batch"))
        def entry(table: Int[Tensor, " K"] | None = None, batch: int | None = None) -> None: ...

        modes.accepts(entry)
        modes.accepts(entry, batch=0)
        raised = modes.rejects(entry, T(2, dtype=torch.int32), 0)
        assert str(raised) == "table and batch exclude each other"

    def test_require_and_about(self, modes: Any) -> None:
        error = documented("heads", "{name}: {HV} value heads on {H} heads ({names})")

        @with_clauses(require(lambda H, HV: HV % H == 0, error=error, about=("v", "q")))
        def entry(q: Float[Tensor, "B H"], v: Float[Tensor, "B HV"]) -> None: ...

        modes.accepts(entry, T(1, 2), T(1, 4))
        assert str(modes.rejects(entry, T(1, 2), T(1, 3))) == "v: 3 value heads on 2 heads (v, q)"

    def test_require_default_text_shows_the_values(self, modes: Any) -> None:
        raised = modes.rejects(attention(require(lambda T, scale, q: scale > T)), **right())
        assert "T=5, scale=0.5" in str(raised)
        assert isinstance(raised, ValueError)

    def test_no_overlap(self, modes: Any) -> None:
        error = documented("shared", "{names} share bytes with out")

        @with_clauses(no_overlap("out", "x", "y", error=error), mutates=("out",))
        def entry(out: Float[Tensor, " N"], x: Float[Tensor, " N"], y: Float[Tensor, " N"] | None = None) -> None: ...

        pool = T(12)
        modes.accepts(entry, pool[:4], pool[4:8], pool[8:])
        assert str(modes.rejects(entry, pool[:4], pool[3:7], pool[2:6])) == "x, y share bytes with out"
        assert str(modes.rejects(entry, pool[:4], pool[4:8], pool[:4])) == "y share bytes with out"
        assert str(modes.rejects(entry, T(1).expand(4), T(4))) == "out share bytes with out"
        modes.accepts(entry, T(0), T(0))

    def test_read_only_tensors_may_be_expanded_or_shared(self, modes: Any) -> None:
        @with_clauses(mutates=("out",))
        def entry(out: Float[Tensor, " N"], x: Float[Tensor, " N"], y: Float[Tensor, " N"]) -> None: ...

        x = T(1).expand(4)
        modes.accepts(entry, T(4), x, x)

    def test_a_written_tensor_must_not_overlap_itself(self, modes: Any) -> None:
        @with_clauses(mutates=("out",))
        def entry(out: Float[Tensor, "M N"]) -> None: ...

        raised = modes.rejects(entry, T(3, 1).expand(3, 4))
        assert str(raised) == "out: is written, but axis 1 of size 4 has stride 0"
        modes.accepts(entry, T(3, 1).expand(3, 1))
        modes.accepts(entry, T(1, 4).expand(1, 4))
        modes.accepts(entry, T(3, 0).expand(3, 0))
        raised = modes.rejects(entry, T(12).as_strided((3, 4), (2, 1)))
        assert str(raised) == "out: is written, but elements of it share memory: sizes [3, 4] and strides [2, 1]"
        modes.accepts(entry, T(12).as_strided((2, 3), (3, 2)))

    def test_written_tensors_must_not_overlap_one_another(self, modes: Any) -> None:
        @with_clauses(mutates=("a", "b"))
        def entry(a: Float[Tensor, " N"], b: Float[Tensor, " N"] | None = None) -> None: ...

        pool = T(8)
        modes.accepts(entry, pool[:4], pool[4:])
        modes.accepts(entry, pool[:4])
        raised = modes.rejects(entry, pool[:4], pool[3:7])
        assert str(raised) == "b: is written and shares memory with a, also written"


class TestFiringOrder:
    """Types, then the clauses in order, then what is left in signature order."""

    CLAUSES = (
        rank("k", error=FIRST),
        same_dtype("q", "v", error=SECOND),
        require(lambda scale: scale > 0, error=THIRD),
    )
    WRONG = (
        ("scale-type", {"scale": "x"}, None),
        ("k-rank", {"k": T(2, 5)}, FIRST),
        ("v-dtype", {"v": T(2, 5, 3, 6).double()}, SECOND),
        ("scale-value", {"scale": -1.0}, THIRD),
        ("q-layout", {"q": NARROW}, None),
        ("mask-rank", {"mask": T(2, dtype=torch.int32)}, None),
    )

    @pytest.mark.parametrize("first", range(6), ids=[w[0] for w in WRONG])
    def test_the_first_of_all_later_ones_fires(self, modes: Any, first: int) -> None:
        given = right()
        for _, change, _ in reversed(self.WRONG[first:]):
            given |= change
        raised = modes.rejects(attention(*self.CLAUSES), **given)
        assert raised.error is self.WRONG[first][2]
        if raised.error is None:
            assert str(raised).startswith(next(iter(self.WRONG[first][1])))

    def test_order_is_clause_order_not_signature_order(self, modes: Any) -> None:
        wrong = {"q": T(2, 3), "k": T(2, 5), "v": T(2, 5)}
        clauses = {"q": rank("q", error=FIRST), "k": rank("k", error=SECOND), "v": rank("v", error=THIRD)}
        for order in ("qkv", "vkq", "kvq"):
            raised = modes.rejects(attention(*(clauses[n] for n in order)), **{**right(), **wrong})
            assert raised.error is clauses[order[0]].error

    def test_several_names_in_one_clause(self, modes: Any) -> None:
        error = documented("ranks", "{names}; first {name}")
        entry = attention(rank("v", "q", "k", error=error))
        assert str(modes.rejects(entry, **{**right(), "k": T(2), "v": T(2)})) == "v, k; first v"

    def test_what_is_left_goes_rank_dtype_axes_constraints(self, modes: Any) -> None:
        wrong = T(3, 2, 8, dtype=torch.int32)[..., ::2]
        steps = [
            (wrong[0], "q: expected 3 axes"),
            (wrong, "q: dtype is torch.int32"),
            (wrong.float(), "k: axis 0 (B) is 2, but B is 3 (q axis 0)"),
        ]
        for q, start in steps:
            assert str(modes.rejects(attention(), **{**right(), "q": q})).startswith(start)

    def test_axes_front_to_back(self, modes: Any) -> None:
        raised = modes.rejects(attention(), **{**right(), "k": T(2, 5, 9, 9)})
        assert str(raised).startswith("k: axis 2 (H) is 9")

    def test_types_come_in_signature_order(self, modes: Any) -> None:
        raised = modes.rejects(attention(), **{**right(), "scale": "x", "v": None, "k": 1})
        assert str(raised).startswith("k: expected a Tensor")


class TestUnevaluable:
    """A clause that cannot be evaluated."""

    def test_skipped_if_the_broken_obligation_is_claimed_later(self, modes: Any) -> None:
        entry = attention(require(lambda T: T > 9, error=FIRST), rank("k", error=SECOND))
        assert modes.rejects(entry, **{**right(), "k": T(2)}).error is SECOND

    def test_default_error_there_if_it_is_claimed_by_none(self, modes: Any) -> None:
        entry = attention(require(lambda T: T > 9, error=FIRST), rank("v", error=SECOND))
        raised = modes.rejects(entry, **{**right(), "k": T(2), "v": T(2)})
        assert raised.error is None
        assert str(raised) == "k: expected 4 axes [B, T, H, K], got 1 axis: [2]"

    def test_claimed_earlier_only_means_claimed_by_none_later(self, modes: Any) -> None:
        entry = attention(
            rank("k", error=FIRST, when=lambda scale: scale is None), require(lambda T: T > 9, error=SECOND)
        )
        assert modes.rejects(entry, **{**right(), "k": T(2)}).error is None

    def test_not_applicable_if_only_an_optional_is_absent(self, modes: Any) -> None:
        @with_clauses(require(lambda N: N > 2, error=FIRST), shape("z", error=SECOND))
        def entry(x: Float[Tensor, " N"] | None = None, z: Float[Tensor, " 2*N"] | None = None) -> None: ...

        modes.accepts(entry)
        assert modes.rejects(entry, T(2)).error is FIRST
        assert modes.rejects(entry, T(3), T(5)).error is SECOND

    def test_shape_fails_on_rank_at_once(self, modes: Any) -> None:
        @with_clauses(shape("x", error=FIRST), rank("y", error=SECOND))
        def entry(y: Float[Tensor, "N M"], x: Float[Tensor, " M"]) -> None: ...

        assert modes.rejects(entry, T(3), T(2, 2)).error is FIRST

    def test_shape_fails_on_any_axis_that_can_be_evaluated(self, modes: Any) -> None:
        @with_clauses(shape("x", error=FIRST), rank("y", error=SECOND))
        def entry(y: Float[Tensor, "N M L"], x: Float[Tensor, "M 3"]) -> None: ...

        assert modes.rejects(entry, T(3), T(2, 4)).error is FIRST
        assert modes.rejects(entry, T(3), T(2, 3)).error is SECOND

    def test_a_lambda_that_raises_over_a_broken_argument(self, modes: Any) -> None:
        entry = attention(require(lambda k: k.shape[3] > 1, error=FIRST), rank("k", error=SECOND))
        assert modes.rejects(entry, **{**right(), "k": T(2)}).error is SECOND

    def test_a_lambda_that_raises_is_its_authors_error(self, modes: Any) -> None:
        error = modes(attention(require(lambda q, B: q.shape[7] > B)), **right())
        assert isinstance(error, ContractDefinitionError)
        assert "require(q, B)" in str(error)
        assert isinstance(error.__cause__, IndexError)

    def test_a_let_hands_its_reason_to_its_users(self, modes: Any) -> None:
        entry = attention(
            let(twice=lambda T: 2 * T), let(four=lambda twice: 2 * twice),
            require(lambda four: four > 99, error=FIRST), rank("k", error=SECOND),
        )  # fmt: skip
        assert modes.rejects(entry, **{**right(), "k": T(2)}).error is SECOND
        assert modes.rejects(entry, **right()).error is FIRST

    def test_a_let_that_raises_over_a_broken_argument_hands_it_on(self, modes: Any) -> None:
        entry = attention(
            let(last=lambda k: k.shape[3]), require(lambda last: last > 99, error=FIRST), rank("k", error=SECOND)
        )
        assert modes.rejects(entry, **{**right(), "k": T(2)}).error is SECOND

    def test_same_dim_with_a_missing_axis(self, modes: Any) -> None:
        @with_clauses(same_dim("M", "x", "y", error=FIRST), rank("x", error=SECOND))
        def entry(x: Float[Tensor, "N M L"], y: Float[Tensor, " M"]) -> None: ...

        assert modes.rejects(entry, T(3), T(2)).error is SECOND

    def test_when_that_cannot_be_evaluated(self, modes: Any) -> None:
        entry = attention(dtype("q", error=FIRST, when=lambda T: T > 1), rank("k", error=SECOND))
        assert modes.rejects(entry, **{**right(), "k": T(2), "q": T(2, 3, 4).long()}).error is SECOND


class TestUnions:
    """Unions of tensor hints."""

    @staticmethod
    def entry(*clauses: Clause) -> Callable[..., Any]:
        @with_clauses(*clauses)
        def entry(
            a: Float[Tensor, "B HV K"] | Float[Tensor, "B HV*K"] | Int[Tensor, "B 1"], b: Float[Tensor, "B HV K"]
        ) -> None: ...

        return entry

    @pytest.mark.parametrize("a", [T(2, 3, 4), T(2, 12), T(2, 1, dtype=torch.int32)], ids=["3d", "flat", "int"])
    def test_some_form_fits_whole(self, modes: Any, a: Tensor) -> None:
        modes.accepts(self.entry(), a, T(2, 3, 4))

    @pytest.mark.parametrize(
        ("a", "kind", "start"),
        [
            (T(2), ValueError, "a: expected [B, HV, K] or [B, HV*K] or [B, 1], got 1 axis: [2]"),
            (T(2, 12, dtype=torch.bool), TypeError, "a: dtype is torch.bool, expected Float or Int"),
            (T(2, 11), ValueError, "a: expected [B, HV, K] = [2, 3, 4] or [B, HV*K] = [2, 12] or [B, 1] = [2, 1], got"),
            (T(2, 4, 3), ValueError, "a: expected [B, HV, K] = [2, 3, 4] or"),
            (T(2, 12, dtype=torch.int32), ValueError, "a: expected [B, HV, K] = [2, 3, 4] or"),
            (T(2, 1), ValueError, "a: expected [B, HV, K] = [2, 3, 4] or"),
        ],
        ids=["rank", "dtype", "flat", "3d", "form-of-another-dtype", "dtype-of-another-form"],
    )
    def test_no_form_fits(self, modes: Any, a: Tensor, kind: type[Exception], start: str) -> None:
        raised = modes.rejects(self.entry(), a, T(2, 3, 4))
        assert isinstance(raised, kind)
        assert str(raised).startswith(start)

    def test_shape_claims_the_axes(self, modes: Any) -> None:
        entry = self.entry(rank("b", error=SECOND), shape("a", error=FIRST))
        assert modes.rejects(entry, T(2, 11), T(2, 3, 4)).error is FIRST
        assert modes.rejects(entry, T(2), T(2, 3, 4)).error is FIRST
        assert modes.rejects(entry, T(2, 11), T(2)).error is SECOND

    def test_a_union_binds_nothing(self, modes: Any) -> None:
        raised = modes.rejects(self.entry(), T(5, 3, 4), T(2, 3, 4))
        assert str(raised).startswith("a: ")
        assert raised.bindings["B"].size == 2

    def test_a_dim_that_only_the_union_has_is_free(self, modes: Any) -> None:
        @contract
        def entry(x: Float[Tensor, "foo bar"] | Float[Tensor, "foo 1"], y: Float[Tensor, " bar"]) -> None: ...

        modes.accepts(entry, T(2, 1), T(5))
        modes.accepts(entry, T(2, 5), T(5))
        modes.rejects(entry, T(2, 4), T(5))

    def test_a_dim_twice_in_one_form_must_agree(self, modes: Any) -> None:
        @contract
        def entry(x: Float[Tensor, "n n"] | Float[Tensor, "n n+1 2"]) -> None: ...

        modes.accepts(entry, T(3, 3))
        modes.accepts(entry, T(3, 4, 2))
        modes.rejects(entry, T(3, 4))
        modes.rejects(entry, T(3, 3, 2))

    def test_forms_of_one_shape_are_no_union_of_axes(self, modes: Any) -> None:
        @contract
        def entry(x: Float32[Tensor, "N M"] | Int[Tensor, "N M"], y: Float[Tensor, " N"]) -> None: ...

        modes.accepts(entry, T(2, 3, dtype=torch.int64), T(2))
        raised = modes.rejects(entry, T(2, 3), T(3))
        assert str(raised).startswith("y: axis 0 (N) is 3, but N is 2 (x axis 0)")


class TestAddressing:
    """Axes are addressed as annotated, the last one and those behind a variadic from the end."""

    def test_the_last_axis_is_seen_behind_a_wrong_rank(self, modes: Any) -> None:
        error = documented("head-dim", "head_dim: pool={pool.size(-1)}, kv={kv.size(-1)}")

        @with_clauses(same_dim("D", "pool", "kv", error=error))
        def entry(pool: Float[Tensor, "P D"], kv: Float[Tensor, "N D"]) -> None: ...

        assert str(modes.rejects(entry, T(3, 7, 8), T(3, 9))) == "head_dim: pool=8, kv=9"
        assert modes.rejects(entry, T(3, 7, 9), T(3, 9)).error is None

    def test_behind_a_variadic(self, modes: Any) -> None:
        @contract
        def entry(x: Float[Tensor, "B *v H K"], y: Float[Tensor, "B H K"]) -> None: ...

        for middle in ((), (7,), (7, 8)):
            modes.accepts(entry, T(2, *middle, 3, 4), T(2, 3, 4))
            raised = modes.rejects(entry, T(2, *middle, 3, 4), T(2, 5, 4))
            assert "y: axis 1 (H) is 5, but H is 3 (x axis -2)" in str(raised)

    def test_a_named_variadic(self, modes: Any) -> None:
        @contract
        def entry(x: Float[Tensor, "*v K"], y: Float[Tensor, " *v"]) -> None: ...

        modes.accepts(entry, T(2, 3, 4), T(2, 3))
        modes.accepts(entry, T(4), T())
        raised = modes.rejects(entry, T(2, 3, 4), T(2, 5))
        assert "[2, 5]" in str(raised)
        assert "x axes *v" in str(raised)


class TestBinding:
    """Who binds a dim."""

    def test_the_first_bare_name_in_signature_order(self, modes: Any) -> None:
        @contract
        def entry(a: Float[Tensor, " N+1"], b: Float[Tensor, " N"], c: Float[Tensor, " N"]) -> None: ...

        raised = modes.rejects(entry, T(4), T(4), T(4))
        assert str(raised) == "a: axis 0 (N+1) is 4, but N+1 is 5 with N=4 (b axis 0); expected [N+1] = [5], got [4]"
        modes.accepts(entry, T(4), T(3), T(3))

    def test_binds_names_the_authority(self, modes: Any) -> None:
        entry = attention(binds={"H": "v"})
        raised = modes.rejects(entry, **{**right(), "q": T(2, 7, 4)})
        assert str(raised).startswith("q: axis 1 (H) is 7, but H is 3 (v axis 2)")

    def test_an_authority_of_the_wrong_rank_binds_what_it_has(self, modes: Any) -> None:
        error = documented("state", "H={H}, K={K}")
        entry = attention(shape("k", axes="H K", error=error), rank("q", error=FIRST), binds={"H": "q", "K": "q"})
        raised = modes.rejects(entry, **{**right(), "q": T(2, 7, 9, 8)})
        assert str(raised) == "H=7, K=8"

    def test_an_authority_too_short_leaves_the_dim_unbound(self, modes: Any) -> None:
        entry = attention(shape("k", axes="H", error=FIRST), rank("q", error=SECOND))
        assert modes.rejects(entry, **{**right(), "q": T(2)}).error is SECOND

    def test_an_absent_optional_hands_the_binding_on(self, modes: Any) -> None:
        @contract
        def entry(a: Float[Tensor, " N"] | None, b: Float[Tensor, " N"], c: Float[Tensor, " N"]) -> None: ...

        assert "(a axis 0)" in str(modes.rejects(entry, T(2), T(3), T(3)))
        raised = modes.rejects(entry, None, T(3), T(4))
        assert str(raised) == "c: axis 0 (N) is 4, but N is 3 (b axis 0); expected [N] = [3], got [4]"

    def test_a_dim_in_expressions_only_is_solved_from_the_first(self, modes: Any) -> None:
        @contract
        def entry(a: Float[Tensor, " 2*n"], b: Float[Tensor, " n+1"]) -> None: ...

        modes.accepts(entry, T(6), T(4))
        raised = modes.rejects(entry, T(6), T(5))
        assert str(raised).startswith("b: axis 0 (n+1) is 5, but n+1 is 4 with n=3 (a axis 0, 2*n = 6)")
        raised = modes.rejects(entry, T(5), T(4))
        assert str(raised).startswith("a: axis 0 (2*n) is 5, but 2*n is 6 with n=3 (b axis 0, n+1 = 4)")

    def test_a_dim_that_no_size_solves(self, modes: Any) -> None:
        @contract
        def entry(a: Float[Tensor, " 2*n"]) -> None: ...

        raised = modes.rejects(entry, T(5))
        assert str(raised) == "a: axis 0 (2*n) is 5, but no n makes 2*n that size; expected [2*n] = [?], got [5]"

    def test_after_a_let_the_let_is_the_authority(self, modes: Any) -> None:
        entry = attention(shape("q", axes="B", error=FIRST), let(H=lambda V: V // 2), shape("q", "k", error=SECOND))
        modes.accepts(entry, **right())
        wrong = {"v": T(2, 5, 3, 8)}
        raised = modes.rejects(entry, **{**right(), **wrong})
        assert raised.error is SECOND
        raised = modes.rejects(attention(let(H=lambda V: V // 2)), **{**right(), **wrong})
        assert str(raised).startswith("q: axis 1 (H) is 3, but H is 4 (derived by let)")

    def test_lets_chain_and_help(self, modes: Any) -> None:
        error = documented("chain", "{group} then {rest}")
        entry = attention(
            let(group=lambda V, H: V // H, rest=lambda group: group + 1), require(lambda rest: rest == 3, error=error)
        )
        modes.accepts(entry, **right())
        assert str(modes.rejects(entry, **{**right(), "v": T(2, 5, 3, 9)})) == "3 then 4"

    def test_repeated_names_in_one_tensor(self, modes: Any) -> None:
        @contract
        def entry(x: Float[Tensor, "n n"]) -> None: ...

        modes.accepts(entry, T(3, 3))
        assert str(modes.rejects(entry, T(3, 4))).startswith("x: axis 1 (n) is 4, but n is 3 (x axis 0)")


class TestNames:
    """A dim named like a parameter, and the tie that allows it."""

    def test_a_clash_is_the_authors_error(self) -> None:
        with pytest.raises(ContractDefinitionError, match=r"dim 'H' has the name of a parameter"):

            @contract
            def entry(q: Float[Tensor, "B H"], H: int) -> None: ...

    def test_tied(self, modes: Any) -> None:
        @with_clauses(require(lambda H: H > 1, error=FIRST), tied=("H",))
        def entry(q: Float[Tensor, "B H"], H: int | None = None) -> None: ...

        modes.accepts(entry, T(2, 3), 3)
        raised = modes.rejects(entry, T(2, 3), 4)
        assert str(raised).startswith("q: axis 1 (H) is 3, but H is 4 (argument H)")
        assert modes.rejects(entry, T(2, 1), 1).error is FIRST
        assert str(modes.rejects(entry, T(2, 3), "x")) == "H: expected int or None, got str 'x'"

    def test_braces_read_the_argument(self, modes: Any) -> None:
        @contract
        def entry(q: Float[Tensor, "B {n}+1"], n: int) -> None: ...

        modes.accepts(entry, T(2, 4), 3)
        assert str(modes.rejects(entry, T(2, 3), 3)).startswith("q: axis 1 ({n}+1) is 3, but {n}+1 is 4")


class TestAuthorErrorsAtCallTime:
    """Exceptions of the author's code name the clause and keep their cause."""

    @pytest.mark.parametrize(
        ("clause", "where"),
        [
            (require(lambda T, zero: T % zero == 0), "require(T, zero)"),
            (let(x=lambda T, zero: T // zero), "let(x)"),
            (require(lambda T: True, when=lambda zero: 1 // zero), "require(T)"),
        ],
        ids=["require", "let", "when"],
    )
    def test_lambdas(self, modes: Any, clause: Clause, where: str) -> None:
        @with_clauses(clause)
        def entry(q: Float[Tensor, " T"], zero: int = 0) -> None: ...

        error = modes(entry, T(2))
        assert isinstance(error, ContractDefinitionError)
        assert where in str(error)
        assert isinstance(error.__cause__, ZeroDivisionError)
        modes.accepts(entry, T(2), 1)

    @pytest.mark.parametrize("clause", [rank("q"), any_of(rank("q"), dtype("q"))], ids=str)
    def test_a_condition_is_asked_only_where_a_claim_is_broken(self, modes: Any, clause: Clause) -> None:
        limited = replace(clause, when=lambda zero: 1 // zero)

        @with_clauses(limited)
        def entry(q: Float[Tensor, " T"], zero: int = 0) -> None: ...

        modes.accepts(entry, T(2))
        error = modes(entry, T(2, 2))
        assert isinstance(error, ContractDefinitionError)
        assert str(clause) in str(error)

    def test_an_earlier_clause_guards_a_division(self, modes: Any) -> None:
        @with_clauses(require(lambda zero: zero > 0, error=FIRST), require(lambda T, zero: T % zero == 0, error=SECOND))
        def entry(q: Float[Tensor, " T"], zero: int) -> None: ...

        assert modes.rejects(entry, T(2), 0).error is FIRST
        assert modes.rejects(entry, T(3), 2).error is SECOND

    def test_expressions(self, modes: Any) -> None:
        @contract
        def entry(q: Float[Tensor, "N M"], w: Float[Tensor, " N//M"]) -> None: ...

        modes.accepts(entry, T(4, 2), T(2))
        error = modes(entry, T(4, 0), T(2))
        assert isinstance(error, ContractDefinitionError)
        assert "w: axis 'N//M' fails with N=4, M=0" in str(error)

    def test_templates(self, modes: Any) -> None:
        error = documented("template", "{q.shape[5]}")
        outcome = modes(attention(rank("q", error=error)), **{**right(), "q": T(2)})
        assert isinstance(outcome, ContractDefinitionError)
        assert "template: {q.shape[5]}" in str(outcome)


class TestTemplates:
    """A template is an f-string body over arguments, dims, lets, names and fields."""

    def test_everything_it_may_read(self, modes: Any) -> None:
        error = DocumentedError(
            "all",
            ValueError,
            "{name}|{names}|{T}|{twice:03d}|{q.dtype}|{scale!r}|{tuple(k.shape)}|{heads}|{{braces}}",
            fields={"heads": lambda q, H: H + q.shape[0]},
        )
        entry = attention(let(twice=lambda T: 2 * T), require(lambda twice: False, error=error, about=("k", "v")))
        raised = modes.rejects(entry, **right())
        assert str(raised) == "k|k, v|5|010|torch.float32|0.5|(2, 5, 3, 4)|5|{braces}"

    def test_fields_may_read_self(self, modes: Any) -> None:
        error = DocumentedError("of-self", ValueError, "{heads} heads", fields={"heads": lambda self: self.heads})

        @dataclass
        class Attention:
            heads: int

            @with_clauses(rank("q", error=error))
            def forward(self, q: Float[Tensor, "B H"]) -> None: ...

        assert str(modes.rejects(Attention(7).forward, T(2))) == "7 heads"


class TestState:
    """Annotated fields of a dataclass self are obligations, under their own names."""

    @staticmethod
    def layer(k: Any, *, mode: str = "a") -> Any:
        @dataclass
        class Layer:
            k: Float[Tensor, "H K"]
            bias: Float[Tensor, " K"] | None = None
            mode: str = "a"

            @with_clauses(require(lambda self: self.mode != "bad", error=FIRST), require(lambda K: K < 9, error=SECOND))
            def forward(self, q: Float[Tensor, "B K"]) -> str:
                return "reached"

        return Layer(k, mode=mode)

    def test_right(self, modes: Any) -> None:
        assert modes(self.layer(T(3, 4)).forward, T(2, 4)) == "reached"

    def test_fields_bind_and_are_named(self, modes: Any) -> None:
        raised = modes.rejects(self.layer(T(3, 4)).forward, T(2, 5))
        assert str(raised).startswith("q: axis 1 (K) is 5, but K is 4 (self.k axis 1)")
        raised = modes.rejects(self.layer(T(3)).forward, T(2, 3))
        assert str(raised).startswith("self.k: expected 2 axes [H, K], got 1 axis: [3]")
        raised = modes.rejects(self.layer("text").forward, T(2, 3))
        assert str(raised) == "self.k: expected a Tensor [H, K], got str"

    def test_scalar_fields(self, modes: Any) -> None:
        layer = self.layer(T(3, 4))
        layer.mode = 7
        assert str(modes.rejects(layer.forward, T(2, 4))) == "self.mode: expected str, got int 7"

    def test_clauses_read_self_and_the_dims_of_its_fields(self, modes: Any) -> None:
        assert modes.rejects(self.layer(T(3, 4), mode="bad").forward, T(2, 4)).error is FIRST
        assert modes.rejects(self.layer(T(3, 9)).forward, T(2, 9)).error is SECOND

    def test_clauses_name_fields(self, modes: Any) -> None:
        @dataclass
        class Layer:
            k: Float[Tensor, "H K"]

            @with_clauses(rank("self.k", error=FIRST), same_dtype("self.k", "q", error=SECOND))
            def forward(self, q: Float[Tensor, "B K"]) -> None: ...

        assert modes.rejects(Layer(T(3)).forward, T(2, 3)).error is FIRST
        assert modes.rejects(Layer(T(3, 3)).forward, T(2, 3).half()).error is SECOND
        modes.accepts(Layer(T(3, 3)).forward, T(2, 3))


class TestOptional:
    """An argument that is None."""

    def test_none_is_passed_to_lambdas(self, modes: Any) -> None:
        entry = attention(require(lambda mask, scale: mask is not None or scale is None, error=FIRST))
        modes.accepts(entry, **{**right(), "mask": None, "scale": None})
        assert modes.rejects(entry, **{**right(), "mask": None}).error is FIRST

    def test_only_unbound_dims_skip(self, modes: Any) -> None:
        @with_clauses(require(lambda N, flag: not flag, error=FIRST))
        def entry(x: Float[Tensor, " N"] | None = None, flag: bool = False) -> None: ...

        modes.accepts(entry, flag=True)
        assert modes.rejects(entry, T(2), flag=True).error is FIRST

    def test_an_omitted_none_and_an_explicit_one_agree(self, modes: Any) -> None:
        @contract
        def entry(x: Float[Tensor, " N"] = None) -> str:  # type: ignore[assignment]
            return "reached"

        assert modes(entry) == modes(entry, None) == modes(entry, T(2)) == "reached"
        modes.rejects(entry, T())

    def test_the_reason_is_kept(self, modes: Any) -> None:
        raised = modes.rejects(attention(), **{**right(), "mask": T(2, 7, dtype=torch.int32)})
        assert str(raised) == ("mask: axis 1 (T) is 7, but T is 5 (k axis 1); expected [B, T] = [2, 5], got [2, 7]")


class TestConstraintsOfUnions:
    """Metadata around a union belongs to all its forms."""

    def test_layout(self, modes: Any) -> None:
        @with_clauses(layout("a", error=FIRST))
        def entry(a: Annotated[Float[Tensor, "N M"] | Float[Tensor, " N"], Contiguous()]) -> None: ...

        modes.accepts(entry, T(4))
        assert modes.rejects(entry, T(8)[::2]).error is FIRST
        assert modes.rejects(entry, T(2, 3).T).error is FIRST
