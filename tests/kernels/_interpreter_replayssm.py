"""Runs the Kimi delta attention decode kernel in Triton's interpreter and prints one JSON line a case.

Started by test_replayssm_interpreter.py in a process of its own: Triton reads TRITON_INTERPRET once, at import.
"""

import interpreted
import torch
from kda import ROUNDING, assert_decodes, decode_inputs

import tensorpact
from tensorpact_kernels import fused_recurrent_kda_packed_decode, fused_recurrent_kda_replayssm_decode
from tensorpact_kernels.replayssm.launch import StreamedConfig, replayssm_decode_triton
from tensorpact_kernels.replayssm.naive import naive_packed_decode

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
CASES = {}


def case(function, /, **arguments):
    label = ",".join(f"{key}={getattr(value, '__name__', value)}" for key, value in arguments.items())
    CASES[f"{function.__name__}[{label}]".replace("torch.", "")] = (function, arguments)


def replay(sizes, dtype=F32, ring_dtype=F32, parts=1, block_v=16, pad=0, index=torch.int32, seed=0, **options):
    arguments = decode_inputs(
        *sizes, dtype=dtype, state_dtype=dtype, ring_dtype=ring_dtype, pad=pad, index=index, seed=seed
    )
    # The interpreter truncates where the GPU rounds to the nearest bfloat16.
    ROUNDING[BF16] = 1.2e-2
    config = StreamedConfig(block_v, 1, 2, parts)
    force = options.pop("force", None)
    if force is not None:
        options["force_flush"] = torch.tensor(force, dtype=torch.int32)
    assert_decodes(lambda **given: replayssm_decode_triton(**given, config=config), arguments, **options)


def packed(sizes, seed=0):
    arguments = decode_inputs(*sizes, seed=seed)
    for name in ("d_cache", "k_cache", "g_cache", "write_pos"):
        del arguments[name]
    wide = torch.full((len(arguments["a"]), arguments["a"][0].numel() + 3), float("nan"))
    wide[:, :-3] = arguments["a"].flatten(1)
    arguments |= {"a": wide[:, :-3], "dt_bias": arguments["dt_bias"].flatten()}
    wanted = naive_packed_decode(**{n: v.double() if n in FLOATING else v for n, v in arguments.items()})
    with tensorpact.use_backend("triton"):
        out, state = fused_recurrent_kda_packed_decode(**arguments)
    for found, right in ((out, wanted.out), (state, wanted.initial_state)):
        assert (found.double() - right).norm() / right.norm() < 2e-6


def out_of_range():
    arguments = decode_inputs(6, 2, 2, 16, 16, 4, seed=5)
    slots = len(arguments["initial_state"])
    arguments["ssm_state_indices"] = torch.tensor([slots, 2**31 - 1, 0, 1, 2, 3], dtype=torch.int32)
    arguments["write_pos"] = torch.tensor([0, 1, -1, 4, 2**31 - 1, -(2**31)], dtype=torch.int32)
    before = {name: arguments[name].clone() for name in ("initial_state", "d_cache", "k_cache", "g_cache")}
    with tensorpact.use_backend("triton"), tensorpact.enforcement("off"):
        fused_recurrent_kda_replayssm_decode(**arguments)
    assert not arguments["out"].any()
    for name, values in before.items():
        assert torch.equal(arguments[name].nan_to_num(7.0), values.nan_to_num(7.0)), name


FLOATING = ("mixed_qkv", "a", "b", "A_log", "dt_bias", "initial_state", "out")

case(replay, sizes=(4, 2, 4, 16, 24, 4), force=[0, 1, -1, 0])
case(replay, sizes=(4, 2, 4, 16, 24, 4), pad=5, index=torch.int64, lower_bound=-5.0)
case(replay, sizes=(3, 1, 4, 40, 20, 5), use_qk_l2norm_in_kernel=True)
case(replay, sizes=(3, 2, 2, 24, 48, 1), use_qk_l2norm_in_kernel=True)
case(replay, sizes=(3, 1, 2, 16, 40, 17), parts=2)
case(replay, sizes=(2, 1, 1, 32, 70, 2), block_v=32, parts=3)
case(replay, sizes=(4, 2, 4, 16, 24, 4), dtype=BF16, ring_dtype=BF16, round_beta=True)
case(replay, sizes=(4, 2, 4, 16, 24, 4), dtype=F16, ring_dtype=F16, force=[1, 0, 0, 1])
case(replay, sizes=(0, 2, 4, 16, 24, 4))
case(packed, sizes=(4, 2, 4, 16, 24, 1))
case(packed, sizes=(3, 1, 1, 40, 20, 1))
case(out_of_range)

if __name__ == "__main__":
    interpreted.main(CASES)
