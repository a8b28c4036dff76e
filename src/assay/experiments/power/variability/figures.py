"""What is drawn: a strip for each of few GPUs, or for quantiles, racks and outliers of many; clocks, heat and power."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.core.page import Line, Lines, Strip, Strips
from assay.experiments.power.variability.measures import TIME, without_cases
from assay.experiments.power.variability.tables import FEW
from assay.stats.longrun import quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.core.page import Element
    from assay.experiments.power.variability.analysis import Looked

    Samples = NDArray[np.float64]
    Codes = NDArray[np.intp]

QUANTILES = 201
"""Points that stand for all of many GPUs."""
MOST_OUTLIERS, MOST_RACKS = 10, 5
MOST_POINTS = 300
SEED = 3


def strips_figures(looked: Looked, mark: str) -> list[Element]:
    """Return how times lie around the middle of the fleet; nothing for one GPU."""
    title = f"{looked.fleet.kind.label}: time"
    if len(looked.fleet.gpus) < 2:
        return []
    if len(looked.fleet.gpus) <= FEW:
        note = "A dot is a row: one GPU in one case of one repeat, cases levelled. ◆ is the GPU over its runs."
        return [_strips(f"{title}, GPU by GPU", f"gpus{mark}", _each(looked), note)]
    strays = _strays(looked)
    less = " Those that stand out by their time are left out here and follow below." if strays else ""
    note = f"A dot is a GPU; where these are more, {QUANTILES} quantiles stand for them.{less}"
    figures = [_strips(f"{title}, GPUs and places", f"places{mark}", _many(looked), note)]
    if strays:
        note = "A dot of an outlier is a row: one GPU in one case of one repeat."
        figures.append(_strips(f"{title}, GPUs that stand out", f"outliers{mark}", strays, note))
    return figures


def _strips(title: str, name: str, strips: list[Strip], note: str) -> Element:
    axis = "time against the middle of the fleet"
    return Strips(title=title, name=name, axis=axis, unit="×", strips=tuple(strips), centre=1.0, note=note)


def _each(looked: Looked) -> list[Strip]:
    numbers, middle = looked.numbers[TIME.name], looked.centres[TIME.name].fleet
    rows = _levelled(looked)
    strips = []
    for gpu in np.argsort(numbers.value, kind="stable"):
        value = float(numbers.value[gpu] - middle)
        ends: tuple[float | None, float | None] = (None, None)
        if numbers.unit is not None:
            half = quantile(0.95, max(1, round(float(numbers.freedom[gpu])))) * float(numbers.error[gpu])
            ends = float(np.exp(value - half)), float(np.exp(value + half))
        strips.append(_strip(looked.fleet.name(int(gpu)), rows[looked.fleet.gpu == gpu] - middle, value, ends))
    return strips


def _levelled(looked: Looked) -> Samples:
    """Return the logarithm of each row's time as if all were of one case."""
    fleet = looked.fleet
    return without_cases(fleet.column("median_us", log=True), fleet.gpu, fleet.case)


def _strip(
    label: str, logs: Samples, value: float | None = None, ends: tuple[float | None, float | None] = (None, None)
) -> Strip:
    samples = tuple(float(x) for x in np.exp(logs))
    return Strip(
        label=label,
        samples=samples,
        value=None if value is None else float(np.exp(value)),
        low=ends[0],
        high=ends[1],
    )


def _around(looked: Looked) -> Samples:
    """Return how each GPU's time differs from the middle of the fleet."""
    return np.asarray(looked.numbers[TIME.name].value - looked.centres[TIME.name].fleet)


def _many(looked: Looked) -> list[Strip]:
    """Return quantiles of all, of slots where these differ, and of the racks that stray the most."""
    fleet, centres = looked.fleet, looked.centres[TIME.name]
    values = _around(looked)
    values[[one.gpu for one in looked.outliers if one.measure == TIME]] = np.nan
    rest = int(np.isfinite(values).sum())
    slots = centres.of("slot")
    slots = slots if any(slot.verdict == "yes" for slot in slots) else ()
    racks = sorted((e for e in centres.of("rack") if e.verdict == "yes"), key=lambda e: -abs(e.value))
    strips = [_strip(f"{'all' if rest == len(values) else 'the other'} {rest:,} GPUs", _quantiles(values), 0.0)]
    for location in (*slots, *racks[:MOST_RACKS]):
        is_member = (
            fleet.slot == int(location.name)
            if location.what == "slot"
            else fleet.rack == fleet.racks.index(location.name)
        )
        ends = float(np.exp(location.low)), float(np.exp(location.high))
        label = f"{location.what} {location.name}, {location.members} GPUs"
        strips.append(_strip(label, _quantiles(values[is_member]), location.value, ends))
    return strips


