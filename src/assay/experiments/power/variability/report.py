"""The page of ``assay power variability``: outliers, recommendation, variance, figures of each fleet; and the CSV."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import format_count, format_percent, format_time, typeset_minus
from assay.core.page import LinePlot, Page, PlotLine, Section, StripPlot, StripRow, Text, build_table
from assay.experiments.power.rows import MAX_PROBLEMS, write_csv
from assay.experiments.power.variability.findings import advice_sentence, difference_text, fourth_gpu_sentence
from assay.experiments.power.variability.fleet import MEASURES, MIN_TEMPERATURE_DIFFERENCE_C, TIME_MEASURE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from assay.core.page import Cell, Element, Figure, Tone
    from assay.core.results import Findings, Origin, Verdict
    from assay.experiments.power.variability.analysis import FleetAnalysis, GpuOutlier, LocationEffect, PeerDifference
    from assay.experiments.power.variability.fleet import Codes, GpuMeasure, GpuNumbers, Samples
    from assay.stats.variance import VarianceComponent


MAX_GPUS_LISTED = 16
"""Up to this many GPUs have a row and a strip each."""
MAX_OUTLIERS_PER_KIND, MAX_LOCATIONS = 10, 30
STRIP_QUANTILES = 201
"""Points that stand for all of many GPUs."""
MAX_OUTLIERS, MAX_RACKS = 10, 5
MAX_POINTS = 300
SAMPLE_SEED = 3
MAX_FLEETS_DRAWN = 4
"""Fleets that get figures; the tables of the others say the same."""
GPUS_CSV_NAME = "gpus.csv"


def build_page(
    studies: Sequence[FleetAnalysis],
    findings: Findings,
    *,
    notes: Sequence[str] = (),
    unusable: Sequence[str] = (),
    over_time: Figure | None = None,
    facts: Sequence[tuple[str, str]] = (),
    origin: Origin = "real",
) -> Page:
    """Return the whole page."""
    sections = [section for index in range(len(studies)) for section in _fleet_sections(studies, index)]
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
        lead_tone="bad" if any(one.verdict == "yes" for study in studies for one in study.outliers) else "plain",
        sections=tuple(sections),
        facts=tuple(facts),
        origin=origin,
    )


def _fleet_sections(studies: Sequence[FleetAnalysis], index: int) -> Iterator[Section]:
    study = studies[index]
    fleet, title = study.fleet, study.fleet.kind.label
    mark = f"_{index + 1}" if len(studies) > 1 else ""
    has_figures = index < MAX_FLEETS_DRAWN
    counts = ((fleet.gpus, "GPU"), (fleet.hosts, "host"), ({row.run for row in fleet.rows}, "run"), (fleet.rows, "row"))
    sizes = ", ".join(format_count(len(things), noun) for things, noun in counts)
    savings = fourth_gpu_sentence(study)
    elements = (
        Text(text=f"{sizes}. {advice_sentence(study)}"),
        *([Text(text=savings)] if savings else []),
        *gpus_table(study),
        *outliers_table(study),
        *(strips_figures(study, mark) if has_figures else []),
        *location_table(study),
        components_table(study),
    )
    yield Section(title=title, elements=elements)
    correlations = (*correlation_table(study), *(scatter_figures(study, mark) if has_figures else []))
    if correlations:
        yield Section(title=f"{title}: what goes together", elements=correlations)


def gpus_table(study: FleetAnalysis) -> list[Element]:
    """Return each GPU with its numbers, where they are few."""
    fleet, numbers = study.fleet, study.numbers[TIME_MEASURE.name]
    if len(fleet.gpus) > MAX_GPUS_LISTED:
        return []
    names = {"°C": "temperature_c", "SM MHz": "sm_mhz", "W": "power_w", "J a call": "energy_per_call_j"}
    means = {title: fleet.gpu_means(fleet.column(name)) for title, name in names.items()}
    runs = np.bincount(np.unique(np.stack([fleet.gpu, fleet.run]), axis=1)[0], minlength=len(fleet.gpus))
    mean = float(np.nanmean(numbers.value))

    def against_mean(gpu: int) -> str:
        value = float(numbers.value[gpu] - mean)
        half = None if numbers.unit is None else numbers.half_width(gpu)
        return difference_text(TIME_MEASURE, value, *((None, None) if half is None else (value - half, value + half)))

    def mean_cell(title: str, gpu: int) -> float | None:
        return float(means[title][gpu]) if np.isfinite(means[title][gpu]) else None

    table = build_table(
        "The GPUs, the fastest first",
        np.argsort(numbers.value, kind="stable").tolist(),
        {
            "GPU": fleet.name,
            "time": lambda gpu: format_time(math.exp(numbers.value[gpu])),
            "against the mean": against_mean,
            "°C": lambda gpu: mean_cell("°C", gpu),
            "SM MHz": lambda gpu: mean_cell("SM MHz", gpu),
            "W": lambda gpu: mean_cell("W", gpu),
            "J a call": lambda gpu: mean_cell("J a call", gpu),
            "runs": lambda gpu: int(runs[gpu]),
        },
        numeric=("time", "against the mean", *names, "runs"),
        note="Time: geometric mean over runs, cases levelled. 95 % intervals over runs; a dash was not measured.",
    )
    return [table]


def outliers_table(study: FleetAnalysis) -> list[Element]:
    """Return the GPUs that stand out, kind by kind, those that surely do first."""
    kinds: dict[str, list[GpuOutlier]] = {}
    for one in sorted(study.reported_outliers, key=lambda one: one.verdict != "yes"):
        kinds.setdefault(one.word, []).append(one)
    shown = [one for own in kinds.values() for one in own[:MAX_OUTLIERS_PER_KIND]]
    if not shown:
        return []
    more = ""
    if len(shown) < len(study.reported_outliers):
        more = f"The first {MAX_OUTLIERS_PER_KIND} of each kind; all are in gpus.csv. "
    table = build_table(
        "GPUs that stand out",
        shown,
        {
            "GPU": lambda one: study.fleet.name(one.gpu),
            "is": lambda one: one.word,
            "compared with": lambda one: one.against,
            "by": lambda one: _difference_cell(one.measure, one.peers),
            "against the fleet": lambda one: _difference_cell(one.measure, one.fleet),
        },
        numeric=("by", "against the fleet"),
        tone=lambda one: _difference_tone(one.peers.value) if one.verdict == "yes" else "unsure",
        note=f"{more}Unlikely among its peers at a false rate of 5 % over all GPUs, and beyond "
        f"{format_percent(study.minimum_effect)} (heat: {MIN_TEMPERATURE_DIFFERENCE_C:g} °C) in its whole interval; "
        "unsure where its interval reaches into that. What is slow or hungry also spends more energy on each call.",
    )
    return [table]


def _difference_cell(measure: GpuMeasure, difference: PeerDifference | LocationEffect) -> str:
    return difference_text(measure, difference.value, difference.low, difference.high)


def _difference_tone(value: float) -> Tone:
    return "bad" if value > 0 else "good"


def location_table(study: FleetAnalysis) -> list[Element]:
    """Return what slots add to the time, and the racks and hosts whose GPUs stray together by any measure."""
    slots = study.references[TIME_MEASURE.name].of("slot")
    strays = [
        e for e in study.location_effects if e.verdict == "yes" and (e.what != "slot" or e.measure != TIME_MEASURE)
    ]
    strays.sort(key=lambda effect: (effect.what, effect.measure.name, -abs(effect.value)))
    shown = [*slots, *strays[:MAX_LOCATIONS]]
    if not shown:
        hosts = len(study.fleet.hosts)
        few = f"Of {format_count(hosts, 'host')} it cannot be told whether it is the slot or the GPU in it."
        text = few if hosts < 3 else "No slot, host or rack surely strays as a whole."
        return [Text(text=text)] if len(study.fleet.gpus) > 1 else []
    more = f"The first {MAX_LOCATIONS} of {len(strays):,} that stray; --json has all. " * (len(strays) > MAX_LOCATIONS)
    plain: dict[str, Tone] = {"no": "plain", "unsure": "unsure"}
    table = build_table(
        "Slots, hosts and racks",
        shown,
        {
            "place": lambda effect: f"{effect.what} {effect.name}",
            "of": lambda effect: effect.measure.title,
            "its GPUs take or have": lambda effect: _difference_cell(effect.measure, effect),
            "GPUs": lambda effect: effect.members,
        },
        numeric=("its GPUs take or have", "GPUs"),
        tone=lambda effect: plain.get(effect.verdict) or _difference_tone(effect.value),
        note=f"{more}Slots are compared with the middle of their host, hosts with their rack, racks with the "
        "fleet. All slots are listed; racks and hosts where they surely differ.",
    )
    return [table]


def components_table(study: FleetAnalysis) -> Element:
    """Return where the variance of a call's time comes from."""
    shown = [one for one in study.components if one.variance is not None or one.level not in {"racks", "hosts"}]
    typical = {one.level: one for one in study.typical or ()}
    columns: dict[str, Callable[[VarianceComponent], Cell]] = {
        "between": lambda one: one.level,
        "standard deviation": _deviation_text,
        "share of the variance": lambda one: (
            None if one.share is None else format_percent(one.share, one.share_low, one.share_high)
        ),
        "how many": lambda one: one.members,
    }
    if study.typical is not None:
        columns["without outliers"] = lambda one: _deviation_text(typical.get(one.level))
    remarks = "; ".join(
        f"{one.level} cannot be told from {one.within}: there is one for each"
        if one.within
        else f"there is but one of the {one.level}: how they differ cannot be told"
        for one in shown
        if one.variance is None
    )
    note = "Standard deviations of the time, with 95 % intervals; each is what a level adds to those below it."
    return build_table(
        "Where the variance of a call's time comes from",
        shown,
        columns,
        numeric=list(columns)[1:],
        note=f"{note} {remarks[0].upper()}{remarks[1:]}." if remarks else note,
    )


