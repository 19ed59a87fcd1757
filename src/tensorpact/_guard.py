"""The generated passing path: plan → source → function. No other place generates code.

The guard only decides whether everything holds; what is broken, and in which order, is the diagnosis' business.
"""

import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from . import _modes
from ._annotations import EMPTY, Parameter, array_dtype
from ._call import broadcastable, form_fits
from ._dims import Dim, DimKind
from ._evaluation import shares_bytes
from ._plan import GuardPlan, is_required, is_torch, reads_unsure
from .clauses import (
    Clause,
    Exclusive,
    Let,
    Needs,
    NoOverlap,
    Present,
    Require,
    Rule,
    SameDevice,
    SameDtype,
    Together,
    lambda_parameters,
)
from .constraints import Constraint, Contiguous, DenseLast, OnDevice, OneOf


class Broken(Exception):
    """Raised and caught inside a guard."""


@dataclass(frozen=True, slots=True)
class GuardSource:
    """Text of a guard and the values it reads through globals."""

    text: str
    values: dict[str, Any]
    filename: str


class _Writer:
    """Lines of one guard."""

    def __init__(self, plan: GuardPlan) -> None:
        self.plan = plan
        self.terms = plan.terms
        self.prefix = "_"
        while any(p.name.startswith(self.prefix) for p in self.terms.signature.parameters):
            self.prefix += "_"
        self.values: dict[str, Any] = {}
        self.lines: list[str] = []
        self.tests: list[str] = []
        self.bound: set[str] = set()
        self.later: list[tuple[str, str]] = []
        self.read: dict[tuple[str, str], str] = {}
        self.count = 0
        self.depth = 2

    def line(self, text: str) -> None:
        """Write a statement, after the tests collected so far."""
        self.flush()
        self.lines.append("    " * self.depth + text)

    def test(self, text: str) -> None:
        """Add a condition that must hold."""
        self.tests.append(text)

    def flush(self) -> None:
        """Write the collected tests as one conjunction."""
        if self.tests:
            tests, self.tests = self.tests, []
            joined = f"\n{'    ' * (self.depth + 1)}and ".join(tests)
            pad = "    " * self.depth
            if len(tests) == 1:
                self.lines.append(f"{pad}if not ({joined}):")
            else:
                self.lines.append(f"{pad}if not (\n{pad}    {joined}\n{pad}):")
            self.lines.append(f"{pad}    raise {self.value('Broken', Broken)}")

    def value(self, label: str, value: Any) -> str:
        """Name of a global that holds a value."""
        name = f"{self.prefix}{label.replace('.', '_')}"
        if self.values.setdefault(name, value) is not value:
            raise RuntimeError(f"two values for {name}")
        return name

    def var(self, name: str) -> str:
        """Variable of a parameter or field."""
        return name if "." not in name else f"{self.prefix}field_{name.partition('.')[2]}"

    def dim(self, name: str) -> str:
        """Variable of a dim or let."""
        return f"{self.prefix}{name}_"

    def temporary(self) -> str:
        """A fresh variable."""
        self.count += 1
        return f"{self.prefix}t{self.count}"

    def argument(self, name: str) -> str:
        """Variable of anything that a rule may read."""
        return (
            self.var(name)
            if name in self.terms.parameters and name not in self.terms.contract.tied
            else (self.dim(name) if name not in self.terms.parameters else name)
        )

    def given(self, parameter: Parameter) -> str:
        """Condition under which a parameter is a tensor."""
        if parameter.other is EMPTY:
            return f"{self.var(parameter.name)} is not None"
        return self.is_array(parameter)

    def is_array(self, parameter: Parameter) -> str:
        """Condition that a parameter is an array of the annotated class."""
        name, spec = parameter.name, parameter.tensor
        types: tuple[Any, ...] = tuple(dict.fromkeys(f.array_type for f in spec.forms)) if spec else ()
        if types == (torch.Tensor,):
            return f"isinstance({self.var(name)}, {self.value('Tensor', torch.Tensor)})"
        if Any in types:
            return f"{self.value('is_array', _is_array)}({self.var(name)})"
        return f"isinstance({self.var(name)}, {self.value(f'class_{name}', types)})"

    def attribute(self, name: str, what: str) -> str:
        """An attribute of a tensor, kept in a variable when it is read again."""
        key = (name, what)
        if key in self.read:
            return self.read[key]
        self.read[key] = f"{self.prefix}{what}_of_{name.replace('.', '_')}"
        return f"({self.read[key]} := {self.var(name)}.{what})"


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def write_source(plan: GuardPlan, label: str) -> GuardSource:
    """Text of a guard; the same plan gives the same text.

    Args:
        plan: What the guard has to do.
        label: Module and qualified name of the function.
    """
    writer = _Writer(plan)
    if plan.interpreted:
        writer.line(f"raise {writer.value('Broken', Broken)}")
    else:
        _write_checks(writer)
        writer.flush()
    parameters = [p for p in plan.terms.signature.parameters if not p.is_field]
    arguments = _call_text(parameters)
    p = writer.prefix
    everything = ", ".join(x.name for x in parameters) + ("," if len(parameters) == 1 else "")
    checks = writer.lines or ["        pass"]
    returned = f"return {p}body({arguments})"
    head = [
        f"def guarded({_signature_text(parameters, p)}):",
        f"    if {p}modes.current:",
        f"        if {p}modes.current == {_modes.OFF}:",
        f"            return {p}body({arguments})",
        f"        if not {p}is_compiling():",
        f"            return {p}reference({arguments})",
        "    try:",
    ]
    tail = [
        "    except Exception:",
        "        pass",
        "    else:",
        f"        {returned}",
        f"    {p}error = {p}diagnose(({everything}))",
        f"    if {p}error is not None:",
        f"        raise {p}error",
        f"    {returned}",
    ]
    values = {**writer.values, f"{p}modes": _modes, f"{p}is_compiling": torch.compiler.is_compiling}
    return GuardSource("\n".join([*head, *checks, *tail]) + "\n", values, f"<tensorpact guard {label}>")


