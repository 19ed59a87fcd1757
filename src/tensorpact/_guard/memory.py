"""The last signature that passed, so that a decode loop is not judged again on every step.

A signature is class, dispatch keys, dtype, device, sizes and strides of every tensor, never its identity and never
its data. torch compares one in C++ faster than Python can read the attributes; that class is private, so a build of
torch where it is missing or behaves otherwise goes without.
"""

import builtins
import dis
import functools
import importlib
import math
import types
from collections.abc import Callable
from typing import Any

import torch

from tensorpact._values.clauses import Values
from tensorpact.clauses import AnyOf, Clause, Let, NoOverlap, Rule, lambda_parameters, rules_of

from .plan import GuardPlan, is_torch

#: A signature is learnt at the call after this many in a row that did not match and had the same first size.
PATIENCE = 4
#: A signature that no call has matched doubles the patience for the next one, up to this.
MOST_PATIENCE = 24
#: So many changes of the first size without a match in between, and the signature is forgotten.
CHANGES = 4
#: What a rule may touch and still depend on the metadata of its tensors alone.
_METADATA = frozenset({
    "shape", "dtype", "device", "ndim", "size", "stride", "numel", "dim", "is_cuda", "is_cpu", "is_meta", "layout",
    "is_contiguous", "index", "itemsize", "element_size", "is_floating_point", "is_complex",
})  # fmt: skip
_FUNCTIONS: tuple[Any, ...] = (max, min, len, abs, sum, range, int, bool, tuple, isinstance)
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_HARMLESS = frozenset({
    "LOAD_FAST", "LOAD_CONST", "RESUME", "PUSH_NULL", "PRECALL", "CALL", "RETURN_VALUE",
    "RETURN_CONST", "COMPARE_OP", "IS_OP", "CONTAINS_OP", "BINARY_OP", "BINARY_SUBSCR", "BUILD_TUPLE", "UNARY_NOT",
    "UNARY_NEGATIVE", "SWAP", "COPY", "POP_TOP", "KW_NAMES", "TO_BOOL", "NOP", "CACHE",
})  # fmt: skip


class Memory:
    """The signature that one guard remembers, and when it learns another.

    A model calls with the same sizes layer after layer, until the batch changes: what repeats is learnt within a few
    calls, what never repeats is soon not compared any more.

    Attributes:
        known: The remembered signature: a check of the required tensors, a check or None for each optional one, then
            the dims that rules still read. None while nothing is remembered.
        matched: Whether a call has matched since the memory was last asked.
        size: The first size of the last call that did not match.
        misses: Passing calls in a row that did not match and had this first size.
        patience: How many of them are let pass before the next learning.
    """

    __slots__ = ("_changes", "_paid", "known", "matched", "misses", "patience", "size")

    def __init__(self) -> None:
        self.known: tuple[Any, ...] | None = None
        self.matched = False
        self.size: int | None = None
        self.misses = 0
        self.patience = PATIENCE
        self._changes = 0
        self._paid = True

    def change(self, size: int) -> None:
        """Take notice of a call that passed, did not match and has another first size than the last such call."""
        self.size, self.misses = size, self.misses if self.misses < 0 else 1
        if self.matched:
            self._settle()
            return
        self._changes += 1
        if self._changes >= CHANGES:
            self.known = None

    def learn(self, required: tuple[Any, ...], optional: tuple[Any, ...], dims: tuple[Any, ...]) -> None:
        """Remember the signature of a call that passed, unless calls in between still match the one that is known.

        Args:
            required: Tensors that are always given.
            optional: Tensors that may be None.
            dims: Values that rules read on a match.
        """
        self.misses = 0
        if self.matched:
            self._settle()
            return
        if not self._paid:
            self.patience = min(2 * self.patience, MOST_PATIENCE)
            if self.known is not None:
                self.known = None
                return
        if _TensorGuards is None or not all(_is_plain(t) for t in (*required, *optional) if t is not None):
            self.misses = -300 * PATIENCE
            return
        checks = tuple(None if t is None else _check_of((t,)) for t in optional)
        self.known = (_check_of(required), *checks, *dims)
        self._paid, self._changes = False, 0
        # Whether it pays shows within the next few calls.
        self.misses = self.patience - PATIENCE

    def _settle(self) -> None:
        """What is known has been of use since the memory was last asked."""
        self.matched, self._paid, self._changes, self.patience = False, True, 0, PATIENCE


def _is_plain(tensor: Any) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided


def _check_of(tensors: tuple[torch.Tensor, ...]) -> Callable[..., bool]:
    if _TensorGuards is None:
        raise RuntimeError("no signature check in this build of torch")
    sizes = [list(t.shape) for t in tensors]
    strides = [list(t.stride()) for t in tensors]
    return _TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


