"""A norm and a rotation."""

import torch
from jaxtyping import Float
from torch import Tensor


def rms_norm(x: Float[Tensor, "T D"], weight: Float[Tensor, " D"], eps: float = 1e-6) -> Float[Tensor, "T D"]:
    """Divide each row by its root mean square, and scale its columns."""
    if weight.shape[0] != x.shape[-1]:
        raise ValueError(f"rms_norm: weight has {weight.shape[0]} entries, x has {x.shape[-1]} columns")
    if weight.dtype != x.dtype:
        raise TypeError(f"rms_norm: weight is {weight.dtype}, x is {x.dtype}")
    if eps <= 0:
        raise ValueError(f"rms_norm: eps must be positive, got {eps}")
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotary(
    x: Float[Tensor, "T H D"], cos: Float[Tensor, "T D//2"], sin: Float[Tensor, "T D//2"]
) -> Float[Tensor, "T H D"]:
    """Rotate pairs of columns, the first half of a head with the second, by an angle for each token."""
    if x.shape[-1] % 2:
        raise ValueError(f"rotary: the head dim must be even, got {x.shape[-1]}")
    if cos.shape != sin.shape:
        raise ValueError(f"rotary: cos is {list(cos.shape)}, sin is {list(sin.shape)}")
    if cos.shape[-1] != x.shape[-1] // 2:
        raise RuntimeError(f"rotary: cos has {cos.shape[-1]} columns, half of the head dim is {x.shape[-1] // 2}")
    first, second = x.chunk(2, dim=-1)
    c, s = cos[:, None], sin[:, None]
    return torch.cat([first * c - second * s, second * c + first * s], dim=-1)
