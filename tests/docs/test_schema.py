"""The published schema of the machine form: every contract fits it, and it lists every key that there is."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorpact._catalogue import SCHEMA, SCHEMA_VERSION, describe
from tensorpact._catalogue._targets import entries

FILE = Path(__file__).parents[2] / f"docs/schema/contract-{SCHEMA_VERSION}.json"
PUBLISHED: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
FORMS = {target: describe(entry, target) for target, entry in entries()}
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}


def faults(value: Any, schema: dict[str, Any], where: str = "$") -> Iterator[str]:
    """What does not fit: the part of JSON Schema that this schema uses, and no key that it does not list."""
    if "$ref" in schema:
        yield from faults(value, PUBLISHED["$defs"][schema["$ref"].rpartition("/")[2]], where)
        return
    if "oneOf" in schema:
        tried = [list(faults(value, one, where)) for one in schema["oneOf"]]
        if sum(not found for found in tried) != 1:
            yield f"{where}: fits {sum(not found for found in tried)} of {len(tried)} forms: {tried}"
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    given = schema.get("type", [])
    types = tuple(TYPES[name] for name in ([given] if isinstance(given, str) else given))
    if types and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
        yield f"{where}: {value!r} is no {given}"
        return
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{where}: {value!r} does not match"
    if isinstance(value, int) and value < schema.get("minimum", value):
        yield f"{where}: {value} is too small"
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from faults(item, schema.get("items", {}), f"{where}[{place}]")
    if isinstance(value, dict):
        yield from (f"{where}: {key} is missing" for key in schema.get("required", ()) if key not in value)
        for key, item in value.items():
            known = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if known is None and "properties" in schema:
                yield f"{where}: {key} is not listed"
            yield from faults(item, known or {}, f"{where}.{key}")


@pytest.mark.parametrize("target", FORMS)
def test_a_contract_fits_the_schema(target: str):
    assert list(faults(json.loads(json.dumps(FORMS[target])), PUBLISHED)) == []


def test_the_schema_is_that_of_this_version():
    assert PUBLISHED["properties"]["schema"] == {"const": SCHEMA}
    assert PUBLISHED["properties"]["schemaVersion"] == {"const": SCHEMA_VERSION}


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("schemaVersion",), 2, "$.schemaVersion: 2 is not 1"),
        (("dims", 0, "kind"), "axes", "'axes' is none of"),
        (("parameters", 0, "mutated"), None, "None is no boolean"),
        (("errors", 0, "id"), "12", "'12' does not match"),
        (("clauses", 0, "place"), 0, "0 is too small"),
        (("clauses", 0, "colour"), "red", "colour is not listed"),
    ],
)
def test_what_does_not_fit_is_seen(path: tuple[Any, ...], value: Any, says: str):
    form = json.loads(json.dumps(FORMS["tensorpact_kernels:sparse_attn_v4_paged_prefill"]))
    inner = form
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert any(says in fault for fault in faults(form, PUBLISHED))


def test_a_missing_key_is_seen():
    form = {**FORMS["tensorpact_kernels:sparse_attn_v4_paged_prefill"]}
    del form["unseen"]
    assert list(faults(form, PUBLISHED)) == ["$: unseen is missing"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("checks", 0, "lower"), [0]),
        (("checks", 0, "upper"), True),
        (("checks", 0, "check"), None),
        (("active",), "kv_indptr_prefix"),
        (("active",), {"entries": "slots", "of": "kv_indptr_prefix", "per": 1}),
        (("padding",), "positive"),
        (("plus",), 1.5),
        (("plus",), [{"step": "kv_indptr_prefix"}]),
    ],
)
def test_a_clause_on_values_that_does_not_fit_is_seen(path: tuple[Any, ...], value: Any):
    form = json.loads(json.dumps(FORMS["tensorpact_kernels:sparse_attn_v4_paged_prefill"]))
    inner = next(c for c in form["clauses"] if c["kind"] == "values")
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert list(faults(form, PUBLISHED)) != []
