"""Overlays for the delta rules of fla-core: KDA, the gated and the plain one, in chunks and token by token.

The recurrent forms look at nothing but the number of sequences; the chunked ones look at some shapes with ``assert``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

import tensorpact
from tensorpact import Contract, DocumentedError
from tensorpact.clauses import Clause, at_most, nondecreasing, rank, require, shape, starts_at, values
from tensorpact.integrations import Applied, overlay
from tensorpact_contracts._values import fits_float


def _sequences(q: Tensor, cu_seqlens: Tensor | None) -> int:
    return q.size(0) if cu_seqlens is None else cu_seqlens.numel() - 1


RANKS = DocumentedError(
    "inputs-without-batch-or-heads",
    ValueError,
    "q, k and v have four axes [B, T, heads, dim], with B = 1 for packed sequences; another number: {names}",
)
KEY_SHAPE = DocumentedError("key-shape", ValueError, "k must have the shape of q, {list(q.shape)}, got {list(k.shape)}")
TOKENS = DocumentedError(
    "tokens-or-heads-of-values",
    ValueError,
    "{name} must go with the {B} x {T} tokens of q and the {v.size(2)} heads of v; v has shape {list(v.shape)}",
)
GROUPS = DocumentedError(
    "value-heads-not-in-groups",
    ValueError,
    "the {v.size(2)} heads of v must be a multiple of the {q.size(2)} heads of q",
)
STATE = DocumentedError(
    "initial-state-shape",
    ValueError,
    "initial_state must be [{sequences}, {v.size(2)}, K, V] with K={q.size(3)} and V={v.size(3)}, the last two "
    "exchanged where the state is V-first, got {list(initial_state.shape)}",
    fields={"sequences": lambda q, cu_seqlens: _sequences(q, cu_seqlens)},
)
SEQUENCES = DocumentedError(
    "packed-sequences",
    ValueError,
    "cu_seqlens cuts the tokens of one batch row: it starts at 0, never falls and ends within T={T}; q has B={B}",
)
GATE = DocumentedError(
    "gate-without-decay",
    ValueError,
    "use_gate_in_kernel makes the decay from A_log, which is missing",
)
SCALE = DocumentedError("scale-of-scores", ValueError, "scale must be a finite number above 0, got {scale}")


def _positive(scale: float | None) -> bool:
    return scale is None or (scale > 0 and fits_float(scale))


def _state_fits(
    q: Tensor,
    v: Tensor,
    initial_state: Tensor | None,
    state_v_first: bool,
    cu_seqlens: Tensor | None,
    kwargs: Mapping[str, Any],
) -> bool:
    if initial_state is None:
        return True
    # The older name of the same switch.
    v_first = state_v_first or bool(kwargs.get("transpose_state_layout"))
    sides = (v.size(3), q.size(3)) if v_first else (q.size(3), v.size(3))
    return tuple(initial_state.shape) == (_sequences(q, cu_seqlens), v.size(2), *sides)


def _plain_state_fits(q: Tensor, v: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None) -> bool:
    return initial_state is None or tuple(initial_state.shape) == (
        _sequences(q, cu_seqlens),
        v.size(2),
        q.size(3),
        v.size(3),
    )


def _packed(q: Tensor, cu_seqlens: Tensor | None) -> bool:
    return cu_seqlens is None or (q.size(0) == 1 and cu_seqlens.numel() > 0)


def _clauses(*per_token: str, state: Clause, grouped: bool = True) -> list[Clause]:
    heads: list[Clause] = [
        require(lambda q, v: q.size(2) > 0 and v.size(2) % q.size(2) == 0, error=GROUPS, about="v"),
    ]
    return [
        rank("q", "k", "v", error=RANKS),
        shape("k", error=KEY_SHAPE),
        shape("v", *per_token, error=TOKENS),
        *(heads if grouped else []),
        require(_packed, error=SEQUENCES, about="cu_seqlens"),
        values("cu_seqlens", starts_at(0), nondecreasing(), at_most("T"), error=SEQUENCES),
        state,
        require(_positive, error=SCALE, about="scale"),
    ]


_STATE = require(_state_fits, error=STATE, about="initial_state")
_DIMS = {
    "B": "batch rows; 1 where sequences are packed",
    "T": "tokens of a row",
    "H": "heads of queries and keys",
    "HV": "heads of values, gates and state",
    "K": "head dim of queries and keys",
    "V": "head dim of values",
}
_PLAIN_DIMS = {name: what for name, what in _DIMS.items() if name != "HV"} | {"H": "heads of all inputs"}

KDA = Contract("kda", dims=_DIMS, clauses=_clauses("g", "beta", state=_STATE))
RECURRENT_KDA = Contract(
    "fused_recurrent_kda",
    dims=_DIMS,
    clauses=[
        *_clauses("g", "beta", state=_STATE),
        require(
            lambda A_log, lower_bound: A_log is not None or lower_bound is not None,
            when=lambda use_gate_in_kernel: use_gate_in_kernel,
            error=GATE,
            about="A_log",
        ),
    ],
)
GATED = Contract("chunk_gated_delta_rule", dims=_DIMS, clauses=_clauses("g", "beta", state=_STATE))
RECURRENT_GATED = Contract(
    "fused_recurrent_gated_delta_rule",
    dims=_DIMS,
    clauses=[
        *_clauses("g", "gk", "gv", "beta", state=_STATE),
        require(
            lambda A_log: A_log is not None,
            when=lambda use_gate_in_kernel: use_gate_in_kernel,
            error=GATE,
            about="A_log",
        ),
    ],
)
DELTA = Contract(
    "delta_rule",
    dims=_PLAIN_DIMS,
    clauses=_clauses("beta", state=require(_plain_state_fits, error=STATE, about="initial_state"), grouped=False),
)


@overlay("fla.ops.kda:chunk_kda", KDA)
def chunk_kda(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T HV V"],
    g: Float[Tensor, "B T HV K"],
    beta: Float[Tensor, "B T HV"],
    scale: float | None = None,
    initial_state: Float[Tensor, "_ _ _ _"] | None = None,
    *,
    state_v_first: bool = False,
    cu_seqlens: Int[Tensor, " _"] | None = None,
    **kwargs: Any,
) -> Any:
    """Kimi Delta Attention in chunks; what is not named here is handed on as it is."""


@overlay("fla.ops.kda:fused_recurrent_kda", RECURRENT_KDA)
def fused_recurrent_kda(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T HV V"],
    g: Float[Tensor, "B T HV K"],
    beta: Float[Tensor, "B T HV"] | Float[Tensor, "B T HV V"],
    A_log: Float[Tensor, "..."] | None = None,
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "_ _ _ _"] | None = None,
    use_gate_in_kernel: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Int[Tensor, " _"] | None = None,
    **kwargs: Any,
) -> Any:
    """Kimi Delta Attention token by token; what is not named here is handed on as it is."""


@overlay("fla.ops.gated_delta_rule:chunk_gated_delta_rule", GATED)
def chunk_gated_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T HV V"],
    g: Float[Tensor, "B T HV"],
    beta: Float[Tensor, "B T HV"],
    scale: float | None = None,
    initial_state: Float[Tensor, "_ _ _ _"] | None = None,
    *,
    state_v_first: bool = False,
    cu_seqlens: Int[Tensor, " _"] | None = None,
    **kwargs: Any,
) -> Any:
    """The gated delta rule in chunks; what is not named here is handed on as it is."""


@overlay("fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule", RECURRENT_GATED)
def fused_recurrent_gated_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T HV V"],
    g: Float[Tensor, "B T HV"] | None = None,
    gk: Float[Tensor, "B T HV K"] | None = None,
    gv: Float[Tensor, "B T HV V"] | None = None,
    beta: Float[Tensor, "B T HV"] | Float[Tensor, "B T HV V"] | None = None,
    scale: float | None = None,
    initial_state: Float[Tensor, "_ _ _ _"] | None = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: Float[Tensor, "..."] | None = None,
    state_v_first: bool = False,
    cu_seqlens: Int[Tensor, " _"] | None = None,
    **kwargs: Any,
) -> Any:
    """The gated delta rule token by token; what is not named here is handed on as it is."""


@overlay("fla.ops.delta_rule:chunk_delta_rule", DELTA)
def chunk_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    beta: Float[Tensor, "B T H"],
    scale: float | None = None,
    initial_state: Float[Tensor, "_ _ _ _"] | None = None,
    *,
    cu_seqlens: Int[Tensor, " _"] | None = None,
    **kwargs: Any,
) -> Any:
    """The delta rule in chunks; what is not named here is handed on as it is."""


@overlay("fla.ops.delta_rule:fused_recurrent_delta_rule", DELTA)
def fused_recurrent_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    beta: Float[Tensor, "B T H"] | Float[Tensor, "B T H V"] | None = None,
    scale: float | None = None,
    initial_state: Float[Tensor, "_ _ _ _"] | None = None,
    *,
    cu_seqlens: Int[Tensor, " _"] | None = None,
) -> Any:
    """The delta rule token by token; what is not named here is handed on as it is."""


OVERLAYS: tuple[Callable[..., Any], ...] = (
    chunk_kda,
    fused_recurrent_kda,
    chunk_gated_delta_rule,
    fused_recurrent_gated_delta_rule,
    chunk_delta_rule,
    fused_recurrent_delta_rule,
)


def apply(*, packages: Sequence[str] = ("fla",)) -> tuple[Applied, ...]:
    """Put the contracts on all six functions.

    Args:
        packages: Imported packages in which other names of them are exchanged too; fla itself has several.
    """
    return tuple(tensorpact.apply(made, packages=packages) for made in OVERLAYS)
