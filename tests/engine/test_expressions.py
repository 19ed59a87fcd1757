"""Expressions over dims: what they read, what they give, and for which size they are solved."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpact._expressions import ExpressionSyntaxError, free_names, parse_expression


@pytest.mark.parametrize(
    ("text", "dims", "arguments", "value"),
    [
        ("n+1", {"n": 3}, {}, 4),
        ("2*n", {"n": 3}, {}, 6),
        ("n*2", {"n": 3}, {}, 6),
        ("n//2", {"n": 7}, {}, 3),
        ("n/2", {"n": 4}, {}, 2.0),
        ("n%4", {"n": 7}, {}, 3),
        ("n**2", {"n": 3}, {}, 9),
        ("-n+9", {"n": 3}, {}, 6),
        ("HV*K", {"HV": 4, "K": 16}, {}, 64),
        ("T-1", {"T": 5}, {}, 4),
        ("(a+b)*2", {"a": 1, "b": 2}, {}, 6),
        ("max(a,b)", {"a": 1, "b": 2}, {}, 2),
        ("min(a,b)+max", {"a": 1, "b": 2, "max": 5}, {}, 6),
        ("{n}", {}, {"n": 3}, 3),
        ("{n}+1", {}, {"n": 3}, 4),
        ("{n}*H", {"H": 2}, {"n": 3}, 6),
        ("{self.k}", {}, {"self": SimpleNamespace(k=7)}, 7),
        ("{self.k}//{n}", {}, {"self": SimpleNamespace(k=7), "n": 2}, 3),
        ("{cfg['d']}", {}, {"cfg": {"d": 5}}, 5),
        ("{len(xs)}", {}, {"xs": [1, 2]}, 2),
        ("{name}", {"H": 4}, {"name": "H"}, 4),
        ("{name}+1", {"H": 4}, {"name": "H*2"}, 9),
        ("7", {}, {}, 7),
    ],
)
def test_value(text: str, dims: dict[str, int], arguments: dict[str, Any], value: Any) -> None:
    expression = parse_expression(text)
    assert expression.evaluate(dims, arguments) == value
    assert set(expression.names) <= set(dims)
    assert set(expression.arguments) == set(arguments)


@pytest.mark.parametrize(
    ("text", "unknown", "size", "known", "solution"),
    [
        ("n+1", "n", 4, {}, 3),
        ("n+1", "n", 0, {}, None),
        ("2*n", "n", 6, {}, 3),
        ("n*2", "n", 5, {}, None),
        ("n*2", "n", 0, {}, 0),
        ("n//2", "n", 3, {}, 6),
        ("(n+1)//2", "n", 3, {}, 5),
        ("n//2", "n", 0, {}, 0),
        ("T-1", "T", 4, {}, 5),
        ("9-n", "n", 4, {}, 5),
        ("9-n", "n", 10, {}, None),
        ("HV*K", "K", 64, {"HV": 4}, 16),
        ("HV*K", "HV", 64, {"K": 16}, 4),
        ("HV*K", "HV", 65, {"K": 16}, None),
        ("HV*K", "HV", 0, {"K": 0}, None),
        ("n*n", "n", 9, {}, None),
        ("n/2", "n", 2, {}, None),
        ("max(n,3)", "n", 5, {}, None),
        ("3*n+2*m-1", "n", 12, {"m": 2}, 3),
        ("n+m//2", "n", 7, {"m": 5}, 5),
    ],
)
def test_solution(text: str, unknown: str, size: int, known: dict[str, int], solution: int | None) -> None:
    assert parse_expression(text).solve(unknown, size, known, {}) == solution


@pytest.mark.parametrize(("text", "size", "solution"), [("H*{n}", 6, 2), ("H+{n}", 7, 4), ("H*{n}", 7, None)])
def test_solution_with_arguments(text: str, size: int, solution: int | None) -> None:
    expression = parse_expression(text)
    assert expression.solvable("H")
    assert expression.solve("H", size, {}, {"n": 3}) == solution


@pytest.mark.parametrize(
    ("text", "solvable"),
    [("n+1", True), ("n//2", True), ("HV*n", True), ("n*n", False), ("n/2", False), ("n%2", False), ("0*n", False)],
)
def test_solvable(text: str, solvable: bool) -> None:
    assert parse_expression(text).solvable("n") is solvable


@given(
    st.sampled_from(["n+{m}", "n*m", "3*n-m", "n//3", "(n+m)//2", "m-n", "m+2*n"]),
    st.integers(0, 40),
    st.integers(0, 9),
)
def test_a_solution_gives_the_size_back(text: str, n: int, m: int) -> None:
    expression = parse_expression(text)
    size = expression.evaluate({"n": n, "m": m}, {"m": m})
    found = expression.solve("n", size, {"m": m}, {"m": m})
    if "//" not in text and not (text == "n*m" and m == 0):
        assert found == n
    if found is not None:
        assert found <= n
        assert expression.evaluate({"n": found, "m": m}, {"m": m}) == size


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n+", "does not parse"),
        ("n n", "does not parse"),
        ("{n", "does not parse"),
        ("{}", "holds an expression alone"),
        ("{n!r}", "holds an expression alone"),
        ("{n:3}", "holds an expression alone"),
        ("x{n}", "operand of its own"),
        ("foo(n)", "foo is no builtin function"),
        ("max(max,n)", "both as a function and as a dim"),
    ],
)
def test_what_is_no_expression(text: str, reason: str) -> None:
    with pytest.raises(ExpressionSyntaxError, match=reason):
        parse_expression(text)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("a + b*a", ("a", "b")),
        ("x.shape[i]", ("x", "i")),
        ("sum(n for n in xs)", ("sum", "xs")),
        ("(lambda y: y + z)(w)", ("z", "w")),
        ("f'{a}'", ("a",)),
    ],
)
def test_free_names(source: str, names: tuple[str, ...]) -> None:
    assert set(free_names(source)) == set(names)
