"""Documented errors with their pages: load them, find one from what a user has in hand, explain it."""

from ._describe import SCHEMA, SCHEMA_VERSION, describe
from ._explain import explain_text
from ._late import late_note
from ._markdown import markdown
from ._pages import HEADINGS, Page, page_of, pages_of, parse_page
from ._picture import picture
from ._records import DEFAULT_MODULES, Record, Use, load, record_id
from ._search import Match, find

__all__ = [
    "DEFAULT_MODULES",
    "HEADINGS",
    "SCHEMA",
    "SCHEMA_VERSION",
    "Match",
    "Page",
    "Record",
    "Use",
    "describe",
    "explain_text",
    "find",
    "late_note",
    "load",
    "markdown",
    "page_of",
    "pages_of",
    "parse_page",
    "picture",
    "record_id",
]
