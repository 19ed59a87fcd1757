"""Every packed attention kernel, in the tiles that the launchers pick, compiles for Hopper without a GPU."""

import re

import pytest
import torch

triton = pytest.importorskip("triton")

from launched import FLAG  # noqa: E402  triton may be missing
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from tensorpact_kernels._launching import padded  # noqa: E402
from tensorpact_kernels.packed_attention import device  # noqa: E402
from tensorpact_kernels.packed_attention.launch import tile_config  # noqa: E402
from tensorpact_kernels.packed_attention.launch_hopper import (  # noqa: E402
    REGISTERS,
    ROWS,
    columns,
    hopper_config,
    team_of_key_heads,
)

try:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    from tensorpact_kernels.packed_attention import device_hopper
except (ImportError, AttributeError) as error:
    GLUON = f"this Triton's Gluon lacks what the Hopper kernel uses: {error}"
else:
    GLUON = None

SHARED_LIMIT = 227 * 1024
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}

pytestmark = pytest.mark.skipif(triton.knobs.runtime.interpret, reason="the interpreter replaces the compiler")


def source_of(kernel, types, constants, make=ASTSource):
    """Describe a call as run-time specialisation sees it: aligned pointers, strides that are multiples of 16."""
    signature, values, attributes = {}, {}, {}
    for position, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], values[(position,)] = "constexpr", constants[name]
        elif name in types:
            signature[name] = types[name]
            if name.endswith("_ptr") and "cu_" not in name:
                attributes[(position,)] = [["tt.divisibility", 16]]
        elif name == "lse_ptr" or name in FLAG:
            signature[name], values[(position,)] = "constexpr", None
        elif name.endswith("_stride_dim"):
            signature[name], values[(position,)] = "constexpr", 1
        elif name == "scale_log2":
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if "stride" in name:
                attributes[(position,)] = [["tt.divisibility", 16]]
    return make(fn=kernel, signature=signature, constexprs=values, attrs=attributes)


def compiled(source, **options):
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("index", ["*i32", "*i64"])
def test_plan(causal, index):
    types = {"cu_q_ptr": index, "cu_k_ptr": "*i32", "tiles_ptr": "*i32", "count_ptr": "*i32"}
    constants = {"CAUSAL": causal, "BLOCK_M": 128, "BLOCK_T": 32, "BLOCK_S": 32}
    plain = compiled(source_of(device.plan_kernel, types, constants), num_warps=1)
    assert "atom." not in plain.asm["ptx"]
    reporting = compiled(source_of(device.plan_kernel, types | FLAG, constants), num_warps=1)
    assert "cas.b64" in reporting.asm["ptx"]


@pytest.mark.parametrize(
    ("dims", "dtype", "causal", "lse"),
    [
        ((128, 128), torch.bfloat16, True, True),
        ((24, 40), torch.float16, False, False),
        ((192, 128), torch.bfloat16, False, True),
        ((40, 256), torch.float32, True, True),
    ],
)
def test_portable(dims, dtype, causal, lse):
    tile = tile_config(*dims, dtype)
    pointer = f"*{NAMES[dtype]}"
    types = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), pointer)
    types |= {"tiles_ptr": "*i32", "count_ptr": "*i32"} | ({"lse_ptr": "*fp32"} if lse else {})
    constants = {
        "HEADS": 14,
        "GROUP": 2,
        "HEAD_DIM": dims[0],
        "VALUE_DIM": dims[1],
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_D": padded(dims[0]),
        "BLOCK_V": padded(dims[1]),
        "CAUSAL": causal,
        "UPCAST": False,
        "STAGES": tile.num_stages,
    }
    kernel = compiled(
        source_of(device.attention_kernel, types, constants), num_warps=tile.num_warps, num_stages=tile.num_stages
    )
    assert kernel.metadata.shared <= SHARED_LIMIT
    assert dtype == torch.float32 or "wgmma" in kernel.asm["ptx"]


def hopper_kernel(dims, causal, *, half="bf16", lse=True):
    cut = hopper_config(*dims, causal=causal)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
    comma = "," if tuple(int(part) for part in triton.__version__.split(".")[:2]) > (3, 6) else ", "

    def described(rows, size):
        return f"tensordesc<{half}[{comma.join(map(str, (rows, 1, columns(size))))}],{layout!r}>"

    types = {
        "q_desc": described(ROWS, dims[0]),
        "k_desc": described(cut.block_n, dims[0]),
        "v_desc": described(cut.block_n, dims[1]),
        "out_desc": described(ROWS, dims[1]),
        "v_ptr": f"*{half}",
        "out_ptr": f"*{half}",
        "tiles_ptr": "*i32",
        "count_ptr": "*i32",
    } | ({"lse_ptr": "*fp32"} if lse else {})
    capped, consumer, producer = REGISTERS[cut.consumers]
    constants = {
        "HEADS": 14,
        "GROUP": 2,
        "VALUE_DIM": dims[1],
        "BLOCK_N": cut.block_n,
        "CAUSAL": causal,
        "CONSUMERS": cut.consumers,
        "STAGES": cut.num_stages,
        "OWN_OUT": cut.own_out,
        "IN_TURN": cut.in_turn,
        "CONSUMER_REGISTERS": consumer,
        "PRODUCER_REGISTERS": producer,
        "num_warps": 4,
    }
    kernel = device_hopper.hopper_attention_kernel
    return cut, compiled(source_of(kernel, types, constants, GluonASTSource), num_warps=4, maxnreg=capped)


@pytest.mark.skipif(GLUON is not None, reason=str(GLUON))
@pytest.mark.parametrize(
    ("dims", "causal"), [((128, 128), True), ((64, 64), False), ((256, 256), False), ((80, 192), True)]
)
def test_hopper(dims, causal):
    cut, kernel = hopper_kernel(dims, causal, half="fp16" if causal else "bf16", lse=causal)
    text = kernel.asm["ptx"]
    assert kernel.metadata.shared <= SHARED_LIMIT
    # Four warps a warpgroup that computes, four for the one that copies.
    assert kernel.metadata.num_warps == 4 * (cut.consumers + 1)
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.3d\.shared", text)) >= 2 + cut.consumers
    assert "wgmma.wait_group.sync.aligned \t1" in text.replace("aligned 1", "aligned \t1"), "nothing overlaps"
    assert f"setmaxnreg.inc.sync.aligned.u32 \t{REGISTERS[cut.consumers][1]}" in text


@pytest.mark.skipif(GLUON is not None, reason=str(GLUON))
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (256, 256)])
def test_registers_of_a_warpgroup_fit_those_of_the_program(dims):
    cut = hopper_config(*dims, causal=False)
    _, consumer, producer = REGISTERS[cut.consumers]
    assert 128 * (cut.consumers * consumer + producer) <= 65536


def test_a_team_of_heads_fits_the_cache_and_divides_them_all():
    assert team_of_key_heads(100, 8, 256) == 8
    assert team_of_key_heads(16384, 8, 256) == 2
    assert team_of_key_heads(16384, 7, 256) == 1
    assert team_of_key_heads(1 << 20, 6, 512) == 1
