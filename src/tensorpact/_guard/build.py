"""From a plan to a function: the whole text of a guard, compiled. No other place generates code."""

import hashlib
import inspect
import linecache
from collections.abc import Callable
from typing import Any

import torch

import tensorpact._modes as modes
from tensorpact._annotations import EMPTY, Parameter
from tensorpact._dims import DimKind
from tensorpact._results import Kind, kind_of

from .containers import write_container
from .memory import Memory, repeats
from .numbers import write_at_hand, write_gate
from .plan import GuardPlan, is_required
from .runtime import Miss, apart, lengths_of, still_apart
from .statements import write_statement
from .tensors import write_scalar, write_tensor, write_unremembered
from .writer import ONES, GuardSource, Pending, Writer, call_text, signature_text, unless


def write_source(plan: GuardPlan, label: str, kind: Kind = "plain") -> GuardSource:
    """Text of a guard; the same plan gives the same text.

    Args:
        plan: What the guard has to do.
        label: Module and qualified name of the function.
        kind: What calling the function gives; a coroutine function stays one, and so does a generator.
    """
    writer = Writer(plan)
    if plan.interpreted:
        writer.line(f"raise {writer.value('Miss', Miss)}")
    else:
        write_checks(writer)
        writer.flush()
    checks = writer.lines or ["        pass"]
    remembered, learning = _remembered(writer)
    parameters = [p for p in plan.terms.signature.parameters if not p.is_field]
    arguments = call_text(parameters)
    p = writer.prefix
    returned = return_text(kind, f"{p}body({arguments})")
    fields = [f"        {writer.var(f.name)} = {f.name}" for f in plan.terms.signature.parameters if f.is_field]
    head = [
        f"{def_text(kind)} guarded({signature_text(parameters)}):",
        f"    if {p}modes.current:",
        f"        if {p}modes.current == {modes.OFF}:",
        f"            {returned}",
        f"        if not {p}is_compiling():",
        f"            {return_text(kind, f'{p}reference({arguments})')}",
    ]
    if kind != "async generator":
        head += [
            f"    if {p}is_tracing():",
            f"        {p}traced.prepare()",
            f"        {return_text(kind, f'{p}traced.guard({arguments})')}",
        ]
    if remembered:
        head += [
            f"    {p}known = {p}memory.known",
            f"    if {p}known is not None:",
            "        try:",
            *(f"    {line}" for line in fields),
            *remembered,
            "        except Exception:",
            f"            {p}known = None",
            f"        if {p}known:",
            f"            {p}memory.matched = True",
            f"            {returned}",
        ]
    values = {
        **writer.values,
        f"{p}modes": modes,
        f"{p}is_compiling": torch.compiler.is_compiling,
        f"{p}is_tracing": torch.compiler.is_dynamo_compiling,
    }
    lines = [*head, *write_judged(writer, checks, learning, kind)]
    return GuardSource("\n".join(lines) + "\n", values, f"<tensorpact guard {label}>")


def write_judged(w: Writer, checks: list[str], learning: list[str], kind: Kind) -> list[str]:
    """Text of the checks, of the body behind them, and of the diagnosis where they do not hold."""
    p, parameters = w.prefix, [x for x in w.terms.signature.parameters if not x.is_field]
    everything = ", ".join(x.name for x in parameters) + ("," if len(parameters) == 1 else "")
    returned = return_text(kind, f"{p}body({call_text(parameters)})")
    fields = [f"        {w.var(f.name)} = {f.name}" for f in w.terms.signature.parameters if f.is_field]
    return [
        "    try:",
        *fields,
        *checks,
        "    except Exception:",
        "        pass",
        "    else:",
        *learning,
        f"        {returned}",
        f"    {p}error = {p}diagnose(({everything}))",
        f"    if {p}error is not None:",
        "        try:",
        f"            raise {p}error",
        "        finally:",
        f"            del {p}error",
        f"    {return_text(kind, f'{p}forgiven({call_text(parameters)})')}",
    ]


def def_text(kind: Kind) -> str:
    """How the definition of that kind of function begins."""
    return "async def" if kind == "coroutine" else "def"


def return_text(kind: Kind, call: str) -> str:
    """A call, and its result handed on as that kind of function does."""
    forms = {"coroutine": "return await {}", "generator": "return (yield from {})"}
    return forms.get(kind, "return {}").format(call)


