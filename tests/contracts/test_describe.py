"""The machine form of a contract, and the page and the picture that are made from it."""

import functools
import itertools
import json
import random
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch
from jaxtyping import Float, Int32
from torch import Tensor
from typer.testing import CliRunner

from tensorpact import Contract, contract
from tensorpact._catalogue import describe, markdown, picture
from tensorpact._catalogue._sources import rule_form, rule_place
from tensorpact._catalogue._svg import DARK, LIGHT
from tensorpact._catalogue._targets import entries
from tensorpact._entry import Entry, entry_of
from tensorpact.clauses import at_least, let, no_overlap, require, values
from tensorpact.cli import app
from tensorpact.constraints import Aligned, DenseInner, OnDevice
from tensorpact_contracts.sparse_prefill import SPARSE_PREFILL

ROOT = Path(__file__).parents[2]
ENTRIES = {name.partition(":")[2]: found for name, found in entries()}
NAMES = list(ENTRIES)
each = pytest.mark.parametrize("name", NAMES)
Form = dict[str, Any]


def entry(name: str) -> Entry:
    return ENTRIES[name]


@functools.cache
def form_of(name: str) -> Form:
    return describe(entry(name))


def rules(form: Any) -> list[Form]:
    """Every rule of a machine form, wherever it stands."""
    if isinstance(form, dict):
        own = [form] if "reads" in form else []
        return own + [r for value in form.values() for r in rules(value)]
    return [r for value in form for r in rules(value)] if isinstance(form, list) else []


@each
def test_the_form_is_plain_data_and_always_the_same(name: str):
    form = form_of(name)
    assert json.loads(json.dumps(form)) == form
    assert json.dumps(describe(entry(name))) == json.dumps(form)


@each
def test_clauses_and_errors_stand_in_firing_order(name: str):
    form, made = form_of(name), entry(name).contract
    assert [c["text"] for c in form["clauses"]] == [str(c) for c in made.clauses]
    assert [e["slug"] for e in form["errors"]] == [e.slug for e in made.errors]
    places = [c["place"] for c in form["clauses"] if c["kind"] != "let"]
    assert places == list(range(1, len(places) + 1))
    for error in form["errors"]:
        assert error["places"] == [c["place"] for c in form["clauses"] if c["error"] == error["slug"]]


@each
def test_every_rule_has_its_text(name: str):
    found = rules(form_of(name))
    assert len(found) >= sum(c.verb == "require" for c in entry(name).contract.clauses)
    assert [r for r in found if not r["text"]] == []
    for rule in found:
        compile(rule["text"], name, "eval")


@each
def test_a_rule_over_dims_says_what_it_does(name: str):
    """The text, evaluated, gives what the rule gives; so it is that rule's text and no neighbour's."""
    draw = random.Random(name)
    own = [c.rule for c in entry(name).contract.clauses if c.verb == "require"]
    dims = {d["name"] for d in form_of(name)["dims"]}
    lets = {n for c in entry(name).contract.clauses if c.verb == "let" for n, _ in c.rules if name.count(".")}
    for rule in own:
        said = rule_form(rule)
        # A let may be more than a number, such as the plan of a cache's update.
        if not set(said["reads"]) <= dims - lets:
            continue
        for _ in range(50):
            sizes = {n: draw.randint(1, 130) for n in said["reads"]}
            assert bool(eval(said["text"], {**said["constants"], **sizes})) == bool(rule(**sizes)), said


