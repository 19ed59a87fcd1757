"""The store for cross-attention, whose keys and values do not change from step to step."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from tensorpact import contract


@dataclass(slots=True, eq=False)
class CrossAttentionKVCache:
    """Keys and values of a context, kept after the first step.

    Attributes:
        k: Keys.
        v: Values.
        is_init: Whether they belong to the current context.
    """

    k: Tensor | None
    v: Tensor | None
    is_init: bool = False

    @contract
    def store(self, k: Float[Tensor, "B T H D"], v: Float[Tensor, "B T H Dv"]) -> None:
        """Keep references to the tensors, without a copy and without their gradients.

        Args:
            k: Keys of the context.
            v: Values of the context.
        """
        self.k, self.v = k.detach(), v.detach()
        self.is_init = True

    def reset(self) -> None:
        """Mark the contents as stale; they stay where they are."""
        self.is_init = False
