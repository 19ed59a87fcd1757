"""Ready contracts for functions of other packages, to be put on by ``tensorpact.apply`` or called in their place.

Importing a module of this package imports no foreign one.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from tensorpact.integrations import Applied, ApplyError, apply, judge

#: Foreign function to the overlay that is made for it, as ``module:name`` below this package.
TABLE = {
    "sglang.kernels.ops.attention.dsv4.unified_kv_kernels.paged_decode:sparse_attn_v4_paged_decode": (
        "sglang_attention:sparse_attn_v4_paged_decode"
    ),
    "sglang.kernels.ops.attention.dsv4.unified_kv_kernels.paged_prefill:sparse_attn_v4_paged_prefill": (
        "sglang_attention:sparse_attn_v4_paged_prefill"
    ),
    "sglang.kernels.ops.attention.helion.kda_decode:helion_fused_recurrent_kda_packed_decode": (
        "sglang_attention:helion_fused_recurrent_kda_packed_decode"
    ),
    "sglang.kernels.ops.attention.helion.kda_replayssm:helion_fused_recurrent_kda_replayssm_decode": (
        "sglang_attention:helion_fused_recurrent_kda_replayssm_decode"
    ),
    "sglang.multimodal_gen.runtime.layers.attention.backends.ascend_fa:fused_infer_attention_varlen": (
        "sglang_attention:fused_infer_attention_varlen"
    ),
    "fla.ops.delta_rule:chunk_delta_rule": "fla_delta:chunk_delta_rule",
    "fla.ops.delta_rule:fused_recurrent_delta_rule": "fla_delta:fused_recurrent_delta_rule",
    "fla.ops.gated_delta_rule:chunk_gated_delta_rule": "fla_delta:chunk_gated_delta_rule",
    "fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule": "fla_delta:fused_recurrent_gated_delta_rule",
    "fla.ops.kda:chunk_kda": "fla_delta:chunk_kda",
    "fla.ops.kda:fused_recurrent_kda": "fla_delta:fused_recurrent_kda",
    "torch.nn.attention.varlen:varlen_attn": "torch_varlen:varlen_attn",
    "torch.nn.functional:scaled_dot_product_attention": "torch_sdpa:scaled_dot_product_attention",
}


def overlay_for(target: str) -> Callable[..., Any]:
    """The overlay of a foreign function.

    Args:
        target: The function, as ``module:name``.

    Raises:
        KeyError: There is none.
    """
    module, _, name = TABLE[target].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def apply_all(*, packages: Sequence[str] = ()) -> tuple[list[Applied], dict[str, str]]:
    """Put on every overlay whose package is installed in a version that it fits.

    Args:
        packages: Imported packages in which other names of the functions are exchanged too.

    Returns:
        The handles, and for every other function the reason why it was left alone.
    """
    handles: list[Applied] = []
    skipped: dict[str, str] = {}
    for target in TABLE:
        try:
            handles.append(apply(overlay_for(target), packages=packages))
        except ApplyError as reason:
            skipped[target] = str(reason)
    return handles, skipped


__all__ = ["TABLE", "apply_all", "judge", "overlay_for"]
