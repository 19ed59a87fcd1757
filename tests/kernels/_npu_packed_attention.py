"""Calls packed attention on tensors that say they are on an NPU, with an operator in the vendor's place.

Started by test_packed_attention_npu.py in a process of its own: the name of the device is set once a process. The
tensors are wrappers around CPU tensors; nothing here ran on such a device.
"""

import json
import traceback

import pytest
import torch
from torch.utils._pytree import tree_map

import tensorpact
from tensorpact_contracts import packed_attention as documented
from tensorpact_kernels import fused_infer_attention_varlen, fused_infer_attention_varlen_causal
from tensorpact_kernels.packed_attention.naive import naive_packed_attention

torch.utils.rename_privateuse1_backend("npu")
CASES = {}
CALLS = []
ANSWER = {"lse": "documented"}


class OnNpu(torch.Tensor):
    """A tensor whose device is ``npu`` and whose data is that of a CPU tensor."""

    @staticmethod
    def __new__(cls, data):
        made = torch.Tensor._make_wrapper_subclass(
            cls, data.shape, strides=data.stride(), dtype=data.dtype, device=torch.device("npu", 0)
        )
        made.data_of = data
        return made

    def contiguous(self):
        return OnNpu(self.data_of.contiguous())

    def tolist(self):
        CALLS.append(("tolist", self.shape[0]))
        return self.data_of.tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def bare(value):
            if isinstance(value, cls):
                return value.data_of
            return torch.device("cpu") if isinstance(value, torch.device) else value

        found = function(*tree_map(bare, args), **tree_map(bare, kwargs or {}))
        return tree_map(lambda value: cls(value) if isinstance(value, torch.Tensor) else value, found)


library = torch.library.Library("npu", "DEF")
library.define(
    "npu_fused_infer_attention_score(Tensor query, Tensor key, Tensor value, *, Tensor? atten_mask=None, "
    "int[]? actual_seq_lengths=None, int[]? actual_seq_lengths_kv=None, int num_heads=1, float scale=1.0, "
    'str input_layout="BSH", int num_key_value_heads=0, int sparse_mode=0, bool softmax_lse_flag=False) '
    "-> (Tensor, Tensor)"
)


def operator(query, key, value, **options):
    """Attend as the vendor's documentation says, from the arguments alone."""
    CALLS.append(("operator", options))
    assert all(tensor.is_contiguous() for tensor in (query, key, value))
    assert options["input_layout"] == "TND"
    assert (options["num_heads"], options["num_key_value_heads"]) == (query.shape[1], key.shape[1])
    ends_q, ends_k = options["actual_seq_lengths"], options["actual_seq_lengths_kv"]
    assert all(a < b for a, b in zip([0, *ends_q], ends_q, strict=False)), "an empty sequence was passed on"
    causal = options.get("sparse_mode", 0) == 3
    if causal:
        mask = options["atten_mask"]
        assert mask.dtype == torch.bool
        assert torch.equal(mask, torch.ones(2048, 2048, dtype=torch.bool).triu(1))
    out, lse = naive_packed_attention(
        query, key, value, [0, *ends_q], [0, *ends_k], options.get("scale", 1.0), causal=causal
    )
    if not options.get("softmax_lse_flag", False):
        return out, torch.zeros(1)
    return out, lse.t()[:, :, None].contiguous() if ANSWER["lse"] == "documented" else lse


library.impl("npu_fused_infer_attention_score", operator, "CPU")


def case(function):
    CASES[function.__name__] = function
    return function


def draw(*, dim=16):
    gen = torch.Generator().manual_seed(0)
    sizes = (9, 6, dim), (14, 2, dim), (14, 2, 8)
    return [torch.randn(size, generator=gen) for size in sizes]


ENDS_Q, ENDS_K = [0, 0, 4, 4, 9], [0, 0, 5, 5, 14]


def on_npu(*tensors):
    return [OnNpu(tensor) for tensor in tensors]


