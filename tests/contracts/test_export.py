"""The exported catalogue, the checks on it, and the ids that stay."""

import importlib.resources
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tensorpact import ContractViolation, DocumentedError
from tensorpact._catalogue import explain_text, load
from tensorpact._catalogue._check import check, pattern_faults
from tensorpact._catalogue._checks import validation_code
from tensorpact._catalogue._export import export, items, records
from tensorpact._catalogue._ids import Removed, faults_of, id_faults, listed, removed_in
from tensorpact._catalogue._targets import entries
from tensorpact.cli import app
from tensorpact.testing._accept import examples
from tensorpact.testing._drafts import resolve
from tensorpact.testing._draw import Drawer
from tensorpact.testing._space import Space
from tensorpact.testing.hooks import factory_of

FIELD_TEXT = """
id repo slug errorCode errorMessage messagePattern errorType errorClass httpStatus severity filePath lineNumber
sourceCode sourceCodeStart sourceCodeEnd githubUrl documentation triggerScenarios commonSituations solutions
exampleFix handlingStrategy validationCode typeGuard tryCatchPattern preventionTips tags backgroundTag
relatedErrors entryPoint clause firingOrder analyzedSha analyzedAt schemaVersion
"""
FIELDS = FIELD_TEXT.split()
RECORDS, FORMS = records()
CATALOGUE = {r.error.slug: r for r in load()}
each = pytest.mark.parametrize("record", RECORDS, ids=lambda r: r["slug"])


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@each
def test_a_record_has_the_public_fields(record: dict[str, Any]):
    assert list(record) == FIELDS
    assert re.fullmatch("[0-9a-f]{16}", record["id"])
    assert record["schemaVersion"] == 2
    assert record["severity"] in ("error", "warning")
    for name in ("solutions", "preventionTips", "tags"):
        assert record[name]
        assert all(isinstance(item, str) and item for item in record[name])
    for name in ("documentation", "triggerScenarios", "commonSituations"):
        assert record[name].strip()
    assert "## " not in record["documentation"]


@each
def test_the_source_of_a_record_is_where_it_is_raised(record: dict[str, Any]):
    package, _, inner = record["filePath"].partition("/")
    text = importlib.resources.files(package).joinpath(inner).read_text(encoding="utf-8").splitlines(keepends=True)
    assert "".join(text[record["sourceCodeStart"] - 1 : record["sourceCodeEnd"]]) == record["sourceCode"]
    assert record["sourceCodeStart"] <= record["lineNumber"] <= record["sourceCodeEnd"]
    # The clause that raises it, or its definition where clauses take it from a set of errors.
    assert "error=" in record["sourceCode"] or f'"{record["slug"]}"' in record["sourceCode"]


def test_related_errors_are_ids_of_the_export():
    ids = {r["id"] for r in RECORDS}
    assert len(ids) == len(RECORDS)
    assert all(set(r["relatedErrors"]) <= ids - {r["id"]} and r["relatedErrors"] for r in RECORDS)


def test_public_records_keep_their_repository():
    assert {r["slug"] for r in RECORDS if r["repo"] == "sgl-project/sglang"} == {
        "cache-head-start-required",
        "head-dim-mismatch",
        "k-cache-can-only-be-none-when-only-qv-true",
        "k-cache-must-have-shape-slots-h-l-k",
        "key-value-count-mismatch",
    }


def arguments_of(violation: ContractViolation) -> dict[str, Any]:
    """What the entry point was called with: it stands in the frame of the guard."""
    trace, found = violation.__traceback__, {}
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<tensorpact guard"):
            found = dict(trace.tb_frame.f_locals)
        trace = trace.tb_next
    return found


