"""The lines of a recording, each with its kind and its time, and the names and units of the quantities in them.

    header   which GPUs are sampled, how often, and the wall-clock time
    gpu      one sample of one GPU; host: one sample of the machine
    meter    a GPU's energy and other counters that take milliseconds to read, at most ten times a second
    processes, pcie, top    slower samples, at most once a second
    beat     the wall clock again, once a second
    mark     a named moment or span
    ended    a GPU that no longer answers, and why
    end      the recording was finished

Times are nanoseconds of the host's monotonic clock, which all its processes share and which is never set. A quantity
in bytes, joules or seconds "so far" is cumulative. What was not measured is null, and null is left out of the file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from assay.core.results import Origin
from assay.core.values import SCHEMA_VERSION, Value
from assay.machine.model import GpuMeter, GpuProcess, GpuReading, PcieRate

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Timestamped(Value):
    kind: str
    t_ns: int = Field(description="On the monotonic clock of the host.")


class _GpuTickSample(_Timestamped):
    tick: int = Field(description="Samples of the same tick were taken together.")
    gpu: int = Field(description="Index as in nvidia-smi.")


class WatchedGpu(Value):
    """A recorded GPU."""

    index: int
    uuid: str
    name: str | None = None
    memory_mib: float | None = None
    power_limit_w: float | None = None


class RecordingHeader(_Timestamped):
    """The first line; ``t_ns`` is when tick 0 was due."""

    kind: Literal["header"] = "header"
    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    wall_ns: int = Field(description="Since 1970, at the same moment.")
    host: str | None = Field(default=None, description="A hash that distinguishes hosts without naming them.")
    boot_id: str | None = None
    interval_s: float
    host_every: int | None = Field(default=None, description="Ticks between samples of the host.")
    gpus: tuple[WatchedGpu, ...] = ()
    gpu_note: str | None = Field(default=None, description="Why no GPU is sampled.")
    cpus: tuple[int, ...] = Field(default=(), description="CPU affinity of the recorder.")
    version: str | None = Field(default=None, description="Version of Assay.")
    origin: Origin = "real"


class Heartbeat(_Timestamped):
    """The wall clock, and the number of ticks missed so far."""

    kind: Literal["beat"] = "beat"
    wall_ns: int
    missed: int = Field(description="Ticks missed so far.")


class GpuSample(GpuReading, _GpuTickSample):
    """One sample of one GPU."""

    kind: Literal["gpu"] = "gpu"


class GpuMeterSample(GpuMeter, _GpuTickSample):
    """The expensive counters of one GPU; ``t_ns`` is when reading them began."""

    kind: Literal["meter"] = "meter"


class GpuProcesses(_Timestamped):
    """The processes on a GPU."""

    kind: Literal["processes"] = "processes"
    gpu: int
    count: int
    memory_mib: float | None = Field(default=None, description="Of all processes; null: not reported.")
    processes: tuple[GpuProcess, ...] = ()


class GpuPcie(PcieRate, _Timestamped):
    """PCIe traffic of a GPU that does not count bytes."""

    kind: Literal["pcie"] = "pcie"
    gpu: int


class HostSample(_Timestamped):
    """One sample of the machine. Shares of CPU time are since the previous sample."""

    kind: Literal["host"] = "host"
    tick: int
    cpu_percent: float | None = Field(default=None, description="Of all CPUs' time: busy.")
    steal_percent: float | None = Field(default=None, description="Of all CPUs' time: taken by the hypervisor.")
    core_percent: dict[int, float] = Field(default_factory=dict, description="By logical CPU: busy.")
    core_mhz: dict[int, float] = Field(default_factory=dict)
    context_switches: int | None = Field(default=None, description="So far, of all CPUs.")
    load_1m: float | None = None
    running: int | None = Field(default=None, description="Runnable threads.")
    memory_total_mib: float | None = None
    memory_used_mib: float | None = Field(default=None, description="What is not available to new programs.")
    swap_used_mib: float | None = None
    numa_hit: dict[int, int] = Field(default_factory=dict, description="Pages so far, by node.")
    numa_miss: dict[int, int] = Field(default_factory=dict, description="Allocated here, intended for another node.")
    numa_foreign: dict[int, int] = Field(default_factory=dict, description="Intended for here, allocated elsewhere.")
    disk_read_bytes: int | None = Field(default=None, description="So far, by all whole disks.")
    disk_written_bytes: int | None = None
    network_received_bytes: int | None = Field(default=None, description="So far, without loopback.")
    network_sent_bytes: int | None = None
    pressure_cpu_s: float | None = Field(default=None, description="So far: some thread waited for a CPU.")
    pressure_memory_s: float | None = None
    pressure_memory_full_s: float | None = Field(default=None, description="So far: all threads waited.")
    pressure_io_s: float | None = None
    pressure_io_full_s: float | None = None
    package_energy_j: dict[str, float] = Field(
        default_factory=dict, description="Since the recording began, by the processor's own counters (RAPL)."
    )


class BusyProcess(Value):
    """A process and its share of CPU time since the previous sample."""

    pid: int
    name: str
    cores: float = Field(description="Cores' worth of CPU time.")
    cpus: tuple[int, ...] | None = Field(default=None, description="CPU affinity; null: it has exited or is hidden.")


class TopProcesses(_Timestamped):
    """The processes that used most CPU time."""

    kind: Literal["top"] = "top"
    processes: tuple[BusyProcess, ...]


class Mark(_Timestamped):
    """A named moment, or a span if there is an end."""

    kind: Literal["mark"] = "mark"
    name: str
    start_ns: int
    end_ns: int | None = None


class GpuLost(_Timestamped):
    """A GPU that is no longer sampled."""

    kind: Literal["ended"] = "ended"
    gpu: int
    reason: str


class RecordingEnd(_Timestamped):
    """The last line of a finished recording."""

    kind: Literal["end"] = "end"
    wall_ns: int
    ticks: int | None = Field(default=None, description="Ticks sampled; null: not in a CSV file.")
    missed: int | None = None
    reason: str


Sample: TypeAlias = GpuSample | GpuMeterSample | HostSample
RecordingLine: TypeAlias = (
    RecordingHeader | Sample | Heartbeat | GpuProcesses | GpuPcie | TopProcesses | Mark | GpuLost | RecordingEnd
)

RECORDING_LINE: TypeAdapter[RecordingLine] = TypeAdapter(Annotated[RecordingLine, Field(discriminator="kind")])
"""Validates a line of any kind."""


Number: TypeAlias = float | int


@dataclass(frozen=True)
class QuantityInfo:
    """Title and unit of a quantity; of counters, differences are of interest."""

    title: str
    unit: str
    counts: bool = False
    index_name: str = ""
    """What the values are indexed by, e.g. ``CPU``; empty for a single value."""


GPU_QUANTITIES = {
    "utilisation_percent": QuantityInfo("GPU busy", "%"),
    "memory_utilisation_percent": QuantityInfo("memory busy", "%"),
    "memory_used_mib": QuantityInfo("memory used", "MiB"),
    "power_average_w": QuantityInfo("power, average of a second", "W"),
    "power_instant_w": QuantityInfo("power, instant", "W"),
    "power_usage_w": QuantityInfo("power, as reported", "W"),
    "temperature_c": QuantityInfo("temperature", "°C"),
    "memory_temperature_c": QuantityInfo("memory temperature", "°C"),
    "sm_mhz": QuantityInfo("SM clock", "MHz"),
    "memory_mhz": QuantityInfo("memory clock", "MHz"),
    "energy_j": QuantityInfo("energy, counter difference", "J", counts=True),
    "power_cap_s": QuantityInfo("throttled by the power cap", "s", counts=True),
    "too_hot_s": QuantityInfo("throttled by heat", "s", counts=True),
    "power_brake_s": QuantityInfo("throttled by the power brake", "s", counts=True),
    "pcie_tx_bytes": QuantityInfo("PCIe sent", "B", counts=True),
    "pcie_rx_bytes": QuantityInfo("PCIe received", "B", counts=True),
    "nvlink_tx_bytes": QuantityInfo("NVLink sent", "B", counts=True),
    "nvlink_rx_bytes": QuantityInfo("NVLink received", "B", counts=True),
}
POWER_QUANTITIES = ("power_instant_w", "power_average_w", "power_usage_w")
"""The names of a GPU's power quantities, the one that follows the load most closely first."""

