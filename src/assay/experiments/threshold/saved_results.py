"""Read saved results: a run folder, its JSON, or a file of the older tool.

The older tool's speedups have no interval: they decide only where they are a quarter above or below the margin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from assay.core.errors import BadInput
from assay.core.files import read_json
from assay.core.plan import Subject
from assay.core.results import Parity, SubjectFacts
from assay.core.values import SCHEMA_VERSION, first_problem
from assay.experiments.threshold.cells import (
    NO_INTERVAL_FACTOR,
    PathTimes,
    PointMeasurement,
    PointObservations,
    judge_threshold,
)
from assay.experiments.threshold.options import GridPoint, Threshold
from assay.experiments.threshold.results_file import RESULTS_FILE, ThresholdDevice, ThresholdResults
from assay.experiments.threshold.spec import DEFAULT_SPEC_FILE, load_thresholds
from assay.store.seal import verify_file
from assay.workloads.nsa.branches import effective_length

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from assay.core.values import Params
    from assay.experiments.threshold.cells import JudgedThreshold, ParityState
    from assay.experiments.threshold.options import DecideOn
    from assay.experiments.threshold.results_file import ThresholdEntry, ThresholdRow
    from assay.experiments.threshold.spec import ThresholdSpec


OlderRow = dict[str, Any]
OLDER_BLOCK, OLDER_STRIDE = 32, 16
"""Of the older tool's compressed branch, where a row does not say."""


def load_older_thresholds(
    content: Mapping[str, Any], file: Path
) -> list[tuple[Threshold, tuple[PointObservations, ...]]]:
    """Return both branches as far as a file has rows of them."""
    rows = content.get("results")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{file} holds no results: it has no list of rows under the key results.")
    passed = content.get("parity_passed")
    parity: ParityState = "passed" if passed is True else "failed" if passed is False else "skipped"
    result = []
    for spec in load_thresholds(DEFAULT_SPEC_FILE):
        mine = [row for row in rows if row.get("branch") == spec.size]
        if mine:
            result.append(
                (_older_threshold(spec, mine, file), tuple(_older_observations(row, parity, file) for row in mine))
            )
    if not result:
        raise BadInput(f"{file}: no row is of the branch sliding or compressed.")
    return result


def load_older_device(content: Mapping[str, Any]) -> ThresholdDevice:
    """Return where it was measured, as far as the file says."""
    info = content.get("device_info")
    values = info if isinstance(info, dict) else {}
    names = ("device_name", "torch_version", "cuda_version")
    return ThresholdDevice(**{name: None if values.get(name) is None else str(values[name]) for name in names})


def _older_threshold(spec: ThresholdSpec, rows: list[OlderRow], file: Path) -> Threshold:
    reference, fast = parse_subject(spec.reference), parse_subject(spec.fast)
    params = [_older_params(row, spec.size, file) for row in rows]
    return Threshold(
        name=spec.name,
        key=spec.key,
        never=spec.never,
        margin=spec.margin,
        axis=spec.size,
        branch="sliding" if spec.size == "sliding" else "compressed",
        points=tuple(GridPoint(size=effective_length(p), params=p, reference=reference, fast=fast) for p in params),
    )


def parse_subject(label: str) -> Subject:
    """Return a subject of which only the name is known."""
    name, at, impl = label.partition("@")
    return Subject(workload=name if at else label, impl=impl if at else "python")


def _older_params(row: OlderRow, branch: str, file: Path) -> Params:
    sizes = {"sequence": row.get("sequence_length")}
    if branch == "sliding":
        sizes["window"] = row.get("window_size")
    else:
        sizes |= {"block": row.get("l") or OLDER_BLOCK, "stride": row.get("d") or OLDER_STRIDE}
    wrong = next((name for name, size in sizes.items() if not isinstance(size, int) or size < 1), None)
    if wrong is not None:
        raise BadInput(f"{file}: a row of the {branch} branch has the {wrong} {sizes[wrong]!r}, which is no size.")
    return dict(sizes)


def _older_observations(row: OlderRow, parity: ParityState, file: Path) -> PointObservations:
    speedup = row.get("speedup")
    if isinstance(speedup, bool) or not isinstance(speedup, int | float) or not math.isfinite(speedup) or speedup <= 0:
        raise BadInput(f"{file}: a row has the speedup {speedup!r}, which is no number above zero.")
    return PointObservations(single=math.log(speedup), checked=build_parity_facts(parity, None))


def build_parity_facts(parity: ParityState, reason: str | None) -> tuple[SubjectFacts, ...]:
    """Return what a file says of a check, as if it had been seen."""
    if parity == "skipped" and reason is None:
        return ()
    passed = {"passed": True, "failed": False, "skipped": None}[parity]
    why = None if passed else reason or "its file says so"
    return (SubjectFacts(subject=1, parity=Parity(passed=passed, reason=why, measure="read from a file")),)


NO_INTERVALS_NOTE = (
    f"These speed-ups carry no interval: one counts only where it is {NO_INTERVAL_FACTOR:g} "
    "times above the margin, or below it."
)


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
        return SavedThresholds(
            load_older_device(content),
            tuple(load_older_thresholds(content, file)),
            "call",
            None,
            None,
            (NO_INTERVALS_NOTE,),
        )
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
