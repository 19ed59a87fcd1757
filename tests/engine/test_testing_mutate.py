"""The mutation test of a contract: what it changes, what it lets stand, and that it can fail."""

import json
import math
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor
from typer.testing import CliRunner

from tensorpact import Contract, DocumentedError, contract, testing
from tensorpact._entry import entry_of
from tensorpact.clauses import (
    Clause,
    any_of,
    dtype,
    layout,
    let,
    rank,
    require,
    same_dim,
    same_dtype,
    shape,
)
from tensorpact.cli import app
from tensorpact.constraints import Contiguous, DenseInner, DenseLast, OneOf
from tensorpact.testing._mutants import mutants_of
from tensorpact.testing._weaken import weaker_rules

LEAST = 8


def documented(slug: str) -> DocumentedError:
    return DocumentedError(slug, ValueError, slug)


def attention(*clauses: Clause) -> Callable[..., Any]:
    @contract(Contract("attend", clauses=clauses))
    def attend(
        q: Annotated[Float[Tensor, "T H D"], OneOf(torch.float16, torch.bfloat16), Contiguous()],
        k: Annotated[Float[Tensor, "P D"], DenseLast()],
        index: Int[Tensor, "T P"],
        scale: float = 1.0,
    ) -> None: ...

    return attend


def changes(*clauses: Clause) -> list[tuple[int, str]]:
    entry = entry_of(attention(*clauses))
    assert entry is not None
    return [(m.clause, m.change) for m in mutants_of(entry.terms)]


def trials(function: Callable[..., Any], **options: Any) -> dict[tuple[int, str], testing.Trial]:
    (entry,) = testing.mutate([function], budget=300, **options).entries
    return {(t.mutant.clause, t.mutant.change): t for t in entry.trials}


