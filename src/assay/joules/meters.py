"""The meters there are: a GPU's sensors, and a processor's energy counters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.joules.readings import Reading
from assay.monitor.rapl import Rapl

if TYPE_CHECKING:
    from pathlib import Path

    from assay.joules.clock import Clock
    from assay.machine.sensors import GpuSensor

POWERCAP = "sys/class/powercap"


class GpuPowerMeter:
    """A GPU's counter and power readings. The counter is asked for as long as there is one."""

    def __init__(self, sensor: GpuSensor, clock: Clock) -> None:
        self._sensor = sensor
        self._clock = clock
        self._counts: bool | None = None

    @property
    def lost(self) -> str | None:
        """Why the GPU does not answer any more."""
        return self._sensor.lost

    @property
    def last_error(self) -> str:
        """What the driver said last when it did not answer."""
        return self._sensor.last_error

    def read(self) -> Reading | None:
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
        return Reading(
            t_ns,
            begin_ns,
            end_ns,
            energy_j=energy_j,
            instant_w=power.power_instant_w if power is not None else None,
            average_w=power.power_average_w if power is not None else None,
            usage_w=power.power_usage_w if power is not None else None,
        )


class RaplMeter:
    """The energy of all packages of the processor and their memory; wraps are made good."""

    lost: str | None = None

    def __init__(self, root: Path, clock: Clock) -> None:
        """Open the counters.

        Raises:
            MachineCannot: There are none, or this process may not read them.
        """
        self._clock = clock
        self._rapl = Rapl(root)
        self._domains = tuple(sorted(name for name in self._rapl.read_j() if name.startswith("package")))
        self.last_error = "the processor's energy counters (RAPL) stopped answering"
        if not self._domains:
            raise MachineCannot(_why_not(root))

    @property
    def domains(self) -> tuple[str, ...]:
        """What is counted: ``package-0``, ``package-0/dram``."""
        return self._domains

    def read(self) -> Reading | None:
        """Return the energy since the meter was opened; null when a domain does not answer."""
        begin_ns = self._clock.now_ns()
        joules = self._rapl.read_j()
        end_ns = self._clock.now_ns()
        if any(name not in joules for name in self._domains):
            return None
        return Reading(begin_ns, begin_ns, end_ns, energy_j=sum(joules[name] for name in self._domains))


def _why_not(root: Path) -> str:
    counters = sorted((root / POWERCAP).glob("intel-rapl:*/energy_uj"))
    if not counters:
        return "This machine shows no energy counter of its processor (RAPL), as is usual in virtual machines."
    if not any(os.access(counter, os.R_OK) for counter in counters):
        return (
            "The processor's energy counters (RAPL) may only be read by root here; "
            "allow it: sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
        )
    return "The processor's energy counters (RAPL) do not answer."
