"""The draft as Python: errors, the contract, the decorated signature."""

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Sequence

import libcst as cst

from ._axes import Facts
from ._clauses import Error, Item, Member
from ._source import Source
from ._syntax import names_in
from ._tensors import Argument

WIDTH = 120


class Writer:
    """Writes one draft.

    Args:
        source: The function and its module.
        arguments: Its parameters.
        facts: Their annotations.
        items: What the contract says.
        imports: Imports made inside the function.
    """

    def __init__(
        self,
        source: Source,
        arguments: dict[str, Argument],
        facts: Facts,
        items: Sequence[Item],
        imports: dict[str, str],
    ) -> None:
        self.source, self.arguments, self.facts, self.items = source, arguments, facts, items
        self.known = {**source.imports, **imports}
        self.outside: set[str] = set()
        self.verbs: set[str] = set()
        self.families: set[str] = set()
        self.constraints: set[str] = set()
        self.texts: set[str] = set()
        self.contract = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", source.bare_name).upper().strip("_")
        self.renamed: dict[str, str] = {}

    def text(self, heading: str) -> str:
        """The whole draft."""
        errors = list({i.error.slug: i.error for i in self.items if i.error is not None}.values())
        self._avoid_clashes(errors)
        hints = {n: self._hint(a) for n, a in self.arguments.items()}
        body = [self._error(e) for e in errors]
        clauses = self._contract()
        signature = self._signature(hints)
        docstring = f'"""{heading}"""\n'
        parts = [docstring, self._imports(hints), *([] if not body else ["\n".join(body)]), clauses]
        return "\n".join(p.rstrip("\n") + "\n" for p in parts if p) + "\n\n" + signature

    def _avoid_clashes(self, errors: Iterable[Error]) -> None:
        """Verbs that the function uses as parameter names stay usable: the parameters are text; constants are not."""
        taken = {self.contract, *self.arguments, *self.known, *self.source.constants}
        for error in errors:
            name = error.constant
            while name in taken:
                name += "_ERROR"
            taken.add(name)
            self.renamed[error.slug] = name

    # -- pieces -----------------------------------------------------------------------------------------------------

    def _error(self, error: Error) -> str:
        template = error.template
        arguments = [_literal(error.slug), self._outer(error.exception), _literal(template.text)]
        if template.fields:
            pairs = [f"{_literal(n)}: {self._lambda(e, in_field=True)}" for n, e in template.fields.items()]
            arguments.append("fields=" + _wrapped("{", pairs, "}", 4, "fields="))
        return f"{self.renamed[error.slug]} = " + _wrapped(
            "DocumentedError(", arguments, ")", 0, f"{self.renamed[error.slug]} = "
        )

    def _contract(self) -> str:
        lines: list[str] = []
        for item in self.items:
            lines += self._item(item)
        name = _literal(self.source.bare_name)
        if not any(not line.lstrip().startswith("#") for line in lines):
            return f"{self.contract} = Contract({name})" + (
                "\n" + "\n".join(line.strip() for line in lines) if lines else ""
            )
        inner = "\n".join(lines)
        return f"{self.contract} = Contract(\n    {name},\n    clauses=[\n{inner}\n    ],\n)"

    def _item(self, item: Item) -> list[str]:
        pad = " " * 8
        if item.problem is not None or item.remark is not None:
            what = f"not translated, {item.problem}" if item.problem is not None else item.remark
            return [*_comment(f"line {item.line}: {item.text}", pad), *_comment(f"^ {what}", pad)]
        tail: list[str] = []
        if item.when is not None:
            tail.append(f"when={self._lambda(item.when)}")
        if item.error is not None:
            tail.append(f"error={self.renamed[item.error.slug]}")
        if item.rule is not None:
            head, arguments = "require(", [self._lambda(item.rule), *tail]
            self.verbs.add("require")
        elif len(item.members) == 1:
            head, arguments = f"{self._verb(item.members[0].verb)}(", [*_arguments(item.members[0]), *tail]
        else:
            members = [f"{self._verb(m.verb)}({', '.join(_arguments(m))})" for m in item.members]
            head, arguments = f"{self._verb('any_of')}(", [*members, *tail]
        note = f"  # line {item.line}"
        text = pad + _wrapped(head, arguments, ")", 8, pad, len(note) + 1) + ","
        first, *rest = text.split("\n")
        return [first + note, *rest]

    def _verb(self, verb: str) -> str:
        self.verbs.add(verb)
        return f"{verb}_of" if verb in self.arguments or verb in self.outside else verb

    def _lambda(self, node: ast.expr, in_field: bool = False) -> str:
        read = names_in(node)
        dims = set(self.facts.names.values())
        wanted = [n for n in self.arguments if n in read] + sorted(
            n for n in read if n in dims and n not in self.arguments
        )
        self._note_outside(read - set(wanted))
        if in_field and not wanted:
            return f"lambda: {ast.unparse(node)}"
        return f"lambda{' ' if wanted else ''}{', '.join(wanted)}: {_quoted(node)}"

    def _outer(self, node: ast.expr) -> str:
        self._note_outside(names_in(node))
        return ast.unparse(node)

    def _note_outside(self, names: Iterable[str]) -> None:
        self.outside |= {n for n in names if not hasattr(builtins, n) or n in self.known or n in self.source.constants}

    def _hint(self, argument: Argument) -> str | None:
        if argument.tensor:
            return self.facts.hint(argument.name, self.families, self.constraints)
        if argument.hint is not None:
            self.texts |= names_in(ast.parse(argument.hint, mode="eval"))
        return argument.hint

    # -- signature --------------------------------------------------------------------------------------------------

    def _signature(self, hints: dict[str, str | None]) -> str:
        written = self.source.written
        for node in (*self.source.function.args.defaults, *self.source.function.args.kw_defaults):
            if node is not None:
                self._note_outside(names_in(node))
        changed = written.params.visit(_Annotate(hints))
        if not isinstance(changed, cst.Parameters):
            raise TypeError(f"{self.source.name}: the parameters came back as {type(changed).__name__}")
        text = cst.Module([]).code_for_node(changed)
        keyword = "async def" if written.asynchronous is not None else "def"
        head = f"{keyword} {self.source.bare_name}("
        inside = cst.Module([]).code_for_node(written.whitespace_before_params)
        if "\n" in text or "\n" in inside:
            rows = _rows((inside + text).split("\n"))
            text = head + "\n" + "\n".join(rows) + "\n):"
        elif len(head + text) + 2 > WIDTH:
            parts = _split(text)
            text = head + "\n" + "\n".join(f"    {p}," for p in parts) + "\n):"
        else:
            text = f"{head}{text}):"
        return f'@contract({self.contract})\n{text}\n    """The body goes here, without the checks above."""\n'

    # -- imports ----------------------------------------------------------------------------------------------------

    def _imports(self, hints: dict[str, str | None]) -> str:
        plain: set[str] = set()
        froms: dict[str, set[str]] = {}
        used = " ".join(h for h in hints.values() if h)
        if "Annotated[" in used:
            froms.setdefault("typing", set()).add("Annotated")
        for name in self.texts & {
            "Optional",
            "Union",
            "Literal",
            "Any",
            "List",
            "Tuple",
            "Dict",
            "Callable",
            "Sequence",
            "Mapping",
            "Iterable",
        }:
            froms.setdefault(
                "typing" if name not in ("Sequence", "Mapping", "Iterable", "Callable") else "collections.abc", set()
            ).add(name)
        if "typing" in self.texts:
            plain.add("import typing")
        if "torch." in used:
            plain.add("import torch")
        if self.families:
            froms["jaxtyping"] = set(self.families)
            froms["torch"] = {"Tensor"}
        froms["tensorpact"] = {"Contract", "contract", *(["DocumentedError"] if self.renamed else [])}
        if self.verbs:
            froms["tensorpact.clauses"] = {
                f"{v} as {v}_of" if v in self.arguments or v in self.outside else v for v in self.verbs
            }
        if self.constraints:
            froms["tensorpact.constraints"] = set(self.constraints)
        copied: list[str] = []
        for name in sorted(self.outside):
            statement = self.known.get(name)
            if statement is not None and statement.startswith("import "):
                plain.add(statement)
            elif statement is not None:
                home, _, what = statement.removeprefix("from ").partition(" import ")
                froms.setdefault(home, set()).add(what)
            elif name in self.source.constants and _is_literal(self.source.constants[name]):
                copied.append(f"{name} = {_quoted(self.source.constants[name])}")
                if "torch." in copied[-1]:
                    plain.add("import torch")
            else:
                froms.setdefault(self.source.module, set()).add(name)
        groups: dict[bool, list[str]] = {True: [], False: []}
        for statement in sorted(plain):
            groups[_is_standard(statement.split()[1])].append(statement)
        for home, names in sorted(froms.items()):
            groups[_is_standard(home)].append(_wrapped(f"from {home} import ", sorted(names), "", 0, "", bare=True))
        blocks = ["\n".join(g) for g in groups.values() if g]
        return "\n\n".join([*blocks, *(["\n".join(copied)] if copied else [])])


