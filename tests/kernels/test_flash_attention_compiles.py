"""Every flash attention kernel, as the launchers start it, compiles for Hopper without a GPU."""

import re

import pytest
import torch

triton = pytest.importorskip("triton")

import launched  # noqa: E402  triton may be missing

from tensorpact_kernels.flash_attention import (  # noqa: E402
    device,
    device_append,
    device_merge,
    launch,
    launch_attend,
    launch_hopper,
)
from tensorpact_kernels.flash_attention.plan import (  # noqa: E402
    MAX_SPLITS,
    Mask,
    choose_splits,
    mask_of,
    merge_columns,
    tile_config,
)

try:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    from tensorpact_kernels.flash_attention import device_hopper, device_hopper_wide
except (ImportError, AttributeError) as error:
    GLUON = f"this Triton's Gluon lacks what the Hopper kernel uses: {error}"
else:
    GLUON = None

SHARED_LIMIT = 227 * 1024
COPY = r"cp\.async\.bulk\.tensor\.4d\.shared"

pytestmark = pytest.mark.skipif(triton.knobs.runtime.interpret, reason="the interpreter replaces the compiler")


class Described:
    """What the copy unit is told of a tensor."""

    def __init__(self, tensor, slots):
        self.tensor, self.slots = tensor, slots

    def description(self):
        layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
        comma = "," if tuple(int(part) for part in triton.__version__.split(".")[:2]) > (3, 6) else ", "
        box = 1, self.slots, 1, launch_hopper.columns(self.tensor.shape[3])
        return f"tensordesc<{launched.TYPES[self.tensor.dtype]}[{comma.join(map(str, box))}],{layout!r}>"


@pytest.fixture(autouse=True)
def _without_a_device(monkeypatch):
    monkeypatch.setattr(launch_attend, "multiprocessors", lambda _: 132)
    monkeypatch.setattr(launch_hopper, "_described", Described)


def half(*shape):
    return torch.zeros(shape, dtype=torch.bfloat16)


def decode(page=64, dim=128, heads=32, key_heads=8):
    return {
        "q": half(16, 1, heads, dim),
        "k_cache": half(64, page, key_heads, dim),
        "v_cache": half(64, page, key_heads, dim),
        "cache_seqlens": torch.zeros(16, dtype=torch.int32),
        "page_table": torch.zeros(16, 128, dtype=torch.int32),
    }


def test_paged_decode_and_what_is_around_it(monkeypatch):
    (attend,) = launched.recorded(monkeypatch, device, "flash_kernel")
    (merge,) = launched.recorded(monkeypatch, device_merge, "flash_merge_kernel")
    (append,) = launched.recorded(monkeypatch, device_append, "append_kernel")
    new = {"k": half(16, 1, 8, 128), "v": half(16, 1, 8, 128), "rotary_cos": half(99, 32), "rotary_sin": half(99, 32)}
    launch.launch_kvcache(**decode(), **new, num_splits=2, causal=True, path="portable")
    kernel = launched.compiled(attend, UPCAST=False)
    assert 2 * kernel.metadata.shared <= SHARED_LIMIT
    assert len(re.findall(r"cp\.async\.c[ag]", kernel.asm["ptx"])) >= 16, "nothing is fetched ahead"
    assert attend.launches[0][0] == (16 * 8 * 2,)
    assert "atom." not in kernel.asm["ptx"]
    launched.compiled(merge)
    launched.compiled(append)


def test_paged_decode_reports_what_it_masks(monkeypatch):
    (attend,) = launched.recorded(monkeypatch, device, "flash_kernel")
    flag = torch.zeros(8, dtype=torch.int64), torch.zeros(8, dtype=torch.int64), 7
    monkeypatch.setattr(launch_attend, "kernel_flag", lambda *_: flag)
    launch.launch_kvcache(**decode(), num_splits=1, path="portable")
    kernel = launched.compiled(attend, UPCAST=False)
    assert "cas.b64" in kernel.asm["ptx"]
    assert len(re.findall(r"cp\.async\.c[ag]", kernel.asm["ptx"])) >= 16, "nothing is fetched ahead"


def test_long_packed_queries(monkeypatch):
    (attend,) = launched.recorded(monkeypatch, device, "flash_kernel")
    (clear,) = launched.recorded(monkeypatch, device_merge, "clear_kernel")
    bounds = torch.zeros(5, dtype=torch.int32)
    q, k, v = half(999, 14, 96), half(888, 2, 96), half(888, 2, 40)
    launch.launch_varlen(
        q, k, v, bounds, bounds, 400, 300, causal=True, return_softmax_lse=True, path="portable"
    )  # fmt: skip
    kernel = launched.compiled(attend, UPCAST=False)
    assert kernel.metadata.shared <= SHARED_LIMIT
    assert "wgmma" in kernel.asm["ptx"]
    launched.compiled(clear)


