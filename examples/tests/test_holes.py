"""What the hand-written checks let through: a wrong result before, an error that names the argument after."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import contracted
import handchecked
import pytest
import torch

from tensorpact import ContractViolation, install_import_hook

POOL = torch.arange(14.0).reshape(7, 2)
X = torch.arange(8.0).reshape(2, 4)[:, :2]


def every_second(p: Any) -> tuple[Any, Any]:
    """The kernel reads its indices one behind the other, whatever their stride says."""
    rows = torch.tensor([6, 0, 5, 0, 4, 0], dtype=torch.int32)[::2]
    return p.gather_rows(POOL, rows), POOL[[6, 5, 4]]


def column_of_indices(p: Any) -> tuple[Any, Any]:
    """Indices of another rank are flattened, so that nobody gets the shape that was asked for."""
    rows = torch.tensor([[6, 0], [5, 0]], dtype=torch.int32)
    return p.gather_rows(POOL, rows), POOL[torch.tensor([[6, 0], [5, 0]])]


def weight_as_column(p: Any) -> tuple[Any, Any]:
    """As many entries as there are columns, but broadcast along the tokens."""
    weight = torch.tensor([1.0, 10.0])
    return p.rms_norm(X, weight[:, None]), handchecked.rms_norm(X, weight)


def angles_of_one_token(p: Any) -> tuple[Any, Any]:
    """Angles of the newest token alone, as a decode step has them, turn every token of a prefill."""
    x, angle = torch.ones(3, 1, 2), torch.arange(3.0)[:, None]
    return p.rotary(x, angle[2:].cos(), angle[2:].sin()), handchecked.rotary(x, angle.cos(), angle.sin())


def state_of_one_sequence(p: Any) -> tuple[Any, Any]:
    """One state is added to every sequence."""
    boundaries, state = torch.tensor([0, 1, 2]), torch.ones(1, 2)
    return p.segment_sum(X, boundaries, state), X + torch.tensor([[1.0], [0.0]])


def one_head_for_all(p: Any) -> tuple[Any, Any]:
    """A key of one head is written to all heads."""
    keys = torch.zeros(2, 2, 1)
    return p.RingCache(keys).append(torch.ones(1, 1, 1)), torch.tensor([[[1.0], [0.0]], [[0.0], [0.0]]])


def rounded_keys(p: Any) -> tuple[Any, Any]:
    """Keys are rounded to the dtype of the cache without anybody having asked for it."""
    return p.RingCache(torch.zeros(1, 1, 1).half()).append(torch.full((1, 1, 1), 0.1)), torch.full((1, 1, 1), 0.1)


HOLES: list[tuple[Callable[[Any], tuple[Any, Any]], str]] = [
    (every_second, "rows: is not contiguous: shape (3,) has strides (2,)"),
    (column_of_indices, "rows: expected 1 axis [N], got 2 axes: [2, 2]"),
    (weight_as_column, "weight: expected 1 axis [D], got 2 axes: [2, 1]"),
    (angles_of_one_token, "cos: axis 0 (T) is 1, but T is 3 (x axis 0); expected [T, D//2] = [3, 1], got [1, 1]"),
    (
        state_of_one_sequence,
        "initial: axis 0 (B) is 1, but B is 2 (derived by let); expected [B, D] = [2, 2], got [1, 2]",
    ),
    (
        one_head_for_all,
        "key: axis 1 (H) is 1, but H is 2 (self.keys axis 1); expected [n, H, D] = [1, 2, 1], got [1, 1, 1]",
    ),
    (rounded_keys, "key: dtype is torch.float32, but self.keys has torch.float16"),
]


@pytest.mark.parametrize(("call", "text"), HOLES, ids=[call.__name__ for call, _ in HOLES])
def test_a_silent_fault_becomes_an_error(call: Callable[[Any], tuple[Any, Any]], text: str):
    result, expected = call(handchecked)
    assert result.shape != expected.shape or not torch.allclose(result.double(), expected.double(), atol=1e-6)
    with pytest.raises(ContractViolation) as error:
        call(contracted)
    assert str(error.value) == text


def test_which_of_them_the_import_hook_finds_by_the_annotations_alone(monkeypatch: pytest.MonkeyPatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "handchecked"]:
        monkeypatch.delitem(sys.modules, name)
    with install_import_hook("handchecked"):
        hooked = importlib.import_module("handchecked")
    missed: list[str] = []
    for call, _ in HOLES:
        try:
            call(hooked)
            missed.append(call.__name__)
        except ContractViolation:
            pass
    for name in [n for n in sys.modules if n.partition(".")[0] == "handchecked"]:
        del sys.modules[name]
    assert missed == ["every_second", "rounded_keys"]
