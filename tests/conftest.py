"""Hypothesis profiles, the skip of GPU tests, and the catalogue's patterns against every text that tests render."""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import settings

from tensorpact import DocumentedError

settings.register_profile("ci", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("long", max_examples=5_000, deadline=None, print_blob=True)
settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA device, torch.cuda.is_available() is False")
        for item in marked:
            item.add_marker(skip)


@functools.cache
def _catalogue() -> list[tuple[DocumentedError, re.Pattern[str]]]:
    from tensorpact._catalogue import load

    return [(record.error, re.compile(record.error.pattern, re.DOTALL)) for record in load()]


@pytest.fixture(autouse=True)
def renderings(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[tuple[DocumentedError, str]]]:
    """Every text that an error of the catalogue renders to in a test: its own pattern matches it, and no other."""
    seen: set[tuple[DocumentedError, str]] = set()
    render = DocumentedError.render

    def recorded(self: DocumentedError, namespace: Mapping[str, Any]) -> str:
        text = render(self, namespace)
        if self.module.startswith("tensorpact_contracts."):
            seen.add((self, text))
        return text

    monkeypatch.setattr(DocumentedError, "render", recorded)
    yield seen
    for raised, text in seen:
        for error, pattern in _catalogue():
            fits = pattern.fullmatch(text) is not None
            assert fits or error is not raised, f"the pattern of {raised.slug} does not match {text!r}"
            assert not fits or error.template == raised.template, f"{error.slug} matches {text!r} of {raised.slug}"
