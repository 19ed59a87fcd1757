"""The catalogue of cases against the tests: each id has a test named after it, or stands here with what is missing."""

import re
from pathlib import Path

CASES = {
    "A": (1, 2, 4, 5, 7, 8, 9, 11, 13, 14, 15, 16, 17, 18),
    "B": (1, 2, 3, 5, 6, 7, 9, 10, 12, 13, 14, 15, 17, 18, 19, 20),
    "C": (1, 2, 4, 6, 7, 8, 9),
    "D": (1, 3, 4, 6, 8, 9, 10),
    "E": (1, 2, 3, 4),
    "F": (1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16),
    "G": (1, 2, 3, 4, 6, 7, 8, 9, 10, 11),
    "H": (2, 3),
    "I": (1, 3, 4, 6, 7),
}
#: Cases that wait for a part that does not exist yet, or that another suite holds under a name of its own.
ELSEWHERE = {
    "F2": "tests/gpu: the launch on the second device",
    "F10": "clauses on values inside tensors",
    "F11": "a capability query belongs to the kernels",
    "G7": "registration with torch.library",
    "G10": "tests/gpu: a call inside a graph capture",
    "I1": "the import hook",
    "I3": "the import hook",
    "I4": "the pytest plugin",
    "I6": "tests/typing: pyright and mypy on what users see",
    "I7": "the import hook",
}
NAME = re.compile(r"def test((?:_[a-i]\d+)+)_", re.IGNORECASE)


def ids_of_tests() -> set[str]:
    """Ids in the names of the tests."""
    files = Path(__file__).parent.glob("test_*.py")
    names = [match[1] for file in files for match in NAME.finditer(file.read_text(encoding="utf-8"))]
    return {one.upper() for name in names for one in name.split("_") if one}


def test_every_case_has_a_test() -> None:
    every = {f"{letter}{number}" for letter, numbers in CASES.items() for number in numbers}
    assert every - ids_of_tests() - set(ELSEWHERE) == set()
    assert set(ELSEWHERE) <= every


def test_no_test_is_named_after_a_case_that_is_not_there() -> None:
    every = {f"{letter}{number}" for letter, numbers in CASES.items() for number in numbers}
    assert ids_of_tests() - every == set()
