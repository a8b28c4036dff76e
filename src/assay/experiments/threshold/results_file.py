"""``thresholds.json``, the results of a run: speed-ups with intervals, decisions, every pair, and an identity.

A row has ``branch``, ``sequence_length``, ``window_size``, ``speedup``, ``masked_ms`` (the reference) and ``fa2_ms``
(the fast path), so that readers of the older tool's file understand it. ``recommendation`` has a value for each key's
last part; null: nothing to write. The identity is what must agree for two results to be comparable: both paths, the
parameters that do not vary, and how they were measured. ``threshold apply`` decides from this file again.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, ValidationError

from assay._version import __version__
from assay.core.errors import BadInput
from assay.core.files import read_json
from assay.core.results import Parity, SubjectFacts
from assay.core.values import SCHEMA_VERSION, Params, Scalar, Subject, Value, first_problem
from assay.experiments.threshold.cells import (
    ParityState,
    PathTimes,
    PointMeasurement,
    PointObservations,
    judge_threshold,
)
from assay.experiments.threshold.spec import DecideOn, GridPoint, Threshold, TimeKind
from assay.machine.devices import gpu_targets
from assay.stats.crossover import SizeState, ThresholdKind, isotonic_regression
from assay.store.identity import DTYPE, ISOLATION, Identity
from assay.store.records import verify_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from assay.experiments.threshold.answers import ThresholdAnswer
    from assay.experiments.threshold.cells import JudgedPoint, JudgedThreshold
    from assay.experiments.threshold.spec import ThresholdOptions
    from assay.machine.model import Machine
    from assay.store.identity import Aspect
    from assay.store.records import Records


SizeValue = int | float


class ThresholdDevice(Value):
    """Where it was measured."""

    device_name: str | None
    torch_version: str | None
    cuda_version: str | None
    device: str | None = None
    uuid: str | None = None
    driver_version: str | None = None


class TimedPoint(Value):
    """A point by one time: medians, the mean speed-up with its bounds, and every pair of every process."""

    speedup: float
    low: float | None = Field(description="Null before the first planned look.")
    high: float | None
    masked_ms: float
    fa2_ms: float
    log_speedups: tuple[tuple[float, ...], ...]


class ThresholdRow(Value):
    """One point of a grid that was looked at; ``speedup`` and the times beside it are of the time that is worst."""

    threshold: str
    branch: str
    sequence_length: int | None
    window_size: int | None
    speedup: float | None
    masked_ms: float | None
    fa2_ms: float | None
    size: SizeValue
    low: float | None
    high: float | None
    state: SizeState | None
    parity: ParityState
    parity_reason: str | None = None
    refused: str | None = Field(default=None, description="Why it could not be measured, and does not count.")
    cannot: str | None = Field(default=None, description="Why the fast path does not work there.")
    params: Params
    times: dict[TimeKind, TimedPoint] = Field(default_factory=dict)


class StoredLocation(Value):
    """Where a threshold is by one time."""

    decision: ThresholdKind
    size: SizeValue | None
    low: SizeValue | None
    high: SizeValue | None


class ThresholdEntry(Value):
    """One threshold and its answer."""

    name: str
    key: str
    decision: ThresholdKind
    value: Scalar
    low: SizeValue | None
    high: SizeValue | None
    margin: float = Field(gt=1)
    decided_on: DecideOn
    never: Scalar
    axis: str
    branch: Literal["sliding", "compressed"] | None
    reference: str
    fast: str
    parity: ParityState
    by_time: dict[TimeKind, StoredLocation]
    ranges: tuple[tuple[SizeValue, SizeValue], ...] = ()
    fit: tuple[tuple[SizeValue, float], ...] = Field(default=(), description="Sizes and the nearest rising speed-ups.")
    why: tuple[str, ...] = ()
    unmeasured: tuple[Params, ...] = Field(default=(), description="Points of the grid that were not looked at.")
    unmeasured_sizes: tuple[SizeValue, ...] = ()


class ThresholdResults(Value):
    """The content of ``thresholds.json``."""

    schema_version: int = Field(
        default=SCHEMA_VERSION, le=SCHEMA_VERSION, serialization_alias="schema", validation_alias="schema"
    )
    assay: str
    measured_at: str | None
    device_info: ThresholdDevice
    recommendation: dict[str, Scalar]
    parity_passed: bool
    identity: Identity | None = Field(
        default=None, description="What must agree for two results to be comparable, by aspect and name."
    )
    thresholds: tuple[ThresholdEntry, ...] = Field(min_length=1)
    results: tuple[ThresholdRow, ...]


COMMON_NAMES = frozenset({"on", ISOLATION, "cache", "cpu_groups"})
"""Names of an identity that are of all thresholds; those of one begin with its name."""


def build_identity(options: ThresholdOptions) -> Identity:
    """Return all that must agree for thresholds to be comparable, but the device, the margin and the sizes."""
    conditions = {"cache": options.cache, "cpu_groups": options.cpu_groups}
    identity: Identity = {
        "device": {"on": options.device.partition(":")[0]},
        "isolation": {ISOLATION: options.isolation},
        "conditions": {name: str(value) for name, value in conditions.items() if value is not None},
    }
    for threshold in options.thresholds:
        for aspect, name, value in _threshold_aspects(threshold):
            identity.setdefault(aspect, {})[f"{threshold.name} {name}"] = value
    return identity


def _threshold_aspects(threshold: Threshold) -> Iterator[tuple[Aspect, str, str]]:
    """Give both paths, and what of their parameters and configuration the grid does not vary."""
    first = threshold.points[0]
    for side, subject in (("reference", first.reference), ("fast", first.fast)):
        yield "workload", side, subject.label
        for name, param in sorted(subject.params.items()):
            if name not in first.params:
                yield ("dtype" if name == DTYPE else "parameters"), f"{side} {name}", str(param)
        for name, setting in (subject.config or {}).items():
            yield "configuration", f"{side} {name}", str(setting)


def select_identity(identity: Identity, names: set[str]) -> Identity:
    """Return what of an identity is of some thresholds, or of all."""
    return {
        aspect: {
            name: value
            for name, value in values.items()
            if name in COMMON_NAMES or any(name.startswith(f"{threshold} ") for threshold in names)
        }
        for aspect, values in identity.items()
    }


RESULTS_FILE = "thresholds.json"
LOG_DIGITS = 6
"""Of a logarithm: a millionth of a speed-up."""

_NUMBER_LIST = re.compile(r"\[\s+(-?[\d.e+-]+(?:,\s+-?[\d.e+-]+)*)\s+\]")
"""A list of numbers, which is put on one line."""


def build_files(
    machine: Machine, options: ThresholdOptions, answers: Sequence[ThresholdAnswer], records: Records
) -> dict[str, str]:
    """Return the results file by its path within the run folder."""
    at = min((record.window.started_at for record in records), default=None)
    device = describe_device(machine, options.device)
    results = build_results(device, answers, options.decide_on, at, build_identity(options))
    text = json.dumps(results.as_json(), indent=2, ensure_ascii=False)
    return {RESULTS_FILE: _NUMBER_LIST.sub(lambda match: f"[{' '.join(match[1].split())}]", text) + "\n"}


def describe_device(machine: Machine, device: str) -> ThresholdDevice:
    """Return where it is measured, under the older tool's names."""
    torch = machine.versions.get("torch")
    built = re.search(r"\+cu(\d+)(\d)$", torch or "")
    target = gpu_targets(machine).get(device)
    return ThresholdDevice(
        device_name=machine.cpu_model if target is None else target.title,
        torch_version=torch,
        cuda_version=None if target is None else f"{built[1]}.{built[2]}" if built else machine.cuda_driver,
        device=device,
        uuid=None if target is None else target.uuid,
        driver_version=None if target is None else machine.driver,
    )


