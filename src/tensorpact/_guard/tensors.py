"""Text of the checks of one parameter: type, dtype, axes, constraints."""

from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling

from tensorpact._annotations import EMPTY, Parameter
from tensorpact._axis_names import ATTRIBUTE
from tensorpact._dims import Dim, DimKind
from tensorpact._fitting import broadcastable
from tensorpact.constraints import Constraint, Contiguous, DenseLast, NamedAxes, OnDevice, OneOf, SameDtype

from .plan import is_required, is_torch, reads_unsure
from .runtime import DtypeFits, FormFits, Solve, WithArguments, writable
from .writer import BARE, BROADCAST, SOLVED, Pending, Writer, unless, words


def write_scalar(w: Writer, parameter: Parameter) -> None:
    """The check of a parameter that is no tensor."""
    check = w.terms.checks[parameter.name].other
    if check is None:
        return
    name = w.var(parameter.name)
    options = [f"{w.builtin(type)}({name}) is {w.builtin(t)}" for t in check.exact]
    if parameter.optional:
        options.insert(0, f"{name} is None")
    options.append(f"{w.value(f'check_{parameter.name}', check)}({name})")
    w.test(f"({' or '.join(options)})")


def write_tensor(w: Writer, parameter: Parameter) -> None:
    """All checks of a tensor parameter; axes whose dims are not known yet wait in ``w.later``."""
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
        if isinstance(constraint, NamedAxes):
            # A tracer has no business with attributes of tensors.
            w.test(f"({w.value('is_compiling', is_compiling)}() or {_constraint_text(w, parameter, constraint, i)})")
        elif not isinstance(constraint, (OneOf, SameDtype)):
            w.test(_constraint_text(w, parameter, constraint, i))
    if name in w.terms.contract.mutates:
        stays = w.value("writable", writable)
        w.test(f"({w.var(name)}.is_contiguous() or {stays}({w.var(name)}))")


def write_unremembered(w: Writer, parameter: Parameter) -> None:
    """The checks of a parameter that its signature does not settle: addresses and validators."""
    spec, name = parameter.tensor, parameter.name
    if spec is None:
        return
    condition = "" if is_required(parameter) else f"{unless(w.given(parameter))} or "
    extra = w.terms.checks[name].extra
    if extra is not None:
        w.test(f"({condition}{w.value(f'extra_{name}', extra)}({w.var(name)}))")
    for i, constraint in enumerate(spec.constraints):
        if not constraint.settled:
            w.test(f"({condition}{_constraint_text(w, parameter, constraint, i)})")


def _write_dtype(w: Writer, parameter: Parameter) -> None:
    spec, name = parameter.tensor, parameter.name
    if spec is None or name in w.plan.implied:
        return
    if not is_torch(parameter):
        if spec.dtypes() is not None or any(f.dtypes is not None for f in spec.forms):
            w.test(f"{w.value(f'dtype_fits_{name}', DtypeFits(parameter))}({w.var(name)})")
        return
    allowed = spec.dtypes()
    if allowed is None:
        return
    read = w.attribute(name, "dtype")
    if len(allowed) == 1:
        w.test(f"{read} is {w.value(f'dtype_{name}', allowed[0])}")
    else:
        w.test(f"{read} in {w.value(f'dtypes_{name}', allowed)}")


def _known_size(w: Writer, dim: Dim) -> str | None:
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


def _expression_text(w: Writer, dim: Dim) -> str:
    expression = dim.expression
    if expression is None:
        return ""
    label = f"axis_{words(dim.text)}"
    evaluate: Callable[..., Any] = expression.function
    if expression.parts:
        evaluate = WithArguments(expression.names, expression.arguments, expression.evaluate)
    while w.values.get(f"{w.prefix}{label}", None) is not None and not _same(w.values[f"{w.prefix}{label}"], evaluate):
        label += "_"
    known = w.values.get(f"{w.prefix}{label}")
    function = w.value(label, evaluate if known is None else known)
    return f"{function}({', '.join([*(w.dim(n) for n in expression.names), *expression.arguments])})"


