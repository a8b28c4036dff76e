"""A device of known joules on virtual time: calls spend power on a fake GPU, and its sensors are read meanwhile."""

from __future__ import annotations

import random
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.joules.devices import CpuCallLoad
from assay.joules.readings import GpuPowerMeter
from assay.joules.sensor_model import probe_sensors
from assay.machine import nvidia
from assay.timing.setup import make_first_calls
from tests.fakes.fake_nvml import FakeNvml, Gpu, Sensor, ampere, attached, hopper, volta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.results import Origin
    from assay.joules.devices import CallLoad
    from assay.joules.readings import EnergyMeter, MeterReading, ReadingSampler, SleepingClock
    from assay.joules.sensor_model import SensorModel
    from assay.timing.options import TimingOptions
    from assay.timing.setup import BoundCall

NS = 1_000_000_000
Profile = tuple[tuple[float, float], ...]
"""What a call spends: seconds and watts, one after another."""


@dataclass(frozen=True)
class Kind:
    """A kind of sensor: the fake GPU, and how long its answers take, in s."""

    gpu: Gpu
    read_s: tuple[float, float] = (0.0002, 0.001)


def hopper_like(phase_ms: float = 37.0, lag_ms: float = 0.0) -> Kind:
    """Ticks of 100 ms, instant power of 25 ms, average of 1 s, and a counter that takes up to 20 ms to read."""
    return Kind(replace(hopper(), sensor=Sensor(phase_ms=phase_ms, lag_ms=lag_ms)), (0.003, 0.02))


def coarse(phase_ms: float = 7.0) -> Kind:
    """An older card: ticks of 20 ms, power of 10 ms, and a counter of whole joules."""
    old = volta()
    return Kind(replace(old, sensor=replace(old.sensor, phase_ms=phase_ms, counter_quantum_mj=1000)))


def no_instant(phase_ms: float = 11.0) -> Kind:
    """A card that shows the average over a second, and a counter that ticks every 25 ms."""
    card = ampere()
    return Kind(replace(card, sensor=replace(card.sensor, phase_ms=phase_ms)))


def no_counter(phase_ms: float = 37.0) -> Kind:
    """A card with power readings only."""
    card = hopper_like(phase_ms)
    return Kind(
        replace(card.gpu, unsupported=("nvmlDeviceGetTotalEnergyConsumption",), unsupported_fields=(83,)), (0.0, 0.001)
    )


class VirtualTime:
    """A clock that passes when calls are made or somebody waits; readings that are due meanwhile are taken."""

    def __init__(self, start_ns: int, read_s: tuple[float, float], seed: int = 0) -> None:
        self.read_s = read_s
        self.chance = random.Random(seed)
        self.samplings: list[VirtualSampling] = []
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def sleep(self, seconds: float) -> None:
        self.pass_ns(round(seconds * NS))

    def pass_ns(self, duration_ns: int) -> None:
        """Let time pass."""
        until_ns = self._now_ns + duration_ns
        while self.samplings and (due := min(self.samplings, key=lambda s: s.due_ns)).due_ns <= until_ns:
            self._now_ns = max(self._now_ns, due.due_ns)
            self.look_now()
            due.go_on()
        self._now_ns = until_ns

    def look_now(self) -> None:
        """Let what is read be as it is at this moment."""


class World(VirtualTime):
    """A fake GPU with its sensors, which draws what calls make it draw."""

    def __init__(self, fake: FakeNvml, kind: Kind, seed: int = 0) -> None:
        super().__init__(fake.now_ns(), kind.read_s, seed)
        self.fake = fake
        self.idle_w = kind.gpu.idle_w
        self._drawn_w = self.idle_w

    def sleep(self, seconds: float) -> None:
        """Let time pass without a load."""
        self.draw(self.idle_w)
        super().sleep(seconds)

    def draw(self, watts: float) -> None:
        """Draw so much from now on."""
        if watts != self._drawn_w:
            self.fake.set_power(0, watts, self._now_ns / NS)
            self._drawn_w = watts

    def look_now(self) -> None:
        self.fake.set_time(self._now_ns / NS)


