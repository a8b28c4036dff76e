"""Tables about regressions, from the run at which each series was told."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.decisions_detectors import NEVER, ORACLE, OURS
from benchmarks.decisions_noise import CHANGED_AT, FAMILIES, RUNS, WITHIN
from benchmarks.decisions_rivals import BY_HOST
from benchmarks.decisions_tables import marked, most, rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Told = Sequence[int]

FALSE, FALSE_BOUND, OF_ORACLE = 0.02, 0.04, 0.85
"""What is asked: of stable series, and of the oracle's power."""
FEWEST = 30
"""Series without an earlier alarm, below which no power is given."""


def power(alarms: Told, change: float) -> tuple[int, int]:
    """Return how many series were told in time, and how many had no alarm before the change."""
    quiet = [run for run in alarms if run == NEVER or run >= CHANGED_AT]
    return sum(CHANGED_AT <= run < CHANGED_AT + WITHIN[change] for run in quiet), len(quiet)


def _power_cells(alarms: Mapping[float, Told], oracle: Mapping[float, Told], *, checked: bool) -> list[str]:
    cells = []
    for change in WITHIN:
        (k, n), (best, of) = power(alarms[change], change), power(oracle[change], change)
        if n < FEWEST:
            cells += [f"– ({n} left)", "–"]
            continue
        share = (k / n) / (best / of)
        cells += [f"{100 * k / n:.1f} (of {n})", marked(f"{share:.2f}", good=not checked or share >= OF_ORACLE)]
    return cells


def _false_cell(alarms: Told, *, checked: bool) -> str:
    k, n = sum(run != NEVER for run in alarms), len(alarms)
    good = not checked or (k <= FALSE * n and most(k, n) <= FALSE_BOUND)
    return marked(f"{rate(k, n)} of {n}", good=good)


def regression_tables(ours: Mapping[str, Any], rivals: Mapping[str, Any]) -> list[str]:
    """Return who told what: false alarms of 100 stable runs, and how many steps were told in time."""
    titles = (
        "detector", "noise", "false alarms, %", "shown after the last run, %",
        *(f"{what}{100 * change:.0f} %" for change in WITHIN for what in ("told in time, %: +", "of the oracle: +")),
    )  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", f"|{len(titles) * '---|'}"]
    changes = (0.0, *WITHIN)
    for detector in ours[f"{FAMILIES[0]} | 0"]:
        for family in FAMILIES:
            alarms = {change: ours[f"{family} | {change:g}"][detector] for change in changes}
            oracle = {change: ours[f"{family} | {change:g}"][ORACLE] for change in changes}
            checked = detector == OURS
            cells = [_false_cell(alarms[0.0], checked=checked), "–", *_power_cells(alarms, oracle, checked=checked)]
            lines.append(f"| {detector} | {family} | {' | '.join(cells)} |")
    for rival, shown in rivals.items():
        for noise in (*FAMILIES, FAMILIES[-1] + BY_HOST):
            runs = {change: shown[f"{noise} | {change:g}"] for change in changes}
            alarms = {change: [min(entry, default=NEVER) for entry in series] for change, series in runs.items()}
            oracle = {change: ours[f"{noise.removesuffix(BY_HOST)} | {change:g}"][ORACLE] for change in changes}
            still = sum(RUNS - 1 in entry for entry in runs[0.0]) / len(runs[0.0])
            cells = [_false_cell(alarms[0.0], checked=False), f"{100 * still:.1f}"]
            lines.append(
                f"| {rival} | {noise} | {' | '.join([*cells, *_power_cells(alarms, oracle, checked=False)])} |"
            )
    return lines


def recorded_table(results: Mapping[str, Any]) -> list[str]:
    """Return what each detector says of series in which nothing was changed."""
    detectors = list(next(iter(results["told"].values())))
    lines = [f"| recorded series | {' | '.join(detectors)} |", f"|{(1 + len(detectors)) * '---|'}"]
    for name, alarms in results["told"].items():
        cells = ["–" if alarms[detector] == NEVER else f"slower, at run {alarms[detector]}" for detector in detectors]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def time_table(results: Mapping[str, Any]) -> list[str]:
    """Return what the verb took over a thousand series of a year."""
    took, cpu, mib = (
        statistics.median(attempt[what] for attempt in results["tries"]) for what in ("took_s", "cpu_s", "most_mib")
    )
    return [
        "| points | tries | median, s | of CPU | most MiB |",
        "|---|---|---|---|---|",
        f"| {results['points']:,} | {len(results['tries'])} | {took:.1f} | {cpu:.1f} | {mib:.0f} |",
    ]
