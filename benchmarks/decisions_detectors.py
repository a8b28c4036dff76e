"""Who looks at series of runs: Assay, an oracle, and rules that people write in an afternoon.

Each takes a history and returns for every series the first run at which it would have been told that the series became
slower, judged after every run with what was known then; -1 where it never was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from assay.stats.changepoint import ALARM, UP, ShiftSearch
from benchmarks.decisions_oracles import SILENT, statistic

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from benchmarks.decisions_noise import Family, History, Samples

NEVER = -1
OURS, ORACLE = "Assay", "oracle"


def ours(history: History) -> list[int]:
    """Return when Assay tells a step, all series of the history together."""
    return _first(ShiftSearch(history.logs, history.hosts).evidence[UP].log_odds > ALARM)


def oracle(family: Family, level: float, history: History) -> list[int]:
    """Return when an oracle of a family tells a step."""
    return _first(statistic(family, history) > level)


def _first(alarms: NDArray[np.bool_]) -> list[int]:
    return [int(row.argmax()) if row.any() else NEVER for row in alarms]


def _alarms(times: Samples, first: int) -> NDArray[np.bool_]:
    """Return a table without any alarm; none is raised before a run."""
    if first < SILENT:
        raise ValueError("every detector is silent for as long")
    return np.zeros(times.shape, dtype=bool)


def above_the_mean(history: History) -> list[int]:
    """The latest run is more than 5 % above the mean of all before."""
    times = np.exp(history.logs)
    alarms, before = _alarms(times, SILENT), np.cumsum(times, axis=1) / np.arange(1, times.shape[1] + 1)
    alarms[:, SILENT:] = times[:, SILENT:] > 1.05 * before[:, SILENT - 1 : -1]
    return _first(alarms)


def three_deviations(history: History) -> list[int]:
    """The latest run is more than three standard deviations above the mean of the 20 before."""
    times = np.exp(history.logs)
    alarms, last = _alarms(times, SILENT), sliding_window_view(times[:, SILENT - 20 : -1], 20, axis=1)
    alarms[:, SILENT:] = times[:, SILENT:] > last.mean(axis=2) + 3 * last.std(axis=2, ddof=1)
    return _first(alarms)


def two_medians(history: History) -> list[int]:
    """The median of the last 5 runs is more than 5 % above the median of the 30 before."""
    times = np.exp(history.logs)
    alarms, windows = _alarms(times, 34), sliding_window_view(times, 35, axis=1)
    alarms[:, 34:] = np.median(windows[..., 30:], axis=2) > 1.05 * np.median(windows[..., :30], axis=2)
    return _first(alarms)


SIMPLE: dict[str, Callable[[History], list[int]]] = {
    "5 % above the mean": above_the_mean,
    "three deviations above the last 20": three_deviations,
    "median of 5 against 30": two_medians,
}


def all_told(family: Family, level: float, history: History) -> dict[str, list[int]]:
    """Return when each detector tells a step in each series."""
    simple = {name: rule(history) for name, rule in SIMPLE.items()}
    return {OURS: ours(history), ORACLE: oracle(family, level, history), **simple}
