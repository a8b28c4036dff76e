"""Detect change points in every series of the history, and what else changed there: hosts, drivers, software.

series ──filter──> log values ──changepoint──> change points ──confounders──> what else changed ──page──>
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from pydantic import AwareDatetime, Field

from assay.core.format import change_cell, format_count, format_list, format_percent
from assay.core.page import LinePlot, Page, PlotLine, Section, Table, Text, build_table
from assay.core.results import Estimate, Origin
from assay.core.values import SCHEMA_VERSION, Value
from assay.experiments.compare.pairing import VERDICT_WORDS, WORSE_VERDICTS, ChangeVerdict, quantity_sense
from assay.stats.changepoint import FALSE_DISCOVERY_RATE, HISTORY, MIN_RUNS, find_level_shifts
from assay.store.history.report import series_line, series_origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from assay.core.page import Element, Tone
    from assay.stats.changepoint import LevelShift
    from assay.store.history.database import HistoryRun
    from assay.store.history.queries import SeriesHistory


ChangePointStatus = Literal["regression", "confounded", "change", "improvement", "reverted", "small", "chance"]
"""What a change point is, in the order of reports. ``change``: neither direction of its quantity is better.

``reverted``: at its end the series is back where it was; ``chance``: not significant among all series.
"""


class ChangePointRun(Value):
    """A run of a series: when it began, and the code it ran."""

    run: str
    began_at: AwareDatetime
    commit: str | None = Field(description="Of the code; null: unknown.")
    dirty: bool | None = Field(description="Whether files differed from the commit.")
    folder: str

    @property
    def code(self) -> str | None:
        """The short commit; a plus marks modified files."""
        return None if self.commit is None else f"{self.commit[:10]}{'+' if self.dirty else ''}"


class ChangePoint(Value):
    """A change of the level of one series."""

    key: str
    what: str
    where: str
    details: str
    quantity: str
    unit: str
    status: ChangePointStatus
    verdict: ChangeVerdict
    ratio: Estimate = Field(description="The new level over the old.")
    before: float = Field(description="The old level, in the unit.")
    first_bad: ChangePointRun = Field(description="The most likely first run after the change.")
    last_good: ChangePointRun
    earliest: ChangePointRun = Field(description="The change began with this run or a later one (95 %).")
    latest: ChangePointRun = Field(description="The change began with this run or an earlier one (95 %).")
    detected: ChangePointRun = Field(description="The run after which it was detectable.")
    runs_after: int = Field(description="Runs of the series from the first after the change on.")
    chance: float = Field(description="Probability that a stable series of this length looks like this.")
    confounded_by: tuple[str, ...] = Field(default=(), description="Hosts or drivers that changed at the same time.")
    other_changes: tuple[str, ...] = Field(default=(), description="What else changed at the same time.")


class RegressionReport(Value):
    """All change points, the largest regression first, and what could not be analysed."""

    schema_version: int = Field(default=SCHEMA_VERSION, serialization_alias="schema", validation_alias="schema")
    headline: str
    change_points: tuple[ChangePoint, ...]
    series: int = Field(description="Number of series analysed.")
    runs: int = Field(description="Of these series, together.")
    too_short: int = Field(description="Series with fewer runs than detection needs.")
    not_positive: int = Field(description="Runs ignored because their value is not above zero.")
    drifted: tuple[str, ...] = Field(default=(), description="Keys of series that drifted without a change point.")
    fdr: float = Field(description="False-discovery rate of the change points.")
    minimum_effect: float = Field(description="Smaller changes have the status small.")
    origin: Origin = "real"

    @property
    def regressions(self) -> tuple[ChangePoint, ...]:
        """The change points that fail a gate."""
        return tuple(step for step in self.change_points if step.status == "regression")


MIN_HOST_RUNS = 10
"""A host with a driver needs so many runs of a series to have a level of its own."""
MAX_HOSTS = 5
"""Hosts of one series with a level of their own, the most frequent ones; all others share a level."""


@dataclass(frozen=True)
class UsableSeries:
    """The usable runs of a series, the logarithms of their values, and the number of each one's host."""

    history: SeriesHistory
    runs: list[HistoryRun]
    logs: NDArray[np.float64]
    hosts: NDArray[np.int64]

    @property
    def kind(self) -> tuple[str, str]:
        """Series of one kind are similarly noisy: the quantity, and the kind of device."""
        return self.history.key.quantity, self.history.key.device_kind


