"""How numbers with their intervals are written: into cells, and into sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.units import format_time, significant
from assay.experiments.scaling.numbers import Known
from assay.experiments.wide import tells_nothing

if TYPE_CHECKING:
    from collections.abc import Callable

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def cell(known: Known, write: Callable[[float], str], unit: str = "") -> str | None:
    """Write a number, its interval behind it and its unit last; null where there is no number."""
    if known.value is None:
        return None
    value = write(known.value)
    return f"{value}{unit}{interval(known, write)}"


def interval(known: Known, write: Callable[[float], str]) -> str:
    """Write an interval in brackets, with a space before it; nothing where there is none."""
    if known.ends is None or known.value is None:
        return ""
    low, high = known.ends
    if low > 0 and tells_nothing(low, high):
        return " (or any)"
    return f" ({write(low)} – {write(high)})"


def time_cell(known: Known) -> str | None:
    """Write a time, all in the unit that reads best for it: ``1.234 ms (1.220 – 1.251)``."""
    if known.value is None:
        return None
    unit = format_time(abs(known.value)).rpartition(" ")[2]
    scale = {"ns": 1e-3, "µs": 1.0, "ms": 1e3, "s": 1e6}[unit]
    return cell(known, lambda us: _signed(us / scale), f" {unit}")


def _signed(value: float) -> str:
    return f"−{significant(-value)}" if value < 0 else significant(value)


def percent_cell(known: Known) -> str | None:
    """Write a share in percent: ``81 % (78 – 85)``."""
    return cell(known, lambda share: f"{_whole(100 * share)}", " %")


def _whole(percent: float) -> str:
    digits = 0 if abs(percent) >= 9.95 else 1 if abs(percent) >= 0.095 else 2
    return f"{percent:.{digits}f}".replace("-", "−")


def ratio_cell(known: Known) -> str | None:
    """Write a ratio: ``1.62 (1.55 – 1.70)``."""
    return cell(known, lambda ratio: f"{ratio:.2f}".replace("-", "−"))


def factor_cell(known: Known) -> str | None:
    """Write a factor of efficiency, very close to 1 with three decimals; what is 1 by its nature has no more to it."""
    if known.value == 1 and known.ends in {None, (1.0, 1.0)}:
        return "1"
    far = max((abs(end - 1) for end in (known.value or 1.0, *(known.ends or ()))), default=0.0)
    return cell(known, lambda factor: f"{factor:.{3 if far < 0.02 else 2}f}")


def rate_cell(known: Known) -> str | None:
    """Write a rate with a prefix: ``166 k (163 – 170)``."""
    if known.value is None:
        return None
    scale, prefix = next(((s, p) for s, p in _PREFIXES if abs(known.value) >= s), _PREFIXES[-1])
    return cell(known, lambda rate: significant(rate / scale, 3), f" {prefix}" if prefix else "")


def small_cell(known: Known, unit: str) -> str | None:
    """Write a small number with a prefix: ``1.2 µJ (1.1 – 1.3)``."""
    if known.value is None:
        return None
    scale, prefix = next(((s, p) for s, p in _SMALL if abs(known.value) >= s), _SMALL[-1])
    return cell(known, lambda small: significant(small / scale, 3), f" {prefix}{unit}")


def bare(known: Known) -> Known:
    """Return a number without its interval, for where that is not written."""
    if known.estimate is None:
        return known
    return Known(known.estimate.model_copy(update={"low": None, "high": None}))


def bytes_cell(count: float | None) -> str | None:
    """Write a number of bytes."""
    if count is None:
        return None
    scale, prefix = next(((s, p) for s, p in _PREFIXES if count >= s), _PREFIXES[-1])
    return f"{significant(count / scale, 4)} {prefix}B" if count else "0 B"


def times(known: Known) -> str:
    """Write a ratio for a sentence: ``1.62× (1.55 – 1.70×)``."""
    if known.value is None:
        return "–"
    text = f"{known.value:.2f}×"
    if known.ends is None:
        return text
    return f"{text} (or any)" if tells_nothing(*known.ends) else f"{text} ({known.ends[0]:.2f} – {known.ends[1]:.2f}×)"


def share(known: Known) -> str:
    """Write a share for a sentence: ``81 % (78 – 85 %)``."""
    if known.value is None:
        return "–"
    text = f"{_whole(100 * known.value)} %"
    if known.ends is None:
        return text
    low, high = (_whole(100 * end) for end in known.ends)
    return f"{text} (or any)" if tells_nothing(*known.ends) else f"{text} ({low} – {high} %)"