@pytest.mark.skipif(GLUON is not None, reason=str(GLUON))
def test_hopper_decode(monkeypatch):
    (attend,) = launched.recorded(monkeypatch, device_hopper, "hopper_decode_kernel")
    launched.recorded(monkeypatch, device_merge, "flash_merge_kernel")
    launch.launch_kvcache(**decode(128), num_splits=2, path="hopper")
    kernel = launched.compiled(attend, make=GluonASTSource)
    assert 2 * kernel.metadata.shared <= SHARED_LIMIT
    stages = attend.launches[0][2]["STAGES"]
    # Keys and values of each tile that is in flight, before the loop and in it.
    assert stages >= 2
    assert len(re.findall(COPY, kernel.asm["ptx"])) == 2 * (stages + 1)


@pytest.mark.skipif(GLUON is not None, reason=str(GLUON))
def test_hopper_decode_of_many_heads(monkeypatch):
    (attend,) = launched.recorded(monkeypatch, device_hopper_wide, "hopper_wide_decode_kernel")
    arguments = decode(16, 512, 128, 1) | {"qv": half(16, 1, 128, 512), "q": None, "k_cache": None, "only_qv": True}
    launch.launch_kvcache(**arguments, num_splits=1, path="hopper", softcap=3.0, window_size=(99, 0))
    kernel = launched.compiled(attend, make=GluonASTSource)
    assert kernel.metadata.shared <= SHARED_LIMIT
    # A tile of 64 slots is four pages.
    assert len(re.findall(COPY, kernel.asm["ptx"])) == 4 * (attend.launches[0][2]["STAGES"] + 1)


@pytest.mark.skipif(GLUON is not None, reason=str(GLUON))
def test_hopper_decodes_report_what_they_mask(monkeypatch):
    (narrow,) = launched.recorded(monkeypatch, device_hopper, "hopper_decode_kernel")
    (wide,) = launched.recorded(monkeypatch, device_hopper_wide, "hopper_wide_decode_kernel")
    flag = torch.zeros(8, dtype=torch.int64), torch.zeros(8, dtype=torch.int64), 7
    monkeypatch.setattr(launch_hopper, "kernel_flag", lambda *_: flag)
    rows = torch.zeros(16, dtype=torch.int32)
    launch.launch_kvcache(**decode() | {"cache_batch_idx": rows}, num_splits=1, path="hopper")
    arguments = decode(64, 512, 128, 1) | {"qv": half(16, 1, 128, 512), "q": None, "k_cache": None, "only_qv": True}
    launch.launch_kvcache(**arguments, num_splits=1, path="hopper")
    for recorder in (narrow, wide):
        ptx = launched.compiled(recorder, make=GluonASTSource).asm["ptx"]
        # What tells is a function of its own behind the loop: in front of it, it would cost the loop its registers.
        assert ptx.rindex("wgmma.mma_async") < ptx.index("call.uni") < ptx.index("cas.b64")


def test_sides_of_a_window_that_hide_nothing_are_left_out():
    assert mask_of((99, 3), 0, 100, 4, causal=False) == Mask(-1, -1, 0)
    assert not mask_of((99, 3), 0, 100, 4, causal=False).hides
    assert mask_of((98, 2), 0, 100, 4, causal=False) == Mask(98, 2, 0)
    assert mask_of((-1, -1), 0, 100, 4, causal=True) == Mask(-1, 0, 0)
    assert mask_of((7, 50), 0, 100, 1, causal=True) == Mask(7, -1, 0)
    assert mask_of((-1, -1), 1 << 40, 100, 4, causal=False) == Mask(-1, -1, 100)
    assert mask_of((-1, 1 << 40), 0, 100, 4, causal=False, said=1 << 50) == Mask(-1, 4, 0)
    assert mask_of((-1, 7), 0, 100, 4, causal=False, said=8) == Mask(-1, -1, 0)


def test_shares_fill_the_device_and_are_no_more_than_steps():
    assert choose_splits(8, 2048, 264) == 33
    assert choose_splits(128, 128, 264) == 2
    assert choose_splits(1024, 16, 264) == 1
    assert choose_splits(1, 3, 264) <= 3
    for splits in (1, 2, 33, MAX_SPLITS):
        assert merge_columns(splits, 512) * max(16, splits) <= max(8192, 16 * splits)


@pytest.mark.parametrize(("dim", "value_dim"), [(64, 64), (128, 128), (256, 256), (64, 512), (0, 512), (192, 128)])
@pytest.mark.parametrize("rows", [1, 16, 64, 128])
def test_tiles_fit_shared_memory(rows, dim, value_dim):
    tile = tile_config(rows, dim, value_dim, value_queries=not dim or value_dim == 512)
    assert tile.num_stages * tile.block_n * 2 * (dim + value_dim) <= SHARED_LIMIT
    if rows <= launch_hopper.MAX_ROWS:
        cut = launch_hopper.hopper_config(rows, dim, value_dim, value_queries=value_dim == 512)
        tiles = cut.num_stages * 64 * 2 * (max(dim, 64 if dim else 0) + value_dim)
        queries = 2 * cut.block_m * ((dim and max(dim, 64)) + (value_dim if value_dim == 512 else 0) + 64)
        assert tiles + queries <= SHARED_LIMIT
