"""A value as YAML writes it, so that readers of YAML 1.1 and of 1.2 read the same."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from assay.core.values import Scalar

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./+-]*")
_NOT_TEXT = frozenset({"y", "yes", "n", "no", "on", "off", "true", "false", "null", "none", "nan", "inf"})
"""Words that some reader of YAML takes for something else than text."""

_UNPRINTABLE = re.compile("[^ -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def equal(one: object, other: Scalar) -> bool:
    """Return whether two values are the same: numbers by their size, and truth only to truth."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and one == other


def written(value: Scalar, style: str | None) -> str:
    """Return how a value is written; text keeps the quotes of what it replaces, and gets some where it needs them."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    return _text(value, style)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    digits, exponent, power = repr(value).partition("e")
    return f"{digits if '.' in digits else f'{digits}.0'}{exponent}{power}"


def _text(value: str, style: str | None) -> str:
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise BadInput(f"{value!r} is not text that can be written to a file.")
    if style is None and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    if style == "'" and not _UNPRINTABLE.search(value):
        return "'" + value.replace("'", "''") + "'"
    inside = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_UNPRINTABLE.sub(_escaped, inside)}"'


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
