"""Real edits of contracts, each with what it does to a caller."""

import copy
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tensorpact_contracts
from tensorpact._catalogue import describe
from tensorpact._catalogue._diff import Change, NotAContractError, diff, read_forms, verdict
from tensorpact._catalogue._relations import compare_rules
from tensorpact._entry import entry_of
from tensorpact.cli import app
from tensorpact_kernels.replayssm import entry as replayssm_entry
from tensorpact_kernels.sparse_prefill import entry as prefill_entry

Edit = tuple[str, str]
Forms = dict[str, dict[str, Any]]
ENTRIES = {"sparse_prefill": prefill_entry, "replayssm": replayssm_entry}


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Forms]:
    """The contracts of a family after edits of its source, contract and entry point alike."""
    made: list[Path] = []

    def load(name: str, text: str, edits: tuple[Edit, ...], used: set[Edit]) -> Any:
        for old, new in edits:
            if old in text:
                used.add((old, new))
                text = text.replace(old, new)
        folder = tmp_path / str(len(made))
        folder.mkdir()
        file = folder / f"{name}.py"
        made.append(file)
        file.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    def build(family: str, *edits: Edit) -> Forms:
        used: set[Edit] = set()
        folder = Path(tensorpact_contracts.__path__[0])
        text = (folder / f"{family}.py").read_text(encoding="utf-8").replace("from ._", "from tensorpact_contracts._")
        load(family, text, edits, used)
        source = Path(ENTRIES[family].__file__ or "")
        text = source.read_text(encoding="utf-8").replace(f"tensorpact_contracts.{family}", family)
        module = load(
            f"{family}_entry", text.replace("from .naive", f"from tensorpact_kernels.{family}.naive"), edits, used
        )
        assert used == set(edits), "an edit that edits nothing"
        entries = [e for v in vars(module).values() if (e := entry_of(v)) is not None]
        return {e.contract.name: describe(e) for e in entries}

    return build


