"""Flash attention: inputs from public bug reports, refused or accepted as they must be.

R and A ids are those of the collected reports; a longer id names the public thread.
"""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorpact import ContractViolation
from tensorpact_contracts import flash_attention as documented
from tensorpact_kernels import flash_attn_varlen_func, flash_attn_with_kvcache

pytestmark = pytest.mark.usefixtures("both_modes")


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


def cached(**changed: Any) -> dict[str, Any]:
    """E5 of the reports: three sequences of one query, eight heads over two, seven pages of four slots."""
    table = torch.tensor([[0, 1, -1, -1, -1], [2, -1, -1, -1, -1], [3, 4, 5, -1, -1]], dtype=torch.int32)
    given = {"q": half(3, 1, 8, 16), "k_cache": half(7, 4, 2, 16), "v_cache": half(7, 4, 2, 16), "page_table": table}
    return {**given, "cache_seqlens": ints(5, 3, 9), "causal": True, **changed}


def packed(**changed: Any) -> dict[str, Any]:
    """E4 of the reports: five tokens in two sequences, four heads of 16 columns."""
    ends = ints(0, 3, 5)
    given = {"q": half(5, 4, 16), "k": half(5, 4, 16), "v": half(5, 4, 16)}
    bounds = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 3, "max_seqlen_k": 3, "causal": True}
    return {**given, **bounds, **changed}


def run(given: dict[str, Any]) -> Any:
    return (flash_attn_with_kvcache if "k_cache" in given else flash_attn_varlen_func)(**given)


GROUPS = "Number of heads in key/value must divide number of heads in query, got {} and {} in {}, q"
ROW = "{} must have shape (batch_size,), here ({},)"
BATCH = "batch_size must be equal to batch_size_k: {} sequences, {} rows of {}, and no cache_batch_idx"
SIDES = "the key side must hold the 2 sequences of the query side; another number in: cu_seqlens_k"
QUERIES = (
    "with cu_seqlens_q, queries have shape (total_q, num_heads, head_size), without it (batch_size, seqlen_q, "
    "num_heads, head_size); another number of axes: q"
)
REFUSED = {
    "R01": (documented.HEAD_GROUPS, GROUPS.format(2, 5, "v_cache"), cached(q=half(3, 1, 5, 16))),
    "R03": (documented.SEQUENCE_COUNT, SIDES, packed(cu_seqlens_k=ints(0, 5))),
    "R03-four-axes": (documented.QUERY_RANK, QUERIES, packed(q=half(1, 5, 4, 16), cu_seqlens_q=ints(0, 5))),
    "R13-only-q": (documented.HEAD_GROUPS, GROUPS.format(4, 5, "v"), packed(q=half(4, 5, 16))),
    "R25": (None, "max_seqlen_q: expected int or None, got Tensor", packed(max_seqlen_q=torch.tensor(3))),
    "A27-bool": (None, "max_seqlen_q: expected int or None, got bool True", packed(max_seqlen_q=True)),
    "R35-int": (
        documented.LENGTH_RANGE,
        "cache_seqlens and the new tokens must fit the 20 slots of a row, got 21 and 0",
        cached(cache_seqlens=21),
    ),
    "sglang-29014": (
        documented.CACHE_BATCH,
        BATCH.format(6, 8, "page_table"),
        cached(q=half(6, 1, 8, 16), page_table=torch.zeros(8, 5).int(), cache_seqlens=4),
    ),
    "sglang-18943": (
        documented.ONE_A_SEQUENCE,
        ROW.format("cache_seqlens", 3),
        cached(cache_seqlens=ints(0, 5, 8, 17)),
    ),
    "sglang-36545": (
        documented.SAME_DTYPE,
        "q and k_cache must have the same dtype",
        cached(k_cache=half(7, 4, 2, 16).to(torch.float8_e4m3fn), v_cache=half(7, 4, 2, 16).to(torch.float8_e4m3fn)),
    ),
    "sglang-5700": (
        documented.HALF_ONLY,
        "FlashAttention only supports fp16 and bf16 data type; of another: q",
        {n: x.to(torch.float8_e4m3fn) if n in ("q", "k_cache", "v_cache") else x for n, x in cached().items()},
    ),
    "sglang-PR37785": (
        documented.DESCALES,
        "descales belong to fp8 tensors, and fp16 and bf16 have none; given: k_descale",
        cached(k_descale=torch.ones(4, 2)),
    ),
    "sglang-38980": (
        documented.UNSUPPORTED,
        "not supported by this kernel, leave the default: ver",
        {
            "q": half(1, 1, 4, 256).half(),
            "k_cache": half(1, 256, 2, 256).half(),
            "v_cache": half(1, 256, 2, 256).half(),
            "cache_seqlens": 256,
            "num_splits": 2,
            "ver": 4,
        },
    ),
    "flash-attention-638": (
        documented.LENGTH_RANGE,
        "cache_seqlens and the new tokens must fit the 12 slots of a row, got 12 and 1",
        {
            "q": half(1, 1, 32, 128),
            "k_cache": half(1, 12, 32, 128),
            "v_cache": half(1, 12, 32, 128),
            "k": half(1, 1, 32, 128),
            "v": half(1, 1, 32, 128),
            "cache_seqlens": 12,
        },
    ),
    "flash-attention-1402": (
        documented.ROTARY_DIM,
        "rotary_dim must be <= headdim and divisible by 16, got 32 for 16",
        cached(
            q=half(3, 2, 8, 16),
            k=half(3, 2, 2, 16),
            v=half(3, 2, 2, 16),
            rotary_cos=half(20, 16),
            rotary_sin=half(20, 16),
        ),
    ),
    "record-without-k-cache": (
        documented.K_CACHE_MISSING,
        "k_cache can only be None when only_qv=True",
        cached(k_cache=None),
    ),
}