@each
def test_the_validation_code_rejects_the_failing_example(record: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    page = CATALOGUE[record["slug"]].page
    assert page is not None
    assert (record["typeGuard"] is None) == (record["validationCode"] is None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ContractViolation) as caught:
        exec(page.example("Example that fails"), {})
    # Several entry points may raise the error; the example is of one of them.
    raised_by = caught.value.entry_point
    form = next((f for f in FORMS if raised_by.endswith("." + f["target"].partition(":")[2])), None)
    # What a backend promises inside, such as the shape that a vendor operator returns, no caller can assert.
    code = None if form is None else validation_code(form, record["slug"])
    assert form is not None or record["validationCode"] is None
    if code is not None:
        assert eval(code, {"torch": torch}, arguments_of(caught.value)) is False


GUARDED = [r for r in RECORDS if r["typeGuard"]]


def test_most_clauses_can_be_asserted_beforehand():
    # Rules of methods read their object, which no expression over arguments stands for.
    methods = {f["entryPoint"] for f in FORMS if "." in f["target"].partition(":")[2]}
    # An overlay stands for a function of another package; the default export has no form of it to read a rule from.
    own = [r for r in RECORDS if r["entryPoint"] in {f["entryPoint"] for f in FORMS}]
    # Numbers inside tensors are nothing to assert beforehand: the assertion would read them.
    numbers = {c["error"] for f in FORMS for c in f["clauses"] if c["kind"] == "values"}
    functions = [r for r in own if r["entryPoint"] not in methods and r["slug"] not in numbers]
    assert sum(r in GUARDED for r in functions) > len(functions) * 2 // 3
    assert len(GUARDED) > len(own) // 2


@pytest.mark.parametrize("name", sorted({r["entryPoint"] for r in GUARDED}))
def test_guards_accept_valid_calls(name: str):
    entry = next(found for _, found in entries() if found.contract.name == name)
    drawer = Drawer(Space(entry), factory_of(entry))
    for draft, _ in examples(drawer, seed=3, count=4):
        values = resolve(drawer.space, draft).arguments()
        for record in (r for r in GUARDED if r["entryPoint"] == name):
            scope: dict[str, Any] = {"torch": torch}
            exec(record["typeGuard"], scope)
            (guard,) = (v for k, v in scope.items() if k.startswith("avoids_"))
            assert guard(**{n: values[n] for n in guard.__code__.co_varnames[: guard.__code__.co_argcount]}), record


@pytest.mark.parametrize(
    ("slug", "code"),
    [
        ("k-and-v-together", "(k is None) == (v is None)"),
        ("append-needs-cache-seqlens", "k is None or cache_seqlens is not None"),
        (
            "has-no-effect-alone",
            "(rotary_seqlens is None or rotary_cos is not None) and (cu_seqlens_k_new is None or k is not None)",
        ),
    ],
)
def test_groups_of_arguments_are_assertions_too(slug: str, code: str):
    (record,) = (r for r in RECORDS if r["slug"] == slug)
    assert record["validationCode"] == code


def test_items_of_a_list_are_joined_lines():
    assert items("- one\n  and more\n- two\n") == ["one and more", "two"]


def test_export_as_files_of_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    result = run("catalog", "export", "--format", "json", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    index = json.loads((tmp_path / "api/errors/index.json").read_text(encoding="utf-8"))
    assert [e["id"] for e in index["errors"]] == [r["id"] for r in RECORDS]
    assert set(index["errors"][0]) == {"id", "slug", "errorMessage", "errorClass", "entryPoint"}
    one = json.loads((tmp_path / "api/errors/32a9bdda3b4426d7.json").read_text(encoding="utf-8"))
    assert one["datasetVersion"] == "1970-01-01T00:00:00Z"
    assert one["record"]["slug"] == "head-dim-mismatch"
    assert one["record"]["validationCode"] == "unified_kv.shape[-1] == kv.shape[-1]"
    names = {f.stem for f in (tmp_path / "api/contracts").iterdir()}
    assert names == {form["entryPoint"] for form in FORMS}
    before = {f: f.read_bytes() for f in tmp_path.rglob("*.json")}
    export(tmp_path, False)
    assert {f: f.read_bytes() for f in tmp_path.rglob("*.json")} == before


def test_export_as_lines(tmp_path: Path):
    assert run("catalog", "export", "--format", "jsonl", "--out", str(tmp_path / "new")).exit_code == 0
    lines = (tmp_path / "new/errors.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["record"]["id"] for line in lines] == [r["id"] for r in RECORDS]
    contracts = (tmp_path / "new/contracts.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["schema"] for line in contracts] == ["tensorpact.contract"] * len(FORMS)


def test_a_module_that_does_not_import_ends_with_2(tmp_path: Path):
    for command in (["list"], ["check"], ["export", "--out", str(tmp_path)]):
        result = run("catalog", *command, "no_such_module_here")
        assert result.exit_code == 2
        assert "no_such_module_here" in result.stderr


def test_list_prints_every_error():
    lines = run("catalog", "list").stdout.splitlines()
    assert len(lines) == len(RECORDS)
    assert "32a9bdda3b4426d7  sparse_prefill/head-dim-mismatch  RuntimeError  head_dim mismatch: " in "\n".join(lines)
    rows = [json.loads(line) for line in run("catalog", "list", "--json").stdout.splitlines()]
    assert [row["id"] for row in rows] == [r["id"] for r in RECORDS]
    assert all(row["uses"] for row in rows)


def test_the_catalogue_is_right(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_INTERPRET", "")
    result = run("catalog", "check")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{len(RECORDS)} documented errors, nothing wrong\n"


def test_a_pattern_that_takes_another_message_is_found():
    narrow = DocumentedError("narrow", ValueError, "size {N} is odd", module="m")
    wide = DocumentedError("wide", ValueError, "size {N}", module="m")
    same = DocumentedError("same", ValueError, "size {N} is odd", module="m")
    assert pattern_faults([narrow, same], [(narrow, "size 3 is odd")]) == []
    assert pattern_faults([narrow, wide], [(narrow, "size 3 is odd")]) == [
        "wide: its pattern matches a message of narrow, 'size 3 is odd'"
    ]
    assert pattern_faults([narrow], [(narrow, "size three")]) == [
        "narrow: its pattern does not match its message 'size three'"
    ]


def test_examples_that_do_not_do_what_they_say_are_found(monkeypatch: pytest.MonkeyPatch):
    record = CATALOGUE["head-dim-mismatch"]
    other = CATALOGUE["kv-dtype-mismatch"]
    assert record.page is not None
    swapped = type(record)(record.error, other.page, record.uses)
    monkeypatch.setattr("tensorpact._catalogue._check.load", lambda modules: (swapped,))
    _, faults = check()
    assert any(f.startswith("head-dim-mismatch: Example that fails: ContractRuntimeError: kv dtype") for f in faults)
    assert any(f.startswith("kv-dtype-mismatch: a page, but no error") for f in faults)
    nothing = type(record)(record.error, None, record.uses)
    monkeypatch.setattr("tensorpact._catalogue._check.load", lambda modules: (nothing,))
    assert "head-dim-mismatch: there is no page for it" in check(examples=False)[1]


LIVE = {"0" * 16: ("f", "one"), "1" * 16: ("f", "two")}
GONE = Removed("2" * 16, "three", "f", "0.2.0", "one", "It is one now.\n")


def test_ids_are_those_of_the_list():
    assert id_faults(load()) == []
    known = listed("tensorpact_contracts")
    assert known is not None
    assert known["32a9bdda3b4426d7"] == ("sparse_prefill", "head-dim-mismatch")


def test_ids_that_change_are_found():
    known = {**LIVE, GONE.id: ("f", "three")}
    assert faults_of(LIVE, known, [GONE]) == []
    assert faults_of({**LIVE, "3" * 16: ("f", "new")}, known, [GONE]) == [
        "new: its id 3333333333333333 is not in ids.txt: add the line `3333333333333333 f/new`"
    ]
    assert faults_of(LIVE, known, []) == [
        "three: no longer raised; its id 2222222222222222 needs a page f/removed/three.md"
    ]
    assert faults_of({"0" * 16: ("f", "else"), "1" * 16: ("f", "two")}, LIVE, []) == [
        "else: its id 0000000000000000 was that of f/one"
    ]
    assert faults_of({**LIVE, GONE.id: ("f", "three")}, known, [GONE]) == [
        "three: raised, although the page of three says that it is removed"
    ]
    assert faults_of(LIVE, LIVE, [GONE]) == ["three: a removed page whose id 2222222222222222 is not in ids.txt"]


REMOVED = """---
slug: three
record_id: 2222222222222222
removed_in: 0.2.0
replaced_by: one
---

It is one now.
"""


def test_the_page_of_a_removed_error_is_read(tmp_path: Path):
    folder = tmp_path / "f" / "removed"
    folder.mkdir(parents=True)
    (folder / "three.md").write_text(REMOVED, encoding="utf-8")
    assert removed_in(tmp_path) == [GONE]


@pytest.mark.parametrize("line", ["replaced_by", "slug: two", "record_id: 2", "removed_in: 0.2.0"])
def test_a_malformed_removed_page_is_refused(tmp_path: Path, line: str):
    from tensorpact import ContractDefinitionError

    folder = tmp_path / "f" / "removed"
    folder.mkdir(parents=True)
    key = line.partition(":")[0]
    text = (
        REMOVED.replace(f"{key}: ", "other: ")
        if key in ("replaced_by", "removed_in")
        else re.sub(f"{key}: .*", line, REMOVED)
    )
    (folder / "three.md").write_text(text, encoding="utf-8")
    with pytest.raises(ContractDefinitionError, match=r"three\.md"):
        removed_in(tmp_path)


def test_a_removed_error_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tensorpact._catalogue._export.removed_pages", lambda records: [GONE])
    export(tmp_path, False)
    told = json.loads((tmp_path / f"api/errors/{GONE.id}.json").read_text(encoding="utf-8"))
    assert told["removed"] == {"id": GONE.id, "slug": "three", "removedIn": "0.2.0", "replacedBy": "one"}
    index = json.loads((tmp_path / "api/errors/index.json").read_text(encoding="utf-8"))
    assert [gone["slug"] for gone in index["removed"]] == ["three"]


@pytest.mark.parametrize("query", ["three", GONE.id, f" {GONE.id.upper()}\n", f"/api/errors/{GONE.id}.json"])
def test_a_removed_error_is_explained(query: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tensorpact._catalogue._explain.removed_pages", lambda records: [GONE])
    code, text = explain_text(query)
    assert code == 0
    assert text.startswith(f"# three\n\nRecord `{GONE.id}`, not raised since version 0.2.0.\n")
    assert text.endswith("\nRaised in its place: `one`.\n\nIt is one now.\n")
    assert explain_text("thre")[0] == 1


def test_a_live_error_comes_before_a_removed_one(monkeypatch: pytest.MonkeyPatch):
    old = Removed(GONE.id, "head-dim-mismatch", "f", "0.2.0", None, "Old.\n")
    monkeypatch.setattr("tensorpact._catalogue._explain.removed_pages", lambda records: [old])
    assert explain_text("head-dim-mismatch")[1].startswith("# head-dim-mismatch\n\n`RuntimeError`")


def test_a_list_with_a_line_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tensorpact import ContractDefinitionError

    (tmp_path / "ids.txt").write_text(f"{'0' * 16} f/one\n{'0' * 16} f/two\n", encoding="utf-8")
    monkeypatch.setattr("tensorpact._catalogue._ids.folder_of", lambda package: tmp_path)
    with pytest.raises(ContractDefinitionError, match="each id once"):
        listed("p")


def test_contracts_switched_off_are_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENSORPACT", "off")
    result = run("catalog", "export", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "TENSORPACT=off" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_place_of_an_error_without_source_is_unknown():
    from tensorpact._catalogue._places import place_of

    assert place_of(DocumentedError("nowhere", ValueError, "x", module="no_such_module_here")) is None
