"""Tables of a fleet: GPUs, outliers, racks, hosts and slots, variance components, correlations; and all GPUs as CSV."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import format_count, format_percent, format_time
from assay.core.page import Column, Table, Text
from assay.experiments.power.variability import findings as words
from assay.experiments.power.variability.measures import MEASURES, MIN_TEMPERATURE_DIFFERENCE_C, TIME_MEASURE
from assay.stats.numerics import t_quantile
from assay.stats.variance import group_means

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.experiments.power.variability.analysis import FleetAnalysis
    from assay.experiments.power.variability.measures import GpuNumbers
    from assay.experiments.power.variability.outliers import GpuOutlier, LocationEffect
    from assay.stats.variance import VarianceComponent


MAX_GPUS_LISTED = 16
"""So many GPUs have a row and a strip each."""
MAX_OUTLIERS_PER_KIND, MAX_LOCATIONS = 10, 30
WIDE_INTERVAL = 1.0
"""A standard deviation of all of the time: an interval that reaches so far says nothing."""


def gpus_table(looked: FleetAnalysis) -> list[Element]:
    """Return each GPU with its numbers, where they are few."""
    fleet, numbers = looked.fleet, looked.numbers[TIME_MEASURE.name]
    if len(fleet.gpus) > MAX_GPUS_LISTED:
        return []
    columns = {name: _gpu_column(looked, name) for name in ("temperature_c", "sm_mhz", "power_w", "energy_per_call_j")}
    runs = np.bincount(np.unique(np.stack([fleet.gpu, fleet.run]), axis=1)[0], minlength=len(fleet.gpus))
    rows: list[tuple[Cell, ...]] = []
    for gpu in np.argsort(numbers.value, kind="stable"):
        time = math.exp(numbers.value[gpu])
        cells = [None if not np.isfinite(column[gpu]) else float(column[gpu]) for column in columns.values()]
        rows.append(
            (fleet.name(int(gpu)), format_time(time), _against_mean_text(looked, int(gpu)), *cells, int(runs[gpu]))
        )
    titles = ("GPU", "time", "against the mean", "°C", "SM MHz", "W", "J a call", "runs")
    return [
        Table(
            title="The GPUs, the fastest first",
            columns=tuple(Column(title=title, numeric=title != "GPU") for title in titles),
            rows=tuple(rows),
            note="Time: geometric mean over runs, cases levelled. 95 % intervals over runs; a dash was not measured.",
        )
    ]


def _gpu_column(looked: FleetAnalysis, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    values = looked.fleet.column(name)
    there = np.isfinite(values)
    return group_means(values[there], looked.fleet.gpu[there], len(looked.fleet.gpus))


def _against_mean_text(looked: FleetAnalysis, gpu: int) -> str:
    """Write how a GPU's time differs from the mean of all."""
    numbers = looked.numbers[TIME_MEASURE.name]
    value = float(numbers.value[gpu] - np.nanmean(numbers.value))
    if numbers.unit is None:
        return words.difference_text(TIME_MEASURE, value)
    half = t_quantile(0.95, max(1, round(float(numbers.freedom[gpu])))) * float(numbers.error[gpu])
    return words.difference_text(TIME_MEASURE, value, value - half, value + half)


def outliers_table(looked: FleetAnalysis) -> list[Element]:
    """Return the GPUs that stand out, kind by kind, those that surely do first."""
    kinds: dict[str, list[GpuOutlier]] = {}
    for one in sorted(looked.reported_outliers, key=lambda one: one.verdict != "yes"):
        kinds.setdefault(one.word, []).append(one)
    shown = [one for own in kinds.values() for one in own[:MAX_OUTLIERS_PER_KIND]]
    if not shown:
        return []
    more = (
        f"The first {MAX_OUTLIERS_PER_KIND} of each kind; all are in gpus.csv. "
        if len(shown) < len(looked.reported_outliers)
        else ""
    )
    return [
        Table(
            title="GPUs that stand out",
            columns=tuple(
                Column(title=title, numeric=index > 2)
                for index, title in enumerate(("GPU", "is", "held against", "by", "against the fleet"))
            ),
            rows=tuple(_outlier_row(looked, one) for one in shown),
            tones=tuple("unsure" if one.verdict != "yes" else _outlier_tone(one) for one in shown),
            note=(
                f"{more}Unlikely among its peers at a false rate of 5 % over all GPUs, and beyond "
                f"{format_percent(looked.minimum_effect)} (heat: {MIN_TEMPERATURE_DIFFERENCE_C:g} °C) "
                "in its whole interval; unsure "
                "where its interval reaches into that. What is slow or hungry also spends more energy on each call."
            ),
        )
    ]


