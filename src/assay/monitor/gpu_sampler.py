"""Sample GPUs: fast sensors at every tick, slow ones less often. Losing one GPU does not affect the others.

PCIe byte counters (NVML fields 197 and 198) have 32 bits on an H200: at the 63 GB/s of PCIe 5 x16 they wrap after
68 ms. Read more often than that, no byte is lost. The counts include packet headers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.monitor.samples import GpuLost, GpuMeterSample, GpuPcie, GpuProcesses, GpuSample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.machine.vendor import GpuProcess, GpuSensor
    from assay.monitor.recorder import SampleClock
    from assay.monitor.samples import RecordingLine


COUNTER_WRAP = 2**32
PCIE_WRAP_LIMIT_S = 0.06
"""Read at least this often; a recorder delayed by 68 ms under full traffic loses 4.3 GB."""
PCIE_READ_INTERVAL_NS = 54_000_000
"""Read no more often than this: it takes 0.4 ms on an H200, more than the rest of a sample."""


class ByteCounter:
    """Unwraps the byte counter of one direction of one GPU; the value at the first reading is kept as offset."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._wraps = 0

    def add(self, raw: int | None) -> int | None:
        """Add a raw reading and return the bytes so far; a value above 32 bits does not wrap."""
        if raw is None:
            return None
        if self._last is not None and raw < self._last < COUNTER_WRAP:
            self._wraps += 1
        self._last = raw
        return raw + self._wraps * COUNTER_WRAP


GIVE_UP_AFTER = 3
"""Consecutive samples without any reply after which a GPU is no longer sampled."""


PCIE_READ_SLACK_NS = 1_000_000
"""A sample that is early by up to this much counts as on time."""


class GpuSampler:
    """Samples GPUs one after another; sensors are keyed by GPU index."""

    def __init__(self, sensors: Mapping[int, GpuSensor], clock: SampleClock) -> None:
        self._sensors = dict(sensors)
        self._clock = clock
        self._silent: dict[int, int] = {}
        self._bytes = {index: (ByteCounter(), ByteCounter()) for index in sensors}
        self._counted_ns: dict[int, int] = {}
        self._counts_bytes: dict[int, bool] = {}
        """Whether a GPU counts the bytes it moves over PCIe; missing until known."""

    def read(self, tick: int) -> list[RecordingLine]:
        """Return a sample of each GPU, or the reason for one that was lost."""
        return [line for index, sensor in list(self._sensors.items()) for line in self._sample_gpu(tick, index, sensor)]

    def _sample_gpu(self, tick: int, index: int, sensor: GpuSensor) -> list[RecordingLine]:
        t_ns = self._clock.now_ns()
        traffic = (
            t_ns - self._counted_ns.get(index, -PCIE_READ_INTERVAL_NS) >= PCIE_READ_INTERVAL_NS - PCIE_READ_SLACK_NS
        )
        reading = sensor.read(traffic=traffic)
        self._silent[index] = 0 if reading is not None else self._silent.get(index, 0) + 1
        if sensor.lost is not None:
            return [self._give_up(t_ns, index, sensor.lost)]
        if reading is not None:
            readings = dict(reading.__dict__)
            if traffic:
                self._counted_ns[index] = t_ns
                self._counts_bytes[index] = reading.pcie_tx_bytes is not None
                sent, received = self._counted(index, reading.pcie_tx_bytes, reading.pcie_rx_bytes)
                readings |= {"pcie_tx_bytes": sent, "pcie_rx_bytes": received}
            return [GpuSample(t_ns=t_ns, tick=tick, gpu=index, **readings)]
        if self._silent[index] >= GIVE_UP_AFTER:
            return [self._give_up(t_ns, index, f"it stopped answering: {sensor.last_error}")]
        return []

    def _counted(self, index: int, sent: int | None, received: int | None) -> tuple[int | None, int | None]:
        counters = self._bytes[index]
        return counters[0].add(sent), counters[1].add(received)

    def pulse(self) -> None:
        """Read the counters that would wrap between two samples."""
        for index, sensor in list(self._sensors.items()):
            if self._counts_bytes.get(index):
                self._counted(index, *sensor.pcie_bytes())

    def _give_up(self, t_ns: int, index: int, reason: str) -> GpuLost:
        del self._sensors[index]
        return GpuLost(t_ns=t_ns, gpu=index, reason=reason)

    def read_meters(self, tick: int) -> list[RecordingLine]:
        """Return the counters of each GPU that take milliseconds to read."""
        lines: list[RecordingLine] = []
        for index, sensor in list(self._sensors.items()):
            t_ns = self._clock.now_ns()
            meter = sensor.meter()
            if meter is not None:
                lines.append(GpuMeterSample(t_ns=t_ns, tick=tick, gpu=index, **meter.__dict__))
        return lines

    def read_processes_and_pcie(self, tick: int) -> list[RecordingLine]:
        """Return the processes on each GPU, and the PCIe rate of GPUs that do not count bytes."""
        lines: list[RecordingLine] = []
        for index, sensor in list(self._sensors.items()):
            listed = sensor.processes()
            if listed is not None:
                lines.append(_processes(self._clock.now_ns(), index, listed))
            if self._counts_bytes.get(index) is False:
                rate = sensor.pcie_rate()
                lines.append(GpuPcie(t_ns=self._clock.now_ns(), gpu=index, **rate.__dict__))
        return lines


def _processes(t_ns: int, index: int, listed: tuple[GpuProcess, ...]) -> GpuProcesses:
    memories_mib = [process.memory_mib for process in listed if process.memory_mib is not None]
    total_mib = sum(memories_mib) if len(memories_mib) == len(listed) else None
    return GpuProcesses(t_ns=t_ns, gpu=index, count=len(listed), memory_mib=total_mib, processes=listed)
