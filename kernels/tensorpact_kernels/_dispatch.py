"""Which implementation an entry point runs."""

from torch import Tensor

from tensorpact import backend


def runs_triton(tensor: Tensor) -> bool:
    """Whether the backend in force runs Triton for this tensor."""
    chosen = backend()
    return chosen == "triton" or (chosen != "naive" and tensor.is_cuda)
