"""One contract against its earlier version, from the two machine forms."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from ._compare_tensors import Found, change, tensor_changes
from ._markdown import Form, clause_text
from ._relations import compare_rules, same_rule
from ._values import BOUNDS, same_values

#: These only say when an annotation is looked at and what is raised; the annotation is compared by itself.
_CLAIMS = {"present", "rank", "dtype", "layout", "device", "shape", "same_dim"}
_POSITIONAL = {"positional_only", "positional_or_keyword"}


def compare(old: Form, new: Form) -> Iterator[Found]:
    """Kind, level and text of every difference."""
    names = renamed(old, new)
    yield from (change("reworded", f"dim {a} is called {b}") for a, b in names.items() if a != b)
    old = _with_names(old, {a: b for a, b in names.items() if a != b})
    yield from _parameters(old, new)
    if old["returns"] != new["returns"]:
        yield change("tightened", f"the return annotation was {old['returns']} and is {new['returns']}")
    yield from _statements(old, new)
    yield from _errors(old, new)
    yield from _words(old, new)


def renamed(old: Form, new: Form) -> dict[str, str]:
    """Old dim to new dim, where every axis of one is an axis of the other and no other dim is on it.

    A dim that became two, or two that became one, keep their names: that is no renaming.
    """
    pairs: set[tuple[str, str]] = set()
    later = {p["name"]: p for p in new["parameters"]}
    for p in old["parameters"]:
        q = later.get(p["name"])
        forms = (
            zip(p["tensor"]["forms"], q["tensor"]["forms"], strict=False) if q and p["tensor"] and q["tensor"] else ()
        )
        for f, g in forms:
            for a, b in zip(f["axes"], g["axes"], strict=False):
                if a["kind"] == b["kind"] and a["kind"] in ("named", "variadic") and len(f["axes"]) == len(g["axes"]):
                    pairs.add((a["dims"][0], b["dims"][0]))
    olds, news = [a for a, _ in pairs], [b for _, b in pairs]
    before, after = {d["name"] for d in old["dims"]}, {d["name"] for d in new["dims"]}
    return {
        a: b
        for a, b in pairs
        if olds.count(a) == 1 and news.count(b) == 1 and (a == b or (a not in after and b not in before))
    }


def _with_names(form: Any, names: Mapping[str, str]) -> Any:
    """A machine form in which dims have other names, in every text that speaks of dims."""
    if not names:
        return form
    pattern = re.compile(rf"(?<![\w.'\"])({'|'.join(map(re.escape, names))})\b(?!\()")

    def of(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {k: of(v, k) for k, v in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [of(v, key) for v in cast("list[Any]", value)]
        spoken = key in ("text", "shape", "dims", "dim", "axes", "reads", "name", "returns", "placeholders", *BOUNDS)
        # The shapes inside a return annotation stand in quotes.
        if key == "returns" and isinstance(value, str):
            return re.sub(r'"([^"]*)"', lambda m: f'"{pattern.sub(lambda n: names[n[1]], m[1])}"', value)
        if key == "message" and isinstance(value, str):
            return re.sub(r"\{([^}]*)\}", lambda m: "{" + pattern.sub(lambda n: names[n[1]], m[1]) + "}", value)
        return pattern.sub(lambda m: names[m[1]], value) if spoken and isinstance(value, str) else value

    return of(form, "")


def _parameters(old: Form, new: Form) -> Iterator[Found]:
    before, after = ({p["name"]: p for p in form["parameters"]} for form in (old, new))
    yield from (change("removed", f"parameter {n} is gone") for n in before if n not in after)
    for name, p in after.items():
        if name not in before:
            yield (
                change("tightened", f"parameter {name} is new and required")
                if p["required"]
                else change("added", f"optional parameter {name}")
            )
    order = [[n for n, p in f.items() if p["kind"] in _POSITIONAL] for f in (before, after)]
    kept = [[n for n in names if n in before and n in after] for names in order]
    if kept[0] != kept[1] and sorted(kept[0]) == sorted(kept[1]):
        yield change("tightened", f"positional parameters come as {', '.join(order[1])}")
    elif order[1][: len(kept[1])] != kept[1]:
        yield change("tightened", "a positional parameter stands in front of others that were there before")
    for name in (n for n in before if n in after):
        yield from _parameter(before[name], after[name])


def _parameter(p: Form, q: Form) -> Iterator[Found]:
    name = p["name"]
    if p["kind"] != q["kind"]:
        gains = q["kind"] == "positional_or_keyword"
        yield change("loosened" if gains else "tightened", f"{name} was {p['kind']} and is {q['kind']}")
    if p["required"] != q["required"]:
        yield (
            change("tightened", f"{name} must be given")
            if q["required"]
            else change("loosened", f"{name} may be left out")
        )
    elif p["default"] != q["default"]:
        yield change("tightened", f"the default of {name} was {p['default']} and is {q['default']}")
    if p["optional"] != q["optional"]:
        yield (
            change("loosened", f"{name} may be None")
            if q["optional"]
            else change("tightened", f"{name} must not be None")
        )
    if p["mutated"] != q["mutated"]:
        yield change("tightened", f"{name} is {'' if q['mutated'] else 'no longer '}written")
    if p["type"] != q["type"] and not (p["type"] is None and q["type"] is None):
        gains = q["type"] is None and q["tensor"] is None
        yield change(
            "loosened" if gains else "tightened", f"{name} was {p['type'] or 'anything'}, is {q['type'] or 'a tensor'}"
        )
    items = zip(p["items"], q["items"], strict=False)
    if [i["name"] for i in p["items"]] != [i["name"] for i in q["items"]]:
        yield change("tightened", f"{name} holds other items")
    else:
        for a, b in items:
            yield from _parameter(a, b)
    if p["tensor"] and q["tensor"]:
        yield from tensor_changes(name, p["tensor"], q["tensor"])
    elif (p["tensor"] is None) != (q["tensor"] is None) and p["type"] == q["type"]:
        free = q["tensor"] is None and not q["items"]
        yield change(
            "loosened" if free else "tightened", f"{name} is {'no longer ' if q['tensor'] is None else ''}a tensor"
        )


def _flat(form: Form) -> Iterator[tuple[Form, str | None]]:
    for clause in form["clauses"]:
        for member in clause.get("members", (clause,)):
            if member["kind"] not in _CLAIMS and member["kind"] != "let":
                yield member, clause["error"]


def _statements(old: Form, new: Form) -> Iterator[Found]:
    """Clauses that say something of their own; those that only claim are compared by their errors."""
    before, after = list(_flat(old)), list(_flat(new))
    for pair in [(c, d) for c, _ in before for d, _ in after if _same(c, d)]:
        before = _without(before, pair[0])
        after = _without(after, pair[1])
    yield from _derived(old, new)
    for clause, error in before:
        partner = next((d for d, e in after if d["kind"] == clause["kind"] and e == error and _near(clause, d)), None)
        if partner is None:
            yield change("loosened", f"no longer checked: {clause_text(clause)}")
            continue
        after = _without(after, partner)
        yield _changed(clause, partner)
    yield from (change("tightened", f"newly checked: {clause_text(clause)}") for clause, _ in after)


def _same(c: Form, d: Form) -> bool:
    alike = c["kind"] == d["kind"] and same_rule(c["when"], d["when"])
    if c["kind"] == "require" or not alike:
        return alike and same_rule(c["rule"], d["rule"])
    if c["kind"] == "values":
        return alike and c["parameters"] == d["parameters"] and same_values(c, d)
    ordered = c["kind"] in ("no_overlap", "needs")
    return (c["parameters"] == d["parameters"]) if ordered else set(c["parameters"]) == set(d["parameters"])


def _near(c: Form, d: Form) -> bool:
    if c["kind"] != "require":
        return bool(set(c["parameters"]) & set(d["parameters"]))
    return bool(set(c["rule"]["reads"]) & set(d["rule"]["reads"]))


def _without(clauses: list[tuple[Form, str | None]], gone: Form) -> list[tuple[Form, str | None]]:
    place = next((i for i, (c, _) in enumerate(clauses) if c is gone), None)
    return clauses if place is None else clauses[:place] + clauses[place + 1 :]


def _changed(c: Form, d: Form) -> Found:
    text = f"{clause_text(c)} became {clause_text(d)}"
    if not same_rule(c["when"], d["when"]):
        alike = same_rule(c["rule"], d["rule"]) if c["kind"] == "require" else c["parameters"] == d["parameters"]
        return change("loosened" if alike and c["when"] is None else "tightened", text)
    if c["kind"] == "require":
        kind = compare_rules(c["rule"], d["rule"])
        if kind == "same":
            return change("reworded", f"{text}, which no size tells apart")
        # What cannot be ordered may reject calls that passed.
        return change(kind or "tightened", text if kind else f"{text}; what that rejects cannot be told")
    fewer = set(d["parameters"]) < set(c["parameters"])
    return change("loosened" if fewer and c["kind"] not in ("together", "needs") else "tightened", text)


def _derived(old: Form, new: Form) -> Iterator[Found]:
    before, after = ({d["name"]: d["rule"] for c in f["clauses"] for d in c.get("derives", ())} for f in (old, new))
    for name in (n for n in before if n in after and not same_rule(before[n], after[n])):
        yield change("tightened", f"{name} was {before[name]['text']} and is {after[name]['text']}")
    said = {d["name"]: d["kind"] for f in (old, new) for d in f["dims"]}
    for name in (n for n in before if n not in after and said.get(n) == "derived"):
        yield change("loosened", f"{name} is no longer derived")
    for name in (n for n in after if n not in before and said.get(n) == "derived"):
        yield change("tightened", f"{name} is derived: {after[name]['text']}")


def _errors(old: Form, new: Form) -> Iterator[Found]:
    before, after = ({e["slug"]: e for e in form["errors"]} for form in (old, new))
    for slug in (s for s in before if s not in after):
        # An error goes with what it was about; where that is still checked, callers meet another one.
        level = "major" if _still_checked(slug, old, new) else "minor"
        yield ("removed", level, f"error {slug} is no longer raised")
    yield from (change("added", f"error {s}") for s in after if s not in before)
    both = [s for s in before if s in after]
    for slug in both:
        e, f = before[slug], after[slug]
        if e["class"] != f["class"]:
            yield change("tightened", f"error {slug} was a {e['class']} and is a {f['class']}")
        if e["message"] != f["message"]:
            yield change("reworded", f"the message of {slug} was {e['message']!r} and is {f['message']!r}")
        if e["id"] != f["id"]:
            yield change("removed", f"the id of {slug} was {e['id']} and is {f['id']}")
    raised = [{(c["kind"], c["text"]): c["error"] for c in f["clauses"] if c["kind"] in _CLAIMS} for f in (old, new)]
    for claim, slug in raised[0].items():
        now = raised[1].get(claim, slug)
        if now != slug and slug in after and now in before:
            level = "patch" if before[slug]["class"] == after[now]["class"] else "major"
            yield ("reworded", level, f"{claim[1]} raised {slug} and raises {now}")
    order = [s for s in after if s in before]
    if order != both:
        moved = [s for s, t in zip(both, order, strict=True) if s != t]
        classes = {before[s]["class"] for s in moved}
        text = f"of several broken checks another one raises: the order of {', '.join(moved)} changed"
        yield ("reworded", "major" if len(classes) > 1 else "patch", text)


def _still_checked(slug: str, old: Form, new: Form) -> bool:
    for clause in (c for c in old["clauses"] if c["error"] == slug):
        for member in clause.get("members", (clause,)):
            if member["kind"] in _CLAIMS or any(_same(member, c) for c, _ in _flat(new)):
                return True
    return False


def _words(old: Form, new: Form) -> Iterator[Found]:
    for key, what in (("dims", "dim"), ("parameters", "parameter")):
        before = {x["name"]: x["meaning"] for x in old[key]}
        said = [x["name"] for x in new[key] if x["name"] in before and x["meaning"] != before[x["name"]]]
        yield from (change("reworded", f"what the documentation says of {what} {n}") for n in said)
    if old["summary"] != new["summary"]:
        yield change("reworded", "the summary")
