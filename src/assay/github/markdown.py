"""Text of others in Markdown: shown as it is, and never as a link, a mention, a picture or a heading.

Only code is shown literally everywhere on GitHub, so that every word from outside stands in code. What is left
of it is printable and of this world: marks that turn text around or have no width are gone.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_KEPT = "×±→–µ·…²³°√⌊⌋“”’≤≥"
"""Beyond ASCII, what Assay itself writes."""


def plain(text: str, at_most: int = 200) -> str:
    """Return a text on one line, with nothing hidden in it: ASCII and what Assay itself writes."""
    line = " ".join(text.split())
    visible = "".join(c for c in line if unicodedata.category(c) not in _HIDDEN)
    allowed = "".join(c if c.isascii() or c in _KEPT else "?" for c in visible)
    return allowed if len(allowed) <= at_most else f"{allowed[: at_most - 1]}…"


def code(text: object, at_most: int = 80) -> str:
    """Return a text as a span of code, fit for a cell of a table."""
    shown = plain(str(text), at_most).replace("`", "'").replace("|", "¦").strip()
    return f"`{shown or ' '}`"


def bare(text: str, at_most: int = 60) -> str:
    """Return a text for a title or a commit: letters and digits, with nothing that names a person or an issue."""
    return " ".join(re.sub(r"[^A-Za-z0-9 .()+_-]", " ", plain(text, at_most)).split()) or "a device"


def block(lines: Iterable[str], kind: str = "text") -> list[str]:
    """Return lines as a block of code."""
    shown = ["".join(c for c in line if c.isprintable()).replace("```", "'''") for line in lines]
    return [f"```{kind}", *shown, "```"]


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table; its cells are fit for one already."""
    return [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}", *(f"| {' | '.join(row)} |" for row in rows)]


def details(summary: str, lines: Sequence[str]) -> list[str]:
    """Return lines that are shown when they are asked for."""
    return [f"<details><summary>{summary}</summary>", "", *lines, "", "</details>"]
