"""The command line: exit codes, tables, JSON."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tensorpact.cli import app


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent))
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_verify_prints_a_table_and_ends_with_0():
    result = run("verify", "bad_contracts:right", "--examples", "4")
    assert result.exit_code == 0, result.output
    header = next(line for line in result.output.splitlines() if "entry point" in line)
    assert [word for word in header.split() if word.isalpha()] == [
        "entry",
        "point",
        "lint",
        "accept",
        "reject",
        "agree",
    ]
    assert any(line.split()[1:2] == ["right"] for line in result.output.splitlines())


def test_verify_prints_what_is_wrong_with_code_and_ends_with_1():
    result = run("verify", "bad_contracts:mutating", "--examples", "4")
    assert result.exit_code == 1
    assert "error bad_contracts:mutating [accept] x changed, but mutates= does not name it" in result.output
    assert "from bad_contracts import mutating" in result.output
    assert "1 wrong of 4" in result.output


def test_verify_says_why_something_is_skipped():
    result = run("verify", "bad_contracts:unknown_hint")
    assert result.exit_code == 0
    assert "lint, accept, reject, agree: skipped, bad_contracts.unknown_hint: state has the hint" in result.output


def test_json_has_stable_keys():
    result = run("verify", "bad_contracts:shadowed", "--examples", "4", "--json", "--seed", "5")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert list(report) == ["version", "ok", "seed", "examples", "entries"]
    assert (report["ok"], report["seed"], report["examples"]) == (False, 5, 4)
    (entry,) = report["entries"]
    assert list(entry) == ["target", "ok", "lint", "accept", "reject", "agree", "witnesses"]
    assert list(entry["reject"]) == ["status", "done", "note", "skipped", "findings"]
    (finding,) = entry["reject"]["findings"]
    assert list(finding) == ["level", "message", "slug", "clause", "code"]
    assert (finding["slug"], finding["clause"]) == ("width-again", 1)
    assert entry["witnesses"][0]["slug"] == "width"


def test_only():
    result = run("verify", "bad_contracts:shadowed", "--only", "width", "--json")
    assert result.exit_code == 0
    assert run("verify", "bad_contracts:shadowed", "--only", "width-again").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["verify", "json"], "json has no contracted function"),
        (["verify", "no_such_module"], "no_such_module does not import"),
        (["verify", "bad_contracts:nothing"], "bad_contracts has no nothing"),
        (["verify", "bad_contracts:scaled"], "bad_contracts:scaled has no contract"),
        (["verify", "bad_contracts:right", "--only", "widht"], "no target documents 'widht'; near: width"),
        (["source", "bad_contracts"], "names no function"),
        (["source", "bad_contracts:scaled"], "has no contract"),
    ],
)
def test_what_cannot_be_done_ends_with_2(arguments, text):
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr


def test_source_prints_the_guard():
    result = run("source", "bad_contracts:right")
    assert result.exit_code == 0
    assert result.stdout.startswith("def guarded(x, w):")


def test_contracts_switched_off_are_not_called_right():
    environment = os.environ | {"TENSORPACT": "off", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "tensorpact.cli", "verify", "bad_contracts:right"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "TENSORPACT=off" in result.stderr


def test_explain_hands_over_to_the_catalogue(monkeypatch):
    asked = []

    def explain_text(query, modules):
        asked.append((query, list(modules)))
        return (0 if query == "known text" else 1), f"# about {query}\n"

    monkeypatch.setattr("tensorpact._catalogue.explain_text", explain_text)
    assert run("explain", "known", "text", "--module", "m").output == "# about known text\n"
    assert run("explain", "other").exit_code == 1
    assert asked == [("known text", ["m"]), ("other", [])]


def test_explain_reads_a_pasted_traceback_from_stdin():
    text = 'Traceback:\n  File "x"\ntensorpact._errors.ContractRuntimeError: head_dim mismatch: unified_kv=8, kv=4\n'
    for arguments in (["explain", "-"], ["explain"]):
        result = CliRunner().invoke(app, arguments, input=text)
        assert result.exit_code == 0
        assert result.output.startswith("# head-dim-mismatch")
