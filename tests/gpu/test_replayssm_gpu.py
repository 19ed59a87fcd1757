"""Kimi delta attention decode on a GPU: both kernels against float64, and the entry points around them."""

import pytest
import torch

pytest.importorskip("triton")

from kda import assert_decodes, decode_inputs

from tensorpact_kernels import fused_recurrent_kda_packed_decode, fused_recurrent_kda_replayssm_decode
from tensorpact_kernels._launching import runs_on_hopper
from tensorpact_kernels.replayssm.launch import StagedConfig, StreamedConfig, replayssm_decode_triton
from tensorpact_kernels.replayssm.naive import naive_packed_decode
from tensorpact_kernels.replayssm.recurrence import naive_kda_recurrence

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]
CUDA = "cuda"
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
CONFIGS = {
    "streamed": StreamedConfig(16, 1, 3),
    "streamed-shared": StreamedConfig(16, 2, 2, 2),
    "staged": StagedConfig(64, 1, 4),
    "staged-pair": StagedConfig(64, 2, 4, 128),
}
NORMALISED = {"use_qk_l2norm_in_kernel": True}


@pytest.fixture(params=CONFIGS)
def config(request):
    if request.param.startswith("staged") and not runs_on_hopper("tensorpact_kernels.replayssm.device_staged", 0):
        pytest.skip("needs a Hopper device and a Triton with the Gluon that its kernel uses")
    return CONFIGS[request.param]


def decode_with(config):
    def decode(**arguments):
        replayssm_decode_triton(**arguments, config=config)

    return decode


def flushes(batch):
    return torch.arange(batch, device=CUDA, dtype=torch.int32) % 3 - 1


@pytest.mark.parametrize(
    ("dtype", "state", "ring"), [(F32, F32, F32), (BF16, F32, BF16), (BF16, BF16, BF16), (F16, F16, F16)]
)
@pytest.mark.parametrize("length", [1, 2, 4, 16, 40])
@pytest.mark.parametrize("gate", [None, -5.0])
def test_one_step(config, dtype, state, ring, length, gate):
    sizes = (9, 2, 4, 64, 128, length)
    arguments = decode_inputs(*sizes, dtype=dtype, state_dtype=state, ring_dtype=ring, pad=64, device=CUDA)
    assert_decodes(decode_with(config), arguments, force_flush=flushes(9), lower_bound=gate, **NORMALISED)


@pytest.mark.parametrize(("heads", "value_heads"), [(3, 3), (3, 6), (2, 8)])
@pytest.mark.parametrize(("key_dim", "value_dim"), [(128, 128), (128, 256), (256, 128), (64, 384)])
def test_head_groups_and_dims(config, heads, value_heads, key_dim, value_dim):
    arguments = decode_inputs(5, heads, value_heads, key_dim, value_dim, 6, pad=16, index=torch.int64, device=CUDA)
    arguments["a"] = arguments["a"].flatten(1)
    assert_decodes(decode_with(config), arguments)


@pytest.mark.parametrize(("key_dim", "value_dim"), [(16, 24), (40, 20), (100, 33), (192, 70)])
def test_any_dims_and_strides(key_dim, value_dim):
    arguments = decode_inputs(4, 2, 6, key_dim, value_dim, 5, pad=257, device=CUDA)
    for name in ("d_cache", "k_cache", "g_cache"):
        arguments[name] = arguments[name].transpose(2, 3).contiguous().transpose(2, 3)
    wide = torch.full((4, 2, arguments["mixed_qkv"].shape[1] + 3), float("nan"), device=CUDA)
    wide[:, 0, 1:-2] = arguments["mixed_qkv"]
    arguments["mixed_qkv"] = wide[:, 0, 1:-2]
    for name in ("ssm_state_indices", "write_pos"):
        arguments[name] = arguments[name].repeat_interleave(2)[::2]
    assert_decodes(lambda **given: replayssm_decode_triton(**given), arguments, force_flush=flushes(4), round_beta=True)