def prefix_of(plan: GuardPlan) -> str:
    """Prefix of every name in the guard that is no parameter."""
    return _Writer(plan).prefix


def _signature_text(parameters: list[Parameter], prefix: str) -> str:
    out: list[str] = []
    kinds = inspect.Parameter
    starred = False
    for i, p in enumerate(parameters):
        if p.kind is kinds.KEYWORD_ONLY and not starred:
            out.append("*")
            starred = True
        text = p.name
        if p.kind is kinds.VAR_POSITIONAL:
            text, starred = f"*{p.name}", True
        elif p.kind is kinds.VAR_KEYWORD:
            text = f"**{p.name}"
        elif p.default is not EMPTY:
            text += "=None"
        out.append(text)
        if p.kind is kinds.POSITIONAL_ONLY and (i + 1 == len(parameters) or parameters[i + 1].kind is not p.kind):
            out.append("/")
    return ", ".join(out)


def _call_text(parameters: list[Parameter]) -> str:
    kinds = inspect.Parameter
    forms = {kinds.VAR_POSITIONAL: "*{0}", kinds.VAR_KEYWORD: "**{0}", kinds.KEYWORD_ONLY: "{0}={0}"}
    return ", ".join(forms.get(p.kind, "{0}").format(p.name) for p in parameters)


def _write_checks(w: _Writer) -> None:
    plan, terms = w.plan, w.terms
    for parameter in terms.signature.parameters:
        if parameter.is_field:
            w.line(f"{w.var(parameter.name)} = {parameter.name}")
    for parameter in plan.scalars:
        _write_scalar(w, parameter)
    for name in terms.contract.tied:
        w.line(f"{w.dim(name)} = {name}")
        if name in plan.sure:
            w.bound.add(name)
    for name in plan.conditions:
        if name not in terms.lets and name not in terms.contract.tied:
            w.line(f"{w.dim(name)} = None")
    for parameter in plan.required:
        _write_tensor(w, parameter)
    for parameter in plan.maybe:
        w.line(f"if {w.given(parameter)}:")
        w.depth += 1
        _write_tensor(w, parameter)
        w.flush()
        w.depth -= 1
        check = terms.checks[parameter.name].other
        if check is not None:
            allowed = " or ".join(
                ([f"{w.var(parameter.name)} is None"] if parameter.optional else [])
                + [f"{w.value(f'check_{parameter.name}', check)}({w.var(parameter.name)})"]
            )
            w.line(f"elif not ({allowed}):")
            w.line(f"    raise {w.value('Broken', Broken)}")
    for name in plan.conditions:
        axes = terms.bare.get(name, ())
        if axes and all(a.dim.broadcast for a in axes) and name not in terms.lets:
            present = " or ".join(w.given(a.parameter) if not is_required(a.parameter) else "True" for a in axes)
            w.later.append(("", f"!{w.dim(name)} = 1 if {w.dim(name)} is None and ({present}) else {w.dim(name)}"))
    _write_later(w, lambda text: not _reads_let(w, text))
    for index, clause, outer in plan.statements:
        _write_statement(w, index, clause, outer)
    _write_later(w, lambda text: True)
    written = [terms.parameters[n] for n in terms.contract.mutates]
    if len(written) > 1:
        w.test(f"not {w.value('overlaps', _overlaps)}({', '.join(w.var(p.name) for p in written)})")