def _usable_series(histories: Sequence[SeriesHistory]) -> tuple[list[UsableSeries], int, int]:
    """Return what can be analysed: without runs that were disturbed, not measured, or not above zero.

    And how many series have too few runs, and how many runs are ignored as not above zero.
    """
    usable: list[UsableSeries] = []
    too_short = not_positive = 0
    for history in histories:
        measured = np.isfinite(history.value) & ~history.disturbed
        positive = np.flatnonzero(measured & (history.value > 0))
        not_positive += int(measured.sum()) - len(positive)
        if len(positive) < MIN_RUNS:
            too_short += 1
        else:
            runs = [history.runs[index] for index in positive]
            usable.append(UsableSeries(history, runs, np.log(history.value[positive]), host_numbers(runs)))
    return usable, too_short, not_positive


def host_numbers(runs: Sequence[HistoryRun]) -> NDArray[np.int64]:
    """Return a number for the host and driver of each run, 0 for the most frequent; rare ones share the last."""
    named = [(run.host, run.driver) for run in runs]
    counted = Counter(named)
    often = [name for name, count in counted.most_common(MAX_HOSTS) if count >= MIN_HOST_RUNS]
    numbers = {name: number for number, name in enumerate(often)}
    rare = sum(count for name, count in counted.items() if name not in numbers)
    others = len(often) if rare >= MIN_HOST_RUNS else 0
    return np.array([numbers.get(name, others) for name in named], dtype=np.int64)


def confounders(runs: Sequence[HistoryRun], step: LevelShift) -> tuple[str, ...]:
    """Return hosts and drivers that first appear in a series with the change.

    A host that appeared before has a level of its own, and explains nothing.
    """
    before, after = runs[: step.first_low], runs[step.first_low : step.first_high + 1]
    old_hosts, old_drivers = {run.host for run in before}, {run.driver for run in before}
    new_hosts: dict[str, str] = {}
    for run in after:
        if run.host not in old_hosts:
            new_hosts.setdefault(run.host, run.hostname or run.host[:8])
    new_drivers = dict.fromkeys(run.driver for run in after if run.driver not in old_drivers)
    return (
        *(f"a new host ({name})" for name in new_hosts.values()),
        *(f"the driver changed from {before[-1].driver or 'none'} to {driver or 'none'}" for driver in new_drivers),
    )


def other_changes(runs: Sequence[HistoryRun], step: LevelShift) -> tuple[str, ...]:
    """Return software whose version changed with the step, and whether the commit did not."""
    last, first = runs[step.first_low - 1], runs[step.first_high]
    texts = [
        f"{name} {last.versions.get(name) or 'none'} → {first.versions.get(name) or 'none'}"
        for name in {**last.versions, **first.versions}
        if last.versions.get(name) != first.versions.get(name)
    ]
    if last.git_commit is not None and (last.git_commit, first.git_dirty) == (first.git_commit, False):
        texts.append("the commit is the same")
    return tuple(texts)


STATUS_PLURALS: dict[ChangePointStatus, tuple[str, str]] = {
    "regression": ("regression", "regressions"),
    "confounded": ("change confounded with a new host or driver", "changes confounded with new hosts or drivers"),
    "change": ("change", "changes"),
    "improvement": ("improvement", "improvements"),
    "reverted": ("reverted change", "reverted changes"),
    "small": ("small change", "small changes"),
    "chance": ("change that may be chance", "changes that may be chance"),
}


