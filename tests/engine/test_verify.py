"""``verify`` on right contracts, and on contracts that are wrong in one way each."""

import importlib
import pathlib
import random
import subprocess
import sys

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from tensorpact import Contract, ContractDefinitionError, DocumentedError, contract
from tensorpact._entry import entry_of
from tensorpact.clauses import let, require
from tensorpact.testing import TargetError, register_arguments, register_values, verify
from tensorpact.testing._draw import Drawer
from tensorpact.testing._search import Found, Suite
from tensorpact.testing._space import Space
from tensorpact.testing._targets import Target, find
from tensorpact.testing._verify import witness


@pytest.fixture
def bad(monkeypatch):
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent))
    return importlib.import_module("bad_contracts")


def run(function, **options):
    (entry,) = verify([function], **{"examples": 8} | options).entries
    return entry


def messages(entry, column, level="error"):
    return [f.message for f in entry.sections[column].findings if f.level == level]


def statuses(entry):
    return {name: section.status for name, section in entry.sections.items()}


@pytest.mark.parametrize("name", ["right", "guarded", "grammar"])
def test_a_right_contract(bad, name):
    entry = run(getattr(bad, name))
    assert entry.ok
    assert entry.sections["accept"].done == 8
    assert entry.sections["agree"].done > 60
    assert statuses(entry)["reject"] == "ok"


def test_every_kind_of_clause_has_a_witness(bad):
    entry = run(bad.everything)
    assert entry.ok, [f.message for s in entry.sections.values() for f in s.findings]
    assert [w["slug"] for w in entry.witnesses] == [e.slug for e in bad.EVERYTHING.errors]


def test_an_annotation_that_the_code_does_not_mean(bad):
    found = messages(run(bad.wrong_axis), "accept")
    assert "fails on arguments that the contract allows" in found[0]


def test_a_shadowed_error_names_the_clause_that_fires(bad):
    entry = run(bad.shadowed)
    (message,) = messages(entry, "reject")
    assert "(width-again) is shadowed" in message
    assert "clause 0 same_dim('D', 'x', 'w') (width)" in message
    assert [w["slug"] for w in entry.witnesses] == ["width"]


def test_a_requirement_that_is_never_false_is_dead(bad):
    (message,) = messages(run(bad.dead), "reject")
    assert "clause 0 require(N) (positive) is dead" in message


def test_a_clause_without_an_error_must_be_able_to_fire_too(bad):
    (message,) = messages(run(bad.dead_default), "lint")
    assert "clause 0 require(N) is dead" in message


def test_a_requirement_that_never_holds_leaves_nothing_to_accept(bad):
    entry = run(bad.never)
    assert not entry.ok
    assert (
        "no valid arguments found; most often in the way: clause 0 require(N) (small)" in messages(entry, "accept")[0]
    )
    assert statuses(entry)["reject"] == "skipped"


def test_a_field_that_has_no_value_when_the_error_fires(bad):
    (message,) = messages(run(bad.lost_field), "reject")
    assert "field 'rows' reads 'S', which has no value" in message


def test_a_field_that_fails(bad):
    (message,) = messages(run(bad.raising_field), "reject")
    assert "compiled mode raises ContractDefinitionError" in message


def test_a_rule_that_fails(bad):
    (message,) = messages(run(bad.raising_rule), "agree")
    assert "code of the contract fails" in message
    assert "ZeroDivisionError" in message


def test_a_result_that_is_not_the_reference(bad):
    entry = run(bad.other_reference)
    (message,) = messages(entry, "accept")
    assert message.startswith("result is 5.00e-01 off the reference")


def test_a_written_argument_is_compared_too(bad):
    (message,) = messages(run(bad.writes_wrong), "accept")
    assert message.startswith("out is 5.00e-01 off the reference")


def test_an_undeclared_change_of_an_argument(bad):
    found = messages(run(bad.mutating), "accept")
    assert found[0] == "x changed, but mutates= does not name it"