def _find_guards() -> Any:
    try:
        guards: Any = importlib.import_module("torch._C._dynamo.guards").TensorGuards

        probe = torch.empty(2, 3)
        check = guards(probe, dynamic_dims_sizes=[[2, 3]], dynamic_dims_strides=[[3, 1]]).check
        right = check(torch.empty(2, 3))
        wrong = (
            torch.empty(3, 2), torch.empty(3, 2).t(), torch.empty(2, 3, dtype=torch.float16), None,
            torch.empty(2, 3, device="meta"), torch.empty(2, 3, 1), torch.nn.Parameter(torch.empty(2, 3)),
        )  # fmt: skip
        return guards if right and not any(check(w) for w in wrong) else None
    except Exception:  # noqa: BLE001 - a private class of torch: any failure means to go without it
        return None


_TensorGuards: Any = _find_guards()


def is_pure(rule: Rule) -> bool:
    """Whether the value of a rule can depend on nothing but the metadata of its arguments.

    Anything doubtful is called impure: it is then evaluated on every call.
    """
    code = getattr(rule, "__code__", None)
    if code is None or rule.__defaults__ or rule.__kwdefaults__:
        return False
    # A global or a closed-over name can be bound anew between two calls.
    return not rule.__closure__ and _reads_metadata(code, rule.__globals__)


@functools.lru_cache(maxsize=64)
def _instructions(code: types.CodeType) -> list[dis.Instruction]:
    return [i for i in dis.get_instructions(code) if i.opname not in ("RESUME", "CACHE", "NOP", "PUSH_NULL")]


def _reads_metadata(code: types.CodeType, scope: dict[str, Any]) -> bool:
    instructions = _instructions(code)
    for i, step in enumerate(instructions):
        after = instructions[i + 1] if i + 1 < len(instructions) else step
        if step.opname == "LOAD_GLOBAL":
            value = scope.get(step.argval, getattr(builtins, step.argval, None))
            known = any(value is f for f in _FUNCTIONS)
            if not (known or (value is math and after.opname in _ATTRIBUTE)):
                return False
        elif step.opname in _ATTRIBUTE:
            of_math = instructions[i - 1].opname == "LOAD_GLOBAL" and instructions[i - 1].argval == "math"
            if not of_math and step.argval not in _METADATA:
                return False
        elif step.opname not in _HARMLESS and not step.opname.startswith(("POP_JUMP", "JUMP")):
            return False
    return True


def reads_only_attributes(rule: Rule, tensors: set[str]) -> bool:
    """Whether a rule reads nothing but attributes of its tensor arguments, or whether they are None."""
    instructions = _instructions(rule.__code__)
    for i, step in enumerate(instructions):
        if step.opname.startswith("LOAD_FAST") and step.argval in tensors:
            after = instructions[i + 1]
            then = instructions[i + 2].opname if i + 2 < len(instructions) else ""
            compared = after.opname == "LOAD_CONST" and after.argval is None and then == "IS_OP"
            asks_none = after.opname.endswith("NONE") or compared
            if after.opname not in _ATTRIBUTE and not asks_none:
                return False
    return True


def repeats(plan: GuardPlan) -> list[tuple[int, Clause, Rule | None]] | None:
    """Statements that a match does not prove and that run on every call.

    Returns:
        The statements in order, with lets that have to be derived anew, or None where a signature proves too little to
        be worth remembering.
    """
    terms = plan.terms
    if _TensorGuards is None or plan.interpreted or terms.contract.tied or terms.nested or not plan.required:
        return None
    if not all(is_torch(p) for p in terms.tensors):
        return None
    forms = [f for p in terms.tensors if p.tensor for f in p.tensor.forms]
    if any(d.expression is not None and d.expression.arguments for f in forms for d in f.dims):
        return None
    tensors = {p.name for p in terms.tensors}
    fixed, measured = set(terms.dims) | tensors, {n for f in forms for d in f.dims for n in d.names}
    out: list[tuple[int, Clause, Rule | None]] = []
    for index, clause, outer in plan.statements:
        if isinstance(clause, Let):
            for name, rule in clause.rules:
                if _is_settled(rule, fixed, tensors):
                    fixed.add(name)
                elif name in measured:
                    return None
                else:
                    out.append((index, Let(rules=((name, rule),)), outer))
            continue
        if isinstance(clause, Values):
            # What the numbers are shows anew in every call.
            out.append((index, clause, outer))
            continue
        rules = [*rules_of(clause), *((outer,) if outer is not None else ())]
        settled = all(_is_settled(r, fixed, tensors) for r in rules)
        if settled and tensors.issuperset(clause.names) and not isinstance(clause, (NoOverlap, AnyOf)):
            continue
        out.append((index, clause, outer))
    return out


def _is_settled(rule: Rule, fixed: set[str], tensors: set[str]) -> bool:
    """Whether a match of the signature proves that a rule gives what it gave."""
    return fixed.issuperset(lambda_parameters(rule)) and reads_only_attributes(rule, tensors) and is_pure(rule)
