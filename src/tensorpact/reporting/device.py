"""Kernels that report the numbers they mask: the function that such a kernel calls. Imports Triton."""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportUnknownVariableType=false

from tensorpact._values.device_flag import tell

__all__ = ["tell"]