def build_results(
    device: ThresholdDevice,
    answers: Sequence[ThresholdAnswer],
    decide_on: DecideOn,
    at: str | None,
    identity: Identity | None,
) -> ThresholdResults:
    """Return answers and what they rest on."""
    # What to write, by the last part of each key as the older tool had it; whole keys where two end alike.
    ends = [answer.key.rpartition(".")[2] for answer in answers]
    keys = [end if ends.count(end) == 1 else answer.key for end, answer in zip(ends, answers, strict=True)]
    return ThresholdResults(
        assay=__version__,
        measured_at=at,
        device_info=device,
        recommendation={key: answer.value for key, answer in zip(keys, answers, strict=True)},
        parity_passed=all(answer.parity == "passed" for answer in answers),
        identity=identity,
        thresholds=tuple(_build_entry(answer, decide_on) for answer in answers),
        results=tuple(
            _build_row(answer.judgement.threshold, point)
            for answer in answers
            for point in answer.judgement.points
            if _was_examined(point)
        ),
    )


def _build_entry(answer: ThresholdAnswer, decide_on: DecideOn) -> ThresholdEntry:
    threshold, location = answer.judgement.threshold, answer.location
    unmeasured = [one.point for one in answer.judgement.points if not _was_examined(one)]
    measured = [
        (cell.size, cell.decisive)
        for cell in answer.judgement.cells
        if cell.decisive is not None and math.isfinite(cell.decisive.mean)
    ]
    fit = isotonic_regression([bound.mean for _, bound in measured], [bound.pairs for _, bound in measured])
    return ThresholdEntry(
        name=answer.name,
        key=answer.key,
        decision=location.decision,
        value=answer.value,
        low=location.low,
        high=location.high,
        margin=threshold.margin,
        decided_on=decide_on,
        never=threshold.never,
        axis=threshold.axis,
        branch=threshold.branch,
        reference=threshold.points[0].reference.label,
        fast=threshold.points[0].fast.label,
        parity=answer.parity,
        by_time={
            time: StoredLocation(decision=at.decision, size=at.size, low=at.low, high=at.high)
            for time, at in answer.by_time.items()
        },
        ranges=answer.ranges,
        fit=tuple((size, round(math.exp(log), 4)) for (size, _), log in zip(measured, fit, strict=True)),
        why=answer.reasons,
        unmeasured=tuple(point.params for point in unmeasured),
        unmeasured_sizes=tuple(point.size for point in unmeasured),
    )


