"""Methods and dataclasses under ``verify``: objects in several states, their fields mutated, copied for every call."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tensorpact import Contract, DocumentedError, contract
from tensorpact.clauses import require, same_dtype
from tensorpact.testing import register_arguments, verify, witness
from tensorpact.testing._targets import Target, find

FULL = DocumentedError(
    "ring-full",
    ValueError,
    "{n} rows do not fit behind {used} of {slots}",
    fields={"used": lambda self: int(self.used), "slots": lambda self: self.rows.shape[0]},
)
ROOM = DocumentedError("negative-limit", ValueError, "limit is {limit}", fields={"limit": lambda self: self.limit})
DTYPE = DocumentedError("ring-dtype", TypeError, "rows and x differ: {name}")
EMPTY = DocumentedError("no-rows", ValueError, "x and y hold no rows")


@contract(Contract("Ring", clauses=[require(lambda self: self.limit >= 0, error=ROOM)]))
@dataclass
class Ring:
    """Rows and how many are used."""

    rows: Float[Tensor, "slots K"]
    used: Int64[Tensor, ""]
    limit: int = 0

    @contract(
        Contract(
            "append",
            clauses=[
                same_dtype("self.rows", "x", error=DTYPE),
                require(lambda n: n > 0, error=EMPTY),
                require(lambda self, n: int(self.used) + n <= self.rows.shape[0], error=FULL),
                require(lambda self: self.limit >= 0, error=ROOM),
            ],
        )
    )
    def append(self, x: Float[Tensor, "n K"], y: Float[Tensor, "n 2"], *, scale: float = 1.0) -> int:
        """Change the object, so that a second call on it would see another state."""
        self.used += x.shape[0]
        self.rows[-x.shape[0] :] = x * scale
        return int(self.used)


def states(rng: Any) -> dict[str, Any]:
    used = rng.choice((0, 3))
    ring = Ring(torch.zeros(5, 3), torch.tensor(used))
    return {"self": ring, "x": torch.zeros(2, 3), "y": torch.zeros(2, 2)}


register_arguments(Ring.append, states)


def target_of_fields() -> Target:
    from tensorpact._classes import check_of
    from tensorpact._entry import entry_of

    check = check_of(Ring)
    entry = entry_of(check)
    assert entry is not None
    return Target(__name__, "Ring", check, entry)


def test_every_documented_error_of_a_method_has_a_witness() -> None:
    report = verify([Ring.append], examples=4)
    (entry,) = report.entries
    assert {w["slug"] for w in entry.witnesses} == {"ring-full", "ring-dtype", "no-rows", "negative-limit"}
    assert [f for _, _, f in report.findings() if f.level == "error"] == []


def test_a_field_is_set_in_the_program_of_a_witness() -> None:
    found = witness(Ring.append, "negative-limit")
    assert "self = ...  # Ring" in found.code()
    assert "self.limit = -1" in found.code()
    with pytest.raises(ValueError, match=r"^limit is -1"):
        found.call()


def test_no_call_sees_what_another_one_did() -> None:
    found = witness(Ring.append, "ring-full")
    for _ in range(3):
        with pytest.raises(ValueError, match=r"^\d+ rows do not fit behind \d of \d"):
            found.call()


def test_a_dataclass_is_a_target_of_its_own() -> None:
    target = target_of_fields()
    register_arguments(target.function, lambda rng: {"self": states(rng)["self"]})
    report = verify([f"{__name__}:Ring"], examples=2, only="negative-limit")
    assert [e.target.rpartition(":")[2] for e in report.entries] == ["Ring", "Ring.append"]
    assert [w["slug"] for w in report.entries[0].witnesses] == ["negative-limit"]
    assert "dataclasses.replace(self)" in report.entries[0].witnesses[0]["code"]
    assert report.ok


def test_classes_that_a_package_exports_are_found() -> None:
    names = {t.name for t in find(["tensorpact_kernels"]) if isinstance(t, Target)}
    cache = "CausalSelfAttentionKVCache"
    assert "CausalAttentionKVCache" not in names, "an alias is no target of its own"
    assert {cache, f"{cache}.update_and_get_attention_kv", f"{cache}.pin_current_chunk"} <= names
    one = find(["tensorpact_kernels:CausalSelfAttentionKVCache"])
    assert [t.name.rpartition(".")[2] for t in one if isinstance(t, Target)] == [
        "CausalSelfAttentionKVCache",
        "pin_current_chunk",
        "update_and_get_attention_kv",
    ]