@pytest.mark.parametrize(("error", "text", "given"), REFUSED.values(), ids=REFUSED)
def test_refused(error: Any, text: str, given: dict[str, Any]):
    with pytest.raises(ContractViolation) as caught:
        run(given)
    assert (caught.value.error, str(caught.value)) == (error, text)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    pair = [run({**given, "return_softmax_lse": True}) for given in (one, other)]
    return all(torch.equal(a, b) for a, b in zip(*pair, strict=True))


def test_r19_a_transposed_page_table_is_read_as_it_is():
    table = cached()["page_table"]
    given = cached()
    assert same({**given, "page_table": table.t().contiguous().t()}, given)


def test_r21_strided_queries_are_read_as_they_are():
    given = packed()
    strided = half(5, 4, 32)[..., ::2].copy_(given["q"])
    assert strided.stride() == (128, 32, 2)
    assert same({**given, "q": strided}, given)


def test_r23_a_cache_that_repeats_itself_is_refused():
    expanded = half(1, 4, 2, 16).expand(7, 4, 2, 16)
    with pytest.raises(ContractViolation) as caught:
        run(cached(k_cache=expanded))
    assert caught.value.error is documented.EXPANDED


def test_a01_an_empty_batch():
    given = cached(q=half(0, 1, 8, 16), page_table=ints().view(0, 5), cache_seqlens=ints(), return_softmax_lse=True)
    out, lse = run(given)
    assert (out.shape, lse.shape) == ((0, 1, 8, 16), (0, 8, 1))
    new = half(0, 1, 2, 16)
    assert run({**given, "k": new, "v": new.clone()})[0].shape == (0, 1, 8, 16)


def test_a03_empty_sequences():
    ends = ints(0, 0, 0, 0, 1)
    one = {name: half(1, 4, 16) for name in ("q", "k", "v")}
    assert run(packed(**one, cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=1, max_seqlen_k=1)).isfinite().all()
    given = packed()
    twice = ints(0, 0, 3, 3, 5, 5)
    assert same({**given, "cu_seqlens_q": twice, "cu_seqlens_k": twice}, given)


def test_a07_nan_in_unused_slots():
    given = cached()
    poisoned = {name: given[name].clone() for name in ("k_cache", "v_cache")}
    for cache in poisoned.values():
        cache[6] = cache[1, 1:] = cache[2, 3:] = cache[5, 1:] = torch.nan
    assert same({**given, **poisoned}, given)


def test_a09_slices_of_a_fused_projection():
    fused = half(5, 12, 16)
    q, k, v = fused.split(4, 1)
    given = packed(q=q, k=k, v=v)
    assert q.stride() == (192, 16, 1)
    assert same(given, {**given, "q": q.clone(), "k": k.clone(), "v": v.clone()})


def test_a11_interleaved_caches():
    given = cached()
    both = torch.stack((given["k_cache"], given["v_cache"]), dim=1)
    k_cache, v_cache = both.unbind(1)
    assert k_cache.stride() == (256, 32, 16, 1)
    appended = {"k": half(3, 1, 2, 16), "v": half(3, 1, 2, 16)}
    assert same({**given, "k_cache": k_cache, "v_cache": v_cache, **appended}, {**given, **appended})
    assert torch.equal(k_cache, given["k_cache"])


def test_a13_one_head_of_keys_expanded():
    one = half(5, 1, 16)
    given = packed(k=one.expand(5, 4, 16), v=one.expand(5, 4, 16))
    assert given["k"].stride() == (16, 0, 1)
    assert same(given, packed(**{**given, "k": given["k"].clone(), "v": given["v"].clone()}))