def _was_examined(judged_point: JudgedPoint) -> bool:
    observations = judged_point.observations
    return observations.measured or observations.refused is not None or observations.failure is not None


def _build_row(threshold: Threshold, judged_point: JudgedPoint) -> ThresholdRow:
    point, observations = judged_point.point, judged_point.observations
    times = {time: time_point(judged_point, time) for time in observations.times}
    # Of the times that are decided on, the one with the lowest speed-up.
    decisive = [
        timed
        for time, timed in times.items()
        if (bound := judged_point.bounds[time]) is None
        or (judged_point.decisive and bound.mean == judged_point.decisive.mean)
    ]
    worst = min(decisive or times.values(), key=lambda timed: timed.speedup, default=None)
    of_worst = ("speedup", "masked_ms", "fa2_ms", "low", "high")
    return ThresholdRow(
        threshold=threshold.name,
        branch=threshold.branch or threshold.name,
        sequence_length=_whole_number(point.params.get("sequence")),
        window_size=_whole_number(point.params.get("window")),
        size=point.size,
        state=judged_point.decisive.state if judged_point.decisive else None,
        parity=observations.parity,
        parity_reason=next((check.reason for check in observations.checks if not check.passed), None),
        refused=observations.refused,
        cannot=observations.failure,
        params=point.params,
        times=times,
        **{name: getattr(worst, name, None) for name in of_worst},
    )


def time_point(judged_point: JudgedPoint, time: TimeKind) -> TimedPoint:
    """Return a point by one time that was taken of it."""
    bound, logs = judged_point.bounds[time], judged_point.observations.logs(time)
    sides = [one.times[time] for one in judged_point.observations.measurements if time in one.times]
    return TimedPoint(
        speedup=math.exp(bound.mean if bound else float(np.mean(np.concatenate(logs)))),
        low=math.exp(bound.low) if bound else None,
        high=math.exp(bound.high) if bound else None,
        masked_ms=float(np.median(np.concatenate([side.reference_us for side in sides]))) / 1e3,
        fa2_ms=float(np.median(np.concatenate([side.fast_us for side in sides]))) / 1e3,
        log_speedups=tuple(tuple(round(float(log), LOG_DIGITS) for log in process) for process in logs),
    )


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


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
        update = {} if margin is None else {"margin": margin}
        return [
            judge_threshold(threshold.model_copy(update=update), observations, decide_on)
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
    """Return what a row says of its point; its times are ratios to a reference that takes its median."""
    processes = max((len(timed.log_speedups) for timed in row.times.values()), default=0)
    by_process: list[dict[TimeKind, PathTimes]] = [{} for _ in range(processes)]
    for time, timed in row.times.items():
        for sides, log_speedups in zip(by_process, timed.log_speedups, strict=False):
            logs = np.array(log_speedups, dtype=np.float64)
            sides[time] = PathTimes(np.full(len(logs), timed.masked_ms * 1e3), timed.masked_ms * 1e3 / np.exp(logs))
    measurements = tuple(PointMeasurement("", sides) for sides in by_process)
    checked = build_parity_facts(row.parity, row.parity_reason)
    return PointObservations(measurements, row.refused, row.cannot, checked=checked)
