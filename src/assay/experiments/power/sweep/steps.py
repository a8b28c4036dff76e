"""The steps of a sweep as they are written: ``200:700:50``, ``250,300,350``, ``10%:100%:10%``, or both mixed."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_STEPS = 200
"""More is a slip of the finger: each step is measured several times."""

_NUMBER = re.compile(r"([0-9]*\.?[0-9]+)([a-z%]*)", re.IGNORECASE)


def numbers(flag: str, words: Sequence[str], *, units: Sequence[str] = ()) -> tuple[float, ...]:
    """Return the numbers that words mean, ascending and each once; a range includes its end where a step falls on it.

    Raises:
        BadInput: A word is neither a number nor a range, a range is empty, or there are too many steps.
    """
    values = sorted({value for word in words for value in _values(flag, word, units)})
    if not values:
        raise BadInput(f"{flag} names no step.")
    if len(values) > MOST_STEPS:
        raise BadInput(f"{flag} means {len(values)} steps, which cannot be meant; {MOST_STEPS} are the most.")
    return tuple(float(value) for value in values)


def whole_numbers(flag: str, words: Sequence[str], *, units: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the whole numbers that words mean, ascending and each once."""
    values = numbers(flag, words, units=units)
    broken = [value for value in values if value != int(value) or value < 1]
    if broken:
        raise BadInput(f"{flag} takes whole numbers of at least 1, not {broken[0]:g}.")
    return tuple(int(value) for value in values)


def shares(flag: str, words: Sequence[str]) -> tuple[float, ...]:
    """Return the shares above 0 and up to 1 that words mean, as 10% or 0.1, ascending and each once."""
    values = numbers(flag, words, units=("%",))
    wrong = [value for value in values if not 0 < value <= 1]
    if wrong:
        signed = any("%" in word for word in words)
        meant = f"; for {wrong[0]:g} percent write {wrong[0]:g}%" if not signed and 1 < wrong[0] <= 100 else ""
        wrong_value = f"{100 * wrong[0]:g} %" if signed else f"{wrong[0]:g}"
        raise BadInput(f"{flag} takes shares above 0 % and up to 100 %, not {wrong_value}{meant}.")
    return values


def _values(flag: str, word: str, units: Sequence[str]) -> list[Fraction]:
    parts = word.split(":")
    read = [_number(flag, word, part, units) for part in parts]
    percent = any(unit == "%" for _, unit in read)
    values = [value / 100 if percent else value for value, _ in read]
    if len(values) == 1:
        return values
    if len(values) != 3:
        raise BadInput(f"{flag} {word} is no range; write START:STOP:STEP, as 200:700:50.")
    start, stop, step = values
    if step <= 0:
        raise BadInput(f"{flag} {word}: the step of a range is larger than zero.")
    if stop < start:
        raise BadInput(f"{flag} {word} runs backwards; the order in which steps are measured is drawn by lot.")
    count = int((stop - start) / step) + 1
    if count > MOST_STEPS:
        raise BadInput(f"{flag} {word} means {count} steps, which cannot be meant; {MOST_STEPS} are the most.")
    return [start + index * step for index in range(count)]


def _number(flag: str, word: str, part: str, units: Sequence[str]) -> tuple[Fraction, str]:
    """Return a number and its unit, in small letters."""
    match = _NUMBER.fullmatch(part.strip())
    allowed = {unit.lower() for unit in units}
    if match is None or (match[2] and match[2].lower() not in allowed):
        raise BadInput(f"{flag} {word} is no number, list or range of numbers; write 250,300 or 200:700:50.")
    return Fraction(match[1]), match[2].lower()
