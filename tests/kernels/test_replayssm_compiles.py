"""Both kernels of the Kimi delta attention decode, in the tiles that the launcher picks, compile for Hopper."""

import pytest

triton = pytest.importorskip("triton")

import torch  # noqa: E402  triton may be missing
from launched import FLAG  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from tensorpact_kernels._launching import padded  # noqa: E402
from tensorpact_kernels.replayssm import device  # noqa: E402
from tensorpact_kernels.replayssm.launch import staged_config, streamed_config  # noqa: E402

try:
    from triton.experimental.gluon._runtime import GluonASTSource

    from tensorpact_kernels.replayssm import device_staged
except (ImportError, AttributeError) as error:
    GLUON = f"this Triton's Gluon lacks what the staged kernel uses: {error}"
else:
    GLUON = None

SHARED_LIMIT = 227 * 1024
SHARED = 228 * 1024
TRITON_TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
DENSE = ("d_stride_v", "k_stride_k", "g_stride_k", "indices_stride", "write_pos_stride", "force_flush_stride")
BATCH, HEADS, SLOTS = 256, 32, 300

pytestmark = pytest.mark.skipif(triton.knobs.runtime.interpret, reason="the interpreter replaces the compiler")


def compile_for_hopper(
    kernel, make_source, options, *, state=torch.float32, ring=torch.bfloat16, flag=False, **constants
):
    """Compile for dense pools, as run-time specialisation sees them."""
    constants = {"GROUP": 1, "NORMALISE": True, "BOUNDED": False, "ROUND_BETA": False, **constants}
    rings = TRITON_TYPES[ring] if constants["RING"] else None
    types = {"state_ptr": TRITON_TYPES[state], "d_ptr": rings, "k_ptr": rings, "g_ptr": rings and "*fp32"}
    types |= {"a_log_ptr": "*fp32", "dt_bias_ptr": "*fp32", "scale": "fp32", "lower_bound": "fp32"}
    types |= {"indices_ptr": "*i32", "write_pos_ptr": rings and "*i32", "force_flush_ptr": rings and "*i32"}
    types |= FLAG if flag else dict.fromkeys(FLAG)
    signature, values, attributes = {}, {}, {}
    for position, name in enumerate(kernel.arg_names):
        kind = types.get(name, "*bf16" if name.endswith("_ptr") else "i32")
        if name in constants or kind is None or name in DENSE:
            signature[name], values[(position,)] = "constexpr", constants.get(name, 1 if name in DENSE else None)
            continue
        signature[name] = kind
        if kind[0] == "*" or "stride" in name:
            attributes[(position,)] = [["tt.divisibility", 16]]
    source = make_source(fn=kernel, signature=signature, constexprs=values, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def ring_of(length):
    return {"L": length, "BLOCK_L": padded(length), "RING": length > 0}


@pytest.mark.parametrize(
    ("key_dim", "value_dim", "length"), [(128, 128, 16), (128, 128, 0), (24, 40, 5), (256, 128, 64)]
)
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_streamed(key_dim, value_dim, length, state):
    config = streamed_config(key_dim, length)
    tile = {"BLOCK_K": padded(key_dim), "BLOCK_V": config.block_v, "STAGES": config.num_stages, "PARTS": 1}
    rows = -(-value_dim // config.block_v) * config.block_v
    sizes = {"K": key_dim, "V": value_dim, "ROWS": rows} | tile | ring_of(length)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    kernel = compile_for_hopper(device.kda_streamed_kernel, ASTSource, options, state=state, **sizes)
    assert kernel.metadata.shared <= SHARED_LIMIT
    assert ("mma.sync" in kernel.asm["ptx"]) == (length > 0)
    assert "atom." not in kernel.asm["ptx"]


def test_streamed_reports_what_it_masks():
    tile = {"BLOCK_K": 128, "BLOCK_V": 16, "STAGES": 3, "PARTS": 1, "K": 128, "V": 128, "ROWS": 128} | ring_of(16)
    kernel = compile_for_hopper(
        device.kda_streamed_kernel, ASTSource, {"num_warps": 1, "num_stages": 3}, flag=True, **tile
    )
    assert "cas.b64" in kernel.asm["ptx"]


@pytest.mark.skipif(GLUON is not None, reason=str(GLUON))
def test_staged_reports_what_it_masks():
    sizes = {"K": 128, "V": 128, "TILE": 64, "TILES": 1, "PARTS": 2, "num_warps": 4} | ring_of(4)
    kernel = compile_for_hopper(device_staged.kda_staged_kernel, GluonASTSource, {"num_warps": 4}, flag=True, **sizes)
    assert "cas.b64" in kernel.asm["ptx"]


@pytest.mark.skipif(GLUON is not None, reason=str(GLUON))
@pytest.mark.parametrize(
    ("key_dim", "value_dim", "length"), [(128, 128, 16), (128, 128, 0), (64, 192, 4), (256, 128, 64)]
)
@pytest.mark.parametrize(("state", "ring"), [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16)])
def test_staged(monkeypatch, key_dim, value_dim, length, state, ring):
    monkeypatch.setattr("tensorpact_kernels.replayssm.launch.multiprocessors", lambda _: 132)
    pool = torch.empty(SLOTS, HEADS, value_dim, key_dim, dtype=state, device="meta")
    config = staged_config(BATCH * HEADS, pool)
    rows = config.tile * config.tiles
    sizes = {"K": key_dim, "V": value_dim, "TILE": config.tile, "TILES": config.tiles, "PARTS": value_dim // rows}
    options = {"num_warps": config.num_warps, "maxnreg": config.registers}
    kernel = compile_for_hopper(
        device_staged.kda_staged_kernel,
        GluonASTSource,
        options,
        state=state,
        ring=ring,
        num_warps=config.num_warps,
        **sizes,
        **ring_of(length),
    )
    assert kernel.metadata.shared <= SHARED_LIMIT
    assert "cp.async.cg.shared.global" in kernel.asm["ptx"], "the state is not copied in vectors"
    if (key_dim, length) == (128, 16):
        # Bytes in flight hide the memory's latency: three heads of float32, five of bfloat16.
        programs = SHARED // (kernel.metadata.shared + 1024)
        assert programs >= (3 if state is torch.float32 else 5)


def test_staging_takes_the_shapes_it_was_written_for(monkeypatch):
    monkeypatch.setattr("tensorpact_kernels.replayssm.launch.multiprocessors", lambda _: 132)

    def chosen(programs, value_dim, key_dim):
        return staged_config(programs, torch.empty(2, 1, value_dim, key_dim, device="meta"))

    assert chosen(8192, 128, 96) is None
    assert chosen(8192, 96, 128) is None
    assert (chosen(8192, 128, 128).tiles, chosen(64, 128, 128).tiles, chosen(8192, 192, 128).tiles) == (2, 1, 1)