HOST_QUANTITIES = {
    "cpu_percent": QuantityInfo("CPUs busy", "%"),
    "steal_percent": QuantityInfo("CPU steal", "%"),
    "load_1m": QuantityInfo("load average, 1 min", ""),
    "running": QuantityInfo("runnable threads", ""),
    "memory_used_mib": QuantityInfo("memory used", "MiB"),
    "swap_used_mib": QuantityInfo("swap used", "MiB"),
    "core_percent": QuantityInfo("busy", "%", index_name="CPU"),
    "core_mhz": QuantityInfo("clock", "MHz", index_name="CPU"),
    "context_switches": QuantityInfo("context switches", "", counts=True),
    "pressure_cpu_s": QuantityInfo("some waited for a CPU", "s", counts=True),
    "pressure_memory_s": QuantityInfo("some waited for memory", "s", counts=True),
    "pressure_memory_full_s": QuantityInfo("all waited for memory", "s", counts=True),
    "pressure_io_s": QuantityInfo("some waited for disks", "s", counts=True),
    "pressure_io_full_s": QuantityInfo("all waited for disks", "s", counts=True),
    "disk_read_bytes": QuantityInfo("read from disks", "B", counts=True),
    "disk_written_bytes": QuantityInfo("written to disks", "B", counts=True),
    "network_received_bytes": QuantityInfo("network received", "B", counts=True),
    "network_sent_bytes": QuantityInfo("network sent", "B", counts=True),
    "numa_hit": QuantityInfo("pages on the intended node", "", counts=True, index_name="node"),
    "numa_miss": QuantityInfo("pages intended for another node", "", counts=True, index_name="node"),
    "numa_foreign": QuantityInfo("pages allocated on another node", "", counts=True, index_name="node"),
    "package_energy_j": QuantityInfo("energy, counter difference", "J", counts=True, index_name="processor"),
}


def quantity_info(quantity: str, *, gpu: bool) -> QuantityInfo:
    """Return the info of a quantity; for ``core_percent[3]`` the title contains the index."""
    base, _, index = quantity.partition("[")
    info = (GPU_QUANTITIES if gpu else HOST_QUANTITIES)[base]
    return replace(info, title=f"{info.index_name} {index[:-1]}: {info.title}") if index else info


def sample_values(sample: Sample) -> Iterator[tuple[str, Number]]:
    """Yield the measured quantities with their values; indexed ones one by one: ``core_percent[3]``."""
    for name in HOST_QUANTITIES if isinstance(sample, HostSample) else GPU_QUANTITIES:
        value = getattr(sample, name, None)
        if isinstance(value, dict):
            yield from ((f"{name}[{key}]", number) for key, number in value.items())
        elif value is not None:
            yield name, value


def source_of(sample: Sample) -> str:
    """Return the source of a sample: ``gpu:0`` or ``host``."""
    return "host" if isinstance(sample, HostSample) else f"gpu:{sample.gpu}"
