"""Inputs of the Kimi delta attention decode, and how far its in-place results may be from the float64 reference."""

import torch

from tensorpact_kernels.replayssm.naive import naive_replayssm_decode

SENTINEL = 777.0
WRITTEN = ("out", "initial_state", "d_cache", "k_cache", "g_cache")
# An output, state or ring is rounded once to its dtype; sums in another order cost float32 a little more.
ROUNDING = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}


def guarded(values, pad):
    """Return a copy of a pool whose slots lie ``pad`` elements apart, behind an offset, in a buffer of sentinels."""
    slots, *inner = values.shape
    size = values[0].numel() if slots else 1
    buffer = torch.full((pad + slots * (size + pad),), SENTINEL, dtype=values.dtype, device=values.device)
    dense = torch.empty(inner, device="meta").stride()
    view = buffer.as_strided(values.shape, (size + pad, *dense), pad)
    view.copy_(values)
    return view


def around(view):
    """Return the sentinels around and between the slots of a guarded pool."""
    buffer = torch.empty(0, dtype=view.dtype, device=view.device).set_(view.untyped_storage())
    outside = torch.ones_like(buffer, dtype=torch.bool)
    outside.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(False)
    return buffer[outside]


def decode_inputs(
    batch,
    heads,
    value_heads,
    key_dim,
    value_dim,
    ring,
    *,
    dtype=torch.float32,
    state_dtype=torch.float32,
    ring_dtype=torch.float32,
    index=torch.int32,
    pad=0,
    device="cpu",
    seed=None,
):
    """Return the arguments of a decode step: cursors anywhere in the ring, one padding row, ring rows behind it NaN."""
    gen = torch.Generator(device)
    gen.manual_seed(seed) if seed is not None else gen.seed()

    def random(*shape, scale=1.0, dtype=torch.float32):
        return (scale * torch.randn(*shape, generator=gen, device=device)).to(dtype)

    slots = batch + 3
    cursors = torch.randint(0, ring, (batch,), generator=gen, device=device, dtype=torch.int32)
    order = torch.randperm(slots, generator=gen, device=device)[:batch].to(index)
    if batch > 1:
        order[1] = -7
    rings = {
        "d_cache": random(slots, value_heads, ring, value_dim, dtype=ring_dtype),
        "k_cache": random(slots, heads, ring, key_dim, scale=key_dim**-0.5, dtype=ring_dtype),
        "g_cache": -0.3 * random(slots, value_heads, ring, key_dim).abs(),
    }
    for row, slot in enumerate(order.tolist()):
        if slot >= 0:
            for values in rings.values():
                values[slot, :, int(cursors[row]) :] = float("nan")
    return {
        "mixed_qkv": random(batch, 2 * heads * key_dim + value_heads * value_dim, dtype=dtype),
        "a": random(batch, value_heads, key_dim, scale=3.0, dtype=dtype),
        "b": random(batch, value_heads, dtype=dtype),
        "A_log": random(value_heads, scale=0.5) - 1,
        "dt_bias": random(value_heads, key_dim, scale=0.5),
        "scale": key_dim**-0.5,
        "initial_state": guarded(random(slots, value_heads, value_dim, key_dim, dtype=state_dtype), pad),
        **{name: guarded(values, pad) for name, values in rings.items()},
        "out": torch.full((batch, 1, value_heads, value_dim), float("nan"), dtype=dtype, device=device),
        "ssm_state_indices": order,
        "write_pos": cursors,
    }


def assert_decodes(decode, arguments, **options):
    """Run a decode in place; compare what it wrote with float64, and what it must not touch bit for bit."""
    upcast = {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }
    before = {name: arguments[name].clone() for name in WRITTEN}
    cursors = arguments["write_pos"].clone()
    wanted = naive_replayssm_decode(**upcast, **options)
    decode(**arguments, **options)
    assert torch.equal(arguments["write_pos"], cursors)
    for name, right in zip(WRITTEN, wanted, strict=True):
        found = arguments[name]
        # What the reference left alone is compared with the bits that were there, NaN rows of the rings included.
        written = right.ne(upcast[name]) & ~(right.isnan() & upcast[name].isnan())
        if name == "out":
            written |= True
        kept = ~written
        assert torch.equal(_bits(found)[kept], _bits(before[name])[kept]), f"{name}: wrote where nothing belongs"
        error = (found.double() - right)[written].norm() / right[written].norm().clamp_min(1e-30)
        assert error <= ROUNDING[found.dtype], f"{name}: {error:.1e} from float64"
        if name != "out":
            assert bool((around(found) == SENTINEL).all()), f"{name}: wrote outside of the pool"


def _bits(tensor):
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
