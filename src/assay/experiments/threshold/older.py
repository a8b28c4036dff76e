"""The results of a run in the older tool's form, with intervals, decisions and every pair beside it."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING

import numpy as np

from assay._version import __version__
from assay.experiments.threshold.answers import answer
from assay.experiments.threshold.checked import parity_at
from assay.experiments.threshold.form import DeviceInfo, Entry, Placed, Results, Row, Timed
from assay.experiments.threshold.identity import identity_of
from assay.experiments.threshold.plan import walk
from assay.isolation.targets import targets
from assay.stats.crossover import isotonic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.experiments.threshold.answers import Answer, Place
    from assay.experiments.threshold.cells import Judged, PointJudged
    from assay.experiments.threshold.options import DecideOn, Point, ThresholdOptions, Time
    from assay.machine.model import Machine
    from assay.stats.crossover import Bound
    from assay.store.identity import Identity
    from assay.store.records import Records

FILE = "older/thresholds.json"
DIGITS = 6
"""Of a logarithm: a millionth of a speed-up."""

_NUMBERS = re.compile(r"\[\s+(-?[\d.e+-]+(?:,\s+-?[\d.e+-]+)*)\s+\]")
"""A list of numbers, which is put on one line."""


def files(machine: Machine, options: ThresholdOptions, records: Records) -> dict[str, str]:
    """Return the older tool's file by its path within the run folder."""
    answers = [
        answer(judged_threshold, options.decide_on) for judged_threshold in walk(options, records).judged(options)
    ]
    at = min((record.window.started_at for record in records), default=None)
    device = device_info(machine, options.device)
    return {FILE: as_text(results(device, answers, options.decide_on, at, identity_of(options)))}


def as_text(found: Results) -> str:
    """Return results as the text of a file: rows and pairs on one line each."""
    text = json.dumps(found.as_json(), indent=2, ensure_ascii=False)
    return _NUMBERS.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text) + "\n"


def device_info(machine: Machine, device: str) -> DeviceInfo:
    """Return where it is measured, under the older tool's names."""
    torch = machine.versions.get("torch")
    built = re.search(r"\+cu(\d+)(\d)$", torch or "")
    target = targets(machine).get(device)
    return DeviceInfo(
        device_name=machine.cpu_model if target is None else target.title,
        torch_version=torch,
        cuda_version=None if target is None else f"{built[1]}.{built[2]}" if built else machine.cuda_driver,
        device=device,
        uuid=None if target is None else target.uuid,
        driver_version=None if target is None else machine.driver,
    )


def results(
    device: DeviceInfo, answers: Sequence[Answer], decide_on: DecideOn, at: str | None, identity: Identity | None
) -> Results:
    """Return answers and what they rest on."""
    return Results(
        assay=__version__,
        measured_at=at,
        device_info=device,
        recommendation=recommendation(answers),
        parity_passed=all(answer.parity == "passed" for answer in answers),
        identity=identity,
        thresholds=tuple(_entry(answer, decide_on) for answer in answers),
        results=tuple(row for answer in answers for row in _rows(answer.judged)),
    )


def recommendation(answers: Sequence[Answer]) -> dict[str, object]:
    """Return what to write, by the last part of each key as the older tool had it; whole keys where two end alike."""
    ends = [answer.key.rpartition(".")[2] for answer in answers]
    return {
        end if ends.count(end) == 1 else answer.key: answer.value for end, answer in zip(ends, answers, strict=True)
    }


def _entry(found: Answer, decide_on: DecideOn) -> Entry:
    threshold, location = found.judged.threshold, found.place
    unmeasured = [
        point
        for point, judged_point in zip(threshold.points, found.judged.points, strict=True)
        if not _looked_at(judged_point)
    ]
    measured = [cell for cell in found.judged.cells if cell.decisive is not None and math.isfinite(cell.decisive.mean)]
    fit = isotonic(
        [c.decisive.mean for c in measured if c.decisive], [c.decisive.pairs for c in measured if c.decisive]
    )
    return Entry(
        name=found.name,
        key=found.key,
        decision=location.decision,
        value=found.value,
        low=location.low,
        high=location.high,
        margin=threshold.margin,
        decided_on=decide_on,
        never=threshold.never,
        axis=threshold.axis,
        branch=threshold.branch,
        reference=threshold.points[0].reference.label,
        fast=threshold.points[0].fast.label,
        parity=found.parity,
        by_time={time: _placed(judged_point) for time, judged_point in found.by_time.items()},
        ranges=found.ranges,
        fit=tuple((cell.size, round(math.exp(log), 4)) for cell, log in zip(measured, fit, strict=True)),
        why=found.why,
        unmeasured=tuple(point.params for point in unmeasured),
        unmeasured_sizes=tuple(point.size for point in unmeasured),
    )


def _looked_at(each: PointJudged) -> bool:
    return each.seen.measured or each.seen.refused is not None or each.seen.cannot is not None


def _placed(place: Place) -> Placed:
    return Placed(decision=place.decision, size=place.size, low=place.low, high=place.high)


def _rows(judged: Judged) -> list[Row]:
    named = zip(judged.threshold.points, judged.points, strict=True)
    return [_row(judged, point, judged_point) for point, judged_point in named if _looked_at(judged_point)]


def _row(judged: Judged, point: Point, each: PointJudged) -> Row:
    times = {time: timed(each, time) for time in each.seen.told}
    worst = _worst(each, times)
    failing = [facts.parity.reason for facts in each.seen.checked if facts.parity and not facts.parity.passed]
    return Row(
        threshold=judged.threshold.name,
        branch=judged.threshold.branch or judged.threshold.name,
        sequence_length=_whole(point.params.get("sequence")),
        window_size=_whole(point.params.get("window")),
        speedup=worst.speedup if worst else None,
        masked_ms=worst.masked_ms if worst else None,
        fa2_ms=worst.fa2_ms if worst else None,
        size=point.size,
        low=worst.low if worst else None,
        high=worst.high if worst else None,
        state=each.decisive.state if each.decisive else None,
        parity=parity_at(each.seen),
        parity_reason=next(iter(failing), None),
        refused=each.seen.refused,
        cannot=each.seen.cannot,
        params=point.params,
        times=times,
    )


def _worst(each: PointJudged, times: Mapping[Time, Timed]) -> Timed | None:
    """Return the time that is decided on: of those that count, the one with the lowest speed-up."""
    counted = [
        timed for time, timed in times.items() if each.bounds[time] is None or _counts(each.bounds[time], each.decisive)
    ]
    return min(counted or list(times.values()), key=lambda timed: timed.speedup, default=None)


def _counts(bound: Bound | None, decisive: Bound | None) -> bool:
    return bound is not None and decisive is not None and bound.mean == decisive.mean


def timed(each: PointJudged, time: Time) -> Timed:
    """Return a point by one time."""
    sides, bound, logs = each.seen.sides(time), each.bounds[time], each.seen.logs(time)
    if sides is None:
        raise ValueError(f"{time} was not taken")
    return Timed(
        speedup=math.exp(bound.mean if bound else float(np.mean(np.concatenate(logs)))),
        low=math.exp(bound.low) if bound else None,
        high=math.exp(bound.high) if bound else None,
        masked_ms=float(np.median(sides.reference_us)) / 1e3,
        fa2_ms=float(np.median(sides.fast_us)) / 1e3,
        log_speedups=tuple(tuple(round(float(log), DIGITS) for log in process) for process in logs),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
