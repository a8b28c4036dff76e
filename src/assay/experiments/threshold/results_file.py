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
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from assay._version import __version__
from assay.core.values import SCHEMA_VERSION, Params, Scalar, Value
from assay.experiments.threshold.cells import ParityState, point_parity
from assay.experiments.threshold.options import DecideOn, TimeKind
from assay.machine.cuda_devices import gpu_targets
from assay.stats.crossover import SizeState, ThresholdKind, isotonic_regression
from assay.store.identity import DTYPE, ISOLATION, Identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from assay.core.values import Subject
    from assay.experiments.threshold.answers import ThresholdAnswer, ThresholdLocation
    from assay.experiments.threshold.cells import JudgedPoint, JudgedThreshold
    from assay.experiments.threshold.options import GridPoint, Threshold, ThresholdOptions
    from assay.machine.model import Machine
    from assay.stats.crossover import SpeedupBound
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
    identity: Identity = {
        "device": {"on": options.device.partition(":")[0]},
        "isolation": {ISOLATION: options.isolation},
    }
    conditions = {"cache": options.cache, "cpu_groups": options.cpu_groups}
    identity["conditions"] = {name: str(value) for name, value in conditions.items() if value is not None}
    for threshold in options.thresholds:
        for aspect, name, value in _threshold_aspects(threshold):
            identity.setdefault(aspect, {})[f"{threshold.name} {name}"] = value
    return identity


def _threshold_aspects(threshold: Threshold) -> Iterator[tuple[Aspect, str, str]]:
    """Give both paths, and what of their parameters and configuration the grid does not vary."""
    first = threshold.points[0]
    for side, subject in (("reference", first.reference), ("fast", first.fast)):
        yield "workload", side, subject.label
        for name, value in _fixed_params(subject, set(first.params)).items():
            yield ("dtype" if name == DTYPE else "parameters"), f"{side} {name}", value
        for name, setting in (subject.config or {}).items():
            yield "configuration", f"{side} {name}", str(setting)


def _fixed_params(subject: Subject, varied: set[str]) -> dict[str, str]:
    return {name: str(value) for name, value in sorted(subject.params.items()) if name not in varied}


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
    return {
        RESULTS_FILE: format_results(build_results(device, answers, options.decide_on, at, build_identity(options)))
    }


def format_results(results_content: ThresholdResults) -> str:
    """Return results as the text of a file: rows and pairs on one line each."""
    text = json.dumps(results_content.as_json(), indent=2, ensure_ascii=False)
    return _NUMBER_LIST.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text) + "\n"


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
    return ThresholdResults(
        assay=__version__,
        measured_at=at,
        device_info=device,
        recommendation=recommend_values(answers),
        parity_passed=all(answer.parity == "passed" for answer in answers),
        identity=identity,
        thresholds=tuple(_build_entry(answer, decide_on) for answer in answers),
        results=tuple(row for answer in answers for row in _build_rows(answer.judged_threshold)),
    )


def recommend_values(answers: Sequence[ThresholdAnswer]) -> dict[str, object]:
    """Return what to write, by the last part of each key as the older tool had it; whole keys where two end alike."""
    ends = [answer.key.rpartition(".")[2] for answer in answers]
    return {
        end if ends.count(end) == 1 else answer.key: answer.value for end, answer in zip(ends, answers, strict=True)
    }


def _build_entry(answer: ThresholdAnswer, decide_on: DecideOn) -> ThresholdEntry:
    threshold, location = answer.judged_threshold.threshold, answer.location
    unmeasured = [
        point
        for point, judged_point in zip(threshold.points, answer.judged_threshold.points, strict=True)
        if not _was_examined(judged_point)
    ]
    measured = [
        cell
        for cell in answer.judged_threshold.cells
        if cell.decisive is not None and math.isfinite(cell.decisive.mean)
    ]
    fit = isotonic_regression(
        [c.decisive.mean for c in measured if c.decisive], [c.decisive.pairs for c in measured if c.decisive]
    )
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
        by_time={time: _store_location(judged_point) for time, judged_point in answer.by_time.items()},
        ranges=answer.ranges,
        fit=tuple((cell.size, round(math.exp(log), 4)) for cell, log in zip(measured, fit, strict=True)),
        why=answer.reasons,
        unmeasured=tuple(point.params for point in unmeasured),
        unmeasured_sizes=tuple(point.size for point in unmeasured),
    )


