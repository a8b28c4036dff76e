"""A recording played back: a fake GPU shows, on virtual time, what a GPU showed when it was recorded, and is read anew.

recorded   ├──5 J──┤  ├──5 J──┤   ├──9 J──┤          readings of a real GPU, each within a while
played              5 J ╎ 9 J                        it moved between two of them: halfway, as far as anyone knows
read anew   ├──5 J──┤  ├──5 J─┤ ├──9 J──┤            through the real bindings, at moments of their own
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from assay.joules.readings import CallBoundary, GpuPowerMeter, MeterReading
from assay.joules.sensor_model import SensorModel
from assay.machine import nvidia
from tests.fakes.fake_nvml import FakeNvml, attached, hopper
from tests.joules.world import NS, VirtualSampling, VirtualTime

if TYPE_CHECKING:
    from collections.abc import Sequence

ENERGY, AVERAGE, INSTANT = 83, 185, 186
"""NVML's fields."""
READ_S = (0.0005, 0.0015)
"""How long an answer takes: when a field moved is known as well as the recording knows it, and no worse."""


@dataclass(frozen=True)
class Shown:
    """What one field showed: from each moment on a value, in mJ or mW as NVML says it."""

    moments_ns: list[int]
    values: list[int]

    def at(self, t_ns: int) -> int:
        """Return the value at a moment; the first also holds before itself."""
        return self.values[max(0, bisect_right(self.moments_ns, t_ns) - 1)]


def shown(readings: Sequence[MeterReading]) -> dict[int, Shown]:
    """Return what each field showed, as far as readings tell; a field that never answered is left out."""
    spans = {
        ENERGY: [(r.begin_ns, r.end_ns, r.energy_j) for r in readings],
        AVERAGE: [(r.t_ns, r.begin_ns, r.average_w) for r in readings],
        INSTANT: [(r.t_ns, r.begin_ns, r.instant_w) for r in readings],
    }
    told = {field: [(a, b, v) for a, b, v in rows if v is not None] for field, rows in spans.items()}
    return {field: _steps(rows) for field, rows in told.items() if rows}


def _steps(rows: list[tuple[int, int, float]]) -> Shown:
    """Return when a value changed: halfway from the last question it answered as before to the first new answer."""
    moments, values = [rows[0][0]], [rows[0][2]]
    for before, after in pairwise(rows):
        if after[2] != before[2]:
            moments.append((before[0] + after[1]) // 2)
            values.append(after[2])
    return Shown(moments, [round(value * 1e3) for value in values])


class Playback(VirtualTime):
    """A fake GPU whose fields show what was recorded, as time passes."""

    def __init__(self, fake: FakeNvml, fields: dict[int, Shown], start_ns: int, seed: int) -> None:
        super().__init__(start_ns, READ_S, seed)
        self._fake = fake
        self._fields = fields
        self._set: dict[int, int] = {}

    def look_now(self) -> None:
        self._fake.set_time(self.now_ns() / NS)
        for field, series in self._fields.items():
            value = series.at(self.now_ns())
            if self._set.get(field) != value:
                self._set[field] = value
                self._fake.set_field(0, field, float(value))


def played(readings: Sequence[MeterReading], seed: int = 0) -> list[MeterReading]:
    """Return readings taken anew, through NVML's bindings, of a fake GPU that shows what these readings saw."""
    begin_ns, end_ns = readings[0].t_ns, readings[-1].end_ns
    fields = shown(readings)
    with TemporaryDirectory() as folder:
        fake = FakeNvml.create(Path(folder) / "scenario.nvml", [hopper()], start_s=begin_ns / NS)
        for field in {ENERGY, AVERAGE, INSTANT} - set(fields):
            fake.fail_field(0, field)
        with attached(fake), nvidia.open_sensors([fake.gpu(0).uuid.decode()]) as (sensor,):
            time = Playback(fake, fields, begin_ns, seed)
            sampling = VirtualSampling(time, GpuPowerMeter(sensor, time))
            sampling.start()
            time.pass_ns(end_ns - begin_ns)
            return sampling.stop()


@dataclass(frozen=True)
class Recorded:
    """One step of a benchmark as it was kept: its readings, the moments between calls, and how the sensor sees."""

    readings: list[MeterReading]
    knots: list[CallBoundary]
    model: SensorModel

    @classmethod
    def of(cls, kept: dict[str, Any], model: dict[str, Any]) -> Recorded:
        """Return a step of ``benchmarks/energy_gpu.py``."""
        readings = [MeterReading(*row) for row in kept["readings"]]
        return cls(readings, [CallBoundary(*row) for row in kept["knots"]], SensorModel.model_validate(model))
