"""What a reader sees: default texts and notes, whole, against snapshot files."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
import torch
from jaxtyping import Float, Float32, Int, Int32
from torch import Tensor

from tensorpact import Contract, DocumentedError, contract
from tensorpact.clauses import any_of, let, needs, rank, require, same_device, same_dim, same_dtype, shape
from tensorpact.constraints import Aligned, Contiguous, DenseLast, OnDevice, OneOf


def T(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:  # noqa: N802 - as the cases write it
    return torch.zeros(sizes, dtype=dtype)


HEADS = DocumentedError(
    "cache-heads", ValueError, "`k_cache` has {k_cache.shape[1]} heads, `q` has {H}: {names} must have H heads."
)
WIDTH = DocumentedError("packed-width", RuntimeError, "width {C} leaves {rest} columns for {H} heads")


@contract
def decode(
    q: Float[Tensor, "B H K"],
    k_cache: Float[Tensor, "slots H L K"],
    g_cache: Float32[Tensor, "slots HV L K"],
    write_pos: Int32[Tensor, " B"] | None = None,
    scale: float = 1.0,
) -> None: ...


def right() -> dict[str, Any]:
    return {"q": T(3, 2, 16), "k_cache": T(5, 2, 4, 16), "g_cache": T(5, 4, 4, 16)}


@contract(
    Contract("packed", clauses=[let(rest=lambda C, H, K: C - H * K), require(lambda rest: rest > 0, error=WIDTH)])
)
def packed(
    mixed: Float[Tensor, "B C"], state: Float[Tensor, "slots H K"], lower_bound: float | None = None
) -> None: ...


@contract(Contract("claimed", clauses=[same_dim("H", "q", "k_cache", error=HEADS)]))
def claimed(q: Float[Tensor, "B H K"], k_cache: Float[Tensor, "slots H L K"], out: Float[Tensor, "B H K"]) -> None: ...


@contract
def grammar(
    x: Float[Tensor, "B *batch T"],
    bias: Float[Tensor, "#B #T"],
    longer: Float[Tensor, " T+1"],
    wide: Float[Tensor, " 2*n"],
    rows: Float[Tensor, "B {count}"],
    masks: Int[Tensor, "*batch 3"],
    count: int,
) -> None: ...


def of_grammar(**change: Any) -> Callable[[Any], Any]:
    given = {
        "x": T(2, 7, 9, 5), "bias": T(2, 1), "longer": T(6), "wide": T(8), "rows": T(2, 4),
        "masks": T(7, 9, 3, dtype=torch.int64), "count": 4,
    }  # fmt: skip
    return lambda modes: modes.rejects(grammar, **{**given, **change})


@contract
def laid_out(
    x: Annotated[Float[Tensor, "N M"], DenseLast()],
    y: Annotated[Float[Tensor, "N M"], Contiguous(), OnDevice("cpu")],
    z: Annotated[Float[Tensor, " M"], Aligned(64), OneOf(torch.float32, torch.bfloat16)],
) -> None: ...


@contract
def either(a: Float[Tensor, "B HV K"] | Float[Tensor, "B HV*K"], state: Float[Tensor, "slots HV V K"]) -> None: ...


@contract(
    Contract(
        "paired",
        clauses=[
            same_dtype("q", "k", "v"),
            same_device("q", "k", "v"),
            needs("cos", "sin"),
            any_of(rank("v"), rank("k")),
        ],
    )
)
def paired(
    q: Float[Tensor, "T D"], k: Float[Tensor, "N D"], v: Float[Tensor, "N D"],
    cos: Float[Tensor, "T R"] | None = None, sin: Float[Tensor, "T R"] | None = None,
) -> None: ...  # fmt: skip


@contract(Contract("written", clauses=[shape("out")], mutates=("out", "state")))
def written(x: Float[Tensor, "N M"], out: Float[Tensor, "N M"], state: Float[Tensor, "S M"]) -> None: ...


def call(function: Any, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return lambda modes: modes.rejects(function, *args, **kwargs)


POOL = T(10, 4)
MESSAGES: dict[str, Callable[[Any], Any]] = {
    "axis": call(decode, **{**right(), "k_cache": T(5, 4, 4, 16)}),
    "axis-of-a-binder-itself-wrong": call(decode, **{**right(), "q": T(3, 4, 16)}),
    "rank": call(decode, **{**right(), "k_cache": T(5, 2, 16)}),
    "dtype": call(decode, **{**right(), "g_cache": T(5, 4, 4, 16).half()}),
    "none": call(decode, **{**right(), "k_cache": None}),
    "no-tensor": call(decode, **{**right(), "write_pos": [0, 1, 2]}),
    "scalar": call(decode, **{**right(), "scale": "1.0"}),
    "optional-axis": call(decode, **{**right(), "write_pos": T(4, dtype=torch.int32)}),
    "documented": call(claimed, T(3, 2, 16), T(5, 4, 4, 16), T(3, 2, 16)),
    "documented-relation": call(packed, T(3, 32), T(5, 2, 16)),
    "broadcast": of_grammar(bias=T(3, 1)),
    "expression": of_grammar(longer=T(5)),
    "solved": of_grammar(wide=T(7)),
    "argument-expression": of_grammar(rows=T(2, 5)),
    "variadic": of_grammar(masks=T(7, 8, 3, dtype=torch.int64)),
    "variadic-rank": of_grammar(x=T(2)),
    "fixed": of_grammar(masks=T(7, 9, 4, dtype=torch.int64)),
    "layout": call(laid_out, T(4, 3).T, T(3, 4), T(4)),
    "contiguous": call(laid_out, T(3, 4), T(3, 8)[:, ::2], T(4)),
    "alignment": call(laid_out, T(3, 4), T(3, 4), T(64)[1:5]),
    "one-of": call(laid_out, T(3, 4), T(3, 4), T(4).half()),
    "device": call(laid_out, T(3, 4), T(3, 4).to("meta"), T(4)),
    "union-axes": call(either, T(2, 16, 4), T(5, 4, 8, 16)),
    "union-rank": call(either, T(2), T(5, 4, 8, 16)),
    "dtype-pair": call(paired, T(2, 4), T(3, 4).half(), T(3, 4)),
    "device-pair": call(paired, T(2, 4), T(3, 4), T(3, 4).to("meta")),
    "needs": call(paired, T(2, 4), T(3, 4), T(3, 4), T(2, 2)),
    "any-of": call(paired, T(2, 4), T(3, 4, 1), T(4)),
    "self-overlap": call(written, T(2, 4), T(1, 4).expand(2, 4), T(3, 4)),
    "mutual-overlap": call(written, T(2, 4), POOL[:2], POOL[1:4]),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_snapshot(modes: Any, snapshot: Callable[[str, str], None], name: str) -> None:
    raised = MESSAGES[name](modes)
    snapshot(name, "\n".join((f"{type(raised).__name__}: {raised}", *raised.__notes__)).replace(f"{__name__}.", ""))


def test_the_text_of_the_design(modes: Any) -> None:
    raised = modes.rejects(decode, **{**right(), "k_cache": T(5, 4, 4, 16)})
    assert str(raised) == (
        "k_cache: axis 1 (H) is 4, but H is 2 (q axis 1); expected [slots, H, L, K] = [5, 2, 4, 16], got [5, 4, 4, 16]"
    )


def test_order_of_the_note(modes: Any) -> None:
    raised = modes.rejects(claimed, T(3, 2, 16), T(5, 4, 4, 16), T(3, 2, 16))
    lines = raised.__notes__[0].splitlines()
    assert lines[0] == "because k_cache: axis 1 (H) is 4, but H is 2 (q axis 1); got [5, 4, 4, 16]"
    assert lines[1] == f"in the call of {__name__}.claimed, clause same_dim('H', 'q', 'k_cache')"
    assert lines[2].split()[0] == "B"
    assert [line[1:].split()[0] for line in lines[3:6]] == ["q", "k_cache", "out"]
    assert [line[0] for line in lines[3:6]] == ["=", ">", " "]
    assert "=2=" in lines[3]
    assert ">4<" in lines[4]
    assert lines[6].startswith("bound: B=3 (q axis 0), ")
    assert lines[8].startswith("smallest change: ")
    assert lines[9] == "explained by: tensorpact explain cache-heads"
    assert len(lines) == 10


def test_a_sound_binder_is_never_marked(modes: Any) -> None:
    note = modes.rejects(decode, **{**right(), "k_cache": T(5, 4, 4, 16)}).__notes__[0]
    assert "H=2 (q axis 1)," in note
    assert "slots=5 (k_cache axis 0, itself rejected)" in note


def test_long_values_are_cut(modes: Any) -> None:
    raised = modes.rejects(decode, **{**right(), "scale": "x" * 500})
    assert len(str(raised)) < 120
    assert len(raised.__notes__[0]) < 700


def test_unused_snapshots(request: pytest.FixtureRequest) -> None:
    folder = request.path.parent / "snapshots"
    elsewhere = {"draft", "many-tensors", "many-items"}
    assert {path.stem for path in folder.glob("*.txt")} == set(MESSAGES) | elsewhere
