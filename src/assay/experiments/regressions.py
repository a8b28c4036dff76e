"""Detect change points in every series of the history, with what else changed there: hosts, drivers, software.

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

from assay.core.format import format_change, format_percent
from assay.core.page import Column, LinePlot, Page, PlotLine, Section, Table, Text
from assay.core.results import Estimate, Origin
from assay.core.values import SCHEMA_VERSION, Value
from assay.experiments.compare.verdicts import VERDICT_WORDS, WORSE_VERDICTS, ChangeVerdict, quantity_sense
from assay.stats.changepoint import FALSE_DISCOVERY_RATE, HISTORY, MIN_RUNS, find_level_shifts
from assay.store.history.report import series_line, series_origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from assay.core.page import Element, Tone
    from assay.stats.changepoint import LevelShift
    from assay.store.history.points import HistoryRun
    from assay.store.history.queries import SeriesHistory


ChangePointStatus = Literal["regression", "confounded", "change", "improvement", "reverted", "small", "chance"]
"""What a change point is, in the order of reports. ``change``: neither direction of its quantity is better.

``reverted``: at its end the series is back where it was; ``chance``: not significant among all series.
"""


class ChangePointRun(Value):
    """A run of a series, by what people need of it."""

    run: str
    began_at: AwareDatetime
    commit: str | None = Field(description="Of the code; null: not known.")
    dirty: bool | None = Field(description="Whether files differed from it.")
    folder: str

    @property
    def code(self) -> str | None:
        """The commit in short; a plus says that files differed from it."""
        return None if self.commit is None else f"{self.commit[:10]}{'+' if self.dirty else ''}"


class ChangePoint(Value):
    """A step of one series."""

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
    first_bad: ChangePointRun = Field(description="The first run after the step, as likely as no other.")
    last_good: ChangePointRun
    earliest: ChangePointRun = Field(description="The step began with this run or a later one, most likely.")
    latest: ChangePointRun = Field(description="The step began with this run or an earlier one, most likely.")
    detected: ChangePointRun = Field(description="The run after which it could be told.")
    runs_after: int = Field(description="Runs of the series from the first after the step on.")
    chance: float = Field(description="That a stable series as long as this looks so.")
    confounded_by: tuple[str, ...] = Field(default=(), description="Hosts or drivers that changed at the same time.")
    other_changes: tuple[str, ...] = Field(default=(), description="What else changed at the same time.")


class RegressionReport(Value):
    """All steps, the largest regression first, and what could not be looked at."""

    schema_version: int = Field(default=SCHEMA_VERSION, serialization_alias="schema", validation_alias="schema")
    headline: str
    change_points: tuple[ChangePoint, ...]
    series: int = Field(description="That were looked at.")
    runs: int = Field(description="Of these series, together.")
    too_short: int = Field(description="Series that have fewer runs than it takes.")
    not_positive: int = Field(description="Runs left out as their value is not above zero.")
    drifted: tuple[str, ...] = Field(default=(), description="Keys of series without a step that moved all the same.")
    fdr: float = Field(description="Of the steps that are told, how many may be false.")
    minimum_effect: float = Field(description="Steps that are smaller are called small.")
    origin: Origin = "real"

    @property
    def regressions(self) -> tuple[ChangePoint, ...]:
        """The steps that a gate would stop at."""
        return tuple(step for step in self.change_points if step.status == "regression")


MIN_HOST_RUNS = 10
"""On one host and driver, for these to have a level of their own."""
MAX_HOSTS = 5
"""Of one series: the commonest; all others share a level."""


@dataclass(frozen=True)
class UsableSeries:
    """A series as it is looked at; run ``i`` of it is run ``places[i]`` of the course."""

    course: SeriesHistory
    indices: NDArray[np.int64]
    logs: NDArray[np.float64]
    hosts: NDArray[np.int64]

    @property
    def runs(self) -> list[HistoryRun]:
        """The runs that are looked at."""
        return [self.course.runs[index] for index in self.indices]

    @property
    def kind(self) -> tuple[str, str]:
        """What it has in common with others that are as noisy: the quantity, and the kind of device."""
        return self.course.key.quantity, self.course.key.device_kind


@dataclass(frozen=True)
class FilteredSeries:
    """Series that can be looked at, how many cannot, and how many runs were left out as not above zero."""

    usable: tuple[UsableSeries, ...]
    too_short: int
    not_positive: int


def filter_series(courses: Sequence[SeriesHistory]) -> FilteredSeries:
    """Return what can be looked at. What was disturbed, not measured or not above zero is no part of it."""
    usable: list[UsableSeries] = []
    too_short = not_positive = 0
    for course in courses:
        measured = np.isfinite(course.value) & ~course.disturbed
        there = np.flatnonzero(measured & (course.value > 0))
        not_positive += int(measured.sum()) - len(there)
        if len(there) < MIN_RUNS:
            too_short += 1
        else:
            runs = [course.runs[index] for index in there]
            usable.append(UsableSeries(course, there, np.log(course.value[there]), host_numbers(runs)))
    return FilteredSeries(tuple(usable), too_short, not_positive)


def host_numbers(runs: Sequence[HistoryRun]) -> NDArray[np.int64]:
    """Return a number for the host and driver of each run, 0 for the commonest; rare ones share the last."""
    named = [(run.host, run.driver) for run in runs]
    counted = Counter(named)
    often = [name for name, count in counted.most_common(MAX_HOSTS) if count >= MIN_HOST_RUNS]
    numbers = {name: number for number, name in enumerate(often)}
    rare = sum(count for name, count in counted.items() if name not in numbers)
    others = len(often) if rare >= MIN_HOST_RUNS else 0
    return np.array([numbers.get(name, others) for name in named], dtype=np.int64)


def confounders(runs: Sequence[HistoryRun], step: LevelShift) -> tuple[str, ...]:
    """Return hosts and drivers that a series had never been on before the step and was on from it.

    A host that was there before has a level of its own, and explains nothing.
    """
    before, after = runs[: step.first_low], runs[step.first_low : step.first_high + 1]
    texts = []
    hosts = {run.host for run in before}
    for run in after:
        if run.host not in hosts:
            hosts.add(run.host)
            texts.append(f"a new host ({run.hostname or run.host[:8]})")
    drivers = {run.driver for run in before}
    for run in after:
        if run.driver not in drivers:
            drivers.add(run.driver)
            texts.append(f"the driver changed from {before[-1].driver or 'none'} to {run.driver or 'none'}")
    return tuple(texts)


def other_changes(runs: Sequence[HistoryRun], step: LevelShift) -> tuple[str, ...]:
    """Return software whose version is not what it was before the step, and whether the code is."""
    last, first = runs[step.first_low - 1], runs[step.first_high]
    texts = [
        f"{name} {last.versions.get(name) or 'none'} → {first.versions.get(name) or 'none'}"
        for name in {**last.versions, **first.versions}
        if last.versions.get(name) != first.versions.get(name)
    ]
    if last.git_commit is not None and (last.git_commit, first.git_dirty) == (first.git_commit, False):
        texts.append("the commit is the same")
    return tuple(texts)


STATUS_PLURALS = {
    "regression": ("regression", "regressions"),
    "confounded": (
        "step that a change of host or driver may explain",
        "steps that a change of host or driver may explain",
    ),
    "change": ("change", "changes"),
    "improvement": ("improvement", "improvements"),
    "reverted": ("reverted change", "reverted changes"),
    "small": ("that is small", "that are small"),
    "chance": ("that may be chance", "that may be chance"),
}


def headline(report: RegressionReport) -> str:
    """Return the answer in a sentence or two."""
    looked = f"{report.series} series with {report.runs} runs were looked at"
    if not report.series:
        return f"Nothing can be told: {_no_series_reason(report)}."
    if not report.change_points:
        drift = f" {len(report.drifted)} moved slowly, without one." if report.drifted else ""
        return f"No step is told: {looked}.{drift}"
    counts = Counter(step.status for step in report.change_points)
    counts_text = ", ".join(f"{count} {STATUS_PLURALS[name][count > 1]}" for name, count in counts.items())
    worst = next(iter(report.regressions), None)
    return (
        f"{counts_text}; {looked}."
        if worst is None
        else f"{change_point_text(worst)}. In all: {counts_text}; {looked}."
    )


def _no_series_reason(report: RegressionReport) -> str:
    if not report.too_short:
        return "there are no such series in the history"
    zeros = f", without the {report.not_positive} that are not above zero" if report.not_positive else ""
    return f"no series has the {MIN_RUNS} runs{zeros} that it takes to tell a step from noise"


def change_point_text(step: ChangePoint) -> str:
    """Say what a step is, since which run and commit."""
    commit = f", commit {step.first_bad.code}" if step.first_bad.code else ""
    since = f"since run {step.first_bad.run} of {step.first_bad.began_at:%Y-%m-%d %H:%M}{commit}"
    return f"{step.what} ({step.details}) on {step.where} is {step.verdict}, {change_text(step)}, {since}"


def change_text(step: ChangePoint) -> str:
    """Write a ratio as the change it is, with its interval."""
    return format_change(step.ratio.value, step.ratio.low, step.ratio.high)


def commit_range(step: ChangePoint) -> str | None:
    """Write the commits between which a step lies; null where none is known."""
    before, after = step.last_good.code, step.first_bad.code
    if before is None and after is None:
        return None
    return f"{before or '?'} → {after or '?'}" if before != after else f"{after} on both sides"


METHOD = "Kalman filter over runs, its noise learnt with that of all series of its kind; 95 %"
MINIMUM_EFFECT = 0.01
REVERTED_SHARE = 0.5
"""Of a step: where less of it is surely left at the end, it was taken back."""
MIN_DRIFT, MIN_DRIFT_NOISE = float(np.log(1.05)), 3.0
"""A series without a step has drifted where its ends are so far apart, and so many times the noise between runs."""
SAME_STEP_RUNS = 3
"""Runs within which two looks mean the same step."""


def detect_regressions(
    courses: Sequence[SeriesHistory],
    *,
    fdr: float = FALSE_DISCOVERY_RATE,
    minimum_effect: float = MINIMUM_EFFECT,
    since_s: float | None = None,
) -> RegressionReport:
    """Return every step.

    Args:
        courses: Series, in time order.
        fdr: Of the steps that are told, how many may be false.
        minimum_effect: Steps that are smaller are told, and are no regressions.
        since_s: Only steps that began then or later, in seconds since 1970; null: all.
    """
    sorted_out = filter_series(courses)
    usable = sorted_out.usable
    change_points = [
        _change_point(one, step, confounded, minimum_effect)
        for one, every in zip(usable, _all_change_points(usable, fdr), strict=True)
        for step, confounded in every
    ]
    stepped = {one.key for one in change_points}
    meant = [one for one in change_points if since_s is None or one.first_bad.began_at.timestamp() >= since_s]
    ordered = tuple(sorted(meant, key=_sort_key))
    runs = sum(len(one.logs) for one in usable)
    origins = {series_origin(one.course) for one in usable}
    result = RegressionReport(
        headline="",
        change_points=ordered,
        series=len(usable),
        runs=runs,
        too_short=sorted_out.too_short,
        not_positive=sorted_out.not_positive,
        drifted=tuple(one.course.name for one in usable if _has_drifted(one) and one.course.name not in stepped),
        fdr=fdr,
        minimum_effect=minimum_effect,
        origin="simulated" if "simulated" in origins else "fake" if "fake" in origins else "real",
    )
    return result.model_copy(update={"headline": headline(result)})


def _all_change_points(
    usable: Sequence[UsableSeries], false_share: float
) -> list[list[tuple[LevelShift, tuple[str, ...]]]]:
    """Return the steps of each series with what confounds them.

    Hosts and drivers have levels of their own, so that a step at a change of them is not seen as one; a second look
    without these levels finds it, and it is confounded.
    """
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(one.kind for one in usable))}
    numbers = [kinds[one.kind] for one in usable]
    logs = [one.logs for one in usable]
    adjusted = find_level_shifts(logs, [one.hosts for one in usable], numbers, fdr=false_share)
    results = [
        [(step, confounders(one.runs, step)) for step in every] for one, every in zip(usable, adjusted, strict=True)
    ]
    mixed = [index for index, one in enumerate(usable) if one.hosts.any()]
    blind = find_level_shifts([logs[p] for p in mixed], None, [numbers[p] for p in mixed], fdr=false_share)
    for index, every in zip(mixed, blind, strict=True):
        for step in every:
            by = confounders(usable[index].runs, step)
            if by and not any(abs(step.first - other.first) <= SAME_STEP_RUNS for other, _ in results[index]):
                results[index].append((step, by))
        results[index].sort(key=lambda pair: pair[0].first)
    return results


def _change_point(
    one: UsableSeries, step: LevelShift, confounded: tuple[str, ...], minimum_effect: float
) -> ChangePoint:
    course, runs = one.course, one.runs
    sense = quantity_sense(course.key.quantity, course.unit)
    up, down = VERDICT_WORDS[sense]
    verdict = up if step.direction > 0 else down
    ratio = Estimate(
        value=float(np.exp(step.size)),
        low=float(np.exp(step.low)),
        high=float(np.exp(step.high)),
        unit="×",
        scope="machine" if one.hosts.any() else "run",
        method=METHOD,
        n=len(runs) - step.first,
    )
    return ChangePoint(
        key=course.name,
        what=course.key.label,
        where=course.key.where,
        details=course.key.details,
        quantity=course.key.quantity,
        unit=course.unit,
        status=_unjudged_status(step, confounded, minimum_effect) or _judged_status(WORSE_VERDICTS[sense], verdict),
        verdict=verdict,
        ratio=ratio,
        before=float(np.exp(np.median(one.logs[max(0, step.first - HISTORY) : step.first]))),
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
    """Say why a step is not to be judged; null when it is."""
    if not step.significant:
        return "chance"
    if confounded:
        return "confounded"
    error = (step.high - step.low) / (2 * 1.96)
    if step.left * step.direction + error < REVERTED_SHARE * abs(step.size):
        return "reverted"
    return "small" if abs(step.size) < np.log1p(minimum_effect) else None


def _judged_status(worse: ChangeVerdict | None, verdict: ChangeVerdict) -> ChangePointStatus:
    if worse is None:
        return "change"
    return "regression" if verdict == worse else "improvement"


def _has_drifted(one: UsableSeries) -> bool:
    """Return whether a series ended far from where it began, by its own noise from run to run."""
    half = min(HISTORY, len(one.logs) // 2)
    moved = abs(float(np.median(one.logs[-half:]) - np.median(one.logs[:half])))
    noise = 1.4826 * float(np.median(np.abs(np.diff(one.logs)))) / np.sqrt(2)
    return bool(moved > max(MIN_DRIFT, MIN_DRIFT_NOISE * noise))


def _change_point_run(run: HistoryRun) -> ChangePointRun:
    return ChangePointRun(
        run=run.id,
        began_at=datetime.fromtimestamp(run.started_s, UTC),
        commit=run.git_commit,
        dirty=run.git_dirty,
        folder=run.folder,
    )


def _sort_key(step: ChangePoint) -> tuple[int, float]:
    return get_args(ChangePointStatus).index(step.status), -abs(float(np.log(step.ratio.value)))


MAX_FIGURES = 12
STATUS_TONES: dict[ChangePointStatus, Tone] = {
    "regression": "bad",
    "improvement": "good",
    "confounded": "unsure",
    "chance": "unsure",
}
CHANGE_POINT_COLUMNS = (
    Column(title="it is"),
    Column(title="series"),
    Column(title="change (95 %)"),
    Column(title="first run after it"),
    Column(title="commits"),
    Column(title="at the same time"),
    Column(title="on"),
    Column(title="chance", numeric=True),
    Column(title="key"),
)


def build_page(report: RegressionReport, courses: Sequence[SeriesHistory]) -> Page:
    """Return the page of a look at the history; series that stepped are drawn if they are given."""
    named = {course.name: course for course in courses}
    tone: Tone = "bad" if report.regressions else "plain"
    sections = (
        [Section(title="Steps", elements=(change_point_table(report.change_points),))] if report.change_points else []
    )
    figures = series_figures([step for step in report.change_points if step.key in named], named)
    if figures:
        sections.append(Section(title="Series", elements=figures))
    sections.append(Section(title="What was looked at", elements=(Text(text=coverage_text(report)),)))
    return Page(
        title="assay history: regressions",
        lead=report.headline,
        lead_tone=tone,
        sections=tuple(sections),
        origin=report.origin,
    )


def change_point_table(steps: Sequence[ChangePoint]) -> Table:
    """Return the steps as rows."""
    rows = tuple(
        (
            step.status,
            f"{step.what} {step.details}",
            f"{step.verdict}: {change_text(step)}",
            f"{step.first_bad.run}, {step.first_bad.began_at:%Y-%m-%d %H:%M}{_date_range(step)}",
            commit_range(step),
            "; ".join((*step.confounded_by, *step.other_changes)) or None,
            step.where,
            f"{step.chance:.1g}",
            step.key,
        )
        for step in steps
    )
    return Table(
        title="Regressions first, the largest of them at the top",
        columns=CHANGE_POINT_COLUMNS,
        rows=rows,
        tones=tuple(STATUS_TONES.get(step.status, "plain") for step in steps),
        note="Chance: that a stable series as long as this one looks so. Times are UTC.",
    )


def _date_range(step: ChangePoint) -> str:
    """Say between which runs a step began where that is not sure."""
    early, late = step.earliest.began_at, step.latest.began_at
    return "" if early == late else f" (from {early:%m-%d %H:%M} to {late:%m-%d %H:%M})"


def series_figures(steps: Sequence[ChangePoint], named: Mapping[str, SeriesHistory]) -> tuple[Element, ...]:
    """Return the course of each series that stepped, with its levels: regressions first, and not too many."""
    elements: list[Element] = []
    keys = list(dict.fromkeys(step.key for step in steps))
    for number, key in enumerate(keys[:MAX_FIGURES]):
        of_it = sorted((s for s in steps if s.key == key), key=lambda s: s.first_bad.began_at)
        elements += [Text(text=f"{change_point_text(step)} ({step.status}).") for step in of_it]
        elements.append(level_figure(named[key], of_it, f"series_{number}"))
    left = len(keys) - MAX_FIGURES
    if left > 0:
        elements.append(Text(text=f"{left} more series are not drawn; `assay history plot KEY` draws one."))
    return tuple(elements)


def level_figure(course: SeriesHistory, steps: Sequence[ChangePoint], name: str) -> LinePlot:
    """Return the line of a series with its level between steps."""
    plain = series_line(course)
    x, cuts = np.array(plain.lines[0].x), [step.first_bad.began_at.timestamp() for step in steps]
    bounds = [-math.inf, *cuts, math.inf]
    levels = []
    for number, (low, high) in enumerate(pairwise(bounds)):
        inside = (course.started_s >= low) & (course.started_s < high) & np.isfinite(course.value)
        if not inside.any():
            continue
        middle, ends = float(np.median(course.value[inside])), x[inside][[0, -1]]
        label = "level" if number == 0 else f"after step {number}"
        levels.append(PlotLine(label=label, x=tuple(ends.tolist()), y=(middle, middle), limit=True))
    updates = {"lines": (*plain.lines, *levels), "name": name, "title": f"{plain.title}, {course.key.details}"}
    return plain.model_copy(update=updates)


def coverage_text(report: RegressionReport) -> str:
    """Say how many series there were, and what was left out."""
    texts = [f"{report.series} series with {report.runs} runs in all."]
    if report.too_short:
        texts.append(f"{report.too_short} have too few runs to tell a step from noise.")
    if report.not_positive:
        texts.append(f"{report.not_positive} runs whose value is not above zero were left out.")
    if report.drifted:
        texts.append(
            f"Without a step, but far from where they began: {', '.join(report.drifted)}; "
            "`assay history plot KEY` shows one."
        )
    texts.append(f"Of the steps that are told, {format_percent(report.fdr, digits=3)} may be false.")
    return " ".join(texts)