PREFILL = "sparse_attn_v4_paged_prefill"
SINK_CLAUSE = '        shape("attn_sink", error=SINK_LENGTH),\n'
INDPTR_CLAUSE = '        shape("kv_indptr_prefix", error=INDPTR_LENGTH),\n'
SINK = 'attn_sink: Float[Tensor, " H"],\n    softmax_scale: float,\n    *,'
EDITS: dict[str, tuple[str, tuple[Edit, ...], str, str, str]] = {
    "nothing": ("sparse_prefill", (), "none", "", ""),
    "a dtype more": (
        "sparse_prefill",
        (
            (
                "HALF = OneOf(torch.bfloat16, torch.float16)",
                "HALF = OneOf(torch.bfloat16, torch.float16, torch.float32)",
            ),
        ),
        "minor",
        "loosened",
        "dtype of q: also float32",
    ),
    "a dtype less": (
        "sparse_prefill",
        (("HALF = OneOf(torch.bfloat16, torch.float16)", "HALF = OneOf(torch.bfloat16)"),),
        "major",
        "tightened",
        "dtype of q: no float16",
    ),
    "a message": (
        "sparse_prefill",
        (("head_dim mismatch: unified_kv=", "head dims differ: unified_kv="),),
        "patch",
        "reworded",
        "the message of head-dim-mismatch was",
    ),
    "a class": (
        "sparse_prefill",
        (('"rank-of-q-or-pool",\n    ValueError', '"rank-of-q-or-pool",\n    RuntimeError'),),
        "major",
        "tightened",
        "error rank-of-q-or-pool was a ValueError and is a RuntimeError",
    ),
    "a new name of a dim": (
        "sparse_prefill",
        (
            ('"P": "rows', '"pool": "rows'),
            ('"P D"', '"pool D"'),
            ('"P D//64"', '"pool D//64"'),
            ("({P}, ", "({pool}, "),
            ('"kv_indptr_prefix", "P")', '"kv_indptr_prefix", "pool")'),
            ('within(0, "P")', 'within(0, "pool")'),
        ),
        "patch",
        "reworded",
        "dim P is called pool",
    ),
    "a dim that is two": (
        "sparse_prefill",
        (
            (SINK, SINK.replace('" H"', '" HS"')),
            ('"NE": "entries', '"HS": "heads of the sink",\n        "NE": "entries'),
        ),
        "major",
        "tightened",
        "axis 0 of attn_sink was H and is HS",
    ),
    "a free axis": (
        "sparse_prefill",
        ((SINK, SINK.replace('" H"', '" _"')),),
        "minor",
        "loosened",
        "axis 0 of attn_sink was H and is _",
    ),
    "an optional parameter": (
        "sparse_prefill",
        (("return_lse: bool = False,\n", "return_lse: bool = False,\n    block: int | None = None,\n"),),
        "minor",
        "added",
        "optional parameter block",
    ),
    "a required parameter": (
        "sparse_prefill",
        (("return_lse: bool = False,\n", "return_lse: bool = False,\n    block: int,\n"),),
        "major",
        "tightened",
        "parameter block is new and required",
    ),
    "a layout": (
        "sparse_prefill",
        (
            ('    kv: Float[Tensor, "N D"],', '    kv: Annotated[Float[Tensor, "N D"], DenseLast()],'),
            ("import OneOf", "import DenseLast, OneOf"),
        ),
        "major",
        "tightened",
        "kv must be DenseLast",
    ),
    "a weaker layout": (
        "replayssm",
        (("DENSE = DenseLast(strict=True)", "DENSE = DenseLast()"),),
        "minor",
        "loosened",
        "mixed_qkv need not be DenseLast(strict=True)",
    ),
    "a statement less": (
        "sparse_prefill",
        (('        same_dtype("q", "kv", error=KV_DTYPE),\n', ""),),
        "minor",
        "loosened",
        "no longer checked: one dtype: q, kv",
    ),
    "a larger limit": (
        "replayssm",
        (("L <= MAX_RING,", "L <= 2 * MAX_RING,"),),
        "minor",
        "loosened",
        "L <= MAX_RING, MAX_RING = 64 became L <= 2 * MAX_RING",
    ),
    "a smaller limit": (
        "replayssm",
        (("L <= MAX_RING,", "L <= MAX_RING // 2,"),),
        "major",
        "tightened",
        "L <= MAX_RING, MAX_RING = 64 became L <= MAX_RING // 2",
    ),
    "a relation in other words": (
        "replayssm",
        (("lambda L: L >= 1,", "lambda L: not L < 1,"),),
        "patch",
        "reworded",
        "which no size tells apart",
    ),
    "a rule that cannot be tried": (
        "sparse_prefill",
        (("softmax_scale > 0 and", "softmax_scale >= 0 and"),),
        "major",
        "tightened",
        "softmax_scale > 0 and fits_float(softmax_scale) became softmax_scale >= 0 and fits_float(softmax_scale)",
    ),
    "another derivation": (
        "replayssm",
        (("lambda qk: qk // 2)", "lambda qk: qk // 3)"),),
        "major",
        "tightened",
        "q_dim was qk // 2 and is qk // 3",
    ),
    "another order": (
        "sparse_prefill",
        ((SINK_CLAUSE + INDPTR_CLAUSE, INDPTR_CLAUSE + SINK_CLAUSE),),
        "patch",
        "reworded",
        "the order of attn-sink-length, indptr-length changed",
    ),
    "a documented error that becomes a default one": (
        "sparse_prefill",
        (('same_dim("D", "unified_kv", "kv", error=HEAD_DIM_MISMATCH)', 'same_dim("D", "unified_kv", "kv")'),),
        "major",
        "removed",
        "error head-dim-mismatch is no longer raised",
    ),
    "a default": (
        "replayssm",
        (("use_qk_l2norm_in_kernel: bool = False", "use_qk_l2norm_in_kernel: bool = True"),),
        "major",
        "tightened",
        "the default of use_qk_l2norm_in_kernel was False and is True",
    ),
    "words": (
        "sparse_prefill",
        (("query tokens in this forward", "query tokens of this step"),),
        "patch",
        "reworded",
        "what the documentation says of dim T",
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_seen_for_what_it_is(edit: str, edited: Callable[..., Forms]):
    family, edits, level, kind, text = EDITS[edit]
    old, new = edited(family), edited(family, *edits)
    changes = diff(old, new)
    assert verdict(changes) == level, changes
    if kind:
        assert any(c.kind == kind and text in c.text for c in changes), changes
    if edit in ("a new name of a dim", "a larger limit", "a dtype more", "words", "another order"):
        assert {c.kind for c in changes} == {kind}, changes


def test_an_edit_undone_is_the_opposite(edited: Callable[..., Forms]):
    family, edits, *_ = EDITS["a larger limit"]
    old, new = edited(family), edited(family, *edits)
    assert (verdict(diff(old, new)), verdict(diff(new, old))) == ("minor", "major")


def test_entry_points_that_come_and_go(edited: Callable[..., Forms]):
    forms = edited("sparse_prefill")
    fewer = {PREFILL: forms[PREFILL]}
    assert diff(forms, fewer) == [Change("sparse_attn_v4_paged_decode", "removed", "major", "the entry point is gone")]
    assert verdict(diff(fewer, forms)) == "minor"


def test_errors_that_come_and_go_keep_their_ids(edited: Callable[..., Forms]):
    forms = edited("sparse_prefill")
    changed = copy.deepcopy(forms)
    changed[PREFILL]["errors"][0]["id"] = "0" * 16
    (change,) = diff(forms, changed)
    assert (change.kind, change.level) == ("removed", "major")


def rule(text: str, *reads: str, **constants: int) -> dict[str, Any]:
    return {"reads": list(reads), "text": text, "constants": constants, "helpers": {}}


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (rule("D % G == 0", "D", G=64), rule("D % G == 0", "D", G=32), "loosened"),
        (rule("D % G == 0", "D", G=32), rule("D % G == 0", "D", G=64), "tightened"),
        (rule("D % 64 == 0", "D"), rule("D % 48 == 0", "D"), None),
        (rule("L <= M", "L", M=2000), rule("L <= M", "L", M=2001), "loosened"),
        (rule("HV % H == 0", "H", "HV"), rule("H > 0 and HV % H == 0", "H", "HV"), "same"),
        (rule("HV % H == 0", "H", "HV"), rule("HV == H", "H", "HV"), None),
        (rule("0 < H <= 8", "H"), rule("H in (1, 2)", "H"), None),
        (rule("x.ndim == 2", "x"), rule("x.ndim >= 2", "x"), None),
        (rule("__import__('os')", "x"), rule("x > 0", "x"), None),
    ],
)
def test_relations_are_tried_on_sizes(old: dict[str, Any], new: dict[str, Any], kind: str | None):
    assert compare_rules(old, new) == kind


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["catalog", "diff", *arguments])


