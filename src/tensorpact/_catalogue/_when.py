"""What is checked when, read off the contract itself."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tensorpact._entry import Entry
from tensorpact._guard.memory import repeats
from tensorpact._terms import Terms, flat
from tensorpact._values.clauses import Values
from tensorpact.clauses import Clause, Let, NoOverlap

#: How the modes begin that speak of numbers in device memory alone.
DEVICE_NUMBERS = "numbers in device memory"
_Modes = Iterator[dict[str, Any]]


def modes(entry: Entry) -> list[dict[str, Any]]:
    """What each enforcement mode looks at, clauses by their place in firing order."""
    terms = entry.terms
    places = _places(terms.contract.clauses)
    anew = repeats(entry.built.plan)
    # Of one tensor alone only strides are asked, which a tracer knows.
    tracing = [
        places[i]
        for i, c in enumerate(terms.contract.clauses)
        if any((isinstance(m, NoOverlap) and len(m.names) > 1) or _reads_memory(m, terms) for m in flat(c))
    ]
    addresses = sorted(
        p.name
        for p in terms.tensors
        if any(type(c).__name__ == "Aligned" for c in (p.tensor.constraints if p.tensor is not None else ()))
    )
    # A let says nothing by itself, so it has no place.
    again = [] if anew is None else sorted({places[i] for i, _, _ in anew if i in places})
    total = len(places)
    numbers = list(_device_numbers(terms, places))
    as_said = "; numbers in device memory as TENSORPACT_VALUES says" if numbers else ""
    return [
        _mode(
            "compiled",
            f"every call: types, shapes, dtypes, devices, strides and all clauses{as_said}",
            range(1, total + 1),
        ),
        _mode(
            "compiled, a signature met before",
            "no signature of this function is remembered: as every call"
            if anew is None
            else "shapes, dtypes, devices and strides compared at once; types of scalars, and these clauses, anew"
            + as_said,
            range(1, total + 1) if anew is None else again,
        ),
        _mode(
            "compiled, traced",
            "once a trace, as plain conditions on metadata"
            + (f"; alignment of {', '.join(addresses)} is not looked at" if addresses else ""),
            [n for n in range(1, total + 1) if n not in tracing],
        ),
        _mode(
            "beartype",
            f"every call: stock jaxtyping and beartype, then all clauses{as_said}",
            range(1, total + 1),
            True,
        ),
        _mode("off", "nothing", ()),
        *numbers,
    ]


def _device_numbers(terms: Terms, places: Mapping[int, int]) -> _Modes:
    """What each mode of value checks looks at of numbers in device memory; nothing where no clause speaks of any."""
    found = [
        (places[i], m, n)
        for i, c in enumerate(terms.contract.clauses)
        for m in flat(c)
        if isinstance(m, Values)
        for n in m.names
        if terms.parameters[n].tensor is not None
    ]
    if not found:
        return
    # Of a device that is read like the CPU no mode leaves anything out.
    read = sorted({device for _, m, _ in found for device in m.reads})
    besides = f"; on {' and '.join(read)} they are read in every call" if read else ""
    if any(f"{n}_host" in terms.parameters for _, _, n in found):
        besides += "; a copy on the host is looked at instead, in every call"
    clauses = sorted({place for place, _, _ in found})
    for mode, says, looked in (
        ("off", "the default, not looked at", ()),
        ("sync", "in the call, which waits for the device; not while a graph is captured, nor traced", clauses),
        ("async", "behind the call, without waiting, and in every replay of a captured graph; not traced", clauses),
    ):
        yield _mode(f"{DEVICE_NUMBERS}, {mode}", f"TENSORPACT_VALUES={mode}: {says}{besides}", looked)


def _reads_memory(clause: Clause, terms: Terms) -> bool:
    """Whether a clause looks into tensors alone: a copy on the host and an int are known while tracing too."""
    return isinstance(clause, Values) and all(
        terms.parameters[n].tensor is not None and f"{n}_host" not in terms.parameters for n in clause.names
    )


def _mode(name: str, says: str, clauses: Iterable[int], returns: bool = False) -> dict[str, Any]:
    return {"mode": name, "says": says, "clauses": list(clauses), "returns": returns}


def _places(clauses: tuple[Clause, ...]) -> dict[int, int]:
    statements = (i for i, c in enumerate(clauses) if not isinstance(c, Let))
    return {i: n for n, i in enumerate(statements, 1)}