def _same(known: Any, other: Any) -> bool:
    if isinstance(known, WithArguments) or isinstance(other, WithArguments):
        return False
    return (
        known.__code__.co_code == other.__code__.co_code
        and known.__code__.co_consts == other.__code__.co_consts
        and (
            known.__code__.co_varnames == other.__code__.co_varnames
            and known.__code__.co_names == other.__code__.co_names
        )
    )


def _write_axes(w: Writer, parameter: Parameter) -> None:
    spec, name = parameter.tensor, parameter.name
    if spec is None:
        return
    free = [d.kind is DimKind.ANONYMOUS or (d.name in w.plan.unread and not d.expression) for d in spec.dims]
    if all(free):
        x, strided = w.var(name), w.value("strided", torch.strided)
        # A nested tensor of the old layout has a rank and no sizes; where sizes are read, reading them fails.
        w.test(f"{x}.ndim == {len(free)} and not ({x}.is_nested and {x}.layout is {strided})")
        return
    known = [None if f else _known_size(w, d) for d, f in zip(spec.dims, free, strict=True)]
    if all(k is not None for k in known):
        sizes = ", ".join(k for k in known if k is not None) + ("," if len(known) == 1 else "")
        w.test(w.sizes(f"{w.var(name)}.shape", f"({sizes})"))
        return
    targets: list[str] = []
    checks: list[tuple[Dim, str]] = []
    for dim, ignored in zip(spec.dims, free, strict=True):
        if ignored:
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


def _binds(w: Writer, dim: Dim) -> bool:
    return (
        dim.name in w.plan.sure
        and dim.kind in (DimKind.NAMED, DimKind.VARIADIC)
        and not dim.broadcast
        and (dim.name not in w.bound and dim.name not in w.terms.contract.tied)
    )


def _write_variadic(w: Writer, parameter: Parameter) -> None:
    spec, name = parameter.tensor, parameter.name
    variadic = spec.forms[0].variadic if spec is not None else None
    if spec is None or variadic is None:
        return
    shape, rank, count = w.temporary(), w.temporary(), len(spec.dims)
    w.line(f"{shape} = {w.var(name)}.shape")
    w.line(f"{rank} = {w.builtin(len)}({shape})")
    w.test(f"{rank} >= {count - 1}")
    for i, dim in enumerate(spec.dims):
        if dim.kind in (DimKind.ANONYMOUS, DimKind.ELLIPSIS) or dim.name in w.plan.unread:
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


def _write_axis(w: Writer, parameter: Parameter, dim: Dim, size: str) -> None:
    """Compare one axis that was read into a variable, now or when its dims are known."""
    condition = "" if is_required(parameter) else w.given(parameter)
    known = _known_size(w, dim)
    if known is not None:
        w.test(w.sizes(size, known) if dim.variadic else w.equal(size, known))
        return
    if parameter.repeated:
        _write_item_axis(w, dim, size)
        return
    if dim.kind is DimKind.FIXED:
        w.test(w.one_or(size, str(dim.size)))
        return
    terms, plan = w.terms, w.plan
    if dim.expression is not None:
        free = [n for n in dim.names if terms.solved.get(n) is not None and terms.solved[n].dim is dim]
        if free and free[0] not in w.bound:
            others = tuple(n for n in dim.names if n != free[0])
            solve = w.value(f"solve_{free[0]}", Solve(dim, free[0], others))
            arguments = [*(w.dim(n) for n in others), *dim.expression.arguments]
            place = SOLVED + list(terms.solved).index(free[0])
            text = f"{w.dim(free[0])} = {solve}({', '.join([size, *arguments])})"
            w.later.append(Pending(text, frozenset(others), order=place))
            w.later.append(Pending(f"{w.dim(free[0])} is not None", frozenset(free)))
            return
        expected = _expression_text(w, dim)
    else:
        expected = w.dim(dim.name)
    equal = w.sizes(size, expected) if dim.variadic else w.equal(size, expected)
    if dim.kind is DimKind.VARIADIC and dim.broadcast:
        equal = f"{w.value('broadcastable', broadcastable)}({size}, {expected}) == {expected}"
    elif dim.broadcast:
        equal = w.one_or(size, expected)
    unsure = [n for n in dim.names if n in plan.conditions and n not in terms.lets]
    if not unsure:
        lets = reads_unsure(tuple(n for n in dim.names if n in terms.lets), plan.conditions)
        text = " or ".join([*(f"{w.dim(n)} is None" for n in sorted(lets)), equal])
        w.later.append(Pending(f"({text})" if lets else equal, frozenset(dim.names), condition))
        return
    variable = w.dim(dim.name)
    tests = [f"({condition})"] if condition else []
    tests += [f"{variable} is None"] + ([f"not {w.is_one(size)}"] if dim.broadcast else [])
    step = f"{variable} = {size} if {' and '.join(tests)} else {variable}"
    w.later.append(Pending(step, frozenset(), order=BROADCAST if dim.broadcast else BARE))
    w.later.append(Pending(equal, frozenset(dim.names), condition))


