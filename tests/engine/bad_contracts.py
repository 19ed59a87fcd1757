"""Contracts that are wrong on purpose, each in one way, and right ones beside them."""

import dataclasses
import enum
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tensorpact import Contract, DocumentedError, contract
from tensorpact.clauses import (
    any_of,
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
from tensorpact.constraints import Aligned, Contiguous, DenseLast, OneOf, Reach32

WIDTH = DocumentedError("width", ValueError, "w has {w.size(-1)} columns, x has {x.size(-1)}")
AGAIN = DocumentedError("width-again", ValueError, "w and x differ in D={D}")
POSITIVE = DocumentedError("positive", ValueError, "N={N} must be positive")
SMALL = DocumentedError("small", ValueError, "N={N} is too large")
DTYPE = DocumentedError("half", TypeError, "x is {x.dtype}")


def scaled(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.mT


RIGHT = Contract("right", clauses=[same_dim("D", "x", "w", error=WIDTH)], reference=lambda x, w: x @ w.mT)


@contract(RIGHT)
def right(x: Float[Tensor, "N D"], w: Float[Tensor, "M D"]) -> Float[Tensor, "N M"]:
    return torch.stack([x @ row for row in w], 1) if w.shape[0] else x.new_zeros(x.shape[0], 0)


@contract(Contract("wrong_axis", reference=lambda x, sink: x + sink[None, :]))
def wrong_axis(x: Float[Tensor, "T H"], sink: Float[Tensor, " T"]) -> Float[Tensor, "T H"]:
    return x + sink[None, :]


@contract(Contract("shadowed", clauses=[same_dim("D", "x", "w", error=WIDTH), same_dim("D", "x", "w", error=AGAIN)]))
def shadowed(x: Float[Tensor, "N D"], w: Float[Tensor, "M D"]) -> None: ...


@contract(Contract("dead", clauses=[require(lambda N: N >= 0, error=POSITIVE)]))
def dead(x: Float[Tensor, "N D"], w: Float[Tensor, "N D"]) -> None: ...


@contract(Contract("dead_default", clauses=[require(lambda N: N >= 0)]))
def dead_default(x: Float[Tensor, "N D"], w: Float[Tensor, "N D"]) -> None: ...


@contract(Contract("never", clauses=[require(lambda N: N < 0, error=SMALL)]))
def never(x: Float[Tensor, "N D"], w: Float[Tensor, "N D"]) -> None: ...


LOST_FIELD = DocumentedError("lost-field", ValueError, "w is missing, S={rows}", fields={"rows": lambda S: S})
RAISING_FIELD = DocumentedError(
    "raising-field", ValueError, "x has width {width}", fields={"width": lambda x: x.shape[7]}
)


@contract(Contract("lost_field", clauses=[present("w", error=LOST_FIELD)]))
def lost_field(x: Float[Tensor, "N D"], w: Float[Tensor, "S D"] | None) -> None: ...


@contract(Contract("raising_field", clauses=[same_dim("D", "x", "w", error=RAISING_FIELD)]))
def raising_field(x: Float[Tensor, "N D"], w: Float[Tensor, "N D"]) -> None: ...


@contract(Contract("raising_rule", clauses=[require(lambda N, D: N % D == 0 or N < D, error=SMALL)]))
def raising_rule(x: Float[Tensor, "N D"], w: Float[Tensor, "N D"]) -> None: ...


@contract(Contract("other_reference", reference=lambda x, w: 2 * (x @ w.mT)))
def other_reference(x: Float[Tensor, "N D"], w: Float[Tensor, "M D"]) -> Float[Tensor, "N M"]:
    return x @ w.mT


@contract(Contract("own_reference", reference=scaled))
def own_reference(x: Float[Tensor, "N D"], w: Float[Tensor, "M D"]) -> Float[Tensor, "N M"]:
    return scaled(x, w)


@contract
def mutating(x: Float[Tensor, "N D"], w: Float[Tensor, "N D"]) -> None:
    x.add_(1)


def doubles(x: Tensor, out: Tensor) -> None:
    out.copy_(2 * x)


@contract(Contract("declared", mutates=("out",), reference=doubles))
def writes_wrong(x: Float[Tensor, "N D"], out: Float[Tensor, "N D"]) -> None:
    out.copy_(3 * x)


@contract(Contract("guarded", clauses=[require(lambda N: N != 5, error=SMALL)]))
def guarded(x: Float[Tensor, "N D"], w: Float[Tensor, "N D"]) -> None: ...


@contract(Contract("lonely", clauses=[same_dim("D", "x", "w", error=WIDTH)]))
def lonely(x: Float[Tensor, "N D"], w: Float[Tensor, "M D"]) -> None: ...


@contract(Contract("required", clauses=[present("w", error=DTYPE)]))
def required(x: Float[Tensor, "N D"], w: Float[Tensor, "N D"] | None = None) -> None: ...


@contract
def bare_none(x: Float[Tensor, "N D"], w: Float[Tensor, "N D"] = None) -> None: ...


class Opaque:
    pass


@contract
def unknown_hint(x: Float[Tensor, " N"], state: Opaque) -> None: ...


@contract
def fails_on_empty(x: Float[Tensor, "N D"], w: Float[Tensor, "N D"]) -> None:
    x.max()


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


def error(slug: str) -> DocumentedError:
    return DocumentedError(slug, ValueError, f"{slug}: {{names}}")


EVERYTHING = Contract(
    "everything",
    clauses=[
        require(lambda kind: kind != "c", error=DocumentedError("kind", ValueError, "kind {kind!r}")),
        rank("x", "y", error=error("rank")),
        dtype("x", error=error("dtype")),
        same_dtype("x", "y", error=error("same-dtype")),
        layout("x", error=error("dense")),
        layout("y", error=error("contiguous")),
        layout("big", error=error("reach")),
        layout("aligned", error=error("aligned")),
        present("z", when=lambda causal: causal, error=error("present")),
        together("k", "v", error=error("together")),
        needs("cos", "k", error=error("needs")),
        exclusive("table", "cos", error=error("exclusive")),
        same_device("x", "y", "big", error=error("device")),
        require(lambda C, HV, V: (C - HV * V) > 0, error=DocumentedError("room", ValueError, "C={C}, HV={HV}, V={V}")),
        require(lambda K: K >= 1, error=DocumentedError("key-dim", ValueError, "K={K}")),
        require(
            lambda C, HV, V, K: (C - HV * V) % (2 * K) == 0,
            error=DocumentedError("split", ValueError, "C={C}, HV={HV}, V={V}, K={K}"),
        ),
        let(H=lambda C, HV, V, K: (C - HV * V) // (2 * K)),
        require(lambda H, HV: HV % H == 0, error=DocumentedError("groups", ValueError, "HV={HV}, H={H}")),
        shape("cache", error=DocumentedError("cache", ValueError, "cache {list(cache.shape)}, H={H}")),
        any_of(shape("k"), shape("v"), error=error("keys")),
        no_overlap("out", "x", error=error("overlap")),
        require(
            lambda scale, causal: scale > 0 or not causal,
            error=DocumentedError("scale", ValueError, "scale {scale}"),
        ),
    ],
    mutates=("out",),
)


@contract(EVERYTHING)
def everything(
    x: Annotated[Float[Tensor, "B C"], OneOf(torch.float32, torch.bfloat16), DenseLast()],
    y: Annotated[Float[Tensor, "HV K V"], Contiguous()],
    big: Annotated[Float[Tensor, "B W"], Reach32()],
    aligned: Annotated[Int[Tensor, " B"], Aligned(16)],
    out: Float[Tensor, "B C"],
    z: Float[Tensor, " B"] | None,
    cache: Float[Tensor, "slots H K"],
    k: Float[Tensor, "B K"] | None = None,
    v: Float[Tensor, "B V"] | None = None,
    cos: Float[Tensor, " B"] | None = None,
    table: Int[Tensor, "B pages"] | None = None,
    *,
    kind: Literal["a", "b", "c"] = "a",
    mode: Kind = Kind.ONE,
    causal: bool = False,
    scale: float = 1.0,
) -> None: ...


@contract
def grammar(
    a: Float[Tensor, "*batch N 3"],
    b: Float[Tensor, "... N+1 _"],
    c: Float[Tensor, "#N M"],
    d: Float[Tensor, "N M*2"] | Float[Tensor, "N M"],
    n: int,
    e: Float[Tensor, " {n}+1"],
) -> None: ...


@dataclasses.dataclass
class Cache:
    k: Float[Tensor, "S D"]
    v: Float[Tensor, "S D"]

    @contract(Contract("append", clauses=[same_dim("D", "self.k", "x", error=error("append"))]))
    def append(self, x: Float[Tensor, "N D"]) -> None: ...


@contract(Contract("rows", reference=lambda table, index: table[index]))
def rows(table: Float[Tensor, "P D"], index: Int[Tensor, " N"]) -> Float[Tensor, "N D"]:
    return table[index]