def _outlier_tone(one: GpuOutlier) -> Tone:
    return "bad" if one.peers.value > 0 else "good"


def _outlier_row(looked: FleetAnalysis, one: GpuOutlier) -> tuple[Cell, ...]:
    peers, fleet = one.peers, one.fleet
    return (
        looked.fleet.name(one.gpu),
        one.word,
        one.against,
        words.difference_text(one.measure, peers.value, peers.low, peers.high),
        words.difference_text(one.measure, fleet.value, fleet.low, fleet.high),
    )


def location_table(looked: FleetAnalysis) -> list[Element]:
    """Return what slots add to the time, and the racks and hosts whose GPUs stray together by any measure."""
    slots = looked.references[TIME_MEASURE.name].of("slot")
    strays = [
        e for e in looked.location_effects if e.verdict == "yes" and (e.what != "slot" or e.measure != TIME_MEASURE)
    ]
    strays.sort(key=lambda effect: (effect.what, effect.measure.name, -abs(effect.value)))
    shown: list[LocationEffect] = [*slots, *strays[:MAX_LOCATIONS]]
    more = f"The first {MAX_LOCATIONS} of {len(strays):,} that stray; --json has all. " * (len(strays) > MAX_LOCATIONS)
    if not shown:
        return [Text(text=_no_locations_text(looked))] if len(looked.fleet.gpus) > 1 else []
    return [
        Table(
            title="Slots, hosts and racks",
            columns=tuple(
                Column(title=title, numeric=index > 1)
                for index, title in enumerate(("place", "of", "its GPUs take or have", "GPUs"))
            ),
            rows=tuple(
                (
                    f"{effect.what} {effect.name}",
                    effect.measure.title,
                    words.difference_text(effect.measure, effect.value, effect.low, effect.high),
                    effect.members,
                )
                for effect in shown
            ),
            tones=tuple(_location_tone(effect) for effect in shown),
            note=(
                f"{more}Slots are held against the middle of their host, hosts against their rack, racks "
                "against the fleet. Slots are all told; racks and hosts where they surely differ."
            ),
        )
    ]


def _location_tone(effect: LocationEffect) -> Tone:
    if effect.verdict != "yes":
        return "plain" if effect.verdict == "no" else "unsure"
    return "bad" if effect.value > 0 else "good"


def _no_locations_text(looked: FleetAnalysis) -> str:
    hosts = len(looked.fleet.hosts)
    if hosts < 3:
        return f"Of {format_count(hosts, 'host')} it cannot be told whether it is the slot or the GPU in it."
    return "No slot, host or rack surely strays as a whole."


def components_table(looked: FleetAnalysis) -> list[Element]:
    """Return where the variance of a call's time comes from."""
    shown = [one for one in looked.components if one.variance is not None or one.level not in {"racks", "hosts"}]
    typical = {one.level: one for one in looked.typical or ()}
    with_typical = looked.typical is not None
    titles = [
        "between",
        "standard deviation",
        "share of the variance",
        "how many",
        *["without outliers"][:with_typical],
    ]
    return [
        Table(
            title="Where the variance of a call's time comes from",
            columns=tuple(Column(title=title, numeric=index > 0) for index, title in enumerate(titles)),
            rows=tuple(
                (
                    one.level,
                    _deviation_text(one),
                    _share_cell(one),
                    one.members,
                    *([_deviation_text(typical[one.level]) if one.level in typical else None][:with_typical]),
                )
                for one in shown
            ),
            note=_component_note(shown),
        )
    ]


def _deviation_text(one: VarianceComponent) -> str | None:
    if one.variance is None:
        return None
    low, high = (None if end is None else math.sqrt(end) for end in (one.low, one.high))
    return format_percent(math.sqrt(one.variance), low, high)


def _share_cell(one: VarianceComponent) -> str | None:
    if one.share is None:
        return None
    return format_percent(one.share, one.share_low, one.share_high)


