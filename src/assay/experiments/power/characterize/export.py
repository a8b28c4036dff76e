"""The files of a study: every GPU in every case, and the trace of every kernel with the sensor readings during it.

kernels  ├──── 0 ────┤├──── 1 ────┤├─2─┤├─3─┤
readings   ·    ·    ·    ·    ·     ·           the mean of those within; else the nearest, if it is near enough

Readings are used as they were read: one may be an average of the last second, and nothing is shifted for a sensor's
lag. Only one trial is held in memory at a time, so that a run of any length can be traced.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from datetime import datetime
from itertools import compress
from math import isnan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from assay.experiments.power.characterize.findings import gpu_case_facts
from assay.experiments.power.characterize.plan import build_trial, cases_by_trial
from assay.experiments.power.rows import GPUS_FILE, rows_to_csv, rows_to_json_lines, write_csv
from assay.experiments.reporting import TIME_QUANTITIES
from assay.machine.devices import gpu_targets
from assay.monitor.samples import GpuSample, RecordingHeader
from assay.timing.continuous import START_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Record, Series
    from assay.core.values import Role
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.experiments.power.characterize.plan import PlacedCase
    from assay.experiments.power.characterize.study import PowerStudy
    from assay.machine.model import Machine
    from assay.monitor.samples import RecordingLine
    from assay.store.records import Records

    Floats = NDArray[np.float64]
    Moments = NDArray[np.int64]

SENSORS = (
    "sm_mhz",
    "memory_mhz",
    "temperature_c",
    "power_instant_w",
    "power_average_w",
    "power_usage_w",
    "utilisation_percent",
    "memory_utilisation_percent",
)
MAX_GAP_NS = 250_000_000
"""A reading farther from a kernel than this says nothing of it, unless readings are rarer by themselves."""
NO_THROTTLING = "none"
"""Nothing held the clock back; null: the GPU does not report it."""


@dataclass(frozen=True)
class SensorReadings:
    """What was read of one GPU, in order: when, in ns of the host's monotonic clock, and each quantity (NaN: not)."""

    t_ns: Moments
    values: dict[str, Floats]
    throttle: tuple[tuple[str, ...] | None, ...]
    near_ns: int = MAX_GAP_NS


def collect_readings(lines: Iterable[RecordingLine], gpu: int) -> SensorReadings:
    """Return what was read of one GPU, by its number."""
    near_ns, samples = MAX_GAP_NS, []
    for line in lines:
        if isinstance(line, RecordingHeader):
            near_ns = max(MAX_GAP_NS, round(1.5e9 * line.interval_s))
        elif isinstance(line, GpuSample) and line.gpu == gpu:
            samples.append(line)
    samples.sort(key=lambda sample: sample.t_ns)
    return SensorReadings(
        t_ns=np.array([sample.t_ns for sample in samples], dtype=np.int64),
        values={name: np.array([getattr(sample, name) for sample in samples], dtype=np.float64) for name in SENSORS},
        throttle=tuple(sample.throttle for sample in samples),
        near_ns=near_ns,
    )


def overlay_sensors(readings: SensorReadings, start_ns: Moments, end_ns: Moments) -> dict[str, Floats]:
    """Return each quantity for each kernel, given from when to when it ran; NaN where no reading was near."""
    spans = start_ns, end_ns
    return {name: _overlay(readings.t_ns, values, readings.near_ns, spans) for name, values in readings.values.items()}


def _overlay(t_ns: Moments, values: Floats, near_ns: int, spans: tuple[Moments, Moments]) -> Floats:
    """Return the mean of the readings within each span, else the nearest one that is near enough, else NaN."""
    start_ns, end_ns = spans
    finite = np.isfinite(values)
    t_ns, values = t_ns[finite], values[finite]
    if not len(t_ns):
        return np.full(len(start_ns), np.nan)
    first, behind = np.searchsorted(t_ns, start_ns, "left"), np.searchsorted(t_ns, end_ns, "right")
    sums = np.concatenate([[0.0], np.cumsum(values)])
    within = (sums[behind] - sums[first]) / np.maximum(behind - first, 1)
    index, gap_ns = _nearest_reading(t_ns, start_ns, end_ns)
    return np.where(behind > first, within, np.where(gap_ns <= near_ns, values[index], np.nan))


