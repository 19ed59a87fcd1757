"""What users import from ``tensorpact.testing``."""

import importlib
import pathlib
import subprocess
import sys

import pytest
import torch

import tensorpact
from tensorpact import testing
from tensorpact_contracts import packed_attention as packed
from tensorpact_contracts import sparse_prefill as contracts
from tensorpact_kernels import (
    fused_infer_attention_varlen,
    sparse_attn_v4_paged_decode,
    sparse_attn_v4_paged_prefill,
)


@pytest.fixture
def bad(monkeypatch):
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent))
    return importlib.import_module("bad_contracts")


@pytest.mark.parametrize("mode", ["compiled", "beartype"])
@pytest.mark.parametrize(
    ("function", "error"),
    [(sparse_attn_v4_paged_prefill, e) for e in contracts.SPARSE_PREFILL.errors]
    + [(sparse_attn_v4_paged_decode, e) for e in contracts.SPARSE_DECODE.errors],
    ids=lambda value: getattr(value, "slug", None) or value.__name__,
)
def test_a_witness_raises_its_error(function, error, mode):
    witness = testing.witness(function, error)
    with tensorpact.enforcement(mode), testing.raises(error) as caught:
        witness.call()
    assert caught.value.error is error
    assert witness.backend in ("auto", "triton")
    assert function.__name__ in witness.code()


@pytest.mark.parametrize("error", packed.PACKED_ATTENTION.errors, ids=lambda error: error.slug)
def test_a_witness_of_values_says_them_in_its_code(error):
    witness = testing.witness(fused_infer_attention_varlen, error)
    with testing.raises(error):
        witness.call()
    if "generator" not in witness.code() and "..." not in witness.code():
        with testing.raises(error):
            exec(witness.code(), {})


def test_values_are_written_only_where_rules_read_them(bad):
    assert testing.witness(bad.right, bad.WIDTH).case.fill is None
    case = testing.witness(fused_infer_attention_varlen, "cu-seqlens-order").case
    assert case.fill is not None
    assert len(case.mistakes) == 1


def test_a_witness_by_slug_is_small_and_made_afresh():
    witness = testing.witness(sparse_attn_v4_paged_prefill, "head-dim-mismatch")
    assert witness.error is contracts.HEAD_DIM_MISMATCH
    first, second = witness.arguments, witness.arguments
    assert first["kv"].shape[-1] != first["unified_kv"].shape[-1]
    assert first["kv"].data_ptr() != second["kv"].data_ptr()
    assert max(first["q"].shape) <= 3


def test_a_device_is_witnessed_with_a_meta_tensor():
    arguments = testing.witness(sparse_attn_v4_paged_prefill, contracts.DEVICES).arguments
    assert {t.device.type for t in arguments.values() if isinstance(t, torch.Tensor)} == {"cpu", "meta"}


def test_a_backend_belongs_to_the_witness():
    witness = testing.witness(sparse_attn_v4_paged_prefill, contracts.REQUIRES_CUDA)
    assert witness.backend == "triton"
    assert 'with tensorpact.use_backend("triton"):' in witness.code()


def test_huge_strides_are_witnessed_without_memory(bad):
    big = testing.witness(bad.everything, "reach").arguments["big"]
    assert big.is_meta
    assert (big.shape[0] - 1) * big.stride(0) >= 2**31


def test_the_code_of_a_witness_runs():
    witness = testing.witness(sparse_attn_v4_paged_decode, contracts.SCALES_SHAPE)
    ran = subprocess.run([sys.executable, "-c", witness.code()], capture_output=True, text=True, check=False)
    assert "ContractRuntimeError: kv_scales shape" in ran.stderr


def test_no_witness_says_what_is_in_the_way(bad):
    with pytest.raises(LookupError, match=r"\(width-again\) is shadowed.*\(width\)"):
        testing.witness(bad.shadowed, bad.AGAIN)
    with pytest.raises(LookupError, match="does not document 'nothing'"):
        testing.witness(bad.shadowed, "nothing")
    with pytest.raises(testing.TargetError, match="has no contract"):
        testing.witness(bad.scaled, bad.WIDTH)


def test_raises_wants_this_error_and_no_other(bad):
    x, wide, flat = torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(3)
    with testing.raises(bad.WIDTH) as caught:
        bad.right(x, wide)
    assert str(caught.value) == "w has 4 columns, x has 3"
    with pytest.raises(AssertionError, match="width was not raised: nothing was"), testing.raises(bad.WIDTH):
        bad.right(x, x)
    with pytest.raises(AssertionError, match="width was not raised, but a default error"), testing.raises(bad.WIDTH):
        bad.right(x, flat)
    with pytest.raises(AssertionError, match="small was not raised, but width"), testing.raises(bad.SMALL):
        bad.right(x, wide)
    with pytest.raises(KeyError), testing.raises(bad.WIDTH):
        raise KeyError


def test_the_surface():
    assert testing.__all__ == sorted(testing.__all__, key=lambda n: (n.islower(), n))
    assert all(hasattr(testing, name) for name in testing.__all__)


def test_testing_is_not_imported_with_the_package():
    code = "import sys, tensorpact; print([m for m in sys.modules if m.startswith('tensorpact.testing')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_testing_needs_neither_typer_nor_rich_nor_hypothesis():
    code = "import sys, tensorpact.testing as t; print({'typer', 'rich', 'hypothesis'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
