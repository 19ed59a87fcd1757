"""A user's module, as the type checkers see it. `# expect: …` names what pyright, then mypy, reports on that line."""

from collections.abc import Callable
from typing import assert_type

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tensorpact import Contract, contract
from tensorpact.clauses import same_dim, same_dtype
from tensorpact.dtypes import Float8, Float8e8m0fnu

GATHER = Contract(
    "gather",
    dims={"P": "slots of the pool", "D": "head dim", "T": "tokens"},
    clauses=[same_dtype("pool", "rows"), same_dim("D", "pool", "rows")],
)


@contract(GATHER)
def gather(
    pool: Float[Tensor, "P D"], rows: Float[Tensor, "T D"], index: Int[Tensor, " T"], *, scale: float = 1.0
) -> Float[Tensor, "T D"]:
    """Gather rows of a pool."""
    return pool[index] * scale + rows


@contract
def count(index: Int[Tensor, " T"], fill: int | None = None) -> int:
    """Count the entries of an index."""
    return index.numel() + (fill or 0)


@contract
def scaled(x: Float8[Tensor, "T D"], scale: Float8e8m0fnu[Tensor, " T"]) -> Tensor:
    """A family of our own is the array class to a type checker, as jaxtyping's are."""
    return x.float() * assert_type(scale, Tensor).float()[:, None]


@contract(check_returns=True)
def halve(x: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    """Halve."""
    return x / 2


@contract(GATHER, check_returns=True)
def gather_again(pool: Float[Tensor, "P D"], rows: Float[Tensor, "T D"]) -> tuple[Tensor, int]:
    """Return two things."""
    return pool + rows, 1


class Cache:
    """A user's class with a contracted method."""

    @contract
    def append(self, k: Float[Tensor, "T D"], layer: int) -> str:
        """Append one step."""
        return f"{layer}: {tuple(k.shape)}"


x = torch.zeros(2, 3)
i = torch.zeros(2, dtype=torch.int64)

# The signature is kept: positional, keyword, default and keyword-only arguments, methods, and what is returned.
assert_type(gather(x, x, i, scale=2.0), Tensor)
assert_type(count(i), int)
assert_type(count(index=i, fill=3), int)
assert_type(halve(x=x), Tensor)
assert_type(gather_again(x, rows=x), tuple[Tensor, int])
assert_type(Cache().append(x, layer=1), str)
as_callback: Callable[[Tensor, int | None], int] = count

gather(x, x)  # expect: reportCallIssue call-arg
gather(x, x, i, 2.0)  # expect: reportCallIssue call-arg
gather(x, x, i, sclae=2.0)  # expect: reportCallIssue call-arg
gather(x, x, [0, 1])  # expect: reportArgumentType arg-type
count(i, fill="0")  # expect: reportArgumentType arg-type
halve()  # expect: reportCallIssue call-arg
halve(x, check_returns=False)  # expect: reportCallIssue call-arg
Cache().append(x, "1")  # expect: reportArgumentType arg-type
Cache().append(layer=1)  # expect: reportCallIssue call-arg
text: str = count(i)  # expect: reportAssignmentType assignment
wrong_callback: Callable[[str], int] = count  # expect: reportAssignmentType assignment
contract(3)  # expect: reportCallIssue,reportArgumentType call-overload
Contract("gather", dimensions={})  # expect: reportCallIssue call-arg
