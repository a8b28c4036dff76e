"""Read GPUs through NVML: properties, links and state, and the sensors that are sampled repeatedly.

Each field is read by itself, so a failing one does not affect others. Sensors use few and cheap calls:

    at each reading    one call for the fields: power, memory temperature, time under the cap; PCIe and NVLink bytes
                       a call each: utilization, memory, temperature, two clocks, throttle reasons
    occasionally       energy and two throttle times (milliseconds), processes, PCIe rates (40 ms)

The library is passed in: only ``nvidia.py`` knows where it comes from.
"""

from __future__ import annotations

import re
import struct
import time
from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING, Any

from assay.machine.model import (
    Gpu,
    GpuLink,
    GpuMeter,
    GpuProcess,
    GpuReading,
    GpuState,
    LinkPath,
    MigInstance,
    NodeHint,
    PcieRate,
    UnreachableGpu,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


THROTTLE_REASONS = {
    0x001: "idle",
    0x002: "clocks set by the user",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "too hot (software)",
    0x040: "too hot (hardware)",
    0x080: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability voltage",
}
"""NVML's bits of `nvmlClocksEventReasons`; "hardware slowdown" comes with one of the others if the cause is known."""


def describe_throttle(mask: int) -> tuple[str, ...]:
    """Return the reasons in an NVML mask, lowest bit first; an unknown bit as its number."""
    bits = [1 << index for index in range(mask.bit_length()) if mask >> index & 1]
    return tuple(THROTTLE_REASONS.get(bit, f"reason {bit:#x}") for bit in bits)


_MIB = 2**20
_CPU_WORDS = 64
_MAX_NVLINKS = 36
_TO_SWITCH = 2
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_PATHS: dict[int, LinkPath] = {0: "board", 10: "switch", 20: "switches", 30: "bridge", 40: "node", 50: "system"}


class NvmlReader:
    """Queries NVML about one GPU. Unsupported values are null; a lost GPU is remembered."""

    def __init__(self, nvml: ModuleType, index: int) -> None:
        self.nvml = nvml
        self.index = index
        self.lost: str | None = None
        self.last_error = "it does not say who it is"
        self.handle: Any = self.plain("nvmlDeviceGetHandleByIndex", index)

    def plain(self, function: str, *arguments: object) -> Any:
        """Return the result of an NVML function; null where card, driver or bindings do not support it."""
        try:
            return getattr(self.nvml, function)(*arguments)
        except (self.nvml.NVMLError_GpuIsLost, self.nvml.NVMLError_ResetRequired) as error:
            self.lost = self.last_error = str(error)
        except self.nvml.NVMLError as error:
            self.last_error = str(error)
        except (self.nvml.NVMLLibraryMismatchError, AttributeError, ValueError):
            pass  # an older driver, older bindings, or an undecodable text
        return None

    def ask(self, function: str, *arguments: object) -> Any:
        """Return the result of an NVML function for this GPU."""
        return None if self.handle is None else self.plain(function, self.handle, *arguments)

    def number(self, function: str, *arguments: object) -> int | None:
        """Return an integer."""
        value = self.ask(function, *arguments)
        return None if value is None else int(value)

    def watts(self, function: str) -> float | None:
        """Return a power in W; NVML reports mW."""
        milliwatts = self.number(function)
        return None if milliwatts is None else milliwatts / 1e3

    def switch(self, function: str) -> bool | None:
        """Return whether something is on; for a pair (now, after the next reset) the first one."""
        value = self.ask(function)
        return None if value is None else bool(value[0] if isinstance(value, list | tuple) else value)


def read_gpu(reader: NvmlReader) -> Gpu | UnreachableGpu:
    """Return a GPU in its current state, without its memory node; or that it is lost, and why."""
    uuid, name = decode_text(reader.ask("nvmlDeviceGetUUID")), decode_text(reader.ask("nvmlDeviceGetName"))
    if uuid is None:
        return UnreachableGpu(index=reader.index, reason=reader.lost or reader.last_error)
    memory = read_memory(reader, reader.handle)
    limits_mw = reader.ask("nvmlDeviceGetPowerManagementLimitConstraints") or (None, None)
    gpu = Gpu(
        index=reader.index,
        uuid=uuid,
        name=name or "unnamed",
        pci_bus_id=_pci_address(reader.ask("nvmlDeviceGetPciInfo")),
        memory_mib=None if memory is None else memory.total / _MIB,
        memory_node=_memory_node(reader),
        compute_capability=reader.ask("nvmlDeviceGetCudaComputeCapability"),
        ecc=reader.switch("nvmlDeviceGetEccMode"),
        persistence=reader.switch("nvmlDeviceGetPersistenceMode"),
        compute_mode=_COMPUTE_MODES.get(reader.ask("nvmlDeviceGetComputeMode")),
        power_limit_w=reader.watts("nvmlDeviceGetPowerManagementLimit"),
        power_limit_default_w=reader.watts("nvmlDeviceGetPowerManagementDefaultLimit"),
        power_limit_min_w=None if limits_mw[0] is None else limits_mw[0] / 1e3,
        power_limit_max_w=None if limits_mw[1] is None else limits_mw[1] / 1e3,
        sm_max_mhz=reader.number("nvmlDeviceGetMaxClockInfo", reader.nvml.NVML_CLOCK_SM),
        memory_max_mhz=reader.number("nvmlDeviceGetMaxClockInfo", reader.nvml.NVML_CLOCK_MEM),
        pcie_max_generation=reader.number("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_max_width=reader.number("nvmlDeviceGetMaxPcieLinkWidth"),
        mig=reader.switch("nvmlDeviceGetMigMode"),
        instances=_read_instances(reader, uuid),
        state=read_state(reader),
    )
    return gpu if reader.lost is None else UnreachableGpu(index=reader.index, reason=reader.lost)


def read_throttle(reader: NvmlReader) -> tuple[str, ...] | None:
    """Return why a GPU's clock is not higher, as text; null where it does not report it."""
    mask = reader.number("nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:
        mask = reader.number("nvmlDeviceGetCurrentClocksThrottleReasons")
    return None if mask is None else describe_throttle(mask)


def read_state(reader: NvmlReader) -> GpuState:
    """Return the current state of a GPU."""
    memory, busy = read_memory(reader, reader.handle), reader.ask("nvmlDeviceGetUtilizationRates")
    return GpuState(
        sm_mhz=reader.number("nvmlDeviceGetClockInfo", reader.nvml.NVML_CLOCK_SM),
        memory_mhz=reader.number("nvmlDeviceGetClockInfo", reader.nvml.NVML_CLOCK_MEM),
        power_w=reader.watts("nvmlDeviceGetPowerUsage"),
        temperature_c=reader.number("nvmlDeviceGetTemperature", reader.nvml.NVML_TEMPERATURE_GPU),
        memory_used_mib=None if memory is None else memory.used / _MIB,
        utilisation_percent=None if busy is None else int(busy.gpu),
        pcie_generation=reader.number("nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_width=reader.number("nvmlDeviceGetCurrPcieLinkWidth"),
        throttle=read_throttle(reader),
    )


def read_hint(reader: NvmlReader) -> NodeHint:
    """Return NVML's information on a GPU's location."""
    words = reader.ask("nvmlDeviceGetCpuAffinity", _CPU_WORDS) or ()
    near = tuple(64 * index + bit for index, word in enumerate(words) for bit in range(64) if word >> bit & 1)
    return NodeHint(cpus=near, memory_node=_memory_node(reader))


def _memory_node(reader: NvmlReader) -> int | None:
    """Return NVML's "NUMA node": that of the GPU's own memory, where it is one."""
    node = reader.number("nvmlDeviceGetNumaNodeId")
    return node if node is not None and node >= 0 else None


def decode_text(value: str | bytes | None) -> str | None:
    """Return text, which older bindings return as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _pci_address(pci: Any) -> str | None:
    """Return "0000:3b:00.0" from NVML's "00000000:3B:00.0"."""
    bus_id = None if pci is None else decode_text(pci.busId)
    match = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+:[0-9a-f]+\.[0-9a-f]+)", (bus_id or "").lower())
    return f"{int(match[1], 16):04x}:{match[2]}" if match else None


def read_memory(reader: NvmlReader, handle: Any) -> Any:
    """Return the memory in bytes; the newer query does not count the driver's reserved memory as used."""
    version = getattr(reader.nvml, "nvmlMemory_v2", None)
    newer = reader.plain("nvmlDeviceGetMemoryInfo", handle, version) if version else None
    return newer or reader.plain("nvmlDeviceGetMemoryInfo", handle)


def list_processes(reader: NvmlReader, uuid: str) -> tuple[GpuProcess, ...] | None:
    """Return the processes on a GPU, each once, for compute, graphics and the multi-process service.

    Null: NVML does not report them.
    """
    by_pid: dict[int, GpuProcess] = {}
    answered = False
    for kind in ("Compute", "Graphics", "MPSCompute"):
        listed = reader.ask(f"nvmlDeviceGet{kind}RunningProcesses_v3")
        if listed is None:
            listed = reader.ask(f"nvmlDeviceGet{kind}RunningProcesses_v2")
        answered = answered or listed is not None
        for process in listed or ():
            memory = None if process.usedGpuMemory is None else process.usedGpuMemory / _MIB
            by_pid.setdefault(process.pid, GpuProcess(gpu=uuid, pid=process.pid, memory_mib=memory))
    return tuple(by_pid.values()) if answered else None


def _read_instances(reader: NvmlReader, parent: str) -> tuple[MigInstance, ...]:
    """Return the MIG instances of a GPU; none where it is whole."""
    if not reader.switch("nvmlDeviceGetMigMode"):
        return ()
    instances = (
        _read_instance(reader, number, parent) for number in range(reader.number("nvmlDeviceGetMaxMigDeviceCount") or 0)
    )
    return tuple(instance for instance in instances if instance is not None)


def _read_instance(reader: NvmlReader, number: int, parent: str) -> MigInstance | None:
    handle = reader.ask("nvmlDeviceGetMigDeviceHandleByIndex", number)
    uuid = None if handle is None else decode_text(reader.plain("nvmlDeviceGetUUID", handle))
    if uuid is None:
        return None
    memory, shape = read_memory(reader, handle), reader.plain("nvmlDeviceGetAttributes_v2", handle)
    profile = re.search(r"\bMIG (\S+)", decode_text(reader.plain("nvmlDeviceGetName", handle)) or "")
    return MigInstance(
        number=number,
        uuid=uuid,
        parent=parent,
        profile=profile[1] if profile else None,
        memory_mib=None if memory is None else memory.total / _MIB,
        slices=None if shape is None else int(shape.computeInstanceSliceCount),
        multiprocessors=None if shape is None else int(shape.multiprocessorCount),
        gpu_instance=reader.plain("nvmlDeviceGetGpuInstanceId", handle),
        compute_instance=reader.plain("nvmlDeviceGetComputeInstanceId", handle),
    )


def read_links(entries: Sequence[tuple[NvmlReader, Gpu]]) -> tuple[GpuLink, ...]:
    """Return how each pair of GPUs is connected."""
    if len(entries) < 2:
        return ()
    addresses = {gpu.pci_bus_id for _, gpu in entries if gpu.pci_bus_id}
    ends = {gpu.index: _nvlink_ends(reader, addresses) for reader, gpu in entries}
    return tuple(
        GpuLink(
            gpus=(one.index, other.index),
            nvlinks=ends[one.index][other.pci_bus_id or ""] or min(ends[one.index][None], ends[other.index][None]),
            path=_PATHS.get(reader.ask("nvmlDeviceGetTopologyCommonAncestor", other_reader.handle)),
        )
        for (reader, one), (other_reader, other) in combinations(entries, 2)
    )


def _nvlink_ends(reader: NvmlReader, gpus: set[str]) -> Counter[str | None]:
    """Return how many NVLinks of a GPU lead to each other GPU, and under null how many lead into switches."""
    ends: Counter[str | None] = Counter()
    for link in range(_MAX_NVLINKS):
        if not reader.ask("nvmlDeviceGetNvLinkState", link):
            continue
        address = _pci_address(reader.ask("nvmlDeviceGetNvLinkRemotePciInfo", link))
        if address in gpus:
            ends[address] += 1
        elif reader.ask("nvmlDeviceGetNvLinkRemoteDeviceType", link) == _TO_SWITCH:
            ends[None] += 1
    return ends


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
"""Fields read in one call, by NVML's field id and scope; for NVLinks the sum over all."""

_LEVELS = {name: field for name, field in _FIELDS.items() if not name.endswith(("_tx", "_rx"))}

_ENERGY = {"energy": (83, 0)}
_THROTTLE_TIMES = {"hot_software": (269, 0), "hot_hardware": (270, 0), "power_brake": (271, 0)}
"""Reading these takes an H200 3 to 20 ms, and 0.6 ms: not for every reading."""

_PCIE = {name: _FIELDS[name] for name in ("pcie_tx", "pcie_rx")}

_FIELD_ANSWER = struct.Struct("@IIqqII8s")
"""NVML's answer about a field: its id, scope, time, latency, the value's type, a return code, the value. It is unpacked
here, as the bindings' accessors take longer than all calls of a reading together."""

_VALUE_LAYOUTS = {kind: struct.Struct(f"@{letter}") for kind, letter in enumerate("dILQqiH")}
"""Memory layout of a value, by its type."""


class NvmlSensor:
    """A GPU's sensors; one thread reads them, another one queries the slow values."""

    def __init__(self, reader: NvmlReader, uuid: str) -> None:
        self.uuid = uuid
        self._reader = reader

    @property
    def lost(self) -> str | None:
        """Why the GPU does not answer any more."""
        return self._reader.lost

    @property
    def last_error(self) -> str:
        """NVML's last error message when it did not answer."""
        return self._reader.last_error

    def read(self, *, traffic: bool = True) -> GpuReading | None:
        """Return a reading, byte counters only if requested; null when no sensor answers."""
        reader, fields = self._reader, self._fields(_FIELDS if traffic else _LEVELS)
        memory, busy = read_memory(reader, reader.handle), reader.ask("nvmlDeviceGetUtilizationRates")
        reading = GpuReading(
            utilisation_percent=None if busy is None else busy.gpu,
            memory_utilisation_percent=None if busy is None else busy.memory,
            memory_used_mib=None if memory is None else memory.used / _MIB,
            memory_total_mib=None if memory is None else memory.total / _MIB,
            power_average_w=_scaled(fields.get("power_average"), 1e-3),
            power_instant_w=_scaled(fields.get("power_instant"), 1e-3),
            power_usage_w=None
            if {"power_average", "power_instant"} & fields.keys()
            else reader.watts("nvmlDeviceGetPowerUsage"),
            temperature_c=reader.number("nvmlDeviceGetTemperature", reader.nvml.NVML_TEMPERATURE_GPU),
            memory_temperature_c=fields.get("memory_temperature"),
            sm_mhz=reader.number("nvmlDeviceGetClockInfo", reader.nvml.NVML_CLOCK_SM),
            memory_mhz=reader.number("nvmlDeviceGetClockInfo", reader.nvml.NVML_CLOCK_MEM),
            throttle=read_throttle(reader),
            power_cap_s=_scaled(fields.get("power_cap"), 1e-9),
            pcie_tx_bytes=fields.get("pcie_tx"),
            pcie_rx_bytes=fields.get("pcie_rx"),
            nvlink_tx_bytes=_multiplied(fields.get("nvlink_tx"), _KIB),
            nvlink_rx_bytes=_multiplied(fields.get("nvlink_rx"), _KIB),
        )
        return None if reading == _EMPTY_READING else reading

    def pcie_bytes(self) -> tuple[int | None, int | None]:
        """Return the bytes sent and received, as counted by the card; 32-bit counters on some."""
        fields = self._fields(_PCIE)
        return fields.get("pcie_tx"), fields.get("pcie_rx")

    def _fields(self, requested: dict[str, tuple[int, int]]) -> dict[str, Any]:
        """Return the fields that answered, by our names."""
        values = self._reader.ask("nvmlDeviceGetFieldValues", list(requested.values()))
        if values is None:
            return {}
        answers = zip(requested, _FIELD_ANSWER.iter_unpack(bytes(values)), strict=True)
        return {
            name: _VALUE_LAYOUTS[kind].unpack_from(value)[0]
            for name, (_, _, _, _, kind, code, value) in answers
            if code == 0 and kind in _VALUE_LAYOUTS
        }

    def meter(self) -> GpuMeter | None:
        """Return the expensive counters; null when none of them answers."""
        begin_ns = time.perf_counter_ns()
        energy_mj = self._fields(_ENERGY).get("energy")
        if energy_mj is None:
            energy_mj = self._reader.number("nvmlDeviceGetTotalEnergyConsumption")
        took_us = (time.perf_counter_ns() - begin_ns) / 1e3
        held = self._fields(_THROTTLE_TIMES)
        hot_ns = [held[name] for name in ("hot_software", "hot_hardware") if name in held]
        if energy_mj is None and not held:
            return None
        return GpuMeter(
            energy_j=_scaled(energy_mj, 1e-3),
            took_us=None if energy_mj is None else took_us,
            too_hot_s=_scaled(sum(hot_ns), 1e-9) if hot_ns else None,
            power_brake_s=_scaled(held.get("power_brake"), 1e-9),
        )

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Return the processes on the GPU; null when it does not report them."""
        return list_processes(self._reader, self.uuid)

    def pcie_rate(self) -> PcieRate:
        """Return the PCIe traffic; NVML measures for 20 ms per direction, and reports KB/s."""
        nvml = self._reader.nvml
        sent = self._reader.number("nvmlDeviceGetPcieThroughput", nvml.NVML_PCIE_UTIL_TX_BYTES)
        received = self._reader.number("nvmlDeviceGetPcieThroughput", nvml.NVML_PCIE_UTIL_RX_BYTES)
        return PcieRate(tx_mb_per_s=_scaled(sent, 1e-3), rx_mb_per_s=_scaled(received, 1e-3))


_EMPTY_READING = GpuReading()


def _scaled(number: float | None, by: float) -> float | None:
    return None if number is None else round(number * by, 9)


def _multiplied(number: int | None, by: int) -> int | None:
    return None if number is None else number * by
