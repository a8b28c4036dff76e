"""What a sweep rests on: what the sensors leave open, how steady it was, and what was seen and noted of each trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.core.page import Text
from assay.experiments.notes import notes_table
from assay.experiments.power.sweep.readings import readings, taken
from assay.experiments.power.sweep.words import percent, step_text
from assay.experiments.watched import watched_table

if TYPE_CHECKING:
    from assay.core.page import Element
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.store.records import Records

MOST_NAMED = 3


def grounds(options: SweepOptions, records: Records) -> tuple[Element, ...]:
    """Return the words and tables behind the curves."""
    labels = {
        record.trial: f"{record.block.replace('-', ' ')}, {step_text(options, options.points[visit.point].setting)}"
        + (f" on {', '.join(visit.devices)}" if len(options.devices) > len(visit.devices) else "")
        for visit, record in taken(options, records)
    }
    return (
        *_sensor(options, records),
        *_settled(options, records, labels),
        *watched_table(records, labels),
        *notes_table(records, labels),
    )


def _sensor(options: SweepOptions, records: Records) -> list[Element]:
    """Say how much of a trial's energy its sensor leaves open, beside what the repeats show."""
    halves = [r.energy_j.relative_half_width for r in readings(options, records) if r.energy_j is not None]
    present = [half for half in halves if half is not None]
    if not present:
        return []
    open_share = percent(float(np.median(present)))
    text = f"Beside chance, the sensor leaves ±{open_share} of the energy of a trial open"
    return [Text(text=f"{text}; what is common to all steps cancels between them. Longer trials leave less open.")]


def _settled(options: SweepOptions, records: Records, labels: dict[str, str]) -> list[Element]:
    """Say which trials were timed before clocks and heat were steady."""
    on_gpu = any(device.startswith("cuda") for device in options.devices)
    waited = [record for record in records if record.settled is not None] if on_gpu else []
    restless = [labels.get(r.trial, r.block) for r in waited if r.settled is not None and not r.settled.steady]
    if not restless:
        return []
    more = len(restless) - MOST_NAMED
    named = "; ".join(restless[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    text = f"In {len(restless)} of {len(waited)} trials clocks and heat were not steady after {options.settle_s:g} s"
    return [Text(text=f"{text}: {named}. A longer --settle waits for them.", tone="unsure")]
