"""Put the plain values of `nvml_specs` into a mapped scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes import nvml_layout as layout
from tests.fakes.nvml_power import write_sensor
from tests.fakes.nvml_specs import ALL_REASONS, Gpu, GpuProcess, MigInstance, NvLink

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COUNTER_AT_START_MJ = 1e9
SAME_NAMES = (
    "pci_device_id",
    "architecture",
    "memory_total_bytes",
    "memory_reserved_bytes",
    "memory_used_bytes",
    "persistence",
    "compute_mode",
    "performance_state",
    "temperature_c",
    "utilisation_percent",
    "memory_utilisation_percent",
    "pcie_generation",
    "pcie_width",
    "sm_max_mhz",
    "sm_idle_mhz",
    "sm_step_mhz",
    "memory_max_mhz",
    "idle_w",
    "clock_exponent",
)


def write_gpu(state: layout.Gpu, gpu: Gpu, index: int, now_ns: int) -> None:
    """Write a GPU as it is at the start."""
    for name in SAME_NAMES:
        setattr(state, name, getattr(gpu, name))
    _write_identity(state, gpu, index)
    _write_optional(state, gpu)
    _write_limits(state, gpu)
    write_cpus(state, gpu.cpus)
    write_processes(state, gpu.processes)
    write_links(state, gpu.links)
    if gpu.mig_capable:
        write_mig(state, gpu.mig)
    _write_power(state, gpu, now_ns)


def _write_identity(state: layout.Gpu, gpu: Gpu, index: int) -> None:
    state.name = gpu.name.encode()
    state.uuid = (gpu.uuid or f"GPU-fa4e0000-0000-4000-8000-{index:012d}").encode()
    state.pci_bus_id = (gpu.pci_bus_id or f"00000000:{0x1B + 0x10 * index:02X}:00.0").encode()
    state.vbios = gpu.vbios.encode()
    state.compute_major, state.compute_minor = gpu.compute_capability
    state.pcie_max_generation, state.pcie_max_width = gpu.pcie_generation, gpu.pcie_width
    state.supported_event_reasons = ALL_REASONS
    state.clocks_event_reasons = layout.UNSUPPORTED
    state.lost_at_ns = layout.NEVER_NS


def _write_optional(state: layout.Gpu, gpu: Gpu) -> None:
    state.ecc = layout.UNSUPPORTED if gpu.ecc is None else int(gpu.ecc)
    state.numa_node = layout.UNSUPPORTED if gpu.numa_node is None else gpu.numa_node
    state.host_numa_node = layout.UNSUPPORTED if gpu.host_numa_node is None else gpu.host_numa_node
    state.mig_mode = layout.UNSUPPORTED


def _write_limits(state: layout.Gpu, gpu: Gpu) -> None:
    limit_w = gpu.power_limit_default_w if gpu.power_limit_w is None else gpu.power_limit_w
    state.power_limit_mw = round(limit_w * 1e3)
    state.power_limit_min_mw = round(gpu.power_limit_min_w * 1e3)
    state.power_limit_max_mw = round(gpu.power_limit_max_w * 1e3)
    state.power_limit_default_mw = round(gpu.power_limit_default_w * 1e3)


def _write_power(state: layout.Gpu, gpu: Gpu, now_ns: int) -> None:
    write_sensor(state.sensor, gpu.sensor)
    state.sensor.counter_base_mj = COUNTER_AT_START_MJ
    state.sensor.counter_since_ns = now_ns
    state.segments[0] = layout.Segment(now_ns, gpu.idle_w, gpu.idle_w, 0.0, 0, gpu.sm_idle_mhz, 0)
    state.segment_count = 1


def write_cpus(state: layout.Gpu, cpus: Iterable[int]) -> None:
    """Write the cores that lie near a GPU."""
    mask = sum(1 << cpu for cpu in set(cpus))
    for word in range(layout.CPU_WORDS):
        state.cpu_affinity[word] = mask >> 64 * word & (2**64 - 1)


def write_processes(state: layout.Gpu, processes: Sequence[GpuProcess]) -> None:
    """Write who runs on a GPU."""
    _fits(processes, layout.MAX_PROCESSES, "processes")
    for slot, process in enumerate(processes):
        memory = layout.NOT_AVAILABLE if process.memory_bytes is None else process.memory_bytes
        instances = (layout.NO_INSTANCE,) * 2 if process.mig is None else (_instance_id(process.mig), 0)
        state.processes[slot] = layout.Process(process.pid, int(process.graphics), memory, *instances)
    state.process_count = len(processes)


def read_processes(state: layout.Gpu) -> list[GpuProcess]:
    """Return who runs on a GPU."""
    return [
        GpuProcess(
            pid=process.pid,
            memory_bytes=None if process.memory_bytes == layout.NOT_AVAILABLE else process.memory_bytes,
            graphics=bool(process.graphics),
            mig=None if process.gpu_instance_id == layout.NO_INSTANCE else process.gpu_instance_id - _instance_id(0),
        )
        for process in state.processes[: state.process_count]
    ]


def write_mig(state: layout.Gpu, instances: Sequence[MigInstance] | None) -> None:
    """Cut a GPU into instances, or with `None` switch MIG off."""
    state.mig_mode = int(instances is not None)
    _fits(instances or (), layout.MAX_MIG, "MIG instances")
    parent = state.uuid.decode().removeprefix("GPU-")
    for slot, instance in enumerate(instances or ()):
        size = f"{instance.slices}g.{instance.memory_total_bytes >> 30}gb"
        state.mig[slot] = layout.Mig(
            uuid=(instance.uuid or f"MIG-{parent[:-2]}{slot + 90}").encode(),
            name=(instance.name or f"{state.name.decode()} MIG {size}").encode(),
            memory_total_bytes=instance.memory_total_bytes,
            memory_used_bytes=instance.memory_used_bytes,
            gpu_instance_id=_instance_id(slot),
            multiprocessors=instance.multiprocessors,
            slices=instance.slices,
        )
    state.mig_count = len(instances or ())


def _instance_id(slot: int) -> int:
    """Return NVML's number for an instance; as on real cards, not its index."""
    return slot + 7


def write_links(state: layout.Gpu, links: Sequence[NvLink]) -> None:
    """Write the NVLinks of a GPU."""
    _fits(links, layout.MAX_LINKS, "links")
    for slot, link in enumerate(links):
        remote_type = 2 if link.to_switch else 0
        state.links[slot] = layout.Link(
            link.remote_bus_id.encode(), int(link.active), link.version, remote_type, link.capabilities
        )
    state.link_count = len(links)


def _fits(values: Sequence[object], room: int, what: str) -> None:
    if len(values) > room:
        raise ValueError(f"a fake GPU has room for {room} {what}, not {len(values)}")
