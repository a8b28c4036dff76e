"""How ratios, watts and joules of a study of power are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.units import significant
from assay.experiments.wide import tells_nothing

if TYPE_CHECKING:
    from assay.core.results import Estimate


def percent(ratio: float) -> str:
    """Write how far a ratio is from 1 as a percentage with its sign: 1.022 is "+2.2 %"."""
    change = 100 * (ratio - 1)
    decimals = 0 if abs(change) >= 10 else 1 if abs(change) >= 1 else 2
    return f"{change:+.{decimals}f} %".replace("-", "−")


def change(ratio: Estimate | None) -> str | None:
    """Write a ratio with its interval as percentages: "+2.2 % [+1.8, +2.6]"; null where it was not measured."""
    if ratio is None:
        return None
    if ratio.low is None or ratio.high is None:
        return percent(ratio.value)
    if tells_nothing(ratio.low, ratio.high):
        return f"{percent(ratio.value)} [or any]"
    ends = ", ".join(percent(end).removesuffix(" %") for end in (ratio.low, ratio.high))
    return f"{percent(ratio.value)} [{ends}]"


def share(value: float) -> str:
    """Write a share as a percentage: 0.01 is "1 %"."""
    return f"{100 * value:.2g} %"


def joules(value: float) -> str:
    """Write an energy in the unit that reads best: "662 J", "1.2 mJ"."""
    for scale, unit in ((1e-6, "µJ"), (1e-3, "mJ"), (1.0, "J"), (1e3, "kJ")):
        text = significant(value / scale, 3)
        if abs(float(text)) < 1000:
            return f"{text} {unit}"
    return f"{significant(value / 1e6, 3)} MJ"


def span(low: str, high: str) -> str:
    """Write two amounts as one: "1.2 – 1.4 ms", or one of them where they read alike."""
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number if unit and high.endswith(f' {unit}') else low} – {high}"


def listed(words: list[str]) -> str:
    """Write "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""