def test_many_steps_are_the_recurrence(config):
    batch, heads, value_heads, key_dim, value_dim, ring, steps = 3, 2, 4, 128, 128, 5, 27
    arguments = decode_inputs(batch, heads, value_heads, key_dim, value_dim, ring, device=CUDA)
    slots = torch.tensor([4, 0, 2], device=CUDA, dtype=torch.int32)
    arguments |= {"ssm_state_indices": slots, "write_pos": torch.zeros_like(slots)}
    state = arguments["initial_state"][slots.long()].double()
    natural = forced = 0
    for step in range(steps):
        fresh = decode_inputs(batch, heads, value_heads, key_dim, value_dim, ring, device=CUDA)
        arguments |= {name: fresh[name] for name in ("mixed_qkv", "a", "b", "out")}
        force = (torch.arange(batch, device=CUDA) + step).remainder(9).eq(0).int()
        replayssm_decode_triton(**arguments, force_flush=force, config=config)
        flushed = force.bool() | (arguments["write_pos"] == ring - 1)
        natural += int((arguments["write_pos"] == ring - 1).sum())
        forced += int((force.bool() & (arguments["write_pos"] < ring - 1)).sum())
        arguments["write_pos"] = torch.where(flushed, 0, arguments["write_pos"] + 1).int()
        for row in range(batch):
            q, k, v = arguments["mixed_qkv"][row].double().split([heads * key_dim] * 2 + [value_heads * value_dim])
            x = arguments["a"][row].double() + arguments["dt_bias"].double()
            out, state[row] = naive_kda_recurrence(
                q.view(1, heads, key_dim),
                k.view(1, heads, key_dim),
                v.view(1, value_heads, value_dim),
                -arguments["A_log"].double().exp()[None, :, None] * torch.nn.functional.softplus(x)[None],
                arguments["b"][row].double().sigmoid()[None],
                state[row],
                arguments["scale"],
            )
            error = (arguments["out"][row, 0].double() - out[0]).norm() / out.norm()
            assert error < 1e-4, (step, row, error)
            if flushed[row]:
                kept = arguments["initial_state"][int(slots[row])].double()
                assert (kept - state[row]).norm() / state[row].norm() < 1e-4
    assert natural > 2
    assert forced > 2


def test_slots_and_cursors_out_of_range_are_padding(config):
    arguments = decode_inputs(6, 2, 2, 64, 128, 4, pad=64, device=CUDA)
    slots = len(arguments["initial_state"])
    arguments["ssm_state_indices"] = torch.tensor([slots, 2**31 - 1, 0, 1, 2, 3], device=CUDA, dtype=torch.int32)
    arguments["write_pos"] = torch.tensor([0, 1, -1, 4, 2**31 - 1, -(2**31)], device=CUDA, dtype=torch.int32)
    before = {name: arguments[name].clone() for name in ("initial_state", "d_cache", "k_cache", "g_cache")}
    replayssm_decode_triton(**arguments, config=config)
    assert not arguments["out"].any()
    for name, values in before.items():
        assert torch.equal(arguments[name].nan_to_num(7.0), values.nan_to_num(7.0)), name


def test_offsets_beyond_31_bits(config):
    slots, heads, dim = 4100, 32, 128
    state = torch.empty(slots, heads, dim, dim, device=CUDA, dtype=BF16)
    arguments = decode_inputs(3, heads, heads, dim, dim, 3, dtype=BF16, state_dtype=BF16, ring_dtype=BF16, device=CUDA)
    for name in ("d_cache", "k_cache", "g_cache"):
        small = arguments[name]
        arguments[name] = torch.empty(slots, *small.shape[1:], device=CUDA, dtype=small.dtype)
        arguments[name][-len(small) :] = small.nan_to_num(0.0)
    state[-6:] = arguments["initial_state"]
    arguments["ssm_state_indices"] = torch.tensor([slots - 1, slots - 4, slots - 2], device=CUDA)
    last = {name: arguments[name][-6:].clone() for name in ("d_cache", "k_cache", "g_cache")} | {
        "initial_state": state[-6:].clone()
    }
    near = arguments | last | {"ssm_state_indices": arguments["ssm_state_indices"] - (slots - 6)}
    near["out"] = torch.empty_like(arguments["out"])
    replayssm_decode_triton(**(arguments | {"initial_state": state}), force_flush=flushes(3), config=config)
    replayssm_decode_triton(**near, force_flush=flushes(3), config=config)
    assert torch.equal(arguments["out"], near["out"])
    assert torch.equal(state[-6:], near["initial_state"])


