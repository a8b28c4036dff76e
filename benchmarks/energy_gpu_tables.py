"""The table of energy_gpu.py, from what was kept: pure functions of raw readings."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

import numpy as np

T, BEGIN, END, ENERGY, INSTANT, AVERAGE = range(6)
"""Where each part of a kept reading is."""
WARM_S = 1.0
WINDOW_S = 0.05
WINDOWS = 10
Raw = dict[str, Any]


def call_s(run: Raw, after_s: float = 0.0) -> float:
    """Return how long a call took, back to back, from so long after the first one on."""
    knots = np.array(run["knots"], dtype=np.float64)
    inside = knots[:, 0] >= knots[0, 0] + after_s * 1e9
    times, calls = knots[inside, 0], knots[inside, 1]
    return float((times[-1] - times[0]) / 1e9 / (calls[-1] - calls[0]))


def long_run_j(run: Raw) -> float:
    """Return J per call of a long run: what the counter counted between two of its ticks, over the calls between.

    The ticks are the first and the last that were seen while calls ran and had warmed up.
    """
    begin_ns, end_ns = run["knots"][0][0] + WARM_S * 1e9, run["knots"][-1][0]
    counted = [r for r in run["readings"] if r[ENERGY] is not None]
    ticks = [
        ((before[BEGIN] + after[END]) / 2, after[ENERGY])
        for before, after in pairwise(counted)
        if after[ENERGY] != before[ENERGY] and before[BEGIN] > begin_ns and after[END] < end_ns
    ]
    (first_ns, first_j), (last_ns, last_j) = ticks[0], ticks[-1]
    return float((last_j - first_j) / ((last_ns - first_ns) / 1e9)) * call_s(run, WARM_S)


def differences_j(run: Raw) -> list[float]:
    """Return J per call as the counter read before and after 50 ms says, at ten places of a run that has warmed up."""
    begin_ns, end_ns = run["knots"][0][0] + WARM_S * 1e9, run["knots"][-1][0] - WINDOW_S * 2e9
    counted = [r for r in run["readings"] if r[ENERGY] is not None]
    results = []
    for start_ns in np.linspace(begin_ns, end_ns, WINDOWS):
        before = next((r for r in counted if r[BEGIN] >= start_ns), None)
        after = None if before is None else next((r for r in counted if r[BEGIN] >= before[END] + WINDOW_S * 1e9), None)
        if before is not None and after is not None:
            calls = (after[BEGIN] - before[END]) / 1e9 / call_s(run, WARM_S)
            results.append(float((after[ENERGY] - before[ENERGY]) / calls))
    return results


def average_j(run: Raw) -> float | None:
    """Return J per call as average power says that is polled from the first call to the last; null: not offered."""
    begin_ns, end_ns = run["knots"][0][0], run["knots"][-1][0]
    watts = [r[AVERAGE] for r in run["readings"] if begin_ns <= r[T] <= end_ns and r[AVERAGE] is not None]
    return statistics.fmean(watts) * call_s(run) if watts else None


def zeus_j(step: Raw) -> list[float]:
    """Return J per call as each window of Zeus says."""
    return [window["joules"] / window["calls"] for window in step["windows"]]


def table(raw: Raw) -> str:
    """Return the published table: everything over the long run's J per call."""
    titles = (
        "kernel", "a call", "long run", "`assay.energy` over it: median (range)", "furthest off", "± it states: median",
        "long run inside", "took: median, most", "Zeus, windows of 50 ms", "counter before and after 50 ms",
        "average power polled from rest, 2 s",
    )  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    lines += [_row(name, kernel, len(titles) - 1) for name, kernel in raw["kernels"].items()]
    return "\n".join([*lines, *_beside(raw)])


def _row(name: str, kernel: Raw, cells_beside: int) -> str:
    if not kernel["long"] or not kernel["energy"]:
        return f"| {name} |{' – |' * cells_beside}"
    run = kernel["long"][0]
    truth_j = long_run_j(run)
    results = [entry["result"] for entry in kernel["energy"]]
    ratios = [entry["joules"]["value"] / truth_j for entry in results]
    stated = statistics.median(entry["precision_reached"] for entry in results)
    inside = sum(entry["joules"]["low"] <= truth_j <= entry["joules"]["high"] for entry in results)
    waited_s = [entry["waited_s"] for entry in kernel["energy"]]
    cells = [
        f"{1e6 * call_s(run, WARM_S):.4g} µs",
        f"{1e3 * truth_j:.4g} mJ",
        f"{statistics.median(ratios):.3f} ({_range(ratios)})",
        f"{100 * max(abs(ratio - 1) for ratio in ratios):.1f} %",
        f"{100 * stated:.2f} %",
        f"{inside} of {len(results)}",
        f"{statistics.median(waited_s):.1f} s, {max(waited_s):.1f} s",
        _range([j / truth_j for entry in kernel["zeus"] for j in zeus_j(entry)]),
        _range([j / truth_j for entry in kernel["simple"] for j in differences_j(entry)]),
        _range([j / truth_j for entry in kernel["simple"] if (j := average_j(entry)) is not None]),
    ]
    return f"| {name} | {' | '.join(cells)} |"


def _range(values: list[float]) -> str:
    return f"{min(values):.3f} – {max(values):.3f}" if values else "–"


def _beside(raw: Raw) -> list[str]:
    """Return what is said below: which Zeus it was or why there is none, and what there was no time for."""
    text = [f"Zeus is {raw['zeus']}." if raw["zeus_ran"] else f"Zeus was left out ({raw['zeus']})."]
    named = [f"{name}: {', '.join(kernel['skipped'])}" for name, kernel in raw["kernels"].items() if kernel["skipped"]]
    if named:
        text.append(f"Skipped for want of time: {'; '.join(named)}.")
    return ["", *text]
