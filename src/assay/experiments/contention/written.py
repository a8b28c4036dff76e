"""How ratios, intervals and verdicts are written into tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.wide import TELLS_NOTHING, tells_nothing

if TYPE_CHECKING:
    from assay.core.page import Cell
    from assay.experiments.contention.effects import Effect
    from assay.stats.blocks import Ratio


def verdict_of(effect: Effect) -> str:
    """Write a verdict for a table."""
    return {"yes": "yes", "no": "no", "unsure": "not decided"}[effect.verdict]


def ratio_cells(effect: Effect | None) -> tuple[Cell, Cell]:
    """Return a ratio and its interval for two cells."""
    if effect is None or effect.ratio is None:
        return None, None
    return ratio_cell(effect.ratio), _ends(effect.ratio)


def ratio_cell(ratio: Ratio | None) -> str | None:
    """Write a ratio: close to 1 with three decimals."""
    return None if ratio is None else f"{ratio.value:.{_digits(ratio)}f}"


def _ends(ratio: Ratio) -> str | None:
    if ratio.low is None or ratio.high is None:
        return None
    if tells_nothing(ratio.low, ratio.high):
        return "or any"
    return f"{ratio.low:.{_digits(ratio)}f} – {ratio.high:.{_digits(ratio)}f}"


def _digits(ratio: Ratio) -> int:
    far = max(abs(end - 1) for end in (ratio.value, ratio.low or 1.0, ratio.high or 1.0))
    return 3 if far < 0.1 else 2


def whole_cell(effect: Effect | None) -> str | None:
    """Write a ratio and its interval into one cell."""
    value, ends = ratio_cells(effect)
    return None if value is None else f"{value} ({ends})" if ends is not None else str(value)


def floor_cell(effect: Effect) -> str | None:
    """Write how far A/A strays."""
    if effect.floor is None:
        return None
    return f"±{effect.floor:.1%}" if effect.floor < TELLS_NOTHING else "anything"


def percent(share: float) -> str:
    """Write a share in percent, with two digits or as many whole ones as it has."""
    value = 100 * share
    if value < 0.005:
        return "0"
    return f"{value:.{0 if value >= 9.95 else 1 if value >= 0.995 else 2}f}"


def percent_cell(ratio: Ratio | None) -> str | None:
    """Write a coefficient of variation and its interval in percent."""
    if ratio is None:
        return None
    if ratio.low is None or ratio.high is None:
        return f"{percent(ratio.value)} %"
    if tells_nothing(ratio.low, ratio.high):
        return f"{percent(ratio.value)} % (or any)"
    return f"{percent(ratio.value)} % ({percent(ratio.low)} – {percent(ratio.high)})"
