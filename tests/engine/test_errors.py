"""Exceptions: class, text, attributes, pickling, and that nothing ever reads a tensor's data."""

import copy
import gc
import hashlib
import pickle
import re
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from tensorpact import (
    ArgumentInfo,
    Binding,
    Contract,
    ContractDefinitionError,
    ContractViolation,
    DocumentedError,
    contract,
    enforcement,
)
from tensorpact._errors import violation_class
from tensorpact.clauses import require, shape


class OwnError(Exception):
    """A class of a user's library."""


CLASSES = [
    ValueError, TypeError, RuntimeError, AssertionError, NotImplementedError, IndexError, KeyError, OverflowError,
    OwnError,
]  # fmt: skip
HEADS = DocumentedError("heads", AssertionError, "{names}: {H} heads, {twice!r}", {"twice": lambda H: f"{H * 2}"})


@contract(Contract("entry", clauses=[shape("k", error=HEADS)]))
def entry(q: Float[Tensor, "B H"], k: Float[Tensor, "B H"], scale: float = 0.5) -> None: ...


def caught(mode: Any = "compiled", q: Any = None, k: Any = None) -> ContractViolation:
    with enforcement(mode), pytest.raises(ContractViolation) as info:
        entry(torch.zeros(2, 3) if q is None else q, torch.zeros(2, 4) if k is None else k)
    return info.value


@pytest.mark.parametrize("documented", CLASSES)
def test_class_is_mixin_and_documented(documented: type[Exception], modes: Any) -> None:
    error = DocumentedError("slug", documented, "text of {B}")

    @contract(Contract("f", clauses=[require(lambda B: B > 9, error=error)]))
    def f(x: Float[Tensor, " B"]) -> None: ...

    raised = modes.rejects(f, torch.zeros(3))
    assert isinstance(raised, ContractViolation)
    assert isinstance(raised, documented)
    assert type(raised) is violation_class(documented)
    assert type(raised).__name__ == f"Contract{documented.__name__}"
    assert raised.args == ("text of 3",)
    assert str(raised) == "text of 3"


