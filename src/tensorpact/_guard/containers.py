"""Text of the checks of a container with tensors inside: a loop over its items, deterministic and complete."""

from typing import Any

from tensorpact._annotations import Parameter
from tensorpact._items import Items, parts, read_items

from .tensors import write_scalar, write_tensor
from .writer import Writer


def write_container(w: Writer, parameter: Parameter) -> None:
    """All checks of a container parameter."""
    nested = parameter.optional
    if nested:
        w.line(f"if {w.var(parameter.name)} is not None:")
        w.depth += 1
    _write_part(w, parameter.name, parameter.hint, w.var(parameter.name))
    w.flush()
    if nested:
        w.depth -= 1


def _write_part(w: Writer, name: str, hint: Any, variable: str) -> None:
    owner = w.terms.owner
    items = next((i for m in parts(hint) if (i := read_items(m, owner)) is not None), None)
    if items is None:
        template = w.terms.templates[name]
        w.items[name] = variable
        if template.tensor is None:
            write_scalar(w, template)
        else:
            write_tensor(w, template)
        return
    label = f"fits_{len(w.values)}"
    w.test(f"{w.value(label, items.fits)}({variable})")
    _write_items(w, name, items, variable)


def _write_items(w: Writer, name: str, items: Items, variable: str) -> None:
    if items.form in ("each", "mapping"):
        if items.key is not Any:
            key = w.temporary()
            _write_loop(w, f"for {key} in {variable}:", f"{name} keys", items.key, key)
        item = w.temporary()
        values = ".values()" if items.form == "mapping" else ""
        _write_loop(w, f"for {item} in {variable}{values}:", f"{name}[]", items.members[0][1], item)
        return
    for i, (suffix, inner) in enumerate(items.templates()):
        place = f".{items.members[i][0]}" if items.form == "fields" else f"[{items.members[i][0]!r}]"
        _write_part(w, name + suffix, inner, variable + (f"[{i}]" if items.form == "fixed" else place))


def _write_loop(w: Writer, head: str, name: str, hint: Any, variable: str) -> None:
    w.line(head)
    w.depth += 1
    start = len(w.lines)
    _write_part(w, name, hint, variable)
    w.flush()
    w.depth -= 1
    if len(w.lines) == start:
        del w.lines[-1]  # `*args: Any`, or keys of any kind: there is nothing to look at
