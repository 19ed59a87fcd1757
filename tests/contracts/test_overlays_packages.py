"""Overlays whose packages need a GPU or are not installed: judged calls, and stand-ins of the same parameters."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorpact
from tensorpact import ContractViolation, DocumentedError
from tensorpact.integrations import LeftInPlaceWarning, StubMismatchError, judge
from tensorpact.testing import raises
from tensorpact_contracts import replayssm, sparse_prefill
from tensorpact_contracts.overlays import fla_delta, overlay_for, sglang_attention, torch_varlen

VARLEN = importlib.util.find_spec("torch.nn.attention.varlen")
FUSED = torch.randn(5, 12, 16)
Q, K, V = torch.randn(5, 4, 16), torch.randn(5, 4, 16), torch.randn(5, 4, 16)


def ends(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def packed(**changed: Any) -> dict[str, Any]:
    """E4 of the public reports: two sequences of 3 and 2 tokens, 4 heads of 16."""
    made = {"query": Q, "key": K, "value": V, "cu_seq_q": ends(0, 3, 5), "cu_seq_k": ends(0, 3, 5)}
    return {**made, "max_q": 3, "max_k": 3, **changed}


def paged(**changed: Any) -> dict[str, Any]:
    made = {"key": K[None], "value": V[None], "cu_seq_k": None, "block_table": torch.zeros(2, 1, dtype=torch.int32)}
    return packed(**made, **{"seqused_k": ends(3, 2), **changed})


VARLEN_BAD: dict[str, tuple[DocumentedError | None, dict[str, Any]]] = {
    "R03 offsets of another batch": (torch_varlen.OFFSET_COUNT, packed(cu_seq_k=ends(0, 5), max_k=5)),
    "R03 rank of query": (None, packed(query=Q[None])),
    "R13 query with heads first": (None, packed(query=Q.transpose(0, 1).contiguous()[None])),
    "R14 int64 offsets": (torch_varlen.OFFSET_DTYPE, packed(cu_seq_q=torch.tensor([0, 3, 5]))),
    "R25 maximum in a tensor": (None, packed(max_q=torch.tensor(3))),
    "R29 start": (torch_varlen.OFFSETS, packed(cu_seq_q=ends(1, 3, 5))),
    "R30 falling": (torch_varlen.OFFSETS, packed(cu_seq_q=ends(0, 4, 3), max_q=4)),
    "R31 end": (torch_varlen.OFFSETS, packed(cu_seq_q=ends(0, 5, 10), max_q=5)),
    "R33 keys cut": (torch_varlen.OFFSETS, packed(key=K[:2], value=V[:2])),
    "R34 maximum too small": (torch_varlen.OFFSETS, packed(max_k=2)),
    "values cut": (torch_varlen.KEY_VALUE, packed(value=V[:3])),
    "value heads": (torch_varlen.KEY_VALUE, packed(value=V[:, :2])),
    "lengths of another batch": (torch_varlen.OFFSET_COUNT, paged(seqused_k=ends(3, 2, 1))),
    "table without lengths": (torch_varlen.TABLE_LENGTHS, paged(seqused_k=None)),
    "pool without table": (torch_varlen.PAGED, packed(key=K[None], value=V[None])),
    "no offsets of keys": (torch_varlen.PAGED, packed(cu_seq_k=None)),
    "scale 0": (torch_varlen.SCALE, packed(scale=0.0)),
    "scale NaN": (torch_varlen.SCALE, packed(scale=float("nan"))),
    "scale negative": (torch_varlen.SCALE, packed(scale=-0.25)),
    "R35 lengths beyond the table": (torch_varlen.USED, paged(seqused_k=ends(3, 6), max_k=6)),
    "R35 lengths beyond the sequence": (torch_varlen.USED, packed(seqused_k=ends(3, 3))),
    "R35 negative": (torch_varlen.USED, packed(seqused_k=ends(3, -1))),
    "R35 negative in pages": (torch_varlen.USED, paged(seqused_k=ends(-1, 2))),
    "R34 lengths beyond the maximum": (torch_varlen.USED, paged(seqused_k=ends(5, 2), max_k=4)),
    "R29 start beside lengths": (torch_varlen.OFFSETS, packed(cu_seq_k=ends(1, 3, 5), seqused_k=ends(1, 1))),
    "R33 keys cut beside lengths": (torch_varlen.OFFSETS, packed(key=K[:2], value=V[:2], seqused_k=ends(1, 1))),
    "R34 maximum of queries": (torch_varlen.OFFSETS, packed(max_q=2)),
}
VARLEN_GOOD: dict[str, dict[str, Any]] = {
    "base": packed(),
    "pages": paged(),
    "A03 empty sequences": packed(cu_seq_q=ends(0, 0, 3, 3, 5), cu_seq_k=ends(0, 2, 3, 3, 5)),
    "A05 padded tail": packed(cu_seq_q=ends(0, 3), cu_seq_k=ends(0, 3)),
    "A09 slices of a projection": packed(query=FUSED[:, :4], key=FUSED[:, 4:8], value=FUSED[:, 8:]),
    "A13 expanded heads": packed(key=K[:, :1].expand(5, 4, 16)),
    "A17 fewer tokens than heads": packed(query=Q[:1], cu_seq_q=ends(0, 1, 1)),
    "A28 generous maxima": packed(max_q=4096, max_k=4096),
    "room behind the keys of each sequence": packed(seqused_k=ends(1, 2), max_k=2),
    "all of the pages": paged(seqused_k=ends(5, 0), max_k=5),
    "offsets beside a table": {**paged(), "cu_seq_k": ends(0, 99, 7)},
    "groups": packed(key=K[:, :2], value=V[:, :2], enable_gqa=True, window_size=[-1, 0], scale=0.5),
}  # fmt: skip


@pytest.fixture(params=["compiled", "beartype"])
def both_modes(request: pytest.FixtureRequest) -> Iterator[None]:
    with tensorpact.enforcement(request.param):
        yield


@pytest.mark.parametrize("case", VARLEN_BAD)
def test_varlen_is_stopped(case: str):
    error, call = VARLEN_BAD[case]
    with pytest.raises(ContractViolation) as caught:
        judge(torch_varlen.varlen_attn, **call)
    assert caught.value.error is error


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_varlen_looks_at_numbers_on_the_host_in_every_mode(mode: str):
    with tensorpact.value_checks(mode):
        for changed, text in (
            (packed(seqused_k=ends(3, 3)), "is 3, expected at most the 2 rows of sequence 1 in cu_seq_k"),
            (paged(seqused_k=ends(3, 6), max_k=6), "is 6, expected at most slots = 5"),
            (paged(seqused_k=ends(3, 5), max_k=4), "is 5, expected at most max_k = 4"),
            (packed(seqused_k=ends(3, -1)), "is -1, expected at least 0"),
        ):
            with pytest.raises(ContractViolation) as caught:
                judge(torch_varlen.varlen_attn, **changed)
            assert str(caught.value) == (
                f"seqused_k[1] {text}: valid keys lie within the sequence or its pages, and no sequence has more than "
                f"max_k={changed['max_k']}"
            )


@pytest.mark.parametrize("case", VARLEN_GOOD)
def test_varlen_passes(case: str):
    judge(torch_varlen.varlen_attn, **VARLEN_GOOD[case])


@pytest.mark.skipif(VARLEN is None, reason="this torch has no torch.nn.attention.varlen")
@pytest.mark.usefixtures("both_modes")
def test_varlen_on_the_function_of_torch():
    from torch.nn.attention import varlen

    try:
        applied = torch_varlen.apply()
    except StubMismatchError as other:
        pytest.skip(f"this torch has another varlen_attn: {other}")
    with applied:
        for case, (error, call) in VARLEN_BAD.items():
            with pytest.raises(ContractViolation) as caught:
                varlen.varlen_attn(**call)
            assert caught.value.error is error, case
        # A right call gets through to the operator, which has no CPU form.
        with pytest.raises(NotImplementedError, match="_flash_attention_forward"):
            varlen.varlen_attn(**packed())
        meta = {n: x.to("meta") if isinstance(x, torch.Tensor) else x for n, x in packed().items()}
        assert varlen.varlen_attn(**meta).shape == Q.shape


def kda(**changed: Any) -> dict[str, Any]:
    """Two rows of 5 tokens, 2 query and 4 value heads, key dim 16 and value dim 8."""
    made = {"q": torch.randn(2, 5, 2, 16), "k": torch.randn(2, 5, 2, 16), "v": torch.randn(2, 5, 4, 8)}
    return {**made, "g": -torch.rand(2, 5, 4, 16), "beta": torch.rand(2, 5, 4), **changed}


def flat(**changed: Any) -> dict[str, Any]:
    return {name: x.flatten(0, 1)[None] for name, x in kda().items()} | changed


def heads(count: int) -> dict[str, Any]:
    call = kda()
    return {name: call[name][:, :, :count] for name in ("v", "g", "beta")}


FLA_BAD: dict[str, tuple[DocumentedError, dict[str, Any]]] = {
    "no batch": (fla_delta.RANKS, kda(q=torch.randn(5, 2, 16))),
    "R01 value heads in no groups": (fla_delta.GROUPS, kda(**heads(3))),
    "one key head": (fla_delta.KEY_SHAPE, kda(k=torch.randn(2, 5, 1, 16))),
    "R13 values with heads first": (fla_delta.TOKENS, kda(v=torch.randn(2, 4, 5, 8))),
    "R13 beta with heads first": (fla_delta.TOKENS, kda(beta=torch.rand(2, 4, 5))),
    "a gate for each head": (fla_delta.TOKENS, kda(g=-torch.rand(2, 5, 4))),
    "R04 state in the other order": (fla_delta.STATE, kda(initial_state=torch.zeros(2, 4, 8, 16))),
    "state of the wrong rows": (fla_delta.STATE, kda(initial_state=torch.zeros(3, 4, 16, 8))),
    "state for the batch row": (
        fla_delta.STATE, flat(cu_seqlens=torch.tensor([0, 5, 10]), initial_state=torch.zeros(1, 4, 16, 8)),
    ),
    "R29 start": (fla_delta.SEQUENCES, flat(cu_seqlens=torch.tensor([1, 5, 10]))),
    "R30 falling": (fla_delta.SEQUENCES, flat(cu_seqlens=torch.tensor([0, 7, 5]))),
    "R31 end": (fla_delta.SEQUENCES, flat(cu_seqlens=torch.tensor([0, 5, 15]))),
    "offsets beside a batch": (fla_delta.SEQUENCES, kda(cu_seqlens=torch.tensor([0, 5]))),
    "scale 0": (fla_delta.SCALE, kda(scale=0.0)),
    "scale NaN": (fla_delta.SCALE, kda(scale=float("nan"))),
}  # fmt: skip
FLA_GOOD: dict[str, dict[str, Any]] = {
    "base": kda(),
    "A03 empty sequences": flat(cu_seqlens=torch.tensor([0, 0, 5, 5, 10])),
    "A05 padded tail": flat(cu_seqlens=torch.tensor([0, 4, 7])),
    "A14 int32 offsets": flat(cu_seqlens=ends(0, 5, 10), initial_state=torch.zeros(2, 4, 16, 8)),
    "state with values first": kda(initial_state=torch.zeros(2, 4, 8, 16), state_v_first=True),
    "state with values first, older name": kda(initial_state=torch.zeros(2, 4, 8, 16), transpose_state_layout=True),
    "A01 no rows": {name: x[:0] for name, x in kda().items()},
    "A18 a 16-bit state": kda(initial_state=torch.zeros(2, 4, 16, 8, dtype=torch.bfloat16)),
    "A25 parameters": kda(q=torch.nn.Parameter(torch.randn(2, 5, 2, 16))),
}


@pytest.mark.parametrize("overlay", [fla_delta.chunk_kda, fla_delta.fused_recurrent_kda], ids=["chunks", "tokens"])
@pytest.mark.parametrize("case", FLA_BAD)
def test_kda_is_stopped(case: str, overlay: Callable[..., Any]):
    error, call = FLA_BAD[case]
    with raises(error):
        judge(overlay, **call)


@pytest.mark.parametrize("overlay", [fla_delta.chunk_kda, fla_delta.fused_recurrent_kda], ids=["chunks", "tokens"])
@pytest.mark.parametrize("case", FLA_GOOD)
def test_kda_passes(case: str, overlay: Callable[..., Any]):
    judge(overlay, **FLA_GOOD[case])


def test_gates_of_the_recurrent_forms():
    gated = kda(g=-torch.rand(2, 5, 4))
    judge(fla_delta.fused_recurrent_gated_delta_rule, **gated)
    judge(fla_delta.fused_recurrent_gated_delta_rule, **kda(g=None, beta=None, gk=-torch.rand(2, 5, 4, 16)))
    judge(fla_delta.chunk_gated_delta_rule, **gated)
    judge(fla_delta.fused_recurrent_kda, **kda(use_gate_in_kernel=True, lower_bound=-5.0))
    for overlay, call in (
        (fla_delta.fused_recurrent_gated_delta_rule, gated),
        (fla_delta.fused_recurrent_kda, kda()),
    ):
        judge(overlay, **call, use_gate_in_kernel=True, A_log=torch.zeros(4))
        with raises(fla_delta.GATE):
            judge(overlay, **call, use_gate_in_kernel=True)
    with raises(fla_delta.TOKENS):
        judge(fla_delta.chunk_gated_delta_rule, **kda())


@pytest.mark.parametrize("overlay", [fla_delta.chunk_delta_rule, fla_delta.fused_recurrent_delta_rule])
def test_the_plain_rule_has_one_number_of_heads(overlay: Callable[..., Any]):
    call = {name: x for name, x in kda(v=torch.randn(2, 5, 2, 8), beta=torch.rand(2, 5, 2)).items() if name != "g"}
    judge(overlay, **call, initial_state=torch.zeros(2, 2, 16, 8))
    with raises(fla_delta.TOKENS):
        judge(overlay, **{**call, "v": torch.randn(2, 5, 4, 8)})
    with raises(fla_delta.STATE):
        judge(overlay, **call, initial_state=torch.zeros(2, 2, 8, 16))


def test_every_error_has_a_call_that_raises_it():
    tables = (
        (torch_varlen.VARLEN, [error for error, _ in VARLEN_BAD.values()]),
        (fla_delta.RECURRENT_KDA, [*(error for error, _ in FLA_BAD.values()), fla_delta.GATE]),
    )
    for contract, raised in tables:
        assert set(contract.errors) == {error for error in raised if error is not None}


def test_a_package_that_is_not_there_is_said_at_the_call():
    if importlib.util.find_spec("fla") is not None:
        pytest.skip("fla-core is installed")
    with pytest.raises(ModuleNotFoundError, match="fla"):
        fla_delta.fused_recurrent_kda(**kda())


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A stand-in for sglang: every function of the overlays at its place, with its parameters and no annotations."""
    if importlib.util.find_spec("sglang") is not None:
        pytest.skip("sglang is installed; a stand-in would hide it")
    for overlay in sglang_attention.OVERLAYS:
        module, _, name = overlay.__overlay__.target.partition(":")  # type: ignore[attr-defined]
        folder = tmp_path.joinpath(*module.split(".")[:-1])
        folder.mkdir(parents=True, exist_ok=True)
        signature = inspect.signature(overlay)
        bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
        text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
        first = bare[0].name
        source = f"def {name}{text}:\n    return {first}\n"
        (folder / f"{module.rpartition('.')[2]}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "sglang"
    for module in [m for m in sys.modules if m.partition(".")[0] == "sglang"]:
        del sys.modules[module]


def test_sglang_before_its_import_and_after(sglang: str, prefill_arguments: dict[str, Any]):
    handles = sglang_attention.apply()
    assert all(h.pending for h in handles)
    assert sglang not in sys.modules
    module = importlib.import_module(handles[0].target.partition(":")[0])
    prefill = module.sparse_attn_v4_paged_prefill
    assert prefill(**prefill_arguments) is prefill_arguments["q"]
    with raises(sparse_prefill.HEAD_DIM_MISMATCH):
        prefill(**{**prefill_arguments, "kv": torch.zeros(3, 8, dtype=torch.bfloat16)})
    with raises(sparse_prefill.INDPTR_LENGTH):
        prefill(**{**prefill_arguments, "kv_indptr_prefix": ends(0, 2, 2, 4, 4)})
    with raises(sparse_prefill.INDICES_RANK):
        prefill(**{**prefill_arguments, "kv_indices_prefix": torch.zeros(3, 2, dtype=torch.int32)})
    for handle in handles[1:]:
        importlib.import_module(handle.target.partition(":")[0])
    assert all(h.active for h in handles)
    for handle in handles:
        handle.remove()
    assert not hasattr(module.sparse_attn_v4_paged_prefill, "__tensorpact__")


def test_sglang_replay_r17_ring_of_gates_in_half_precision(sglang: str):
    call = {
        "mixed_qkv": torch.randn(3, 96),
        "a": torch.randn(3, 2, 16),
        "b": torch.randn(3, 2),
        "A_log": torch.randn(2),
        "dt_bias": torch.randn(2, 16),
        "scale": 0.25,
        "initial_state": torch.randn(6, 2, 32, 16),
        "d_cache": torch.randn(6, 2, 4, 32),
        "k_cache": torch.randn(6, 1, 4, 16),
        "g_cache": -torch.rand(6, 2, 4, 16),
        "out": torch.zeros(3, 1, 2, 32),
        "ssm_state_indices": ends(1, 3, 5),
        "write_pos": ends(0, 3, 1),
    }
    with tensorpact.apply(sglang_attention.helion_fused_recurrent_kda_replayssm_decode) as applied:
        module = importlib.import_module(applied.target.partition(":")[0])
        decode = module.helion_fused_recurrent_kda_replayssm_decode
        assert decode(**call) is call["mixed_qkv"]
        with raises(replayssm.G_CACHE_DTYPE):
            decode(**{**call, "g_cache": call["g_cache"].bfloat16()})


def test_sglang_of_another_version(sglang: str, tmp_path: Path):
    target = sglang_attention.fused_infer_attention_varlen.__overlay__.target  # type: ignore[attr-defined]
    module, _, name = target.partition(":")
    file = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    file.write_text(f"def {name}(q, k, v, cu_q, cu_k): ...\n", encoding="utf-8")
    importlib.import_module(module)
    with pytest.raises(StubMismatchError, match="the function does not have: cu_seqlens_q, cu_seqlens_k"):
        tensorpact.apply(overlay_for(target))


def test_sglang_patched_by_somebody_else(sglang: str, monkeypatch: pytest.MonkeyPatch):
    overlay = sglang_attention.sparse_attn_v4_paged_decode
    module = importlib.import_module(overlay.__overlay__.target.partition(":")[0])  # type: ignore[attr-defined]
    applied = tensorpact.apply(overlay)
    monkeypatch.setattr(module, "sparse_attn_v4_paged_decode", lambda **kwargs: kwargs)
    with pytest.warns(LeftInPlaceWarning, match="somebody else has changed"):
        assert len(applied.remove()) == 1
