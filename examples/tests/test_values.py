"""Right calls, whose values are the same before and after."""

from typing import Any

import torch


def test_gather_rows(package: Any):
    pool = torch.arange(21.0).reshape(7, 3)
    rows = torch.tensor([6, -1, 2, 99], dtype=torch.int32)
    assert package.gather_rows(pool, rows).tolist() == [[18, 19, 20], [0, 0, 0], [6, 7, 8], [0, 0, 0]]
    wide = torch.arange(42.0).reshape(7, 6)[:, :3]
    assert package.gather_rows(wide, rows.long()[:1]).tolist() == [[36, 37, 38]]
    assert package.gather_rows(pool, rows[:0]).shape == (0, 3)


def test_rms_norm(package: Any):
    x = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, -1.0]])
    expected = x / x.square().mean(1, keepdim=True).sqrt() * torch.tensor([1.0, 0.5])
    torch.testing.assert_close(package.rms_norm(x, torch.tensor([1.0, 0.5]), 1e-12), expected)


def test_rotary(package: Any):
    x = torch.arange(40.0).reshape(5, 2, 4)
    cos, sin = torch.zeros(5, 2), torch.ones(5, 2)
    assert package.rotary(x, cos, sin).equal(torch.cat([-x[..., 2:], x[..., :2]], dim=-1))


def test_segment_sum(package: Any):
    x = torch.arange(10.0).reshape(5, 2)
    boundaries = torch.tensor([0, 2, 2, 5])
    assert package.segment_sum(x, boundaries).tolist() == [[2, 4], [0, 0], [18, 21]]
    assert package.segment_sum(x, boundaries, torch.ones(3, 2)).tolist() == [[3, 5], [1, 1], [19, 22]]


def test_ring_cache(package: Any):
    cache = package.RingCache(torch.zeros(4, 2, 3))
    cache.append(torch.ones(3, 2, 3))
    ring = cache.append(torch.full((2, 2, 3), 2.0))
    assert ring[:, 0, 0].tolist() == [2, 1, 1, 2]
