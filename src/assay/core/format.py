"""How numbers and lists are written for people, and parsed: one notation in every report, message and terminal.

    1.93× (1.71–2.18)          a ratio; behind it the bounds of its interval
    806.9 µs (799.5–855.3)     a time; the bounds are in the unit of the value
    81 % (78–85)               a share
    +4.9 % (−0.3 to +9.8)      a change; bounds with a sign are joined by "to"
    1.93× (inconclusive)       bounds so far apart that they say nothing

``low`` and ``high`` are null where there is no interval; the value then stands alone.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    class HasBounds(Protocol):
        """A number with the bounds of its interval, null where there is none."""

        @property
        def value(self) -> float:
            """The number itself."""

        @property
        def low(self) -> float | None:
            """The lower bound."""

        @property
        def high(self) -> float | None:
            """The upper bound."""


Scales = tuple[tuple[float, str], ...]

TIME_SCALES: Scales = ((1e-3, "ns"), (1.0, "µs"), (1e3, "ms"), (1e6, "s"))
"""Of microseconds."""
ENERGY_SCALES: Scales = ((1e-12, "pJ"), (1e-9, "nJ"), (1e-6, "µJ"), (1e-3, "mJ"), (1.0, "J"), (1e3, "kJ"), (1e6, "MJ"))
BYTE_SCALES: Scales = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"))
RATE_SCALES: Scales = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"))

UNINFORMATIVE_RATIO = 100.0
"""Bounds of a ratio that are further apart than this factor say nothing."""
INCONCLUSIVE = "inconclusive"
SMALLEST_PERCENT = 0.01
"""A smaller percentage is written as less than this."""
NEAR_ONE = 0.1
"""A ratio whose bounds are all closer to 1 than this has a third decimal."""

_MICROSECONDS = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}


def format_significant(value: float, digits: int = 4) -> str:
    """Write a number with so many significant digits and no exponent: 1234.5 → "1234"."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else typeset_minus(str(value))
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return typeset_minus(f"{value:.{max(0, digits - 1 - exponent)}f}")


def typeset_minus(number_text: str) -> str:
    """Set a written number for print: a true minus sign instead of a hyphen."""
    return number_text.replace("-", "−")


def format_range(low: str, high: str) -> str:
    """Write two bounds: "1.71–2.18", "−0.3 to +9.8"; one where they read alike. A common unit stands once."""
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    first = number if unit and high.endswith(f" {unit}") else low
    return f"{first} to {high}" if low[:1] in "+−" or high[:1] in "+−" else f"{first}–{high}"


def is_uninformative(low: float | None, high: float | None) -> bool:
    """Return whether the interval of a ratio, if it has one, says nothing."""
    return low is not None and high is not None and high > UNINFORMATIVE_RATIO * low


def format_bounds(
    value: str, low: float | None, high: float | None, write: Callable[[float], str], *, informative: bool = True
) -> str:
    """Write a value that is already formatted and, in brackets, the bounds of its interval."""
    if low is None or high is None:
        return value
    return f"{value} ({format_range(write(low), write(high)) if informative else INCONCLUSIVE})"


def format_scaled(
    value: float, scales: Scales, low: float | None = None, high: float | None = None, digits: int = 4
) -> str:
    """Write a quantity in the unit that reads best for its value, its bounds in the same unit."""
    scale, unit = _pick_scale(value, scales, digits)

    def write(number: float) -> str:
        return format_significant(number / scale, digits)

    return format_bounds(f"{write(value)} {unit}".rstrip(), low, high, write)


def format_time(microseconds: float, low: float | None = None, high: float | None = None) -> str:
    """Write a time in the unit that reads best: "1.234 ms (1.220–1.251)"; 0 and what is not finite in µs."""
    return format_scaled(microseconds, TIME_SCALES, low, high)


def format_joules(joules: float, low: float | None = None, high: float | None = None, digits: int = 4) -> str:
    """Write an energy in the unit that reads best: 12.34 mJ rather than 0.01234 J."""
    return format_scaled(joules, ENERGY_SCALES, low, high, digits)


