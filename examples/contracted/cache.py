"""A ring of the most recent keys."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from tensorpact import contract
from tensorpact.constraints import SameDtype

from .contracts import APPEND


@contract
@dataclass
class RingCache:
    """The most recent keys of one sequence; the oldest ones are overwritten."""

    keys: Annotated[Float[Tensor, "S H D"], SameDtype("cache")]
    seen: int = 0

    @contract(APPEND)
    def append(self, key: Annotated[Float[Tensor, "n H D"], SameDtype("cache")]) -> Float[Tensor, "S H D"]:
        """Write keys behind those that are there, and return the whole ring."""
        slots = (torch.arange(key.shape[0], device=key.device) + self.seen) % self.keys.shape[0]
        self.keys[slots] = key
        self.seen += key.shape[0]
        return self.keys
