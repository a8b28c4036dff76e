"""From records to numbers: each measure of each meeting in each block."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from assay.experiments.matrix.effects import MEASURES, measure
from assay.experiments.matrix.plan import VICTIM, by_trial
from assay.experiments.times import TIMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.results import Record
    from assay.experiments.matrix.effects import Measure, Samples
    from assay.experiments.matrix.options import MatrixOptions
    from assay.experiments.matrix.plan import Meeting
    from assay.store.records import Records

ASKED = tuple(quantity for quantity in TIMES if quantity != "span_us")
"""What the kernels take and what a caller waits: an aggressor may hit the one and spare the other."""


class Row(NamedTuple):
    """One victim on one device, in one of its times."""

    victim: int
    device: str
    quantity: str


class Reading(NamedTuple):
    """What was measured of a row in one phase, beside one aggressor or none."""

    row: Row
    phase: str
    aggressor: str | None
    measure: Measure


Readings = dict[Reading, dict[str, float]]
"""Each measure by block."""


def met(options: MatrixOptions, records: Records) -> list[tuple[Meeting, Record]]:
    """Return every record with each meeting it is of, in the order they were taken."""
    planned = by_trial(options, options.repeat)
    return [(meeting, record) for record in records for meeting in planned.get(record.trial, ())]


def rows_of(pairs: list[tuple[Meeting, Record]]) -> tuple[Row, ...]:
    """Return the rows of the matrix: each victim on each device, in each time that was taken of it."""
    quantities_by_device: dict[tuple[int, str], set[str]] = defaultdict(set)
    for meeting, record in pairs:
        if record.status == "ok":
            quantities_by_device[meeting.victim, meeting.device] |= {
                s.quantity for s in record.series if s.role == VICTIM
            }
    return tuple(
        Row(victim, device, quantity)
        for (victim, device), quantities in sorted(quantities_by_device.items())
        for quantity in ASKED
        if quantity in quantities
    )


def samples_of(options: MatrixOptions, records: Records, record: Record, row: Row) -> list[Samples]:
    """Return a victim's samples of one time, an array for each process."""
    subject_index = row.victim if options.in_turns else 0
    series = [s for s in record.series if (s.role, s.quantity, s.subject) == (VICTIM, row.quantity, subject_index)]
    return [records.samples(s) for s in series]


def readings(
    options: MatrixOptions, records: Records, pairs: list[tuple[Meeting, Record]], rows: tuple[Row, ...]
) -> Readings:
    """Return each measure of each row, phase and aggressor, by block; what cannot be told is left out."""
    values_by_reading: Readings = defaultdict(dict)
    for meeting, record in pairs:
        if record.status != "ok":
            continue
        for row in rows:
            if (row.victim, row.device) != (meeting.victim, meeting.device):
                continue
            for samples in samples_of(options, records, record, row):
                for what in MEASURES:
                    value = measure(samples, what)
                    if value is not None:
                        values_by_reading[Reading(row, meeting.phase, meeting.aggressor, what)][record.block] = value
    return dict(values_by_reading)


def of(found: Mapping[Reading, dict[str, float]], reading: Reading) -> dict[str, float]:
    """Return a reading by block; empty where it was never taken."""
    return found.get(reading, {})
