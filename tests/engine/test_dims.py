"""The axis grammar, one token after the other."""

import pytest

from tensorpact import ContractDefinitionError
from tensorpact._dims import DimKind, parse_dim, parse_shape


@pytest.mark.parametrize(
    ("token", "kind", "name", "size", "broadcast"),
    [
        ("H", DimKind.NAMED, "H", -1, False),
        ("#H", DimKind.NAMED, "H", -1, True),
        ("β", DimKind.NAMED, "β", -1, False),
        ("len", DimKind.NAMED, "len", -1, False),
        ("in", DimKind.NAMED, "in", -1, False),
        ("4", DimKind.FIXED, "", 4, False),
        ("0", DimKind.FIXED, "", 0, False),
        ("#4", DimKind.FIXED, "", 4, True),
        ("rows=4", DimKind.FIXED, "", 4, False),
        ("rows=H", DimKind.NAMED, "H", -1, False),
        ("_", DimKind.ANONYMOUS, "", -1, False),
        ("_x", DimKind.ANONYMOUS, "", -1, False),
        ("...", DimKind.ELLIPSIS, "", -1, False),
        ("*_", DimKind.ELLIPSIS, "", -1, False),
        ("*_x", DimKind.ELLIPSIS, "", -1, False),
        ("*v", DimKind.VARIADIC, "v", -1, False),
        ("*#v", DimKind.VARIADIC, "v", -1, True),
        ("#*v", DimKind.VARIADIC, "v", -1, True),
        ("H+1", DimKind.EXPRESSION, "", -1, False),
        ("#H+1", DimKind.EXPRESSION, "", -1, True),
        ("rows=H*2", DimKind.EXPRESSION, "", -1, False),
        ("{n}", DimKind.EXPRESSION, "", -1, False),
        ("max(a,b)", DimKind.EXPRESSION, "", -1, False),
    ],
)
def test_token(token: str, kind: DimKind, name: str, size: int, broadcast: bool) -> None:
    dim = parse_dim(token, "f: x")
    assert (dim.kind, dim.name, dim.size, dim.broadcast) == (kind, name, size, broadcast)
    assert dim.variadic is (kind in (DimKind.VARIADIC, DimKind.ELLIPSIS))


@pytest.mark.parametrize(
    ("token", "names"), [("H", ("H",)), ("*v", ("v",)), ("HV*K+1", ("HV", "K")), ("4", ()), ("_", ())]
)
def test_names(token: str, names: tuple[str, ...]) -> None:
    assert parse_dim(token, "f: x").names == names


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("-1", "no axis has a size below 0"),
        ("##H", "# stands twice"),
        ("**v", "* stands twice"),
        ("#_", "an anonymous axis cannot broadcast"),
        ("_H+1", "only a named axis can be anonymous"),
        ("*H+1", "`*` needs a name"),
        ("*4", "`*` needs a name"),
        ("?H", "belongs to PyTree annotations"),
        ("a,b", "separated by blanks, not commas"),
        ("H+", "does not parse"),
        ("foo(H)", "no builtin function"),
    ],
)
def test_refused(token: str, reason: str) -> None:
    with pytest.raises(ContractDefinitionError) as caught:
        parse_dim(token, "f: x")
    assert str(caught.value).startswith(f"f: x: axis {token!r}: ")
    assert reason in str(caught.value)


def test_shape() -> None:
    assert [d.text for d in parse_shape("  B\t*v  H+1 4 ", "f: x")] == ["B", "*v", "H+1", "4"]
    assert parse_shape("", "f: x") == ()


@pytest.mark.parametrize("text", ["*a *b", "... *a", "... ..."])
def test_two_variadics(text: str) -> None:
    with pytest.raises(ContractDefinitionError, match="two variadic axes"):
        parse_shape(text, "f: x")
