"""The machine as values: enough to place work on it, and to recognize it; and the interface to the GPUs of one vendor.

Machine ──< Core        what this process may use
        ──< NumaNode    memory
        ──< Gpu ──< MigInstance
        │       └── GpuState    volatile; not part of the machine's identity
        ──< GpuLink     between two GPUs

A vendor lists its GPUs, their processes and sensors, and changes their settings: another one is another module like
``nvidia.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import Field, JsonValue

from assay.core.values import SCHEMA_VERSION, Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from assay.core.leases import Lease


LinkPath = Literal["board", "switch", "switches", "bridge", "node", "system"]
"""What two GPUs share on PCIe, the nearest first: one board, one switch, several switches, a host bridge (root
complex), a memory node, or only the system: then the path crosses sockets."""


class Core(Value):
    """One physical core: the logical CPUs (SMT siblings) of it that this process may use."""

    package: int
    core: int
    node: int
    cpus: tuple[int, ...] = Field(min_length=1)
    foreign_cpus: tuple[int, ...] = Field(default=(), description="SMT siblings that only others may use.")


class NumaNode(Value):
    """One memory node."""

    id: int
    cpus: tuple[int, ...] = ()
    memory_mib: float | None = Field(default=None, description="0: a node without memory; null: not reported.")
    distances: tuple[int, ...] = Field(default=(), description="To each node in order; 10 is the node itself.")


class Cpu(Value):
    """How all cores of the machine run, including those this process may not use."""

    packages: int | None = None
    smt: bool | None = Field(default=None, description="Whether cores run several threads at once.")
    offline_cpus: tuple[int, ...] = Field(default=(), description="Present, but offline.")
    isolated_cpus: tuple[int, ...] = Field(default=(), description="Kept from the scheduler (isolcpus).")
    governor: str | None = Field(default=None, description="Of the cores this process may use; several: listed.")
    turbo: bool | None = None


class ControlGroupLimits(Value):
    """The limits that control groups set for this process. Null: no limit."""

    cpus: tuple[int, ...] | None = None
    cpu_quota: float | None = Field(default=None, description="CPUs' worth of time in each scheduling period.")
    memory_mib: float | None = None


class MpsStatus(Value):
    """Signs of NVIDIA's multi-process service, which lets processes use a GPU concurrently."""

    daemon: bool = Field(description="Its control process or server is running.")
    pipe: bool = Field(description="Its control pipe exists where our CUDA programs would look.")


