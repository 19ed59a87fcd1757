"""Hints written as text or late: inside other hints, generic functions and aliases, and what newer Pythons add."""

import sys
import types
from typing import Annotated, Any, Literal, Optional, TypeVar, Union

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import TypeAliasType

from tensorpact import ContractDefinitionError, contract
from tensorpact._hints import evaluate_hint, holds_text
from tensorpact.constraints import DenseLast

T = torch.zeros
Item = TypeVar("Item")
Vector = TypeAliasType("Vector", Float[Tensor, " n"])  # type: ignore[valid-type]
Pair = TypeAliasType("Pair", tuple[Item, Item], type_params=(Item,))  # type: ignore[valid-type]
NEEDS_312 = pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax of PEP 695 is that of Python 3.12")
NEEDS_314 = pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated late from Python 3.14 on")


def module(source: str) -> types.ModuleType:
    """A module of its own, with what an annotated module imports."""
    made = types.ModuleType("annotation_text_sample")
    sys.modules[made.__name__] = made
    head = "import torch\nfrom torch import Tensor\nfrom jaxtyping import Float, Int\nfrom tensorpact import contract\n"
    exec(compile(head + source, "<annotation text>", "exec"), made.__dict__)
    return made


class TestC6:
    """Text inside a hint is a hint like any other."""

    @pytest.mark.parametrize(
        "hint",
        [
            list["Float[Tensor, ' n']"],  # type: ignore[misc]
            list["Vector"],
            Optional[list["Vector"]],  # noqa: UP045 - `|` does not take a text
            Union["Vector", list["Vector"]],
            "list['Vector']",
            list[Annotated["Vector", DenseLast()]],
        ],
        ids=str,
    )
    def test_c6_items(self, hint: Any, modes: Any) -> None:
        def f(xs: Any, y: Float[Tensor, " n"]) -> None: ...

        f.__annotations__["xs"] = hint
        f = contract(f)
        modes.accepts(f, [T(3), T(3)], T(3))
        assert str(modes.rejects(f, [T(3), T(4)], T(3))).startswith("xs[1]: axis 0 (n) is 4, but n is 3 (xs[0] axis 0)")

    def test_c6_mappings_and_tuples(self, modes: Any) -> None:
        @contract
        def f(xs: dict[str, tuple["Float[Tensor, ' n']", int]]) -> None: ...

        modes.accepts(f, {"a": (T(3), 1), "b": (T(3), 2)})
        assert str(modes.rejects(f, {"a": (T(3), 1), "b": (T(4), 2)})).startswith("xs['b'][0]: axis 0 (n) is 4")

    def test_c6_names_of_the_function_around(self, modes: Any) -> None:
        Local = Float[Tensor, " n"]

        @contract
        def f(xs: list["Local"]) -> None: ...

        modes.accepts(f, [T(3)])
        modes.rejects(f, [T(3), T(4)])

    def test_c6_what_does_not_exist_yet(self, modes: Any) -> None:
        sample = module(
            "@contract\ndef f(xs: list['Later']) -> None: ...\nLater = Float[Tensor, ' n']\n"
            "@contract\ndef g(xs: list['Never']) -> None: ...\n"
        )
        modes.accepts(sample.f, [T(3)])
        modes.rejects(sample.f, [T(3), T(4)])
        for _ in range(2):
            with pytest.raises(
                ContractDefinitionError, match=r"the annotation of xs, list\['Never'\], fails: NameError"
            ):
                sample.g([])

    def test_c6_what_is_no_hint_is_left_alone(self, modes: Any) -> None:
        @contract
        def f(kind: Literal["Nowhere", "a"], x: Annotated[Float[Tensor, " n"], "Nowhere"]) -> None: ...

        modes.accepts(f, "Nowhere", T(3))
        modes.rejects(f, "else", T(3))
        assert not holds_text(Literal["a"])
        assert evaluate_hint(list[int], {}, {}) == list[int]


