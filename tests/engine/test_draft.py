"""Drafts: what each kind of check becomes, and what is said of those that are not understood."""

import pathlib
import re

import pytest
from typer.testing import CliRunner

from tensorpact._draft import DraftError, draft
from tensorpact.cli import app

FILE = pathlib.Path(__file__).parents[1] / "support/drafted_functions.py"


def clauses(name: str) -> list[str]:
    """The clauses of a draft, one a line, without the names of their errors."""
    text = draft(f"{FILE}:{name}").text
    body = text[text.index("clauses=[") :].partition("\n    ],")[0]
    joined = re.sub(r"\n {8,}(?= {4}|\))", " ", body)
    lines = [line.strip().rstrip(",") for line in joined.splitlines()[1:] if not line.strip().startswith("#")]
    return [re.sub(r"(,)? ?error=\w+|,?  # line \d+", "", line) for line in lines]


def line_of(text: str) -> int:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.strip().startswith(text))


def annotations(name: str) -> str:
    text = draft(f"{FILE}:{name}").text
    return text[text.index("@contract") :]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ranks", ['rank("x")', 'rank("x", "y")']),
        (
            "sizes",
            [
                'rank("x")',
                'rank("w")',
                'same_dim("K", "x", "w")',
                "require(lambda w: not w.shape[1] % 16)",
                'shape("out")',
            ],
        ),
        ("devices", ['device("x")', 'same_device("x", "y")']),
        ("layouts", ['layout("x")', 'layout("y")']),
        ("groups", ['together("a", "b")', 'needs("c", "a")', 'exclusive("b", "c")']),
        (
            "branches",
            [
                'require(lambda x: x.ndim == 1, when=lambda mode: mode == "a")',
                'require(lambda x: x.ndim == 2, when=lambda mode: mode == "b")',
                'require(lambda mode: mode == "a" or mode == "b")',
            ],
        ),
        ("returns", ["require(lambda x: x.shape[0] <= 4, when=lambda fast: not fast)"]),
        ("last", ['same_dim("x_last", "x", "w")']),
        ("Layer.forward", ["require(lambda self, x: x.shape[-1] == self.width)"]),
    ],
)
def test_what_checks_become(name: str, expected: list[str]):
    assert clauses(name) == expected


def test_annotations_say_what_every_call_has_to_meet():
    assert 'x: Shaped[Tensor, "M K"]' in annotations("sizes")
    assert 'out: Shaped[Tensor, "M N"] | None = None' in annotations("sizes")
    assert 'x: Annotated[Shaped[Tensor, "..."], OnDevice("cpu", "cuda")]' in annotations("devices")
    assert 'x: Annotated[Shaped[Tensor, "..."], Contiguous()]' in annotations("layouts")
    assert 'x: Shaped[Tensor, "... x_last"]' in annotations("last")
    # What holds in some calls only must not stand there.
    assert 'x: Shaped[Tensor, "..."]' in annotations("branches")
    assert 'x: Shaped[Tensor, "..."]' in annotations("returns")


def test_a_type_that_the_function_asks_for_itself_gets_no_hint():
    assert "    n,\n" in annotations("scalars") or "n, flag" in annotations("scalars")


def test_what_is_not_translated_stays_with_its_reason():
    made = draft(f"{FILE}:unreadable")
    assert made.translated == 0
    assert list(made.checks.values()) == [
        "its condition calls .max() of a tensor",
        "inside a loop that is not written out",
        "its message reads the values of x",
        f"depends on y, which calls .view() of a tensor (line {line_of('y = y.view')})",
    ]
    raised = 'raise ValueError("too large")'
    assert f"# line {line_of(raised)}: {raised}" in made.text
    assert "# ^ not translated, its condition calls .max() of a tensor" in made.text


def test_an_exception_that_only_the_function_knows_is_not_imported():
    made = draft(f"{FILE}:raises_its_own")
    assert list(made.checks.values()) == [
        "raises Mistake, and Mistake is bound in the function",
        "raises Kinds.Wrong, and Kinds is bound in the function",
        "raises error, and error is bound in the function",
        None,
    ]
    assert "import Mistake" not in made.text
    assert "Kinds, " not in made.text


def test_a_whole_draft(snapshot):
    snapshot("draft", draft(f"{FILE}:attend").text)


def test_the_command(tmp_path: pathlib.Path):
    done = CliRunner().invoke(app, ["draft", f"{FILE}:ranks", "-o", str(tmp_path / "drafted.py")])
    assert done.exit_code == 0
    assert "2 of 2 checks translated" in done.output
    assert (tmp_path / "drafted.py").read_text(encoding="utf-8") == draft(f"{FILE}:ranks").text


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("nowhere", "names no function"),
        (f"{FILE}:nothing", "has no function 'nothing'; it has _ensure, _need_dense,"),
        ("no_such_module:f", "there is no module 'no_such_module'"),
        ("nowhere.py:f", "nowhere.py: No such file or directory"),
    ],
)
def test_targets_that_are_none(target: str, text: str):
    with pytest.raises(DraftError, match=re.escape(text)):
        draft(target)
    done = CliRunner().invoke(app, ["draft", target])
    assert done.exit_code == 2


def test_a_module_is_found_without_being_imported():
    made = draft("torch.nn.functional:_mha_shape_check")
    assert made.target == "torch.nn.functional:_mha_shape_check"
    assert made.checks


def test_what_a_function_changes_in_place_is_not_read_as_its_caller_gave_it():
    made = draft(f"{FILE}:changes_options")
    assert [reason for reason in made.checks.values() if reason is None] == [None, None, None]
    reasons = [reason for reason in made.checks.values() if reason is not None]
    assert [reason.partition(" in line")[0] for reason in reasons] == [
        "its condition depends on options, changed",
        "its condition depends on sizes, changed",
        "its condition depends on other, changed by fill_in",
    ]


def test_a_way_that_depends_on_what_replaces_none_is_not_taken_to_be_known():
    made = draft(f"{FILE}:chooses_a_plan")
    assert list(made.checks.values()) == [None, None, "its condition depends on plan, replaced where it is None"]
    assert "when=lambda plan: plan is not None" in made.text