def headline(report: RegressionReport) -> str:
    """Return the answer in a sentence or two."""
    scope = f"{report.series} series ({format_count(report.runs, 'run')})"
    if not report.series:
        reason = "the history has no such series"
        if report.too_short:
            zeros = f" ({report.not_positive} runs are ignored: not above zero)" if report.not_positive else ""
            reason = f"no series has the {MIN_RUNS} runs needed to tell a change from noise{zeros}"
        return f"No change point can be detected: {reason}."
    if not report.change_points:
        drift = f" {len(report.drifted)} of them drifted slowly." if report.drifted else ""
        return f"No change points in {scope}.{drift}"
    counts = Counter(step.status for step in report.change_points)
    counts_text = format_list([f"{count} {STATUS_PLURALS[name][count > 1]}" for name, count in counts.items()])
    if not report.regressions:
        return f"{counts_text} in {scope}."
    return f"{change_point_text(report.regressions[0])}. In total: {counts_text} in {scope}."


def change_point_text(step: ChangePoint) -> str:
    """Write what changed and by how much, since which run and commit."""
    commit = f", commit {step.first_bad.code}" if step.first_bad.code else ""
    since = f"since run {step.first_bad.run} of {step.first_bad.began_at:%Y-%m-%d %H:%M}{commit}"
    return f"{step.what} ({step.details}) on {step.where} is {step.verdict}, {change_cell(step.ratio)}, {since}"


METHOD = "Kalman filter over runs, its noise estimated from all series of its kind; 95 %"
MINIMUM_EFFECT = 0.01
REVERTED_SHARE = 0.5
"""A change is reverted where surely less than this share of it remains at the end."""
MIN_DRIFT, MIN_DRIFT_NOISE = float(np.log(1.05)), 3.0
"""A series without a change point drifted if its ends differ by so much, and by so many times the run-to-run noise."""
SAME_STEP_RUNS = 3
"""Change points of two passes so few runs apart are the same."""


def detect_regressions(
    histories: Sequence[SeriesHistory],
    *,
    fdr: float = FALSE_DISCOVERY_RATE,
    minimum_effect: float = MINIMUM_EFFECT,
    since_s: float | None = None,
) -> RegressionReport:
    """Return every change point.

    Args:
        histories: Series, in time order.
        fdr: False-discovery rate of the change points.
        minimum_effect: Smaller changes are reported as small, not as regressions.
        since_s: Only changes that began then or later, in seconds since 1970; null: all.
    """
    usable, too_short, not_positive = _usable_series(histories)
    change_points = [
        _change_point(series, step, confounded, minimum_effect)
        for series, steps in zip(usable, _all_change_points(usable, fdr), strict=True)
        for step, confounded in steps
    ]
    changed = {point.key for point in change_points}
    recent = [point for point in change_points if since_s is None or point.first_bad.began_at.timestamp() >= since_s]
    origins = dict.fromkeys(series_origin(series.history) for series in usable)
    order = get_args(ChangePointStatus).index
    result = RegressionReport(
        headline="",
        change_points=tuple(sorted(recent, key=lambda p: (order(p.status), -abs(float(np.log(p.ratio.value)))))),
        series=len(usable),
        runs=sum(len(series.logs) for series in usable),
        too_short=too_short,
        not_positive=not_positive,
        drifted=tuple(s.history.name for s in usable if _has_drifted(s) and s.history.name not in changed),
        fdr=fdr,
        minimum_effect=minimum_effect,
        origin=next((origin for origin in origins if origin != "real"), "real"),
    )
    return result.model_copy(update={"headline": headline(result)})


def _all_change_points(usable: Sequence[UsableSeries], fdr: float) -> list[list[tuple[LevelShift, tuple[str, ...]]]]:
    """Return the change points of each series with what confounds them.

    Hosts and drivers have levels of their own, which absorb a change that coincides with a new one; a second pass
    without these levels detects it, and it is confounded.
    """
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(series.kind for series in usable))}
    numbers = [kinds[series.kind] for series in usable]
    logs = [series.logs for series in usable]
    adjusted = find_level_shifts(logs, [series.hosts for series in usable], numbers, fdr=fdr)
    results = [
        [(step, confounders(series.runs, step)) for step in steps]
        for series, steps in zip(usable, adjusted, strict=True)
    ]
    mixed = [index for index, series in enumerate(usable) if series.hosts.any()]
    unadjusted = find_level_shifts([logs[i] for i in mixed], None, [numbers[i] for i in mixed], fdr=fdr)
    for index, steps in zip(mixed, unadjusted, strict=True):
        for step in steps:
            by = confounders(usable[index].runs, step)
            if by and not any(abs(step.first - other.first) <= SAME_STEP_RUNS for other, _ in results[index]):
                results[index].append((step, by))
        results[index].sort(key=lambda pair: pair[0].first)
    return results