class Kernel:
    """A function that spends a known profile each time it is called."""

    def __init__(self, world: World, profile: Profile) -> None:
        self._world = world
        self._steps = [(round(seconds * NS), watts) for seconds, watts in profile]
        self.profile = profile
        self.calls = 0

    @property
    def joules(self) -> float:
        """What a call truly spends."""
        return sum(duration / NS * watts for duration, watts in self._steps)

    @property
    def seconds(self) -> float:
        """How long a call truly takes."""
        return sum(duration for duration, _ in self._steps) / NS

    def __call__(self) -> None:
        self.calls += 1
        for duration_ns, watts in self._steps:
            self._world.draw(watts)
            self._world.pass_ns(duration_ns)


class VirtualSampling:
    """Reads a meter as virtual time passes; an answer takes a while, as a real one's, and is of a moment within."""

    def __init__(self, time: VirtualTime, meter: EnergyMeter, every_s: float | None = None) -> None:
        self._time = time
        self._meter = meter
        self._every_ns = round((every_s or (0.01 if time.read_s[1] > 0.002 else 0.002)) * NS)
        self._readings: list[MeterReading] = []
        self._answer: MeterReading | None = None
        self._asked = False
        self.due_ns = 0

    def start(self) -> None:
        self._ask_at(self._time.now_ns())
        self._time.samplings.append(self)

    def _ask_at(self, begin_ns: int) -> None:
        self._begin_ns = begin_ns
        self._end_ns = begin_ns + round(self._time.chance.uniform(*self._time.read_s) * NS)
        self.due_ns = begin_ns + round((self._end_ns - begin_ns) * self._time.chance.random())
        self._asked = False

    def go_on(self) -> None:
        """Do what is due: look at the meter, or take its answer and ask again."""
        if not self._asked:
            self._asked = True
            self._answer = self._meter.read()
            self.due_ns = self._end_ns
            return
        if self._answer is not None:
            self._readings.append(replace(self._answer, begin_ns=self._begin_ns, end_ns=self._end_ns))
        self._ask_at(max(self._end_ns, self._begin_ns + self._every_ns))

    def readings(self) -> list[MeterReading]:
        if self._meter.lost is not None:
            raise MachineCannot(f"The device stopped saying what it spends: {self._meter.lost}.")
        return list(self._readings)

    def stop(self) -> list[MeterReading]:
        if self in self._time.samplings:
            self._time.samplings.remove(self)
        return self.readings()


class VirtualRig:
    """A rig whose device is the fake."""

    device = "fake:0"
    notes: tuple[str, ...] = ()
    origin: Origin = "fake"

    def __init__(self, world: World, meter: GpuPowerMeter, model: SensorModel) -> None:
        self.world = world
        self.clock: SleepingClock = world
        self.model = model
        self._meter = meter

    def prepare_load(self, bound: BoundCall, options: TimingOptions) -> CallLoad:
        before_ns = self.world.now_ns()
        make_first_calls(bound, lambda: None, options.limit_s)
        call_s = getattr(bound.call, "seconds", (self.world.now_ns() - before_ns) / 3 / NS)
        self.world.draw(self.world.idle_w)
        return CpuCallLoad(bound.call, self.world, call_s)

    def sampler(self) -> ReadingSampler:
        return VirtualSampling(self.world, self._meter)


@contextmanager
def opened(kind: Kind, seed: int = 0, made: type[World] = World) -> Iterator[tuple[World, GpuPowerMeter]]:
    """Give a world with one such GPU, 10 s old, and its meter."""
    with TemporaryDirectory() as folder:
        fake = FakeNvml.create(Path(folder) / "scenario.nvml", [kind.gpu], start_s=10.0)
        with attached(fake), nvidia.open_sensors([fake.gpu(0).uuid.decode()]) as (sensor,):
            world = made(fake, kind, seed)
            yield world, GpuPowerMeter(sensor, world)


def probed(kind: Kind, seed: int = 0, load_w: float = 300.0) -> SensorModel:
    """Return what the probe finds of such a GPU."""
    with opened(kind, seed) as (world, meter):
        load = CpuCallLoad(Kernel(world, ((0.001, load_w),)), world, 0.001)
        return probe_sensors(load, VirtualSampling(world, meter, 0.002), world.fake.gpu(0).uuid.decode(), "580.00-fake")