class TestAliases:
    """Type aliases as objects, with and without parameters."""

    def test_plain(self, modes: Any) -> None:
        @contract
        def f(x: Vector, y: Vector | None = None) -> None: ...

        modes.accepts(f, T(3), T(3))
        modes.rejects(f, T(3), T(4))

    def test_generic(self, modes: Any) -> None:
        @contract
        def f(xs: Pair[Float[Tensor, " n"]], ys: Pair[Vector] | None = None) -> None: ...

        modes.accepts(f, (T(3), T(3)), (T(3), T(3)))
        assert str(modes.rejects(f, (T(3), T(4)))).startswith("xs[1]: axis 0 (n) is 4")
        assert str(modes.rejects(f, (T(3), T(3)), (T(3), T(5)))).startswith("ys[1]: axis 0 (n) is 5")


class TestPep695:
    """Generic functions, classes and aliases in the syntax of Python 3.12."""

    @NEEDS_312
    def test_functions(self, modes: Any) -> None:
        sample = module(
            "type Vector = Float[Tensor, 'n']\ntype Pair[A] = tuple[A, A]\n"
            "@contract\ndef f[X: (Float[Tensor, 'n'], Int[Tensor, 'n'])](x: X, y: Pair[Vector]) -> X: return x\n"
            "@contract\ndef g[X: Vector](x: 'X', ys: 'list[X]') -> None: ...\n"
        )
        modes.accepts(sample.f, T(3), (T(3), T(3)))
        modes.rejects(sample.f, T(3), (T(3), T(4)))
        modes.accepts(sample.g, T(3), [T(3)])
        modes.rejects(sample.g, T(3), [T(4)])
        assert [p.__name__ for p in sample.g.__type_params__] == ["X"]

    @NEEDS_312
    def test_classes(self, modes: Any) -> None:
        sample = module(
            "class Some[X: Float[Tensor, 'n']]:\n    @contract\n    def f(self, x: 'X', y: X) -> None: ...\n"
        )
        modes.accepts(sample.Some().f, T(3), T(3))
        modes.rejects(sample.Some().f, T(3), T(4))

    def test_what_carries_them_before(self, modes: Any) -> None:
        def f(x: "X", ys: "list[X]") -> None: ...  # type: ignore[name-defined]  # noqa: F821

        f.__type_params__ = (TypeVar("X", bound=Float[Tensor, " n"]),)  # type: ignore[attr-defined]
        f = contract(f)
        modes.accepts(f, T(3), [T(3)])
        modes.rejects(f, T(3), [T(4)])


class TestPep649:
    """Annotations that are evaluated when somebody asks."""

    @NEEDS_314
    def test_a_name_that_comes_later(self, modes: Any) -> None:
        sample = module(
            "@contract\ndef f(xs: list[Later], y: Later) -> None: ...\nLater = Float[Tensor, ' n']\n"
            "@contract\ndef g(x: Never) -> None: ...\n"
        )
        modes.accepts(sample.f, [T(3)], T(3))
        modes.rejects(sample.f, [T(3)], T(4))
        with pytest.raises(ContractDefinitionError, match="Never"):
            sample.g(T(3))


@pytest.mark.parametrize("text", ["Int[Tensor, ' n']", "Nowhere", "1 +"])
def test_a_text_that_is_wrong_disables_no_other_hint(text: str, modes: Any) -> None:
    """Case C4: the function with the wrong hint fails loudly, the one beside it is checked."""

    def wrong(x: Float[Tensor, " n"], y: Any) -> None: ...

    @contract
    def right(x: Int[Tensor, " n"], y: Float[Tensor, " n"]) -> None: ...

    wrong.__annotations__["y"] = list[text]  # type: ignore[valid-type]
    if text == "1 +":
        with pytest.raises(ContractDefinitionError, match="SyntaxError"):
            contract(wrong)
    elif text == "Nowhere":
        with pytest.raises(ContractDefinitionError, match="NameError"):
            contract(wrong)(T(3), [])
    else:
        modes.rejects(contract(wrong), T(3), [T(3).long(), T(4).long()])
    modes.rejects(right, T(3).long(), T(4))