class MigInstance(Value):
    """A slice of a GPU that CUDA programs use like a GPU."""

    number: int = Field(description="Among the instances of its GPU, as numbered by nvidia-smi.")
    uuid: str
    parent: str = Field(description="UUID of its parent GPU.")
    profile: str | None = Field(default=None, description='Its size by name: "1g.18gb".')
    memory_mib: float | None = None
    slices: int | None = Field(default=None, description="Compute slices; a whole GPU has seven.")
    multiprocessors: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class GpuState(Value):
    """The state of a GPU at one moment. Null: not available."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    memory_used_mib: float | None = None
    utilisation_percent: int | None = None
    pcie_generation: int | None = Field(default=None, description="Links slow down while idle.")
    pcie_width: int | None = None
    throttle: tuple[str, ...] | None = Field(default=None, description="Why the clock is not higher, as text.")


class Gpu(Value):
    """One GPU as reported by NVML; null for what the driver does not report."""

    index: int
    uuid: str
    name: str
    pci_bus_id: str | None = Field(default=None, description='As in sysfs: "0000:3b:00.0".')
    memory_mib: float | None = None
    node: int | None = Field(default=None, description="NUMA node the GPU is attached to; null: unknown.")
    memory_node: int | None = Field(default=None, description="NUMA node formed by the GPU's own memory, if it is one.")
    compute_capability: tuple[int, int] | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    compute_mode: str | None = Field(default=None, description="Who may open it: default, exclusive process, …")
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    power_limit_min_w: float | None = None
    power_limit_max_w: float | None = None
    sm_max_mhz: int | None = None
    memory_max_mhz: int | None = None
    pcie_max_generation: int | None = None
    pcie_max_width: int | None = None
    mig: bool | None = Field(default=None, description="Whether it is split into instances and so not usable whole.")
    instances: tuple[MigInstance, ...] = ()
    state: GpuState | None = None


class UnreachableGpu(Value):
    """A GPU that the driver lists but that does not answer."""

    index: int
    reason: str


class GpuLink(Value):
    """How two GPUs are connected."""

    gpus: tuple[int, int] = Field(description="Their indices, the lower first.")
    nvlinks: int = Field(default=0, description="NVLinks between them, directly or through switches.")
    path: LinkPath | None = Field(default=None, description="What they share on PCIe; null: not reported.")


class Machine(Value):
    """The machine, as this process sees it. The content of ``machine.json``."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    host: str = Field(description="A hash that distinguishes hosts without naming them.")
    boot_id: str
    hostname: str | None = Field(default=None, description="Only when the user asked for it.")
    architecture: str
    kernel: str
    hypervisor: str | None = Field(default=None, description="Hypervisor of this virtual machine; null: none detected.")
    container: str | None = Field(default=None, description="Kind of container; null: none detected.")
    cpu_model: str | None
    memory_mib: float | None
    cpu: Cpu = Cpu()
    limits: ControlGroupLimits = ControlGroupLimits()
    cores: tuple[Core, ...] = Field(min_length=1, description="Physical cores this process may use.")
    nodes: tuple[NumaNode, ...]
    gpus: tuple[Gpu, ...] = ()
    lost: tuple[UnreachableGpu, ...] = ()
    links: tuple[GpuLink, ...] = Field(default=(), description="One for each pair of GPUs.")
    gpu_note: str | None = Field(default=None, description="Why no GPU is visible.")
    driver: str | None = None
    cuda_driver: str | None = Field(default=None, description="The newest CUDA that the driver can run.")
    mps: MpsStatus | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)
    git_commit: str | None = None
    git_dirty: bool | None = None

    @staticmethod
    def detect(root: str | Path = "/", *, name_host: bool = False) -> Machine:
        """Return the machine; ``root`` may be a recorded tree of sysfs and procfs."""
        from assay.machine.detect import detect

        return detect(root, name_host=name_host)

    @property
    def cpus(self) -> tuple[int, ...]:
        """Every logical CPU this process may use."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))

    @property
    def has_fake_driver(self) -> bool:
        """Whether the driver identifies itself as a fake: numbers from it are never marked as real."""
        return self.driver is not None and "fake" in self.driver

    def link(self, one: int, other: int) -> GpuLink | None:
        """Return how two GPUs, given by their indices, are connected; null for one GPU and itself."""
        pair = (min(one, other), max(one, other))
        return next((link for link in self.links if link.gpus == pair), None)

    def identity(self) -> dict[str, JsonValue]:
        """Return what must be unchanged to continue a run: the machine, its settings, its software, the code measured.

        Volatile values are excluded: clocks, temperatures and the like, and memory, as some virtual machines are given
        more while they run.
        """
        excluded = {"schema_version", "boot_id", "hostname", "gpu_note", "git_dirty", "memory_mib"}
        volatile = {"gpus": {"__all__": {"state"}}, "nodes": {"__all__": {"memory_mib"}}}
        return self.model_dump(mode="json", by_alias=True, exclude={**dict.fromkeys(excluded, True), **volatile})


def describe_differences(before: Machine, after: Machine) -> list[str]:
    """Return as text what changed between two descriptions of what should be the same machine."""
    return list(_changes("", before.identity(), after.identity()))


def _changes(name: str, old: JsonValue, new: JsonValue) -> Iterator[str]:
    """Descend to what differs: name a changed version rather than two long lists with a common start."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _changes(f"{name} {key}".lstrip(), old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list) and any(isinstance(item, dict) for item in (*old, *new)):
        if len(old) != len(new):
            yield f"{name}: {len(old)} → {len(new)}"
            return
        for index, (old_item, new_item) in enumerate(zip(old, new, strict=True)):
            yield from _changes(f"{name} {index}", old_item, new_item)
    elif old != new:
        yield f"{name}: {_shorten(old, new)} → {_shorten(new, old)}"


def _shorten(value: JsonValue, other: JsonValue) -> str:
    """Return a value in at most 60 characters; of two lists too long for that, only the items of this one."""
    text = str(value)
    if len(text) > 60 and isinstance(value, list) and isinstance(other, list):
        text = f"[…, {str([item for item in value if item not in other])[1:]}"
    return text if len(text) <= 60 else f"{text[:57]}…"


class GpuProcess(Value):
    """A process that holds memory or a context on a GPU."""

    gpu: str = Field(description="UUID of the whole GPU, also when it runs on an instance of it.")
    pid: int = Field(description="As reported by the driver: in a container not always the container's PID.")
    name: str | None = Field(default=None, description="Null: no such process is visible from here.")
    memory_mib: float | None = None


@dataclass(frozen=True)
class NodeHint:
    """The driver's information on a GPU's location, for machines whose sysfs has none."""

    cpus: tuple[int, ...] = ()
    memory_node: int | None = None
    """The memory node formed by the GPU's own memory: it may have no cores."""