def test_the_command(tmp_path: Path, edited: Callable[..., Forms]):
    old, new, same = tmp_path / "old.json", tmp_path / "new.json", tmp_path / "contracts.jsonl"
    old.write_text(json.dumps(edited("sparse_prefill")[PREFILL]), encoding="utf-8")
    same.write_text(old.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    new.write_text(json.dumps(edited("sparse_prefill", *EDITS["a dtype less"][1])[PREFILL]), encoding="utf-8")
    result = run(str(old), str(new))
    assert result.exit_code == 1
    assert result.stdout == f"{PREFILL}: tightened (major): dtype of q: no float16\nverdict: major\n"
    assert run(str(old), str(new), "--allow", "major").exit_code == 0
    back = run(str(new), str(old))
    assert (back.exit_code, back.stdout.splitlines()[-1]) == (0, "verdict: minor")
    assert run(str(new), str(old), "--allow", "patch").exit_code == 1
    told = json.loads(run(str(old), str(new), "--json").stdout)
    assert (told["verdict"], told["changes"][0]["kind"]) == ("major", "tightened")
    assert run(str(old), str(same), "--allow", "none").stdout == "verdict: none\n"
    assert run(str(old), str(tmp_path), "--allow", "none").exit_code == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no JSON"),
        ("[]", "not the machine form"),
        ('{"schema": "x"}', "schema is 'x'"),
        ('{"schema": "tensorpact.contract", "schemaVersion": 9}', "schemaVersion 9"),
    ],
)
def test_what_is_no_contract_ends_with_2(tmp_path: Path, text: str, says: str):
    file = tmp_path / "old.json"
    file.write_text(text, encoding="utf-8")
    result = run(str(file), str(file))
    assert result.exit_code == 2
    assert says in result.stderr
    assert run(str(tmp_path / "none.json"), str(file)).exit_code == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotAContractError, match="no contract is there"):
        read_forms(tmp_path / "empty")