def _deviation_text(one: VarianceComponent | None) -> str | None:
    if one is None or one.variance is None:
        return None
    low, high = (None if end is None else math.sqrt(end) for end in (one.low, one.high))
    return format_percent(math.sqrt(one.variance), low, high)


def correlation_table(study: FleetAnalysis) -> list[Element]:
    """Return what goes together."""
    measured = [(pair, pair.association) for pair in study.pairs if pair.association is not None]
    if not measured:
        return []

    def rho(value: float) -> str:
        return typeset_minus(f"{value:+.2f}")

    def interval(low: float | None, high: float | None) -> str | None:
        return None if low is None or high is None else f"{rho(low)} – {rho(high)}"

    note = "Spearman's rank correlation of the first with the second thing; 95 % intervals."
    if any(pair.over == "rows of few GPUs" for pair, _ in measured):
        note += " So few GPUs are no sample: rows of one GPU are not independent, and there is no interval."
    tones: dict[Verdict, Tone] = {"yes": "good", "no": "plain", "unsure": "unsure"}
    table = build_table(
        "What goes together",
        measured,
        {
            "claim": lambda row: row[0].claim,
            "rho": lambda row: rho(row[1].rho),
            "95 % interval": lambda row: interval(row[1].low, row[1].high),
            "over": lambda row: row[0].over,
            "n": lambda row: row[1].n,
        },
        numeric=("rho", "95 % interval", "n"),
        tone=lambda row: tones[row[0].verdict],
        note=note,
    )
    return [table]


