"""The contracted functions of modules, each once."""

from collections.abc import Iterable, Iterator

from tensorpact._entry import Entry
from tensorpact.testing._targets import Target, TargetError, find

from ._records import DEFAULT_MODULES


def entries(modules: Iterable[str] = ()) -> Iterator[tuple[str, Entry]]:
    """Name and contract of every contracted function of some modules.

    Args:
        modules: Module names; the installed kernels by default.

    Raises:
        ContractDefinitionError: A contract is wrong.
    """
    seen: set[int] = set()
    for name in tuple(modules) or DEFAULT_MODULES:
        try:
            found = find([name])
        except TargetError:
            # A module of contracts alone has documented errors and no function.
            continue
        for target in found:
            if not isinstance(target, Target):
                raise target.error
            if id(target.entry) not in seen:
                seen.add(id(target.entry))
                yield f"{target.module}:{target.entry.body.__qualname__}", target.entry