@pytest.mark.parametrize("documented", CLASSES)
@pytest.mark.parametrize("copied", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_round_trip(documented: type[Exception], copied: Any) -> None:
    error = violation_class(documented)("a {text}")
    error.error, error.entry_point, error.clause = HEADS, "module.entry", "shape('k')"
    error.bindings = {"H": Binding(3, "q axis 1", (("q", 1, 3),))}
    error.arguments = {"q": ArgumentInfo("q", "[B, H]", (2, 3), "torch.float32", "cpu", (3, 1), "float32[2, 3] on cpu")}
    error.add_note("note")
    again = copied(error)
    assert type(again) is type(error)
    assert again.args == error.args
    assert again.error is HEADS
    assert (again.entry_point, again.clause) == ("module.entry", "shape('k')")
    assert again.bindings == error.bindings
    assert again.arguments == error.arguments
    assert again.__notes__ == ["note"]


def test_attributes(modes: Any) -> None:
    raised = modes.rejects(entry, torch.zeros(2, 3), torch.zeros(2, 4, dtype=torch.bfloat16).expand(2, 4))
    assert str(raised) == "k: 3 heads, '6'"
    assert raised.error is HEADS
    assert raised.clause == "shape('k')"
    assert raised.entry_point == f"{__name__}.entry"
    assert raised.bindings == {
        "B": Binding(2, "q axis 0", (("q", 0, 2), ("k", 0, 2))),
        "H": Binding(3, "q axis 1", (("q", 1, 3), ("k", 1, 4))),
    }
    assert list(raised.arguments) == ["q", "k", "scale"]
    assert raised.arguments["k"] == ArgumentInfo(
        "k", "[B, H]", (2, 4), "torch.bfloat16", "cpu", (4, 1), "bfloat16[2, 4] on cpu"
    )
    assert raised.arguments["scale"].description == "0.5"


def test_pickle_finds_the_documented_error_of_its_module() -> None:
    again = pickle.loads(pickle.dumps(HEADS))
    assert again is HEADS


def test_pickle_of_a_documented_error_without_a_home() -> None:
    error = DocumentedError("homeless", ValueError, "{x}", module="no.such.module")
    again = pickle.loads(pickle.dumps(error))
    assert (again.slug, again.documented, again.template) == ("homeless", ValueError, "{x}")


@pytest.mark.parametrize("ends", ["read", "pickled"])
def test_no_tensor_is_kept_alive_by_an_error_that_was_read(ends: str) -> None:
    wrong = torch.zeros(2, 4)
    watch = weakref.ref(wrong)
    error = caught(k=wrong).with_traceback(None)
    assert error.__notes__ if ends == "read" else pickle.dumps(error)
    del wrong
    gc.collect()
    assert watch() is None
    assert error.arguments["k"].shape == (2, 4)


@pytest.mark.parametrize("mode", ["compiled", "beartype"])
def test_data_is_never_read(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    q, wrong = torch.zeros(2, 3), torch.zeros(2, 4)
    entry(q, torch.zeros(2, 3))

    def forbidden(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("data was read")

    for name in (
        "__repr__",
        "__str__",
        "__format__",
        "item",
        "tolist",
        "cpu",
        "numpy",
        "__bool__",
        "__float__",
        "__int__",
    ):
        monkeypatch.setattr(Tensor, name, forbidden)
    error = caught(mode, q, wrong)
    texts = (str(error), repr(error), *error.__notes__, repr(error.arguments), repr(error.bindings))
    assert all("data was read" not in text for text in texts)


def test_text_is_stable() -> None:
    assert len({str(caught()) for _ in range(5)}) == 1
    assert len({caught().__notes__[0] for _ in range(5)}) == 1


def test_meta_and_wrapped_tensors_can_be_described(modes: Any) -> None:
    for wrong in (
        torch.zeros(2, 4, device="meta"),
        torch.nn.Parameter(torch.zeros(2, 4)),
        torch.zeros(2, 4).to_sparse(),
    ):
        assert str(modes.rejects(entry, torch.zeros(2, 3), wrong)) == "k: 3 heads, '6'"


def test_no_cause_and_no_context() -> None:
    error = caught()
    assert error.__cause__ is None
    assert error.__context__ is None


def test_definition_errors_are_no_violations() -> None:
    assert not issubclass(ContractDefinitionError, ContractViolation)
    assert not issubclass(ContractDefinitionError, (ValueError, TypeError, RuntimeError))


class TestDocumentedError:
    """The record itself."""

    ERROR = DocumentedError(
        "head-dim", RuntimeError, "dim (K={K}): {q.size(-1):>4} of {names!r}.", module="a.sparse_prefill"
    )

    def test_derived(self) -> None:
        assert self.ERROR.family == "sparse_prefill"
        assert self.ERROR.names == {"K", "q", "names"}
        assert self.ERROR.record_id() == hashlib.sha256(b"tensorpact/sparse_prefill/head-dim").hexdigest()[:16]

    def test_pattern_matches_its_renderings_only(self) -> None:
        text = self.ERROR.render({"K": 3, "q": torch.zeros(2, 7), "names": "a, b"})
        assert text == "dim (K=3):    7 of 'a, b'."
        assert re.fullmatch(self.ERROR.pattern, text)
        assert not re.fullmatch(self.ERROR.pattern, text.replace("of", "off"))

    def test_module_is_the_defining_one(self) -> None:
        assert HEADS.module == __name__

    def test_record_id_depends_on_family_and_slug_alone(self) -> None:
        one = DocumentedError("slug", ValueError, "x", module="a.b")
        assert one.record_id() == DocumentedError("slug", TypeError, "y", module="c.b").record_id()
        assert one.record_id() != DocumentedError("slug", ValueError, "x", module="a.c").record_id()


def test_pickle_across_processes() -> None:
    """An error crosses a process boundary that has never built the contract."""
    script = "import sys, pickle; e = pickle.load(sys.stdin.buffer); print(type(e).__name__, e, e.bindings['H'].size)"
    error = caught()
    error.error = None
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(error), capture_output=True, check=True, timeout=60
    )
    assert done.stdout.decode().strip() == "ContractAssertionError k: 3 heads, '6' 3"
