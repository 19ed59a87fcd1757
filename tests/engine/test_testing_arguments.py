"""``testing.arguments``: what is drawn is valid, varied and small; what cannot be drawn is named."""

import collections
import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st
from jaxtyping import Float, Int
from torch import Tensor

from tensorpact import Contract, DocumentedError, contract, testing
from tensorpact.clauses import exclusive, require, same_device, same_dim, same_dtype, together
from tensorpact.constraints import Contiguous, OnDevice
from tensorpact.testing import Arguments, arguments, hooks

FEW = settings(max_examples=15)
SMALLEST = settings(database=None, max_examples=60, derandomize=True)
WIDTH = DocumentedError("width", ValueError, "widths differ: {names}")


@contract(
    Contract(
        "attend",
        clauses=[
            same_dim("D", "q", "pool", error=WIDTH),
            same_dtype("q", "pool", "out"),
            together("cos", "sin"),
            exclusive("table", "index"),
            require(lambda H, G: G % H == 0),
        ],
        mutates=("out",),
    )
)
def attend(
    q: Float[Tensor, "T H D"],
    pool: Annotated[Float[Tensor, "P G D"], Contiguous()],
    out: Float[Tensor, "T H D"],
    cos: Float[Tensor, "T D"] | None = None,
    sin: Float[Tensor, "T D"] | None = None,
    table: Int[Tensor, "T pages"] | None = None,
    index: Int[Tensor, " T"] | None = None,
    *,
    causal: bool = False,
    scale: float = 1.0,
) -> tuple[int, ...]:
    return tuple(q.shape)


def drawn(strategy: "st.SearchStrategy[Arguments]", count: int = 12) -> list[Arguments]:
    """Some of what a strategy draws, the same in every run."""
    seen: list[Arguments] = []

    @settings(max_examples=count)
    @given(strategy)
    def look(call: Arguments) -> None:
        call.call()
        seen.append(call)

    look()
    return seen


class TestWhatIsDrawn:
    """Valid calls, and many kinds of them."""

    @FEW
    @given(call=arguments(attend))
    def test_calls_are_valid_and_sizes_differ(self, call: Arguments) -> None:
        assert attend(**call) == tuple(call["q"].shape)
        sizes = [*call["q"].shape, *call["pool"].shape[:2]]
        assert len(set(sizes)) == len(sizes)
        assert min(sizes) > 1

    def test_there_is_variety(self) -> None:
        seen = drawn(arguments(attend), 50)
        q = [c["q"] for c in seen]
        assert len({tuple(t.shape) for t in q}) > 10
        assert {t.dtype for t in q} >= {torch.float32, torch.float16, torch.bfloat16}
        assert {t.is_contiguous() for t in q} == {True, False}
        assert {t.storage_offset() > 0 for t in q} == {True, False}
        assert any(0 in t.stride() for t in q), "no expanded view"
        assert not any(0 in c["out"].stride() for c in seen), "a written tensor overlaps itself"
        assert all(c["pool"].is_contiguous() for c in seen)
        assert {(c["cos"] is None, c["table"] is None, c["index"] is None) for c in seen} >= {
            (True, True, True),
            (False, True, False),
            (False, False, True),
        }
        assert len({c["scale"] for c in seen}) > 2
        assert all(bool((c["q"] != 0).any()) for c in seen)

    def test_equal_sizes_ones_and_zeros_on_request(self) -> None:
        sizes = {n for c in drawn(arguments(attend, distinct=False), 30) for n in c["q"].shape}
        assert {0, 1} <= sizes

    def test_dense_on_request(self) -> None:
        assert all(c["q"].is_contiguous() for c in drawn(arguments(attend, layouts=False)))

    def test_devices(self) -> None:
        @contract(Contract("f", clauses=[same_device("x", "y")]))
        def f(
            x: Float[Tensor, " N"], y: Float[Tensor, " N"], host: Annotated[Int[Tensor, " B"], OnDevice("cpu")]
        ) -> None: ...

        seen = drawn(arguments(f, devices=("cpu", "meta")))
        assert {c["x"].device.type for c in seen} == {"cpu", "meta"}
        assert {c["host"].device.type for c in seen} == {"cpu"}
        assert all(c["x"].device == c["y"].device for c in seen)

    def test_without_a_contract_of_its_own(self) -> None:
        @contract
        def f(x: Float[Tensor, "*batch N"], y: Float[Tensor, "N+1 2*M"], n: int = 3) -> None: ...

        assert all(c["y"].shape[0] == c["x"].shape[-1] + 1 for c in drawn(arguments(f), 10))

    def test_values_come_from_the_registered_fill(self) -> None:
        @contract(Contract("rows", clauses=[require(lambda index, P: bool((index < P).all()))]))
        def rows(pool: Float[Tensor, "P D"], index: Int[Tensor, " N"]) -> Tensor:
            return pool[index.long()]

        def fill(values: dict[str, Any], rng: Any) -> None:
            values["index"].fill_(rng.randrange(values["pool"].shape[0]))

        hooks.register_values(rows, fill)
        assert any(c["index"].any() for c in drawn(arguments(rows), 10))


