"""Both packages, under the same tests."""

import importlib
import pathlib
import sys
from typing import Any

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))


@pytest.fixture(params=["handchecked", "contracted"])
def package(request: pytest.FixtureRequest) -> Any:
    """The package before, and after."""
    return importlib.import_module(request.param)
