"""The page of ``assay power variability``: outliers, recommendation, variance, and figures, fleet by fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import format_count
from assay.core.page import LinePlot, Page, PlotLine, Section, StripPlot, StripRow, Text
from assay.experiments.power.variability import findings as words
from assay.experiments.power.variability.measures import TIME_MEASURE, remove_case_effects
from assay.experiments.power.variability.tables import (
    MAX_GPUS_LISTED,
    components_table,
    correlation_table,
    gpus_table,
    location_table,
    outliers_table,
)
from assay.stats.numerics import t_quantile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from assay.core.page import Element, Figure
    from assay.core.results import Findings, Origin
    from assay.experiments.power.variability.analysis import FleetAnalysis


if TYPE_CHECKING:
    Samples = NDArray[np.float64]
    Codes = NDArray[np.intp]

STRIP_QUANTILES = 201
"""Points that stand for all of many GPUs."""
MAX_OUTLIERS, MAX_RACKS = 10, 5
MAX_POINTS = 300
SAMPLE_SEED = 3


def strips_figures(looked: FleetAnalysis, mark: str) -> list[Element]:
    """Return how times lie around the middle of the fleet; nothing for one GPU."""
    title = f"{looked.fleet.kind.label}: time"
    if len(looked.fleet.gpus) < 2:
        return []
    if len(looked.fleet.gpus) <= MAX_GPUS_LISTED:
        note = "A dot is a row: one GPU in one case of one repeat, cases levelled. ◆ is the GPU over its runs."
        return [_strip_figure(f"{title}, GPU by GPU", f"gpus{mark}", _gpu_strips(looked), note)]
    strays = _outlier_strips(looked)
    less = " Those that stand out by their time are left out here and follow below." if strays else ""
    note = f"A dot is a GPU; where these are more, {STRIP_QUANTILES} quantiles stand for them.{less}"
    figures = [_strip_figure(f"{title}, GPUs and places", f"places{mark}", _summary_strips(looked), note)]
    if strays:
        note = "A dot of an outlier is a row: one GPU in one case of one repeat."
        figures.append(_strip_figure(f"{title}, GPUs that stand out", f"outliers{mark}", strays, note))
    return figures


def _strip_figure(title: str, name: str, strips: list[StripRow], note: str) -> Element:
    axis = "time against the middle of the fleet"
    return StripPlot(title=title, name=name, axis=axis, unit="×", strips=tuple(strips), centre=1.0, note=note)


def _gpu_strips(looked: FleetAnalysis) -> list[StripRow]:
    numbers, middle = looked.numbers[TIME_MEASURE.name], looked.references[TIME_MEASURE.name].fleet
    rows = _levelled_log_times(looked)
    strips = []
    for gpu in np.argsort(numbers.value, kind="stable"):
        value = float(numbers.value[gpu] - middle)
        ends: tuple[float | None, float | None] = (None, None)
        if numbers.unit is not None:
            half = t_quantile(0.95, max(1, round(float(numbers.freedom[gpu])))) * float(numbers.error[gpu])
            ends = float(np.exp(value - half)), float(np.exp(value + half))
        strips.append(_time_strip(looked.fleet.name(int(gpu)), rows[looked.fleet.gpu == gpu] - middle, value, ends))
    return strips


def _levelled_log_times(looked: FleetAnalysis) -> Samples:
    """Return the logarithm of each row's time as if all were of one case."""
    fleet = looked.fleet
    return remove_case_effects(fleet.column("median_us", log=True), fleet.gpu, fleet.case)


def _time_strip(
    label: str, logs: Samples, value: float | None = None, ends: tuple[float | None, float | None] = (None, None)
) -> StripRow:
    samples = tuple(float(x) for x in np.exp(logs))
    return StripRow(
        label=label,
        samples=samples,
        value=None if value is None else float(np.exp(value)),
        low=ends[0],
        high=ends[1],
    )


def _relative_times(looked: FleetAnalysis) -> Samples:
    """Return how each GPU's time differs from the middle of the fleet."""
    return np.asarray(looked.numbers[TIME_MEASURE.name].value - looked.references[TIME_MEASURE.name].fleet)