def _change_point(
    series: UsableSeries, step: LevelShift, confounded: tuple[str, ...], minimum_effect: float
) -> ChangePoint:
    history, runs = series.history, series.runs
    sense = quantity_sense(history.key.quantity, history.unit)
    up, down = VERDICT_WORDS[sense]
    verdict = up if step.direction > 0 else down
    direction_status: ChangePointStatus = "regression" if verdict == WORSE_VERDICTS[sense] else "improvement"
    return ChangePoint(
        key=history.name,
        what=history.key.label,
        where=history.key.where,
        details=history.key.details,
        quantity=history.key.quantity,
        unit=history.unit,
        status=_unjudged_status(step, confounded, minimum_effect)
        or ("change" if WORSE_VERDICTS[sense] is None else direction_status),
        verdict=verdict,
        ratio=Estimate(
            value=float(np.exp(step.size)),
            low=float(np.exp(step.low)),
            high=float(np.exp(step.high)),
            unit="×",
            scope="machine" if series.hosts.any() else "run",
            method=METHOD,
            n=len(runs) - step.first,
        ),
        before=float(np.exp(np.median(series.logs[max(0, step.first - HISTORY) : step.first]))),
        first_bad=_change_point_run(runs[step.first]),
        last_good=_change_point_run(runs[step.first - 1]),
        earliest=_change_point_run(runs[step.first_low]),
        latest=_change_point_run(runs[step.first_high]),
        detected=_change_point_run(runs[step.detected_at]),
        runs_after=len(runs) - step.first,
        chance=step.chance,
        confounded_by=confounded,
        other_changes=other_changes(runs, step),
    )


def _unjudged_status(step: LevelShift, confounded: tuple[str, ...], minimum_effect: float) -> ChangePointStatus | None:
    """Return why a change is neither better nor worse; null where its direction decides."""
    if not step.significant:
        return "chance"
    if confounded:
        return "confounded"
    error = (step.high - step.low) / (2 * 1.96)
    if step.left * step.direction + error < REVERTED_SHARE * abs(step.size):
        return "reverted"
    return "small" if abs(step.size) < np.log1p(minimum_effect) else None