def _remembered(writer: Writer) -> tuple[list[str], list[str]]:
    """Text that matches a remembered signature, and text that learns one; nothing where it would not pay."""
    plan, p = writer.plan, writer.prefix
    again = repeats(plan)
    if again is None:
        return [], []
    known = f"{p}known"
    required = [writer.var(x.name) for x in plan.required]
    optional = [writer.var(x.name) for x in plan.maybe]
    match = Writer(plan, writer)
    match.depth = 3
    # torch's check ends the process when it meets a strided nested tensor.
    match.test(f"not ({' or '.join(f'{x}.is_nested' for x in required)})")
    match.test(f"{known}[0]({', '.join(required)})")
    for i, (name, parameter) in enumerate(zip(optional, plan.maybe, strict=True), 1):
        # Where something else may stand, a number say, only calls with a tensor or with None are remembered.
        other = "" if parameter.other is EMPTY else f"{match.given(parameter)} and "
        same = f"{other}not {name}.is_nested and {known}[{i}]({name})"
        match.test(f"({name} is None if {known}[{i}] is None else {same})")
    for parameter in plan.scalars:
        write_scalar(match, parameter)
    for parameter in (*plan.required, *plan.maybe):
        write_unremembered(match, parameter)
    match.stored = len(optional) + 1
    for index, clause, outer in again:
        write_statement(match, index, clause, outer)
    pairs, tensors = _pairs(writer)
    if pairs:
        match.test(f"{match.value('still_apart', still_apart)}({pairs}, {known}[-1], {tensors})")
    write_gate(match, known)
    tests = f"\n{' ' * 16}and ".join(match.tests)
    writer.values |= {f"{p}memory": Memory()}
    dims = "".join(f"{writer.dim(n)}, " for n in match.kept)
    if pairs:
        dims += f"{writer.value('lengths_of', lengths_of)}({tensors}), "
    learnt = [", ".join(group) + ("," if len(group) == 1 else "") for group in (required, optional)]
    text = [f"            {known} = (", f"                {tests}", "            )"]
    size = _first_size(writer)
    learn = [
        f"if {p}memory.misses >= {p}memory.patience:",
        f"    {p}memory.learn(({learnt[0]}), ({learnt[1]}), ({dims}))",
        "else:",
        f"    {p}memory.misses += 1",
    ]
    if size:
        # A symbolic size may be neither kept nor compared: that would narrow it.
        learn = [
            f"if {writer.builtin(type)}({size}) is {writer.builtin(int)}:",
            f"    if {size} != {p}memory.size:",
            f"        {p}memory.change({size})",
            *(f"    {'el' if line is learn[0] else ''}{line}" for line in learn),
        ]
    return text, [f"        {line}" for line in learn]


def _first_size(writer: Writer) -> str | None:
    """Variable of the first size that the guard has read, None where it has read none."""
    for parameter in writer.plan.required:
        for dim in parameter.tensor.forms[0].dims if parameter.tensor else ():
            if dim.kind is DimKind.NAMED and dim.name in writer.bound and dim.name not in writer.terms.contract.tied:
                return writer.dim(dim.name)
    return None


def prefix_of(plan: GuardPlan) -> str:
    """Prefix of every name in the guard that is no parameter."""
    return Writer(plan).prefix


def write_checks(w: Writer) -> None:
    plan, terms = w.plan, w.terms
    for parameter in plan.scalars:
        write_scalar(w, parameter)
    for name in terms.contract.tied:
        w.line(f"{w.dim(name)} = {name}")
        if name in plan.sure:
            w.bound.add(name)
    for name in plan.conditions:
        if name not in terms.lets and name not in terms.contract.tied:
            w.line(f"{w.dim(name)} = None")
    for parameter in plan.required:
        write_tensor(w, parameter)
    for parameter in plan.maybe:
        w.line(f"if {w.given(parameter)}:")
        w.depth += 1
        write_tensor(w, parameter)
        w.flush()
        w.depth -= 1
        check = terms.checks[parameter.name].other
        if check is not None:
            allowed = " or ".join(
                ([f"{w.var(parameter.name)} is None"] if parameter.optional else [])
                + [f"{w.value(f'check_{parameter.name}', check)}({w.var(parameter.name)})"]
            )
            w.line(f"elif not ({allowed}):")
            w.line(f"    raise {w.value('Miss', Miss)}")
    for name in plan.conditions:
        loose = [a for a in terms.bare.get(name, ()) if a.dim.broadcast and not a.dim.variadic]
        if loose and name not in terms.lets:
            present = " or ".join(w.given(a.parameter) if not is_required(a.parameter) else "True" for a in loose)
            step = f"{w.dim(name)} = 1 if {w.dim(name)} is None and ({present}) else {w.dim(name)}"
            w.later.append(Pending(step, frozenset(), order=ONES))
    write_later(w, set(terms.lets))
    # A loop compares at once what it binds, so all that is bound outside comes first.
    for parameter in terms.nested:
        write_container(w, parameter)
    for index, clause, outer in plan.statements:
        write_statement(w, index, clause, outer)
    write_later(w, set())
    pairs, tensors = _pairs(w)
    if pairs:
        w.test(f"{w.value('apart', apart)}({pairs}, {tensors})")
    write_at_hand(w)
    write_gate(w, "None")


