"""A whole public contract as a model: ReplaySSM decode, every documented check exact, in its documented order."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
import torch
from jaxtyping import Float, Float32, Int, Int32
from torch import Tensor

from tensorpact import Contract, DocumentedError, contract
from tensorpact.clauses import any_of, dtype, layout, let, rank, require, same_device, shape
from tensorpact.constraints import Contiguous, DenseLast, OneOf


def documented(slug: str, template: str, kind: type[Exception] = ValueError) -> DocumentedError:
    return DocumentedError(slug, kind, template)


A1 = documented("a-layout", "KDA `a` must be a contiguous 2D or 3D tensor.")
A2 = documented("dt-bias-layout", "KDA `dt_bias` must be a contiguous 1D or 2D tensor.")
A3 = documented("a-view", "`a` has {a.numel()} elements, which {B} rows do not divide.", RuntimeError)
V1 = documented("v1", "`mixed_qkv` must be a 2D tensor (got ndim={mixed_qkv.ndim}).")
V2 = documented("v2", "`mixed_qkv` must be contiguous in the last dim.")
V3 = documented("v3", "`a` and `b` must be 2D tensors (got a.ndim=2, b.ndim={b.ndim}).")
V4 = documented("v4", "`a`/`b` must be contiguous in the last dim.")
V5 = documented("v5", "`A_log`/`dt_bias` must be 1D tensors.")
V6 = documented("v6", "`A_log`/`dt_bias` must be contiguous.")
V7 = documented("v7", "`ssm_state_indices` must be 1D for packed decode (got ndim={ssm_state_indices.ndim}).")
V8 = documented("v8", "`out` must be contiguous.")
V9 = documented("v9", "All inputs must be on the same device.")
V10 = documented("v10", "Mismatched batch sizes: mixed_qkv.shape[0]={B}, a.shape[0]={B}, b.shape[0]={b.shape[0]}.")
V11 = documented(
    "v11", "`ssm_state_indices` must have shape [B] (got {tuple(ssm_state_indices.shape)}; expected ({B},))."
)
V12 = documented("v12", "`initial_state` must be a 4D tensor (got ndim={initial_state.ndim}).")
V13 = documented("v13", "`initial_state` must be contiguous in the last dim.")
V15 = documented("v15", "`a` must have shape [B, HV*K] with HV={HV}, K={K} (got a.shape={(B, row)}).")
V16 = documented("v16", "`b` must have shape [B, HV] with HV={HV} (got b.shape={tuple(b.shape)}).")
V17 = documented("v17", "`A_log` must have {HV} elements (got {A_log.numel()}).")
V18 = documented("v18", "`dt_bias` must have {HV * K} elements (got {dt_bias.numel()}).")
V19 = documented("v19", "`out` must have shape {(B, 1, HV, V)} (got out.shape={tuple(out.shape)}).")
V20 = documented("v20", "Invalid packed `mixed_qkv` last dim={C} for HV={HV}, V={V}.")
KEY_DIM = documented("key-dim", "key head dim must be at least 1 (got K={K}).")
V21 = documented(
    "v21",
    "Invalid packed Q size {q_dim}: must be divisible by K={K}. KDA packed decode requires num_q_heads == num_k_heads"
    " and head_q_dim == head_k_dim.",
)
V22 = documented("v22", "Invalid head config inferred from mixed_qkv: H={H}, HV={HV}.")
W1 = documented("w1", "`write_pos` must be a 1D int32 tensor.")
W2 = documented("w2", "`write_pos` must have shape {(B,)}.")
W3 = documented("w3", "`force_flush` must be a length-B int32 tensor or None.")
W4 = documented("w4", "ReplaySSM cache length must be at least 1.")
W5 = documented("w5", "`d_cache` must have shape [slots, HV, L, V].")
W6 = documented("w6", "`k_cache` must have shape [slots, H, L, K].")
W7 = documented("w7", "`g_cache` must have shape [slots, HV, L, K].")
W8 = documented("w8", "`g_cache` must have dtype torch.float32.")
W9 = documented("w9", "ReplaySSM inputs must be on the same device.")
W10 = documented("w10", "`force_flush` must be on the same device as the inputs.")
SLOTS = documented("slots", "{name} must have as many slots as `initial_state` ({slots}).")
A_SHAPE = documented("a-shape", "`a` must have shape [B, HV, K] or [B, HV*K] (got {tuple(a.shape)}).")
DT_SHAPE = documented("dt-shape", "`dt_bias` must have shape [HV, K] or [HV*K] (got {tuple(dt_bias.shape)}).")

REPLAYSSM = Contract(
    "replayssm",
    binds={"B": "mixed_qkv", "HV": "initial_state", "K": "initial_state", "V": "initial_state", "L": "d_cache"},
    clauses=[
        any_of(rank("a"), layout("a"), error=A1),
        any_of(rank("dt_bias"), layout("dt_bias"), error=A2),
        require(lambda a, B: a.numel() % max(B, 1) == 0, error=A3),
        let(row=lambda a, B: a.numel() // max(B, 1)),
        rank("mixed_qkv", error=V1),
        layout("mixed_qkv", error=V2),
        rank("b", error=V3),
        layout("b", error=V4),
        rank("A_log", error=V5),
        layout("A_log", error=V6),
        rank("ssm_state_indices", error=V7),
        layout("out", error=V8),
        same_device("mixed_qkv", "a", "b", "A_log", "dt_bias", "initial_state", "out", "ssm_state_indices", error=V9),
        shape("b", axes="B", error=V10),
        shape("ssm_state_indices", error=V11),
        rank("initial_state", error=V12),
        layout("initial_state", error=V13),
        require(lambda a, B, HV, K: a.numel() == B * HV * K, error=V15),
        shape("b", axes="HV", error=V16),
        shape("A_log", error=V17),
        require(lambda dt_bias, HV, K: dt_bias.numel() == HV * K, error=V18),
        shape("out", error=V19),
        let(qk=lambda C, HV, V: C - HV * V),
        require(lambda qk: qk > 0 and qk % 2 == 0, error=V20),
        let(q_dim=lambda qk: qk // 2),
        require(lambda K: K >= 1, error=KEY_DIM),
        require(lambda q_dim, K: q_dim % K == 0, error=V21),
        let(H=lambda q_dim, K: q_dim // K),
        require(lambda H, HV: H > 0 and HV % H == 0, error=V22),
        any_of(rank("write_pos"), dtype("write_pos"), error=W1),
        shape("write_pos", error=W2),
        any_of(rank("force_flush"), dtype("force_flush"), shape("force_flush"), error=W3),
        require(lambda L: L >= 1, error=W4),
        shape("d_cache", axes="HV L V", error=W5),
        shape("k_cache", axes="H L K", error=W6),
        shape("g_cache", axes="HV L K", error=W7),
        dtype("g_cache", error=W8),
        same_device("mixed_qkv", "d_cache", "k_cache", "g_cache", "write_pos", error=W9),
        same_device("mixed_qkv", "force_flush", error=W10),
        shape("d_cache", "k_cache", "g_cache", axes="slots", error=SLOTS),
        shape("a", error=A_SHAPE),
        shape("dt_bias", error=DT_SHAPE),
    ],
    mutates=("out", "initial_state", "d_cache", "k_cache", "g_cache"),
)

STRICT = DenseLast(strict=True)


@contract(REPLAYSSM)
def replayssm(
    mixed_qkv: Annotated[Float[Tensor, "B C"], STRICT],
    a: Annotated[Float[Tensor, "B HV K"] | Float[Tensor, "B HV*K"], Contiguous()],
    b: Annotated[Float[Tensor, "B HV"], STRICT],
    A_log: Annotated[Float[Tensor, " HV"], STRICT],
    dt_bias: Annotated[Float[Tensor, "HV K"] | Float[Tensor, " HV*K"], Contiguous()],
    scale: float,
    initial_state: Annotated[Float[Tensor, "slots HV V K"], STRICT],
    d_cache: Float[Tensor, "slots HV L V"],
    k_cache: Float[Tensor, "slots H L K"],
    g_cache: Float32[Tensor, "slots HV L K"],
    out: Annotated[Float[Tensor, "B 1 HV V"], Contiguous()],
    ssm_state_indices: Annotated[Int[Tensor, " B"], OneOf(torch.int32, torch.int64)],
    write_pos: Int32[Tensor, " B"],
    force_flush: Int32[Tensor, " B"] | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
) -> str:
    return "reached"


def T(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:  # noqa: N802 - as the cases write it
    return torch.zeros(sizes, dtype=dtype)


def ints(*sizes: int) -> Tensor:
    return T(*sizes, dtype=torch.int32)


def arguments(V: int = 16, flat: bool = False) -> dict[str, Any]:
    """B 2, H 2, HV 4, K 16, L 4, slots 5."""
    return {
        "mixed_qkv": T(2, 64 + 4 * V),
        "a": T(2, 64) if flat else T(2, 4, 16),
        "b": T(2, 4),
        "A_log": T(4),
        "dt_bias": T(64) if flat else T(4, 16),
        "scale": 0.25,
        "initial_state": T(5, 4, V, 16),
        "d_cache": T(5, 4, 4, V),
        "k_cache": T(5, 2, 4, 16),
        "g_cache": T(5, 4, 4, 16),
        "out": T(2, 1, 4, V),
        "ssm_state_indices": ints(2),
        "write_pos": ints(2),
    }


def strided(tensor: Tensor) -> Tensor:
    """The same shape with every second element of the last axis."""
    return torch.zeros(*tensor.shape[:-1], tensor.shape[-1] * 2, dtype=tensor.dtype)[..., ::2]


def meta(tensor: Tensor) -> Tensor:
    return tensor.to("meta")


Change = Callable[[dict[str, Any]], dict[str, Any]]
HEADS = "KDA packed decode requires num_q_heads == num_k_heads and head_q_dim == head_k_dim."
#: Id, changed arguments, documented error, its exact text; in firing order, for V = 16.
CHECKS: list[tuple[str, Change, DocumentedError, str]] = [
    ("1-rank", lambda x: {"a": T(128)}, A1, "KDA `a` must be a contiguous 2D or 3D tensor."),
    ("1-layout", lambda x: {"a": strided(x["a"])}, A1, "KDA `a` must be a contiguous 2D or 3D tensor."),
    ("2-rank", lambda x: {"dt_bias": T(4, 4, 4)}, A2, "KDA `dt_bias` must be a contiguous 1D or 2D tensor."),
    ("2-layout", lambda x: {"dt_bias": strided(T(64))}, A2, "KDA `dt_bias` must be a contiguous 1D or 2D tensor."),
    ("3", lambda x: {"a": T(3, 3)}, A3, "`a` has 9 elements, which 2 rows do not divide."),
    ("v1", lambda x: {"mixed_qkv": T(2, 1, 128)}, V1, "`mixed_qkv` must be a 2D tensor (got ndim=3)."),
    ("v2", lambda x: {"mixed_qkv": strided(x["mixed_qkv"])}, V2, "`mixed_qkv` must be contiguous in the last dim."),
    ("v3", lambda x: {"b": T(8)}, V3, "`a` and `b` must be 2D tensors (got a.ndim=2, b.ndim=1)."),
    ("v4", lambda x: {"b": T(4, 2).T}, V4, "`a`/`b` must be contiguous in the last dim."),
    ("v5", lambda x: {"A_log": T(1, 4)}, V5, "`A_log`/`dt_bias` must be 1D tensors."),
    ("v6", lambda x: {"A_log": strided(T(4))}, V6, "`A_log`/`dt_bias` must be contiguous."),
    (
        "v7",
        lambda x: {"ssm_state_indices": ints(2, 1)},
        V7,
        "`ssm_state_indices` must be 1D for packed decode (got ndim=2).",
    ),
    ("v8", lambda x: {"out": strided(x["out"])}, V8, "`out` must be contiguous."),
    ("v9-b", lambda x: {"b": meta(x["b"])}, V9, "All inputs must be on the same device."),
    ("v9-state", lambda x: {"initial_state": meta(x["initial_state"])}, V9, "All inputs must be on the same device."),
    ("v10", lambda x: {"b": T(3, 4)}, V10, "Mismatched batch sizes: mixed_qkv.shape[0]=2, a.shape[0]=2, b.shape[0]=3."),
    (
        "v11",
        lambda x: {"ssm_state_indices": ints(3)},
        V11,
        "`ssm_state_indices` must have shape [B] (got (3,); expected (2,)).",
    ),
    ("v12", lambda x: {"initial_state": T(5, 4, 16)}, V12, "`initial_state` must be a 4D tensor (got ndim=3)."),
    (
        "v13",
        lambda x: {"initial_state": strided(x["initial_state"])},
        V13,
        "`initial_state` must be contiguous in the last dim.",
    ),
    (
        "v15",
        lambda x: {"a": T(2, 4, 8)},
        V15,
        "`a` must have shape [B, HV*K] with HV=4, K=16 (got a.shape=(2, 32)).",
    ),
    ("v16", lambda x: {"b": T(2, 2)}, V16, "`b` must have shape [B, HV] with HV=4 (got b.shape=(2, 2))."),
    ("v17", lambda x: {"A_log": T(3)}, V17, "`A_log` must have 4 elements (got 3)."),
    ("v18", lambda x: {"dt_bias": T(4, 8)}, V18, "`dt_bias` must have 64 elements (got 32)."),
    (
        "v19-rank",
        lambda x: {"out": T(2, 4, 16)},
        V19,
        "`out` must have shape (2, 1, 4, 16) (got out.shape=(2, 4, 16)).",
    ),
    (
        "v19-axis",
        lambda x: {"out": T(2, 1, 2, 16)},
        V19,
        "`out` must have shape (2, 1, 4, 16) (got out.shape=(2, 1, 2, 16)).",
    ),
    ("v20-zero", lambda x: {"mixed_qkv": T(2, 64)}, V20, "Invalid packed `mixed_qkv` last dim=64 for HV=4, V=16."),
    ("v20-odd", lambda x: {"mixed_qkv": T(2, 129)}, V20, "Invalid packed `mixed_qkv` last dim=129 for HV=4, V=16."),
    (
        "v21",
        lambda x: {"mixed_qkv": T(2, 144)},
        V21,
        f"Invalid packed Q size 40: must be divisible by K=16. {HEADS}",
    ),
    ("v22", lambda x: {"mixed_qkv": T(2, 160)}, V22, "Invalid head config inferred from mixed_qkv: H=3, HV=4."),
    ("w1-rank", lambda x: {"write_pos": ints(2, 1)}, W1, "`write_pos` must be a 1D int32 tensor."),
    ("w1-dtype", lambda x: {"write_pos": ints(2).long()}, W1, "`write_pos` must be a 1D int32 tensor."),
    ("w2", lambda x: {"write_pos": ints(3)}, W2, "`write_pos` must have shape (2,)."),
    ("w3-rank", lambda x: {"force_flush": ints(1, 2)}, W3, "`force_flush` must be a length-B int32 tensor or None."),
    (
        "w3-dtype",
        lambda x: {"force_flush": ints(2).long()},
        W3,
        "`force_flush` must be a length-B int32 tensor or None.",
    ),
    ("w3-length", lambda x: {"force_flush": ints(3)}, W3, "`force_flush` must be a length-B int32 tensor or None."),
    ("w4", lambda x: {"d_cache": T(5, 4, 0, 16)}, W4, "ReplaySSM cache length must be at least 1."),
    ("w5", lambda x: {"d_cache": T(5, 2, 4, 16)}, W5, "`d_cache` must have shape [slots, HV, L, V]."),
    ("w5-rank", lambda x: {"d_cache": T(5, 4, 4)}, W5, "`d_cache` must have shape [slots, HV, L, V]."),
    ("w6", lambda x: {"k_cache": T(5, 4, 4, 16)}, W6, "`k_cache` must have shape [slots, H, L, K]."),
    ("w7", lambda x: {"g_cache": T(5, 4, 4, 8)}, W7, "`g_cache` must have shape [slots, HV, L, K]."),
    ("w8", lambda x: {"g_cache": x["g_cache"].half()}, W8, "`g_cache` must have dtype torch.float32."),
    ("w9", lambda x: {"write_pos": meta(ints(2))}, W9, "ReplaySSM inputs must be on the same device."),
    ("w9-cache", lambda x: {"g_cache": meta(x["g_cache"])}, W9, "ReplaySSM inputs must be on the same device."),
    (
        "w10",
        lambda x: {"force_flush": meta(ints(2))},
        W10,
        "`force_flush` must be on the same device as the inputs.",
    ),
    ("slots", lambda x: {"k_cache": T(4, 2, 4, 16)}, SLOTS, "k_cache must have as many slots as `initial_state` (5)."),
    (
        "a-swapped",
        lambda x: {"a": T(2, 16, 4)},
        A_SHAPE,
        "`a` must have shape [B, HV, K] or [B, HV*K] (got (2, 16, 4)).",
    ),
    (
        "a-regrouped",
        lambda x: {"a": T(4, 4, 8)},
        A_SHAPE,
        "`a` must have shape [B, HV, K] or [B, HV*K] (got (4, 4, 8)).",
    ),
    (
        "dt-swapped",
        lambda x: {"dt_bias": T(16, 4)},
        DT_SHAPE,
        "`dt_bias` must have shape [HV, K] or [HV*K] (got (16, 4)).",
    ),
]


@pytest.mark.parametrize("flat", [False, True], ids=["3d", "flat"])
@pytest.mark.parametrize("V", [16, 32])
@pytest.mark.parametrize("flush", [False, True], ids=["without-flush", "with-flush"])
def test_valid_call(modes: Any, V: int, flat: bool, flush: bool) -> None:
    given = arguments(V, flat)
    if flush:
        given["force_flush"] = ints(2)
    assert modes(replayssm, **given) == "reached"


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_valid_batches(modes: Any, batch: int) -> None:
    given = arguments(32)
    for name in ("mixed_qkv", "a", "b", "out", "ssm_state_indices", "write_pos"):
        given[name] = given[name].new_zeros((batch, *given[name].shape[1:]))
    assert modes(replayssm, **given) == "reached"


@pytest.mark.parametrize(("change", "error", "text"), [c[1:] for c in CHECKS], ids=[c[0] for c in CHECKS])
def test_each_check_fires_first(modes: Any, change: Change, error: DocumentedError, text: str) -> None:
    given = arguments()
    raised = modes.rejects(replayssm, **{**given, **change(given)})
    assert str(raised) == text
    assert raised.error is error
    assert isinstance(raised, error.documented)


def _later_pairs() -> list[Any]:
    pairs: list[Any] = []
    given = arguments()
    for i, (first, change, error, text) in enumerate(CHECKS):
        for later, other, other_error, _ in CHECKS[i + 1 :]:
            distinct = not set(change(given)) & set(other(given))
            if distinct and error is not other_error:
                pairs.append(pytest.param(change, other, error, text, id=f"{first}+{later}"))
    return pairs[::6]


@pytest.mark.parametrize(("change", "other", "error", "text"), _later_pairs())
def test_the_earlier_of_two_fires(modes: Any, change: Change, other: Change, error: DocumentedError, text: str) -> None:
    given = arguments()
    raised = modes.rejects(replayssm, **{**given, **other(given), **change(given)})
    assert (raised.error, str(raised)) == (error, text)


def test_everything_at_once_fires_the_first(modes: Any) -> None:
    given = arguments()
    for _, change, _, _ in reversed(CHECKS):
        given |= change(arguments())
    assert modes.rejects(replayssm, **given).error is A1


@pytest.mark.parametrize("name", ["mixed_qkv", "d_cache", "out"])
def test_a_missing_tensor_is_a_type_error(modes: Any, name: str) -> None:
    raised = modes.rejects(replayssm, **{**arguments(), name: None})
    assert isinstance(raised, TypeError)
    assert str(raised).startswith(f"{name}: expected a Tensor [")
    assert str(raised).endswith("got None")


@pytest.mark.parametrize("name", ["initial_state", "k_cache"])
def test_a_written_tensor_with_stride_zero(modes: Any, name: str) -> None:
    given = arguments()
    raised = modes.rejects(replayssm, **{**given, name: given[name][:1].expand_as(given[name])})
    assert str(raised) == f"{name}: is written, but axis 0 of size 5 has stride 0"


def test_two_written_tensors_that_overlap(modes: Any) -> None:
    given = arguments()
    pool = T(5, 6, 4, 16)
    raised = modes.rejects(replayssm, **{**given, "d_cache": pool[:, :4], "k_cache": pool[:, 3:5]})
    assert str(raised) == "k_cache: is written and shares memory with d_cache, also written"
