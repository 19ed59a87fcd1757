"""A ring of the most recent keys."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass
class RingCache:
    """The most recent keys of one sequence; the oldest ones are overwritten."""

    keys: Float[Tensor, "S H D"]
    seen: int = 0

    def append(self, key: Float[Tensor, "n H D"]) -> Float[Tensor, "S H D"]:
        """Write keys behind those that are there, and return the whole ring."""
        size, _, dim = self.keys.shape
        if key.shape[0] > size:
            raise RuntimeError(f"RingCache: {key.shape[0]} keys do not fit into {size} slots")
        if key.shape[-1] != dim:
            raise ValueError(f"RingCache: head dim is {key.shape[-1]}, the cache has {dim}")
        if key.device != self.keys.device:
            raise ValueError(f"RingCache: key is on {key.device}, the cache on {self.keys.device}")
        slots = (torch.arange(key.shape[0], device=key.device) + self.seen) % size
        self.keys[slots] = key.to(self.keys.dtype)
        self.seen += key.shape[0]
        return self.keys