def _pairs(w: Writer) -> tuple[str, str]:
    """Pairs that share no memory, by position, and the variables they point into; empty where there are none."""
    names = list(dict.fromkeys(n for pair in w.plan.apart for n in pair))
    pairs = tuple((names.index(a), names.index(b)) for a, b in w.plan.apart)
    return repr(pairs) if pairs else "", ", ".join(w.var(n) for n in names)


def write_later(w: Writer, unknown: set[str]) -> None:
    """Write what waited, but for that which reads a name still unknown."""
    now = [item for item in w.later if not item.reads & unknown]
    w.later = [item for item in w.later if item.reads & unknown]
    for item in sorted((i for i in now if i.order is not None), key=lambda i: i.order or 0):
        w.line(item.text)
    for item in now:
        if item.order is None:
            w.test(f"({unless(item.condition)} or {item.text})" if item.condition else item.text)


def build(source: GuardSource, values: dict[str, Any]) -> Callable[..., Any]:
    """Compile a guard.

    Args:
        source: Its text.
        values: Globals of the function, as the caller names them.
    """
    filename = source.filename
    lines = source.text.splitlines(keepends=True)
    known = linecache.cache.get(filename)
    if known is not None and len(known) == 4 and known[2] != lines:
        # Functions may share a name; the text tells them apart, so that decorating again adds nothing.
        filename = f"{filename[:-1]} {hashlib.sha256(source.text.encode()).hexdigest()[:8]}>"
    linecache.cache[filename] = (len(source.text), None, lines, filename)
    # No __name__ in these globals: Dynamo would look the values up in the module of that name.
    scope: dict[str, Any] = {**source.values, **values, "__tracebackhide__": True}
    exec(compile(source.text, filename, "exec"), scope)
    scope.pop("unready", None)
    function: Callable[..., Any] = scope.pop("guarded")
    return function


def delegating_source(body: Callable[..., Any], label: str, checked: Callable[..., Any]) -> GuardSource:
    """Text of an async generator around a function that checks a call and gives one: ``yield from`` has no such form.

    Args:
        body: The undecorated function, for its parameters.
        label: Module and qualified name of the function.
        checked: Its guard.
    """
    parameters, name = _plain_parameters(body), "_checked"
    while any(p.name == name for p in parameters):
        name += "_"
    text = "\n".join(
        [
            f"async def guarded({signature_text(parameters)}):",
            f"    source = {name}({call_text(parameters)})",
            "    try:",
            "        item = await source.__anext__()",
            "        while True:",
            "            try:",
            "                sent = yield item",
            "            except GeneratorExit:",
            "                await source.aclose()",
            "                raise",
            "            except BaseException as thrown:",
            "                item = await source.athrow(thrown)",
            "            else:",
            "                item = await source.asend(sent)",
            "    except StopAsyncIteration:",
            "        return",
        ]
    )
    return GuardSource(text + "\n", {name: checked}, f"<tensorpact guard {label} as an async generator>")


def shim_source(plan: GuardPlan, label: str) -> GuardSource:
    """Text of a function of the same signature that packs its arguments, for stock to wrap."""
    parameters = [p for p in plan.terms.signature.parameters if not p.is_field]
    everything = ", ".join(x.name for x in parameters) + ("," if len(parameters) == 1 else "")
    text = f"def guarded({signature_text(parameters)}):\n    return _judged(({everything}))\n"
    return GuardSource(text, {}, f"<tensorpact shim {label}>")


def _plain_parameters(body: Callable[..., Any]) -> list[Parameter]:
    return [
        Parameter(p.name, p.kind, p.default, EMPTY, None, EMPTY, True)
        for p in inspect.signature(body).parameters.values()
    ]


def unready_source(body: Callable[..., Any], label: str) -> GuardSource:
    """Text of a function that builds its guard at the first call: a method, or one with hints not defined yet."""
    kind = kind_of(body)
    parameters = _plain_parameters(body)
    instance = "self" if any(p.name == "self" for p in parameters) else "None"
    text = (
        f"{def_text(kind)} unready({signature_text(parameters)}):\n"
        "    if _is_tracing():\n"
        f"        {return_text(kind, f'_traced({call_text(parameters)})')}\n"
        f"    {return_text(kind, f'_build({instance})({call_text(parameters)})')}\n"
        "guarded = unready\n"
    )
    values = {"_is_tracing": torch.compiler.is_dynamo_compiling}
    return GuardSource(text, values, f"<tensorpact guard {label} before its first call>")