def test_what_the_prefill_contract_says():
    form = form_of("sparse_attn_v4_paged_prefill")
    dims = {d["name"]: d for d in form["dims"]}
    assert dims["D"]["boundBy"] == "q axis 2"
    assert [a["parameter"] for a in dims["D"]["axes"]] == ["q", "unified_kv", "kv"]
    parameters = {p["name"]: p for p in form["parameters"]}
    assert parameters["q"]["tensor"]["dtypes"] == ["bfloat16", "float16"]
    assert parameters["kv_indptr_prefix"]["tensor"]["forms"][0]["axes"][0]["dims"] == ["T"]
    assert parameters["q"]["meaning"] == "Queries, any strides."
    assert (parameters["return_lse"]["kind"], parameters["return_lse"]["default"]) == ("keyword_only", "False")
    assert {"parameter": "unified_kv", "parts": ["type", "dtype"]} in form["afterwards"]
    scale = next(c for c in form["clauses"] if c["error"] == "softmax-scale-not-positive")
    assert scale["rule"]["text"] == "softmax_scale > 0 and fits_float(softmax_scale)"
    assert {k: form["clauses"][-1][k] for k in ("kind", "parameters", "checks", "active", "padding", "plus")} == {
        "kind": "values",
        "parameters": ["kv_indices_extend"],
        "checks": [{"check": "less_than", "lower": None, "upper": "N"}],
        "active": {"entries": "span", "of": "kv_indptr_extend", "per": 1},
        "padding": "negative",
        "plus": None,
    }


def test_what_the_replay_contract_says():
    form = form_of("fused_recurrent_kda_replayssm_decode")
    dims = {d["name"]: d for d in form["dims"]}
    assert [(n, dims[n]["kind"]) for n in ("H", "qk", "HV")] == [("H", "derived"), ("qk", "helper"), ("HV", "axis")]
    assert dims["H"]["rule"]["text"] == "q_dim // K"
    assert dims["HV"]["boundBy"] == "initial_state axis 1"
    written = [p["name"] for p in form["parameters"] if p["mutated"]]
    assert written == ["initial_state", "d_cache", "k_cache", "g_cache", "out"]
    flush = next(p for p in form["parameters"] if p["name"] == "force_flush")
    assert (flush["optional"], flush["required"]) == (True, False)
    limit = next(c for c in form["clauses"] if c["error"] == "ring-too-long")
    assert limit["rule"]["constants"] == {"MAX_RING": 64}
    assert [f["shape"] for f in form["parameters"][1]["tensor"]["forms"]] == ["B HV K", "B HV*K"]


def test_modes_tell_what_is_looked_at_again():
    modes = {m["mode"]: m for m in form_of("fused_recurrent_kda_replayssm_decode")["modes"]}
    by_place = {c["place"]: c for c in form_of("fused_recurrent_kda_replayssm_decode")["clauses"]}
    skipped = set(by_place) - {None} - set(modes["compiled, traced"]["clauses"])
    assert {by_place[n]["kind"] for n in skipped} == {"no_overlap", "values"}
    again = {by_place[n]["error"] for n in modes["compiled, a signature met before"]["clauses"]}
    # A global, scalars and addresses are not in a signature; sizes and dtypes are.
    assert {"ring-too-long", "scale-not-finite", "out-overlaps"} <= again
    assert not again & {"k-cache-must-have-shape-slots-h-l-k", "bf16-beside-fp16", "head-config"}
    assert modes["off"]["clauses"] == []
    assert [name for name, m in modes.items() if m["returns"]] == ["beartype"]


def test_modes_tell_which_numbers_in_device_memory_are_looked_at():
    form = form_of("fused_infer_attention_varlen")
    modes = {m["mode"]: m for m in form["modes"]}
    numbers = [modes[f"numbers in device memory, {mode}"] for mode in ("off", "sync", "async")]
    said = [c["place"] for c in form["clauses"] if c["kind"] == "values" or (c["kind"] == "any_of" and c["error"])]
    assert numbers[0]["clauses"] == []
    assert numbers[1]["clauses"] == numbers[2]["clauses"] != []
    assert {c["place"] for c in form["clauses"] if c["kind"] == "values"} <= set(numbers[1]["clauses"]) <= set(said)
    assert all("on npu they are read in every call" in m["says"] for m in numbers)
    assert all("a copy on the host is looked at instead" in m["says"] for m in numbers)
    assert modes["compiled"]["says"].endswith("numbers in device memory as TENSORPACT_VALUES says")