class TestShrinking:
    """What hypothesis shows in the end is small."""

    def smallest(self, condition: Callable[[Arguments], bool], **options: Any) -> Arguments:
        return find(arguments(attend, **options), condition, settings=SMALLEST)

    def test_everything_else_is_plain(self) -> None:
        call = self.smallest(lambda c: c["cos"] is not None)
        assert call["table"] is None
        assert call["index"] is None
        assert (call["causal"], call["scale"]) == (False, 1.0)
        tensors = [t for t in call.values() if isinstance(t, Tensor)]
        assert all(t.is_contiguous() and t.dtype == torch.float32 for t in tensors)
        assert max(n for t in tensors for n in t.shape) <= 12

    def test_a_view_is_kept_where_it_matters(self) -> None:
        call = self.smallest(lambda c: 0 in c["q"].stride())
        assert "q=float32" in repr(call)
        assert repr(call).count("strides") == 1

    def test_the_code_runs(self) -> None:
        call = self.smallest(lambda c: not c["q"].is_contiguous())
        scope = {"__name__": "pasted"}
        code = call.code().replace(f"from {attend.__module__} import attend", "")
        exec(code, scope | {"attend": attend})


class Pair(NamedTuple):
    k: Float[Tensor, "T D"]
    v: Float[Tensor, "T E"]


class Extra(TypedDict):
    bias: Float[Tensor, " D"]
    n: int


@contract(
    Contract("gather", clauses=[require(lambda xs: len(xs) > 0, error=DocumentedError("none", ValueError, "no xs"))])
)
def gather(
    first: Float[Tensor, "B D"],
    /,
    xs: list[Float[Tensor, "N D"]],
    pair: Pair,
    more: dict[str, Float[Tensor, " B"]] | None,
    extra: Extra,
    queue: collections.deque[Float[Tensor, " D"]],
    both: tuple[Float[Tensor, " B"], int],
    *rest: Float[Tensor, " B"],
    **named: Float[Tensor, " D"],
) -> int:
    return len(xs)


class TestContainers:
    """Tensors inside lists, mappings, named tuples; starred parameters."""

    def test_every_kind(self) -> None:
        seen = drawn(arguments(gather), 8)
        assert all(isinstance(c["pair"], Pair) and isinstance(c["queue"], collections.deque) for c in seen)
        assert {c["more"] is None for c in seen} == {True, False}
        assert any(not x.is_contiguous() for c in seen for x in c["xs"])
        assert "xs=[float32[" in repr(seen[0])

    def test_a_witness(self) -> None:
        made = testing.witness(gather, "none")
        assert made.arguments["xs"] == []
        with pytest.raises(ValueError, match="no xs"):
            made.call()

    def test_verify(self) -> None:
        @contract(Contract("f", clauses=[same_dim("D", "q", "w", error=WIDTH)]))
        def f(q: Float[Tensor, "B D"], xs: list[Float[Tensor, "B N"]], w: Float[Tensor, " D"], *ys: int) -> int:
            return len(xs)

        report = testing.verify([f], examples=4)
        assert report.ok, [finding[2].message for finding in report.findings()]
        assert report.entries[0].sections["reject"].done == 1


@contract
@dataclasses.dataclass
class Cache:
    k: Float[Tensor, "S D"]
    v: Float[Tensor, "S E"]
    start: int = 0

    @contract(Contract("append", clauses=[same_dim("D", "self.k", "x", error=WIDTH)]))
    def append(self, x: Float[Tensor, "N D"]) -> int:
        return len(x)


