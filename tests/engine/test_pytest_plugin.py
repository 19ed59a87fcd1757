"""The pytest plugin, in sessions of their own: modes, packages, the report, and what fails a session."""

import json
import os
import sys
from typing import Any

import pytest

from tensorpact._observing import current as observer
from tensorpact.integrations._coverage import Function, Record, Rule

pytest_plugins = ["pytester"]

PACKAGE = """
from jaxtyping import Float
from torch import Tensor
from tensorpact import Contract, DocumentedError, contract
from tensorpact.clauses import let, rank, require, same_dim

MISMATCH = DocumentedError("head-dim-mismatch", RuntimeError, "head_dim mismatch: pool={pool.size(-1)}, q={q.size(-1)}")
ODD = DocumentedError("odd-heads", ValueError, "H is {H}")
CONTRACT = Contract("attend", clauses=[
    rank("q", "pool"), same_dim("D", "q", "pool", error=MISMATCH), let(twice=lambda H: 2 * H),
    require(lambda H: H % 2 == 0, error=ODD), require(lambda twice: twice < 100, error=ODD),
])

@contract(CONTRACT)
def attend(q: Float[Tensor, "T H D"], pool: Float[Tensor, "P D"]) -> Float[Tensor, "T H D"]:
    return q

def scale(x: Float[Tensor, "n n"], factor: float = 1.0) -> Float[Tensor, "n n"]:
    return x[:1] if factor == 0 else x * factor
"""
TESTS = """
import pytest
import torch
from tensorpact import enforcement
from tensorpact._modes import current_mode
from tensorpact.testing import raises

import attention

T = torch.zeros

def test_right():
    assert attention.attend(T(5, 2, 8), T(7, 8)).shape == (5, 2, 8)

def test_mismatch():
    for _ in range(2):
        with raises(attention.MISMATCH):
            attention.attend(T(5, 2, 8), T(7, 9))

def test_unclaimed():
    with pytest.raises(TypeError, match="float64"):
        attention.attend(T(5, 2, 8, dtype=torch.int32), T(7, 8))

@pytest.mark.parametrize("mode", ["MODE"])
def test_hooked(mode):
    assert current_mode() == mode
    with pytest.raises(ValueError, match="n is 2"):
        attention.scale(T(2, 3))
    with pytest.raises(ValueError, match="n"):
        attention.scale(T(2, 2), 0.0)
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run a session in a process of its own, without jaxtyping's plugin and with warnings as errors."""
    return pytester.runpytest_subprocess("-W", "error", "-p", "no:jaxtyping", "-p", "no:cacheprovider", *arguments)


@pytest.fixture
def package(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("TENSORPACT", raising=False)
    pytester.syspathinsert()
    pytester.makepyfile(attention=PACKAGE)
    return pytester


def write_tests(pytester: pytest.Pytester, mode: str = "compiled") -> None:
    pytester.makepyfile(test_attention=TESTS.replace("MODE", mode).replace('match="float64"', 'match="q"'))


@pytest.mark.parametrize("mode", ["compiled", "beartype"])
def test_i4_the_report(package: pytest.Pytester, mode: str) -> None:
    write_tests(package, mode)
    named = ("--tensorpact-packages=attention,nowhere", "--tensorpact-json=r.json", "--tensorpact-min-coverage=25")
    done = run(package, f"--tensorpact={mode}", *named)
    done.assert_outcomes(passed=4)
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(
        [
            f"tensorpact: {mode}, contracting attention, nowhere",
            "*= tensorpact =*",
            f"{mode}: 6 contracted calls, of 2 of 2 contracted functions",
            "attention: 2 contracts in 1 module",
            "nowhere: named, but never imported",
            "rule coverage: 1 of 4 clauses were broken by a test (25%)",
            "function            calls  refused    clauses",
            "attention.attend        4        3        1/4",
            "never broken:",
            "  attention.attend, clause 0 rank('q', 'pool')",
            "  attention.attend, clause 3 require(H) ?odd-heads?",
            "  attention.attend, clause 4 require(twice) ?odd-heads?",
        ]
    )
    report = json.loads((package.path / "r.json").read_text())
    assert (report["mode"], report["calls"], report["coverage"]) == (mode, 6, 25.0)
    assert report["packages"] == {"attention": {"attention": 2}, "nowhere": {}}
    attend = report["functions"]["attention.attend"]
    assert (attend["calls"], attend["refused"], attend["unclaimed"]) == (4, 3, 1)
    assert [r["index"] for r in attend["rules"]] == [0, 1, 3, 4]
    assert attend["rules"][1] == {
        "index": 1,
        "clause": "same_dim('D', 'q', 'pool')",
        "slug": "head-dim-mismatch",
        "broken": 2,
        "by": "test_attention.py::test_mismatch",
    }


def test_i3_workers_of_xdist_and_a_minimum_that_fails(package: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    write_tests(package)
    done = run(package, "-n2", "--tensorpact-packages=attention", "--tensorpact-min-coverage=25.5")
    done.assert_outcomes(passed=4)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(
        [
            "compiled: 6 contracted calls, of 2 of 2 contracted functions",
            "attention: 2 contracts in 1 module",
            "rule coverage: 1 of 4 clauses were broken by a test (25%)",
            "FAILED: rule coverage is 25.0%, below the minimum of 25.5%",
        ]
    )


def test_a_minimum_without_clauses_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    done = run(pytester, "--tensorpact-min-coverage=1")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["FAILED: no clause was loaded, and 1% of the clauses are to be broken"])


def test_i3_imported_before_the_plugin(package: pytest.Pytester) -> None:
    write_tests(package)
    done = run(package, "-p", "attention", "--tensorpact-packages=attention")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*tensorpact: imported before the hook, and therefore unchecked: attention; *"])


def test_i3_a_conftest_comes_after_the_hook(package: pytest.Pytester) -> None:
    write_tests(package)
    package.makeconftest("import attention")
    package.makeini("[pytest]\ntensorpact_packages = attention\n")
    done = run(package)
    done.assert_outcomes(passed=4)
    done.stdout.fnmatch_lines(["attention: 2 contracts in 1 module"])


def test_off_gives_back_bare_functions(package: pytest.Pytester) -> None:
    package.makepyfile(
        test_off="""
        import os, subprocess, sys
        import torch

        import attention

        def test_bare():
            assert not hasattr(attention.attend, "__wrapped__")
            assert attention.scale(torch.zeros(2, 3)).shape == (2, 3)
            assert os.environ["TENSORPACT"] == "off"
        """
    )
    done = run(package, "--tensorpact=off", "--tensorpact-packages=attention")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(
        [
            "off: 0 contracted calls, of 0 of 0 contracted functions",
            "attention: imported, but without a single contract",
        ]
    )


def test_what_pytest_rewrites(package: pytest.Pytester) -> None:
    """Tests inside a package keep their asserts; a package that is marked for rewriting is contracted all the same."""
    package.makepyfile(**{
        "whole/__init__": "",
        "whole/core": "def f(x: int) -> int:\n    return x\n",
        "whole/test_core": """
            import pytest
            from whole.core import f

            def test_core():
                with pytest.raises(AssertionError, match="assert 1 == 2"):
                    assert f(1) == 2
                with pytest.raises(TypeError):
                    f("1")
            """,
    })  # fmt: skip
    package.makeconftest("import pytest\npytest.register_assert_rewrite('whole')\n")
    done = run(package, "--tensorpact-packages=whole")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["whole: 1 contract in 2 modules"])


