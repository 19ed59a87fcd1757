"""A draft, executed: what its contract says of a call."""

import ast
import dataclasses
import random
import re
import sys
import types
from typing import Any

from tensorpact._call import Call
from tensorpact._diagnosis import make_error
from tensorpact._draft import Draft
from tensorpact._draft._tensors import arguments
from tensorpact._entry import entry_of
from tensorpact._errors import ContractDefinitionError
from tensorpact._evaluation import first_violation
from tensorpact.testing import register_argument
from tensorpact.testing._plans import TensorPlan

from .absent import run

_SEQUENCE = re.compile(r"(?:typing\.)?(tuple|list|Sequence)\[(int|float)\b([^\]]*)\]", re.IGNORECASE)


class Contracted:
    """A draft executed."""

    def __init__(self, made: Draft, namespace: dict[str, Any], text: str) -> None:
        module = types.ModuleType(made.source.module)
        module.__dict__.update(namespace)
        name = made.source.module
        known = sys.modules.get(name)
        sys.modules[name] = module
        try:
            scope: dict[str, Any] = {"__name__": "drafted"}
            for node in ast.parse(text).body:
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    run([node], scope, "<draft>")
                else:
                    exec(compile(ast.Module([node], []), "<draft>", "exec"), scope)
        finally:
            if known is not None:
                sys.modules[name] = known
            else:
                del sys.modules[name]
        self.entry = entry_of(scope[made.source.bare_name])
        assert self.entry is not None, "the draft contracts nothing"

    def outcome(self, arguments: dict[str, Any]) -> tuple[str, Any, str]:
        """What the contract says: as for the original, or ``default``, or ``rule failed``."""
        call = Call(self.entry.terms, arguments)
        try:
            violation = first_violation(call)
            if violation is None:
                return "passed", None, ""
            error = make_error(call, violation)
        except ContractDefinitionError as bad:
            return "rule failed", type(bad.__cause__).__name__, str(bad)[:160]
        if error.error is None:
            return "default", type(error).__mro__[2], str(error)
        return "check", error.error.documented, str(error)


def hinted(made: Draft) -> str:
    """The draft with a hint wherever a required parameter has none, so that arguments can be drawn."""
    head, _, signature = made.text.rpartition("@contract(")
    for name, argument in arguments(made.source.function).items():
        if argument.required and not argument.tensor and argument.hint is None and not argument.starred:
            signature = re.sub(
                rf"(?<![\w.\"]){name}(?=,|\)|\n)", f"{name}: bool | int | str | None", signature, count=1
            )
    return f"{head}@contract({signature}"


def help_out(made: Draft, owner: str) -> None:
    """Say how sequences of numbers are made, which hints describe and no search draws.

    Args:
        made: The draft.
        owner: The contracted function, by name.
    """
    for name, argument in arguments(made.source.function).items():
        sequence = None if argument.hint is None else _SEQUENCE.match(argument.hint)
        if sequence is None:
            continue
        kind = tuple if sequence[1].lower() == "tuple" else list
        count = None if kind is list or "..." in sequence[3] else 1 + sequence[3].count(",")

        def make(
            rng: random.Random, kind: type = kind, count: int | None = count, whole: bool = sequence[2] == "int"
        ) -> Any:
            numbers = (1, 2, 3, 4, 8) if whole else (0.5, 1.0, 2.0)
            return kind(rng.choice(numbers) for _ in range(rng.randint(1, 3) if count is None else count))

        register_argument(owner, name, make)


def mirrored(text: str) -> str:
    """The draft with CUDA and CPU exchanged: what can be drawn without a GPU."""
    return (
        text.replace('OnDevice("cuda")', 'OnDevice("cpu")')
        .replace(".is_cuda", ".is_cpu")
        .replace('type == "cuda"', 'type == "cpu"')
    )


def on_cuda(plans: dict[str, Any]) -> dict[str, Any]:
    """Plans whose right device is CUDA and whose wrong one is the CPU."""
    swap = {"cpu": "cuda", "meta": "cpu"}
    return {
        n: dataclasses.replace(p, device=swap.get(p.device, p.device)) if isinstance(p, TensorPlan) else p
        for n, p in plans.items()
    }