def strips_figures(study: FleetAnalysis, mark: str) -> list[Element]:
    """Return how times lie around the middle of the fleet; nothing for one GPU."""
    title = f"{study.fleet.kind.label}: time"
    if len(study.fleet.gpus) < 2:
        return []
    if len(study.fleet.gpus) <= MAX_GPUS_LISTED:
        note = "A dot is a row: one GPU in one case of one repeat, cases levelled. ◆ is the GPU over its runs."
        return [_strip_figure(f"{title}, GPU by GPU", f"gpus{mark}", _gpu_strips(study), note)]
    strays = _outlier_strips(study)
    less = " Those that stand out by their time are left out here and follow below." if strays else ""
    note = f"A dot is a GPU; where these are more, {STRIP_QUANTILES} quantiles stand for them.{less}"
    figures = [_strip_figure(f"{title}, GPUs and places", f"places{mark}", _summary_strips(study), note)]
    if strays:
        note = "A dot of an outlier is a row: one GPU in one case of one repeat."
        figures.append(_strip_figure(f"{title}, GPUs that stand out", f"outliers{mark}", strays, note))
    return figures


def _strip_figure(title: str, name: str, strips: list[StripRow], note: str) -> Element:
    axis = "time against the middle of the fleet"
    return StripPlot(title=title, name=name, axis=axis, unit="×", strips=tuple(strips), centre=1.0, note=note)


def _time_strip(label: str, logs: Samples, *value_low_high: float) -> StripRow:
    """Return a strip of ratios from their logarithms; the value may have no interval."""
    ends = (*map(float, np.exp(value_low_high)), None, None)
    return StripRow(label=label, samples=tuple(np.exp(logs).tolist()), value=ends[0], low=ends[1], high=ends[2])


