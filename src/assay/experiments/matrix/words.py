"""How rows, ratios and outcomes of the matrix are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.wide import tells_nothing

if TYPE_CHECKING:
    from assay.core.results import Estimate
    from assay.experiments.matrix.cells import Cell
    from assay.experiments.matrix.meetings import Row
    from assay.experiments.matrix.options import MatrixOptions

SHORT = {"busy_us": "kernels", "call_us": "call"}
"""The times of a row in a word."""


def label(options: MatrixOptions, row: Row) -> str:
    """Name a row: the victim, which of its times where a GPU has two, and the device where there are several."""
    name = options.victims[row.victim].label
    if sum(victim.label == name for victim in options.victims) > 1:
        name = f"{name} {row.victim + 1}"
    if row.device.startswith("cuda"):
        name = f"{name} ({SHORT[row.quantity]})"
    return f"{name} on {row.device}" if len(options.devices) > 1 else name


def in_percent(ratio: float) -> str:
    """Write a ratio as the percentage it adds: 1.034 is "3.4 %"."""
    added = 100 * (ratio - 1)
    return f"{added:.0f} %" if abs(added) >= 10 else f"{added:.1f} %"


def ratio_text(estimate: Estimate | None) -> str | None:
    """Write a ratio with its interval: "1.92 [1.80, 2.05]"; null where it was not measured."""
    if estimate is None:
        return None
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    if tells_nothing(estimate.low, estimate.high):
        return f"{estimate.value:.2f} [or any]"
    digits = 3 if max(abs(estimate.low - 1), abs(estimate.high - 1)) < 0.1 else 2
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def outcome_text(cell: Cell) -> str:
    """Write what a cell came to, with the bound that belongs to it."""
    naive, isolated = cell.naive, cell.isolated
    if cell.outcome == "no effect seen" and naive and naive.high is not None:
        return f"no effect seen (at most {in_percent(max(naive.high, 1.0))})"
    if cell.outcome == "cured by isolation" and isolated and isolated.high is not None:
        return f"cured by isolation (≤ {in_percent(max(isolated.high, 1.0))} left)"
    if cell.outcome == "not cured" and cell.less and cell.less.low is not None and cell.less.low > 1:
        return "not cured, but eased"
    if cell.outcome == "hurts":
        return "hurts; cure unclear"
    if cell.outcome == "not known":
        return _why_not_known(cell)
    return cell.outcome


def _why_not_known(cell: Cell) -> str:
    if cell.naive is None:
        return "not known: not measured without isolation"
    if cell.naive.low is None or cell.naive.high is None:
        return "not known: one block tells nothing of chance"
    if tells_nothing(cell.naive.low, cell.naive.high):
        return "not known: it may be anything"
    return f"not known: anything from {cell.naive.low:.2g} to {cell.naive.high:.2g}"


def listed(words: list[str]) -> str:
    """Write "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""
