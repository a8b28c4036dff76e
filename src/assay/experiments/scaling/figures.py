"""The figures: throughput, speedup and efficiency over ranks, memory, the samples of each shape, and what ran when."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from assay.core.page import Bar, Line, Lines, Strip, Strips, Timeline
from assay.experiments.scaling.shapes import words
from assay.experiments.scaling.vectors import reduced
from assay.experiments.watched import sensor_axis, sensor_lines
from assay.stats.intervals import median_interval

if TYPE_CHECKING:
    from assay.core.page import Element
    from assay.experiments.scaling.analysis import Analysis, Scaled
    from assay.experiments.scaling.options import ScalingOptions
    from assay.experiments.scaling.timings import Timing
    from assay.store.records import Records

MOST_STRIPS = 24


def over_ranks(options: ScalingOptions, found: Analysis) -> list[Element]:
    """Return throughput, speedup and efficiency over the number of ranks; nothing where there is one number only."""
    if not found.measured:
        return []
    unit = "tokens/s" if options.is_attention else "calls/s"
    drawn = {
        "throughput": (f"throughput ({unit})", "Work of all ranks over the time of the slowest."),
        "speedup": (
            "speedup (×)",
            "Throughput over that of one rank; the thin line is as many times as there are ranks.",
        ),
        "efficiency": ("efficiency", "Speedup over the number of ranks."),
    }
    figures: list[Element] = []
    for name, (axis, note) in drawn.items():
        lines = _lines(options, found, name)
        if lines:
            figures.append(
                Lines(
                    title=f"{name.capitalize()} over ranks",
                    name=name,
                    x_axis="ranks",
                    y_axis=axis,
                    lines=(*lines, *([_ideal(found)] if name == "speedup" else [])),
                    log_x=max(options.worlds) > 4,
                    note=f"{note} Bands are 95 % intervals.",
                )
            )
    return figures


def _ideal(found: Analysis) -> Line:
    worlds = sorted({1, *(each.shape.world for each in found.measured)})
    return Line(label="ideal", x=tuple(map(float, worlds)), y=tuple(map(float, worlds)))


def _lines(options: ScalingOptions, found: Analysis, name: str) -> list[Line]:
    """Return a line for each sequence and way to form rings: from one rank on."""
    groups: dict[tuple[int, str], list[Scaled]] = {}
    for each in found.measured:
        groups.setdefault((each.shape.sequence, grouping(each)), []).append(each)
    lines = []
    for (sequence, way), several in groups.items():
        first = next(each for each in found.alone if each.shape.sequence == sequence)
        points = [first, *sorted(several, key=lambda each: each.shape.world)]
        label = ", ".join(filter(None, (f"{sequence} tokens" if sequence else "", way if options.is_attention else "")))
        lines.append(_line(label or options.subject.label, points, name))
    return lines


def grouping(each: Scaled) -> str:
    """Say how ranks form rings."""
    shape = each.shape
    return (
        "one ring" if shape.ring == shape.world else "each by itself" if shape.ring == 1 else f"rings of {shape.ring}"
    )


def _line(label: str, points: list[Scaled], name: str) -> Line:
    ones = {"speedup": 1.0, "efficiency": 1.0}
    values = [ones[name] if p.shape.world == 1 and name in ones else p[name].value for p in points]
    ends = [p[name].ends for p in points]
    exact = [v if p.shape.world == 1 and name in ones else None for p, v in zip(points, values, strict=True)]
    return Line(
        label=label,
        x=tuple(float(p.shape.world) for p in points),
        y=tuple(values),
        low=tuple(e[0] if e is not None else x for e, x in zip(ends, exact, strict=True)),
        high=tuple(e[1] if e is not None else x for e, x in zip(ends, exact, strict=True)),
    )


def memory_lines(found: Analysis) -> list[Element]:
    """Return the allocator's peak over the ring size; nothing where the allocator counts nothing."""
    groups: dict[int, dict[int, float]] = {}
    for each in found.all:
        peaks = [m.allocated_mib for m in (each.facts.memory if each.facts else ()) if m.allocated_mib is not None]
        if peaks:
            groups.setdefault(each.shape.sequence, {})[each.shape.ring] = max(peaks)
    lines = tuple(
        Line(
            label=f"{sequence} tokens",
            x=tuple(map(float, sorted(by_ring))),
            y=tuple(by_ring[r] for r in sorted(by_ring)),
        )
        for sequence, by_ring in groups.items()
        if len(by_ring) > 1
    )
    if not lines:
        return []
    return [
        Lines(
            title="Peak memory of the fullest rank over the ring size",
            name="memory",
            x_axis="ranks in a ring",
            y_axis="allocated (MiB)",
            lines=lines,
            note="The allocator's peak in one call, forward and backward.",
        )
    ]


def samples(options: ScalingOptions, found: Analysis) -> list[Element]:
    """Return the samples of each shape, of the slowest rank of each iteration; a figure for each sequence."""
    figures: list[Element] = []
    for sequence in dict.fromkeys(each.shape.sequence for each in found.all):
        rings = [t for t in found.laid.timings if t.plan.kind == "ring" and t.plan.shape.sequence == sequence]
        rings.sort(key=lambda timing: (timing.plan.shape, timing.plan.repeat))
        if rings:
            figures.append(
                Strips(
                    title=f"Every iteration{f' at {sequence} tokens' if sequence else ''}",
                    name=f"samples_{sequence}",
                    axis="time of the slowest rank",
                    unit="ms",
                    strips=tuple(_strip(options, timing) for timing in rings[:MOST_STRIPS]),
                    note="Forward and backward. A row a start, with its median and the median's interval.",
                )
            )
    return figures


def _strip(options: ScalingOptions, timing: Timing) -> Strip:
    shape = replace(timing.plan.shape, sequence=0)
    again = f", repeat {timing.plan.repeat}" if options.repeat > 1 else ""
    values = reduced(timing, "total")["slowest"] / 1e3
    low, high = median_interval(values) or (None, None)
    return Strip(
        label=f"{words(shape, is_attention=options.is_attention)}{again}",
        samples=tuple(values.tolist()),
        value=float(np.median(values)),
        low=low,
        high=high,
    )


def timeline(found: Analysis, records: Records) -> list[Element]:
    """Return when each trial ran, with what the monitor saw above."""
    if not found.laid.tried:
        return []
    origin = min(record.window.start_ns for _, record in found.laid.tried)
    lanes = {"ring": "shapes", "share": "shares alone", "energy": "energy", "yardstick": "matmul"}
    bars = tuple(
        Bar(
            lane=lanes[plan.kind],
            label=plan.shape.name if plan.kind != "yardstick" else "matmul",
            start_s=(record.window.start_ns - origin) / 1e9,
            end_s=(record.window.end_ns - origin) / 1e9,
            tone="plain" if record.status == "ok" else "bad",
        )
        for plan, record in found.laid.tried
    )
    return [
        Timeline(
            title="When each trial ran",
            name="timeline",
            bars=bars,
            lines=sensor_lines(records, origin),
            lines_axis=sensor_axis(records),
            note="n: tokens, p: ranks, r: ranks in a ring.",
        )
    ]