def _summary_strips(looked: FleetAnalysis) -> list[StripRow]:
    """Return quantiles of all, of slots where these differ, and of the racks that stray the most."""
    fleet, centres = looked.fleet, looked.references[TIME_MEASURE.name]
    values = _relative_times(looked)
    values[[one.gpu for one in looked.outliers if one.measure == TIME_MEASURE]] = np.nan
    rest = int(np.isfinite(values).sum())
    slots = centres.of("slot")
    slots = slots if any(slot.verdict == "yes" for slot in slots) else ()
    racks = sorted((e for e in centres.of("rack") if e.verdict == "yes"), key=lambda e: -abs(e.value))
    strips = [_time_strip(f"{'all' if rest == len(values) else 'the other'} {rest:,} GPUs", _quantiles(values), 0.0)]
    for location in (*slots, *racks[:MAX_RACKS]):
        is_member = (
            fleet.slot == int(location.name)
            if location.what == "slot"
            else fleet.rack == fleet.racks.index(location.name)
        )
        ends = float(np.exp(location.low)), float(np.exp(location.high))
        label = f"{location.what} {location.name}, {location.members} GPUs"
        strips.append(_time_strip(label, _quantiles(values[is_member]), location.value, ends))
    return strips


def _outlier_strips(looked: FleetAnalysis) -> list[StripRow]:
    """Return all GPUs in one strip, and then each that stands out the most by its time."""
    shown = [one for one in looked.outliers if one.measure == TIME_MEASURE][:MAX_OUTLIERS]
    if not shown:
        return []
    rows, middle = _levelled_log_times(looked), looked.references[TIME_MEASURE.name].fleet
    values = _relative_times(looked)
    strips = [_time_strip(f"all {len(values):,} GPUs", _quantiles(values), 0.0)]
    for one in shown:
        ends = float(np.exp(one.fleet.low)), float(np.exp(one.fleet.high))
        own = rows[looked.fleet.gpu == one.gpu] - middle
        strips.append(_time_strip(looked.fleet.name(one.gpu), own, one.fleet.value, ends))
    return strips


def _quantiles(values: Samples) -> Samples:
    there = values[np.isfinite(values)]
    if len(there) <= STRIP_QUANTILES:
        return np.sort(there)
    return np.asarray(np.quantile(there, np.linspace(0, 1, STRIP_QUANTILES)), dtype=np.float64)


def scatter_figures(looked: FleetAnalysis, mark: str) -> list[Element]:
    """Return clock over temperature and time over power, a point for each row of few GPUs, or each of many GPUs."""
    kind = looked.fleet.kind.label
    plots = (
        ("frequency_temperature", "clock and temperature", "temperature_c", "sm_mhz"),
        ("time_power", "time and power", "power_w", "median_us"),
    )
    titles = {"temperature_c": "temperature (°C)", "sm_mhz": "SM clock (MHz)", "power_w": "power (W)"}
    figures: list[Element] = []
    for name, title, x, y in plots:
        scale, unit = _time_unit(looked) if y == "median_us" else (1.0, "")
        lines = _scatter_series(looked, x, y, scale)
        if lines:
            figures.append(
                LinePlot(
                    title=f"{kind}: {title}",
                    name=f"{name}{mark}",
                    x_axis=titles[x],
                    y_axis=f"time ({unit})" if unit else titles[y],
                    lines=tuple(lines),
                    note=_thinning_note(looked),
                )
            )
    return figures


def _time_unit(looked: FleetAnalysis) -> tuple[float, str]:
    middle = float(np.exp(looked.references[TIME_MEASURE.name].fleet))
    return (1.0, "µs") if middle < 1e3 else (1e-3, "ms") if middle < 1e6 else (1e-6, "s")


def _thinning_note(looked: FleetAnalysis) -> str | None:
    n = len(looked.fleet.gpus)
    if n <= MAX_GPUS_LISTED:
        return "A point is a row: one GPU in one case of one repeat."
    few = f" {MAX_POINTS} of those that do not stand out are shown." if n > MAX_POINTS else ""
    return f"A point is a GPU, the mean of its rows.{few}"


def _scatter_series(looked: FleetAnalysis, x: str, y: str, scale: float) -> list[PlotLine]:
    """Return points in series: by GPU where these are few, else by what stands out."""
    fleet = looked.fleet
    xs, ys = fleet.column(x), fleet.column(y) * scale
    there = np.isfinite(xs) & np.isfinite(ys)
    if there.sum() < 2:
        return []
    n = len(fleet.gpus)
    if n <= MAX_GPUS_LISTED:
        series = {fleet.name(g): np.flatnonzero(there & (fleet.gpu == g)) for g in _gpus_by_slot(looked)}
        return [_point_line(label, xs[own], ys[own]) for label, own in series.items() if len(own)]
    counts = np.bincount(fleet.gpu[there], minlength=n)
    has_rows = counts > 0
    by_gpu = [
        np.divide(np.bincount(fleet.gpu[there], weights=v[there], minlength=n), counts, where=has_rows, out=np.zeros(n))
        for v in (xs, ys)
    ]
    series = {"others": _sample_indices(np.flatnonzero(has_rows & ~_outlier_mask(looked)))}
    for one in looked.outliers:
        if one.verdict == "yes" and has_rows[one.gpu] and one.measure.name != "energy":
            series[one.word] = np.append(series.get(one.word, np.array([], dtype=np.intp)), one.gpu)
    return [_point_line(label, *(v[own[:MAX_POINTS]] for v in by_gpu)) for label, own in series.items() if len(own)]


