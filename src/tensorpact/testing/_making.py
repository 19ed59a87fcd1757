"""A drawer for a target: its factory where there is one, its annotations where not."""

import contextlib
import dataclasses
import inspect
import os
import random
from collections.abc import Generator, Mapping
from typing import Any

from ._draw import Drawer
from ._space import CannotDrawError, Space
from ._targets import Target
from .hooks import factory_of


@contextlib.contextmanager
def compiler_environment() -> Generator[None]:
    """Without ``TRITON_INTERPRET``: contracts may ask for it, and the interpreter gets a process of its own."""
    before = os.environ.pop("TRITON_INTERPRET", None)
    try:
        yield
    finally:
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before


def drawer_of(target: Target, seed: int) -> Drawer:
    """What draws the arguments of an entry point.

    Args:
        target: The entry point.
        seed: Seed of the factory where it makes the first object.

    Raises:
        CannotDrawError: An argument cannot be drawn without help.
        ContractDefinitionError: Annotations or contract are wrong.
    """
    factory = factory_of(target.entry)
    if factory is not None:
        if not target.entry.ready:
            target.entry.build(factory(random.Random(seed)).get("self"))
        return Drawer(Space(target.entry), factory)
    return Drawer(space_of(target))


def space_of(target: Target, known: Mapping[str, Any] | None = None) -> Space:
    """What arguments of a target without a factory may be made of.

    Args:
        target: The entry point.
        known: Values of arguments that the caller brings.

    Raises:
        CannotDrawError: An argument cannot be drawn without help.
        ContractDefinitionError: Annotations or contract are wrong.
    """
    entry, cls = target.entry, target.cls
    parameters = inspect.signature(entry.body).parameters
    if next(iter(parameters), "") != "self":
        return Space(entry, None, known)
    if cls is None or not dataclasses.is_dataclass(cls):
        how = f"register_arguments({entry.owner.rpartition('.')[2]}, factory)"
        raise CannotDrawError(
            f"{entry.owner}: self is an object of no dataclass; say how it is made: tensorpact.testing.{how}"
        )
    if not entry.ready:
        entry.belong(cls)
    return Space(entry, cls, known)