def _reads_let(w: _Writer, text: str) -> bool:
    return any(w.dim(name) in text for name in w.terms.lets)


def _write_later(w: _Writer, ready: Callable[[str], bool]) -> None:
    remaining: list[tuple[str, str]] = []
    for condition, text in w.later:
        if not ready(text):
            remaining.append((condition, text))
        elif text.startswith("!"):
            body = text[1:]
            w.line(f"if {condition}: {body}" if condition else body)
        else:
            w.test(f"(not ({condition}) or {text})" if condition else text)
    w.later = remaining


def _write_scalar(w: _Writer, parameter: Parameter) -> None:
    check = w.terms.checks[parameter.name].other
    if check is None:
        return
    name = w.var(parameter.name)
    options = [f"type({name}) is {t.__name__}" for t in check.exact]
    if parameter.optional:
        options.insert(0, f"{name} is None")
    options.append(f"{w.value(f'check_{parameter.name}', check)}({name})")
    w.test(f"({' or '.join(options)})")


def _write_tensor(w: _Writer, parameter: Parameter) -> None:
    spec, name = parameter.tensor, parameter.name
    if spec is None:
        return
    if parameter.other is EMPTY:
        w.test(w.is_array(parameter))
    extra = w.terms.checks[name].extra
    if extra is not None:
        w.test(f"{w.value(f'extra_{name}', extra)}({w.var(name)})")
    if spec.union:
        _write_union(w, parameter)
    else:
        _write_dtype(w, parameter)
        if spec.forms[0].variadic is None:
            _write_axes(w, parameter)
        else:
            _write_variadic(w, parameter)
    for i, constraint in enumerate(spec.constraints):
        if not isinstance(constraint, OneOf):
            w.test(_constraint_text(w, parameter, constraint, i))
    if name in w.terms.contract.mutates:
        stays = w.value("writable", _writable)
        w.test(f"(0 not in {w.var(name)}.stride() or {stays}({w.var(name)}))")


def _write_dtype(w: _Writer, parameter: Parameter) -> None:
    spec, name = parameter.tensor, parameter.name
    if spec is None or name in w.plan.implied:
        return
    if not is_torch(parameter):
        if spec.dtypes() is not None or any(f.dtypes is not None for f in spec.forms):
            w.test(f"{w.value(f'dtype_fits_{name}', _DtypeFits(parameter))}({w.var(name)})")
        return
    allowed = spec.dtypes()
    if allowed is None:
        return
    read = w.attribute(name, "dtype")
    if len(allowed) == 1:
        w.test(f"{read} is {w.value(f'dtype_{name}', allowed[0])}")
    else:
        w.test(f"{read} in {w.value(f'dtypes_{name}', allowed)}")


class _DtypeFits:
    """Dtype check of an array that is no torch tensor."""

    __slots__ = ("spec",)

    def __init__(self, parameter: Parameter) -> None:
        self.spec = parameter.tensor

    def __call__(self, array: Any) -> bool:
        if self.spec is None:
            return True
        name = array_dtype(array)
        return any(f.allows(name) for f in self.spec.forms) and all(
            c.holds(array) for c in self.spec.constraints if isinstance(c, OneOf)
        )


def _known_size(w: _Writer, dim: Dim) -> str | None:
    """Text of the size that an axis must have, where the guard can tell by now."""
    if dim.broadcast:
        return None
    if dim.kind is DimKind.FIXED:
        return str(dim.size)
    if dim.kind is DimKind.NAMED and dim.name in w.bound:
        return w.dim(dim.name)
    if dim.expression is not None and all(n in w.bound for n in dim.names):
        return _expression_text(w, dim)
    return None


