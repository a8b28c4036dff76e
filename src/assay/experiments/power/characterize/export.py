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
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.experiments.power.characterize.findings import gpu_case_facts
from assay.experiments.power.characterize.plan import build_trial, cases_by_trial
from assay.experiments.power.rows import GPUS_FILE
from assay.experiments.power.rows import rows_to_csv as rows_csv
from assay.experiments.reporting import TIME_QUANTITIES
from assay.machine.cuda_devices import gpu_targets
from assay.monitor.samples import GpuSample, RecordingHeader
from assay.timing.continuous import START_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Record, Series
    from assay.core.values import Role
    from assay.experiments.power.characterize.gpu_cases import GpuCase
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.experiments.power.characterize.plan import PlacedCase
    from assay.experiments.power.characterize.study import PowerStudy
    from assay.machine.model import Machine
    from assay.monitor.samples import RecordingLine
    from assay.store.records import Records


if TYPE_CHECKING:
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
"""A look farther from a kernel than this says nothing of it, unless looks are rarer by themselves."""

NO_THROTTLING = "none"
"""Nothing held the clock back; where the card does not say, there is nothing at all."""


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
        values={name: _reading_column([getattr(sample, name) for sample in samples]) for name in SENSORS},
        throttle=tuple(sample.throttle for sample in samples),
        near_ns=near_ns,
    )


