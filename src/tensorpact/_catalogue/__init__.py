"""Documented errors with their pages: load them, find one from what a user has in hand, explain it."""

from ._explain import explain_text
from ._pages import HEADINGS, Page, page_of, pages_of, parse_page
from ._records import DEFAULT_MODULES, Record, Use, load, record_id
from ._search import Match, find

__all__ = [
    "DEFAULT_MODULES",
    "HEADINGS",
    "Match",
    "Page",
    "Record",
    "Use",
    "explain_text",
    "find",
    "load",
    "page_of",
    "pages_of",
    "parse_page",
    "record_id",
]