def test_a_contract_without_clauses_on_numbers_says_nothing_of_them():
    @contract(Contract("f", clauses=[no_overlap("x", "y"), values("n", at_least(0))]))
    def f(x: Float[Tensor, " k"], y: Float[Tensor, " k"], n: int):
        """One."""

    form = describe(entry_of(f))  # type: ignore[arg-type]
    assert len(form["modes"]) == 5
    assert not any("TENSORPACT_VALUES" in m["says"] for m in form["modes"])


def about(form: Form, kind: str) -> list[list[str]]:
    return [u["about"] for u in form["unseen"] if u["kind"] == kind]


def test_what_is_called_exchangeable_passes_when_exchanged(prefill_arguments: dict[str, Any]):
    made = entry("sparse_attn_v4_paged_prefill")
    pairs = about(form_of("sparse_attn_v4_paged_prefill"), "exchanged")
    # As many entries as offsets would hide a difference.
    prefill_arguments["kv_indices_prefix"] = torch.zeros(5, dtype=torch.int32)
    # Numbers that fit each other's place, which are looked at too.
    for name in ("kv_indptr_prefix", "kv_indptr_extend", "kv_indices_extend"):
        prefill_arguments[name].zero_()
    assert ["kv_indptr_prefix", "kv_indptr_extend"] in pairs
    for one, other in pairs:
        changed = {**prefill_arguments, one: prefill_arguments[other], other: prefill_arguments[one]}
        assert made.judge((*changed.values(), False)) is None
    for one, other in itertools.combinations(list(prefill_arguments)[:8], 2):
        changed = {**prefill_arguments, one: prefill_arguments[other], other: prefill_arguments[one]}
        if made.judge((*changed.values(), False)) is None:
            assert [one, other] in pairs, "the example does not tell them apart"


def test_what_is_called_unseen_passes(prefill_arguments: dict[str, Any]):
    made, form = entry("sparse_attn_v4_paged_prefill"), form_of("sparse_attn_v4_paged_prefill")
    numbers = ["kv_indices_extend", "kv_indices_prefix", "kv_indptr_extend", "kv_indptr_prefix"]
    assert about(form, "contents") == [numbers]
    assert about(form_of("fused_recurrent_kda_replayssm_decode"), "contents")[0] == ["force_flush"]
    assert about(form, "size") == []
    square = {**prefill_arguments, "unified_kv": torch.zeros(16, 16, dtype=torch.bfloat16).t()}
    assert "unified_kv" in about(form, "order")[0]
    assert made.judge((*square.values(), False)) is None


def test_packed_columns_and_memory_are_named():
    form = form_of("fused_recurrent_kda_replayssm_decode")
    assert about(form, "packed") == [["mixed_qkv"]]
    # Every written tensor is held apart from every other argument, so that no pair is left to name.
    assert not any(about(form, "memory"))


def _positive(n: int) -> bool:
    return n > 0


def _steps(n: int) -> bool:
    half = n // 2
    return half > LIMIT


LIMIT = 3
TWO = (lambda n: n > LIMIT, lambda n: n < LIMIT)


def test_rules_on_one_line_are_told_apart():
    assert [rule_form(rule)["text"] for rule in TWO] == ["n > LIMIT", "n < LIMIT"]
    assert rule_form(TWO[0])["constants"] == {"LIMIT": 3}


def test_a_function_is_its_expression_or_else_its_call():
    assert rule_form(_positive)["text"] == "n > 0"
    said = rule_form(_steps)
    assert said["text"] == "_steps(n)"
    assert said["constants"] == {"LIMIT": 3}
    assert list(said["helpers"]) == ["_steps"]


def test_a_closure_shows_its_value():
    most = 7
    assert rule_form(lambda n: n <= most)["constants"] == {"most": 7}


def test_a_rule_without_source_has_no_text():
    scope: dict[str, Any] = {}
    exec("rule = lambda n: n > 1", scope)
    assert rule_form(scope["rule"]) == {"reads": ["n"], "text": None, "constants": {}, "helpers": {}}
    assert rule_place(scope["rule"]) is None