def _nearest_reading(t_ns: Moments, start_ns: Moments, end_ns: Moments) -> tuple[Moments, Moments]:
    """Return for each kernel the reading nearest to it, and how far it is from its nearer edge."""
    after = np.searchsorted(t_ns, start_ns).clip(0, len(t_ns) - 1)
    before = (after - 1).clip(0)
    gaps = [np.maximum(np.maximum(start_ns - t_ns[index], t_ns[index] - end_ns), 0) for index in (before, after)]
    nearer = gaps[0] < gaps[1]
    return np.where(nearer, before, after), np.where(nearer, gaps[0], gaps[1])


def overlay_throttling(readings: SensorReadings, start_ns: Moments, end_ns: Moments) -> list[str | None]:
    """Return for each kernel why its clock was not higher, in any reading while it ran; null where none was near."""
    entries = [(t, reasons) for t, reasons in zip(readings.t_ns, readings.throttle, strict=True) if reasons is not None]
    t_ns, spans = np.array([t for t, _ in entries], dtype=np.int64), (start_ns, end_ns)
    covered = np.isfinite(_overlay(t_ns, np.zeros(len(entries)), readings.near_ns, spans))
    reasons = tuple(dict.fromkeys(reason for _, several in entries for reason in several))
    shares = [
        _overlay(t_ns, np.array([float(reason in several) for _, several in entries]), readings.near_ns, spans)
        for reason in reasons
    ]
    return [
        ("; ".join(compress(reasons, active)) or NO_THROTTLING) if near else None
        for near, *active in zip(covered.tolist(), *((share > 0).tolist() for share in shares), strict=True)
    ]


KERNELS_CSV, KERNELS_JSON = "power/kernels.csv", "power/kernels.jsonl"
CHUNK_KERNELS = 20_000
"""Kernels that are written in one piece."""
NO_READINGS = collect_readings((), 0)
"""Of a device without sensors."""
SOURCE_COLUMNS = (
    *("case", "repeat", "restart", "trial", "status", "uuid", "device", "role", "workload", "quantity", "calls"),
    "origin",
)
KERNEL_COLUMNS = ("kernel", "start_ns", "start_s", "duration_us", *SENSORS, "throttle")


class KernelChunk(NamedTuple):
    """Consecutive kernels of one worker: whose they are, and their columns; null: no sensor was near."""

    source: dict[str, object]
    columns: dict[str, Sequence[object]]


def trace_kernels(machine: Machine, options: CharacterizeOptions, records: Records) -> Iterator[KernelChunk]:
    """Give every kernel that was kept, chunk by chunk, in the order of the trials."""
    cases = cases_by_trial(machine, options, options.repeats)
    for record in records:
        if record.trial in cases:
            where = cases[record.trial]
            roles = {role.name: role for role in build_trial(options, where).roles}
            yield from _trace_trial(machine, records, record, where, roles)


