"""What measuring energy needs on a device: who keeps it busy, who reads its sensors, and how these see."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from assay.joules.clock import HostClock
from assay.joules.keeper import CpuKeeper
from assay.joules.meters import RaplMeter
from assay.joules.model import CounterModel, SensorModel
from assay.joules.readings import counter_series
from assay.joules.sampling import Poller
from assay.joules.sensor_fit import quantum_of
from assay.joules.ticks import find_ticks
from assay.timing.subject import first_calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.results import Origin
    from assay.joules.clock import Clock
    from assay.joules.keeper import Keeper
    from assay.joules.readings import Reading
    from assay.joules.sampling import Sampling
    from assay.timing.options import Options
    from assay.timing.subject import Bound

RAPL_LOOK_NS = 50_000_000
RAPL_EVERY_S = 0.01
RAPL_LAG_ERROR_S = 0.001
FASTEST_S, SLOWEST_S = 0.002, 0.01
"""Between two readings: a tenth of the sensor's period, within these."""


class Rig(Protocol):
    """A device whose energy is measured.

    Attributes:
        device: What it is called: ``cuda:0``, ``cpu``.
        model: How its sensors see.
        origin: Whether they are real.
        notes: What is to be said of them.
    """

    device: str
    clock: Clock
    model: SensorModel
    origin: Origin
    notes: tuple[str, ...]

    def keeper(self, bound: Bound, options: Options) -> Keeper:
        """Make the first calls, and return who keeps the device busy with more of them."""

    def sampling(self) -> Sampling:
        """Return who reads the sensors, not yet begun."""


@contextmanager
def rig(options: Options) -> Iterator[Rig]:
    """Give the rig of a device for the length of a ``with`` block.

    Raises:
        MachineCannot: The device's energy cannot be read here, and why.
    """
    if not options.on_gpu:
        yield CpuRig(Path("/"), HostClock())
        return
    from assay.joules.cuda_rig import cuda_rig

    with cuda_rig(options) as device:
        yield device


class CpuRig:
    """The host's processor, by its own energy counters (RAPL)."""

    device = "cpu"
    origin: Origin = "real"

    def __init__(self, root: Path, clock: Clock) -> None:
        """Open the counters and see how often they move.

        Raises:
            MachineCannot: There are none, or this process may not read them.
        """
        self.clock = clock
        self._meter = RaplMeter(root, clock)
        self.model = rapl_model(self._watch(), ", ".join(self._meter.domains))
        self.notes: tuple[str, ...] = (f"all that ran on {', '.join(self._meter.domains)} counts, whoever started it",)

    def _watch(self) -> list[Reading]:
        until_ns = self.clock.now_ns() + RAPL_LOOK_NS
        readings = []
        while self.clock.now_ns() < until_ns:
            if (reading := self._meter.read()) is not None:
                readings.append(reading)
        return readings

    def keeper(self, bound: Bound, options: Options) -> Keeper:
        """Make the first calls, and return a loop over them."""
        first = first_calls(bound, _nothing, options.limit_s)
        return CpuKeeper(bound.call, self.clock, first.least_us / 1e6, first.notes)

    def sampling(self) -> Sampling:
        """Return a poller of the counters."""
        return Poller(self._meter, self.clock, RAPL_EVERY_S)


def rapl_model(readings: list[Reading], domains: str) -> SensorModel:
    """Return how a processor's counters count, from readings as fast as they come: they move about every 1 ms."""
    series = counter_series(readings, readings[0].t_ns) if readings else None
    if series is None or len(series) < 2:
        return SensorModel(device=domains, driver="RAPL")
    ticks = find_ticks(series.begin_s, series.end_s, series.energy_j)
    spacing = ticks.times_s[1:] - ticks.times_s[:-1]
    period_s = float(sorted(spacing)[len(spacing) // 2]) if len(spacing) else RAPL_EVERY_S
    counter = CounterModel(
        period_s=period_s,
        jitter_s=period_s / 4,
        quantum_j=quantum_of(series.energy_j),
        lag_s=0.0,
        lag_error_s=RAPL_LAG_ERROR_S,
        read_s=float((series.end_s - series.begin_s).mean()),
    )
    return SensorModel(device=domains, driver="RAPL", counter=counter)


def polling_s(model: SensorModel) -> float:
    """Return how often to read sensors, in s: often enough to place their ticks."""
    periods_s = [
        part.period_s for part in (model.counter, model.instant, model.usage, model.average) if part is not None
    ]
    return min(SLOWEST_S, max(FASTEST_S, min(periods_s, default=SLOWEST_S) / 10))


def _nothing() -> None:
    """A call on the host is over when it returns."""