def _component_note(shown: Sequence[VarianceComponent]) -> str:
    """Say which levels cannot be told from others."""
    remarks = [
        f"{one.level} cannot be told from {one.within}: there is one for each"
        if one.within
        else f"there is but one of the {one.level}: how they differ cannot be told"
        for one in shown
        if one.variance is None
    ]
    plain = "Standard deviations of the time, with 95 % intervals; each is what a level adds to those below it."
    return f"{plain} {remarks[0][0].upper()}{'; '.join(remarks)[1:]}." if remarks else plain


def correlation_table(looked: FleetAnalysis) -> list[Element]:
    """Return what goes together."""
    measured = [pair for pair in looked.pairs if pair.association is not None]
    if not measured:
        return []
    rows: list[tuple[Cell, ...]] = []
    for pair in measured:
        association = pair.association
        if association is None:
            continue
        interval = (
            None
            if association.low is None or association.high is None
            else f"{_rho_text(association.low)} – {_rho_text(association.high)}"
        )
        rows.append((pair.claim, _rho_text(association.rho), interval, pair.over, association.n))
    few = any(pair.over == "rows of few GPUs" for pair in measured)
    note = "Spearman's rank correlation of the first with the second thing; 95 % intervals."
    dependent = " So few GPUs are no sample: rows of one GPU are not independent, and there is no interval."
    return [
        Table(
            title="What goes together",
            columns=tuple(
                Column(title=title, numeric=title not in {"claim", "over"})
                for title in ("claim", "rho", "95 % interval", "over", "n")
            ),
            rows=tuple(rows),
            tones=tuple({"yes": "good", "no": "plain", "unsure": "unsure"}[pair.verdict] for pair in measured),
            note=note + (dependent if few else ""),
        )
    ]


def _rho_text(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


GPUS_CSV_NAME = "gpus.csv"


def gpus_csv(all_looked: Sequence[FleetAnalysis]) -> str:
    """Return all GPUs of all fleets; an empty cell was not measured."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["workload", "model", "uuid", "host", "rack", "slot", "rows"]
        + ["time_us", "time_low_us", "time_high_us", "against_fleet", "against_peers", "peers"]
        + [measure.column for measure in MEASURES if measure != TIME_MEASURE]
        + ["stands_out"]
    )
    for looked in all_looked:
        writer.writerows(_csv_rows(looked))
    return buffer.getvalue()


def _csv_rows(looked: FleetAnalysis) -> list[list[object]]:
    fleet, times, centres = looked.fleet, looked.numbers[TIME_MEASURE.name], looked.references[TIME_MEASURE.name]
    words: dict[int, list[str]] = {}
    for one in looked.outliers:
        words.setdefault(one.gpu, []).append(one.word if one.verdict == "yes" else f"{one.word}?")
    low, high = _interval_ends(times)
    counts = np.bincount(fleet.gpu, minlength=len(fleet.gpus))
    others = [looked.numbers.get(measure.name) for measure in MEASURES if measure != TIME_MEASURE]
    rows: list[list[object]] = []
    for index, gpu in enumerate(fleet.gpus):
        value = float(times.value[index])
        rows.append(
            [
                *(fleet.kind.work, fleet.kind.model, gpu.uuid, gpu.host, gpu.rack or "", gpu.slot, int(counts[index])),
                *(_csv_value(np.exp(log_time)) for log_time in (value, low[index], high[index])),
                _csv_value(np.exp(value - centres.fleet)),
                _csv_value(np.exp(value - centres.reference[index])),
                centres.against[index],
                *(_csv_number(other, index) for other in others),
                " ".join(words.get(index, [])),
            ]
        )
    return rows


def _interval_ends(
    numbers: GpuNumbers,
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    if numbers.unit is None:
        nothing = np.full(len(numbers.value), np.nan)
        return nothing, nothing
    reach = np.array([t_quantile(0.95, max(1, round(float(degrees)))) for degrees in numbers.freedom])
    return numbers.value - reach * numbers.error, numbers.value + reach * numbers.error


def _csv_number(numbers: GpuNumbers | None, index: int) -> str:
    if numbers is None:
        return ""
    value = float(numbers.value[index])
    return _csv_value(np.exp(value) if numbers.measure.relative else value)


def _csv_value(value: float) -> str:
    return f"{float(value):.6g}" if np.isfinite(value) else ""
