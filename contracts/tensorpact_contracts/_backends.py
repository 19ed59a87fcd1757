"""Questions that contracts ask about what will run."""

import os

from tensorpact import backend


def triton_forced() -> bool:
    """Whether Triton is to run whatever the device, with no interpreter that could take CPU tensors."""
    return backend() == "triton" and os.environ.get("TRITON_INTERPRET") != "1"


def npu_forced() -> bool:
    """Whether the vendor operator of an NPU is to run whatever the device."""
    return backend() == "npu"
