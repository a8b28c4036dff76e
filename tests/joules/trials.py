"""Random loads of known joules, measured: what Assay says, what is true, and what simpler ways say."""

from __future__ import annotations

import math
import random
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal
from unittest.mock import patch

from assay.joules import devices as rigs
from assay.joules.measure import energy
from assay.joules.window_energy import estimate_window_energy
from tests.joules.world import (
    NS,
    Kernel,
    Kind,
    VirtualRig,
    VirtualSampling,
    World,
    coarse,
    hopper_like,
    no_instant,
    opened,
    probed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from assay.joules.devices import EnergyDevice
    from assay.joules.readings import MeterReading
    from assay.joules.sensor_model import SensorModel
    from tests.joules.world import Profile

Load = Literal["steady", "begins with the window", "levels", "bursts", "ramp", "sensor's period"]
LOADS: tuple[Load, ...] = ("steady", "begins with the window", "levels", "bursts", "ramp", "sensor's period")
Length = Literal["10 µs", "0.2 ms", "5 ms", "part of a period", "sensor's period", "near the period", "long"]
LENGTHS: tuple[Length, ...] = (
    "10 µs", "0.2 ms", "5 ms", "part of a period", "sensor's period", "near the period", "long",
)  # fmt: skip
SENSORS: dict[str, Callable[[float], Kind]] = {"Hopper": hopper_like, "coarse": coarse, "no instant power": no_instant}
LEAD_S = 1.3
"""Before the window: longer than an average reaches back."""


@dataclass(frozen=True)
class Outcome:
    """What was said over what is true: the value, both ends of the interval, and simpler ways. Null: none of these."""

    ratio: float
    low: float
    high: float
    difference: float | None = None
    average: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the truth lies in the interval."""
        return self.low <= 1.0 <= self.high

    @property
    def width(self) -> float:
        """From one end of the interval to the other, as a share of the truth."""
        return self.high - self.low


@cache
def model_of(sensor: str) -> SensorModel:
    """Return how a kind of sensor sees, as the probe finds it. Not to be asked first while another world is open."""
    return probed(SENSORS[sensor](3.0), seed=1, load_w=250.0)


def a_kind(sensor: str, chance: random.Random) -> Kind:
    """Return a sensor of a kind, its ticks at a random moment."""
    period_ms = SENSORS[sensor](0.0).gpu.sensor.counter_period_ms
    return SENSORS[sensor](chance.uniform(0.0, period_ms))


def window_trial(sensor: str, model: SensorModel, load: Load, seed: int, lengths_s: tuple[float, float]) -> Outcome:
    """Measure a window of random length over a random load."""
    chance = random.Random(seed)
    kind = a_kind(sensor, chance)
    length_s = chance.uniform(*lengths_s)
    with opened(kind, seed) as (world, meter):
        start_s = world.fake.now_s() + LEAD_S + chance.uniform(0.0, 0.2)
        end_s = start_s + length_s
        draw_load(world, load, chance, start_s, end_s, kind)
        sampling = VirtualSampling(world, meter)
        sampling.start()
        world.pass_ns(round((end_s + 0.5) * NS) - world.now_ns())
        readings = sampling.stop()
        true_j = world.fake.true_energy_j(0, start_s, end_s)
    found = estimate_window_energy(readings, round(start_s * NS), round(end_s * NS), model, precision=0.5)
    assert found.joules is not None, found.reason
    assert found.joules.low is not None
    assert found.joules.high is not None
    low, high = found.joules.low / true_j, found.joules.high / true_j
    return Outcome(
        found.joules.value / true_j,
        low,
        high,
        difference(readings, start_s, end_s) / true_j,
        average(readings, start_s, end_s) / true_j,
    )


def difference(readings: list[MeterReading], start_s: float, end_s: float) -> float:
    """Return what reading the counter at both ends says, in J: as it stands, whenever it last ticked."""
    shown = [next(r.energy_j for r in readings if r.end_ns >= t_s * NS) for t_s in (start_s, end_s)]
    assert shown[0] is not None
    assert shown[1] is not None
    return shown[1] - shown[0]


def average(readings: list[MeterReading], start_s: float, end_s: float) -> float:
    """Return what polling the average power says, in J."""
    inside = [r for r in readings if start_s * NS <= r.t_ns <= end_s * NS]
    watts = [w for r in inside if (w := r.average_w if r.average_w is not None else r.usage_w) is not None]
    return sum(watts) / len(watts) * (end_s - start_s)


def draw_load(world: World, load: Load, chance: random.Random, start_s: float, end_s: float, kind: Kind) -> None:
    """Let the fake draw a random load of a kind, from before the window to after it."""
    idle, most = kind.gpu.idle_w, kind.gpu.power_limit_default_w
    high = chance.uniform(idle + 0.2 * (most - idle), most)
    t_s, until_s = start_s - LEAD_S + 0.05, end_s + 0.6
    steps: list[tuple[float, float]] = []
    if load == "steady":
        steps = [(t_s, high)]
    elif load == "begins with the window":
        steps = [(start_s, high), (end_s, idle)]
    elif load == "ramp":
        swing_s = chance.uniform(1.5, 4.0)
        steps = [
            (t_s + i * 0.01, idle + (high - idle) * abs(i * 0.01 / swing_s % 2 - 1))
            for i in range(int((until_s - t_s) * 100))
        ]
    elif load == "levels":
        while t_s < until_s:
            steps.append((t_s, chance.uniform(idle, high)))
            t_s += chance.uniform(0.1, 0.8)
    else:
        period_s = kind.gpu.sensor.counter_period_ms / 1e3
        duty, t_s = chance.uniform(0.2, 0.7), t_s + chance.random() * period_s
        while t_s < until_s:
            on_s, off_s = (duty * period_s, (1 - duty) * period_s)
            if load == "bursts":
                on_s, off_s = chance.uniform(0.02, 0.3), chance.uniform(0.02, 0.3)
            steps += [(t_s, high), (t_s + on_s, idle)]
            t_s += on_s + off_s
    for at_s, watts in steps:
        world.fake.set_power(0, watts, at_s)


def call_trial(sensor: str, model: SensorModel, length: Length, seed: int, budget_s: float = 3.0) -> Outcome:
    """Measure a function of a random profile, called again and again."""
    chance = random.Random(seed)
    kind = a_kind(sensor, chance)
    call_s = _call_s(length, chance, kind.gpu.sensor.counter_period_ms / 1e3)
    with opened(kind, seed) as (world, meter):
        kernel = Kernel(world, _profile(call_s, chance, kind))
        with installed(VirtualRig(world, meter, model)):
            found = energy(kernel, budget_s=budget_s, seed=seed)
    assert found.joules.low is not None
    assert found.joules.high is not None
    return Outcome(
        found.joules.value / kernel.joules, found.joules.low / kernel.joules, found.joules.high / kernel.joules
    )


@contextmanager
def installed(rig: EnergyDevice) -> Iterator[None]:
    """Let ``assay.energy`` measure on a rig, whatever device is asked for."""

    @contextmanager
    def given(_options: object) -> Iterator[EnergyDevice]:
        yield rig

    with patch.object(rigs, "open_device", given):
        yield


def _call_s(length: Length, chance: random.Random, period_s: float) -> float:
    return {
        "10 µs": 1e-5,
        "0.2 ms": 2e-4,
        "5 ms": chance.uniform(0.003, 0.008),
        "part of a period": period_s * chance.uniform(0.1, 1.0),
        "sensor's period": period_s,
        "near the period": period_s * chance.uniform(0.97, 1.03),
        "long": chance.uniform(0.3, 1.2),
    }[length]


def _profile(call_s: float, chance: random.Random, kind: Kind) -> Profile:
    """Return a random way to spend a call: flat, a burst, or several levels; short ones are flat."""
    idle, most = kind.gpu.idle_w, kind.gpu.power_limit_default_w
    high = chance.uniform(idle + 0.2 * (most - idle), most)
    shape = chance.choice(["flat", "burst", "levels"]) if call_s > 0.001 else "flat"
    if shape == "flat":
        return ((call_s, high),)
    if shape == "burst":
        duty, place = chance.uniform(0.1, 0.6), chance.random()
        before_s = place * (1 - duty) * call_s
        after_s = (1 - place) * (1 - duty) * call_s
        return ((before_s, 1.1 * idle), (duty * call_s, high), (after_s, 1.1 * idle))
    weights = [-math.log(1 - chance.random()) for _ in range(chance.randint(3, 6))]
    return tuple((call_s * weight / sum(weights), chance.uniform(idle, high)) for weight in weights)
