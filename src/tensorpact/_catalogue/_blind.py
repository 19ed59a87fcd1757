"""What a contract cannot see, read off the contract itself."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tensorpact._annotations import EMPTY, Parameter
from tensorpact._dims import DimKind
from tensorpact._guard.memory import reads_only_attributes
from tensorpact._terms import Terms, flat
from tensorpact.clauses import AnyOf, Clause, Let, NoOverlap, Require, Rule, lambda_parameters


def unseen(terms: Terms) -> list[dict[str, Any]]:
    """What a call can get wrong without breaking the contract; ``about`` names the parameters or dims."""
    return [
        {"kind": kind, "about": list(about), "text": text}
        for kind, about, text in (
            *_contents(terms),
            *_exchanged(terms),
            *_orders(terms),
            *_packed(terms),
            *_free(terms),
            *_scalars(terms),
            *_memory(terms),
        )
    ]


#: Tensors of these are indices, offsets, cursors or flags: what goes wrong in them is their numbers.
_INTEGERS = {
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
}
_GROUPS = {"no_overlap", "together", "needs", "exclusive"}
_EQUALITIES = {"same_dtype", "same_device"}
_Found = Iterator[tuple[str, Iterable[str], str]]


def _rules(terms: Terms) -> list[Rule]:
    found: list[Rule] = []
    for clause in (m for c in terms.contract.clauses for m in (c, *(flat(c) if isinstance(c, AnyOf) else ()))):
        found += [clause.when] if clause.when is not None else []
        found += [clause.rule] if isinstance(clause, Require) else []
        found += [rule for _, rule in clause.rules] if isinstance(clause, Let) else []
    return found


def _dtypes(p: Parameter) -> tuple[torch.dtype, ...]:
    return () if p.tensor is None else p.tensor.dtypes() or ()


def _contents(terms: Terms) -> _Found:
    names = [p.name for p in terms.tensors if set(_dtypes(p)) <= _INTEGERS and _dtypes(p)]
    read = {n for n in names if any(not reads_only_attributes(r, {n}) for r in _rules(terms))}
    read |= {n for _, clause in terms.values() for n in clause.names if n in names}
    unread = [n for n in names if n not in read]
    if unread:
        text = f"The numbers in {_listed(unread)}: an index, offset or cursor out of range passes."
        yield "contents", unread, text
    if read:
        text = f"Of the numbers in {_listed(sorted(read, key=names.index))} only what a clause reads, where it can."
        yield "contents", sorted(read), text


def _uses(terms: Terms) -> Counter[str]:
    """How often a dim is said: by axes, by expressions and by rules."""
    said: Counter[str] = Counter()
    for p in (*terms.tensors, *terms.templates.values()):
        for form in p.tensor.forms if p.tensor is not None else ():
            said.update(name for dim in form.dims for name in dim.names)
    for rule in _rules(terms):
        said.update(lambda_parameters(rule))
    said.update(terms.contract.tied)
    said.update(terms.lets)
    return said


def _exchanged(terms: Terms) -> _Found:
    """Parameters that could take each other's argument: the same annotation, but for dims that nothing else says."""
    uses = _uses(terms)
    groups: dict[Any, list[str]] = {}
    for p in terms.tensors:
        if p.tensor is None or p.is_field or p.optional:
            continue
        shape = tuple(
            tuple("•" if d.kind is DimKind.NAMED and uses[d.name] == 1 else d.text for d in f.dims)
            for f in p.tensor.forms
        )
        allowed = p.tensor.dtypes()
        key = (shape, None if allowed is None else frozenset(allowed), frozenset(map(repr, p.tensor.constraints)))
        groups.setdefault(key, []).append(p.name)
    for names in groups.values():
        if len(names) > 1 and not _told_apart(names, terms):
            both = "each other's arguments" if len(names) == 2 else "one another's arguments"
            fits = ", where their numbers fit" if any(set(c.names) & set(names) for _, c in terms.values()) else ""
            yield "exchanged", names, f"{_listed(names)} have one annotation: with {both} the call passes{fits}."


def _told_apart(names: list[str], terms: Terms) -> bool:
    """Whether a rule reads some of several parameters but not all, so that an exchange might show."""
    for rule in _rules(terms):
        read = set(lambda_parameters(rule)) & set(names)
        if read and read != set(names):
            return True
    if any(_alone(c, names) for clause in terms.contract.clauses for c in flat(clause)):
        return True
    return any(bool(some := group & set(names)) and some != set(names) for group in _equal(terms))


