"""Hypothesis profiles and the skip of GPU tests."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("ci", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("long", max_examples=5_000, deadline=None, print_blob=True)
settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA device, torch.cuda.is_available() is False")
        for item in marked:
            item.add_marker(skip)
