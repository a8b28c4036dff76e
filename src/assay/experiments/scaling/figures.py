"""The figures of scaling results: lines over ranks, heat maps, samples of each shape, and a timeline of trials."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from assay._version import __version__
from assay.core.page import HeatMap, LinePlot, PlotLine, StripPlot, StripRow, Timeline, TimelineBar
from assay.core.results import Estimate
from assay.experiments.reporting import sensor_axis, sensor_lines
from assay.experiments.scaling.plan import format_shape
from assay.experiments.scaling.result_rows import build_run_rows, label_rows
from assay.experiments.scaling.timings import reduce_ranks
from assay.stats.intervals import median_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.page import Element
    from assay.experiments.scaling.analysis import ScalingAnalysis
    from assay.experiments.scaling.plan import ScalingOptions
    from assay.experiments.scaling.result_rows import ScalingRow
    from assay.experiments.scaling.timings import ShapeTiming
    from assay.store.records import Records


if TYPE_CHECKING:
    RowValue = Callable[[ScalingRow], Estimate | float | None]

RANKS_AXIS = "ranks"
BANDS_NOTE = "Bands are 95 % intervals."
NO_BANDS_NOTE = "The sources have no intervals."
NOT_COMPARABLE = "Speedups of the older tool are invalid: its rings computed a different function than one rank."


class ScalingFigures(NamedTuple):
    """The figures of each sheet; a sheet without data has none."""

    scaling: tuple[LinePlot, ...]
    memory: tuple[LinePlot, ...]
    heat_maps: tuple[HeatMap, ...]

    @property
    def all(self) -> tuple[LinePlot | HeatMap, ...]:
        """Every figure."""
        return (*self.scaling, *self.memory, *self.heat_maps)


def draw_empty_figure(title: str, name: str) -> LinePlot:
    """Return a figure that says that there are no data."""
    nothing = PlotLine(label="", x=(1.0,), y=(None,))
    return LinePlot(
        title=title, name=name, x_axis=RANKS_AXIS, y_axis="", lines=(nothing,), note="No source has these numbers."
    )


def draw_figures(rows: Sequence[ScalingRow]) -> ScalingFigures:
    """Return the figures of rows, each shape once."""
    return ScalingFigures(_scaling_figures(rows), _memory_figures(rows), _draw_heat_maps(rows))


def _scaling_figures(rows: Sequence[ScalingRow]) -> tuple[LinePlot, ...]:
    words, scale = _throughput_unit(rows)
    figures = (
        _lines_over_ranks(
            rows, "Throughput", "throughput", words, lambda row: _scaled(row.throughput, scale), log_y=True
        ),
        _lines_over_ranks(rows, "Speedup", "speedup", "×", lambda row: row.speedup, log_y=True, with_ideal=True),
        _lines_over_ranks(
            rows, "Efficiency", "efficiency", "%", lambda row: _scaled(row.efficiency, 100.0), with_ideal=True
        ),
        _lines_over_ranks(rows, "Time of a call", "time", "ms", lambda row: row.time_ms, log_y=True),
    )
    return tuple(figure for figure in figures if figure is not None)


def _throughput_unit(rows: Sequence[ScalingRow]) -> tuple[str, float]:
    """Return a readable unit of throughput, and the factor from the plain one."""
    things = "tokens/s" if all(row.tokens for row in rows) else "calls/s"
    most = max((row.throughput.value for row in rows if row.throughput is not None), default=0.0)
    scale, word = next(((s, w) for s, w in ((1e6, "million "), (1e3, "thousand ")) if most >= 2 * s), (1.0, ""))
    return f"{word}{things}", 1 / scale


def _memory_figures(rows: Sequence[ScalingRow]) -> tuple[LinePlot, ...]:
    figures = (
        _lines_over_ranks(rows, "Peak memory per rank", "memory", "GiB", lambda row: row.memory_gib, log_y=True),
        _lines_over_ranks(rows, "Peak memory per token of a rank", "memory_per_token", "KiB", _memory_per_token),
    )
    return tuple(figure for figure in figures if figure is not None)


def _draw_heat_maps(rows: Sequence[ScalingRow]) -> tuple[HeatMap, ...]:
    words, scale = _throughput_unit(rows)
    own = any(row.assay_version is not None for row in rows)
    sheets: tuple[tuple[str, str, str, RowValue], ...] = (
        ("Throughput", "map_throughput", words, lambda row: _scaled(row.throughput, scale)),
        (
            "Efficiency",
            "map_efficiency",
            "%",
            lambda row: _scaled(row.efficiency, 100.0) if row.assay_version or not own else None,
        ),
        ("Transfers alone", "map_transfers", "% of the time of a call", _transfer_percent),
        ("Peak memory per rank", "map_memory", "GiB", lambda row: row.memory_gib),
    )
    length_of = label_rows(rows)
    lengths = list(dict.fromkeys(label for _, label in sorted((row.requested_length, length_of[row]) for row in rows)))
    columns = list(dict.fromkeys((row.world, row.ring) for row in sorted(rows, key=lambda r: (r.world, -r.ring))))
    names = {(row.world, row.ring): _column_label(row) for row in rows}
    cells = {(length_of[row], (row.world, row.ring)): row for row in rows}
    maps = []
    for title, name, unit, value in sheets:
        values = {position: _point(number)[0] for position, row in cells.items() if (number := value(row)) is not None}
        if values:
            matrix = tuple(tuple(values.get((length, c)) for c in columns) for length in lengths)
            maps.append(
                HeatMap(
                    title=f"{title}, by length and ranks",
                    name=name,
                    rows=tuple(lengths),
                    columns=tuple(names[c] for c in columns),
                    cells=matrix,
                    unit=unit,
                    note=" ".join(_older_notes(rows)) or None if name == "map_efficiency" and not own else None,
                )
            )
    return tuple(maps)


def _column_label(row: ScalingRow) -> str:
    if row.world == 1:
        return "1 rank"
    return f"{row.world} ranks" if row.ring == row.world else f"{row.world} ranks, {row.grouping}"


def _lines_over_ranks(
    rows: Sequence[ScalingRow],
    title: str,
    name: str,
    unit: str,
    value: RowValue,
    *,
    log_y: bool = False,
    with_ideal: bool = False,
) -> LinePlot | None:
    """Return lines over the number of ranks; null without any value.

    What is relative to one rank has an ideal line, and is invalid for rows of the older tool, as their labels say.
    """
    points = {
        label: line
        for label, of_line in _group_rows(rows, with_ideal=with_ideal).items()
        if (line := {row.world: _point(number) for row in of_line if (number := value(row)) is not None})
    }
    if not points:
        return None
    banded = any(low is not None and low != high for line in points.values() for _, low, high in line.values())
    lines = [_build_line(label, line) for label, line in points.items()]
    worlds = sorted({row.world for row in rows})
    if with_ideal:
        best = [100.0 if unit == "%" else float(world) for world in worlds]
        lines.append(PlotLine(label="ideal", x=tuple(map(float, worlds)), y=tuple(best)))
    return LinePlot(
        title=f"{title} over ranks",
        name=name,
        x_axis=RANKS_AXIS,
        y_axis=f"{title[0].lower()}{title[1:]}, {unit}",
        lines=tuple(lines),
        log_x=worlds[-1] > worlds[0],
        log_y=log_y,
        note=" ".join([BANDS_NOTE if banded else NO_BANDS_NOTE, *(_older_notes(rows) if with_ideal else ())]),
    )


def _group_rows(rows: Sequence[ScalingRow], *, with_ideal: bool) -> dict[str, list[ScalingRow]]:
    """Return the rows of each line by its label: one length and grouping of ranks, starting at one rank."""
    groups: dict[str, list[ScalingRow]] = {}
    names = label_rows(rows)
    ones = {names[row]: row for row in rows if row.world == 1}
    for row in rows:
        suffix = f", {row.grouping}" if row.ring < row.world else ""
        invalid = ": invalid" if with_ideal and row.assay_version is None else ""
        line = groups.setdefault(f"{names[row]}{suffix}{invalid}", [])
        line += [ones[names[row]]] if suffix and not line and names[row] in ones else []
        line.append(row)
    return groups


def _build_line(label: str, points: Mapping[int, tuple[float, float | None, float | None]]) -> PlotLine:
    worlds = sorted(points)
    y, low, high = zip(*(points[world] for world in worlds), strict=True)
    return PlotLine(label=label, x=tuple(map(float, worlds)), y=y, low=low, high=high)


def _older_notes(rows: Sequence[ScalingRow]) -> tuple[str, ...]:
    return (NOT_COMPARABLE,) if any(row.assay_version is None for row in rows) else ()


def _scaled(estimate: Estimate | None, factor: float) -> Estimate | None:
    return None if estimate is None else estimate.scaled("", times=factor)


def _point(number: Estimate | float) -> tuple[float, float | None, float | None]:
    return (number.value, number.low, number.high) if isinstance(number, Estimate) else (number, None, None)


def _transfer_percent(row: ScalingRow) -> float | None:
    return None if row.communication_ms is None else 100 * row.communication_ms / row.time_ms.value


def _memory_per_token(row: ScalingRow) -> float | None:
    if row.memory_gib is None or not row.tokens or row.batch is None:
        return None
    return row.memory_gib * 2**20 / (row.batch * row.tokens / row.ring)


MAX_STRIPS = 24


def draw_run_figures(options: ScalingOptions, analysis: ScalingAnalysis) -> ScalingFigures:
    """Return the figures that ``assay scaling analyse`` draws of a run; none with a single number of ranks."""
    if not analysis.measured:
        return ScalingFigures((), (), ())
    figures = draw_figures(build_run_rows(options, analysis, "this run", __version__, "this machine"))
    return figures if len(options.lengths) > 1 else figures._replace(heat_maps=())


def draw_samples(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the samples of each shape, of the slowest rank of each iteration; one figure per sequence."""
    shown: list[Element] = []
    for sequence in dict.fromkeys(result.shape.sequence for result in analysis.all):
        rings = [t for t in analysis.timings.completed if t.plan.kind == "ring" and t.plan.shape.sequence == sequence]
        rings.sort(key=lambda timing: (timing.plan.shape, timing.plan.repeat))
        if rings:
            shown.append(
                StripPlot(
                    title=f"Samples{f' at {sequence} tokens' if sequence else ''}",
                    name=f"samples_{sequence}",
                    axis="time of the slowest rank",
                    unit="ms",
                    strips=tuple(_sample_strip(options, timing) for timing in rings[:MAX_STRIPS]),
                    note="Forward and backward. One row per start, with its median and the interval of the median.",
                )
            )
    return shown