class TestMutants:
    """What is changed."""

    def test_names_members_and_axes_go_one_at_a_time(self) -> None:
        assert changes(rank("q", "k")) == [(0, "left out"), (0, "without q"), (0, "without k")]
        assert changes(same_dim("D", "q", "k")) == [(0, "left out")]
        assert changes(any_of(rank("q"), rank("k"))) == [
            (0, "left out"),
            (0, "without rank('q')"),
            (0, "without rank('k')"),
        ]
        assert changes(any_of(rank("q", "k"), shape("index")))[2] == (0, "rank('q', 'k') without q")
        # T and H of q bind their dims: no size of them is wrong.
        assert changes(shape("k", axes="P D")) == [(0, "left out"), (0, "without the axis D")]

    def test_constraints_become_weaker(self) -> None:
        assert changes(dtype("q"))[1:] == [(0, "q: any dtype of its family")]
        assert changes(dtype("index"))[1:] == [(0, "index: any dtype")]
        assert changes(layout("q"))[1:] == [(0, "q: DenseLast(strict=False) for Contiguous()")]
        assert changes(layout("k"))[1:] == [(0, "k: without DenseLast(strict=False)")]

    def test_lets_are_left_alone(self) -> None:
        assert {at for at, _ in changes(let(half=lambda D: D // 2), require(lambda half: half > 0))} == {1}

    def test_what_contradicts_itself_is_no_mutant(self) -> None:
        @contract(Contract("f", clauses=[layout("x")]))
        def f(x: Annotated[Float[Tensor, "N D"], DenseInner(2)]) -> None: ...

        entry = entry_of(f)
        assert entry is not None
        assert [m.change for m in mutants_of(entry.terms)] == [
            "left out",
            "x: DenseInner(axes=1) for DenseInner(axes=2)",
        ]


def two_lines(N: int, D: int) -> bool:
    """Whether both are few."""
    return N < LEAST and D >= 2


def statements(N: int) -> bool:
    least = 1
    return least < N


class TestWeakerRules:
    """Bounds of a rule, moved in its source."""

    @staticmethod
    def weaker(rule: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
        return dict(weaker_rules(rule))

    def test_bounds_move_by_one(self) -> None:
        assert list(self.weaker(lambda N: N > 2)) == ["N >= 2"]
        assert list(self.weaker(lambda N: N >= 2)) == ["N >= 1"]
        assert list(self.weaker(lambda N, D: N <= 2 * D)) == ["N <= 2 * D + 1"]
        assert self.weaker(lambda N, D: N % D == 0) == {}
        assert self.weaker(lambda N: not N > 2) == {}

    def test_conditions_are_left_out(self) -> None:
        assert list(self.weaker(lambda N, D: N > D and D != 3)) == ["D != 3", "N >= D and D != 3", "N > D"]
        assert list(self.weaker(lambda N: 0 < N <= 9)) == ["0 < N", "N <= 9", "0 <= N <= 9", "0 < N <= 10"]
        assert list(self.weaker(lambda N: N > 1 or N < 0)) == ["N >= 1 or N < 0", "N > 1 or N <= 0"]

    def test_the_rule_keeps_its_names(self) -> None:
        limit = 3

        (rule,) = self.weaker(lambda N: math.isqrt(N) < limit).values()
        assert rule(8)
        assert rule(9)
        assert not rule(16)

    def test_functions_of_one_return(self) -> None:
        made = self.weaker(two_lines)
        assert list(made) == ["D >= 2", "N <= LEAST and D >= 2", "N < LEAST", "N < LEAST and D >= 1"]
        assert made["N <= LEAST and D >= 2"](8, 2)
        assert self.weaker(statements) == {}

    def test_two_on_a_line_and_none_without_source(self) -> None:
        rules = [lambda N: N > 1, lambda N: N > 2]
        assert [list(self.weaker(r)) for r in rules] == [["N >= 1"], ["N >= 2"]]
        scope: dict[str, Any] = {}
        exec("rule = lambda N: N > 1", scope)
        assert self.weaker(scope["rule"]) == {}
        assert self.weaker(bool) == {}


class TestMutate:
    """Which mutants are noticed."""

    def test_a_contract_without_idle_parts(self) -> None:
        f = attention(
            rank("q", "k", error=documented("rank")),
            dtype("q", error=documented("dtype")),
            same_dtype("q", "k", error=documented("same-dtype")),
            same_dim("D", "q", "k", error=documented("head-dim")),
            layout("q", "k", error=documented("layout")),
            shape("index", error=documented("index")),
            require(lambda T, H: T >= H, error=documented("few-tokens")),
        )
        report = testing.mutate([f])
        assert report.ok
        assert [t.as_dict() for t in report.entries[0].survivors] == []
        assert len(report.entries[0].trials) == 17
        assert report.entries[0].calls > 0

    def test_what_takes_two_changes_at_once(self) -> None:
        @contract(
            Contract(
                "strict",
                clauses=[
                    layout("x", error=documented("strict")),
                    same_dtype("y", "z", error=documented("inputs")),
                    same_dtype("x", "y", "z", error=documented("all")),
                ],
            )
        )
        def strict(
            x: Annotated[Float[Tensor, "N D"], DenseLast(strict=True)], y: Float[Tensor, " N"], z: Float[Tensor, " N"]
        ) -> None: ...

        fates = {key: trial.fate for key, trial in trials(strict).items()}
        assert fates[0, "x: DenseLast(strict=False) for DenseLast(strict=True)"] == "noticed"
        assert fates[2, "without x"] == "noticed"
        # Of y and z, each has the dtype of the other by then.
        assert [key for key, fate in fates.items() if fate == "redundant"] == [(2, "without y"), (2, "without z")]

    def test_a_clause_that_another_one_covers_is_redundant(self) -> None:
        first, again = documented("head-dim"), documented("again")
        found = trials(attention(same_dim("D", "q", "k", error=first), same_dim("D", "k", "q", error=again)))
        assert found[0, "left out"].noticed_by == "witness"
        assert (found[1, "left out"].fate, found[1, "left out"].level) == ("redundant", "error")

    def test_a_name_that_another_clause_covers_is_redundant(self) -> None:
        found = trials(attention(rank("k", error=documented("k")), rank("q", "k", error=documented("both"))))
        assert [c for c, t in found.items() if t.fate == "redundant"] == [(1, "without k")]

    def test_a_condition_that_never_decides_only_warns(self) -> None:
        report = testing.mutate([attention(require(lambda T, D: D >= 0 and T > 2, error=documented("few")))])
        levels = {t.mutant.change: (t.fate, t.level) for t in report.entries[0].trials}
        assert levels["weaker: T > 2"] == ("redundant", "warning")
        assert levels["weaker: D >= 0 and T >= 2"] == ("noticed", "ok")
        assert report.ok

    def test_a_clause_that_only_orders_only_warns(self) -> None:
        assert trials(attention(rank("q")))[0, "left out"].level in ("ok", "warning")


def call_with(f: Callable[..., Any], *, head_dim: int = 8, k_axes: int = 2) -> None:
    q = torch.zeros(3, 2, 8, dtype=torch.float16)
    f(q, torch.zeros([5] * (k_axes - 1) + [head_dim]), torch.zeros(3, 5, dtype=torch.int64))


class TestCorpus:
    """The contract as what a test suite is tested against."""

    HEAD_DIM, RANK = documented("head-dim"), documented("rank")

    def entry(self) -> Callable[..., Any]:
        return attention(rank("k", error=self.RANK), same_dim("D", "q", "k", error=self.HEAD_DIM))

    def test_what_no_test_notices_comes_with_a_call_that_would(self) -> None:
        f = self.entry()

        def test_head_dim() -> None:
            with testing.raises(self.HEAD_DIM):
                call_with(f, head_dim=9)

        found = trials(f, corpus=[test_head_dim])
        assert found[1, "left out"].noticed_by == "test_head_dim"
        rest = found[0, "left out"]
        assert (rest.fate, rest.level) == ("unnoticed", "error")
        assert rest.code is not None
        assert "k = torch" in rest.code

    def test_a_whole_corpus(self) -> None:
        f = self.entry()

        def wrong() -> None:
            for options in ({"k_axes": 3}, {"head_dim": 9}):
                with pytest.raises(ValueError, match=r"head-dim|rank"):
                    call_with(f, **options)

        report = testing.mutate([f], corpus=[wrong])
        assert report.ok
        assert report.entries[0].calls == 2

    def test_arguments_are_a_corpus_too(self) -> None:
        f = self.entry()
        q, index = torch.zeros(3, 2, 8, dtype=torch.float16), torch.zeros(3, 5, dtype=torch.int64)
        wrong = {"q": q, "k": torch.zeros(5, 9), "index": index, "scale": 1.0}
        assert trials(f, corpus=[wrong])[1, "left out"].noticed_by == "corpus"
        with pytest.raises(testing.TargetError, match="several are mutated"):
            testing.mutate([f, self.entry()], corpus=[wrong])

    def test_a_right_call_shows_nothing(self) -> None:
        f = self.entry()
        (entry,) = testing.mutate([f], corpus=[lambda: call_with(f)]).entries
        assert entry.calls == 0
        assert not entry.ok

    def test_nothing_is_left_on_the_function(self) -> None:
        f = self.entry()
        testing.mutate([f], corpus=[lambda: None])
        entry = entry_of(f)
        assert entry is not None
        assert "judge" not in vars(entry)

    def test_pages_are_a_corpus(self) -> None:
        from tensorpact_kernels import sparse_attn_v4_paged_decode

        (entry,) = testing.mutate([sparse_attn_v4_paged_decode], corpus=[], pages=True, budget=0).entries
        sources = {t.noticed_by for t in entry.trials if t.noticed_by}
        assert "page attn-sink-length" in sources
        assert all(s.startswith("page ") for s in sources)


MODULE = """
import torch
from jaxtyping import Float
from tensorpact import Contract, DocumentedError, contract
from tensorpact.clauses import require, same_dim
from torch import Tensor

WIDTH, FEW = DocumentedError("width", ValueError, "width"), DocumentedError("few", ValueError, "few")

@contract(Contract("f", clauses=[same_dim("D", "x", "w", error=WIDTH), require(lambda N: N >= 2, error=FEW)]))
def f(x: Float[Tensor, "N D"], w: Float[Tensor, "M D"]) -> None: ...
"""
TESTS = """
import pytest, torch
from {module} import f

def test_width():
    with pytest.raises(ValueError, match="width"):
        f(torch.zeros(2, 3), torch.zeros(2, 4))
"""


class TestCommand:
    """``tensorpact mutate``."""

    @pytest.fixture
    def module(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
        name = f"mutated_{request.node.name}"
        (tmp_path / f"{name}.py").write_text(MODULE)
        (tmp_path / f"test_{name}.py").write_text(TESTS.format(module=name))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.chdir(tmp_path)
        return name

    def test_searched(self, module: str) -> None:
        done = CliRunner().invoke(app, ["mutate", module])
        assert (done.exit_code, done.stdout.split()[-5:]) == (0, ["f", "3", "3", "0", "0"])

    def test_with_tests(self, module: str) -> None:
        done = CliRunner().invoke(app, ["mutate", module, "--json", "--tests", f"test_{module}.py"])
        assert done.exit_code == 1
        report = json.loads(done.stdout)
        (entry,) = report["entries"]
        assert entry["target"] == f"{module}:f"
        assert [t["noticedBy"] for t in entry["trials"]] == [f"test_{module}.py::test_width", None, None]
        assert [t["fate"] for t in entry["trials"]] == ["noticed", "unnoticed", "unnoticed"]

    def test_what_cannot_be_done(self, module: str, tmp_path: Any) -> None:
        (tmp_path / f"test_{module}.py").write_text("def test_it(): assert False")
        done = CliRunner().invoke(app, ["mutate", module, "--tests", f"test_{module}.py"])
        assert (done.exit_code, "pytest ended with exit code 1" in done.stderr) == (2, True)
        assert CliRunner().invoke(app, ["mutate", "math"]).exit_code == 2
