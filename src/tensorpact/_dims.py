"""The axis grammar of jaxtyping, read into one small record an axis."""

import keyword
from dataclasses import dataclass
from enum import Enum

from ._errors import ContractDefinitionError
from ._expressions import Expression, ExpressionSyntaxError, parse_expression


class DimKind(Enum):
    """What an axis of an annotation says."""

    NAMED = "named"
    FIXED = "fixed"
    ANONYMOUS = "anonymous"
    EXPRESSION = "expression"
    VARIADIC = "variadic"
    ELLIPSIS = "ellipsis"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Dim:
    """One axis of an annotation.

    Attributes:
        text: As written, without markers: ``H``, ``4``, ``T+1``, ``*batch``.
        kind: What it says.
        name: Dim name of a named or variadic axis.
        size: Size of a fixed axis.
        broadcast: Whether size 1 fits too (``#``).
        expression: Parsed form of an expression axis.
    """

    text: str
    kind: DimKind
    name: str = ""
    size: int = -1
    broadcast: bool = False
    expression: Expression | None = None

    @property
    def variadic(self) -> bool:
        """Whether the axis stands for any number of axes."""
        return self.kind in (DimKind.VARIADIC, DimKind.ELLIPSIS)

    @property
    def names(self) -> tuple[str, ...]:
        """Dims that the axis mentions."""
        if self.expression is not None:
            return self.expression.names
        return (self.name,) if self.name else ()


def _refuse(owner: str, token: str, why: str) -> ContractDefinitionError:
    return ContractDefinitionError(f"{owner}: axis {token!r}: {why}")


def parse_dim(token: str, owner: str) -> Dim:
    """Read one axis.

    Args:
        token: Text between blanks of a shape annotation.
        owner: Whose annotation it is, for messages.

    Raises:
        ContractDefinitionError: The token is none of the grammar.
    """
    if token == "...":
        return Dim("...", DimKind.ELLIPSIS)
    markers, rest = set[str](), token
    while rest and (rest[0] in "#*_?" or rest.count("=") == 1):
        if rest[0] in "#*_?":
            if rest[0] in markers:
                raise _refuse(owner, token, f"{rest[0]} stands twice")
            markers.add(rest[0])
            rest = rest[1:]
        else:
            rest = rest.partition("=")[2]
    if "?" in markers:
        raise _refuse(owner, token, "`?` belongs to PyTree annotations")
    broadcast = "#" in markers
    if "_" in markers:
        if broadcast:
            raise _refuse(owner, token, "an anonymous axis cannot broadcast")
        if not (rest == "" or rest.isidentifier()):
            raise _refuse(owner, token, "only a named axis can be anonymous")
        return Dim("...", DimKind.ELLIPSIS) if "*" in markers else Dim("_", DimKind.ANONYMOUS)
    if "*" in markers:
        if not rest.isidentifier():
            raise _refuse(owner, token, "`*` needs a name")
        return Dim(f"*{rest}", DimKind.VARIADIC, rest, broadcast=broadcast)
    if rest.isidentifier():
        return Dim(rest, DimKind.NAMED, rest, broadcast=broadcast)
    if "," in rest and "(" not in rest:
        raise _refuse(owner, token, "axes are separated by blanks, not commas")
    try:
        size = int(rest)
    except ValueError:
        pass
    else:
        if size < 0:
            raise _refuse(owner, token, "no axis has a size below 0")
        return Dim(rest, DimKind.FIXED, size=size, broadcast=broadcast)
    try:
        expression = parse_expression(rest)
    except ExpressionSyntaxError as bad:
        raise _refuse(owner, token, str(bad)) from bad
    clash = [n for n in expression.names if keyword.iskeyword(n)]
    if clash:
        raise _refuse(owner, token, f"{clash[0]} is a Python keyword")
    return Dim(rest, DimKind.EXPRESSION, broadcast=broadcast, expression=expression)


def parse_shape(text: str, owner: str) -> tuple[Dim, ...]:
    """Read the shape string of an annotation.

    Raises:
        ContractDefinitionError: An axis is none of the grammar, or two are variadic.
    """
    dims = tuple(parse_dim(t, owner) for t in text.split())
    if sum(d.variadic for d in dims) > 1:
        raise ContractDefinitionError(f"{owner}: {text!r} has two variadic axes; where one ends would be a guess")
    return dims
