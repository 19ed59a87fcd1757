"""Members of ``any_of`` claim what they claim alone."""

import pytest
import torch
from jaxtyping import Shaped
from torch import Tensor

from tensorpact import Contract, DocumentedError, contract
from tensorpact.clauses import any_of, same_dim

DIFFERS = DocumentedError("b-or-d-differs", RuntimeError, "differs: {names}")


@contract(Contract("f", clauses=[any_of(same_dim("B", "q", "k"), same_dim("D", "q", "k"), error=DIFFERS)]))
def f(q: Shaped[Tensor, "B D"], k: Shaped[Tensor, "B D"]) -> None: ...


@pytest.mark.parametrize("shape", [(3, 4), (2, 5)])
def test_each_same_dim_inside_any_of_raises_its_error(shape: tuple[int, ...]):
    f(torch.zeros(2, 4), torch.zeros(2, 4))
    with pytest.raises(RuntimeError) as caught:
        f(torch.zeros(2, 4), torch.zeros(shape))
    assert str(caught.value) == "differs: k"
