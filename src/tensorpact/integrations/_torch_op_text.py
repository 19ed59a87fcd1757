"""The two functions around an operator: what calls it outside, and the kernel that it runs."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, cast

import torch

from tensorpact import _guard
from tensorpact._annotations import EMPTY, Parameter
from tensorpact._errors import ContractDefinitionError
from tensorpact._guard import is_required
from tensorpact._guard.writer import call_text, signature_text
from tensorpact._terms import Terms
from tensorpact.clauses import lambda_parameters

from ._torch_op_results import Form, Results
from ._torch_op_schema import Argument


class Texts:
    """Writes functions of the signature of a contracted one.

    Args:
        terms: The contract laid on the signature.
        arguments: The parameters of the operator.
        results: What it returns.
        convert: Parameter to the rule of arguments that gives what the operator is handed in its place.
        prefix: Prefix of names that are no parameter.
        body: The undecorated function, for its defaults and names.
    """

    def __init__(
        self,
        terms: Terms,
        arguments: tuple[Argument, ...],
        results: Results,
        convert: Mapping[str, Callable[..., Any]],
        prefix: str,
        body: FunctionType,
    ) -> None:
        self._terms = terms
        self._arguments = arguments
        self._results = results
        self._convert = convert
        self._prefix = prefix
        self._body = body
        self._parameters: list[Parameter] = list(terms.signature.parameters)
        self._handed = [argument.parameter for argument in arguments]
        self._left_out = [p for p in self._parameters if p not in self._handed]

    def outer(self, name: str, overload: Any, differentiable: bool, rule: Callable[..., Any] | None) -> FunctionType:
        """The function that hands a call to the operator, and builds what the annotation says of what it returns.

        Args:
            name: Name of the operator.
            overload: The operator.
            differentiable: Whether it has a backward, so that a gradient may be asked for.
            rule: Tells the form of what comes back, where there are several.
        """
        p, call = self._prefix, f"{self._prefix}op({call_text(self._handed)})"
        values: dict[str, Any] = {f"{p}op": overload}
        lines = self._refusals(name, values)
        if self._convert:
            handed = [f"{p}convert_{x}({', '.join(lambda_parameters(rule))})" for x, rule in self._convert.items()]
            # In one assignment, so that each rule reads what the caller gave.
            lines.append(f"    {', '.join(self._convert)} = {', '.join(handed)}")
            values |= {f"{p}convert_{x}": rule for x, rule in self._convert.items()}
        asks = " or ".join(self._asks_gradient())
        if asks and not differentiable:
            values |= {f"{p}grad": torch.is_grad_enabled, f"{p}refuse": _refusing(name), f"{p}asks": _asks_gradient}
            lines += [f"    if {p}grad() and ({asks}):", f"        {p}refuse()"]
        (form, *_) = forms = self._results.forms
        if self._results.listed:
            lines += [f"    {p}r = {call}", f"    {p}n = {p}len({p}r)"]
            values[f"{p}len"] = len
            for f in forms[:-1]:
                lines.append(f"    if {p}n == {len(f.results)}:")
                lines.append(f"        return {self._rebuilt(f, f'{p}r', values)}")
            lines.append(f"    return {self._rebuilt(forms[-1], f'{p}r', values)}")
        elif self._results.padded and rule is not None:
            values[f"{p}form"] = rule
            single = self._results.most == 1
            lines += [
                f"    {p}r = {f'({call},)' if single else call}",
                f"    {p}n = {p}form({', '.join(lambda_parameters(rule))})",
            ]
            for i, f in enumerate(forms):
                lines += [f"    if {p}n == {i}:", f"        return {self._rebuilt(f, f'{p}r', values)}"]
        elif not form.fresh:
            lines += [f"    {call}", f"    return {self._rebuilt(form, '', values)}"]
        elif form.shape == "one" or (form.build is tuple and len(form.fresh) == len(form.results) > 1):
            lines.append(f"    return {call}")
        else:
            single = len(form.fresh) == 1
            lines += [
                f"    {p}r = {f'({call},)' if single else call}",
                f"    return {self._rebuilt(form, f'{p}r', values)}",
            ]
        made = self._function(self._parameters, lines, values, f"<tensorpact operator {name}>")
        made.__annotations__ = {x.name: x.hint for x in self._parameters if x.hint is not EMPTY}
        made.__annotations__["return"] = self._terms.signature.returns
        return made

    def kernel(self, name: str, body: Callable[..., Any]) -> Callable[..., Any]:
        """The function that an operator runs: a body, between what the dispatcher knows and what it does not.

        Args:
            name: Name of the operator.
            body: What takes the arguments of the contracted function, and returns what that returns.
        """
        p = self._prefix
        values: dict[str, Any] = {f"{p}body": body}
        lines: list[str] = []
        for left_out in self._left_out:
            values[f"{p}default_{left_out.name}"] = left_out.default
            lines.append(f"    {left_out.name} = {p}default_{left_out.name}")
        for argument in self._arguments:
            if argument.type.restore is not None:
                x = argument.parameter.name
                values[f"{p}restore_{x}"] = argument.type.restore
                lines.append(f"    {x} = {p}restore_{x}({x})")
        call = f"{p}body({call_text(self._parameters)})"
        form = self._results.forms[0]
        if self._results.listed:
            values[f"{p}flat"] = _flat
            lines.append(f"    return {p}flat({call})")
        elif self._results.padded:
            values |= {f"{p}flat": _flat, f"{p}pad": _padding(self._results.most)}
            written = [x for x in self._handed if x.name in self._terms.contract.mutates]
            # One that is never None, if there is one, so that no tensor of another device is in a graph.
            like = min(written, key=lambda x: not is_required(x))
            lines.append(f"    return {p}pad({p}flat({call}), {like.name})")
        elif form.shape == "none":
            lines.append(f"    {call}")
        elif form.shape == "one":
            lines += [f"    {p}r = ({call},)", *self._returned(form, name, values)]
        else:
            lines += [f"    {p}r = {call}", *self._returned(form, name, values)]
        return self._function(self._handed, lines, values, f"<tensorpact kernel {name}>")

    def _refusals(self, name: str, values: dict[str, Any]) -> list[str]:
        """Text that refuses values for parameters that the operator does not have."""
        p, lines = self._prefix, list[str]()
        for left_out in self._left_out:
            x, default = left_out.name, left_out.default
            values |= {f"{p}default_{x}": default, f"{p}without": _refusing_value(name)}
            differs = f"{x} is not None" if default is None else f"{x} != {p}default_{x}"
            lines += [f"    if {differs}:", f"        {p}without({x!r}, {p}default_{x})"]
        return lines

    def _returned(self, form: Form, name: str, values: dict[str, Any]) -> list[str]:
        """Text that looks at what a body returned, and returns what is no argument."""
        p = self._prefix
        lines: list[str] = []
        for i, result in enumerate(form.results):
            if result.argument is not None:
                values[f"{p}other"] = _other_object(name)
                lines += [f"    if {p}r[{i}] is not {result.argument}:", f"        {p}other({result.argument!r})"]
        fresh = [f"{p}r[{i}]" for i, result in enumerate(form.results) if result.argument is None]
        if len(fresh) == 1:
            lines.append(f"    return {fresh[0]}")
        elif fresh:
            lines.append(f"    return ({', '.join(fresh)})")
        return lines

    def _rebuilt(self, form: Form, returned: str, values: dict[str, Any]) -> str:
        """Text of what the annotation says, made of what an operator returned and of arguments."""
        if form.shape == "none":
            return "None"
        places = iter(range(len(form.fresh)))
        items = [r.argument or f"{returned}[{next(places)}]" for r in form.results]
        if form.shape == "one":
            return items[0]
        text = f"({', '.join(items)},)"
        if form.build is tuple:
            return text
        build = f"{self._prefix}build_{self._results.forms.index(form)}"
        values[build] = form.build
        return f"{build}({text})"

    def _asks_gradient(self) -> list[str]:
        found: list[str] = []
        for argument in self._arguments:
            x, spec = argument.parameter.name, argument.parameter.tensor
            # A plain `Tensor`, and a list of tensors, may be of any dtype.
            dtypes = (None if spec is None else spec.dtypes()) or (torch.float32,)
            if not argument.is_tensor or not any(d.is_floating_point or d.is_complex for d in dtypes):
                continue
            if "[]" in argument.type.text:
                found.append(f"{self._prefix}asks({x})")
            else:
                optional = argument.type.text.endswith("?")
                found.append(f"({x} is not None and {x}.requires_grad)" if optional else f"{x}.requires_grad")
        return found

    def _function(
        self, parameters: list[Parameter], lines: list[str], values: dict[str, Any], filename: str
    ) -> FunctionType:
        text = "\n".join([f"def guarded({signature_text(parameters)}):", *lines]) + "\n"
        made = cast(FunctionType, _guard.build(_guard.GuardSource(text, values, filename), {}))
        named = [x for x in parameters if x.kind is inspect.Parameter.KEYWORD_ONLY]
        placed = [x for x in parameters if x not in named]
        made.__defaults__ = tuple(x.default for x in placed if x.default is not EMPTY)
        made.__kwdefaults__ = {x.name: x.default for x in named if x.default is not EMPTY}
        made.__name__, made.__qualname__ = self._body.__name__, self._body.__qualname__
        made.__module__, made.__doc__ = self._body.__module__, self._body.__doc__
        return made


def _asks_gradient(tensors: Sequence[torch.Tensor | None] | None) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in tensors or ())


def _flat(returned: Any) -> list[Any]:
    if returned is None:
        return []
    return [returned] if isinstance(returned, torch.Tensor) else list(returned)


def _padding(most: int) -> Callable[[list[Any], Any], Any]:
    def pad(returned: list[Any], written: Any) -> Any:
        # Whatever device and dtype the written argument has: nobody looks at the empty tensors.
        if written is None or isinstance(written, (list, tuple)):
            made = [torch.empty(0) for _ in range(most - len(returned))]
        else:
            made = [written.new_empty(0) for _ in range(most - len(returned))]
        found = (*returned, *made)
        return found if most > 1 else found[0]

    return pad


def _refusing(name: str) -> Callable[[], None]:
    def refuse() -> None:
        raise RuntimeError(
            f"{name} has no backward, and an argument requires a gradient: call it under torch.no_grad(), or register "
            "it with backward=…"
        )

    return refuse


def _refusing_value(name: str) -> Callable[[str, Any], None]:
    def refuse(argument: str, default: Any) -> None:
        raise TypeError(f"{name} has no {argument}: leave it {default!r}, as the operator does")

    return refuse


def _other_object(name: str) -> Callable[[str], None]:
    def other(argument: str) -> None:
        raise ContractDefinitionError(
            f"{name}: the function is registered to return its argument {argument}, and returned another object"
        )

    return other
