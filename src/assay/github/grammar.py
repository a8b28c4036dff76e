"""What a comment may ask for: one exact line, and nothing else.

    /benchmark                the default kind of GPU
    /benchmark L4             one kind
    /benchmark L4,A100        several, measured one beside the other

The whole comment must be that line, in plain ASCII: no word more, no space more, no newline. What is returned are names
out of a fixed list and never text of the comment, so that nothing a stranger typed goes any further.
"""

from __future__ import annotations

import re

from assay.core.errors import BadInput, nearest
from assay.hosts.gpu_types import FAMILIES, TYPES

COMMAND = "/benchmark"
AT_MOST = 4
"""Kinds of GPU in one comment: each is a machine that is paid for."""

NAMES = frozenset({*FAMILIES, *(gpu_type.name for gpu_type in TYPES)})
"""Every kind of GPU that can be asked for, as it is written."""

_NAME = r"[A-Za-z0-9]{1,12}(?:-[A-Za-z0-9]{1,12}){0,2}"
_LIST = rf"{_NAME}(?:,{_NAME}){{0,{AT_MOST - 1}}}"
_COMMENT = re.compile(rf"/benchmark(?: (?P<names>{_LIST}))?")
_LONGEST = 200
_SHOWN = 20
"""Characters of what was typed that are shown in a message."""


def is_meant(comment: str) -> bool:
    """Return whether a comment looks as if it were for us; only then is it worth a word that it is not right."""
    return comment.startswith(COMMAND)


def kinds_in(comment: str, default: str) -> tuple[str, ...]:
    """Return the kinds of GPU that a comment asks for, each once, in its order.

    Raises:
        BadInput: It is anything else than the one line; the sentence shows nothing of it but plain letters.
    """
    match = _COMMENT.fullmatch(comment) if len(comment) <= _LONGEST else None
    if match is None:
        raise BadInput(
            f"The comment is not understood: all of it must be {COMMAND}, {COMMAND} L4 or {COMMAND} L4,A100 "
            f"(at most {AT_MOST} kinds of GPU), with nothing before or behind it."
        )
    return kinds(match["names"] or default)


def kinds(text: str) -> tuple[str, ...]:
    """Return the kinds of GPU in a list such as ``L4,A100``, each once, in its order.

    Raises:
        BadInput: It is no such list, or has a name that is not known.
    """
    if len(text) > _LONGEST or re.fullmatch(_LIST, text) is None:
        raise BadInput(f"{shown(text)} names no GPUs: write L4, or at most {AT_MOST} as in L4,A100, without spaces.")
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in NAMES:
            meant = next((candidate for candidate in sorted(NAMES) if candidate.upper() == name.upper()), None)
            hint = f" Did you mean {meant}?" if meant else nearest(name, sorted(NAMES))
            raise BadInput(f"There is no GPU type {name}.{hint}")
    return names


def shown(text: str) -> str:
    """Return what was typed, fit for a log: plain characters, and few of them."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_., ") else "?" for c in text[:_SHOWN])
    return f"'{plain}{'…' if len(text) > _SHOWN else ''}'"