def test_a_change_of_a_helper_shows(tmp_path: Path):
    def digest(body: str) -> str:
        file = tmp_path / f"{len(body)}.py"
        file.write_text(f"def helper(n):\n    # why\n    return {body}\n\nrule = lambda n: helper(n)\n")
        scope: dict[str, Any] = {"__name__": "m"}
        exec(compile(file.read_text(), str(file), "exec"), scope)
        return rule_form(scope["rule"])["helpers"]["helper"]

    assert digest("n > 1") != digest("n > 22")
    assert digest("n > 1") == digest("(n > 1)")


def test_constraints_containers_and_methods():
    @contract
    def step(caches: dict[str, Float[Tensor, "slots K"]], *xs: Int32[Tensor, " n"], flag: bool = True) -> None:
        """Step.

        Args:
            caches: Pools.
            flag: Whether.
        """

    form = describe(entry_of(step))  # type: ignore[arg-type]
    caches, xs, flag = form["parameters"]
    assert [i["name"] for i in caches["items"]] == ["caches keys", "caches[]"]
    assert (caches["meaning"], flag["meaning"]) == ("Pools.", "Whether.")
    assert xs["kind"] == "var_positional"
    text = markdown(form)
    assert "*xs" in text
    assert "`caches[]`" in text
    assert "caches[]" in picture(form)


def test_layout_device_and_alignment_are_said():
    from typing import Annotated

    @contract(Contract("f", clauses=[no_overlap("x", "y")]))
    def f(
        x: Annotated[Float[Tensor, "n k"], DenseInner(2), Aligned(16), OnDevice("cuda", "cpu")], y: Float[Tensor, " n"]
    ):
        """One."""

    form = describe(entry_of(f))  # type: ignore[arg-type]
    tensor = form["parameters"][0]["tensor"]
    assert (tensor["layout"], tensor["device"]) == (["DenseInner(2)", "Aligned(16)"], ["cpu", "cuda"])
    traced = form["modes"][2]
    assert traced["clauses"] == []
    assert "alignment of x" in traced["says"]


def documented_keys() -> set[str]:
    text = (ROOT / "docs/describe.md").read_text(encoding="utf-8")
    return set(re.findall(r"`(\w+)`", text))


@each
def test_every_key_is_documented(name: str):
    known = documented_keys()

    def keys(form: Any) -> set[str]:
        if isinstance(form, dict):
            inner = {k for key, v in form.items() if key not in ("constants", "helpers") for k in keys(v)}
            return set(form) | inner
        return {k for v in form for k in keys(v)} if isinstance(form, list) else set()

    assert keys(form_of(name)) - known == set()


def test_every_documented_key_of_the_tables_is_there():
    text = (ROOT / "docs/describe.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE)
    documented = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    produced = "\n".join(json.dumps(form_of(name)) for name in NAMES)
    assert len(documented) > 40
    assert [key for key in sorted(documented) if f'"{key}":' not in produced] == []


@each
def test_the_page_names_everything(name: str):
    form = form_of(name)
    text = markdown(form)
    for part in [f"`{p['name']}`" for p in form["parameters"]] + [f"[`{e['slug']}`]" for e in form["errors"]]:
        assert part in text, part
    for row in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in row.splitlines()}
        assert len(widths) == 1, row


SVG = "{http://www.w3.org/2000/svg}"


@each
def test_the_picture_is_whole(name: str):
    form = form_of(name)
    text = picture(form)
    root = ET.fromstring(text)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    shown = [t.text for t in root.iter(f"{SVG}text")]
    assert {p["name"] for p in form["parameters"] if p["tensor"]} <= set(shown)
    for node in root.iter(f"{SVG}rect"):
        if node.attrib["class"] != "page":
            x, y, w, h = (float(node.attrib[k]) for k in ("x", "y", "width", "height"))
            assert 0 <= x <= x + w <= width
            assert 0 <= y <= y + h <= height
    for line in root.iter(f"{SVG}text"):
        assert 0 <= float(line.attrib["x"]) <= width
        assert 0 <= float(line.attrib["y"]) <= height
    assert "href" not in text
    assert "url(" not in text
    assert "prefers-color-scheme:dark" in text


