"""Every sparse attention kernel, in the tiles that the launcher picks, compiles for Hopper without a GPU."""

import pytest

triton = pytest.importorskip("triton")

from launched import FLAG  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402  triton may be missing
from triton.compiler import ASTSource  # noqa: E402

from tensorpact_kernels._launching import padded  # noqa: E402
from tensorpact_kernels.sparse_prefill import device, device_split  # noqa: E402
from tensorpact_kernels.sparse_prefill.launch import decode_config, prefill_config  # noqa: E402
from tensorpact_kernels.sparse_prefill.launch_hopper import hopper_tile  # noqa: E402
from tensorpact_kernels.sparse_prefill.launch_split import choose_splits, combine_columns  # noqa: E402

try:
    from triton.experimental.gluon._runtime import GluonASTSource

    from tensorpact_kernels.sparse_prefill import device_hopper, device_hopper_narrow
except (ImportError, AttributeError) as error:
    GLUON = f"this Triton's Gluon lacks what the Hopper kernels use: {error}"
else:
    GLUON = None

SHARED_LIMIT = 227 * 1024
CONTIGUOUS = ("_stride_dim", "_indices_stride", "_indptr_stride", "indices_stride", "indptr_stride", "sink_stride")

pytestmark = pytest.mark.skipif(triton.knobs.runtime.interpret, reason="the interpreter replaces the compiler")


def compile_for_hopper(
    kernel, config, *, optional=(), types=None, make_source=ASTSource, flag=False, registers=None, **constants
):
    """Compile for dense inputs with strides that are multiples of 16, as run-time specialisation sees them."""
    types = types or {}
    signature, values, attributes = {}, {}, {}
    for position, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], values[(position,)] = "constexpr", constants[name]
        elif name in FLAG:
            signature[name] = FLAG[name] if flag else "constexpr"
            if not flag:
                values[(position,)] = None
        elif name.endswith("_ptr"):
            partial = name.startswith("partial_") and constants.get("SPLIT") is False
            if (partial or name in ("lse_ptr", "scales_ptr")) and name not in optional:
                signature[name], values[(position,)] = "constexpr", None
                continue
            default = "*i32" if "ind" in name else "*fp32" if name[:4] in ("sink", "lse_", "part", "scal") else "*bf16"
            signature[name] = types.get(name, default)
            attributes[(position,)] = [["tt.divisibility", 16]]
        elif name.endswith(CONTIGUOUS) or name == "scales_stride_group":
            signature[name], values[(position,)] = "constexpr", 1
        elif name == "scale_log2":
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if "stride" in name:
                attributes[(position,)] = [["tt.divisibility", 16]]
    source = make_source(fn=kernel, signature=signature, constexprs=values, attrs=attributes)
    options = {"num_warps": constants.get("num_warps", 4)} | ({"maxnreg": registers} if registers else {})
    if config:
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def tile(config, heads, dim):
    return {
        "HEADS": heads,
        "HEAD_DIM": dim,
        "BLOCK_H": config.block_h,
        "BLOCK_D": padded(dim),
        "BLOCK_K": config.block_k,
        "STAGES": config.num_stages,
        "UPCAST": False,
    }


@pytest.mark.parametrize(("heads", "dim"), [(128, 512), (64, 128), (64, 256), (16, 512), (20, 40), (16, 576)])
def test_prefill(heads, dim):
    config = prefill_config(heads, dim)
    kernel = compile_for_hopper(device.sparse_prefill_kernel, config, **tile(config, heads, dim))
    assert kernel.metadata.shared <= SHARED_LIMIT
    assert ("wgmma" in kernel.asm["ptx"]) == (config.block_h >= 64)
    assert "cp.async" in kernel.asm["ptx"], "the rows are not prefetched"
    assert "atom." not in kernel.asm["ptx"]


def test_prefill_reads_int64_indices_and_stores_the_lse():
    config = prefill_config(16, 128)
    types = {name: "*i64" for name in device.sparse_prefill_kernel.arg_names if "ind" in name}
    compile_for_hopper(device.sparse_prefill_kernel, config, optional=["lse_ptr"], types=types, **tile(config, 16, 128))


@pytest.mark.parametrize(("heads", "splits"), [(16, 1), (16, 8), (128, 1), (128, 4)])
def test_decode(heads, splits):
    config = decode_config(heads, 512, quantised=False)
    kernel = compile_for_hopper(
        device.sparse_decode_kernel, config, optional=["lse_ptr"], SPLIT=splits > 1, **tile(config, heads, 512)
    )
    assert kernel.metadata.shared <= SHARED_LIMIT
    assert "cp.async" in kernel.asm["ptx"], "the rows are not prefetched"


def test_both_report_what_they_mask():
    config = decode_config(16, 128, quantised=False)
    for kernel, split in ((device.sparse_prefill_kernel, {}), (device.sparse_decode_kernel, {"SPLIT": False})):
        compiled = compile_for_hopper(kernel, config, flag=True, **split, **tile(config, 16, 128))
        assert "cas.b64" in compiled.asm["ptx"]
        assert "cp.async" in compiled.asm["ptx"], "the rows are not prefetched"