def test_a_size_that_only_the_contract_allows(bad):
    entry = run(bad.fails_on_empty)
    (message,) = messages(entry, "accept")
    assert "input.numel() == 0" in message


def test_a_guard_that_accepts_too_much(bad, monkeypatch):
    scope = bad.guarded.__globals__
    (rule,) = [n for n in scope if n.strip("_") == "rule_0"]
    monkeypatch.setitem(scope, rule, lambda *_: True)
    entry = run(bad.guarded)
    assert "compiled mode lets the call through to the body" in messages(entry, "reject")[0]


def test_a_guard_that_accepts_too_little_is_not_forgiven(bad, monkeypatch):
    scope = bad.guarded.__globals__
    (rule,) = [n for n in scope if n.strip("_") == "rule_0"]
    monkeypatch.setitem(scope, rule, lambda *_: False)
    entry = run(bad.guarded)
    assert "only the diagnosis let it pass" in messages(entry, "accept")[0]
    assert "only the diagnosis let it pass" in messages(entry, "agree")[0]


def test_modes_that_disagree(bad, monkeypatch):
    entry = bad.guarded.__tensorpact__
    monkeypatch.setattr(entry.reference, "check", lambda *_: None)
    found = run(bad.guarded)
    assert "beartype mode lets the call through to the body" in messages(found, "reject")[0]
    assert "beartype mode: accepted" in messages(found, "agree")[0]


def test_b20_an_unused_dim_is_a_warning(bad):
    entry = run(bad.lonely)
    assert entry.ok
    assert messages(entry, "lint", "warning") == [
        "dim N stands once and nothing reads it: it constrains nothing",
        "dim M stands once and nothing reads it: it constrains nothing",
    ]


def test_c9_none_where_hint_and_clause_differ(bad):
    assert messages(run(bad.required), "lint", "warning") == [
        "w is typed Optional, but a clause without a condition requires it"
    ]
    assert messages(run(bad.bare_none), "lint", "warning") == [
        "w has the default None, but its hint does not allow None"
    ]


def test_a_hint_without_known_values_is_skipped_with_a_reason(bad):
    entry = run(bad.unknown_hint)
    assert entry.ok
    assert set(statuses(entry).values()) == {"skipped"}
    assert "for which no value is known" in entry.sections["reject"].skipped


def test_the_object_of_a_method_is_drawn_or_made_by_a_factory(bad):
    entry = run("bad_contracts:Cache.append")
    assert statuses(entry) == {"lint": "warning", "accept": "ok", "reject": "ok", "agree": "ok"}
    assert "Cache(k=self_k, v=self_v)" in entry.witnesses[0]["code"]

    def factory(rng: random.Random):
        return {"self": bad.Cache(torch.zeros(4, 3), torch.zeros(4, 3)), "x": torch.zeros(2, 3)}

    register_arguments(bad.Cache.append, factory)
    entry = run("bad_contracts:Cache.append")
    assert statuses(entry) == {"lint": "warning", "accept": "ok", "reject": "ok", "agree": "ok"}
    assert [w["slug"] for w in entry.witnesses] == ["append"]


def test_registered_values_reach_the_call(bad):
    seen = set()

    def fill(arguments, rng):
        count = arguments["table"].shape[0]
        for i in range(arguments["index"].numel()):
            arguments["index"][i] = rng.randrange(count) if count else 0
        seen.update(arguments["index"].tolist())

    register_values(bad.rows, fill)
    assert statuses(run(bad.rows, examples=3))["accept"] == "ok"
    assert len(seen) > 1


def test_the_entry_points_own_reference_proves_nothing(bad):
    entry = run(bad.own_reference, examples=2)
    assert "the entry point runs its own reference and no Triton kernel: nothing was compared" in messages(
        entry, "accept", "warning"
    )