def test_a15_sizes_that_are_no_power_of_two():
    odd = {"q": half(5, 3, 24), "k": half(5, 3, 24), "v": half(5, 3, 24)}
    assert run(packed(**odd)).shape == (5, 3, 24)
    assert run(cached(q=half(3, 1, 6, 24), k_cache=half(7, 4, 3, 24), v_cache=half(7, 4, 3, 40))).shape == (3, 1, 6, 40)


def test_a17_fewer_tokens_than_heads(recwarn: pytest.WarningsRecorder):
    one = {name: half(1, 4, 16) for name in ("q", "k", "v")}
    run(packed(**one, cu_seqlens_q=ints(0, 1), cu_seqlens_k=ints(0, 1), max_seqlen_q=1, max_seqlen_k=1))
    assert not recwarn.list


def test_a21_fake_tensors_are_not_read():
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        given = {n: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for n, x in cached().items()}
        refused = {**given, "cache_seqlens": given["cache_seqlens"].long()}
        with pytest.raises(ContractViolation):
            run(refused)


def test_a25_parameters_and_subclasses():
    given = cached(sinks=half(8))
    boxed = {**given, "sinks": torch.nn.Parameter(given["sinks"]), "q": given["q"].as_subclass(Named)}
    assert same(boxed, given)


class Named(torch.Tensor):
    pass


def test_a27_numbers_of_other_kinds():
    given = packed()
    assert same({**given, "softmax_scale": 1, "max_seqlen_q": np.int64(3)}, {**given, "softmax_scale": 1.0})


def test_a28_a_bound_may_be_loose():
    given = packed()
    assert same({**given, "max_seqlen_q": 500, "max_seqlen_k": 4096}, given)


def test_many_short_segments():
    """sglang PR 29551: a segment a token, long keys."""
    given = packed(
        q=half(16, 8, 16),
        k=half(16 * 32, 1, 16),
        v=half(16 * 32, 1, 16),
        cu_seqlens_q=torch.arange(17, dtype=torch.int32),
        cu_seqlens_k=torch.arange(0, 16 * 32 + 1, 32, dtype=torch.int32),
        max_seqlen_q=1,
        max_seqlen_k=32,
        num_splits=0,
    )
    assert run(given).isfinite().all()


def test_queries_stand_at_the_end_of_the_cache():
    """sgl-kernel-xpu 196: two queries behind cached tokens; the first sees all keys but the last."""
    given = cached(q=half(3, 2, 8, 16), cache_seqlens=ints(3, 3, 3))
    both = run(given)
    first = run({**given, "q": given["q"][:, :1], "cache_seqlens": ints(2, 2, 2)})
    torch.testing.assert_close(both[:, :1], first)


def test_the_parameters_are_the_public_ones():
    found = {n: p.default for n, p in inspect.signature(flash_attn_with_kvcache).parameters.items()}
    assert list(found) == [
        "q",
        "k_cache",
        "v_cache",
        "k",
        "v",
        "qv",
        "rotary_cos",
        "rotary_sin",
        "cache_seqlens",
        "cache_batch_idx",
        "cache_leftpad",
        "page_table",
        "cu_seqlens_q",
        "cu_seqlens_k_new",
        "max_seqlen_q",
        "rotary_seqlens",
        "q_descale",
        "k_descale",
        "v_descale",
        "softmax_scale",
        "causal",
        "window_size",
        "attention_chunk",
        "softcap",
        "rotary_interleaved",
        "scheduler_metadata",
        "num_splits",
        "pack_gqa",
        "only_qv",
        "sm_margin",
        "return_softmax_lse",
        "sinks",
        "score_mod",
        "aux_tensors",
        "ver",
        "out",
        "allow_padded_tail",
    ]
    empty = inspect.Parameter.empty
    assert [n for n, default in found.items() if default is empty] == ["q", "k_cache", "v_cache"]
    set_to = {n: default for n, default in found.items() if default is not empty and default is not None}
    assert set_to == {
        "causal": False,
        "window_size": (-1, -1),
        "softcap": 0.0,
        "rotary_interleaved": True,
        "num_splits": 0,
        "only_qv": False,
        "sm_margin": 0,
        "return_softmax_lse": False,
        "ver": 3,
        "allow_padded_tail": False,
    }


def test_only_qv_allocates_no_placeholder():
    """Nothing as large as a cache is made where no key is read."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.elements = max(self.elements, result.numel())
            return result

    qv, latent = half(2, 1, 8, 32), half(2, 500, 1, 32)
    with Largest() as seen:
        flash_attn_with_kvcache(None, None, latent, qv=qv, cache_seqlens=3, only_qv=True)
    assert 0 < seen.elements < latent.numel() // 4
