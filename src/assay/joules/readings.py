"""Readings of energy counters and power sensors, the meters and the thread that take them, and when calls ran."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from assay.core.errors import MachineCannot
from assay.monitor.samplers import RaplCounters

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from assay.machine.model import GpuSensor


if TYPE_CHECKING:
    Array = NDArray[np.float64]

PowerKind = Literal["instant", "average", "usage"]
POWER_KINDS: tuple[PowerKind, ...] = ("instant", "usage", "average")
"""Kinds of power readings, best for integration first: ``usage`` is instant on some cards, an average on others."""


@dataclass(frozen=True, slots=True)
class MeterReading:
    """One reading of a meter, on the host's monotonic clock. Null: not available.

    The power is from ``t_ns``; the counter was queried at ``begin_ns`` and had answered at ``end_ns``, up to 20 ms
    later.
    """

    t_ns: int
    begin_ns: int
    end_ns: int
    energy_j: float | None = None
    instant_w: float | None = None
    average_w: float | None = None
    usage_w: float | None = None


class EnergyMeter(Protocol):
    """A meter that counts energy or shows power of a device."""

    @property
    def lost(self) -> str | None:
        """Why the device does not answer any more; null as long as it may."""

    @property
    def last_error(self) -> str:
        """The last error message when it did not answer."""

    def read(self) -> MeterReading | None:
        """Return a reading; null when nothing answers."""


@dataclass(frozen=True)
class CounterSeries:
    """Readings of a counter: when it was queried and had answered, in s since an origin, and the energy in J."""

    begin_s: Array
    end_s: Array
    energy_j: Array

    def __len__(self) -> int:
        return len(self.energy_j)

    def part(self, chosen: slice) -> CounterSeries:
        """Return a slice of the series."""
        return CounterSeries(self.begin_s[chosen], self.end_s[chosen], self.energy_j[chosen])


@dataclass(frozen=True)
class PowerSeries:
    """Power readings: when, in s since an origin, and W."""

    t_s: Array
    watts: Array

    def __len__(self) -> int:
        return len(self.watts)


def counter_series(readings: Sequence[MeterReading], origin_ns: int) -> CounterSeries:
    """Return the counter's readings, where it answered."""
    rows = [(r.begin_ns - origin_ns, r.end_ns - origin_ns, r.energy_j) for r in readings if r.energy_j is not None]
    table = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return CounterSeries(table[:, 0] / 1e9, table[:, 1] / 1e9, table[:, 2])


def power_series(readings: Sequence[MeterReading], kind: PowerKind, origin_ns: int) -> PowerSeries:
    """Return the readings of one kind of power, where it answered."""
    rows = [(r.t_ns - origin_ns, w) for r in readings if (w := getattr(r, f"{kind}_w")) is not None]
    table = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return PowerSeries(table[:, 0] / 1e9, table[:, 1])


@dataclass(frozen=True)
class CallBoundary:
    """A moment between two calls, and how many had ended by then."""

    t_ns: int
    calls: int


@dataclass(frozen=True)
class DeviceActivity:
    """Call boundaries in order; where the number of calls does not change, the device was at rest.

    Attributes:
        times_s: The moments, on the same clock as the readings.
        calls: Number of calls ended by then.
    """

    times_s: Array
    calls: Array

    @property
    def is_empty(self) -> bool:
        """Whether no call has ended."""
        return len(self.times_s) < 2 or self.calls[-1] == self.calls[0]

    def progress(self, at_s: Array) -> Array:
        """Return how many calls had ended at given moments, including the fraction of the current one."""
        return np.asarray(np.interp(at_s, self.times_s, self.calls), dtype=np.float64)

    def rested_s(self, at_s: Array) -> Array:
        """Return how long the device had rested by then; before the first boundary and after the last it rests."""
        resting = np.where(np.diff(self.calls) == 0, np.diff(self.times_s), 0.0)
        first, last = self.times_s[0], self.times_s[-1]
        inside = np.interp(at_s, self.times_s, np.concatenate([[0.0], np.cumsum(resting)]))
        return np.asarray(inside + np.minimum(at_s - first, 0.0) + np.maximum(at_s - last, 0.0), dtype=np.float64)

    def is_busy(self, at_s: Array) -> NDArray[np.bool_]:
        """Return whether a call was running."""
        index = np.searchsorted(self.times_s, at_s, side="right")
        inside = (index > 0) & (index < len(self.times_s))
        at = np.clip(index, 1, len(self.times_s) - 1)
        return np.asarray(inside & (self.calls[at] > self.calls[at - 1]))

    def busy_s(self, from_s: float, until_s: float) -> float:
        """Return for how long calls were running between two moments."""
        rested = self.rested_s(np.array([from_s, until_s]))
        return float(until_s - from_s - (rested[1] - rested[0]))

    def first_at_or_after(self, t_s: float) -> float | None:
        """Return the first boundary at or after a moment; null where there is none."""
        index = int(np.searchsorted(self.times_s, t_s))
        return float(self.times_s[index]) if index < len(self.times_s) else None


def build_activity(boundaries: list[CallBoundary], origin_ns: int) -> DeviceActivity:
    """Return call boundaries as activity, in seconds since ``origin_ns``."""
    times = np.array([(boundary.t_ns - origin_ns) / 1e9 for boundary in boundaries], dtype=np.float64)
    return DeviceActivity(times, np.array([boundary.calls for boundary in boundaries], dtype=np.float64))


POWERCAP = "sys/class/powercap"


