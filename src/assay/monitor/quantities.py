"""What the samples' names mean: a title for people, the unit, and whether the number counts up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from assay.monitor.lines import HostSample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.monitor.lines import Sample

Number: TypeAlias = float | int


@dataclass(frozen=True)
class Quantity:
    """What a name means; of what counts up, differences are of interest."""

    title: str
    unit: str
    counts: bool = False
    each: str = ""
    """What there is one of for each value, where there are several."""


GPU = {
    "utilisation_percent": Quantity("GPU busy", "%"),
    "memory_utilisation_percent": Quantity("memory busy", "%"),
    "memory_used_mib": Quantity("memory used", "MiB"),
    "power_average_w": Quantity("power, average of a second", "W"),
    "power_instant_w": Quantity("power, instant", "W"),
    "power_usage_w": Quantity("power, as the card says", "W"),
    "temperature_c": Quantity("temperature", "°C"),
    "memory_temperature_c": Quantity("memory temperature", "°C"),
    "sm_mhz": Quantity("SM clock", "MHz"),
    "memory_mhz": Quantity("memory clock", "MHz"),
    "energy_j": Quantity("energy, counter difference", "J", counts=True),
    "power_cap_s": Quantity("held back by the power cap", "s", counts=True),
    "too_hot_s": Quantity("held back by heat", "s", counts=True),
    "power_brake_s": Quantity("held back by the power brake", "s", counts=True),
    "pcie_tx_bytes": Quantity("PCIe sent", "B", counts=True),
    "pcie_rx_bytes": Quantity("PCIe received", "B", counts=True),
    "nvlink_tx_bytes": Quantity("NVLink sent", "B", counts=True),
    "nvlink_rx_bytes": Quantity("NVLink received", "B", counts=True),
}
POWERS = ("power_instant_w", "power_average_w", "power_usage_w")
"""The names a GPU's power goes by, the one that follows the load best first."""

HOST = {
    "cpu_percent": Quantity("CPUs busy", "%"),
    "steal_percent": Quantity("taken by the hypervisor", "%"),
    "load_1m": Quantity("load average of a minute", ""),
    "running": Quantity("threads that run or could", ""),
    "memory_used_mib": Quantity("memory used", "MiB"),
    "swap_used_mib": Quantity("swap used", "MiB"),
    "core_percent": Quantity("busy", "%", each="CPU"),
    "core_mhz": Quantity("clock", "MHz", each="CPU"),
    "context_switches": Quantity("context switches", "", counts=True),
    "pressure_cpu_s": Quantity("some waited for a CPU", "s", counts=True),
    "pressure_memory_s": Quantity("some waited for memory", "s", counts=True),
    "pressure_memory_full_s": Quantity("all waited for memory", "s", counts=True),
    "pressure_io_s": Quantity("some waited for disks", "s", counts=True),
    "pressure_io_full_s": Quantity("all waited for disks", "s", counts=True),
    "disk_read_bytes": Quantity("read from disks", "B", counts=True),
    "disk_written_bytes": Quantity("written to disks", "B", counts=True),
    "network_received_bytes": Quantity("network received", "B", counts=True),
    "network_sent_bytes": Quantity("network sent", "B", counts=True),
    "numa_hit": Quantity("pages got where they were meant", "", counts=True, each="node"),
    "numa_miss": Quantity("pages meant for another node", "", counts=True, each="node"),
    "numa_foreign": Quantity("pages got from another node", "", counts=True, each="node"),
    "package_energy_j": Quantity("energy, counter difference", "J", counts=True, each="processor"),
}


def meaning(quantity: str, *, gpu: bool) -> Quantity:
    """Return what a quantity means; of ``core_percent[3]`` the part in brackets says which."""
    base, _, which = quantity.partition("[")
    info = (GPU if gpu else HOST)[base]
    return replace(info, title=f"{info.each} {which[:-1]}: {info.title}") if which else info


def numbers(sample: Sample) -> Iterator[tuple[str, Number]]:
    """Give what was measured, name by name; of what there are several, each by its own: ``core_percent[3]``."""
    for name in HOST if isinstance(sample, HostSample) else GPU:
        value = getattr(sample, name, None)
        if isinstance(value, dict):
            yield from ((f"{name}[{key}]", number) for key, number in value.items())
        elif value is not None:
            yield name, value


def source_of(sample: Sample) -> str:
    """Return whose sample it is: ``gpu:0`` or ``host``."""
    return "host" if isinstance(sample, HostSample) else f"gpu:{sample.gpu}"
