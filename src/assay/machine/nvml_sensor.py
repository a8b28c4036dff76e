"""The sensors of one NVIDIA GPU, read again and again: few and cheap calls, each field by itself.

    at each reading    one call for the fields: power, memory temperature, time under the cap; PCIe and NVLink bytes
                       a call each: utilisation, memory, temperature, two clocks, throttle reasons
    now and then       energy and two throttle times (milliseconds), processes, PCIe rates (40 ms)

The library is handed in: only ``nvidia.py`` knows where it comes from.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

from assay.machine.nvml_reader import list_processes, memory_of, read_throttle
from assay.machine.sensors import GpuMeter, GpuReading, PcieRate

if TYPE_CHECKING:
    from assay.machine.nvml_reader import Reader
    from assay.machine.vendor import GpuProcess

_MIB = 2**20
_KIB = 2**10
_ALL_LINKS = 0xFFFFFFFF
_FIELDS = {
    "power_average": (185, 0),
    "power_instant": (186, 0),
    "memory_temperature": (82, 0),
    "power_cap": (74, 0),
    "pcie_tx": (197, 0),
    "pcie_rx": (198, 0),
    "nvlink_tx": (138, _ALL_LINKS),
    "nvlink_rx": (139, _ALL_LINKS),
}
"""What is asked in one call, by NVML's number of the field and its scope; of NVLinks the sum over all."""

_LEVELS = {name: field for name, field in _FIELDS.items() if not name.endswith(("_tx", "_rx"))}

_ENERGY = {"energy": (83, 0)}
_HELD_BACK = {"hot_software": (269, 0), "hot_hardware": (270, 0), "power_brake": (271, 0)}
"""What takes an H200 3 to 20 ms, and 0.6 ms, to say: not for every reading."""

_PCIE = {name: _FIELDS[name] for name in ("pcie_tx", "pcie_rx")}

_ANSWER = struct.Struct("@IIqqII8s")
"""NVML's answer about a field: its number, scope, time, latency, the value's type, a return code, the value. It is
taken apart here, as the bindings' way to look into it takes longer than all calls of a reading together."""

_VALUES = {kind: struct.Struct(f"@{letter}") for kind, letter in enumerate("dILQqiH")}
"""How a value is laid out, by its type."""


class NvmlSensor:
    """A GPU's sensors, asked by one thread for readings and by another for the slow answers."""

    def __init__(self, reader: Reader, uuid: str) -> None:
        self.uuid = uuid
        self._reader = reader

    @property
    def lost(self) -> str | None:
        """Why the GPU does not answer any more."""
        return self._reader.lost

    @property
    def last_error(self) -> str:
        """What NVML said last when it did not answer."""
        return self._reader.last_error

    def read(self, *, traffic: bool = True) -> GpuReading | None:
        """Return what the sensors say, bytes moved only if asked for; null when not one of them answers."""
        ask, fields = self._reader, self._fields(_FIELDS if traffic else _LEVELS)
        memory, busy = memory_of(ask, ask.handle), ask.ask("nvmlDeviceGetUtilizationRates")
        reading = GpuReading(
            utilisation_percent=None if busy is None else busy.gpu,
            memory_utilisation_percent=None if busy is None else busy.memory,
            memory_used_mib=None if memory is None else memory.used / _MIB,
            memory_total_mib=None if memory is None else memory.total / _MIB,
            power_average_w=_scaled(fields.get("power_average"), 1e-3),
            power_instant_w=_scaled(fields.get("power_instant"), 1e-3),
            power_usage_w=None if _names_its_power(fields) else ask.watts("nvmlDeviceGetPowerUsage"),
            temperature_c=ask.number("nvmlDeviceGetTemperature", ask.nvml.NVML_TEMPERATURE_GPU),
            memory_temperature_c=fields.get("memory_temperature"),
            sm_mhz=ask.number("nvmlDeviceGetClockInfo", ask.nvml.NVML_CLOCK_SM),
            memory_mhz=ask.number("nvmlDeviceGetClockInfo", ask.nvml.NVML_CLOCK_MEM),
            throttle=read_throttle(ask),
            power_cap_s=_scaled(fields.get("power_cap"), 1e-9),
            pcie_tx_bytes=fields.get("pcie_tx"),
            pcie_rx_bytes=fields.get("pcie_rx"),
            nvlink_tx_bytes=_times(fields.get("nvlink_tx"), _KIB),
            nvlink_rx_bytes=_times(fields.get("nvlink_rx"), _KIB),
        )
        return None if reading == _NOTHING else reading

    def pcie_bytes(self) -> tuple[int | None, int | None]:
        """Return the bytes sent and received, as the card counts them: on some with 32 bits."""
        fields = self._fields(_PCIE)
        return fields.get("pcie_tx"), fields.get("pcie_rx")

    def _fields(self, asked: dict[str, tuple[int, int]]) -> dict[str, Any]:
        """Return the fields that answered, by our names."""
        values = self._reader.ask("nvmlDeviceGetFieldValues", list(asked.values()))
        if values is None:
            return {}
        answers = zip(asked, _ANSWER.iter_unpack(bytes(values)), strict=True)
        return {
            name: _VALUES[kind].unpack_from(value)[0]
            for name, (_, _, _, _, kind, code, value) in answers
            if code == 0 and kind in _VALUES
        }

    def meter(self) -> GpuMeter | None:
        """Return the dear counters; null when none of them answers."""
        begin_ns = time.perf_counter_ns()
        energy_mj = self._fields(_ENERGY).get("energy")
        if energy_mj is None:
            energy_mj = self._reader.number("nvmlDeviceGetTotalEnergyConsumption")
        took_us = (time.perf_counter_ns() - begin_ns) / 1e3
        held = self._fields(_HELD_BACK)
        if energy_mj is None and not held:
            return None
        return GpuMeter(
            energy_j=_scaled(energy_mj, 1e-3),
            took_us=None if energy_mj is None else took_us,
            too_hot_s=_scaled(_sum(held.get("hot_software"), held.get("hot_hardware")), 1e-9),
            power_brake_s=_scaled(held.get("power_brake"), 1e-9),
        )

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Return who is on the GPU; null when it does not say."""
        return list_processes(self._reader, self.uuid)

    def pcie_rate(self) -> PcieRate:
        """Return the PCIe traffic; NVML measures 20 ms each way meanwhile, and says KB/s."""
        nvml = self._reader.nvml
        sent = self._reader.number("nvmlDeviceGetPcieThroughput", nvml.NVML_PCIE_UTIL_TX_BYTES)
        received = self._reader.number("nvmlDeviceGetPcieThroughput", nvml.NVML_PCIE_UTIL_RX_BYTES)
        return PcieRate(tx_mb_per_s=_scaled(sent, 1e-3), rx_mb_per_s=_scaled(received, 1e-3))


_NOTHING = GpuReading()


def _names_its_power(fields: dict[str, Any]) -> bool:
    return "power_average" in fields or "power_instant" in fields


def _scaled(number: float | None, by: float) -> float | None:
    return None if number is None else round(number * by, 9)


def _times(number: int | None, by: int) -> int | None:
    return None if number is None else number * by


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)