class GpuPowerMeter:
    """A GPU's counter and power readings. The counter is queried only if the GPU has one."""

    def __init__(self, sensor: GpuSensor, clock: SleepingClock) -> None:
        self._sensor = sensor
        self._clock = clock
        self._counts: bool | None = None

    @property
    def lost(self) -> str | None:
        """Why the GPU does not answer any more."""
        return self._sensor.lost

    @property
    def last_error(self) -> str:
        """The driver's last error message when it did not answer."""
        return self._sensor.last_error

    def read(self) -> MeterReading | None:
        """Return energy and power; null when neither answers."""
        t_ns = self._clock.now_ns()
        power = self._sensor.read(traffic=False)
        begin_ns = self._clock.now_ns()
        meter = self._sensor.meter() if self._counts is not False else None
        end_ns = self._clock.now_ns()
        energy_j = meter.energy_j if meter is not None else None
        if self._counts is None and (power is not None or meter is not None):
            self._counts = energy_j is not None
        if power is None and energy_j is None:
            return None
        return MeterReading(
            t_ns,
            begin_ns,
            end_ns,
            energy_j=energy_j,
            instant_w=power.power_instant_w if power is not None else None,
            average_w=power.power_average_w if power is not None else None,
            usage_w=power.power_usage_w if power is not None else None,
        )


class RaplMeter:
    """The energy of all packages of the processor and their memory; counter wrap-arounds are corrected."""

    lost: str | None = None

    def __init__(self, root: Path, clock: SleepingClock) -> None:
        """Open the counters.

        Raises:
            MachineCannot: There are none, or this process may not read them.
        """
        self._clock = clock
        self._rapl = RaplCounters(root)
        self._domains = tuple(sorted(name for name in self._rapl.read_j() if name.startswith("package")))
        self.last_error = "the processor's energy counters (RAPL) stopped answering"
        if not self._domains:
            raise MachineCannot(_rapl_problem(root))

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains counted: ``package-0``, ``package-0/dram``."""
        return self._domains

    def read(self) -> MeterReading | None:
        """Return the energy since the meter was opened; null when a domain does not answer."""
        begin_ns = self._clock.now_ns()
        joules = self._rapl.read_j()
        end_ns = self._clock.now_ns()
        if any(name not in joules for name in self._domains):
            return None
        return MeterReading(begin_ns, begin_ns, end_ns, energy_j=sum(joules[name] for name in self._domains))


def _rapl_problem(root: Path) -> str:
    counters = sorted((root / POWERCAP).glob("intel-rapl:*/energy_uj"))
    if not counters:
        return "This machine shows no energy counter of its processor (RAPL), as is usual in virtual machines."
    if not any(os.access(counter, os.R_OK) for counter in counters):
        return (
            "The processor's energy counters (RAPL) may only be read by root here; "
            "allow it: sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
        )
    return "The processor's energy counters (RAPL) do not answer."


MAX_SILENT_READS = 20
"""Maximum number of consecutive reads without an answer."""
JOIN_S = 5.0


class ReadingSampler(Protocol):
    """Collects readings in the background."""

    def start(self) -> None:
        """Start to read."""

    def readings(self) -> list[MeterReading]:
        """Return all readings so far.

        Raises:
            MachineCannot: The device does not answer any more.
        """

    def stop(self) -> list[MeterReading]:
        """Stop, and return all readings."""


class MeterPoller:
    """Reads a meter in its own thread, every ``every_s`` seconds or as fast as it answers."""

    def __init__(self, meter: EnergyMeter, clock: SleepingClock, every_s: float) -> None:
        self._meter = meter
        self._clock = clock
        self._every_s = every_s
        self._readings: list[MeterReading] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="assay-joules", daemon=True)
        self._error: BaseException | None = None

    def start(self) -> None:
        """Start to read."""
        self._thread.start()

    def _poll(self) -> None:
        silent = 0
        try:
            while not self._stopping.is_set():
                begin_ns = self._clock.now_ns()
                reading = self._meter.read()
                silent = 0 if reading is not None else silent + 1
                if reading is not None:
                    self._readings.append(reading)
                if self._meter.lost is not None or silent >= MAX_SILENT_READS:
                    why = self._meter.lost or self._meter.last_error
                    raise MachineCannot(f"The device stopped saying what it spends: {why}.")  # noqa: TRY301
                took_s = (self._clock.now_ns() - begin_ns) / 1e9
                self._stopping.wait(max(0.0, self._every_s - took_s))
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asks for readings
            self._error = error

    def readings(self) -> list[MeterReading]:
        """Return all readings so far, or raise the error that ended them."""
        if self._error is not None:
            raise self._error
        return list(self._readings)

    @property
    def alive(self) -> bool:
        """Whether it is reading."""
        return self._thread.is_alive()

    def stop(self) -> list[MeterReading]:
        """Stop, and return all readings, or raise the error that ended them."""
        self._stopping.set()
        if self.alive:
            self._thread.join(JOIN_S)
        return self.readings()


class SleepingClock(Protocol):
    """A clock with a sleep function."""

    def now_ns(self) -> int:
        """Return nanoseconds of the host's monotonic clock."""

    def sleep(self, seconds: float) -> None:
        """Sleep for some seconds."""


class HostMonotonicClock:
    """The host's monotonic clock, which all its processes share."""

    def now_ns(self) -> int:
        """Return nanoseconds since the machine started."""
        return time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        """Sleep for some seconds, if positive."""
        if seconds > 0:
            time.sleep(seconds)