def _was_examined(judged_point: JudgedPoint) -> bool:
    return (
        judged_point.observations.measured
        or judged_point.observations.refused is not None
        or judged_point.observations.failure is not None
    )


def _store_location(location: ThresholdLocation) -> StoredLocation:
    return StoredLocation(decision=location.decision, size=location.size, low=location.low, high=location.high)


def _build_rows(judged_threshold: JudgedThreshold) -> list[ThresholdRow]:
    named = zip(judged_threshold.threshold.points, judged_threshold.points, strict=True)
    return [
        _build_row(judged_threshold, point, judged_point)
        for point, judged_point in named
        if _was_examined(judged_point)
    ]


def _build_row(judged_threshold: JudgedThreshold, point: GridPoint, judged_point: JudgedPoint) -> ThresholdRow:
    times = {time: time_point(judged_point, time) for time in judged_point.observations.times}
    worst = _find_worst_time(judged_point, times)
    failing = [
        facts.parity.reason for facts in judged_point.observations.checked if facts.parity and not facts.parity.passed
    ]
    return ThresholdRow(
        threshold=judged_threshold.threshold.name,
        branch=judged_threshold.threshold.branch or judged_threshold.threshold.name,
        sequence_length=_whole_number(point.params.get("sequence")),
        window_size=_whole_number(point.params.get("window")),
        speedup=worst.speedup if worst else None,
        masked_ms=worst.masked_ms if worst else None,
        fa2_ms=worst.fa2_ms if worst else None,
        size=point.size,
        low=worst.low if worst else None,
        high=worst.high if worst else None,
        state=judged_point.decisive.state if judged_point.decisive else None,
        parity=point_parity(judged_point.observations),
        parity_reason=next(iter(failing), None),
        refused=judged_point.observations.refused,
        cannot=judged_point.observations.failure,
        params=point.params,
        times=times,
    )


def _find_worst_time(judged_point: JudgedPoint, times: Mapping[TimeKind, TimedPoint]) -> TimedPoint | None:
    """Return the time that is decided on: of those that count, the one with the lowest speed-up."""
    counted = [
        timed
        for time, timed in times.items()
        if judged_point.bounds[time] is None or _is_decisive(judged_point.bounds[time], judged_point.decisive)
    ]
    return min(counted or list(times.values()), key=lambda timed: timed.speedup, default=None)


def _is_decisive(bound: SpeedupBound | None, decisive: SpeedupBound | None) -> bool:
    return bound is not None and decisive is not None and bound.mean == decisive.mean


def time_point(judged_point: JudgedPoint, time: TimeKind) -> TimedPoint:
    """Return a point by one time."""
    sides, bound, logs = (
        judged_point.observations.sides(time),
        judged_point.bounds[time],
        judged_point.observations.logs(time),
    )
    if sides is None:
        raise ValueError(f"{time} was not taken")
    return TimedPoint(
        speedup=math.exp(bound.mean if bound else float(np.mean(np.concatenate(logs)))),
        low=math.exp(bound.low) if bound else None,
        high=math.exp(bound.high) if bound else None,
        masked_ms=float(np.median(sides.reference_us)) / 1e3,
        fa2_ms=float(np.median(sides.fast_us)) / 1e3,
        log_speedups=tuple(tuple(round(float(log), LOG_DIGITS) for log in process) for process in logs),
    )


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
