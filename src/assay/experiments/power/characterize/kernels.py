"""The trace: one row for each kernel of every card, timed ones and loads, with what the sensors said meanwhile.

Nothing is held but the trial that is being written, so that a run of any length can be traced.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.experiments.power.characterize.looks import SENSORS, held_back, laid, looks_of
from assay.experiments.power.characterize.plan import by_trial, trial_of
from assay.experiments.times import TIMES
from assay.isolation.targets import targets
from assay.timing.lanes import START_US

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from assay.core.plan import Role
    from assay.core.results import Record, Series
    from assay.experiments.power.characterize.looks import Looks
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.experiments.power.characterize.placing import Placed
    from assay.machine.model import Machine
    from assay.store.records import Records

    Floats = NDArray[np.float64]
    Moments = NDArray[np.int64]

KERNELS_CSV, KERNELS_JSON = "power/kernels.csv", "power/kernels.jsonl"

AT_ONCE = 20_000
"""Kernels that are written in one piece."""

NOTHING = looks_of((), 0)
"""Of a device without sensors."""


@dataclass(frozen=True)
class Of:
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
class Kernels:
    """A stretch of kernels of one worker, in order, numbered from ``first`` on. NaN and null: no sensor was near."""

    of: Of
    first: int
    start_ns: Moments
    start_s: Floats
    duration_us: Floats
    sensors: dict[str, Floats]
    throttle: list[str | None]


def traced(machine: Machine, options: CharacterizeOptions, records: Records) -> Iterator[Kernels]:
    """Give every kernel that was kept, stretch by stretch, in the order the trials were taken."""
    cases = by_trial(machine, options, options.repeats)
    for record in records:
        if record.trial in cases:
            where = cases[record.trial]
            roles = {role.name: role for role in trial_of(options, where).roles}
            yield from _Tracer(machine, records, record, where, roles).kernels()


@dataclass(frozen=True)
class _Tracer:
    """Lays the sensors over the kernels of one trial."""

    machine: Machine
    records: Records
    record: Record
    where: Placed
    roles: dict[str, Role]

    def kernels(self) -> Iterator[Kernels]:
        timed = [
            (s, starts) for s in self.record.series if s.role in self.roles and (starts := _starts(self.record, s))
        ]
        if not timed:
            return
        begin_ns, end_ns = min(s.start_ns for s, _ in timed), max(s.end_ns for s, _ in timed)
        lines = self.records.watched_between(self.record, begin_ns, end_ns, margin_s=1.0)
        uuids = {device: target.uuid for device, target in targets(self.machine).items()}
        numbers = {gpu.uuid: gpu.index for gpu in self.machine.gpus}
        looks = {uuid: looks_of(lines, number) for uuid, number in numbers.items()}
        for series, starts in timed:
            device = self.roles[series.role].devices[0]
            uuid = uuids.get(device, device)
            start_ns = series.start_ns + np.round(self.records.samples(starts) * 1e3).astype(np.int64)
            of = self._of(series, uuid)
            yield from _stretches(of, start_ns, self.records.samples(series), looks.get(uuid, NOTHING), self._zero_ns)

    @property
    def _zero_ns(self) -> int:
        """The moment at which the run began, in ns of this record's clock; across a reboot by the wall clock."""
        first, own = self.records[0].window, self.record.window
        if own.boot_id == first.boot_id:
            return first.start_ns
        later = datetime.fromisoformat(own.started_at) - datetime.fromisoformat(first.started_at)
        return own.start_ns - round(later.total_seconds() * 1e9)

    def _of(self, series: Series, uuid: str) -> Of:
        role = self.roles[series.role]
        return Of(
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


def _starts(record: Record, series: Series) -> Series | None:
    """Return the starts of a series of times; null for what is not a time, or not the one that counts."""
    if series.quantity not in TIMES:
        return None
    alike = [s for s in record.series if (s.role, s.rank, s.restart) == (series.role, series.rank, series.restart)]
    if next(name for name in TIMES if any(s.quantity == name for s in alike)) != series.quantity:
        return None
    return next((s for s in alike if s.quantity == START_US and s.n == series.n), None)


def _stretches(of: Of, start_ns: Moments, duration_us: Floats, looks: Looks, zero_ns: int) -> Iterator[Kernels]:
    end_ns = start_ns + np.round(duration_us * of.calls * 1e3).astype(np.int64)
    for first in range(0, len(start_ns), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        yield Kernels(
            of=of,
            first=first,
            start_ns=start_ns[part],
            start_s=(start_ns[part] - zero_ns) / 1e9,
            duration_us=duration_us[part],
            sensors=laid(looks, start_ns[part], end_ns[part]),
            throttle=held_back(looks, start_ns[part], end_ns[part]),
        )


OF = tuple(field.name for field in fields(Of))
COLUMNS = ("kernel", "start_ns", "start_s", "duration_us", *SENSORS, "throttle")


def _columns(kernels: Kernels) -> list[Sequence[object]]:
    """Return the columns as plain values, null where a sensor said nothing; digits as far as they mean something."""
    return [
        range(kernels.first, kernels.first + len(kernels.start_ns)),
        kernels.start_ns.tolist(),
        np.round(kernels.start_s, 6).tolist(),
        np.round(kernels.duration_us, 4).tolist(),
        *(_known(kernels.sensors[name]) for name in SENSORS),
        kernels.throttle,
    ]


def _known(values: Floats) -> list[float | None]:
    rounded: list[float | None] = np.round(values, 3).tolist()
    for index in np.flatnonzero(np.isnan(values)):
        rounded[index] = None
    return rounded


def as_csv(stretches: Iterator[Kernels]) -> Iterator[str]:
    """Give the trace as a table, a row a kernel; null is empty."""
    yield f"{','.join((*OF, *COLUMNS))}\n"
    for kernels in stretches:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        constant = [getattr(kernels.of, name) for name in OF]
        writer.writerows([*constant, *row] for row in zip(*_columns(kernels), strict=True))
        yield buffer.getvalue()


def as_json(stretches: Iterator[Kernels]) -> Iterator[str]:
    """Give the trace as JSON lines, one a stretch of kernels of one worker, each column as a list."""
    for kernels in stretches:
        constant = {name: getattr(kernels.of, name) for name in OF}
        columns = {name: list(values) for name, values in zip(COLUMNS, _columns(kernels), strict=True)}
        yield f"{json.dumps({**constant, **columns}, ensure_ascii=False)}\n"