def _is_standard(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in sys.stdlib_module_names


class _Annotate(cst.CSTTransformer):
    """Puts hints at parameters, comments and defaults kept."""

    def __init__(self, hints: dict[str, str | None]) -> None:
        self.hints = hints

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> cst.Param:  # noqa: N802 - libcst calls it so
        hint = self.hints.get(original_node.name.value)
        annotation = None if hint is None else cst.Annotation(cst.parse_expression(hint))
        equal = cst.MaybeSentinel.DEFAULT
        if updated_node.default is not None:
            blank = cst.SimpleWhitespace(" " if annotation is not None else "")
            equal = cst.AssignEqual(blank, blank)
        return updated_node.with_changes(annotation=annotation, equal=equal)

    def visit_Lambda(self, node: cst.Lambda) -> bool:  # noqa: N802 - libcst calls it so
        return False


def _arguments(member: Member) -> list[str]:
    names = [_literal(n) for n in member.names]
    if member.verb == "same_dim":
        return [_literal(member.axes or ""), *names]
    return [*names, *([f"axes={_literal(member.axes)}"] if member.axes is not None else [])]


def _literal(text: str) -> str:
    shown = repr(text)
    if shown.startswith("'") and '"' not in shown:
        return f'"{shown[1:-1]}"'.replace("\\'", "'")
    return shown


class _Quotes(ast.NodeVisitor):
    """Whether any string constant of an expression holds a quote or a backslash."""

    def __init__(self) -> None:
        self.plain = True

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.plain = self.plain and not re.search(r"[\"'\\\n]", node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.plain = False


def _quoted(node: ast.expr) -> str:
    """An expression with double quotes, where no string of it needs single ones."""
    quotes = _Quotes()
    quotes.visit(node)
    text = ast.unparse(node)
    return text.replace("'", '"') if quotes.plain else text


def _is_literal(node: ast.expr) -> bool:
    """Numbers, strings, torch dtypes, and collections of them: nothing that could change."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return all(_is_literal(e) for e in node.elts)
    if isinstance(node, ast.Dict):
        return all(k is not None and _is_literal(k) for k in node.keys) and all(_is_literal(v) for v in node.values)
    if isinstance(node, ast.UnaryOp):
        return _is_literal(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_literal(node.left) and _is_literal(node.right)
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch"


def _comment(text: str, pad: str) -> list[str]:
    room = WIDTH - len(pad) - 2
    return [f"{pad}# {text if len(text) <= room else text[: room - 1] + '…'}"]


def _wrapped(
    head: str, arguments: list[str], tail: str, pad: int, before: str, after: int = 0, bare: bool = False
) -> str:
    """A call on one line where it fits, else an argument a line."""
    one = head + ", ".join(arguments) + tail
    if len(before) + len(one) + after <= WIDTH and "\n" not in one:
        return one
    inner = " " * (pad + 4)
    open_, close = ("(", ")") if bare else ("", tail)
    return f"{head}{open_}\n" + "".join(f"{inner}{a},\n" for a in arguments) + " " * pad + close


def _split(text: str) -> list[str]:
    """Parameters of one line, taken apart at the commas between them."""
    parts: list[str] = []
    depth, quote, last = 0, "", ""
    current = ""
    for c in text:
        if quote:
            quote = "" if c == quote and last != "\\" else quote
        elif c in "\"'":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and not depth:
            parts.append(current.strip())
            current, last = "", c
            continue
        current += c
        last = c
    return [p for p in [*parts, current.strip()] if p]


def _rows(lines: list[str]) -> list[str]:
    """The lines of a written-out signature, indented once; the last parameter with its comma."""
    rows = [line.strip() for line in lines]
    rows = [f"    {r}" for r in rows if r]
    code = [i for i, r in enumerate(rows) if not r.lstrip().startswith("#")]
    if code:
        at = code[-1]
        body, mark, comment = rows[at].partition("  #")
        if not body.rstrip().endswith(",") and not body.strip().startswith("*"):
            rows[at] = body.rstrip() + "," + (f"{mark}{comment}" if mark else "")
    return rows