def test_a_module_whose_contract_does_not_import(tmp_path, monkeypatch):
    (tmp_path / "misspelt.py").write_text(
        "from jaxtyping import Float\nfrom torch import Tensor\n"
        "from tensorpact import Contract, contract\nfrom tensorpact.clauses import rank\n"
        "@contract(Contract('f', clauses=[rank('quary')]))\n"
        "def f(query: Float[Tensor, 'N D']) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (entry,) = verify(["misspelt"]).entries
    assert "near: query" in messages(entry, "lint")[0]
    with pytest.raises(ContractDefinitionError):
        witness("misspelt:f", "any")


def test_only_one_error(bad):
    entry = run(bad.shadowed, only="width")
    assert entry.ok
    assert statuses(entry) == {"lint": "skipped", "accept": "skipped", "reject": "ok", "agree": "skipped"}
    with pytest.raises(TargetError, match="near: width"):
        run(bad.shadowed, only="widht")


def test_the_same_seed_gives_the_same_witnesses(bad):
    first, second = run(bad.shadowed, seed=3), run(bad.shadowed, seed=3)
    assert first.as_dict() == second.as_dict()


def test_the_printed_code_repeats_the_failure(bad):
    (finding,) = run(bad.fails_on_empty).sections["accept"].findings
    script = f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n{finding.code}"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "input.numel() == 0" in ran.stderr


def test_an_entry_point_of_ours():
    # The gate verifies them all by the command line; here it is what the report says of one that has a kernel.
    entry = run("tensorpact_kernels:sparse_attn_v4_paged_decode", examples=2)
    assert entry.ok, [f.message for s in entry.sections.values() for f in s.findings]
    assert "launches interpreted" in entry.sections["accept"].note
    assert {w["slug"] for w in entry.witnesses} >= {"query-head-dim-mismatch", "softmax-scale-not-positive"}


def test_a_function_of_two_names_is_looked_at_once():
    names = [t.name for t in find(["tensorpact_kernels"]) if isinstance(t, Target)]
    assert "fused_recurrent_kda_packed_decode" in names
    assert "helion_fused_recurrent_kda_packed_decode" not in names
    assert [t.name for t in find(["tensorpact_kernels:helion_fused_recurrent_kda_packed_decode"])] == [
        "helion_fused_recurrent_kda_packed_decode"
    ]


class TestRelationsInARow:
    """No values means that the rest of the row has to come out even: two sizes change, one of them to fit the other."""

    ROW = DocumentedError("row-is-odd", ValueError, "row {C}", module="tests.verify")
    KEYS = DocumentedError("keys-do-not-divide", ValueError, "row {C}", module="tests.verify")
    NONE = DocumentedError("no-values", ValueError, "HV={HV}, V={V}", module="tests.verify")

    @pytest.mark.parametrize("seed", range(8))
    def test_a_size_is_fitted_to_another(self, seed):
        relations = [
            let(rest=lambda C, HV, V: C - HV * V),
            require(lambda rest: rest > 0 and rest % 2 == 0, error=self.ROW),
            require(lambda rest, K: K > 2 and rest // 2 % K == 0, error=self.KEYS),
            require(lambda HV, V: HV * V > 0, error=self.NONE),
        ]

        @contract(Contract("f", clauses=relations))
        def f(row: Float[Tensor, "B C"], state: Float[Tensor, "slots HV V K"]) -> None: ...

        suite = Suite(Drawer(Space(entry_of(f))), seed)
        step = suite.space.terms.steps[-1]
        found = suite.find(step, budget=0)
        assert isinstance(found, Found)
        assert found.verdict.index == step.index


def test_f14_axes_that_could_be_swapped_are_drawn_with_different_sizes():
    @contract
    def f(pool: Float[Tensor, "slots HV V K"], k: Float[Tensor, "B HV K"], v: Float[Tensor, "B HV V"]) -> None: ...

    drawer = Drawer(Space(entry_of(f)))
    for seed in range(20):
        sizes = list(drawer.draw(random.Random(seed)).dims.values())
        assert len(set(sizes)) == len(sizes)
        assert min(sizes) > 1
