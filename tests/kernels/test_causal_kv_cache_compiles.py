"""The kernel of the causal KV cache, in every tile that the launcher picks, compiles for Hopper without a GPU."""

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402  triton may be missing
from triton.compiler import ASTSource  # noqa: E402

from tensorpact_kernels.causal_kv_cache import device  # noqa: E402
from tensorpact_kernels.causal_kv_cache.launch import ALONE, SHARED, tile_for  # noqa: E402

pytestmark = pytest.mark.skipif(triton.knobs.runtime.interpret, reason="the interpreter replaces the compiler")


def compiled(tile, *, dtype="i16", flat=True, chunk=True, dense=True):
    kernel = device.shift_and_write_kernel
    constants = {"FLAT": flat, "CHUNK": chunk, "ROWS": tile.rows, "COLUMNS": tile.columns}
    signature, values, attributes = {}, {}, {}
    for position, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], values[(position,)] = "constexpr", constants[name]
        elif name.endswith("_ptr"):
            signature[name] = f"*{dtype}"
            attributes[(position,)] = [["tt.divisibility", 16]]
        elif name.endswith("_stride_dim") and dense:
            signature[name], values[(position,)] = "constexpr", 1
        else:
            signature[name] = "i32"
            if "stride_" in name or name.endswith("_dim"):
                attributes[(position,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=attributes)
    options = {"num_warps": tile.num_warps, "num_stages": 1}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize("tile", [SHARED, ALONE, tile_for(1, 16), tile_for(64, 24)], ids=str)
@pytest.mark.parametrize("chunk", [True, False], ids=["chunk", "moves"])
def test_dense_buffers(tile, chunk):
    ptx = compiled(tile, chunk=chunk).asm["ptx"]
    body = ptx[ptx.index(".entry") :]
    loads, barriers = body.count("ld.global"), body.count("bar.sync")
    assert loads
    assert barriers >= 2, "a program may store what its own threads have not read yet"
    if tile.columns >= 32:
        assert "ld.global.v4.b32" in body, "rows are not read in 16-byte pieces"


def test_every_store_stands_behind_a_barrier():
    """In program order no load of a step may follow its barrier, and no store may precede it."""
    body = compiled(SHARED).asm["ptx"]
    body = body[body.index(".entry") :]
    for half in body.split("\n$L__BB"):
        order = [
            kind
            for line in half.splitlines()
            for kind in ("ld.global", "bar.sync", "st.global")
            if kind in line and not line.lstrip().startswith("//")
        ]
        if "st.global" in order:
            assert "bar.sync" in order[: order.index("st.global")]


@pytest.mark.parametrize("dtype", ["i32", "i64", "u8"])
def test_other_widths(dtype):
    assert compiled(SHARED, dtype=dtype).asm["cubin"]


def test_free_strides():
    assert compiled(SHARED, flat=False, dense=False).asm["cubin"]
    assert compiled(ALONE, flat=False, dense=True).asm["cubin"]


def test_addresses_are_64_bits_wide():
    """A slot number times a stride is computed in 64 bits, as is the batch."""
    ttir = compiled(SHARED, flat=False, dense=False).asm["ttir"]
    wide = [line for line in ttir.splitlines() if "arith.muli" in line and "xi64" in line]
    assert len(wide) >= 4