def _expression_text(w: _Writer, dim: Dim) -> str:
    expression = dim.expression
    if expression is None:
        return ""
    words = "".join(c if c.isalnum() else "_" for c in dim.text)
    label = f"axis_{words}"
    evaluate: Callable[..., Any] = expression.function
    if expression.parts:
        evaluate = _WithArguments(expression.names, expression.arguments, expression.evaluate)
    while w.values.get(f"{w.prefix}{label}", None) is not None and not _same(w.values[f"{w.prefix}{label}"], evaluate):
        label += "_"
    known = w.values.get(f"{w.prefix}{label}")
    function = w.value(label, evaluate if known is None else known)
    return f"{function}({', '.join([*(w.dim(n) for n in expression.names), *expression.arguments])})"


def _same(known: Any, other: Any) -> bool:
    if isinstance(known, _WithArguments) or isinstance(other, _WithArguments):
        return False
    return (
        known.__code__.co_code == other.__code__.co_code
        and known.__code__.co_consts == other.__code__.co_consts
        and (
            known.__code__.co_varnames == other.__code__.co_varnames
            and known.__code__.co_names == other.__code__.co_names
        )
    )


class _WithArguments:
    """An expression that reads arguments, called with dims and arguments in a row."""

    __slots__ = ("arguments", "evaluate", "names")

    def __init__(self, names: tuple[str, ...], arguments: tuple[str, ...], evaluate: Callable[..., Any]) -> None:
        self.names, self.arguments, self.evaluate = names, arguments, evaluate

    def __call__(self, *values: Any) -> Any:
        split = len(self.names)
        dims = dict(zip(self.names, values[:split], strict=True))
        return self.evaluate(dims, dict(zip(self.arguments, values[split:], strict=True)))