def test_nothing_is_left_behind() -> None:
    """This session runs without the plugin's options: nobody counts."""
    assert observer is None


class TestRecord:
    """Merging and edges of the figures, without a session."""

    @staticmethod
    def record(**broken: int) -> Record:
        rules = [Rule(0, "rank('q')", None, broken.get("rank", 0)), Rule(2, "require(H)", "odd", broken.get("odd", 0))]
        return Record("compiled", {"m.f": Function("m.f", 7, sum(broken.values()), 0, rules)}, ("m",), {"m": 1})

    def test_merging_adds(self) -> None:
        record = self.record(rank=1)
        other: dict[str, Any] = json.loads(json.dumps(self.record(odd=2).as_dict()))
        record.merge(other)
        assert (record.calls, record.coverage, record.modules) == (14, 100.0, {"m": 1})
        assert [r.broken for r in record.rules] == [1, 2]
        empty = Record("compiled", packages=("m",))
        empty.merge(other)
        assert empty.as_dict() == other

    def test_merging_keeps_what_only_another_process_defined(self) -> None:
        record, other = self.record(rank=1), self.record()
        other.functions["m.f"].rules[1] = Rule(2, "require(K)", "odd", 3, "test_k")
        record.merge(json.loads(json.dumps(other.as_dict())))
        assert [(r.index, r.text, r.broken) for r in record.rules][2:] == [(2, "require(K)", 3)]

    def test_a_lost_worker_is_said(self) -> None:
        record = self.record()
        record.lost = 1
        assert "worker processes that ended without handing in figures: 1" in list(record.lines())

    def test_long_clauses_are_cut(self) -> None:
        record = Record("compiled", {"m.f": Function("m.f", rules=[Rule(0, "r" * 300, "slug")])})
        assert all(len(line) <= 100 for line in record.lines())


ALIKE = """
import torch
from jaxtyping import Float
from torch import Tensor
from tensorpact import Contract, DocumentedError, contract
from tensorpact.clauses import require
from tensorpact.testing import raises

ODD = DocumentedError("odd-heads", ValueError, "H is {H}")

@contract(Contract("f", clauses=[require(lambda H: H != 3, error=ODD), require(lambda H: H != 5, error=ODD)]))
def f(x: Float[Tensor, " H"]) -> None: ...

def test_second():
    with raises(ODD):
        f(torch.zeros(5))
"""


@pytest.mark.parametrize("mode", ["compiled", "beartype"])
def test_clauses_of_one_text_are_told_apart_by_place(pytester: pytest.Pytester, mode: str) -> None:
    pytester.makepyfile(test_alike=ALIKE)
    done = run(pytester, f"--tensorpact={mode}", "--tensorpact-json=r.json")
    done.assert_outcomes(passed=1)
    rules = json.loads((pytester.path / "r.json").read_text())["functions"]["test_alike.f"]["rules"]
    assert len({r["clause"] for r in rules}) == 1
    assert [r["broken"] for r in rules] == [0, 1]


@pytest.mark.skipif(sys.platform == "win32", reason="the environment is compared as POSIX has it")
def test_the_environment_comes_back(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPACT", "beartype")
    pytester.makepyfile(run_it="""
        import os, pytest
        code = pytest.main(["-q", "--tensorpact=off", "-p", "no:cacheprovider", "test_it.py"])
        assert code == 0 and os.environ["TENSORPACT"] == "beartype", (code, os.environ["TENSORPACT"])
    """)  # fmt: skip
    pytester.makepyfile(test_it="import os\ndef test_it(): assert os.environ['TENSORPACT'] == 'off'\n")
    assert pytester.runpython("run_it.py").ret == 0
    assert os.environ["TENSORPACT"] == "beartype"