@pytest.mark.parametrize("heads", [16, 128])
def test_decode_of_a_quantised_pool(heads):
    config = decode_config(heads, 512, quantised=True)
    kernel = compile_for_hopper(
        device.sparse_decode_kernel,
        config,
        optional=["scales_ptr"],
        types={"pool_ptr": "*fp8e4nv"},
        SPLIT=False,
        **tile(config, heads, 512),
    )
    assert kernel.metadata.shared <= SHARED_LIMIT


@pytest.mark.parametrize(("splits", "early"), [(2, True), (5, False), (64, True)])
def test_combine(splits, early):
    constants = {
        "HEADS": 16,
        "HEAD_DIM": 512,
        "BLOCK_S": 1 << (splits - 1).bit_length(),
        "BLOCK_C": combine_columns(splits, 512),
        "EARLY": early,
    }
    kernel = compile_for_hopper(device_split.sparse_combine_kernel, None, optional=["lse_ptr"], **constants)
    assert ("griddepcontrol.wait" in kernel.asm["ptx"]) == early
    assert "ld.global.v4" in kernel.asm["ptx"]


def hopper_kernel(heads, dim, *, split, extend, **options):
    chosen = hopper_tile(heads, dim)
    kernel = compile_for_hopper(
        device_hopper_narrow.sparse_narrow_kernel if chosen.block_h == 16 else device_hopper.sparse_wide_kernel,
        None,
        make_source=GluonASTSource,
        HEADS=heads,
        BLOCK_H=chosen.block_h,
        BLOCK_D=dim,
        BLOCK_K=64,
        EXTEND=extend,
        SPLIT=split,
        num_warps=chosen.num_warps,
        registers=chosen.registers,
        **options,
    )
    assert kernel.metadata.shared <= SHARED_LIMIT
    assert "cp.async.cg.shared.global [" in kernel.asm["ptx"], "the rows are not copied in 16-byte pieces"
    return kernel.asm["ptx"]


HOPPER_SHAPES = [(16, 512, False, True), (48, 512, True, False), (128, 512, False, True), (16, 128, True, False)]
HOPPER_SHAPES += [(64, 128, False, True), (3, 256, False, True), (80, 256, True, False)]


@pytest.mark.skipif(GLUON is not None, reason=str(GLUON))
@pytest.mark.parametrize(("heads", "dim", "split", "extend"), HOPPER_SHAPES)
def test_hopper_kernels(heads, dim, split, extend):
    ptx = hopper_kernel(heads, dim, split=split, extend=extend, optional=["lse_ptr"])
    assert "wgmma" in ptx
    assert ("griddepcontrol.launch_dependents" in ptx) == split
    assert "atom." not in ptx


@pytest.mark.skipif(GLUON is not None, reason=str(GLUON))
@pytest.mark.parametrize(("heads", "dim", "wide"), [(16, 512, "prefix"), (64, 128, "extend")])
def test_hopper_kernels_read_lists_of_two_index_types(heads, dim, wide):
    types = {f"{wide}_{name}_ptr": "*i64" for name in ("indices", "indptr")}
    hopper_kernel(heads, dim, split=False, extend=True, types=types)


@pytest.mark.skipif(GLUON is not None, reason=str(GLUON))
@pytest.mark.parametrize(("heads", "dim", "split", "extend"), HOPPER_SHAPES[::2] + HOPPER_SHAPES[3:4])
def test_hopper_kernels_report_what_they_mask(heads, dim, split, extend):
    ptx = hopper_kernel(heads, dim, split=split, extend=extend, flag=True)
    # What tells is a function of its own behind the loop: in front of it, it would cost the loop its registers.
    assert ptx.rindex("wgmma.mma_async") < ptx.index("call.uni") < ptx.index("cas.b64")


def test_splits_fill_the_device_and_no_more():
    assert [choose_splits(blocks, 64, 132, together=2) for blocks in (1, 16, 64, 132, 256)] == [64, 8, 4, 2, 1]
    assert [choose_splits(blocks, 64, 132) for blocks in (2, 32, 128, 256)] == [64, 4, 1, 1]
    assert choose_splits(1, 1, 132, together=2) == 1
    assert choose_splits(1000, 64, 132, together=2) == 1


def test_small_programs_share_a_multiprocessor_in_greater_numbers():
    little = {"together": 4, "crowding": 0.24}
    assert [choose_splits(blocks, 64, 132, **little) for blocks in (16, 64, 132, 256)] == [16, 8, 4, 2]
    assert choose_splits(64, 4, 132, **little) == 1


@pytest.mark.parametrize("dim", [128, 256, 512])
def test_the_hopper_tile_depends_on_the_heads(dim):
    few = 32 if dim == 512 else 16
    assert [hopper_tile(heads, dim).block_h for heads in (1, few, few + 1, 128)] == [16, 16, 64, 64]


def test_tiles_fit_shared_memory_and_registers():
    for heads in (1, 16, 33, 64, 128):
        for dim in (1, 16, 64, 128, 192, 512, 576, 1024, 2048, 4096):
            for config in (prefill_config(heads, dim), decode_config(heads, dim, quantised=False)):
                rows = config.num_stages * config.block_k + (config.block_h if config.block_h >= 64 else 0)
                assert 2 * padded(dim) * rows <= SHARED_LIMIT, (heads, dim, config)
                accumulator = config.block_h * padded(dim) / (32 * config.num_warps)
                assert accumulator <= 256, (heads, dim, config)
                assert min(config.block_h, config.block_k) >= 16
