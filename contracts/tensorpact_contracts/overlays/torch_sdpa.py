"""Overlay for torch's ``scaled_dot_product_attention``: what it repeats, ignores or misaligns without a word."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.attention.bias import CausalBias

import tensorpact
from tensorpact import Contract, DocumentedError
from tensorpact.clauses import require
from tensorpact.integrations import Applied, overlay
from tensorpact_contracts._values import fits_float

RANKS = DocumentedError(
    "ranks-differ",
    ValueError,
    "query, key and value have {query.ndim}, {key.ndim} and {value.ndim} axes; all need the same leading axes in front "
    "of [tokens, head dim], heads among them where enable_gqa is set",
)
BATCH = DocumentedError(
    "batch-repeated",
    ValueError,
    "the axes in front of the heads differ: query has {list(query.shape[:-3])}, key {list(key.shape[:-3])}, value "
    "{list(value.shape[:-3])}; a size of 1 would be repeated",
)
HEADS = DocumentedError(
    "head-counts-differ",
    ValueError,
    "axis -3 holds {query.size(-3)} heads of query, {key.size(-3)} of key and {value.size(-3)} of value; without "
    "enable_gqa they must be equal",
)
GROUPS = DocumentedError(
    "gqa-head-counts",
    ValueError,
    "enable_gqa needs as many value as key heads, and a number that divides the {query.size(-3)} query heads, got "
    "{key.size(-3)} key and {value.size(-3)} value heads",
)
MASK = DocumentedError(
    "mask-does-not-fit",
    ValueError,
    "attn_mask of shape {list(attn_mask.shape)} does not fit the scores [..., heads, L, S] = "
    "{[*query.shape[:-1], key.size(-2)]}",
)
MASK_AND_CAUSAL = DocumentedError(
    "mask-and-causal",
    RuntimeError,
    "_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True",
)
ONE_QUERY = DocumentedError(
    "causal-with-one-query",
    ValueError,
    "is_causal starts at the first key, so that the only query sees 1 of {key.size(-2)} keys; leave it out",
)
NUMBER = DocumentedError(
    "dropout-or-scale",
    ValueError,
    "{name} is out of range: dropout_p={dropout_p!r} is to lie between 0 and 1, scale={factor} to be a finite number "
    "above 0",
    fields={"factor": lambda scale: "a tensor" if isinstance(scale, Tensor) else repr(scale)},
)


def _factor(scale: float | Tensor | None) -> bool:
    # A tensor would have to be read for it.
    return scale is None or isinstance(scale, Tensor) or (scale > 0 and fits_float(scale))


def fits_scores(mask: Sequence[int], scores: Sequence[int]) -> bool:
    """Whether a mask can be repeated to the scores, without making them larger.

    Args:
        mask: Its shape.
        scores: Their shape.
    """
    if len(mask) > len(scores):
        return False
    return all(m in (1, s) for m, s in zip(mask, scores[len(scores) - len(mask) :], strict=True))


SDPA = Contract(
    "scaled_dot_product_attention",
    dims={
        "L": "query tokens",
        "S": "key tokens",
        "E": "head dim of query and key",
        "V": "head dim of value",
    },
    clauses=[
        require(
            lambda query, key, value, enable_gqa: (
                query.ndim == key.ndim == value.ndim and (query.ndim > 2 or not enable_gqa)
            ),
            error=RANKS,
        ),
        require(lambda query, key, value: query.shape[:-3] == key.shape[:-3] == value.shape[:-3], error=BATCH),
        require(
            lambda query, key, value: query.size(-3) == key.size(-3) == value.size(-3),
            when=lambda query, enable_gqa: query.ndim > 2 and not enable_gqa,
            error=HEADS,
        ),
        require(
            lambda query, key, value: (
                key.size(-3) == value.size(-3) and key.size(-3) > 0 and query.size(-3) % key.size(-3) == 0
            ),
            when=lambda query, enable_gqa: query.ndim > 2 and enable_gqa,
            error=GROUPS,
        ),
        require(
            lambda attn_mask, is_causal: attn_mask is None or not is_causal, error=MASK_AND_CAUSAL, about="attn_mask"
        ),
        require(
            lambda query, key, attn_mask, dropout_p: (
                fits_scores(attn_mask.shape, (*query.shape[:-1], key.size(-2)))
                # Torch looks at axis -2 of a mask where one of its fused forms may take the call.
                and (attn_mask.ndim > 1 or query.ndim != 4 or dropout_p > 0)
            ),
            # A causal bias is a mask by its class; the shape of the object says nothing.
            when=lambda attn_mask: attn_mask is not None and not isinstance(attn_mask, CausalBias),
            error=MASK,
            about="attn_mask",
        ),
        require(
            lambda query, key: query.size(-2) != 1 or key.size(-2) <= 1,
            when=lambda is_causal: is_causal,
            error=ONE_QUERY,
            about="is_causal",
        ),
        require(lambda dropout_p: 0 <= dropout_p <= 1, error=NUMBER, about="dropout_p"),
        require(_factor, error=NUMBER, about="scale"),
    ],
)


def _beside(foreign: Any) -> Iterator[tuple[Any, str, Any]]:
    """What has a causal bias know torch's function while its name is ours, whoever calls it by whatever name.

    The bias tells attention from other functions by comparing what was called with the name. Without this the bare
    function, imported by name before, would take the unset memory of the bias for a mask.
    """
    before: Callable[..., Any] = vars(CausalBias)["__torch_function__"].__func__
    dispatch: Callable[..., Any] = vars(CausalBias)["_dispatch"].__func__

    def torch_function(
        cls: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is foreign:
            return dispatch(*args, **(kwargs or {}))
        return before(cls, func, types, args, kwargs)

    yield CausalBias, "__torch_function__", torch_function


@overlay("torch.nn.functional:scaled_dot_product_attention", SDPA, beside=_beside)
def scaled_dot_product_attention(
    query: Float[Tensor, "... L E"],
    key: Float[Tensor, "... S E"],
    value: Float[Tensor, "... S V"],
    attn_mask: Shaped[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | Shaped[Tensor, ""] | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "... L V"]:
    """Attend as torch does, after a check of everything that it leaves unchecked.

    Args:
        query: Queries; the axis in front of the tokens holds heads.
        key: Keys.
        value: Values.
        attn_mask: What each query may see, or what is added to its scores; repeated along axes of size 1.
        dropout_p: Probability of dropping an attention weight; applied in evaluation too.
        is_causal: Query i sees keys 0 to i, counted from the first key.
        scale: Factor on the scores.
        enable_gqa: Key and value heads serve groups of query heads.
    """
    raise NotImplementedError


def apply(*, packages: Sequence[str] = ()) -> Applied:
    """Put the contract on torch's function.

    Args:
        packages: Imported packages in which other names of it are exchanged too.
    """
    return tensorpact.apply(scaled_dot_product_attention, packages=packages)