def _reading_column(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def overlay_sensors(readings: SensorReadings, start_ns: Moments, end_ns: Moments) -> dict[str, Floats]:
    """Return each quantity for each kernel, given from when to when it ran; NaN where no look was near."""
    return {name: _overlay_column(readings, values, start_ns, end_ns) for name, values in readings.values.items()}


def _overlay_column(readings: SensorReadings, values: Floats, start_ns: Moments, end_ns: Moments) -> Floats:
    finite = np.isfinite(values)
    t_ns, values = readings.t_ns[finite], values[finite]
    if not len(t_ns):
        return np.full(len(start_ns), np.nan)
    first, behind = np.searchsorted(t_ns, start_ns, "left"), np.searchsorted(t_ns, end_ns, "right")
    sums = np.concatenate([[0.0], np.cumsum(values)])
    within = (sums[behind] - sums[first]) / np.maximum(behind - first, 1)
    index, gap_ns = _nearest_reading(t_ns, start_ns, end_ns)
    nearest = np.where(gap_ns <= readings.near_ns, values[index], np.nan)
    return np.where(behind > first, within, nearest)


def _nearest_reading(t_ns: Moments, start_ns: Moments, end_ns: Moments) -> tuple[Moments, Moments]:
    """Return for each kernel the look nearest to it, and how far it is from its nearer edge."""
    after = np.searchsorted(t_ns, start_ns).clip(0, len(t_ns) - 1)
    before = (after - 1).clip(0)
    gaps = [np.maximum(np.maximum(start_ns - t_ns[index], t_ns[index] - end_ns), 0) for index in (before, after)]
    nearer = gaps[0] < gaps[1]
    return np.where(nearer, before, after), np.where(nearer, gaps[0], gaps[1])


def overlay_throttling(readings: SensorReadings, start_ns: Moments, end_ns: Moments) -> list[str | None]:
    """Return for each kernel why its clock was not higher, at any look while it ran; null where none was near."""
    entries = [(t, reasons) for t, reasons in zip(readings.t_ns, readings.throttle, strict=True) if reasons is not None]
    reasons = tuple(dict.fromkeys(reason for _, several in entries for reason in several))
    plain = SensorReadings(np.array([t for t, _ in entries], dtype=np.int64), {}, (), readings.near_ns)
    covered = np.isfinite(_overlay_column(plain, np.zeros(len(entries)), start_ns, end_ns))
    codes = np.zeros(len(start_ns), dtype=np.int64)
    for bit, reason in enumerate(reasons):
        share = _overlay_column(plain, np.array([float(reason in several) for _, several in entries]), start_ns, end_ns)
        codes += (share > 0).astype(np.int64) << bit
    words = {code: "; ".join(r for bit, r in enumerate(reasons) if code >> bit & 1) for code in set(codes.tolist())}
    return [
        (words[code] or NO_THROTTLING) if near else None
        for code, near in zip(codes.tolist(), covered.tolist(), strict=True)
    ]


KERNELS_CSV, KERNELS_JSON = "power/kernels.csv", "power/kernels.jsonl"

CHUNK_KERNELS = 20_000
"""Kernels that are written in one piece."""

NO_READINGS = collect_readings((), 0)
"""Of a device without sensors."""


@dataclass(frozen=True)
class KernelSource:
    """Whose kernels they are."""

    case: str
    repeat: int
    restart: int
    trial: str
    status: str
    uuid: str
    device: str
    role: Literal["base", "noise"]
    workload: str
    quantity: str
    calls: int
    origin: str


@dataclass(frozen=True)
class KernelChunk:
    """A stretch of kernels of one worker, in order, numbered from ``first`` on. NaN and null: no sensor was near."""

    of: KernelSource
    first: int
    start_ns: Moments
    start_s: Floats
    duration_us: Floats
    sensors: dict[str, Floats]
    throttle: list[str | None]


def trace_kernels(machine: Machine, options: CharacterizeOptions, records: Records) -> Iterator[KernelChunk]:
    """Give every kernel that was kept, stretch by stretch, in the order the trials were taken."""
    cases = cases_by_trial(machine, options, options.repeats)
    for record in records:
        if record.trial in cases:
            where = cases[record.trial]
            roles = {role.name: role for role in build_trial(options, where).roles}
            yield from _TrialTracer(machine, records, record, where, roles).kernels()


@dataclass(frozen=True)
class _TrialTracer:
    """Lays the sensors over the kernels of one trial."""

    machine: Machine
    records: Records
    record: Record
    where: PlacedCase
    roles: dict[str, Role]

    def kernels(self) -> Iterator[KernelChunk]:
        timed = [
            (s, starts)
            for s in self.record.series
            if s.role in self.roles and (starts := _start_series(self.record, s))
        ]
        if not timed:
            return
        begin_ns, end_ns = min(s.start_ns for s, _ in timed), max(s.end_ns for s, _ in timed)
        lines = self.records.watched_between(self.record, begin_ns, end_ns, margin_s=1.0)
        uuids = {device: target.uuid for device, target in gpu_targets(self.machine).items()}
        numbers = {gpu.uuid: gpu.index for gpu in self.machine.gpus}
        looks = {uuid: collect_readings(lines, number) for uuid, number in numbers.items()}
        for series, starts in timed:
            device = self.roles[series.role].devices[0]
            uuid = uuids.get(device, device)
            start_ns = series.start_ns + np.round(self.records.samples(starts) * 1e3).astype(np.int64)
            of = self._of(series, uuid)
            yield from _kernel_chunks(
                of, start_ns, self.records.samples(series), looks.get(uuid, NO_READINGS), self._zero_ns
            )

    @property
    def _zero_ns(self) -> int:
        """The moment at which the run began, in ns of this record's clock; across a reboot by the wall clock."""
        first, own = self.records[0].window, self.record.window
        if own.boot_id == first.boot_id:
            return first.start_ns
        later = datetime.fromisoformat(own.started_at) - datetime.fromisoformat(first.started_at)
        return own.start_ns - round(later.total_seconds() * 1e9)

    def _of(self, series: Series, uuid: str) -> KernelSource:
        role = self.roles[series.role]
        return KernelSource(
            case=self.where.case.name,
            repeat=self.where.repeat,
            restart=series.restart,
            trial=self.record.trial,
            status=self.record.status,
            uuid=uuid,
            device=role.devices[0],
            role="base" if role.duty == "timed" else "noise",
            workload=role.subjects[0].label,
            quantity=series.quantity,
            calls=series.calls_per_sample,
            origin=self.record.origin,
        )


def _start_series(record: Record, series: Series) -> Series | None:
    """Return the starts of a series of times; null for what is not a time, or not the one that counts."""
    if series.quantity not in TIME_QUANTITIES:
        return None
    alike = [s for s in record.series if (s.role, s.rank, s.restart) == (series.role, series.rank, series.restart)]
    if next(name for name in TIME_QUANTITIES if any(s.quantity == name for s in alike)) != series.quantity:
        return None
    return next((s for s in alike if s.quantity == START_US and s.n == series.n), None)


def _kernel_chunks(
    of: KernelSource, start_ns: Moments, duration_us: Floats, looks: SensorReadings, zero_ns: int
) -> Iterator[KernelChunk]:
    end_ns = start_ns + np.round(duration_us * of.calls * 1e3).astype(np.int64)
    for first in range(0, len(start_ns), CHUNK_KERNELS):
        part = slice(first, first + CHUNK_KERNELS)
        yield KernelChunk(
            of=of,
            first=first,
            start_ns=start_ns[part],
            start_s=(start_ns[part] - zero_ns) / 1e9,
            duration_us=duration_us[part],
            sensors=overlay_sensors(looks, start_ns[part], end_ns[part]),
            throttle=overlay_throttling(looks, start_ns[part], end_ns[part]),
        )


SOURCE_COLUMNS = tuple(field.name for field in fields(KernelSource))
KERNEL_COLUMNS = ("kernel", "start_ns", "start_s", "duration_us", *SENSORS, "throttle")


def _chunk_columns(kernels: KernelChunk) -> list[Sequence[object]]:
    """Return the columns as plain values, null where a sensor said nothing; digits as far as they mean something."""
    return [
        range(kernels.first, kernels.first + len(kernels.start_ns)),
        kernels.start_ns.tolist(),
        np.round(kernels.start_s, 6).tolist(),
        np.round(kernels.duration_us, 4).tolist(),
        *(_null_missing(kernels.sensors[name]) for name in SENSORS),
        kernels.throttle,
    ]


def _null_missing(values: Floats) -> list[float | None]:
    rounded: list[float | None] = np.round(values, 3).tolist()
    for index in np.flatnonzero(np.isnan(values)):
        rounded[index] = None
    return rounded


def trace_to_csv(stretches: Iterator[KernelChunk]) -> Iterator[str]:
    """Give the trace as a table, a row a kernel; null is empty."""
    yield f"{','.join((*SOURCE_COLUMNS, *KERNEL_COLUMNS))}\n"
    for kernels in stretches:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        constant = [getattr(kernels.of, name) for name in SOURCE_COLUMNS]
        writer.writerows([*constant, *row] for row in zip(*_chunk_columns(kernels), strict=True))
        yield buffer.getvalue()


def trace_to_json_lines(stretches: Iterator[KernelChunk]) -> Iterator[str]:
    """Give the trace as JSON lines, one a stretch of kernels of one worker, each column as a list."""
    for kernels in stretches:
        constant = {name: getattr(kernels.of, name) for name in SOURCE_COLUMNS}
        columns = {name: list(values) for name, values in zip(KERNEL_COLUMNS, _chunk_columns(kernels), strict=True)}
        yield f"{json.dumps({**constant, **columns}, ensure_ascii=False)}\n"


GPUS_CSV, CASES_CSV = "power/gpus.csv", "power/cases.csv"


def study_files(
    machine: Machine, options: CharacterizeOptions, study: PowerStudy, records: Records
) -> dict[str, str | Iterable[str]]:
    """Return the files by their paths; the trace is made while it is written."""
    return {
        GPUS_FILE: "".join(f"{row.model_dump_json()}\n" for row in study.rows),
        GPUS_CSV: rows_csv(study.rows),
        CASES_CSV: gpu_cases_csv(study.gpus),
        KERNELS_CSV: trace_to_csv(trace_kernels(machine, options, records)),
        KERNELS_JSON: trace_to_json_lines(trace_kernels(machine, options, records)),
    }


def gpu_cases_csv(gpus: Sequence[GpuCase]) -> str:
    """Return a table with a row for each case and GPU, over its repeats; null is empty."""
    records = [gpu_case_facts(gpu) for gpu in gpus]
    buffer = io.StringIO()
    if records:
        writer = csv.DictWriter(buffer, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in records)
    return buffer.getvalue()