@each
def test_boxes_of_the_picture_do_not_meet(name: str):
    root = ET.fromstring(picture(form_of(name)))
    boxes = []
    for node in root.iter(f"{SVG}rect"):
        if node.attrib["class"] not in ("page", "none"):
            x, y, w, h = (float(node.attrib[k]) for k in ("x", "y", "width", "height"))
            boxes.append((x, y, x + w, y + h))
    slack = 0.2
    for (a, b, c, d), (e, f, g, h) in itertools.combinations(boxes, 2):
        assert c <= e + slack or g <= a + slack or d <= f + slack or h <= b + slack


@each
def test_equal_dims_have_one_colour_and_different_ones_another(name: str):
    root = ET.fromstring(picture(form_of(name)))
    items = list(root)
    dims = {d["name"] for d in form_of(name)["dims"]}
    colours: dict[str, set[str]] = {}
    for before, node in itertools.pairwise(items):
        if node.tag == f"{SVG}text" and node.text in dims and before.tag == f"{SVG}rect":
            colours.setdefault(node.text, set()).add(before.attrib["class"].split()[0])
    assert bool(colours) == bool(dims)
    assert all(len(found) == 1 for found in colours.values()), colours
    used = [next(iter(found)) for found in colours.values() if found != {"plain"}]
    assert len(used) == len(set(used))
    assert used or not dims


def test_the_picture_joins_what_a_relation_reads():
    root = ET.fromstring(picture(form_of("fused_recurrent_kda_replayssm_decode")))
    edges = [p for p in root.iter(f"{SVG}path") if p.attrib["class"].startswith("edge")]
    # HV*K 2 · rows 1 · a.numel 3 · dt_bias 2 · qk 3 · qk>0 1 · q_dim 1 · K 1 · q_dim%K 2 · H 2 · HV%H 2 · L 1 + 1 ·
    # HV,V 2 · scale 1 · lower_bound 1
    assert len(edges) == 26


def test_a_fixed_scheme_has_one_ground():
    form = form_of("sparse_attn_v4_paged_decode")
    assert DARK in picture(form, "dark")
    assert LIGHT not in picture(form, "dark")
    assert "prefers" not in picture(form, "light")


def test_text_of_a_picture_is_escaped():
    @contract(Contract("f", dims={"n": 'a < b & "c"'}, clauses=[let(m=lambda n: n * 2), require(lambda m, n: n < m)]))
    def f(x: Float[Tensor, " n"]) -> None:
        """One."""

    root = ET.fromstring(picture(describe(entry_of(f))))  # type: ignore[arg-type]
    assert 'a < b & "c"' in [t.text for t in root.iter(f"{SVG}text")]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_the_command_prints_each_form(tmp_path: Path):
    target = "tensorpact_kernels:sparse_attn_v4_paged_prefill"
    as_json = run("describe", target, "--json")
    assert as_json.exit_code == 0
    form = json.loads(as_json.stdout)
    assert form == describe(entry("sparse_attn_v4_paged_prefill"), target)
    assert run("describe", target, "--markdown").stdout == markdown(form)
    assert run("describe", target, "--svg", "-").stdout == picture(form)
    file = tmp_path / "contract.svg"
    assert run("describe", target, "--svg", str(file)).stdout == ""
    assert file.read_text(encoding="utf-8") == picture(form)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["tensorpact_kernels"], "names no function"),
        (["tensorpact_kernels:backend"], "has no backend"),
        (["tensorpact_kernels:sparse_attn_v4_paged_prefill", "--json", "--markdown"], "at a time"),
        (["tensorpact_kernels:sparse_attn_v4_paged_prefill", "--svg", "/nowhere/x.svg"], "No such file"),
    ],
)
def test_what_cannot_be_described_ends_with_2(arguments: list[str], text: str):
    result = run("describe", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr


def test_the_name_of_a_contract_is_not_that_of_its_module():
    assert form_of("sparse_attn_v4_paged_prefill")["family"] == SPARSE_PREFILL.family
