"""A drawer for a target: its factory where there is one, its annotations where not."""

import contextlib
import os
import random
from collections.abc import Generator

from ._draw import Drawer
from ._hooks import factory_of
from ._space import CannotDrawError, Space
from ._targets import Target


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
    if factory is None:
        if not target.entry.ready:
            raise CannotDrawError("a method needs its object: tensorpact.testing.register_arguments")
        return Drawer(Space(target.entry))
    if not target.entry.ready:
        target.entry.build(factory(random.Random(seed)).get("self"))
    return Drawer(Space(target.entry), factory)
