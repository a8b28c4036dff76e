"""The figures of a run: joules over the load, joules by speed, gaps between tokens, watts over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.core.page import Bar, Line, Lines, Strip, Strips, Timeline
from assay.experiments.energy.compare_page import drawn as pareto_of
from assay.experiments.energy.compare_sources import phase_of, points
from assay.experiments.energy.comparing import shapes
from assay.experiments.energy.flat import flat_rows
from assay.experiments.energy.headline import energy_of
from assay.experiments.energy.latencies import gap_windows
from assay.experiments.energy.tables import in_common, names
from assay.experiments.watched import sensor_axis, sensor_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Element
    from assay.experiments.energy.result import Study
    from assay.experiments.energy.rows import EnergyResult, EnergyRow
    from assay.experiments.energy.seen import CellSeen
    from assay.stats.summary import Samples
    from assay.store.records import Records

MOST_GAPS = 2000
"""Dots of one strip: of more, as many evenly from the smallest to the largest."""
WIDE = 20.0
"""Numbers further apart than so many times stand on a logarithmic axis."""
FEWEST_POINTS = 2


def over_load(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return the joules of a token over batch sizes or requests at once, a line for each mode and length."""
    groups: dict[tuple[str, int, int], list[EnergyRow]] = {}
    for row in rows:
        if energy_of(row) is not None:
            groups.setdefault((row.cell.mode, row.cell.input_tokens, row.cell.output_tokens), []).append(row)
    lengths = len({(i, o) for _, i, o in groups})
    lines = [
        _line(f"{mode}, {i} in, {o} out" if lengths > 1 else mode, several)
        for (mode, i, o), several in groups.items()
        if len(several) >= FEWEST_POINTS
    ]
    if not lines:
        return []
    served = any(row.cell.mode == "server" for row in rows)
    values = [y for line in lines for y in line.y if y is not None]
    return [
        Lines(
            title="GPU energy of an output token" + ("" if served else ", while decoding"),
            name="joules_over_load",
            x_axis="requests at once" if served else "batch size",
            y_axis="J/token",
            lines=tuple(lines),
            log_x=True,
            log_y=max(values) > WIDE * min(values) > 0,
            note="Bands are 95 % intervals.",
        )
    ]


def _line(label: str, rows: Sequence[EnergyRow]) -> Line:
    points = [(_load(row), energy) for row in rows if (energy := energy_of(row)) is not None]
    return Line(
        label=label,
        x=tuple(float(load) for load, _ in points),
        y=tuple(energy.value for _, energy in points),
        low=tuple(energy.low for _, energy in points),
        high=tuple(energy.high for _, energy in points),
    )


def _load(row: EnergyRow) -> int:
    return row.cell.concurrency if row.cell.mode == "server" else row.cell.batch


def pareto(result: EnergyResult) -> list[Element]:
    """Return joules by speed, with the front; nothing of fewer than two cells."""
    rows = flat_rows(result)
    if len(rows) < FEWEST_POINTS:
        return []
    of = phase_of(rows)
    parts = shapes(points(rows, of)).values()
    return [element for number, part in enumerate(parts, 1) for element in pareto_of(part, of, "batch", number)]


def gaps(study: Study) -> list[Element]:
    """Return the gaps between one token and the next, a strip for each cell, all processes together."""
    called = names(study.result.rows)
    strips = [strip for cell in study.cells if (strip := _gaps(cell, called[cell.cell])) is not None]
    if not strips:
        return []
    return [
        Strips(
            title=f"Gaps between one token and the next{in_common(study.result.rows)}",
            name="gaps",
            axis="gap",
            unit="ms",
            strips=tuple(strips),
            note="All processes together; the mark stands at the median.",
        )
    ]


def _gaps(seen: CellSeen, label: str) -> Strip | None:
    windows = gap_windows(seen)
    if not windows:
        return None
    samples = np.concatenate([window.samples("gap_us") for window in windows]) / 1e3
    return Strip(label=label, samples=_thinned(samples), value=float(np.median(samples)))


def _thinned(samples: Samples) -> tuple[float, ...]:
    if len(samples) <= MOST_GAPS:
        return tuple(samples.tolist())
    return tuple(np.quantile(samples, np.linspace(0.0, 1.0, MOST_GAPS)).tolist())


def over_time(study: Study, records: Records) -> list[Element]:
    """Return when each stage was measured, and the watts above it."""
    windows = study.walk.gathered.seen
    if not windows:
        return []
    origin_ns = min(window.stage.start_ns for window in windows)
    bars = tuple(
        Bar(
            lane=window.place.phase,
            label="idle" if window.place.cell is None else window.place.cell.name,
            start_s=(window.stage.start_ns - origin_ns) / 1e9,
            end_s=(window.stage.end_ns - origin_ns) / 1e9,
            tone="plain" if window.record.status == "ok" else "unsure",
        )
        for window in windows
    )
    return [
        Timeline(
            title="When each phase was measured",
            name="stages",
            bars=bars,
            lines=sensor_lines(records, origin_ns),
            lines_axis=sensor_axis(records),
            note="Between the bars models are loaded, put in place and warmed up; that counts for nothing.",
        )
    ]
