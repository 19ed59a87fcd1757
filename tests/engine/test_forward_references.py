"""Hints that are text: resolved where they stand, at the first call, or loudly not at all."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tensorpact import ContractDefinitionError

T = torch.zeros
SOURCE = """
from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Float
from tensorpact import contract
from torch import Tensor

if TYPE_CHECKING:
    from somewhere import Config


@contract
def early(x: Float[Tensor, "n m"], later: Later | None = None) -> str:
    return "ran"


class Later:
    @contract
    def join(self, other: Later, x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> str:
        return "ran"


@contract
def never(x: Float[Tensor, "n m"], config: Config) -> str:
    return "ran"


@contract
def beside(x: Float[Tensor, "n m"], y: Float[Tensor, " m"]) -> str:
    return "ran"


def local() -> object:
    A = Tensor

    @contract
    def f(x: Float[A, "n m"], y: Float[A, " m"]) -> str:
        return "ran"

    return f
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder: Path = tmp_path_factory.mktemp("forward")
    (folder / "forward_references_sample.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("forward_references_sample")
    finally:
        sys.path.remove(str(folder))


def test_a_class_defined_further_down(module: ModuleType) -> None:
    assert module.early(T(2, 3)) == "ran"
    assert module.early(T(2, 3), module.Later()) == "ran"
    with pytest.raises(TypeError, match=r"^later: expected Later or None, got int"):
        module.early(T(2, 3), 3)
    with pytest.raises(ValueError, match=r"^x: expected 2 axes"):
        module.early(T(2))


def test_the_class_of_a_method(module: ModuleType) -> None:
    one = module.Later()
    assert one.join(module.Later(), T(2), T(2)) == "ran"
    with pytest.raises(ValueError, match=r"^y: axis 0 \(n\) is 3"):
        one.join(one, T(2), T(3))


def test_what_never_exists_fails_loudly_and_disables_no_other(module: ModuleType) -> None:
    for _ in range(2):
        with pytest.raises(ContractDefinitionError, match=r"never: the annotation of config, 'Config', fails"):
            module.never(T(2, 3), object())
    with pytest.raises(ValueError, match=r"^y: axis 0 \(m\) is 2"):
        module.beside(T(2, 3), T(2))


def test_names_of_the_enclosing_function(module: ModuleType) -> None:
    assert module.local()(T(2, 3), T(3)) == "ran"
    with pytest.raises(ValueError, match=r"^y: axis 0 \(m\) is 2"):
        module.local()(T(2, 3), T(2))
