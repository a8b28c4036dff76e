"""The figures: what more ranks buy and hold, the samples of each shape, and what ran when."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from assay._version import __version__
from assay.core.page import Bar, Strip, Strips, Timeline
from assay.experiments.scaling.drawn import Drawn, figures
from assay.experiments.scaling.run_rows import rows_of
from assay.experiments.scaling.shapes import lengths, words
from assay.experiments.scaling.vectors import reduced
from assay.experiments.watched import sensor_axis, sensor_lines
from assay.stats.intervals import median_interval

if TYPE_CHECKING:
    from assay.core.page import Element
    from assay.experiments.scaling.analysis import Analysis
    from assay.experiments.scaling.options import ScalingOptions
    from assay.experiments.scaling.timings import Timing
    from assay.store.records import Records

MOST_STRIPS = 24


def drawn_of(options: ScalingOptions, found: Analysis) -> Drawn:
    """Return what ``assay scaling analyse`` draws of a run; nothing where there is one number of ranks only."""
    if not found.measured:
        return Drawn((), (), ())
    drawn_figures = figures(rows_of(options, found, "this run", __version__, "this machine"))
    return drawn_figures if len(lengths(options)) > 1 else drawn_figures._replace(heat_maps=())


def samples(options: ScalingOptions, found: Analysis) -> list[Element]:
    """Return the samples of each shape, of the slowest rank of each iteration; a figure for each sequence."""
    shown: list[Element] = []
    for sequence in dict.fromkeys(result.shape.sequence for result in found.all):
        rings = [t for t in found.laid.timings if t.plan.kind == "ring" and t.plan.shape.sequence == sequence]
        rings.sort(key=lambda timing: (timing.plan.shape, timing.plan.repeat))
        if rings:
            shown.append(
                Strips(
                    title=f"Every iteration{f' at {sequence} tokens' if sequence else ''}",
                    name=f"samples_{sequence}",
                    axis="time of the slowest rank",
                    unit="ms",
                    strips=tuple(_strip(options, timing) for timing in rings[:MOST_STRIPS]),
                    note="Forward and backward. A row a start, with its median and the median's interval.",
                )
            )
    return shown


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