def _write_item_axis(w: Writer, dim: Dim, size: str) -> None:
    """Compare an axis inside a loop, where nothing can wait: the plan has seen to that."""
    if dim.broadcast:
        expected = str(dim.size) if dim.kind is DimKind.FIXED else w.dim(dim.name)
        w.test(w.one_or(size, expected))
        return
    w.line(f"if {w.dim(dim.name)} is None:")
    w.line(f"    {w.dim(dim.name)} = {size}")
    w.test(w.sizes(size, w.dim(dim.name)) if dim.variadic else w.equal(size, w.dim(dim.name)))


def _write_union(w: Writer, parameter: Parameter) -> None:
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
        shape, options = f"{w.prefix}shape_{words(name)}", list[str]()
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
                text += f" and {w.var(name)}.dtype in {w.value(f'dtypes_{name}_{i}', form.torch_dtypes())}"
            options.append(f"({text})" if " and " in text else text)
        w.line(f"{shape} = {w.var(name)}.shape")
        w.later.append(Pending(f"({' or '.join(options)})", frozenset(names), condition))
        return
    if limit is not None and is_torch(parameter):
        w.test(f"{w.attribute(name, 'dtype')} in {w.value(f'dtypes_{name}', limit)}")
    arguments = tuple(
        dict.fromkeys(a for f in spec.forms for d in f.dims if d.expression for a in d.expression.arguments)
    )
    fits = w.value(f"form_fits_{name}", FormFits(parameter, tuple(names), arguments))
    call = f"{fits}({', '.join([w.var(name), *(w.dim(n) for n in names), *arguments])})"
    w.later.append(Pending(call, frozenset(names), condition))


def _constraint_text(w: Writer, parameter: Parameter, constraint: Constraint, index: int) -> str:
    x, spec = w.var(parameter.name), parameter.tensor
    axes = 0 if spec is None else min(len(f.dims) - (f.variadic is not None) for f in spec.forms)
    if isinstance(constraint, Contiguous):
        return f"{x}.is_contiguous()"
    if isinstance(constraint, NamedAxes):
        named = f"{w.builtin(getattr)}({x}, {ATTRIBUTE!r}, None) is None"
        return f"({named} or {w.value(f'constraint_{parameter.name}_{index}', constraint)}.holds({x}))"
    if isinstance(constraint, DenseLast) and axes > 0:
        if constraint.strict:
            return f"{x}.stride()[-1] == 1"
        holds = f"{w.value(f'constraint_{parameter.name}_{index}', constraint)}.holds({x})"
        return f"({x}.is_contiguous() or {x}.stride()[-1] == 1 or {holds})"
    if isinstance(constraint, OnDevice) and constraint.types in (("cuda",), ("cpu",)):
        return f"{x}.is_{constraint.types[0]}"
    return f"{w.value(f'constraint_{parameter.name}_{index}', constraint)}.holds({x})"
