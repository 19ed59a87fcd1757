"""Kernels that report the numbers they mask: what the launch of such a kernel asks for.

The function that the kernel itself calls is in ``tensorpact.reporting.device``, which needs Triton; this module does
not.
"""

from tensorpact._values.in_kernel import NO_FLAG, Flag, Told, kernel_flag

__all__ = ["NO_FLAG", "Flag", "Told", "kernel_flag"]
