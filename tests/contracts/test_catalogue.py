"""Finding and explaining documented errors: slug, id, message, traceback, fragment, near miss."""

import itertools
import math
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tensorpact
from tensorpact import Contract, ContractViolation, DocumentedError, contract
from tensorpact._catalogue import explain_text, find, load, record_id
from tensorpact._errors import violation_class
from tensorpact.clauses import let, require
from tensorpact_contracts import sparse_prefill as documented

Call = Callable[..., Any]
RECORDS = load()
FLOAT8 = torch.float8_e4m3fn
PUBLIC = "32a9bdda3b4426d7"
MESSAGE = "head_dim mismatch: unified_kv=128, kv=64"
each = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.error.slug)


def slugs(query: str) -> list[str]:
    return [match.record.error.slug for match in find(query, RECORDS)]


class Tensor(SimpleNamespace):
    """Stands for any argument of a template: it has every attribute that one reads."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)

    def size(self, axis: int) -> int:
        return self.shape[axis % self.ndim]

    def __getattr__(self, name: str) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        return 7


class Anything(dict[str, Any]):
    """A namespace in which every name of a template has a value that looks like one."""

    def __init__(self, error: DocumentedError, number: int) -> None:
        tensor = Tensor(dtype=(torch.float32, FLOAT8)[number], shape=((3, 1, 16), (640, 9))[number], device="cuda:1")
        names = ("kv_indptr_prefix", "q, kv, attn_sink")[number]
        values: dict[str, Any] = {
            "name": names.split(",")[0],
            "names": names,
            "softmax_scale": (float("nan"), -1)[number],
            "a_shape": tensor.shape,
        }
        for name in error.names:
            is_tensor = f"{name}." in error.template or (name[0].islower() and name not in error.fields)
            values.setdefault(name, tensor if is_tensor else 7 + number)
        super().__init__(values)


def renderings(error: DocumentedError) -> list[str]:
    return [error.render(Anything(error, number)) for number in (0, 1)]


def test_the_default_catalogue_is_that_of_the_contracts():
    errors = [v for v in vars(documented).values() if isinstance(v, DocumentedError)]
    assert {record.error for record in RECORDS} >= set(errors)
    assert len({record.id for record in RECORDS}) == len(RECORDS)


@each
def test_found_by_slug_and_by_id(record: Any):
    for query in (record.error.slug, record.id, f" {record.id.upper()}\n"):
        (match,) = find(query, RECORDS)
        assert match.record is record
        assert match.exact


def test_the_public_id_replaces_the_own_one():
    assert record_id(documented.HEAD_DIM_MISMATCH) == PUBLIC
    assert slugs(PUBLIC) == ["head-dim-mismatch"]
    assert slugs(documented.HEAD_DIM_MISMATCH.record_id()) == []


@each
def test_found_by_its_messages_and_by_no_other(record: Any):
    for text in renderings(record.error):
        for query in (text, f"ValueError: {text}", f"ERROR 12:03 worker 3] {text}", f"RuntimeError({text!r})"):
            matches = find(query, RECORDS)
            assert {m.record.error.template for m in matches} == {record.error.template}
            assert record in [m.record for m in matches]


def test_patterns_match_only_their_own_renderings():
    for one, other in itertools.permutations((record.error for record in RECORDS), 2):
        matched = [text for text in renderings(other) if re.fullmatch(one.pattern, text)]
        assert not matched or one.template == other.template, (one.slug, matched)


def test_found_by_the_documented_text_with_its_values_left_out():
    assert slugs("D= must be divisible by GROUP_SIZE=") == ["head-dim-not-divisible-by-group-size"]
    assert slugs(documented.HEAD_DIM_MISMATCH.template) == ["head-dim-mismatch"]


def violation(prefill: Call) -> ContractViolation:
    half = torch.bfloat16
    with pytest.raises(ContractViolation) as caught:
        prefill(unified_kv=torch.zeros(8, 128, dtype=half), kv=torch.zeros(3, 64, dtype=half))
    return caught.value


def test_found_in_a_traceback(prefill: Call):
    (match,) = find("".join(traceback.format_exception(violation(prefill))), RECORDS)
    assert match.record.error is documented.HEAD_DIM_MISMATCH
    assert match.values == (("unified_kv.size(-1)", "128"), ("kv.size(-1)", "64"))


@pytest.mark.parametrize(
    "line",
    [
        f"tensorpact._errors.ContractRuntimeError: {MESSAGE}",
        f"E       tensorpact._errors.ContractRuntimeError: {MESSAGE}",
        f"  | RuntimeError: {MESSAGE}",
        f"\x1b[1m\x1b[31mRuntimeError\x1b[0m: {MESSAGE}\x1b[0m",
        f'RuntimeError("{MESSAGE}")',
        f"Traceback (most recent call last):\n  File …\nRuntimeError: {MESSAGE}\nbecause kv: D is 64\n",
    ],
)
def test_found_in_lines_as_they_are_printed(line: str):
    (match,) = find(line, RECORDS)
    assert match.record.error is documented.HEAD_DIM_MISMATCH
    assert match.values[1][1] == "64"


def test_an_exception_that_no_contract_raised_is_explained_by_its_text():
    found = tensorpact.explain(RuntimeError(MESSAGE))
    assert found.found
    assert found.message == f"RuntimeError: {MESSAGE}"
    assert "<h1>head-dim-mismatch</h1>" in found._repr_html_()
    assert not tensorpact.explain(RuntimeError("CUDA error: an illegal memory access")).found


def test_a_leading_placeholder_does_not_take_the_class_name_with_it():
    (match,) = find("ContractValueError: kv_indptr must hold T + 1 = 4 offsets for the 3 query tokens of q", RECORDS)
    assert dict(match.values)["name"] == "kv_indptr"


def test_the_tail_of_another_message_is_not_taken_for_one():
    assert slugs("x: unified_kv dtype mismatch: kv=torch.float32, q=torch.bfloat16") == ["unified-kv-dtype-mismatch"]


def test_of_chained_errors_the_last_comes_first():
    text = f"RuntimeError: {MESSAGE}\n\nDuring handling …\n\nRuntimeError: kv_scales must be fp32, got torch.int8\n"
    assert slugs(text) == ["kv-scales-dtype", "head-dim-mismatch"]
    code, shown = explain_text(text)
    assert code == 0
    assert shown.startswith("# kv-scales-dtype\n")
    assert "Also found in this text:\n\n- `head-dim-mismatch`" in shown


def test_found_by_the_note_alone():
    assert slugs("bound: T=3\nexplained by: tensorpact explain index-dtype") == ["index-dtype"]
    assert slugs(f"/api/errors/{PUBLIC}.json") == ["head-dim-mismatch"]


LATE = {
    "found by the asynchronous check of call 17, which was let through": "Call 17 had the number in device memory",
    "found by the asynchronous check in run 3 of the launch captured as call 2": "Run 3 of the launch that was",
    "found in the kernel of call 17, which masked it": "The kernel of call 17 met the number",
    "found in the kernel captured as call 4, which masked it": "The kernel of the launch captured as call 4 met",
}


@pytest.mark.parametrize("note", LATE)
def test_the_note_of_a_late_error_is_explained(note: str):
    code, shown = explain_text(f"some traceback\n{note}\nthat call was made here:")
    assert code == 0
    assert shown.startswith(f"# A note of a late error\n\n```text\n{note}\n```\n\n{LATE[note]}")
    assert 'value_checks("async", stacks=True)' in shown
    code, both = explain_text(f"RuntimeError: {MESSAGE}\n{note}\n")
    assert code == 0
    assert both.startswith("# head-dim-mismatch\n")
    assert both.endswith(shown)


def test_a_late_error_is_explained_with_its_note():
    error = violation_class(ValueError)("a number")
    note = "found by the asynchronous check of call 17, which was let through"
    for text in ("another note", note):
        error.add_note(text)
    assert note not in str(tensorpact.explain(error))
    error.call_number = 17
    assert tensorpact.explain(error).reason.splitlines()[1:] == [note]


@pytest.mark.parametrize(
    ("query", "slug"),
    [
        ("head-dim-mismach", "head-dim-mismatch"),
        ("head dim mismatch", "head-dim-mismatch"),
        ("attn_sink_length", "attn-sink-length"),
        ("sink for all 128 heads on every rank", "attn-sink-length"),
        ("requires CUDA tensors", "requires-cuda-or-hip-tensors"),
    ],
)
def test_a_near_miss_is_a_guess(query: str, slug: str):
    matches = find(query, RECORDS)
    assert slug in [match.record.error.slug for match in matches]
    assert not any(match.exact for match in matches)
    code, shown = explain_text(query)
    assert code == 1
    assert f"- `{slug}`" in shown


@pytest.mark.parametrize("query", ["", "  \n", "zzz", "0123456789abcdef"])
def test_nonsense_finds_nothing(query: str):
    assert find(query, RECORDS) == []
    assert explain_text(query)[0] == 1


def test_a_part_of_one_message_is_enough():
    code, shown = explain_text("one logit for each of the")
    assert code == 0
    assert shown.startswith("# attn-sink-length\n")


def test_a_part_of_two_messages_lists_both():
    code, shown = explain_text("head_dim mismatch")
    assert code == 1
    assert shown.count("\n- ") == 2


def test_the_explanation_is_complete():
    code, shown = explain_text(MESSAGE)
    assert code == 0
    for part in (
        "# head-dim-mismatch\n",
        f"`RuntimeError`, record `{PUBLIC}`, error\n",
        f"```text\n{documented.HEAD_DIM_MISMATCH.template}\n```",
        "- `kv.size(-1)` is `64`",
        "- `sparse_attn_v4_paged_prefill`, check 5 of 18 in firing order: `same_dim('D', 'unified_kv', 'kv')`",
        "## What it means\n",
        "## How to prevent it\n",
        "See also: `query-head-dim-mismatch`, ",
    ):
        assert part in shown, part


def test_every_clause_that_raises_an_error_is_named():
    shown = explain_text("indptr-length")[1]
    assert [c in shown for c in ("'kv_indptr')", "'kv_indptr_prefix')", "'kv_indptr_extend')")] == [True] * 3


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = SimpleNamespace(__name__="two_errors")
    one, two = (DocumentedError(f"{n}-is-odd", ValueError, "size {N} is odd", module="two_errors") for n in ("m", "n"))
    made.CONTRACT = Contract(
        "f", clauses=[let(M=lambda N: N + 1), require(lambda N: True, error=one), require(lambda N: True, error=two)]
    )
    made.UNUSED = DocumentedError("never", KeyError, "never `raised`", module="two_errors")
    monkeypatch.setitem(sys.modules, "two_errors", made)
    return made


def test_errors_of_one_text_are_all_explained(module: Any):
    code, shown = explain_text("size 3 is odd", ["two_errors"])
    assert code == 0
    assert ("# m-is-odd\n" in shown, "# n-is-odd\n" in shown) == (True, True)
    assert "check 1 of 2" in shown
    assert "There is no page for this error." in shown


def test_an_error_that_no_clause_raises_comes_last(module: Any):
    records = load(["two_errors"])
    assert [(record.error.slug, len(record.uses)) for record in records] == [
        ("m-is-odd", 1),
        ("n-is-odd", 1),
        ("never", 0),
    ]


def test_methods_are_found(module: Any):
    class Cache:
        @contract(module.CONTRACT)
        def update(self, N: int) -> int:
            return N

        @staticmethod
        @contract(module.CONTRACT)
        def read(N: int) -> int:
            return N

    del module.CONTRACT
    module.Cache = Cache
    assert [record.error.slug for record in load(["two_errors"])] == ["m-is-odd", "n-is-odd", "never"]


def test_a_module_that_does_not_import_is_said():
    code, shown = explain_text("x", ["no_such_module_here"])
    assert code == 1
    assert "no_such_module_here" in shown


def test_the_catalogue_is_there_when_contracts_are_off():
    script = "from tensorpact._catalogue import explain_text\nraise SystemExit(explain_text('index-dtype')[0])"
    done = subprocess.run([sys.executable, "-c", script], env={**_environment(), "TENSORPACT": "off"}, check=False)
    assert done.returncode == 0


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def test_the_engine_does_not_load_it_by_itself():
    script = "import sys, tensorpact\nraise SystemExit('tensorpact._catalogue' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], env=_environment(), check=False).returncode == 0
    assert tensorpact.__all__
