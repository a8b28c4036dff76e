"""The figures: every block's ratio, the samples of each phase, and when each trial ran."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from assay.core.page import Bar, Strip, Strips, Timeline
from assay.experiments.contention.effects import differences
from assay.experiments.contention.options import CROWDED, WORDS
from assay.experiments.contention.plan import block_number, role_name
from assay.experiments.contention.retime import RETIMED
from assay.experiments.contention.slowdown import level_table
from assay.experiments.times import AXES
from assay.experiments.watched import sensor_axis, sensor_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Element
    from assay.experiments.contention.analysis import Analysis
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.experiments.contention.places import Cell, Place
    from assay.stats.blocks import Ratio
    from assay.store.records import Records

MOST_ROWS = 24
MOST_SAMPLES = 2000
"""Of one row, evenly taken: more cannot be told apart in a drawing."""


def ratios(options: ContentionOptions, found: Analysis) -> list[Element]:
    """Return every block's ratio to quiet, a row for each phase and place."""
    quantity = found.layout.quantity
    comparisons, table = found.times.get(quantity, {}), level_table(found.layout, quantity)
    strips: list[Strip] = []
    phases: tuple[Phase, ...] = (*CROWDED, "again")
    for phase in phases:
        slots = comparisons[phase].places if phase in comparisons else {}
        for slot, effect in slots.items():
            logs = differences(table, phase, slot).values()
            if logs and effect.ratio is not None:
                label = f"{WORDS[phase]}: {_who(options, slot, several=len(options.subjects) > 1)}"
                strips.append(_strip(label, [math.exp(log) for log in logs], effect.ratio))
    if not strips:
        return []
    return [
        Strips(
            title="Time of each block over that alone",
            name="ratios",
            axis="time over that alone",
            unit="×",
            strips=tuple(strips[:MOST_ROWS]),
            centre=1.0,
            note="A dot a block. Alone again is over alone in the same block: what no neighbour causes.",
        )
    ]


def samples(options: ContentionOptions, found: Analysis) -> list[Element]:
    """Return the samples of each phase and place over all blocks, a figure for each subject."""
    figures: list[Element] = []
    for index, subject in enumerate(options.subjects):
        cells = [c for c in found.layout.cells if c.place.subject == index and c.quantity == found.layout.quantity]
        rows = _rows(options, cells, by_worker=True)
        if len(rows) > MOST_ROWS:
            rows = _rows(options, cells, by_worker=False)
        if rows:
            figures.append(
                Strips(
                    title=f"Samples of {subject.label}",
                    name=f"samples_{index}",
                    axis=AXES[found.layout.quantity],
                    unit="µs",
                    strips=tuple(Strip(label=label, samples=_thinned(mine)) for label, mine in rows.items()),
                    note="All blocks together, the fixed configuration.",
                )
            )
    return figures


def _rows(options: ContentionOptions, cells: Sequence[Cell], *, by_worker: bool) -> dict[str, list[Cell]]:
    rows: dict[str, list[Cell]] = {}
    for phase in options.phases:
        for cell in sorted((c for c in cells if c.phase == phase), key=lambda c: (c.place, c.block)):
            who = role_name(cell.place.device, cell.place.worker, options.workers) if by_worker else cell.place.device
            rows.setdefault(f"{who}, {WORDS[phase]}", []).append(cell)
    return rows


def _thinned(cells: Sequence[Cell]) -> tuple[float, ...]:
    together = np.concatenate([cell.samples for cell in cells])
    step = max(1, math.ceil(len(together) / MOST_SAMPLES))
    return tuple(together[::step].tolist())


def _who(options: ContentionOptions, place: Place, *, several: bool) -> str:
    who = role_name(place.device, place.worker, options.workers)
    return f"{options.subjects[place.subject].label} on {who}" if several else who


def _strip(label: str, values: list[float], ratio: Ratio) -> Strip:
    return Strip(label=label, samples=tuple(values), value=ratio.value, low=ratio.low, high=ratio.high)


def timeline(found: Analysis, records: Records) -> list[Element]:
    """Return when each trial ran, a lane a phase, with what the monitor saw above."""
    phases = {phase_trial.record.trial: phase_trial.phase for phase_trial in found.layout.seen}
    shown = [record for record in records if record.trial in phases or record.block == RETIMED]
    if not shown:
        return []
    origin = min(record.window.start_ns for record in shown)
    bars = []
    for lane in (*(phase for phase in WORDS if phase in phases.values()), RETIMED):
        bars += [
            Bar(
                lane=WORDS[lane],
                label=str(block_number(record.block) or ""),
                start_s=(record.window.start_ns - origin) / 1e9,
                end_s=(record.window.end_ns - origin) / 1e9,
                tone="plain" if record.status == "ok" else "bad",
            )
            for record in shown
            if phases.get(record.trial, RETIMED) == lane
        ]
    return [
        Timeline(
            title="When each trial ran",
            name="timeline",
            bars=tuple(bars),
            lines=sensor_lines(records, origin),
            lines_axis=sensor_axis(records),
            note="Numbers are blocks; the order of the phases within each is by lot, and balanced over blocks.",
        )
    ]