def test_a_remembered_launch_reads_the_new_arguments():
    for batch in (5, 5, 3, 7):
        for pad in (64, 64, 1):
            arguments = decode_inputs(batch, 2, 2, 64, 64, 4, pad=pad, device=CUDA)
            assert_decodes(lambda **given: replayssm_decode_triton(**given), arguments)
            arguments = decode_inputs(batch, 2, 2, 64, 64, 4, pad=pad, device=CUDA)
            shifted = torch.empty(arguments["mixed_qkv"].numel() + 1, device=CUDA)[1:].view_as(arguments["mixed_qkv"])
            arguments["mixed_qkv"] = shifted.copy_(arguments["mixed_qkv"])
            assert_decodes(lambda **given: replayssm_decode_triton(**given), arguments)


@pytest.mark.parametrize("state", [F32, BF16])
def test_packed_decode(state):
    arguments = decode_inputs(6, 2, 4, 128, 128, 1, dtype=BF16, state_dtype=state, pad=64, device=CUDA)
    arguments = {n: v for n, v in arguments.items() if n not in ("d_cache", "k_cache", "g_cache", "write_pos")}
    wide = torch.full((6, 4 * 128 + 8), float("nan"), device=CUDA, dtype=BF16)
    wide[:, :-8] = arguments["a"].flatten(1)
    arguments |= {"a": wide[:, :-8], "dt_bias": arguments["dt_bias"].flatten()}
    upcast = {
        n: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for n, v in arguments.items()
    }
    wanted = naive_packed_decode(**upcast, **NORMALISED)
    out, pool = fused_recurrent_kda_packed_decode(**arguments, **NORMALISED)
    assert out is arguments["out"]
    assert pool is arguments["initial_state"]
    assert (out.double() - wanted.out).norm() / wanted.out.norm() < 6e-3
    limit = 2e-6 if state is F32 else 6e-3
    assert (pool.double() - wanted.initial_state).norm() / wanted.initial_state.norm() < limit


def test_no_call_synchronises_and_graphs_replay():
    arguments = decode_inputs(4, 2, 2, 128, 128, 4, pad=257, device=CUDA)
    for name in ("d_cache", "k_cache", "g_cache"):
        arguments[name].nan_to_num_(0.0)
    fused_recurrent_kda_replayssm_decode(**arguments)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            fused_recurrent_kda_replayssm_decode(**arguments)
        with pytest.raises(ValueError, match=r"^`k_cache` must have shape \[slots, H, L, K\]\."):
            fused_recurrent_kda_replayssm_decode(**{**arguments, "k_cache": arguments["k_cache"][:, :1]})
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused_recurrent_kda_replayssm_decode(**arguments)
    for cursor in (0, 2, 3, 0):
        fresh = decode_inputs(4, 2, 2, 128, 128, 4, pad=257, device=CUDA)
        for name in ("mixed_qkv", "initial_state", "d_cache", "k_cache", "g_cache", "ssm_state_indices"):
            arguments[name].copy_(fresh[name].nan_to_num(0.0) if fresh[name].is_floating_point() else fresh[name])
        arguments["write_pos"].fill_(cursor)
        assert_decodes(lambda **_: graph.replay(), arguments)


def test_runs_on_the_current_stream():
    arguments = decode_inputs(4, 2, 2, 128, 128, 4, device=CUDA)
    stream = torch.cuda.Stream()
    source = torch.empty_like(arguments["mixed_qkv"])
    copies = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    replayssm_decode_triton(**arguments)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        source.copy_(copies["mixed_qkv"])
        replayssm_decode_triton(**{**copies, "mixed_qkv": source})
    stream.synchronize()
    assert torch.equal(copies["out"], arguments["out"])


def test_compiles_without_a_graph_break():
    arguments = decode_inputs(4, 2, 2, 128, 128, 4, device=CUDA)
    compiled = torch.compile(fused_recurrent_kda_replayssm_decode, fullgraph=True)
    assert_decodes(lambda **given: compiled(**given), arguments)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_runs_on_the_device_of_its_tensors():
    arguments = decode_inputs(4, 2, 2, 128, 128, 4, device=CUDA)
    other = {n: v.to("cuda:1") if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    replayssm_decode_triton(**arguments)
    replayssm_decode_triton(**other)
    assert torch.equal(other["out"].cpu(), arguments["out"].cpu())


@pytest.mark.parametrize("batch", [0, 1])
def test_empty_batches_launch_nothing(batch):
    arguments = decode_inputs(batch, 2, 2, 64, 64, 4, device=CUDA)
    fused_recurrent_kda_replayssm_decode(**arguments)
    assert arguments["out"].isfinite().all()