def _gpu_strips(study: FleetAnalysis) -> list[StripRow]:
    numbers, middle = study.numbers[TIME_MEASURE.name], study.references[TIME_MEASURE.name].fleet
    rows = study.fleet.without_case_effects(study.fleet.column("median_us", log=True)) - middle
    strips = []
    for gpu in np.argsort(numbers.value, kind="stable").tolist():
        value = float(numbers.value[gpu] - middle)
        half = [] if numbers.unit is None else [numbers.half_width(gpu)]
        ends = [end for width in half for end in (value - width, value + width)]
        strips.append(_time_strip(study.fleet.name(gpu), rows[study.fleet.gpu == gpu], value, *ends))
    return strips


def _relative_times(study: FleetAnalysis) -> Samples:
    """Return how each GPU's time differs from the middle of the fleet."""
    return np.asarray(study.numbers[TIME_MEASURE.name].value - study.references[TIME_MEASURE.name].fleet)


def _summary_strips(study: FleetAnalysis) -> list[StripRow]:
    """Return quantiles of all, of slots where these differ, and of the racks that stray the most."""
    fleet, centres = study.fleet, study.references[TIME_MEASURE.name]
    values = _relative_times(study)
    values[[one.gpu for one in study.outliers if one.measure == TIME_MEASURE]] = np.nan
    rest = int(np.isfinite(values).sum())
    slots = centres.of("slot")
    slots = slots if any(slot.verdict == "yes" for slot in slots) else ()
    racks = sorted((e for e in centres.of("rack") if e.verdict == "yes"), key=lambda e: -abs(e.value))
    strips = [_time_strip(f"{'all' if rest == len(values) else 'the other'} {rest:,} GPUs", _quantiles(values), 0.0)]
    for one in (*slots, *racks[:MAX_RACKS]):
        members = fleet.slot == int(one.name) if one.what == "slot" else fleet.rack == fleet.racks.index(one.name)
        label = f"{one.what} {one.name}, {one.members} GPUs"
        strips.append(_time_strip(label, _quantiles(values[members]), one.value, one.low, one.high))
    return strips


def _outlier_strips(study: FleetAnalysis) -> list[StripRow]:
    """Return all GPUs in one strip, and then each that stands out the most by its time."""
    shown = [one for one in study.outliers if one.measure == TIME_MEASURE][:MAX_OUTLIERS]
    if not shown:
        return []
    fleet, middle = study.fleet, study.references[TIME_MEASURE.name].fleet
    rows = fleet.without_case_effects(fleet.column("median_us", log=True)) - middle
    values = _relative_times(study)
    return [
        _time_strip(f"all {len(values):,} GPUs", _quantiles(values), 0.0),
        *(_time_strip(fleet.name(one.gpu), rows[fleet.gpu == one.gpu], *one.fleet) for one in shown),
    ]


def _quantiles(values: Samples) -> Samples:
    there = values[np.isfinite(values)]
    if len(there) <= STRIP_QUANTILES:
        return np.sort(there)
    return np.asarray(np.quantile(there, np.linspace(0, 1, STRIP_QUANTILES)), dtype=np.float64)


def scatter_figures(study: FleetAnalysis, mark: str) -> list[Element]:
    """Return clock over temperature and time over power, a point for each row of few GPUs, or each of many GPUs."""
    middle_us = float(np.exp(study.references[TIME_MEASURE.name].fleet))
    scale, unit = (1.0, "µs") if middle_us < 1e3 else (1e-3, "ms") if middle_us < 1e6 else (1e-6, "s")
    clocks = _scatter_series(study, "temperature_c", "sm_mhz", 1.0)
    times = _scatter_series(study, "power_w", "median_us", scale)
    plots = (
        ("clock and temperature", "frequency_temperature", "temperature (°C)", "SM clock (MHz)", clocks),
        ("time and power", "time_power", "power (W)", f"time ({unit})", times),
    )
    n, note = len(study.fleet.gpus), "A point is a row: one GPU in one case of one repeat."
    if n > MAX_GPUS_LISTED:
        few = f" {MAX_POINTS} of those that do not stand out are shown." if n > MAX_POINTS else ""
        note = f"A point is a GPU, the mean of its rows.{few}"
    return [
        LinePlot(
            title=f"{study.fleet.kind.label}: {title}",
            name=f"{name}{mark}",
            x_axis=x_axis,
            y_axis=y_axis,
            lines=tuple(lines),
            note=note,
        )
        for title, name, x_axis, y_axis, lines in plots
        if lines
    ]