def _trace_trial(
    machine: Machine, records: Records, record: Record, where: PlacedCase, roles: dict[str, Role]
) -> Iterator[KernelChunk]:
    """Lay the sensors over the kernels of one trial."""
    timed = [(s, starts) for s in record.series if s.role in roles and (starts := _start_series(record, s))]
    if not timed:
        return
    begin_ns, end_ns = min(s.start_ns for s, _ in timed), max(s.end_ns for s, _ in timed)
    lines = records.watched_between(record, begin_ns, end_ns, margin_s=1.0)
    uuids = {device: target.uuid for device, target in gpu_targets(machine).items()}
    readings = {gpu.uuid: collect_readings(lines, gpu.index) for gpu in machine.gpus}
    for series, starts in timed:
        role = roles[series.role]
        uuid = uuids.get(role.devices[0], role.devices[0])
        source: tuple[object, ...] = (
            *(where.case.name, where.repeat, series.restart, record.trial, record.status, uuid, role.devices[0]),
            "base" if role.duty == "timed" else "noise",
            *(role.subjects[0].label, series.quantity, series.calls_per_sample, record.origin),
        )
        start_ns = series.start_ns + np.round(records.samples(starts) * 1e3).astype(np.int64)
        duration_us = records.samples(series)
        spans = start_ns, start_ns + np.round(duration_us * series.calls_per_sample * 1e3).astype(np.int64)
        for first in range(0, len(start_ns), CHUNK_KERNELS):
            part = slice(first, first + CHUNK_KERNELS)
            columns = _kernel_columns(spans[0][part], spans[1][part], readings.get(uuid, NO_READINGS))
            columns["kernel"] = range(first, first + len(start_ns[part]))
            columns["start_s"] = np.round((start_ns[part] - _run_start_ns(records, record)) / 1e9, 6).tolist()
            columns["duration_us"] = np.round(duration_us[part], 4).tolist()
            yield KernelChunk(dict(zip(SOURCE_COLUMNS, source, strict=True)), {n: columns[n] for n in KERNEL_COLUMNS})


def _kernel_columns(start_ns: Moments, end_ns: Moments, readings: SensorReadings) -> dict[str, Sequence[object]]:
    sensors = overlay_sensors(readings, start_ns, end_ns)
    return {
        "start_ns": start_ns.tolist(),
        **{name: [None if isnan(v) else v for v in np.round(sensors[name], 3).tolist()] for name in SENSORS},
        "throttle": overlay_throttling(readings, start_ns, end_ns),
    }


def _run_start_ns(records: Records, record: Record) -> int:
    """Return when the run began, in ns of this record's clock; across a reboot by the wall clock."""
    first, own = records[0].window, record.window
    if own.boot_id == first.boot_id:
        return first.start_ns
    later = datetime.fromisoformat(own.started_at) - datetime.fromisoformat(first.started_at)
    return own.start_ns - round(later.total_seconds() * 1e9)


def _start_series(record: Record, series: Series) -> Series | None:
    """Return the starts of a series of times; null for what is not a time, or not the one that counts."""
    alike = {
        s.quantity: s
        for s in record.series
        if (s.role, s.rank, s.restart) == (series.role, series.rank, series.restart)
    }
    if series.quantity not in TIME_QUANTITIES or next(q for q in TIME_QUANTITIES if q in alike) != series.quantity:
        return None
    starts = alike.get(START_US)
    return starts if starts is not None and starts.n == series.n else None


def trace_to_csv(chunks: Iterator[KernelChunk]) -> Iterator[str]:
    """Give the trace as a table, a row a kernel; null is empty."""
    yield f"{','.join((*SOURCE_COLUMNS, *KERNEL_COLUMNS))}\n"
    for chunk in chunks:
        buffer = io.StringIO()
        source = list(chunk.source.values())
        rows = ([*source, *row] for row in zip(*chunk.columns.values(), strict=True))
        csv.writer(buffer, lineterminator="\n").writerows(rows)
        yield buffer.getvalue()


def trace_to_json_lines(chunks: Iterator[KernelChunk]) -> Iterator[str]:
    """Give the trace as JSON lines, one per chunk, each column as a list."""
    for chunk in chunks:
        columns = {name: list(values) for name, values in chunk.columns.items()}
        yield f"{json.dumps({**chunk.source, **columns}, ensure_ascii=False)}\n"


GPUS_CSV, CASES_CSV = "power/gpus.csv", "power/cases.csv"


def study_files(
    machine: Machine, options: CharacterizeOptions, study: PowerStudy, records: Records
) -> dict[str, str | Iterable[str]]:
    """Return the files by their paths; the trace is made while it is written."""
    return {
        GPUS_FILE: rows_to_json_lines(study.rows),
        GPUS_CSV: rows_to_csv(study.rows),
        CASES_CSV: write_csv([gpu_case_facts(gpu) for gpu in study.gpus]),
        KERNELS_CSV: trace_to_csv(trace_kernels(machine, options, records)),
        KERNELS_JSON: trace_to_json_lines(trace_kernels(machine, options, records)),
    }
