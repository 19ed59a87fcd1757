"""Every hand-written check: the same class and the same text before and after."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

X = torch.ones(5, 2)
META = torch.device("meta")

CASES: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "pool-rank": (
        lambda p: p.gather_rows(torch.ones(7), torch.zeros(3, dtype=torch.int32)),
        ValueError,
        "gather_rows: pool must be [rows, columns], got 1 axes",
    ),
    "pool-columns": (
        lambda p: p.gather_rows(torch.ones(7, 3).T, torch.zeros(3, dtype=torch.int32)),
        ValueError,
        "gather_rows: the columns of pool must be dense, their stride is 3",
    ),
    "rows-dtype": (
        lambda p: p.gather_rows(X, torch.zeros(3, dtype=torch.int16)),
        TypeError,
        "gather_rows: rows must be int32 or int64, got torch.int16",
    ),
    "rows-device": (
        lambda p: p.gather_rows(X, torch.zeros(3, dtype=torch.int64, device=META)),
        ValueError,
        "gather_rows: rows is on meta, pool on cpu",
    ),
    "weight-length": (
        lambda p: p.rms_norm(X, torch.ones(3)),
        ValueError,
        "rms_norm: weight has 3 entries, x has 2 columns",
    ),
    "weight-dtype": (
        lambda p: p.rms_norm(X, torch.ones(2).half()),
        TypeError,
        "rms_norm: weight is torch.float16, x is torch.float32",
    ),
    "eps": (lambda p: p.rms_norm(X, torch.ones(2), 0.0), ValueError, "rms_norm: eps must be positive, got 0.0"),
    "odd-head": (
        lambda p: p.rotary(torch.ones(5, 2, 3), torch.ones(5, 1), torch.ones(5, 1)),
        ValueError,
        "rotary: the head dim must be even, got 3",
    ),
    "tables": (
        lambda p: p.rotary(torch.ones(5, 2, 4), torch.ones(5, 2), torch.ones(5, 3)),
        ValueError,
        "rotary: cos is [5, 2], sin is [5, 3]",
    ),
    "table-columns": (
        lambda p: p.rotary(torch.ones(5, 2, 4), torch.ones(5, 4), torch.ones(5, 4)),
        RuntimeError,
        "rotary: cos has 4 columns, half of the head dim is 2",
    ),
    "boundaries": (
        lambda p: p.segment_sum(X, torch.zeros(1, 4, dtype=torch.int64)),
        ValueError,
        "segment_sum: cu_seqlens must be a vector of boundaries, got [1, 4]",
    ),
    "last-boundary": (
        lambda p: p.segment_sum(X, torch.tensor([0, 2, 4])),
        ValueError,
        "segment_sum: cu_seqlens ends at 4, x has 5 rows",
    ),
    "initial-columns": (
        lambda p: p.segment_sum(X, torch.tensor([0, 2, 5]), torch.ones(2, 3)),
        RuntimeError,
        "segment_sum: initial has 3 columns, x has 2",
    ),
    "too-many": (
        lambda p: p.RingCache(torch.ones(4, 2, 3)).append(torch.ones(5, 2, 3)),
        RuntimeError,
        "RingCache: 5 keys do not fit into 4 slots",
    ),
    "head-dim": (
        lambda p: p.RingCache(torch.ones(4, 2, 3)).append(torch.ones(1, 2, 6)),
        ValueError,
        "RingCache: head dim is 6, the cache has 3",
    ),
    "key-device": (
        lambda p: p.RingCache(torch.ones(4, 2, 3)).append(torch.ones(1, 2, 3, device=META)),
        ValueError,
        "RingCache: key is on meta, the cache on cpu",
    ),
}


@pytest.mark.parametrize(("call", "cls", "text"), CASES.values(), ids=CASES)
def test_a_check_keeps_its_class_and_text(package: Any, call: Callable[[Any], Any], cls: type[Exception], text: str):
    with pytest.raises(cls) as error:
        call(package)
    assert str(error.value) == text


def test_every_documented_error_has_a_case():
    import contracted.contracts as contracts

    from tensorpact import DocumentedError

    documented = {e.slug for e in vars(contracts).values() if isinstance(e, DocumentedError)}
    assert documented == set(CASES)
