"""Faults that fla-core's recurrent kernels compute without a word, run in Triton's interpreter and then stopped."""

import warnings

import interpreted
import torch

from tensorpact import ContractViolation
from tensorpact_contracts.overlays import fla_delta


def inputs(**changed):
    """KDA with 2 rows of 5 tokens, 2 query and 4 value heads, key dim 16 and value dim 8."""
    generator = torch.Generator().manual_seed(0)
    made = {
        "q": torch.randn(2, 5, 2, 16, generator=generator),
        "k": torch.randn(2, 5, 2, 16, generator=generator),
        "v": torch.randn(2, 5, 4, 8, generator=generator),
        "g": -torch.rand(2, 5, 4, 16, generator=generator),
        "beta": torch.rand(2, 5, 4, generator=generator),
    }
    return made | changed


def three_heads():
    call = inputs()
    return {name: call[name][:, :, :3].contiguous() for name in ("v", "g", "beta")}


def bare(call):
    """Call the function of the package itself: it must come to a result."""
    warnings.simplefilter("ignore")
    from fla.ops.kda import fused_recurrent_kda

    out, _ = fused_recurrent_kda(**call)
    if out.shape != call["v"].shape:
        raise AssertionError(out.shape)
    return out


def silent(error, changed):
    call = inputs(**changed)
    bare(call)
    handles = fla_delta.apply(packages=())
    try:
        from fla.ops import kda

        try:
            kda.fused_recurrent_kda(**call)
        except ContractViolation as raised:
            if raised.error is not error:
                raise
        else:
            raise AssertionError("nothing was raised")
    finally:
        for applied in handles:
            applied.remove()


def right(changed):
    call = inputs(**changed)
    expected = bare(call)
    handles = fla_delta.apply(packages=("fla",))
    try:
        from fla.ops import kda
        from fla.ops.kda.fused_recurrent import fused_recurrent_kda

        for function in (kda.fused_recurrent_kda, fused_recurrent_kda, fla_delta.fused_recurrent_kda):
            if not torch.equal(function(**call)[0], expected):
                raise AssertionError(function)
        if kda.fused_recurrent_kda is not fused_recurrent_kda:
            raise AssertionError("the place where it is defined was left out")
    finally:
        for applied in handles:
            applied.remove()


CASES = {
    "R13 beta with heads first": (
        silent, {"error": fla_delta.TOKENS, "changed": {"beta": inputs()["beta"].transpose(1, 2).contiguous()}},
    ),
    "R01 value heads in no groups": (silent, {"error": fla_delta.GROUPS, "changed": three_heads()}),
    "one key head": (silent, {"error": fla_delta.KEY_SHAPE, "changed": {"k": torch.randn(2, 5, 1, 16)}}),
    "R04 state in the other order": (
        silent, {"error": fla_delta.STATE, "changed": {"initial_state": torch.randn(2, 4, 8, 16)}},
    ),
    "one state for two rows": (
        silent, {"error": fla_delta.STATE, "changed": {"initial_state": torch.zeros(1, 4, 16, 8)}},
    ),
    "scale 0": (silent, {"error": fla_delta.SCALE, "changed": {"scale": 0.0}}),
    "raw gate without its parameter": (silent, {"error": fla_delta.GATE, "changed": {"use_gate_in_kernel": True}}),
    "right": (right, {"changed": {}}),
    "right with states": (
        right, {"changed": {"initial_state": torch.ones(2, 4, 8, 16), "state_v_first": True}},
    ),
    "right with a beta for each channel": (right, {"changed": {"beta": torch.rand(2, 5, 4, 8)}}),
}  # fmt: skip

if __name__ == "__main__":
    interpreted.main(CASES)
