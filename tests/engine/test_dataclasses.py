"""Dataclasses: fields in one scope, defaults and factories included; methods that see the fields."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import tensorpact
from tensorpact import Contract, ContractDefinitionError, contract
from tensorpact.clauses import require

T = torch.zeros


@pytest.fixture(params=("compiled", "beartype"), autouse=True)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both enforcing modes."""
    with tensorpact.enforcement(request.param):
        yield request.param


@contract
@dataclass
class Cache:
    """Two tensors that share dims."""

    k: Float[Tensor, "slots K"]
    v: Float[Tensor, "slots V"]
    scale: float = 1.0
    extra: Float[Tensor, " slots"] = field(default_factory=lambda: torch.zeros(4))

    @contract
    def append(self, k: Float[Tensor, "n K"], v: Float[Tensor, "n V"]) -> int:
        """Methods see the fields."""
        return k.shape[0]


@contract(Contract("Even", clauses=[require(lambda n: n % 2 == 0)]))
@dataclass(frozen=True)
class Even:
    """With a relation of its own."""

    x: Float[Tensor, " n"]


def test_fields_share_one_scope() -> None:
    assert Cache(T(4, 3), T(4, 5)).scale == 1.0
    with pytest.raises(ValueError, match=r"^self\.v: axis 0 \(slots\) is 2, but slots is 4 \(self\.k axis 0\)"):
        Cache(T(4, 3), T(2, 5))


def test_defaults_and_factories_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^self\.extra: axis 0 \(slots\) is 4, but slots is 2"):
        Cache(T(2, 3), T(2, 5))


def test_other_fields_are_checked() -> None:
    with pytest.raises(TypeError, match=r"^self\.scale: expected float, got str 'x'"):
        Cache(T(4, 3), T(4, 5), "x")


def test_methods_see_the_fields() -> None:
    cache = Cache(T(4, 3), T(4, 5))
    assert cache.append(T(2, 3), T(2, 5)) == 2
    with pytest.raises(ValueError, match=r"^v: axis 1 \(V\) is 3, but V is 5 \(self\.v axis 1\)"):
        cache.append(T(2, 3), T(2, 3))
    cache.k = T(4, 7)
    assert cache.append(T(2, 7), T(2, 5)) == 2


def test_frozen_ones_with_a_contract() -> None:
    assert Even(T(2)).x.shape == (2,)
    with pytest.raises(ValueError, match="requirement 0 of Even does not hold: n=3"):
        Even(T(3))


def test_it_stays_a_dataclass() -> None:
    cache = Cache(T(4, 3), T(4, 5))
    assert [f.name for f in dataclasses.fields(cache)] == ["k", "v", "scale", "extra"]
    with pytest.raises(ValueError, match=r"^self\.k"):
        dataclasses.replace(cache, k=T(3))


def test_two_objects_may_differ() -> None:
    assert Even(T(2)).x.shape != Even(T(4)).x.shape


def test_other_classes_are_refused() -> None:
    with pytest.raises(ContractDefinitionError, match="put @contract above @dataclass"):

        @contract
        class Plain:
            x: int


def test_modules() -> None:
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(T(3))

        @contract
        def forward(self, x: Float[Tensor, "n 3"], bias: Float[Tensor, " n"] | None = None) -> Tensor:
            return x * self.weight

    module = Scale()
    assert module(T(2, 3)).shape == (2, 3)
    with pytest.raises(ValueError, match=r"^bias: axis 0 \(n\) is 3, but n is 2 \(x axis 0\)"):
        module(T(2, 3), T(3))


@dataclass
class Longer(Cache):
    """No contract of its own."""

    length: int = 0


@dataclass
class Prepared(Cache):
    """With a second step of its own."""

    total: int = 0

    def __post_init__(self) -> None:
        self.total = getattr(self.k, "shape", (0,))[0]
        super().__post_init__()  # type: ignore[misc]


class Plain(Cache):
    """Not a dataclass itself."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        super().__init__(k, v)


@pytest.mark.parametrize("kind", [Longer, Prepared, Plain])
def test_what_derives_from_a_contracted_dataclass_keeps_its_contract(kind: type[Cache]) -> None:
    made = kind(T(4, 3), T(4, 5))
    assert getattr(made, "total", 4) == 4
    with pytest.raises(ValueError, match=r"^self\.v: axis 0 \(slots\) is 2, but slots is 4 \(self\.k axis 0\)"):
        kind(T(4, 3), T(2, 5))
    with pytest.raises(TypeError, match=r"^self\.k: expected a Tensor"):
        kind("text", T(2, 5))  # type: ignore[arg-type]