@dataclass(frozen=True)
class GpuInventory:
    """The GPUs of one vendor, the driver, and a note on why there are none."""

    gpus: tuple[Gpu, ...] = ()
    lost: tuple[UnreachableGpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    hints: Mapping[str, NodeHint] = field(default_factory=dict)
    """By UUID."""
    driver: str | None = None
    cuda_driver: str | None = None
    note: str | None = None


class Vendor(Protocol):
    """A vendor's GPUs; any module with these functions implements it."""

    def list_gpus(self) -> GpuInventory:
        """Return the inventory. No driver and no GPU are normal results."""

    def smoke_test(self, uuid: str) -> None:
        """Check that a GPU, or an instance of one, answers.

        Raises:
            MachineCannot: It does not, and why.
        """

    def processes(self) -> tuple[GpuProcess, ...]:
        """Return the processes on the GPUs, unnamed. Slow, and takes the driver's lock: never call during timing."""

    def set_power_limit(self, uuid: str, watts: float) -> Lease:
        """Limit a GPU's power in W; releasing the lease restores the limit it had.

        Raises:
            BadInput: Out of the range that the GPU supports.
            MachineCannot: The GPU supports none, it is gone, or this process lacks permission.
        """

    def lock_sm_clocks(self, uuid: str, low_mhz: int, high_mhz: int) -> Lease:
        """Keep a GPU's SM clock within bounds in MHz; releasing the lease unlocks it.

        Raises:
            BadInput: Out of the range that the GPU supports.
            MachineCannot: The GPU supports none, it is gone, or this process lacks permission.
        """


class GpuReading(Value):
    """One reading of a GPU. Null: not supported by the card. Counters start when the driver is loaded."""

    utilisation_percent: int | None = Field(default=None, description="Share of the last period in which a kernel ran.")
    memory_utilisation_percent: int | None = Field(
        default=None, description="Share of the last period in which memory was accessed."
    )
    memory_used_mib: float | None = None
    memory_total_mib: float | None = None
    power_average_w: float | None = Field(default=None, description="Over about the last second (field 185).")
    power_instant_w: float | None = Field(default=None, description="As of the sensor's last tick (field 186).")
    power_usage_w: float | None = Field(
        default=None,
        description="For cards that report neither of the two: an average on some, an instant value on others.",
    )
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    throttle: tuple[str, ...] | None = Field(default=None, description="Why the clock is not higher, as text.")
    power_cap_s: float | None = Field(default=None, description="Counts up: time throttled by the power cap.")
    pcie_tx_bytes: int | None = Field(default=None, description="Counts up: sent by the GPU, headers included.")
    pcie_rx_bytes: int | None = Field(default=None, description="Counts up: received by the GPU, likewise.")
    nvlink_tx_bytes: int | None = Field(default=None, description="Counts up: data sent over all links.")
    nvlink_rx_bytes: int | None = Field(default=None, description="Counts up: data received over all links.")


class GpuMeter(Value):
    """Counters that take milliseconds to read. Null: not supported by the card."""

    energy_j: float | None = Field(default=None, description="Counts up.")
    took_us: float | None = Field(
        default=None, description="How long reading it took; the value is from some moment within."
    )
    too_hot_s: float | None = Field(default=None, description="Counts up: time throttled by heat.")
    power_brake_s: float | None = Field(default=None, description="Counts up: time throttled by the power brake.")


class PcieRate(Value):
    """PCIe traffic of a card that does not count bytes, over the last 20 ms, in MB/s. Null: not available."""

    tx_mb_per_s: float | None = None
    rx_mb_per_s: float | None = None


class GpuSensor(Protocol):
    """The sensors of one GPU, kept open."""

    @property
    def lost(self) -> str | None:
        """Why the GPU does not answer any more; null as long as it may."""

    @property
    def last_error(self) -> str:
        """The driver's last error message when it did not answer."""

    def read(self, *, traffic: bool = True) -> GpuReading | None:
        """Return a reading of the sensors, using cheap calls only; null when none of them answers.

        Without ``traffic``, skip the byte counters, which take an H200 longer than all the rest.
        """

    def pcie_bytes(self) -> tuple[int | None, int | None]:
        """Return the bytes sent and received, as counted by the card, with one cheap call."""

    def meter(self) -> GpuMeter | None:
        """Return the expensive counters; null when none of them answers. Slow: 3 to 20 ms on an H200."""

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Return the processes on the GPU; null when it does not report them. Slow: at most once a second."""

    def pcie_rate(self) -> PcieRate:
        """Return the PCIe traffic. Very slow (20 ms per direction): only for a card that does not count bytes."""
