"""The table under a message and ``tensorpact.explain``: what is shown, what is left out, and in how many columns."""

import io
import pickle
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from jaxtyping import Float, Int32
from rich.console import Console
from torch import Tensor

from tensorpact import Contract, ContractViolation, DocumentedError, contract, explain
from tensorpact.clauses import same_dim

HEADS = DocumentedError("cache-heads", ValueError, "cache <heads> differ: {k.shape[1]}")


def T(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:  # noqa: N802 - as the cases write it
    return torch.zeros(sizes, dtype=dtype)


@contract(Contract("claimed", clauses=[same_dim("H", "q", "k", error=HEADS)]))
def claimed(q: Float[Tensor, "B H"], k: Float[Tensor, "S H"]) -> None: ...


@contract
def items(q: Float[Tensor, "T D"], xs: list[Float[Tensor, "N D"]]) -> None: ...


@contract
def many(
    mixed_qkv: Float[Tensor, "B C"], initial_state: Float[Tensor, "slots HV V K"], a: Float[Tensor, "B HV K"],
    b: Float[Tensor, "B HV"], A_log: Float[Tensor, " HV"], dt_bias: Float[Tensor, "HV K"],
    out: Float[Tensor, "B 1 HV V"], indices: Int32[Tensor, " B"], d_cache: Float[Tensor, "slots HV L V"],
    k_cache: Float[Tensor, "slots H L K"], g_cache: Float[Tensor, "slots HV L K"], write_pos: Int32[Tensor, " slots"],
    force_flush: Int32[Tensor, " slots"],
) -> None: ...  # fmt: skip


def many_call(**change: Any) -> dict[str, Any]:
    i32 = torch.int32
    return {
        "mixed_qkv": T(3, 96), "initial_state": T(5, 4, 8, 16), "a": T(3, 4, 16), "b": T(3, 4), "A_log": T(4),
        "dt_bias": T(4, 16), "out": T(3, 1, 4, 8), "indices": T(3, dtype=i32), "d_cache": T(5, 4, 6, 8),
        "k_cache": T(5, 2, 6, 16), "g_cache": T(5, 4, 6, 16), "write_pos": T(5, dtype=i32),
        "force_flush": T(5, dtype=i32), **change,
    }  # fmt: skip


def caught(function: Any, *args: Any, **kwargs: Any) -> ContractViolation:
    with pytest.raises(ContractViolation) as info:
        function(*args, **kwargs)
    return info.value


def lines(error: ContractViolation) -> list[str]:
    return error.__notes__[0].splitlines()


def test_of_many_tensors_those_that_matter_are_kept(snapshot: Any) -> None:
    snapshot(
        "many-tensors", "\n".join(lines(caught(many, **many_call(k_cache=T(5, 2, 6, 15))))).replace(f"{__name__}.", "")
    )


def test_of_many_items_the_failing_one_and_its_binder_are_kept(snapshot: Any) -> None:
    xs = [T(4, 8) for _ in range(57)] + [T(8, 4)] + [T(4, 8)] * 42
    snapshot("many-items", "\n".join(lines(caught(items, T(3, 8), xs))).replace(f"{__name__}.", ""))


@pytest.mark.parametrize("name", list(many_call()))
@pytest.mark.parametrize("change", ["longer", "flat", "half", "none"])
def test_a_table_is_readable_at_100_columns(name: str, change: str) -> None:
    value = many_call()[name]
    wrong = {"longer": torch.cat([value] * 7, 0), "flat": value[None], "half": value.to(torch.complex64), "none": None}
    error = caught(many, **many_call(**{name: wrong[change]}))
    table = explain(error).table
    assert table is not None
    assert max(map(len, table.text())) <= 100
    assert any(row.mark == ">" for row in table.rows)


def test_both_sides_of_a_conflict_are_marked() -> None:
    table = explain(caught(many, **many_call(g_cache=T(5, 4, 7, 16)))).table
    assert table is not None
    marked = [(row.cells[0], c) for row in table.rows for c in row.cells[1:] if c[:1] in "=>" and c]
    assert marked == [("d_cache", "=6="), ("g_cache", ">7<")]


def test_a_tensor_that_repeats_a_dim() -> None:
    @contract
    def f(x: Float[Tensor, "N N"]) -> None: ...

    assert any(line.startswith("> x") and ">3,4<" in line for line in lines(caught(f, T(3, 4))))


def test_device_and_dtype_only_where_they_say_something() -> None:
    assert "dtype" not in lines(caught(claimed, T(2, 3), T(5, 4)))[2]
    assert "dtype" in lines(caught(claimed, T(2, 3).half(), T(5, 4)))[2]
    assert "device" in lines(caught(claimed, T(2, 3).to("meta"), T(5, 4)))[2]


def test_explanation_is_the_note_and_the_message() -> None:
    error = caught(claimed, T(2, 3), T(5, 4))
    text = str(explain(error))
    assert text.startswith("ContractValueError: cache <heads> differ: 4\nbecause k: axis 1 (H) is 4")
    assert all(line in text for line in lines(error)[:-1])


def test_explanation_survives_pickling() -> None:
    error = caught(claimed, T(2, 3), T(5, 4))
    assert str(explain(pickle.loads(pickle.dumps(error)))) == str(explain(error))


def test_explanation_with_rich() -> None:
    stream = io.StringIO()
    Console(file=stream, width=100).print(explain(caught(claimed, T(2, 3), T(5, 4))))
    shown = stream.getvalue()
    assert "cache <heads> differ: 4" in shown
    assert ">4<" in shown
    assert "smallest change: " in shown


def test_explanation_as_html() -> None:
    error = caught(claimed, T(2, 3), T(5, 4))
    shown = explain(error)._repr_html_()
    opened: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag != "br":
                opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

    Reader().feed(shown)
    assert opened == []
    assert "cache &lt;heads&gt; differ" in shown
    assert "&gt;4&lt;" in shown
    assert "http" not in shown
    assert "<script" not in shown


def test_a_documented_error_comes_with_its_page() -> None:
    from tensorpact_contracts.sparse_prefill import HEAD_DIM_MISMATCH

    by_slug = explain(HEAD_DIM_MISMATCH.slug)
    assert by_slug.found
    assert str(by_slug).startswith("# head-dim-mismatch")
    error = caught(claimed, T(2, 3), T(5, 4))
    error.error = HEAD_DIM_MISMATCH
    assert "# head-dim-mismatch" in str(explain(error))
    assert "# head-dim-mismatch" in str(explain(RuntimeError("head_dim mismatch: unified_kv=8, kv=4")))


def test_unknown_text_and_foreign_errors() -> None:
    assert not explain("no such thing at all, really").found
    assert str(explain(RuntimeError("zzz qqq"))).startswith("RuntimeError: zzz qqq")


def test_a_violation_without_a_recorded_call() -> None:
    from tensorpact._errors import violation_class

    assert "text" in str(explain(violation_class(ValueError)("text")))


def test_import_stays_cheap() -> None:
    script = (
        "import sys, tensorpact; print([m for m in sys.modules if m.startswith(('rich', 'tensorpact._catalogue'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
