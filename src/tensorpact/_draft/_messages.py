"""From what an exception is made of to the template of a documented error."""

import ast
import builtins
import re
import string
from collections.abc import Collection
from dataclasses import dataclass, field

from ._syntax import UnreadableError, names_in, words

_SLUG = 48
_DULL = words(
    "the a an of to is be must should in for and or with got expected but it its that this are was has have not"
)


@dataclass(slots=True)
class Template:
    """A message template.

    Attributes:
        text: Body of an f-string.
        fields: Values that cannot stand in the text: field name to expression.
        literal: The words that every rendering has.
    """

    text: str = ""
    fields: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    literal: str = ""


class _Writer:
    def __init__(self, parameters: Collection[str]) -> None:
        self.parameters = parameters
        self.made = Template()

    def words(self, text: str) -> None:
        self.made.text += text.replace("{", "{{").replace("}", "}}")
        self.made.literal += text

    def value(self, node: ast.expr, conversion: str = "", spec: str = "") -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int)) and not spec and not conversion:
            self.words(str(node.value))
            return
        source = ast.unparse(node)
        if any(c in source for c in "{}!:\\'\"") or not self._readable(node):
            name = self._field(node)
            source = name
        self.made.text += "{" + source + conversion + (f":{spec}" if spec else "") + "}"

    def _readable(self, node: ast.expr) -> bool:
        names = names_in(node)
        return not names & {"name", "names", "self"} and all(
            n in self.parameters or hasattr(builtins, n) for n in names
        )

    def _field(self, node: ast.expr) -> str:
        for name, known in self.made.fields.items():
            if ast.dump(known) == ast.dump(node):
                return name
        base = re.sub(r"\W+", "_", ast.unparse(node)).strip("_").lower()
        base = base if base.isidentifier() and len(base) <= 24 and base not in self.parameters else "value"
        name, count = base, 1
        while (
            name in self.made.fields or name in self.parameters or hasattr(builtins, name) or name in ("name", "names")
        ):
            count += 1
            name = f"{base}_{count}"
        self.made.fields[name] = node
        return name

    def text(self, node: ast.expr) -> bool:
        """Write an expression that is text; whether it is one that is understood."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.words(node.value)
        elif isinstance(node, ast.JoinedStr):
            for part in node.values:
                if isinstance(part, ast.FormattedValue):
                    spec = part.format_spec
                    if isinstance(spec, ast.JoinedStr) and any(not isinstance(v, ast.Constant) for v in spec.values):
                        return False
                    plain = (
                        "".join(str(v.value) for v in spec.values if isinstance(v, ast.Constant))
                        if isinstance(spec, ast.JoinedStr)
                        else ""
                    )
                    if isinstance(part.value, (ast.JoinedStr, ast.BinOp)) and part.conversion == -1 and not plain:
                        copy = _Writer(self.parameters)
                        if copy.text(part.value):
                            self.text(part.value)
                            continue
                    self.value(part.value, f"!{chr(part.conversion)}" if part.conversion > 0 else "", plain)
                elif isinstance(part, ast.Constant):
                    self.words(str(part.value))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.text(node.left) and self.text(node.right)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
            return self._percent(node.left.value, node.right)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "format"
            and isinstance(node.func.value, ast.Constant)
            and isinstance(node.func.value.value, str)
        ):
            return self._format(node.func.value.value, node)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "str"
            and len(node.args) == 1
        ):
            self.value(node.args[0], "!s")
        else:
            return False
        return True

    def _percent(self, text: object, right: ast.expr) -> bool:
        if not isinstance(text, str):
            return False
        values = list(right.elts) if isinstance(right, ast.Tuple) else [right]
        pieces = re.split(r"(%%|%[sdr])", text)
        if sum(p in ("%s", "%d", "%r") for p in pieces) != len(values) or "%" in "".join(pieces[::2]):
            return False
        if not isinstance(right, ast.Tuple) and not isinstance(right, (ast.Constant, ast.Attribute, ast.Call)):
            return False  # it may be a tuple at run time
        if isinstance(right, ast.Attribute) and right.attr == "shape":
            return False
        for piece in pieces:
            if piece in ("%s", "%r"):
                self.value(values.pop(0), "!s" if piece == "%s" else "!r")
            elif piece == "%d":
                self.value(values.pop(0))
            else:
                self.words("%" if piece == "%%" else piece)
        return True

    def _format(self, text: str, call: ast.Call) -> bool:
        named = {k.arg: k.value for k in call.keywords}
        count = 0
        for literal, name, spec, conversion in string.Formatter().parse(text):
            self.words(literal)
            if name is None:
                continue
            if name == "" or name.isdigit():
                at, count = (count, count + 1) if name == "" else (int(name), count)
                if at >= len(call.args):
                    return False
                value = call.args[at]
            elif name in named:
                value = named[name]
            else:
                return False
            if "{" in (spec or ""):
                return False
            self.value(value, f"!{conversion}" if conversion else "", spec or "")
        return True


def template_of(message: ast.expr | None, parameters: Collection[str]) -> Template:
    """The template of what an exception is made of.

    Args:
        message: The expression over the parameters; None for an exception without arguments.
        parameters: Names of the parameters.

    Raises:
        UnreadableError: The text would show more than metadata.
    """
    if message is None:
        return Template()
    writer = _Writer(parameters)
    if writer.text(message):
        return writer.made
    whole = _Writer(parameters)
    if isinstance(message, ast.Name) and message.id not in parameters and not hasattr(builtins, message.id):
        whole.value(message)
        return whole.made
    # Some other expression: the exception shows it as `str` does.
    whole.value(message, "!s")
    whole.made.literal = " ".join(
        str(n.value) for n in ast.walk(message) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )
    if not whole.made.text:
        raise UnreadableError("its message is nothing that can be written down")
    return whole.made


def slug_of(words: str, taken: Collection[str]) -> str:
    """A slug of a text: its telling words, numbered where another has them."""
    found = dict.fromkeys(w for w in re.findall(r"[a-z0-9]+", words.lower().replace("_", " ")) if w not in _DULL)
    base = ""
    for word in list(found)[:6]:
        if len(base) + len(word) + 1 > _SLUG - 4:
            break
        base = f"{base}-{word}" if base else word
    base = base or "check"
    if base[0].isdigit():
        base = f"needs-{base}"
    slug, count = base, 1
    while slug in taken:
        count += 1
        slug = f"{base}-{count}"
    return slug
