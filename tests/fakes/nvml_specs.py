"""What a fake GPU is at the start: plain values, and three presets that differ in how their sensors see.

The presets have the shape of real cards, not their exact figures. Change one with `dataclasses.replace`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

GIB = 2**30
MIB = 2**20
ALL_REASONS = 0x7FF

NvmlCode = int
"""A return code, as `pynvml.NVML_ERROR_NOT_SUPPORTED`."""


@dataclass(frozen=True)
class Sensor:
    """How the power sensor sees: at each tick it shows a mean over a window that ended `lag_ms` before."""

    period_ms: float = 100.0
    phase_ms: float = 0.0
    lag_ms: float = 0.0
    usage: Literal["average", "instant"] = "average"
    """Which of the two windows `nvmlDeviceGetPowerUsage` shows."""
    average_window_ms: float = 1000.0
    instant_window_ms: float = 25.0
    counter_period_ms: float = 100.0
    counter_phase_ms: float | None = None
    """By default the phase of the sensor."""
    counter_quantum_mj: int = 1
    gain: float = 1.0
    """What the sensor shows for one true watt."""


@dataclass(frozen=True)
class MigInstance:
    """A slice of a GPU."""

    memory_total_bytes: int = 16 * GIB
    memory_used_bytes: int = 0
    uuid: str | None = None
    name: str | None = None
    multiprocessors: int = 16
    slices: int = 1


@dataclass(frozen=True)
class GpuProcess:
    """A process that a GPU lists; without a figure its memory is not available."""

    pid: int
    memory_bytes: int | None = 0
    graphics: bool = False
    mig: int | None = None
    """Index of the MIG instance that it runs on."""


@dataclass(frozen=True)
class NvLink:
    """One link, to another GPU or to a switch."""

    remote_bus_id: str
    active: bool = True
    to_switch: bool = False
    version: int = 4
    capabilities: int = 0b101111
    """One bit for each `NVML_NVLINK_CAP_*`."""


@dataclass(frozen=True)
class Gpu:
    """A GPU at the start of a scenario. `None` means that the GPU does not have it."""

    name: str
    sensor: Sensor
    architecture: int
    compute_capability: tuple[int, int]
    memory_total_bytes: int
    idle_w: float
    power_limit_min_w: float
    power_limit_max_w: float
    power_limit_default_w: float
    sm_max_mhz: int
    sm_idle_mhz: int
    memory_max_mhz: int
    pcie_generation: int
    pci_device_id: int
    uuid: str | None = None
    """By default made from the index, as is the PCI address."""
    pci_bus_id: str | None = None
    vbios: str = "96.00.00.00.FA"
    memory_reserved_bytes: int = 600 * MIB
    memory_used_bytes: int = 0
    """Used by nobody listed; listed processes add theirs."""
    ecc: bool | None = True
    persistence: bool = True
    compute_mode: int = 0
    performance_state: int = 0
    temperature_c: int = 35
    utilisation_percent: int = 0
    memory_utilisation_percent: int = 0
    power_limit_w: float | None = None
    """By default the default limit."""
    sm_step_mhz: int = 15
    clock_exponent: float = 3.0
    """Load power grows with the clock to this power."""
    pcie_width: int = 16
    cpus: tuple[int, ...] = (0, 1)
    numa_node: int | None = None
    """What nvmlDeviceGetNumaNodeId says: on most machines nothing."""
    host_numa_node: int | None = 0
    mig: tuple[MigInstance, ...] | None = None
    """`None`: switched off. See `mig_capable`."""
    mig_capable: bool = True
    processes: tuple[GpuProcess, ...] = ()
    links: tuple[NvLink, ...] = ()
    unsupported: tuple[str, ...] = ()
    """Functions that answer NOT_SUPPORTED."""
    unsupported_fields: tuple[int, ...] = ()
    fields: dict[int, float] = field(default_factory=dict)
    """Field values at the start, such as 197: 0.0 for a counter of sent PCIe bytes."""


def hopper() -> Gpu:
    """A card as the H200: all ticks at 100 ms; average over 1 s, instant power the last 25 ms of each period."""
    return Gpu(
        name="NVIDIA H200",
        sensor=Sensor(),
        architecture=9,
        compute_capability=(9, 0),
        memory_total_bytes=143_771 * MIB,
        idle_w=78.0,
        power_limit_min_w=200.0,
        power_limit_max_w=700.0,
        power_limit_default_w=700.0,
        sm_max_mhz=1980,
        sm_idle_mhz=345,
        memory_max_mhz=3201,
        pcie_generation=5,
        pci_device_id=0x233510DE,
        fields=dict.fromkeys((197, 198, 269, 270, 271), 0.0),
    )


def ampere() -> Gpu:
    """A card with ticks of 25 ms that shows only the average over 1 s: fields 185 and 186 are absent."""
    return Gpu(
        name="NVIDIA A100-SXM4-80GB",
        sensor=Sensor(period_ms=25.0, instant_window_ms=25.0, counter_period_ms=25.0),
        architecture=7,
        compute_capability=(8, 0),
        memory_total_bytes=81_920 * MIB,
        idle_w=60.0,
        power_limit_min_w=100.0,
        power_limit_max_w=400.0,
        power_limit_default_w=400.0,
        sm_max_mhz=1410,
        sm_idle_mhz=210,
        memory_max_mhz=1593,
        pcie_generation=4,
        pci_device_id=0x20B210DE,
        unsupported_fields=(185, 186),
    )


def volta() -> Gpu:
    """An older card: ticks of 20 ms, each the mean of 10 ms; no average, no MIG, no memory clock lock."""
    return Gpu(
        name="Tesla V100-SXM2-16GB",
        sensor=Sensor(period_ms=20.0, usage="instant", instant_window_ms=10.0, counter_period_ms=20.0),
        architecture=5,
        compute_capability=(7, 0),
        memory_total_bytes=16_160 * MIB,
        memory_reserved_bytes=230 * MIB,
        idle_w=40.0,
        power_limit_min_w=150.0,
        power_limit_max_w=300.0,
        power_limit_default_w=300.0,
        sm_max_mhz=1530,
        sm_idle_mhz=135,
        memory_max_mhz=877,
        pcie_generation=3,
        pci_device_id=0x1DB110DE,
        mig_capable=False,
        unsupported=("nvmlDeviceSetMemoryLockedClocks", "nvmlDeviceResetMemoryLockedClocks"),
        unsupported_fields=(185, 186),
    )