def _sample_strip(options: ScalingOptions, timing: ShapeTiming) -> StripRow:
    shape = replace(timing.plan.shape, sequence=0)
    again = f", repeat {timing.plan.repeat}" if options.repeat > 1 else ""
    values = reduce_ranks(timing, "total")["slowest"] / 1e3
    low, high = median_interval(values) or (None, None)
    return StripRow(
        label=f"{format_shape(options, shape)}{again}",
        samples=tuple(values.tolist()),
        value=float(np.median(values)),
        low=low,
        high=high,
    )


def draw_timeline(analysis: ScalingAnalysis, records: Records) -> list[Element]:
    """Return when each trial ran, with the readings of the monitor."""
    if not analysis.timings.attempts:
        return []
    origin = min(record.window.start_ns for _, record in analysis.timings.attempts)
    lanes = {"ring": "shapes", "share": "shares alone", "energy": "energy", "yardstick": "matmul"}
    bars = tuple(
        TimelineBar(
            lane=lanes[plan.kind],
            label=plan.shape.name if plan.kind != "yardstick" else "matmul",
            start_s=(record.window.start_ns - origin) / 1e9,
            end_s=(record.window.end_ns - origin) / 1e9,
            tone="plain" if record.status == "ok" else "bad",
        )
        for plan, record in analysis.timings.attempts
    )
    return [
        Timeline(
            title="Timeline of the trials",
            name="timeline",
            bars=bars,
            lines=sensor_lines(records, origin),
            lines_axis=sensor_axis(records),
            note="n: tokens, p: ranks, r: ranks per ring.",
        )
    ]