def _write_axes(w: _Writer, parameter: Parameter) -> None:
    spec, name = parameter.tensor, parameter.name
    if spec is None:
        return
    known = [_known_size(w, d) for d in spec.dims]
    if all(k is not None for k in known):
        sizes = ", ".join(k for k in known if k is not None) + ("," if len(known) == 1 else "")
        w.test(f"{w.var(name)}.shape == ({sizes})")
        return
    targets: list[str] = []
    checks: list[tuple[Dim, str]] = []
    for dim in spec.dims:
        if dim.kind is DimKind.ANONYMOUS:
            targets.append(w.prefix)
        elif _binds(w, dim):
            targets.append(w.dim(dim.name))
            w.bound.add(dim.name)
        else:
            targets.append(w.temporary())
            checks.append((dim, targets[-1]))
    w.line(f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {w.var(name)}.shape")
    for dim, size in checks:
        _write_axis(w, parameter, dim, size)


def _binds(w: _Writer, dim: Dim) -> bool:
    return (
        dim.name in w.plan.sure
        and dim.kind in (DimKind.NAMED, DimKind.VARIADIC)
        and not dim.broadcast
        and (dim.name not in w.bound and dim.name not in w.terms.contract.tied)
    )


def _write_variadic(w: _Writer, parameter: Parameter) -> None:
    spec, name = parameter.tensor, parameter.name
    variadic = spec.forms[0].variadic if spec is not None else None
    if spec is None or variadic is None:
        return
    shape, rank, count = w.temporary(), w.temporary(), len(spec.dims)
    w.line(f"{shape} = {w.var(name)}.shape")
    w.line(f"{rank} = len({shape})")
    w.test(f"{rank} >= {count - 1}")
    for i, dim in enumerate(spec.dims):
        if dim.kind in (DimKind.ANONYMOUS, DimKind.ELLIPSIS):
            continue
        if i == variadic:
            place = f"{shape}[{i}:{rank} - {count - 1 - i}]"
        else:
            place = f"{shape}[{i}]" if i < variadic else f"{shape}[{i - count}]"
        if _binds(w, dim):
            w.line(f"{w.dim(dim.name)} = {place}")
            w.bound.add(dim.name)
        else:
            size = w.temporary()
            w.line(f"{size} = {place}")
            _write_axis(w, parameter, dim, size)


def _write_axis(w: _Writer, parameter: Parameter, dim: Dim, size: str) -> None:
    """Compare one axis that was read into a variable, now or when its dims are known."""
    condition = "" if is_required(parameter) else w.given(parameter)
    known = _known_size(w, dim)
    if known is not None:
        w.test(f"{size} == {known}")
        return
    if dim.kind is DimKind.FIXED:
        w.test(f"({size} == 1 or {size} == {dim.size})")
        return
    terms, plan = w.terms, w.plan
    if dim.expression is not None:
        free = [n for n in dim.names if terms.solved.get(n) is not None and terms.solved[n].dim is dim]
        if free and free[0] not in w.bound:
            others = tuple(n for n in dim.names if n != free[0])
            solve = w.value(f"solve_{free[0]}", _Solve(dim, free[0], others))
            arguments = [*(w.dim(n) for n in others), *dim.expression.arguments]
            w.later.append(("", f"!{w.dim(free[0])} = {solve}({', '.join([size, *arguments])})"))
            w.later.append(("", f"{w.dim(free[0])} is not None"))
            return
        expected = _expression_text(w, dim)
    else:
        expected = w.dim(dim.name)
    equal = f"{size} == {expected}"
    if dim.kind is DimKind.VARIADIC and dim.broadcast:
        equal = f"{w.value('broadcastable', broadcastable)}({size}, {expected}) == {expected}"
    elif dim.broadcast:
        equal = f"({size} == 1 or {equal})"
    unsure = [n for n in dim.names if n in plan.conditions and n not in terms.lets]
    if not unsure:
        lets = reads_unsure(tuple(n for n in dim.names if n in terms.lets), plan.conditions)
        text = " or ".join([*(f"{w.dim(n)} is None" for n in sorted(lets)), equal])
        w.later.append((condition, f"({text})"))
        return
    variable = w.dim(dim.name)
    step = f"!if {variable} is None: {variable} = {size}"
    if dim.broadcast:
        step = f"!if {variable} is None and {size} != 1: {variable} = {size}"
    if condition:
        step = f"!{variable} = {size} if ({condition}) and {variable} is None{f' and {size} != 1' if dim.broadcast else ''} else {variable}"
    # Bare names bind before broadcasting ones look at them.
    at = len(w.later) if dim.broadcast else 0
    w.later.insert(at, ("", step))
    w.later.append((condition, equal))


class _Solve:
    """Solver of one expression axis, called with its size, the known dims and the arguments."""

    __slots__ = ("dim", "others", "unknown")

    def __init__(self, dim: Dim, unknown: str, others: tuple[str, ...]) -> None:
        self.dim, self.unknown, self.others = dim, unknown, others

    def __call__(self, size: int, *values: Any) -> int | None:
        expression = self.dim.expression
        if expression is None:
            return None
        split = len(self.others)
        dims = dict(zip(self.others, values[:split], strict=True))
        arguments = dict(zip(expression.arguments, values[split:], strict=True))
        return expression.solve(self.unknown, size, dims, arguments)


def _write_union(w: _Writer, parameter: Parameter) -> None:
    spec, name = parameter.tensor, parameter.name
    if spec is None:
        return
    condition = "" if is_required(parameter) else w.given(parameter)
    names = sorted({n for f in spec.forms for d in f.dims for n in d.names if n in w.terms.dims or n in w.terms.lets})
    simple = is_torch(parameter) and all(
        d.kind in (DimKind.NAMED, DimKind.FIXED, DimKind.EXPRESSION)
        and not d.broadcast
        and not (d.expression is not None and d.expression.arguments)
        and all(n in w.plan.sure or n in w.terms.lets for n in d.names)
        and not reads_unsure(d.names, w.plan.conditions)
        for f in spec.forms
        for d in f.dims
    )
    limit = spec.dtypes()
    if simple:
        shape, options = f"{w.prefix}shape_{name.replace('.', '_')}", list[str]()
        dtypes = {f.torch_dtypes() if f.dtypes is not None else None for f in spec.forms}
        if len(dtypes) == 1:
            if limit is not None:
                _write_dtype(w, parameter)
        elif limit is not None:
            w.test(f"{w.attribute(name, 'dtype')} in {w.value(f'dtypes_{name}', limit)}")
        for i, form in enumerate(spec.forms):
            sizes = [
                str(d.size)
                if d.kind is DimKind.FIXED
                else _expression_text(w, d)
                if d.expression is not None
                else w.dim(d.name)
                for d in form.dims
            ]
            text = f"{shape} == ({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
            if len(dtypes) > 1 and form.dtypes is not None:
                text += f" and {w.attribute(name, 'dtype')} in {w.value(f'dtypes_{name}_{i}', form.torch_dtypes())}"
            options.append(f"({text})" if " and " in text else text)
        w.line(f"{shape} = {w.var(name)}.shape")
        w.later.append((condition, f"({' or '.join(options)})"))
        return
    if limit is not None and is_torch(parameter):
        w.test(f"{w.attribute(name, 'dtype')} in {w.value(f'dtypes_{name}', limit)}")
    arguments = tuple(
        dict.fromkeys(a for f in spec.forms for d in f.dims if d.expression for a in d.expression.arguments)
    )
    fits = w.value(f"form_fits_{name}", _FormFits(parameter, tuple(names), arguments))
    w.later.append((condition, f"{fits}({', '.join([w.var(name), *(w.dim(n) for n in names), *arguments])})"))


class _FormFits:
    """Whether some form of a union fits whole, called with the array, the dims (None where unbound) and arguments."""

    __slots__ = ("arguments", "names", "spec")

    def __init__(self, parameter: Parameter, names: tuple[str, ...], arguments: tuple[str, ...]) -> None:
        self.spec, self.names, self.arguments = parameter.tensor, names, arguments

    def __call__(self, array: Any, *values: Any) -> bool:
        split = len(self.names)
        dims = {n: v for n, v in zip(self.names, values[:split], strict=True) if v is not None}
        arguments = dict(zip(self.arguments, values[split:], strict=True))
        dtype, shape = array_dtype(array), tuple(array.shape)
        forms = self.spec.forms if self.spec is not None else ()
        return any(
            (f.array_type is Any or isinstance(array, f.array_type))
            and f.allows(dtype)
            and form_fits(f, shape, dims, arguments)
            for f in forms
        )


def _constraint_text(w: _Writer, parameter: Parameter, constraint: Constraint, index: int) -> str:
    x, spec = w.var(parameter.name), parameter.tensor
    axes = 0 if spec is None else min(len(f.dims) - (f.variadic is not None) for f in spec.forms)
    if isinstance(constraint, Contiguous):
        return f"{x}.is_contiguous()"
    if isinstance(constraint, DenseLast) and axes > 0:
        if constraint.strict:
            return f"{x}.stride()[-1] == 1"
        return f"({x}.is_contiguous() or {x}.stride()[-1] == 1 or {x}.shape[-1] <= 1)"
    if isinstance(constraint, OnDevice) and constraint.types in (("cuda",), ("cpu",)):
        return f"{x}.is_{constraint.types[0]}"
    return f"{w.value(f'constraint_{parameter.name}_{index}', constraint)}.holds({x})"


def _rule_call(w: _Writer, label: str, rule: Rule) -> str:
    names = lambda_parameters(rule)
    return f"{w.value(label, rule)}({', '.join(w.argument(n) for n in names)})"


def _write_statement(w: _Writer, index: int, clause: Clause, outer: Rule | None) -> None:
    plan, params = w.plan, w.terms.parameters
    if isinstance(clause, Let):
        for name, rule in clause.rules:
            unsure = sorted(reads_unsure(lambda_parameters(rule), plan.conditions))
            guard = " and ".join(f"{w.dim(n)} is not None" for n in unsure)
            text = f"{w.dim(name)} = {_rule_call(w, f'let_{name}', rule)}"
            if guard:
                w.line(f"if {guard}:")
                w.line(f"    {text}")
            else:
                w.line(text)
        return
    tests = list(_statement_tests(w, index, clause))
    if not tests:
        return
    rules = [(f"when_{index}", outer), (f"when_{index}_{clause.verb}", clause.when)]
    read = tuple(n for _, r in rules if r is not None for n in lambda_parameters(r))
    if isinstance(clause, Require):
        read += lambda_parameters(clause.rule)
    skip = [f"{w.dim(n)} is None" for n in sorted(reads_unsure(read, plan.conditions))]
    skip += [f"not {_rule_call(w, label, r)}" for label, r in rules if r is not None]
    if skip:
        w.test(f"({' or '.join(skip)} or ({' and '.join(tests)}))")
    else:
        for test in tests:
            w.test(test)
    del params


def _statement_tests(w: _Writer, index: int, clause: Clause) -> list[str]:
    params = w.terms.parameters
    if isinstance(clause, Require):
        label = f"rule_{index}"
        while w.values.get(f"{w.prefix}{label}", clause.rule) is not clause.rule:
            label += "_"
        return [_rule_call(w, label, clause.rule)]
    names = [w.var(n) for n in clause.names]
    if isinstance(clause, Present):
        return [f"{w.var(n)} is not None" for n in clause.names if params[n].optional]
    if isinstance(clause, Together):
        return [f"({names[0]} is None) is ({n} is None)" for n in names[1:]]
    if isinstance(clause, Needs):
        return [f"({names[0]} is None or {' and '.join(f'{n} is not None' for n in names[1:])})"]
    if isinstance(clause, Exclusive):
        return [f"({' + '.join(f'({n} is not None)' for n in names)}) <= 1"]
    if isinstance(clause, (SameDtype, SameDevice)):
        return _equal_tests(w, clause)
    if isinstance(clause, NoOverlap):
        return [f"not {w.value('first_overlaps', _first_overlaps)}({', '.join(names)})"] if len(names) > 1 else []
    return []


def _equal_tests(w: _Writer, clause: Clause) -> list[str]:
    what = "dtype" if isinstance(clause, SameDtype) else "device"
    params = [w.terms.parameters[n] for n in clause.names]
    required = [p for p in params if is_required(p)]
    conditional = clause.when is not None
    if not required or conditional:
        check = w.value(f"one_{what}", _one_dtype if what == "dtype" else _one_device)
        return [f"{check}({', '.join(w.var(p.name) for p in params)})"]
    tests: list[str] = []
    first = required[0]
    same = "is" if what == "dtype" else "=="
    for other in params:
        if other is first:
            continue
        pair = (f"{what}:{first.name}", other.name)
        if pair in w.read:
            continue
        w.read[pair] = "proven"
        if is_required(other):
            left = w.attribute(first.name, what)
            tests.append(f"{w.read.get((other.name, what), f'{w.var(other.name)}.{what}')} {same} {left}")
        else:
            if (first.name, what) not in w.read:
                w.line(f"{w.attribute(first.name, what)}")
            left = w.attribute(first.name, what)
            tests.append(f"(not ({w.given(other)}) or {w.var(other.name)}.{what} {same} {left})")
    return tests


def _tensors(values: tuple[Any, ...]) -> list[torch.Tensor]:
    return [v for v in values if isinstance(v, torch.Tensor)]


def _one_dtype(*values: Any) -> bool:
    return len({t.dtype for t in _tensors(values)}) <= 1


def _one_device(*values: Any) -> bool:
    return len({t.device for t in _tensors(values)}) <= 1


def _first_overlaps(*values: Any) -> bool:
    first = values[0]
    return isinstance(first, torch.Tensor) and any(shares_bytes(first, t) for t in _tensors(values[1:]))


def _overlaps(*values: Any) -> bool:
    given = _tensors(values)
    return any(shares_bytes(a, b) for i, a in enumerate(given) for b in given[i + 1 :])


def _writable(tensor: Any) -> bool:
    return all(size <= 1 or stride != 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


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
        filename = f"{filename[:-1]} #{len(linecache.cache)}>"
    linecache.cache[filename] = (len(source.text), None, lines, filename)
    # No __name__ in these globals: Dynamo would look the values up in the module of that name.
    scope: dict[str, Any] = {**source.values, **values, "__tracebackhide__": True}
    exec(compile(source.text, filename, "exec"), scope)
    scope.pop("unready", None)
    function: Callable[..., Any] = scope.pop("guarded")
    return function


def shim_source(plan: GuardPlan, label: str) -> GuardSource:
    """Text of a function of the same signature that packs its arguments, for stock to wrap."""
    parameters = [p for p in plan.terms.signature.parameters if not p.is_field]
    everything = ", ".join(x.name for x in parameters) + ("," if len(parameters) == 1 else "")
    text = f"def guarded({_signature_text(parameters, '_')}):\n    return _judged(({everything}))\n"
    return GuardSource(text, {}, f"<tensorpact shim {label}>")


def unready_source(body: Callable[..., Any], label: str) -> GuardSource:
    """Text of a method that builds its guard at the first call."""
    parameters = [
        Parameter(p.name, p.kind, p.default, EMPTY, None, EMPTY, True)
        for p in inspect.signature(body).parameters.values()
    ]
    text = (
        f"def unready({_signature_text(parameters, '_')}):\n"
        f"    return _build({parameters[0].name})({_call_text(parameters)})\n"
        "guarded = unready\n"
    )
    return GuardSource(text, {}, f"<tensorpact guard {label} before its first call>")