def _has_drifted(series: UsableSeries) -> bool:
    """Return whether a series ends far from where it began, compared with its run-to-run noise."""
    half = min(HISTORY, len(series.logs) // 2)
    moved = abs(float(np.median(series.logs[-half:]) - np.median(series.logs[:half])))
    noise = 1.4826 * float(np.median(np.abs(np.diff(series.logs)))) / np.sqrt(2)
    return bool(moved > max(MIN_DRIFT, MIN_DRIFT_NOISE * noise))


def _change_point_run(run: HistoryRun) -> ChangePointRun:
    return ChangePointRun(
        run=run.id,
        began_at=datetime.fromtimestamp(run.started_s, UTC),
        commit=run.git_commit,
        dirty=run.git_dirty,
        folder=run.folder,
    )


MAX_FIGURES = 12
STATUS_TONES: dict[ChangePointStatus, Tone] = {
    "regression": "bad",
    "improvement": "good",
    "confounded": "unsure",
    "chance": "unsure",
}


def build_page(report: RegressionReport, histories: Sequence[SeriesHistory]) -> Page:
    """Return the page; series with change points are drawn if their histories are given."""
    named = {history.name: history for history in histories}
    sections = (
        Section(title="Change points", elements=(_change_point_table(report.change_points),)),
        Section(title="Series", elements=_series_figures([s for s in report.change_points if s.key in named], named)),
        Section(title="Analysed", elements=(Text(text=_coverage_text(report)),)),
    )
    return Page(
        title="assay history: regressions",
        lead=report.headline,
        lead_tone="bad" if report.regressions else "plain",
        sections=tuple(s for s in sections[0 if report.change_points else 1 :] if s.elements),
        origin=report.origin,
    )


def _change_point_table(steps: Sequence[ChangePoint]) -> Table:
    """Return the change points as rows."""

    def first_run(step: ChangePoint) -> str:
        early, late = step.earliest.began_at, step.latest.began_at
        likely = "" if early == late else f" (from {early:%m-%d %H:%M} to {late:%m-%d %H:%M})"
        return f"{step.first_bad.run}, {step.first_bad.began_at:%Y-%m-%d %H:%M}{likely}"

    def commits(step: ChangePoint) -> str | None:
        before, after = step.last_good.code, step.first_bad.code
        if before is None and after is None:
            return None
        return f"{before or '?'} → {after or '?'}" if before != after else f"{after} before and after"

    return build_table(
        "Regressions first, the largest at the top",
        steps,
        {
            "status": lambda step: step.status,
            "series": lambda step: f"{step.what} {step.details}",
            "change (95 %)": lambda step: f"{step.verdict}: {change_cell(step.ratio)}",
            "first run": first_run,
            "commits": commits,
            "at the same time": lambda step: "; ".join((*step.confounded_by, *step.other_changes)) or None,
            "on": lambda step: step.where,
            "chance": lambda step: f"{step.chance:.1g}",
            "key": lambda step: step.key,
        },
        numeric=("chance",),
        tone=lambda step: STATUS_TONES.get(step.status, "plain"),
        note="Chance: the probability that a stable series of this length looks like this. Times are UTC.",
    )


def _series_figures(steps: Sequence[ChangePoint], named: Mapping[str, SeriesHistory]) -> tuple[Element, ...]:
    """Return a figure of each series with change points: regressions first, and not too many."""
    elements: list[Element] = []
    keys = list(dict.fromkeys(step.key for step in steps))
    for number, key in enumerate(keys[:MAX_FIGURES]):
        of_series = sorted((s for s in steps if s.key == key), key=lambda s: s.first_bad.began_at)
        elements += [Text(text=f"{change_point_text(step)} ({step.status}).") for step in of_series]
        elements.append(_level_figure(named[key], of_series, f"series_{number}"))
    if len(keys) > MAX_FIGURES:
        more = f"{len(keys) - MAX_FIGURES} more series"
        elements.append(Text(text=f"{more} are not drawn; `assay history plot KEY` draws one."))
    return tuple(elements)


def _level_figure(history: SeriesHistory, steps: Sequence[ChangePoint], name: str) -> LinePlot:
    """Return the line of a series with its level between change points."""
    plain = series_line(history)
    x, cuts = np.array(plain.lines[0].x), [step.first_bad.began_at.timestamp() for step in steps]
    levels = []
    for number, (low, high) in enumerate(pairwise([-math.inf, *cuts, math.inf])):
        inside = (history.started_s >= low) & (history.started_s < high) & np.isfinite(history.value)
        if not inside.any():
            continue
        middle, ends = float(np.median(history.value[inside])), x[inside][[0, -1]]
        label = "level" if number == 0 else f"after change {number}"
        levels.append(PlotLine(label=label, x=tuple(ends.tolist()), y=(middle, middle), limit=True))
    updates = {"lines": (*plain.lines, *levels), "name": name, "title": f"{plain.title}, {history.key.details}"}
    return plain.model_copy(update=updates)


def _coverage_text(report: RegressionReport) -> str:
    """Write how many series were analysed, and what was ignored."""
    texts = [f"{report.series} series with {format_count(report.runs, 'run')}."]
    if report.too_short:
        texts.append(f"{report.too_short} more have fewer than {MIN_RUNS} runs.")
    if report.not_positive:
        texts.append(f"{report.not_positive} runs are ignored because their value is not above zero.")
    if report.drifted:
        drifted = ", ".join(report.drifted)
        texts.append(f"Drifted without a change point: {drifted}; `assay history plot KEY` draws one.")
    texts.append(f"False-discovery rate: {format_percent(report.fdr, digits=3)}.")
    return " ".join(texts)
