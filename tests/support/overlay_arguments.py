"""Valid arguments for the overlays whose leading axes cannot be drawn one tensor at a time."""

import random
from typing import Any

import torch


def sdpa_arguments(rng: random.Random) -> dict[str, Any]:
    """A valid call of ``scaled_dot_product_attention``: 2 to 5 axes, with and without groups, masks and the flag."""
    lead = tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 2)))
    heads = rng.choice(((), (6,)))
    gqa = bool(heads) and rng.random() < 0.4
    groups = (rng.choice((1, 2, 3, 6)),) if gqa else heads
    if lead and not heads:
        heads = groups = (rng.randint(1, 4),)
    length, keys, dim, width = rng.randint(1, 4), rng.randint(1, 5), rng.choice((4, 8)), rng.choice((2, 8))
    scores = (*lead, *heads, length, keys)
    cut = rng.randint(0, len(scores) - 2)
    shape = tuple(rng.choice((1, s)) for s in scores[cut:])
    kind = rng.choice(("none", "bool", "float", "causal"))
    causal = kind == "causal" and (length > 1 or keys == 1)
    made = {"bool": torch.rand(shape) < 0.7, "float": torch.randn(shape)}
    return {
        "query": torch.randn(*lead, *heads, length, dim),
        "key": torch.randn(*lead, *groups, keys, dim),
        "value": torch.randn(*lead, *groups, keys, width),
        "attn_mask": made.get(kind),
        "dropout_p": rng.choice((0.0, 0, 0.0, 0.5)),
        "is_causal": causal,
        "scale": rng.choice((None, 1, 0.25)),
        "enable_gqa": gqa,
    }