def _alone(clause: Clause, names: list[str]) -> bool:
    """Whether a clause adds a statement about some of several parameters but not all; plain equalities left out."""
    adds = clause.verb in _GROUPS or (clause.verb in _EQUALITIES and clause.when is not None)
    some = set(clause.names) & set(names)
    return adds and bool(some) and some != set(names)


def _equal(terms: Terms) -> list[set[str]]:
    """Parameters whose dtypes, and those whose devices, are equal in every call: equalities that meet are one."""
    groups: list[tuple[str, set[str]]] = []
    for clause in (c for outer in terms.contract.clauses if outer.when is None for c in flat(outer)):
        if clause.verb in _EQUALITIES and clause.when is None:
            meets = [g for g in groups if g[0] == clause.verb and g[1] & set(clause.names)]
            groups = [g for g in groups if g not in meets]
            groups.append((clause.verb, set(clause.names).union(*(g[1] for g in meets))))
    return [names for _, names in groups]


def _orders(terms: Terms) -> _Found:
    shown: dict[str, str] = {}
    for p in terms.tensors:
        for form in p.tensor.forms if p.tensor is not None else ():
            if len({d.name for d in form.dims if d.kind is DimKind.NAMED}) > 1:
                shown.setdefault(p.name, f"`{p.name}` [{', '.join(form.text.split())}]")
    if shown:
        text = f"Axes in another order, where their sizes agree: {', '.join(shown.values())}."
        yield "order", shown, text


def _packed(terms: Terms) -> _Found:
    """Dims that stand on one axis and enter only what is derived from them: their inner order is not seen."""
    for clause in terms.contract.clauses:
        for name, rule in clause.rules if isinstance(clause, Let) else ():
            for read in lambda_parameters(rule):
                axes = terms.bare.get(read, [])
                others = [r for r in _rules(terms) if read in lambda_parameters(r)]
                if len(axes) == 1 and len(others) == 1:
                    owner = axes[0].parameter.name
                    text = f"The order inside axis `{read}` of `{owner}`: only its size enters, through `{name}`."
                    yield "packed", [owner], text


def _free(terms: Terms) -> _Found:
    uses = _uses(terms)
    bounds = {n for _, clause in terms.values() for n in clause.others()}
    dims = [n for n, axes in terms.bare.items() if len(axes) == 1 and uses[n] == 1 and n not in bounds]
    if dims:
        text = f"The sizes {_listed(dims)}: each stands on one axis and nothing compares it."
        yield "size", dims, text


def _scalars(terms: Terms) -> _Found:
    read = {n for rule in _rules(terms) for n in lambda_parameters(rule)} | set(terms.contract.tied)
    names = [p.name for p in terms.signature.parameters if _is_scalar(p) and p.name not in read]
    if names:
        yield "value", names, f"The values of {_listed(names)}: anything of the annotated type passes."


def _is_scalar(p: Parameter) -> bool:
    return p.tensor is None and not p.nested and p.other is not EMPTY and p.name != "self"


def _memory(terms: Terms) -> _Found:
    found = (c.names for clause in terms.contract.clauses for c in flat(clause) if isinstance(c, NoOverlap))
    statements = [names for names in found if len(names) > 1]
    if statements:
        yield "memory", (), "Shared memory while tracing: addresses are not known then."
    names = [p.name for p in terms.tensors if not p.is_field]
    loose: dict[tuple[str, ...], list[str]] = {}
    for written in (n for n in names if n in terms.contract.mutates):
        apart = {n for first, *rest in statements for n in (first, *rest) if written == first}
        apart |= {first for first, *rest in statements if written in rest}
        others = tuple(n for n in names if n not in (written, *apart))
        loose.setdefault(others, []).append(written)
    for others, writers in loose.items():
        if others:
            text = f"Memory that {_listed(writers)}, which are written, share with {_listed(others)}."
            one = f"Memory that `{writers[0]}`, which is written, shares with {_listed(others)}."
            yield "memory", (*writers, *others), one if len(writers) == 1 else text


def _listed(names: Iterable[str]) -> str:
    shown = [f"`{n}`" for n in names]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
