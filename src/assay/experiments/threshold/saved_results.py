"""Read saved results: a run folder, its JSON, or a file of the older tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from assay.core.errors import BadInput
from assay.core.files import read_json
from assay.core.results import Parity, SubjectFacts
from assay.core.values import SCHEMA_VERSION, Subject, first_problem
from assay.experiments.threshold.cells import (
    PathTimes,
    PointMeasurement,
    PointObservations,
    judge_threshold,
)
from assay.experiments.threshold.options import GridPoint, Threshold
from assay.experiments.threshold.results_file import RESULTS_FILE, ThresholdResults
from assay.store.records import verify_file

if TYPE_CHECKING:
    from pathlib import Path

    from assay.experiments.threshold.cells import JudgedThreshold, ParityState
    from assay.experiments.threshold.options import DecideOn
    from assay.experiments.threshold.results_file import ThresholdDevice, ThresholdEntry, ThresholdRow


def parse_subject(label: str) -> Subject:
    """Return a subject of which only the name is known."""
    name, at, impl = label.partition("@")
    return Subject(workload=name if at else label, impl=impl if at else "python")


def build_parity_facts(parity: ParityState, reason: str | None) -> tuple[SubjectFacts, ...]:
    """Return what a file says of a check, as if it had been seen."""
    if parity == "skipped" and reason is None:
        return ()
    passed = {"passed": True, "failed": False, "skipped": None}[parity]
    why = None if passed else reason or "its file says so"
    return (SubjectFacts(subject=1, parity=Parity(passed=passed, reason=why, measure="read from a file")),)


@dataclass(frozen=True)
class SavedThresholds:
    """What a file holds: thresholds with what is known of their points, and where that was measured.

    ``results`` is null for a file of the older tool.
    """

    device: ThresholdDevice
    thresholds: tuple[tuple[Threshold, tuple[PointObservations, ...]], ...]
    decide_on: DecideOn
    measured_at: str | None
    results: ThresholdResults | None
    notes: tuple[str, ...] = ()

    def judge(self, margin: float | None, decide_on: DecideOn) -> list[JudgedThreshold]:
        """Return what is known about each threshold, by another margin where one is given."""
        return [
            judge_threshold(
                threshold if margin is None else threshold.model_copy(update={"margin": margin}),
                observations,
                decide_on,
            )
            for threshold, observations in self.thresholds
        ]


def read_saved(path: Path) -> SavedThresholds:
    """Return the results in a run folder or a file.

    Raises:
        BadInput: It cannot be read, is not whole, or holds something else.
    """
    file = path / RESULTS_FILE if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise BadInput(f"{path} holds no {RESULTS_FILE}: it is not the folder of a finished `assay threshold run`.")
    verify_file(file)
    content = read_json(file)
    if not isinstance(content, dict):
        raise BadInput(f"{file} holds no results: it must be a mapping.")
    if "schema" not in content:
        from assay.compat.threshold import load_results

        return load_results(content, file)
    version = content["schema"]
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise BadInput(f"{file} was written by a newer Assay (schema {version}, here {SCHEMA_VERSION}); update Assay.")
    try:
        return _load_results(ThresholdResults.model_validate(content), file)
    except ValidationError as error:
        raise BadInput(f"{file} is not what this version of Assay writes: {first_problem(error)}.") from None


def _load_results(loaded: ThresholdResults, file: Path) -> SavedThresholds:
    thresholds = []
    for entry in loaded.thresholds:
        rows = [row for row in loaded.results if row.threshold == entry.name]
        if not rows:
            raise BadInput(f"{file} has no row of the threshold {entry.name!r}.")
        thresholds.append(_load_threshold(entry, rows))
    return SavedThresholds(
        loaded.device_info, tuple(thresholds), loaded.thresholds[0].decided_on, loaded.measured_at, loaded
    )


def _load_threshold(entry: ThresholdEntry, rows: list[ThresholdRow]) -> tuple[Threshold, tuple[PointObservations, ...]]:
    reference, fast = parse_subject(entry.reference), parse_subject(entry.fast)
    points = [
        (GridPoint(size=row.size, params=row.params, reference=reference, fast=fast), _load_observations(row))
        for row in rows
    ]
    points += [
        (GridPoint(size=size, params=params, reference=reference, fast=fast), PointObservations())
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


def _load_observations(row: ThresholdRow) -> PointObservations:
    """Return what a row says of its point; times are told as ratios of a reference that takes its median."""
    processes = max((len(timed.log_speedups) for timed in row.times.values()), default=0)
    measurements = []
    for process in range(processes):
        sides = {}
        for time, timed in row.times.items():
            if process < len(timed.log_speedups):
                logs = np.array(timed.log_speedups[process], dtype=np.float64)
                sides[time] = PathTimes(np.full(len(logs), timed.masked_ms * 1e3), timed.masked_ms * 1e3 / np.exp(logs))
        measurements.append(PointMeasurement("", sides))
    return PointObservations(
        tuple(measurements), row.refused, row.cannot, checked=build_parity_facts(row.parity, row.parity_reason)
    )