class TestObjects:
    """Dataclasses and their methods."""

    def test_the_fields_of_a_dataclass(self) -> None:
        for call in drawn(arguments(Cache), 10):
            assert set(call) == {"k", "v", "start"}
            made = Cache(**call)
            assert made.k.shape[0] == made.v.shape[0]

    def test_a_method_gets_its_object(self) -> None:
        for call in drawn(arguments(Cache.append), 10):
            assert isinstance(call["self"], Cache)
            assert Cache.append(**call) == call["x"].shape[0]
        bound = Cache(torch.zeros(2, 3), torch.zeros(2, 4)).append
        assert drawn(arguments(bound), 3)[0].call() > 0  # with an object of its own

    def test_a_witness_of_a_method(self) -> None:
        made = testing.witness(Cache.append, WIDTH)
        with testing.raises(WIDTH):
            made.call()
        assert "Cache(k=self_k, v=self_v, start=0)" in made.code()

    def test_verify_makes_the_objects_too(self) -> None:
        report = testing.verify([Cache.append], examples=4)
        assert report.ok
        assert report.entries[0].sections["reject"].done == 1

    def test_a_registered_factory_of_a_dataclass(self) -> None:
        @contract
        @dataclasses.dataclass
        class Made:
            k: Float[Tensor, "S D"]
            state: Any = None

        testing.register_arguments(Made, lambda rng: {"self": Made(torch.zeros(rng.randint(2, 4), 3), "kept")})
        for call in drawn(arguments(Made), 3):
            assert call["state"] == "kept"

    def test_a_registered_factory(self) -> None:
        class Plain:
            @contract
            def method(self, x: Float[Tensor, " N"], scale: float = 1.0) -> float:
                return scale

        with pytest.raises(testing.CannotDrawError, match=r"self is an object of no dataclass; .*register_arguments"):
            arguments(Plain.method)
        hooks.register_arguments(Plain.method, lambda rng: {"self": Plain(), "x": torch.zeros(rng.randint(2, 5))})
        seen = drawn(arguments(Plain.method))
        assert {c["x"].shape[0] for c in seen} > {2}
        assert len({c.call() for c in seen}) > 1


class Opaque:
    def __init__(self, rank: int) -> None:
        self.rank = rank


class TestHelp:
    """Arguments that no annotation says how to make."""

    @staticmethod
    def function() -> Callable[..., int]:
        @contract
        def f(x: Float[Tensor, "N D"], state: Opaque) -> int:
            return state.rank

        return f

    def test_the_error_names_the_argument_and_the_hook(self) -> None:
        wanted = r"f: state has the hint <class .*Opaque'>, for which .*; .*register_argument\(f, 'state', make\)"
        with pytest.raises(testing.CannotDrawError, match=wanted):
            arguments(self.function())

    def test_a_registered_argument(self) -> None:
        f = self.function()
        testing.register_argument(f, "state", lambda rng: Opaque(rng.randint(1, 9)))
        assert all(1 <= c.call() <= 9 for c in drawn(arguments(f), 10))
        assert testing.verify([f], examples=3).ok
        with pytest.raises(TypeError, match="has no parameter 'status'"):
            testing.register_argument(f, "status", lambda rng: None)

    def test_a_given_strategy(self) -> None:
        f = self.function()
        seen = drawn(arguments(f, given={"state": st.builds(Opaque, st.sampled_from([4, 7]))}), 10)
        assert {c.call() for c in seen} == {4, 7}

    def test_a_given_tensor_binds_its_dims(self) -> None:
        f = self.function()
        x = torch.arange(12.0).view(3, 4)
        (first, *_) = drawn(arguments(f, given={"x": st.just(x), "state": st.builds(Opaque, st.just(1))}), 3)
        assert torch.equal(first["x"], x)

    def test_contracts_that_nothing_fits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tensorpact.testing._draw._RESTARTS", 2)

        @contract(Contract("never", clauses=[require(lambda N: N < 0)]))
        def never(x: Float[Tensor, " N"]) -> None: ...

        with pytest.raises(testing.CannotDrawError, match=r"no valid arguments found; most often in the way: clause 0"):
            arguments(never)

    def test_what_has_no_contract(self) -> None:
        with pytest.raises(testing.TargetError, match="has no contract"):
            arguments(len)


def test_the_kernels_can_be_drawn() -> None:
    from tensorpact_kernels import CausalSelfAttentionKVCache, sparse_attn_v4_paged_decode

    for call in drawn(arguments(sparse_attn_v4_paged_decode), 5):
        assert call["q"].dtype in (torch.float16, torch.bfloat16)
    for call in drawn(arguments(CausalSelfAttentionKVCache.update_and_get_attention_kv), 3):
        assert isinstance(call["self"], CausalSelfAttentionKVCache)
