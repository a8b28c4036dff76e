"""One GPU's clocks, temperature, power and throttle reasons, read again and again by the few calls that are cheap."""

from __future__ import annotations

import contextlib

from assay.core.results import GpuMoment
from assay.machine import nvidia
from assay.machine.nvml_reader import read_throttle


class Glance:
    """Reads a GPU whenever it is called; close it to let NVML go."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._open = contextlib.ExitStack()
        (self._reader,) = self._open.enter_context(nvidia.readers([uuid]))

    def __call__(self) -> GpuMoment | None:
        """Return what the GPU is doing; null when it does not answer any more."""
        reader = self._reader
        moment = GpuMoment(
            uuid=self._uuid,
            sm_mhz=reader.number("nvmlDeviceGetClockInfo", reader.nvml.NVML_CLOCK_SM),
            memory_mhz=reader.number("nvmlDeviceGetClockInfo", reader.nvml.NVML_CLOCK_MEM),
            temperature_c=reader.number("nvmlDeviceGetTemperature", reader.nvml.NVML_TEMPERATURE_GPU),
            power_w=reader.watts("nvmlDeviceGetPowerUsage"),
            throttle=read_throttle(reader),
        )
        return moment if reader.lost is None else None

    def close(self) -> None:
        """Let NVML go."""
        self._open.close()
