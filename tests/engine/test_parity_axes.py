"""Statements about the axes of jaxtyping annotations, judged by stock with beartype and by both modes of ours.

Each statement is one sentence of the public documentation in words of our own, with calls that fit it and calls that
do not. Stock and ours must say the same, but where a statement names a deliberate divergence: then both are given.
"""

from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

#: The closed list of SEMANTICS.md and docs/design.md, as far as axes are concerned.
DIVERGENCES = {
    "later": "an expression whose names bind later is deferred or solved",
    "union": "branches of a union are tried in any order and leak nothing",
    "refused": "refused when the contract is made, where stock fails at a call or matches nothing",
}
ACCEPTS, REFUSES, UNDEFINED, FAILS = "accepts", "refuses", "is undefined", "fails"
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Axes:
    """One statement about shape strings, one string a parameter.

    Attributes:
        says: The statement.
        texts: Shape strings; `|` separates the forms of a union.
        fits: Shapes that both accept.
        misfits: Shapes that both refuse.
        stock: What stock says instead, of the calls under ``differing``.
        ours: What ours says of them.
        differing: Calls on which they differ; an empty call where already the definition differs.
        divergence: Which deliberate divergence that is.
        arguments: Further arguments by name.
    """

    says: str
    texts: tuple[str, ...]
    fits: tuple[Shapes, ...] = ()
    misfits: tuple[Shapes, ...] = ()
    differing: tuple[Shapes, ...] = ()
    stock: str = ""
    ours: str = ""
    divergence: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()

    def define(self, check: Any) -> Any:
        """The function of the statement under a decorator."""
        names = [chr(ord("a") + i) for i in range(len(self.texts))]
        extra = [name for name, _ in self.arguments]
        scope: dict[str, Any] = {"__name__": __name__}
        exec(f"def f({', '.join(['p' + n for n in names] + extra)}): return None", scope)
        function: FunctionType = scope["f"]
        for name, text in zip(names, self.texts, strict=True):
            hint: Any = None
            for form in text.split("|"):
                one = Float[Tensor, form]
                hint = one if hint is None else hint | one
            function.__annotations__[f"p{name}"] = hint
        return check(function)


def _calls(text: str) -> tuple[Shapes, ...]:
    """Calls written as `2 3, 3; 4, 4`: a call a semicolon, an argument a comma, `()` for no axes."""
    read = [[tuple(map(int, s.replace("()", "").split())) for s in call.split(",")] for call in text.split(";")]
    return tuple(map(tuple, read)) if text else ()


def same(says: str, texts: str, fits: str, misfits: str = "", arguments: dict[str, Any] | None = None) -> Axes:
    """What stock and ours agree on."""
    given = tuple((arguments or {}).items())
    return Axes(says, tuple(texts.split(";")), _calls(fits), _calls(misfits), arguments=given)


def differs(
    says: str, texts: str, calls: str, stock: str, ours: str, divergence: str, *, fits: str = "", misfits: str = ""
) -> Axes:
    """What they do not agree on; no call where already the definition differs."""
    differing = _calls(calls) or ((),)
    return Axes(says, tuple(texts.split(";")), _calls(fits), _calls(misfits), differing, stock, ours, divergence)


def undefined(says: str, text: str) -> Axes:
    """A hint that neither makes anything of."""
    return Axes(says, (text,), (), (), ((),), UNDEFINED, UNDEFINED, "refused")


