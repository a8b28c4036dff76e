"""What a recording is made of: lines, each with its kind and its time.

    header   who is watched, how often, and what the wall clock said
    gpu      one look at one GPU; host: one look at the machine
    meter    its energy and other counters that take milliseconds to read, at most ten times a second
    processes, pcie, top    slower looks, at most once a second
    beat     the wall clock again, once a second
    mark     a moment or a span that somebody named
    ended    a GPU that answers no more, and why
    end      the recording was finished

Times are nanoseconds of the host's monotonic clock, which all its processes share and which nobody sets. A name that
says bytes, joules or seconds "so far" counts up. What was not measured is null, and null is left out of the file.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from assay.core.results import Origin
from assay.core.values import SCHEMA_VERSION, Value
from assay.machine.sensors import GpuMeter, GpuReading, PcieRate
from assay.machine.vendor import GpuProcess


class _Moment(Value):
    kind: str
    t_ns: int = Field(description="On the monotonic clock of the host.")


class _GpuTick(_Moment):
    tick: int = Field(description="Looks of the same tick were taken together.")
    gpu: int = Field(description="As nvidia-smi numbers it.")


class WatchedGpu(Value):
    """A GPU that is watched."""

    index: int
    uuid: str
    name: str | None = None
    memory_mib: float | None = None
    power_limit_w: float | None = None


class Header(_Moment):
    """The first line; ``t_ns`` is when tick 0 was due."""

    kind: Literal["header"] = "header"
    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    wall_ns: int = Field(description="Since 1970, at the same moment.")
    host: str | None = Field(default=None, description="A hash that tells hosts apart without naming them.")
    boot_id: str | None = None
    interval_s: float
    host_every: int | None = Field(default=None, description="Ticks from one look at the host to the next.")
    gpus: tuple[WatchedGpu, ...] = ()
    gpu_note: str | None = Field(default=None, description="Why no GPU is watched.")
    cpus: tuple[int, ...] = Field(default=(), description="Where the recorder runs.")
    version: str | None = Field(default=None, description="Of Assay.")
    origin: Origin = "real"


class Beat(_Moment):
    """What the wall clock said, and how the recorder fares."""

    kind: Literal["beat"] = "beat"
    wall_ns: int
    missed: int = Field(description="Ticks that could not be kept so far.")


class GpuSample(GpuReading, _GpuTick):
    """One look at one GPU."""

    kind: Literal["gpu"] = "gpu"


class GpuMeterSample(GpuMeter, _GpuTick):
    """The dear counters of one GPU; ``t_ns`` is when they were asked for."""

    kind: Literal["meter"] = "meter"


class GpuProcesses(_Moment):
    """Who is on a GPU."""

    kind: Literal["processes"] = "processes"
    gpu: int
    count: int
    memory_mib: float | None = Field(default=None, description="Of all of them; null: the driver does not say.")
    processes: tuple[GpuProcess, ...] = ()


class GpuPcie(PcieRate, _Moment):
    """PCIe traffic of a card that does not count bytes."""

    kind: Literal["pcie"] = "pcie"
    gpu: int


class HostSample(_Moment):
    """One look at the machine. Shares of CPU time are since the look before."""

    kind: Literal["host"] = "host"
    tick: int
    cpu_percent: float | None = Field(default=None, description="Of all CPUs' time: busy.")
    steal_percent: float | None = Field(default=None, description="Of all CPUs' time: taken by the hypervisor.")
    core_percent: dict[int, float] = Field(default_factory=dict, description="By logical CPU: busy.")
    core_mhz: dict[int, float] = Field(default_factory=dict)
    context_switches: int | None = Field(default=None, description="So far, of all CPUs.")
    load_1m: float | None = None
    running: int | None = Field(default=None, description="Threads that run or could.")
    memory_total_mib: float | None = None
    memory_used_mib: float | None = Field(default=None, description="What is not available to new programs.")
    swap_used_mib: float | None = None
    numa_hit: dict[int, int] = Field(default_factory=dict, description="Pages so far, by node.")
    numa_miss: dict[int, int] = Field(default_factory=dict, description="Meant for another node, got here.")
    numa_foreign: dict[int, int] = Field(default_factory=dict, description="Meant for here, got elsewhere.")
    disk_read_bytes: int | None = Field(default=None, description="So far, by all whole disks.")
    disk_written_bytes: int | None = None
    network_received_bytes: int | None = Field(default=None, description="So far, but for the loopback.")
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
    """A process and its share of CPU time since the look before."""

    pid: int
    name: str
    cores: float = Field(description="CPUs' worth of time.")
    cpus: tuple[int, ...] | None = Field(default=None, description="Where it may run; null: it is gone, or hidden.")


class TopProcesses(_Moment):
    """Who used most CPU time."""

    kind: Literal["top"] = "top"
    processes: tuple[BusyProcess, ...]


class Mark(_Moment):
    """A moment that somebody named, or a span with an end."""

    kind: Literal["mark"] = "mark"
    name: str
    start_ns: int
    end_ns: int | None = None


class Ended(_Moment):
    """A GPU that is asked no more."""

    kind: Literal["ended"] = "ended"
    gpu: int
    reason: str


class End(_Moment):
    """The last line of a recording that was finished."""

    kind: Literal["end"] = "end"
    wall_ns: int
    ticks: int | None = Field(default=None, description="That were kept; null: a table does not say.")
    missed: int | None = None
    reason: str


Sample: TypeAlias = GpuSample | GpuMeterSample | HostSample
Line: TypeAlias = Header | Sample | Beat | GpuProcesses | GpuPcie | TopProcesses | Mark | Ended | End

LINE: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])
"""Reads a line of any kind."""