def _scatter_series(study: FleetAnalysis, x: str, y: str, scale: float) -> list[PlotLine]:
    """Return points in series: by GPU where these are few, else by what stands out."""
    fleet = study.fleet
    xs, ys = fleet.column(x), fleet.column(y) * scale
    there = np.isfinite(xs) & np.isfinite(ys)
    if there.sum() < 2:
        return []
    n = len(fleet.gpus)
    if n <= MAX_GPUS_LISTED:
        by_slot = sorted(range(n), key=lambda gpu: (fleet.gpus[gpu].host, fleet.gpus[gpu].slot))
        series = {fleet.name(g): np.flatnonzero(there & (fleet.gpu == g)) for g in by_slot}
        return [_point_line(label, xs[own], ys[own]) for label, own in series.items() if len(own)]
    counts = np.bincount(fleet.gpu[there], minlength=n)
    has_rows = counts > 0
    by_gpu = [
        np.divide(np.bincount(fleet.gpu[there], weights=v[there], minlength=n), counts, where=has_rows, out=np.zeros(n))
        for v in (xs, ys)
    ]
    plain = has_rows.copy()
    plain[[one.gpu for one in study.outliers if one.verdict == "yes"]] = False
    series = {"others": _sample_indices(np.flatnonzero(plain))}
    for one in study.outliers:
        if one.verdict == "yes" and has_rows[one.gpu] and one.measure.name != "energy":
            series[one.word] = np.append(series.get(one.word, np.array([], dtype=np.intp)), one.gpu)
    return [_point_line(label, *(v[own[:MAX_POINTS]] for v in by_gpu)) for label, own in series.items() if len(own)]


def _sample_indices(indices: Codes) -> Codes:
    if len(indices) <= MAX_POINTS:
        return indices
    return np.sort(np.random.default_rng(SAMPLE_SEED).choice(indices, MAX_POINTS, replace=False))


def _point_line(label: str, x: Samples, y: Samples) -> PlotLine:
    """Return points as a line that is broken after each: markers without a line between them; x to a tenth."""
    broken: list[float | None] = [coordinate for value in y for coordinate in (float(value), None)]
    return PlotLine(label=label, x=tuple(float(value) for value in np.repeat(np.round(x, 1), 2)), y=tuple(broken))


def gpus_csv(studies: Sequence[FleetAnalysis]) -> str:
    """Return all GPUs of all fleets; an empty cell was not measured."""
    return write_csv([record for study in studies for record in _csv_records(study)])


def _csv_records(study: FleetAnalysis) -> Iterator[dict[str, object]]:
    names: dict[int, list[str]] = defaultdict(list)
    for one in study.outliers:
        names[one.gpu].append(one.word if one.verdict == "yes" else f"{one.word}?")
    for gpu, rows in enumerate(np.bincount(study.fleet.gpu, minlength=len(study.fleet.gpus)).tolist()):
        yield {**_csv_record(study, gpu, rows), "stands_out": " ".join(names[gpu])}


def _csv_record(study: FleetAnalysis, index: int, rows: int) -> dict[str, object]:
    fleet, times, centres = study.fleet, study.numbers[TIME_MEASURE.name], study.references[TIME_MEASURE.name]
    gpu, value = fleet.gpus[index], float(times.value[index])
    half = math.nan if times.unit is None else times.half_width(index)
    ratios = {
        "time_us": value,
        "time_low_us": value - half,
        "time_high_us": value + half,
        "against_fleet": value - centres.fleet,
        "against_peers": value - float(centres.reference[index]),
    }
    return {
        "workload": fleet.kind.work,
        "model": fleet.kind.model,
        **{name: getattr(gpu, name) for name in ("uuid", "host", "rack", "slot")},
        "rows": rows,
        **{name: _csv_value(np.exp(log_ratio)) for name, log_ratio in ratios.items()},
        "peers": centres.against[index],
        **{m.column: _csv_number(study.numbers.get(m.name), index) for m in MEASURES if m != TIME_MEASURE},
    }


def _csv_number(numbers: GpuNumbers | None, index: int) -> str:
    if numbers is None:
        return ""
    value = float(numbers.value[index])
    return _csv_value(np.exp(value) if numbers.measure.relative else value)


def _csv_value(value: float) -> str:
    return f"{float(value):.6g}" if np.isfinite(value) else ""