STATEMENTS = [
    # Names
    same("a name is one size in every argument", "n m; m", "2 3, 3", "2 3, 2; 2 3, 4"),
    same("a name is one size within one argument", "n n", "3 3; 0 0", "3 4"),
    same("a name binds anew in every call", "n; n", "2, 2; 5, 5", "2, 5"),
    same("the order of axes counts", "n m; m n", "2 3, 3 2", "2 3, 2 3"),
    same("the number of axes is that of the names", "n m", "2 3", "2; 2 3 4; ()"),
    same("two names may be of one size", "n m; n m", "3 3, 3 3", "3 3, 3 4"),
    same("upper and lower case are different names", "n N", "2 3; 2 2"),
    same("any identifier is a name, letters of other scripts too", "β naïve_2; β", "2 3, 2", "2 3, 3"),
    same("a keyword of Python is a name", "in class; in", "2 3, 2", "2 3, 3"),
    same("the name of a builtin is a name", "len max; max", "2 3, 3", "2 3, 2"),
    same("blanks of any number and kind separate axes", "  n 	 m  ; m", "2 3, 3", "2 3, 2"),
    same("an axis of size 0 binds like any other", "n m; n", "0 3, 0", "0 3, 1; 0 3, 3"),
    same("an axis of size 1 is no wildcard", "n; n", "1, 1", "1, 5; 5, 1"),
    # No axes
    same("the empty string is a tensor without axes", "", "()", "1; 0; 2 3"),
    same("a tensor without axes binds nothing", "; n", "(), 4", "4, 4"),
    # Fixed sizes
    same("a number is that size and no other", "3 4", "3 4", "3 5; 4 3; 3 4 1"),
    same("0 is a size", "0 n", "0 2", "1 2"),
    same("a number may carry a name for the reader", "rows=3 cols=4", "3 4", "3 3"),
    same("the name in front of a number binds nothing", "rows=3; rows", "3, 7", "4, 7"),
    same("numbers and names mix", "n 4; 4 n", "2 4, 4 2", "2 4, 2 4; 2 3, 4 2"),
    same("leading zeros and underscores are those of int()", "1_0", "10", "1"),
    differs("a literal below 0 matches no tensor", "-1", "", REFUSES, UNDEFINED, "refused"),
    # Anonymous axes
    same("an underscore takes any size", "_ n", "2 3; 0 3", "3; 1 2 3"),
    same("two underscores need not agree", "_ _", "2 3; 2 2", "2"),
    same("a name behind an underscore is for the reader alone", "_n; _n", "2, 3; 2, 2", "2, ()"),
    same("a name behind an underscore is not that name", "_n; n", "2, 3", "2 2, 3"),
    # Any number of axes
    same("three dots take any axes", "...", "(); 2; 2 3 4"),
    same("axes may follow three dots", "... n", "3; 1 2 3", "()"),
    same("axes may stand in front of three dots", "n ...; n", "3, 3; 3 9 9, 3", "(), 3; 2 3, 3"),
    same("three dots may stand in the middle", "n ... m; n m", "2 3, 2 3; 2 9 3, 2 3", "2, 2 3; 2 9 3, 2 9"),
    same("three dots need not agree", "...; ...", "2, 3 4; (), 1"),
    same("a starred underscore is three dots", "*_ n", "3; 1 2 3", "()"),
    same("a starred name behind an underscore is three dots", "*_batch n; *_batch n", "1 3, 2 2 3", "1 3, 2 4"),
    same("a starred name is the same axes everywhere", "*v n; *v", "2 3 4, 2 3; 4, ()", "2 3 4, 3 2; 2 3 4, 2; 4, 1"),
    same("a starred name may stand last", "n *v; *v", "2 3 4, 3 4; 2, ()", "2 3 4, 2 3"),
    same("a starred name may stand between axes", "n *v m; *v m", "2 5 3, 5 3; 2 3, 3", "2 5 3, 4 3; 2, 2"),
    same("a starred name may be of no axes in all arguments", "*v; *v", "(), ()", "(), 1"),
    same("axes in front of a starred name count from the front", "n m *v; n m", "2 3 9, 2 3", "2 3 9, 2 9; 2, 2 3"),
    same("two starred names in two arguments are two", "*v; *w", "2, 3 4"),
    undefined("only one axis of a tensor stands for many", "*v *w"),
    undefined("three dots count as one of those", "*v ..."),
    # Broadcasting
    same("`#` takes size 1 as well", "n; #n", "5, 5; 5, 1", "5, 4; 5, 0"),
    same("`#` does not add an axis", "n; #n", "1, 1", "5, (); 5, 1 5"),
    same("a size behind a 1 must agree with later ones", "#n; #n; #n", "1, 5, 5; 5, 1, 5; 1, 1, 1", "1, 5, 7; 5, 1, 7"),
    same("`#` on a number takes 1 or the number", "#4", "4; 1", "2; 0"),
    same("`#` on an expression takes 1 or its value", "n; #n+1", "3, 4; 3, 1", "3, 3"),
    same("some axes broadcast and some do not", "n m; #n m", "2 3, 1 3; 2 3, 2 3", "2 3, 1 1; 2 3, 2 1"),
    same("`#` in front of a bare name asks for the same as behind it", "#n; n", "5, 5; 1, 5", "5, 4; 5, 1"),
    same("a bare 1 leaves no room for a larger `#`", "n; #n", "1, 1", "1, 5"),
    same(
        "starred and `#`: shapes broadcast against one another", "*#v; *#v", "2 3, 1 3; 2 3, 3; (), 4", "2 3, 2 4; 2, 3"
    ),
    same(
        "starred and `#` against a bare starred one broadcast to it",
        "*v; *#v",
        "2 3, 1 3; 2 3, 3; 2 3, ()",
        "2 3, 4 2 3; 1 3, 2 3",
    ),
    same("`#*` is `*#`", "#*v; *#v", "2 3, 1 3", "2 3, 2 4"),
    same("a bare starred one behind is what the others broadcast to", "*#v; *v", "1 3, 2 3; (), 2", "2 3, 1 3; 2, 3"),
    undefined("an anonymous axis cannot broadcast", "#_"),
    # Expressions
    same("an expression over bound names is computed", "n; n+1", "3, 4; 0, 1", "3, 3"),
    same("an expression may subtract", "dim; dim-1", "3, 2; 1, 0", "3, 3; 0, 0"),
    same("an expression may multiply and divide", "n m; n*m; m//n", "2 6, 12, 3; 4 6, 24, 1", "2 6, 13, 3; 2 6, 12, 2"),
    same("an expression may raise to a power and take remainders", "n; n**2; n%3", "4, 16, 1", "4, 16, 0; 4, 8, 1"),
    same("an expression may use brackets", "n m; (n+m)*2", "1 2, 6", "1 2, 5"),
    same("an expression of numbers alone is a number", "2*3", "6", "5"),
    same("true division gives a size where it comes out even", "n; n/2", "4, 2", "5, 2; 4, 4"),
    same("builtin functions may be called, without blanks", "n m; max(n,m); min(n,m)", "2 3, 3, 2", "2 3, 2, 2"),
    same("an expression may be a comparison's value", "n m; abs(n-m)", "2 5, 3; 5 2, 3", "2 5, 2"),
    same("an expression reads axes in front of it in the same tensor", "n n+1", "2 3", "2 2"),
    same("several expressions may read one name", "n; n+1 n-1 2*n", "3, 4 2 6", "3, 4 2 7; 3, 3 2 6"),
    same("an expression under a name for the reader", "n; width=2*n", "3, 6", "3, 5"),
    same("an expression beside a starred name", "*v n; *v n+1", "2 3, 2 4", "2 3, 2 3; 2 3, 3 4"),
    differs("a name may bind behind the expression that reads it", "n+1; n", "4, 3", FAILS, ACCEPTS, "later"),
    differs("and is compared then", "n+1; n", "4, 4", FAILS, REFUSES, "later"),
    differs("a name that stands in an expression alone is solved", "2*n; n+1", "6, 4", FAILS, ACCEPTS, "later"),
    differs("and nothing fits where no size solves it", "2*n; n+1", "5, 4", FAILS, REFUSES, "later"),
    differs("an expression behind the axis that it reads, in one tensor", "n+1 n", "4 3", FAILS, ACCEPTS, "later"),
    differs("a name that nothing can bind", "n*m", "", FAILS, UNDEFINED, "refused"),
    differs("an expression that is none", "n; n+", "3, 4", REFUSES, UNDEFINED, "refused"),
    undefined("an expression cannot be anonymous", "_n+1"),
    undefined("an expression cannot stand for many axes", "*n+1"),
    differs(
        "an expression that divides by 0 is its author's",
        "n m; n//m",
        "6 0, 3",
        REFUSES,
        FAILS,
        "refused",
        fits="6 2, 3",
    ),
    # Arguments in braces
    same("braces read an int argument", "{size}", "4", "3", {"size": 4}),
    same("braces mix with names", "n; n+{size}", "2, 6", "2, 5", {"size": 4}),
    same("braces may hold an expression", "{size*2}", "8", "4", {"size": 4}),
    same("braces may read an attribute", "{size.real}", "4", "3", {"size": 4}),
    same("braces may call a builtin", "{len(items)}", "3", "2", {"items": [1, 2, 3]}),
    same("a text in braces is an expression over names", "n; {text}", "2, 3", "2, 2", {"text": "n+1"}),
    same("`#` and braces", "#{size}", "4; 1", "3", {"size": 4}),
    same("braces read a later argument", "{size}; n {size}", "4, 9 4", "4, 9 3", {"size": 4}),
    differs("braces with nothing of that name", "{nowhere}", "4", FAILS, UNDEFINED, "refused"),
    # Unions
    same("one form of a union is enough", "n m|n; n", "2 3, 2; 2, 2", "2 3 4, 2; (), 2"),
    same("the form that fits is compared with the others", "n; n m|n", "2, 2 3; 2, 2", "2, 3 3; 2, 3"),
    differs(
        "the first form that fits does not decide for the others",
        "foo bar|foo 1; bar",
        "2 1, 5",
        REFUSES,
        ACCEPTS,
        "union",
    ),
    same("nor does its order", "foo 1|foo bar; bar", "2 1, 5; 2 5, 5", "2 3, 5"),
    same("a form that fails leaves nothing behind", "a 3|b 4; a", "5 4, 6; 5 3, 5", "5 3, 6; 5 2, 5"),
    # What the grammar refuses
    undefined("commas do not separate axes", "n,m"),
    undefined("a marker stands once", "##n"),
    undefined("a star stands once", "**n"),
    undefined("an underscore stands once", "__n"),
    undefined("`#` stands in front", "n#"),
    undefined("a number cannot stand for many axes", "*4"),
    undefined("a number cannot be anonymous", "_4"),
    undefined("three dots stand alone", "n..."),
    differs("a tree path stands inside a PyTree alone", "?n", "3", FAILS, UNDEFINED, "refused"),
    differs("a name is one axis or many, not both", "n; *n", "3, 4 5", ACCEPTS, UNDEFINED, "refused"),
]
CALLS = [
    pytest.param(s, shapes, stock, ours, id=f"{s.says} [{', '.join(s.texts)}] {shapes}")
    for s in STATEMENTS
    for group, stock, ours in (
        (s.fits, ACCEPTS, ACCEPTS),
        (s.misfits, REFUSES, REFUSES),
        (s.differing, s.stock, s.ours),
    )
    for shapes in group
]


@pytest.mark.parametrize(("statement", "shapes", "stock", "ours"), CALLS)
def test_axes(statement: Axes, shapes: Shapes, stock: str, ours: str, parity: Any) -> None:
    def program(check: Any) -> Any:
        function = statement.define(check)
        given = shapes or tuple((3,) * len(t.split()) for t in statement.texts)
        tensors = [torch.zeros(s) for s in given]
        for fitting in statement.fits[:1]:
            # A guard that remembers signatures has one to remember.
            for _ in range(15 if check is parity.compiled else 0):
                function(*[torch.zeros(s) for s in fitting], **dict(statement.arguments))
        return lambda: function(*tensors, **dict(statement.arguments))

    assert parity(program) == {"stock": stock, "compiled": ours, "beartype": ours}


def test_statements() -> None:
    assert len({s.says for s in STATEMENTS}) == len(STATEMENTS) > 100
    assert {s.divergence for s in STATEMENTS if s.differing} == set(DIVERGENCES)
