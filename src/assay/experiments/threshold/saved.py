"""Results that are there, read back: a run folder, its JSON, or what the older tool wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from assay.core.durable import read_json
from assay.core.errors import BadInput
from assay.core.values import SCHEMA_VERSION, first_problem
from assay.experiments.threshold import saved_older
from assay.experiments.threshold.cells import FAR, judge
from assay.experiments.threshold.form import Results
from assay.experiments.threshold.measured import Seen, Sides, Taken
from assay.experiments.threshold.older import FILE
from assay.experiments.threshold.options import Point, Threshold
from assay.store.seal import verify_file

if TYPE_CHECKING:
    from pathlib import Path

    from assay.experiments.threshold.cells import Judged
    from assay.experiments.threshold.form import DeviceInfo, Entry, Row
    from assay.experiments.threshold.options import DecideOn

NO_INTERVALS = (
    f"These speed-ups carry no interval: one counts only where it is {FAR:g} times above the margin, or below it."
)


@dataclass(frozen=True)
class Saved:
    """What a file holds: thresholds with what is known of their points, and where that was measured.

    ``results`` is null for a file of the older tool.
    """

    device: DeviceInfo
    thresholds: tuple[tuple[Threshold, tuple[Seen, ...]], ...]
    decide_on: DecideOn
    measured_at: str | None
    results: Results | None
    notes: tuple[str, ...] = ()

    def judged(self, margin: float | None, decide_on: DecideOn) -> list[Judged]:
        """Return what is known about each threshold, by another margin where one is given."""
        return [
            judge(
                threshold if margin is None else threshold.model_copy(update={"margin": margin}),
                observations,
                decide_on,
            )
            for threshold, observations in self.thresholds
        ]


def read(path: Path) -> Saved:
    """Return the results in a run folder or a file.

    Raises:
        BadInput: It cannot be read, is not whole, or holds something else.
    """
    file = path / FILE if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise BadInput(f"{path} holds no {FILE}: it is not the folder of a finished `assay threshold run`.")
    verify_file(file)
    content = read_json(file)
    if not isinstance(content, dict):
        raise BadInput(f"{file} holds no results: it must be a mapping.")
    if "schema" not in content:
        return Saved(
            saved_older.device_of(content),
            tuple(saved_older.thresholds(content, file)),
            "call",
            None,
            None,
            (NO_INTERVALS,),
        )
    version = content["schema"]
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise BadInput(f"{file} was written by a newer Assay (schema {version}, here {SCHEMA_VERSION}); update Assay.")
    try:
        return _ours(Results.model_validate(content), file)
    except ValidationError as error:
        raise BadInput(f"{file} is not what this version of Assay writes: {first_problem(error)}.") from None


def _ours(found: Results, file: Path) -> Saved:
    thresholds = []
    for entry in found.thresholds:
        rows = [row for row in found.results if row.threshold == entry.name]
        if not rows:
            raise BadInput(f"{file} has no row of the threshold {entry.name!r}.")
        thresholds.append(_threshold(entry, rows))
    return Saved(found.device_info, tuple(thresholds), found.thresholds[0].decided_on, found.measured_at, found)


def _threshold(entry: Entry, rows: list[Row]) -> tuple[Threshold, tuple[Seen, ...]]:
    reference, fast = saved_older.subject_of(entry.reference), saved_older.subject_of(entry.fast)
    points = [(Point(size=row.size, params=row.params, reference=reference, fast=fast), _seen(row)) for row in rows]
    points += [
        (Point(size=size, params=params, reference=reference, fast=fast), Seen())
        for params, size in zip(entry.unmeasured, entry.unmeasured_sizes, strict=False)
    ]
    threshold = Threshold(
        name=entry.name,
        key=entry.key,
        never=entry.never,
        margin=entry.margin,
        axis=entry.axis,
        branch=entry.branch,
        points=tuple(point for point, _ in points),
    )
    return threshold, tuple(observations for _, observations in points)


def _seen(row: Row) -> Seen:
    """Return what a row says of its point; times are told as ratios of a reference that takes its median."""
    processes = max((len(timed.log_speedups) for timed in row.times.values()), default=0)
    measurements = []
    for process in range(processes):
        sides = {}
        for time, timed in row.times.items():
            if process < len(timed.log_speedups):
                logs = np.array(timed.log_speedups[process], dtype=np.float64)
                sides[time] = Sides(np.full(len(logs), timed.masked_ms * 1e3), timed.masked_ms * 1e3 / np.exp(logs))
        measurements.append(Taken("", sides))
    return Seen(
        tuple(measurements), row.refused, row.cannot, checked=saved_older.checked(row.parity, row.parity_reason)
    )
