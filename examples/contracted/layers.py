"""A norm and a rotation."""

import torch
from jaxtyping import Float
from torch import Tensor

from tensorpact import contract

from .contracts import RMS_NORM, ROTARY


@contract(RMS_NORM)
def rms_norm(x: Float[Tensor, "T D"], weight: Float[Tensor, " D"], eps: float = 1e-6) -> Float[Tensor, "T D"]:
    """Divide each row by its root mean square, and scale its columns."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@contract(ROTARY)
def rotary(
    x: Float[Tensor, "T H D"], cos: Float[Tensor, "T D//2"], sin: Float[Tensor, "T D//2"]
) -> Float[Tensor, "T H D"]:
    """Rotate pairs of columns, the first half of a head with the second, by an angle for each token."""
    first, second = x.chunk(2, dim=-1)
    c, s = cos[:, None], sin[:, None]
    return torch.cat([first * c - second * s, second * c + first * s], dim=-1)
