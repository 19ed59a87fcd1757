"""What the parameters of a function are: tensors, whole numbers, or arguments that may be None."""

import ast
import re
from dataclasses import dataclass

from ._syntax import constant, is_none_test, words

_TELLING = words("shape ndim stride is_contiguous is_cuda numel dim size contiguous element_size data_ptr view reshape")
#: Names that a hint may read without an import of the module that it was written in.
_KNOWN = words(
    "int float bool str bytes object list tuple dict set None Optional Union Literal Any List Tuple Dict Callable "
    "Sequence Mapping Iterable torch typing"
)


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter.

    Attributes:
        name: Its name.
        tensor: Whether it is one tensor.
        optional: Whether it may be None.
        absent: Whether None is its default.
        hint: Its hint as written, where it is no tensor and the hint means the same anywhere.
        starred: Whether it collects what is left.
        required: Whether it has no default.
    """

    name: str
    tensor: bool
    optional: bool
    absent: bool
    hint: str | None
    starred: bool
    required: bool


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Argument]:
    """The parameters of a function, in order."""
    spec = function.args
    plain = [*spec.posonlyargs, *spec.args]
    defaults: dict[str, ast.expr | None] = dict.fromkeys((a.arg for a in plain), None)
    defaults |= dict(zip([a.arg for a in plain][len(plain) - len(spec.defaults) :], spec.defaults, strict=True))
    defaults |= {a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)}
    used = _uses(function)
    tested = {t[0] for n in ast.walk(function) if (t := is_none_test(n)) is not None}
    typed = _asked_for_type(function)
    found: dict[str, Argument] = {}
    starred = [a for a in (spec.vararg, spec.kwarg) if a is not None]
    for a in [*plain, *([spec.vararg] if spec.vararg else []), *spec.kwonlyargs, *([spec.kwarg] if spec.kwarg else [])]:
        text = _text(a.annotation)
        default = defaults.get(a.arg)
        absent = default is not None and constant(default) is None
        says_none = "Optional" in text or re.search(r"\bNone\b", text) is not None
        tensor = a not in starred and _is_tensor(a.arg, text, used.get(a.arg, set()), default)
        hint = None
        if text and not tensor and a not in starred and a.arg not in typed and _portable(text):
            hint = text if says_none or not absent or text in ("Any", "object") else f"{text} | None"
        found[a.arg] = Argument(
            a.arg,
            tensor,
            absent or says_none or (tensor and a.arg in tested),
            absent,
            hint,
            a in starred,
            default is None,
        )
    return found


def _text(annotation: ast.expr | None) -> str:
    if annotation is None:
        return ""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return ast.unparse(annotation)


def _is_tensor(name: str, text: str, used: set[str], default: ast.expr | None) -> bool:
    if text:
        bare = re.sub(r"Optional\[(.*)\]$", r"\1", text.replace("typing.", "")).replace(" ", "")
        members = [m for m in bare.split("|") if m not in ("None", "")]
        last = [m.rpartition(".")[2] for m in members]
        if last == ["Tensor"] or (len(last) == 1 and last[0].endswith("Tensor") and "[" not in last[0]):
            return True
        if re.match(
            r"\w*(Float|Int|Shaped|Num|Bool|Integer|BFloat16)\w*\[(torch\.)?Tensor,", members[0] if members else ""
        ):
            return True
        if any("[" in m or m in ("int", "float", "bool", "str", "list", "tuple", "dict") for m in members):
            return False
        if len(members) != 1 or members[0] not in ("Any", "object"):
            return False
    if default is not None and constant(default) not in (None, ...):
        return False
    return name not in ("self", "cls", "ctx") and len(used & _TELLING) >= 1 and not used & {"append", "keys", "items"}


def _uses(function: ast.AST) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for n in ast.walk(function):
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name):
            found.setdefault(n.value.id, set()).add(n.attr)
    return found


def _asked_for_type(function: ast.AST) -> set[str]:
    """Parameters whose type the function asks for itself: a hint would be judged before its own words."""
    return {
        n.args[0].id
        for n in ast.walk(function)
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Name)
        and n.func.id in ("isinstance", "type", "callable")
        and n.args
        and isinstance(n.args[0], ast.Name)
    }


def _portable(text: str) -> bool:
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    # The members of a Literal are values, not names.
    return all(n.id in _KNOWN for n in ast.walk(tree) if isinstance(n, ast.Name)) and "Tensor" not in text
