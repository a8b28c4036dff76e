"""How a cell is written: three or four significant digits, and a dash for what was not measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell

DASH = "–"
_SMALLEST, _LARGEST = 1e-3, 1e6
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def write_cell(cell: Cell) -> str:
    """Write one cell on its own.

    A float has three or four significant digits (four, and the fourth is dropped when it is zero), all of
    its whole digits, and an exponent only below 0.001 and from a million on. NaN was not measured.
    """
    if cell is None:
        return DASH
    if isinstance(cell, float):
        return f"{cell:.0f}" if _is_plain(cell) and cell.is_integer() and abs(cell) < 1e4 else _write_float(cell)
    return str(cell)


def write_column(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Write cells that stand under each other, with the same number of decimals where they are alike in size."""
    floats = [cell for cell in cells if isinstance(cell, float)]
    if all(not math.isfinite(number) or number.is_integer() for number in floats):
        return tuple(write_cell(cell) for cell in cells)
    decimals = _common_decimals([number for number in floats if number != 0])
    return tuple(_write_like(cell, decimals) for cell in cells)


def write_matrix(numbers: Sequence[float]) -> tuple[str, ...]:
    """Write the numbers of a matrix all alike: the largest has four digits, the others as many decimals."""
    nonzero = [number for number in numbers if math.isfinite(number) and number != 0]
    largest = max((abs(number) for number in nonzero), default=0.0)
    if largest and not _is_plain(largest):
        return tuple(_write_float(number) for number in numbers)
    decimals = max(0, 3 - _exponent(largest))
    while decimals and all(f"{number:.{decimals}f}".endswith("0") for number in nonzero):
        decimals -= 1
    return tuple(
        _write_fixed(number, decimals) if math.isfinite(number) else _write_float(number) for number in numbers
    )


def write_interval(value: float | None, low: float | None, high: float | None) -> str:
    """Write an estimate and its interval: ``1.234 [1.220, 1.251]``; without an interval the value alone."""
    if value is None:
        return DASH
    if low is None or high is None:
        return write_cell(value)
    middle, left, right = write_column([float(value), float(low), float(high)])
    return f"{middle} [{left}, {right}]"


def write_count(count: int) -> str:
    """Write a count for a sentence: ``20,000``."""
    return f"{count:,}"


def write_ticks(values: Sequence[float]) -> tuple[str, ...]:
    """Write an axis's ticks with as many decimals as tell them apart, and no more."""
    finite = [value for value in values if math.isfinite(value)]
    largest = max((abs(value) for value in finite), default=0.0)
    if largest >= _LARGEST or 0 < largest < _SMALLEST:
        return tuple(_write_exponent(value, shortest=True) if value else "0" for value in values)
    decimals = next((d for d in range(7) if all(abs(round(v, d) - v) <= largest * 1e-9 for v in finite)), 7)
    return tuple(_write_fixed(value, decimals) for value in values)


def typeset(written: str) -> str:
    """Set a written number for print: a true minus sign instead of a hyphen."""
    return written.replace("-", "−")


def _is_plain(number: float) -> bool:
    """Tell whether a number is written without an exponent."""
    return number == 0 or _SMALLEST <= abs(number) < _LARGEST


def _write_like(cell: Cell, decimals: int | None) -> str:
    """Write one cell of a column in which some float has a fraction."""
    if not isinstance(cell, float):
        return write_cell(cell)
    if decimals is not None and math.isfinite(cell):
        return _write_fixed(cell, decimals)
    return _write_float(cell)


def _write_float(number: float) -> str:
    if math.isnan(number):
        return DASH
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    if number == 0:
        return "0"
    if not _is_plain(number):
        return _write_exponent(number)
    text = _write_fixed(number, max(0, 3 - _exponent(number)))
    return text[:-1].removesuffix(".") if "." in text and text.endswith("0") else text


def _write_fixed(number: float, decimals: int) -> str:
    """Write with so many decimals; thousands are parted from ten thousand on, and zero has no sign."""
    comma = "," if abs(number) >= 1e4 else ""
    return f"{number:z{comma}.{decimals}f}"


def _write_exponent(number: float, *, shortest: bool = False) -> str:
    mantissa, exponent = f"{number:.3e}".split("e")
    mantissa = f"{float(mantissa):g}" if shortest else mantissa.removesuffix("0")
    return f"{mantissa}×10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def _exponent(number: float) -> int:
    """Return the power of ten of a number that is rounded to four digits."""
    return int(f"{abs(number):.3e}".split("e")[1])


def _common_decimals(numbers: Sequence[float]) -> int | None:
    """Return the decimals that give every number three or four digits, or nothing when they are too unlike.

    The last decimal is dropped where it is zero in all of them.
    """
    finite = [number for number in numbers if math.isfinite(number)]
    if not finite or not all(_is_plain(number) for number in finite):
        return None
    exponents = [_exponent(number) for number in finite]
    if max(exponents) - min(exponents) > 1:
        return None
    decimals = max(0, 3 - max(exponents))
    spare = decimals > 0 and all(f"{number:.{decimals}f}".endswith("0") for number in finite)
    return decimals - 1 if spare else decimals
