"""Text that other programs read: in scripts, commands and lines of a file."""

from __future__ import annotations

import unicodedata

_LINE_ENDS = frozenset({"Zl", "Zp"})


def control_character(text: str) -> str | None:
    """Return the first character that ends a line or steers a terminal, such as a newline; null: there is none."""
    return next((c for c in text if unicodedata.category(c) == "Cc" or unicodedata.category(c) in _LINE_ENDS), None)