@case
def both_entries_call_the_operator():
    q, k, v = draw()
    for function, causal in ((fused_infer_attention_varlen, False), (fused_infer_attention_varlen_causal, True)):
        for backend in ("auto", "npu"):
            CALLS.clear()
            cu_q, cu_k = on_npu(torch.tensor(ENDS_Q), torch.tensor(ENDS_K))
            with tensorpact.use_backend(backend):
                out, lse = function(*on_npu(q, k, v), cu_q, cu_k, return_softmax_lse=True)
            assert (out.device.type, lse.device.type) == ("npu", "npu")
            wanted, wanted_lse = naive_packed_attention(q, k, v, ENDS_Q, ENDS_K, 0.25, causal=causal)
            torch.testing.assert_close(out.data_of, wanted)
            torch.testing.assert_close(lse.data_of, wanted_lse)
            assert lse.is_contiguous()
            (options,) = [options for what, options in CALLS if what == "operator"]
            assert options["actual_seq_lengths"] == [4, 9]
            assert options["actual_seq_lengths_kv"] == [5, 14]
            assert (options["scale"], options["softmax_lse_flag"]) == (0.25, True)
            assert ("sparse_mode" in options) == causal


@case
def host_copies_save_the_wait():
    q, k, v = on_npu(*(tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in draw()))
    cu_q, cu_k = on_npu(torch.tensor(ENDS_Q), torch.tensor(ENDS_K))
    CALLS.clear()
    out = fused_infer_attention_varlen(
        q, k, v, cu_q, cu_k, cu_seqlens_q_host=ENDS_Q, cu_seqlens_k_host=tuple(ENDS_K), softmax_scale=1
    )
    assert out.data_of.shape == (9, 6, 8)
    assert [what for what, _ in CALLS] == ["operator"]


@case
def nothing_is_launched_for_empty_sequences():
    q, k, v = on_npu(*(tensor[:0] for tensor in draw()))
    cu = OnNpu(torch.zeros(3, dtype=torch.int32))
    CALLS.clear()
    out, lse = fused_infer_attention_varlen(q, k, v, cu, cu, return_softmax_lse=True)
    assert (tuple(out.shape), tuple(lse.shape), lse.dtype) == ((0, 6, 8), (6, 0), torch.float32)
    assert not [call for call in CALLS if call[0] == "operator"]


@case
def boundaries_are_checked():
    q, k, v = on_npu(*draw())
    cu_k = OnNpu(torch.tensor(ENDS_K))
    for wrong, error in (
        ([1, 4, 9], documented.BOUNDARIES_START),
        ([0, 4, 8], documented.BOUNDARIES_END),
        ([0, 4, 3, 9], documented.BOUNDARIES_ORDER),
        ([0, 1, 4, 4, 9], documented.EMPTY_ON_ONE_SIDE),
    ):
        with pytest.raises(error.documented) as raised:
            fused_infer_attention_varlen(q, k, v, OnNpu(torch.tensor(wrong)), cu_k)
        assert raised.value.error is error, raised.value


@case
def a_tensor_elsewhere_is_named():
    q, k, v = draw()
    cu_q, cu_k = on_npu(torch.tensor(ENDS_Q), torch.tensor(ENDS_K))
    with pytest.raises(ValueError, match=r"on the same NPU; invalid tensors: k\n") as raised:
        fused_infer_attention_varlen(OnNpu(q), k, OnNpu(v), cu_q, cu_k)
    assert raised.value.error is documented.SAME_NPU


@case
def another_shape_of_the_log_denominators_is_refused():
    q, k, v = on_npu(*draw())
    cu_q, cu_k = on_npu(torch.tensor(ENDS_Q), torch.tensor(ENDS_K))
    ANSWER["lse"] = "heads first"
    try:
        with pytest.raises(RuntimeError) as raised:
            fused_infer_attention_varlen(q, k, v, cu_q, cu_k, return_softmax_lse=True)
    finally:
        ANSWER["lse"] = "documented"
    wanted = "Unexpected Ascend TND softmax LSE shape: expected (9, 6, 1), got (6, 9)"
    assert (str(raised.value), raised.value.error) == (wanted, documented.LSE_SHAPE)


@case
def the_reference_can_be_forced():
    q, k, v = draw()
    cu_q, cu_k = torch.tensor(ENDS_Q), torch.tensor(ENDS_K)
    CALLS.clear()
    with tensorpact.use_backend("naive"):
        fused_infer_attention_varlen(q, k, v, cu_q, cu_k)
    assert not CALLS


def main():
    for name, function in CASES.items():
        error = None
        try:
            function()
        except Exception:
            error = traceback.format_exc(limit=-4)
        print(json.dumps({"case": name, "error": error}), flush=True)


if __name__ == "__main__":
    main()