def _gpus_by_slot(looked: FleetAnalysis) -> list[int]:
    gpus = looked.fleet.gpus
    return sorted(range(len(gpus)), key=lambda g: (gpus[g].host, gpus[g].slot))


def _outlier_mask(looked: FleetAnalysis) -> NDArray[np.bool_]:
    marked = np.zeros(len(looked.fleet.gpus), dtype=np.bool_)
    marked[[one.gpu for one in looked.outliers if one.verdict == "yes"]] = True
    return marked


def _sample_indices(indices: Codes) -> Codes:
    if len(indices) <= MAX_POINTS:
        return indices
    return np.sort(np.random.default_rng(SAMPLE_SEED).choice(indices, MAX_POINTS, replace=False))


def _point_line(label: str, x: Samples, y: Samples) -> PlotLine:
    """Return points as a line that is broken after each: markers without a line between them; x to a tenth."""
    broken: list[float | None] = [coordinate for value in y for coordinate in (float(value), None)]
    return PlotLine(label=label, x=tuple(float(value) for value in np.repeat(np.round(x, 1), 2)), y=tuple(broken))


MAX_FLEETS_DRAWN = 4
"""Fleets that get figures; the tables of the others say the same."""
MAX_PROBLEMS = 20


def build_page(
    all_looked: Sequence[FleetAnalysis],
    findings: Findings,
    *,
    notes: Sequence[str] = (),
    unusable: Sequence[str] = (),
    over_time: Figure | None = None,
    facts: Sequence[tuple[str, str]] = (),
    origin: Origin = "real",
) -> Page:
    """Return the whole page."""
    sections = [
        section for index, looked in enumerate(all_looked) for section in _fleet_sections(looked, index, all_looked)
    ]
    if over_time is not None:
        sections.append(Section(title="Power over time", elements=(over_time,)))
    trouble = [Text(text=text) for text in notes]
    trouble += [Text(text=f"{text}.", tone="bad") for text in unusable[:MAX_PROBLEMS]]
    if len(unusable) > MAX_PROBLEMS:
        trouble.append(Text(text=f"And {len(unusable) - MAX_PROBLEMS} more; --json has all.", tone="bad"))
    if trouble:
        sections.append(Section(title="What to know of the rows", elements=tuple(trouble)))
    return Page(
        title="assay power variability",
        lead=findings.headline,
        lead_tone="bad" if any(one.verdict == "yes" for looked in all_looked for one in looked.outliers) else "plain",
        sections=tuple(sections),
        facts=tuple(facts),
        origin=origin,
    )


def _fleet_sections(looked: FleetAnalysis, index: int, all_looked: Sequence[FleetAnalysis]) -> Iterator[Section]:
    with_figures = index < MAX_FLEETS_DRAWN
    mark = f"_{index + 1}" if len(all_looked) > 1 else ""
    title = looked.fleet.kind.label
    runs = format_count(len({row.run for row in looked.fleet.rows}), "run")
    sizes = [format_count(len(looked.fleet.gpus), "GPU"), format_count(len(looked.fleet.hosts), "host"), runs]
    savings = words.fourth_gpu_sentence(looked)
    elements: list[Element] = [
        Text(
            text=(f"{', '.join(sizes)}, {format_count(len(looked.fleet.rows), 'row')}. {words.advice_sentence(looked)}")
        ),
        *([Text(text=savings)] if savings else []),
        *gpus_table(looked),
        *outliers_table(looked),
        *(strips_figures(looked, mark) if with_figures else []),
        *location_table(looked),
        *components_table(looked),
    ]
    yield Section(title=title, elements=tuple(elements))
    correlation_elements = [*correlation_table(looked), *(scatter_figures(looked, mark) if with_figures else [])]
    if correlation_elements:
        yield Section(title=f"{title}: what goes together", elements=tuple(correlation_elements))