def _strays(looked: Looked) -> list[Strip]:
    """Return all GPUs in one strip, and then each that stands out the most by its time."""
    shown = [one for one in looked.outliers if one.measure == TIME][:MOST_OUTLIERS]
    if not shown:
        return []
    rows, middle = _levelled(looked), looked.centres[TIME.name].fleet
    values = _around(looked)
    strips = [_strip(f"all {len(values):,} GPUs", _quantiles(values), 0.0)]
    for one in shown:
        ends = float(np.exp(one.fleet.low)), float(np.exp(one.fleet.high))
        own = rows[looked.fleet.gpu == one.gpu] - middle
        strips.append(_strip(looked.fleet.name(one.gpu), own, one.fleet.value, ends))
    return strips


def _quantiles(values: Samples) -> Samples:
    there = values[np.isfinite(values)]
    if len(there) <= QUANTILES:
        return np.sort(there)
    return np.asarray(np.quantile(there, np.linspace(0, 1, QUANTILES)), dtype=np.float64)


def scatter_figures(looked: Looked, mark: str) -> list[Element]:
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
        lines = _points(looked, x, y, scale)
        if lines:
            figures.append(
                Lines(
                    title=f"{kind}: {title}",
                    name=f"{name}{mark}",
                    x_axis=titles[x],
                    y_axis=f"time ({unit})" if unit else titles[y],
                    lines=tuple(lines),
                    note=_thinned(looked),
                )
            )
    return figures


def _time_unit(looked: Looked) -> tuple[float, str]:
    middle = float(np.exp(looked.centres[TIME.name].fleet))
    return (1.0, "µs") if middle < 1e3 else (1e-3, "ms") if middle < 1e6 else (1e-6, "s")


def _thinned(looked: Looked) -> str | None:
    n = len(looked.fleet.gpus)
    if n <= FEW:
        return "A point is a row: one GPU in one case of one repeat."
    few = f" {MOST_POINTS} of those that do not stand out are shown." if n > MOST_POINTS else ""
    return f"A point is a GPU, the mean of its rows.{few}"


def _points(looked: Looked, x: str, y: str, scale: float) -> list[Line]:
    """Return points in series: by GPU where these are few, else by what stands out."""
    fleet = looked.fleet
    xs, ys = fleet.column(x), fleet.column(y) * scale
    there = np.isfinite(xs) & np.isfinite(ys)
    if there.sum() < 2:
        return []
    n = len(fleet.gpus)
    if n <= FEW:
        series = {fleet.name(g): np.flatnonzero(there & (fleet.gpu == g)) for g in _by_slot(looked)}
        return [_scattered(label, xs[own], ys[own]) for label, own in series.items() if len(own)]
    counts = np.bincount(fleet.gpu[there], minlength=n)
    has_rows = counts > 0
    by_gpu = [
        np.divide(np.bincount(fleet.gpu[there], weights=v[there], minlength=n), counts, where=has_rows, out=np.zeros(n))
        for v in (xs, ys)
    ]
    series = {"others": _sample(np.flatnonzero(has_rows & ~_standing_out(looked)))}
    for one in looked.outliers:
        if one.verdict == "yes" and has_rows[one.gpu] and one.measure.name != "energy":
            series[one.word] = np.append(series.get(one.word, np.array([], dtype=np.intp)), one.gpu)
    return [_scattered(label, *(v[own[:MOST_POINTS]] for v in by_gpu)) for label, own in series.items() if len(own)]


def _by_slot(looked: Looked) -> list[int]:
    gpus = looked.fleet.gpus
    return sorted(range(len(gpus)), key=lambda g: (gpus[g].host, gpus[g].slot))


def _standing_out(looked: Looked) -> NDArray[np.bool_]:
    marked = np.zeros(len(looked.fleet.gpus), dtype=np.bool_)
    marked[[one.gpu for one in looked.outliers if one.verdict == "yes"]] = True
    return marked


def _sample(places: Codes) -> Codes:
    if len(places) <= MOST_POINTS:
        return places
    return np.sort(np.random.default_rng(SEED).choice(places, MOST_POINTS, replace=False))


def _scattered(label: str, x: Samples, y: Samples) -> Line:
    """Return points as a line that is broken after each: markers without a line between them; x to a tenth."""
    broken: list[float | None] = [coordinate for value in y for coordinate in (float(value), None)]
    return Line(label=label, x=tuple(float(value) for value in np.repeat(np.round(x, 1), 2)), y=tuple(broken))
