"""Validators of beartype as text: the very rule that is broken, also where two stand on one line."""

import linecache
import types
import warnings
from collections.abc import Iterator
from typing import Any, cast


def validator_text(validator: Any) -> str:
    """A validator as its author wrote it."""
    for rule in _rules(getattr(validator, "is_valid", None)):
        body = _lambda_body(rule.__code__)
        if body:
            names = rule.__code__.co_varnames[: rule.__code__.co_argcount]
            return f"Is[lambda {', '.join(names)}: {body}]"
    with warnings.catch_warnings():
        # beartype warns where it cannot tell two lambdas of one line apart; it has the first then.
        warnings.simplefilter("ignore")
        return repr(validator).removeprefix("beartype.vale.")


def _rules(rule: Any) -> Iterator[types.FunctionType]:
    """A rule, and what it is wrapped around: beartype makes its result a bool."""
    if isinstance(rule, types.FunctionType):
        yield rule
        for cell in rule.__closure__ or ():
            if isinstance(cell.cell_contents, types.FunctionType):
                yield cell.cell_contents


def _lambda_body(code: types.CodeType) -> str:
    """Source of the expression that a lambda computes; empty where there is none to be read."""
    if code.co_name != "<lambda>" or "beartype" in code.co_filename.split("/"):
        return ""
    spans = [cast("tuple[int, int, int, int]", p) for p in code.co_positions() if None not in p]
    spans = [p for p in spans if (p[0], p[2]) != (p[1], p[3])]  # what starts a function stands nowhere
    if not spans:
        return ""
    first = min((line, column) for line, _, column, _ in spans)
    last = max((line, column) for _, line, _, column in spans)
    lines = [linecache.getline(code.co_filename, n) for n in range(first[0], last[0] + 1)]
    if not all(lines):
        return ""
    # Columns count bytes.
    raw = [line.encode() for line in lines]
    raw[-1] = raw[-1][: last[1]]
    raw[0] = raw[0][first[1] :]
    return " ".join(part.decode(errors="replace").strip() for part in raw).strip()