def format_bytes(size: float) -> str:
    """Write a size of memory in binary units: "1.5 GiB"."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"


def format_value(value: float, unit: str, low: float | None = None, high: float | None = None) -> str:
    """Write a value of any unit: times in the unit that reads best, whole counts whole, others with four digits."""
    if unit in _MICROSECONDS:
        scale = _MICROSECONDS[unit]
        return format_time(value * scale, *(None if end is None else end * scale for end in (low, high)))

    def write(number: float) -> str:
        is_count = not unit and number == int(number)
        return str(int(number)) if is_count else format_significant(number)

    return format_bounds(f"{write(value)}{'' if unit == '×' else ' '}{unit}".rstrip(), low, high, write)


def format_duration(seconds: float) -> str:
    """Write how long something lasts: "42 s", "3 min 5 s", "2 h 10 min"."""
    whole = round(seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_percent(share: float, low: float | None = None, high: float | None = None, *, digits: int = 2) -> str:
    """Write a share with so many significant digits, without zeros at the end: "81 % (78–85)", "0.5 %", "<0.01 %".

    Bounds that would read alike have more digits, up to four: "24 % (23.6–24.3)".
    """
    if low is None or high is None:
        return f"{_percent_number(share, digits)} %"
    enough = (more for more in range(digits, 5) if _percent_number(low, more) != _percent_number(high, more))
    shown = next(enough, digits)
    text = f"{_percent_number(share, shown)} %"
    informative = low <= 0 or not is_uninformative(low, high)
    return format_bounds(text, low, high, lambda end: _percent_number(end, shown), informative=informative)


def _percent_number(share: float, digits: int) -> str:
    percent = 100 * share
    if 0 < percent < SMALLEST_PERCENT:
        return f"<{SMALLEST_PERCENT:g}"
    text = format_significant(percent, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_change(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """Write a ratio as the change it is: 1.049 is "+4.9 %", 0.997 is "−0.3 %"; a zero has no sign."""

    def write(number: float) -> str:
        percent = 100 * (number - 1)
        decimals = 1 if abs(percent) < 99.95 else 0
        text = f"{percent:+z.{decimals}f}"
        return typeset_minus(text.lstrip("+") if float(text) == 0 else text)

    return format_bounds(f"{write(ratio)} %", low, high, write, informative=not is_uninformative(low, high))


def format_ratio(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """Write a ratio: "1.93× (1.71–2.18)"; close to 1 with three decimals, below a tenth with two digits."""
    if max(abs(number - 1) for number in (ratio, low, high) if number is not None) < NEAR_ONE:
        decimals = 3
    else:
        decimals = 2 if not 0 < abs(ratio) < 0.1 else 1 - math.floor(math.log10(abs(ratio)))

    def write(number: float) -> str:
        return typeset_minus(f"{number:z.{decimals}f}")

    return format_bounds(f"{write(ratio)}×", low, high, write, informative=not is_uninformative(low, high))


def _write_cell(write: Callable[[float, float | None, float | None], str], estimate: HasBounds | None) -> str | None:
    """Write an estimate and its bounds for a table; null where there is none."""
    return None if estimate is None else write(estimate.value, estimate.low, estimate.high)


time_cell = partial(_write_cell, format_time)
ratio_cell = partial(_write_cell, format_ratio)
change_cell = partial(_write_cell, format_change)
percent_cell = partial(_write_cell, format_percent)


def format_count(number: int, noun: str) -> str:
    """Write a number of things: "1 sample", "16 samples", "20,000 samples"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_list(items: Sequence[str], most: int | None = None, word: str = "and") -> str:
    """Write "a, b and c"; of more than ``most`` the first and how many more: "a, b and 5 more"."""
    if most is not None and len(items) > most:
        return f"{', '.join(items[:most])} {word} {len(items) - most} more"
    return f" {word} ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _pick_scale(value: float, scales: Scales, digits: int) -> tuple[float, str]:
    """Return the first scale at which the written number is below 1000; of 0 and what is not finite that of 1."""
    if value == 0 or not math.isfinite(value):
        return next(pair for pair in scales if pair[0] == 1.0)
    fitting = (pair for pair in scales if abs(float(f"{value / pair[0]:.{digits - 1}e}")) < 1000)
    return next(fitting, scales[-1])


_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?)\s*([a-zµμ]*)\s*", re.IGNORECASE)
MAX_DURATION_S = 30 * 86400.0
"""No single duration is longer than thirty days: a larger one is a typing error."""

MAX_REPEATS = 10_000
MAX_PROCESSES = 1_024
MAX_CALLS = 10_000_000
MAX_SIZE = 2**31 - 1
"""Upper limits of counts, for the same reason: each repeat is planned, and each process is started."""

_UNIT_SUFFIXES = {
    "us": "µs",
    "ms": "ms",
    "s": "s",
    "ns": "ns",
    "w": "W",
    "j": "J",
    "mib": "MiB",
    "gib": "GiB",
    "gb": "GB",
    "mb": "MB",
    "mhz": "MHz",
    "cycles": "cycles",
    "c": "°C",
    "percent": "%",
    "gflops": "GFLOP/s",
    "tflops": "TFLOP/s",
    "tokens": "tokens",
    "bytes": "bytes",
    "flop": "FLOP",
}


def parse_duration_s(text: str, *, zero_ok: bool = False) -> float:
    """Return seconds from "5", "5s", "500ms", "2m" or "1h"; anything else is bad input."""
    match = _DURATION.fullmatch(text)
    unit = re.sub("[µμ]", "u", match[2].lower()) if match else ""
    if match is None or (unit and unit not in _SECONDS):
        raise BadInput(f"{text!r} is not a duration; write seconds, or 500ms, 90s, 5m, 2h.")
    seconds = float(match[1]) * _SECONDS[unit or "s"]
    if seconds == 0 and not zero_ok:
        raise BadInput("A duration must be longer than zero.")
    if seconds > MAX_DURATION_S:
        raise BadInput(f"{text!r} is longer than thirty days, which cannot be meant.")
    return seconds


def parse_fraction(text: str) -> float:
    """Return 0.01 from "1%", "1 %" or "0.01"; it must lie strictly between 0 and 1."""
    body = text.strip()
    try:
        signed = body.endswith("%")
        value = float(body[:-1]) / 100 if signed else float(body)
    except ValueError:
        raise BadInput(f"{text!r} is not a percentage; write 1% or 0.01.") from None
    if not 0 < value < 1:
        meant = f"; for {body} percent write {body}% or {value / 100:g}" if not signed and 1 <= value < 100 else ""
        raise BadInput(f"{text!r} is out of range: it lies between 0 and 1, or 0% and 100%{meant}.")
    return value


def unit_of(quantity: str) -> str:
    """Return the unit in a quantity's name: ``call_us`` is in µs; "" when it has none."""
    return _UNIT_SUFFIXES.get(quantity.rsplit("_", 1)[-1].lower(), "") if "_" in quantity else ""
