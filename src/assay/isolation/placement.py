"""Place workers on cores: from a machine and devices to disjoint allotments, and whether running workers overlap.

level   GPU visibility   own cores   own memory node   thread limits   a core reserved for the parent
none
gpu           ×
cpu           ×              ×
numa          ×              ×              ×
full          ×              ×              ×                ×                     ×

the cores of a node   │ cuda:0              │ cuda:1              │ host │ left over
                      │ worker 0 │ worker 1 │ worker 0 │ worker 1 │      │

A core or a GPU that two workers use at the same time is exclusive to neither; the level that held is lowered:

    worker a   cores 0 1          worker a   cores 0 1 │
    worker b       cores 1 2      worker b             │ cores 2 3
               ▲ shared: none                 disjoint: unchanged
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from pydantic import Field

from assay.core.errors import BadInput, suggest_nearest
from assay.core.format import format_list
from assay.core.results import IsolationLimit, Note
from assay.core.values import HOST, Isolation, Value
from assay.machine.devices import gpu_targets, group_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.machine.devices import GpuTarget
    from assay.machine.model import Core, Machine


Cores = tuple["Core", ...]
DeviceWorker = tuple[str, int]
"""A device, or the host, and the number of a worker there."""


@dataclass
class CoreShares:
    """The cores of each device, and notes where there were too few."""

    of: dict[str, Cores] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)


def share_cores(
    machine: Machine, workers: Mapping[str, int], *, keep: bool, cpu_groups: int | None = None
) -> tuple[dict[DeviceWorker, Cores], tuple[Note, ...]]:
    """Return the cores of each worker, and notes where there were too few.

    Args:
        machine: The machine whose cores are divided.
        workers: The devices, possibly including the host, and the number of workers on each.
        keep: Leave one core for the parent, if one can be spared.
        cpu_groups: Number of groups to split the cores into where groups of cores are the devices.
    """
    gpus = gpu_targets(machine)
    devices = [device for device in workers if device != HOST]
    on_gpus = [device in gpus for device in devices]
    if any(on_gpus) and not all(on_gpus):
        raise BadInput("GPUs and groups of cores cannot be measured side by side: their cores would overlap.")
    if devices and all(on_gpus):
        shares = _share_to_gpus(machine, workers, {device: gpus[device].node for device in devices}, keep=keep)
    else:
        shares = _share_to_groups(machine, workers, group_count(machine, cpu_groups), keep=keep)
    allotted: dict[DeviceWorker, Cores] = {}
    for device, count in workers.items():
        allotted.update(_share_to_workers(device, shares, count))
    return allotted, tuple(shares.notes)


def split_equally(cores: Cores, count: int, *, keep: bool = False, least: int = 1) -> list[Cores]:
    """Split cores into equal groups of neighbours; ``keep`` leaves one out if each group still has ``least``."""
    size = len(cores) // count
    if keep and (len(cores) - 1) // count >= least:
        size = (len(cores) - 1) // count
    return [cores[index * size : (index + 1) * size] for index in range(count)]


def _share_to_groups(machine: Machine, workers: Mapping[str, int], groups: int, *, keep: bool) -> CoreShares:
    """Divide the cores among groups; the host gets a group that is not a device, or one more if all are devices."""
    least = max(workers.values())
    used = [f"cpu:{index}" for index in range(groups) if f"cpu:{index}" in workers]
    one_more = HOST in workers and len(used) == groups and len(machine.cores) > groups
    parts = split_equally(machine.cores, groups + one_more, keep=keep, least=least)
    shares = CoreShares({f"cpu:{index}": part for index, part in enumerate(parts[:groups])})
    if HOST in workers:
        used_cores = {core for device in used for core in shares.of[device]}
        free = tuple(core for core in machine.cores if core not in used_cores)
        _give_host(shares, free[: len(parts[0])], machine.cores, used)
    return shares


def _share_to_gpus(
    machine: Machine, workers: Mapping[str, int], nodes: Mapping[str, int | None], *, keep: bool
) -> CoreShares:
    """Divide the cores among GPUs, each on its own node if known; the host gets a share from all these nodes."""
    shares = CoreShares()
    core_nodes = {core.node for core in machine.cores}
    members: dict[int | None, list[str]] = {}
    for device, node in nodes.items():
        members.setdefault(node if node in core_nodes else None, []).append(device)
    if None in members:
        if len(core_nodes) > 1:
            unknown = ", ".join(members[None])
            message = f"the NUMA node of {unknown} is unknown: cores of all nodes are divided"
            shares.notes.append(Note.remark("gpu_node_unknown", message, devices=unknown))
        members = {None: list(nodes)}
    pools = {node: [core for core in machine.cores if node is None or core.node == node] for node in members}
    if HOST in workers:
        all_cores = tuple(core for pool in pools.values() for core in pool)
        worker_counts = {
            node: sum(workers[device] for device in node_devices) for node, node_devices in members.items()
        }
        _give_host(shares, _take_host_cores(pools, worker_counts, len(nodes)), all_cores, list(nodes))
    for node, node_devices in members.items():
        _share_node(
            shares,
            tuple(pools[node]),
            node_devices,
            node,
            keep=keep,
            least=max(workers[device] for device in node_devices),
        )
    return shares


def _take_host_cores(
    pools: dict[int | None, list[Core]], worker_counts: Mapping[int | None, int], devices: int
) -> Cores:
    """Take the host's share, equal to that of one more device, from where there are most cores per worker."""
    cores: list[Core] = []
    for _ in range(max(1, sum(map(len, pools.values())) // (devices + 1))):
        spare = [node for node, pool in pools.items() if len(pool) > worker_counts[node]]
        if not spare:
            break
        cores.append(pools[max(spare, key=lambda node: len(pools[node]) / worker_counts[node])].pop())
    return tuple(cores)


def _give_host(shares: CoreShares, cores: Cores, all_cores: Cores, devices: list[str]) -> None:
    """Give the host its cores; where none are left it shares those of the devices."""
    if not cores:
        message = f"{len(all_cores)} cores for {', '.join(devices)} and the host: the host shares their cores"
        shares.notes.append(Note.warning("host_shares_cores", message, cores=len(all_cores)))
    shares.of[HOST] = cores or all_cores


def _share_node(
    shares: CoreShares, pool: Cores, devices: list[str], node: int | None, *, keep: bool, least: int
) -> None:
    """Divide the cores of one node equally among its GPUs."""
    if len(pool) < len(devices):
        where = "" if node is None else f" on node {node}"
        message = f"{len(pool)} cores{where} for {len(devices)} GPUs: {', '.join(devices)} share cores"
        shares.notes.append(Note.warning("gpus_share_cores", message, cores=len(pool), gpus=len(devices)))
        shares.of.update({device: (pool[index % len(pool)],) for index, device in enumerate(devices)})
    else:
        parts = split_equally(pool, len(devices), keep=keep, least=least)
        shares.of.update(zip(devices, parts, strict=True))


def _share_to_workers(device: str, shares: CoreShares, count: int) -> dict[DeviceWorker, Cores]:
    """Divide a device's cores equally among its workers."""
    cores = shares.of[device]
    if count == 1:
        return {(device, 0): cores}
    if len(cores) < count:
        message = f"{len(cores)} cores of {device} for {count} workers: they share cores"
        shares.notes.append(Note.warning("workers_share_cores", message, cores=len(cores), workers=count))
        return {(device, worker): (cores[worker % len(cores)],) for worker in range(count)}
    return {(device, worker): part for worker, part in enumerate(split_equally(cores, count))}


LEVELS: tuple[Isolation, ...] = get_args(Isolation)


class Allotment(Value):
    """What one worker of a device, or of the host, may use at a level. Null: not restricted."""

    device: str
    worker: int = 0
    level: Isolation
    cpus: tuple[int, ...] | None = None
    nodes: tuple[int, ...] | None = None
    threads: int | None = None
    gpu_uuid: str | None = Field(default=None, description="Of the GPU or the MIG instance, for CUDA_VISIBLE_DEVICES.")


class Placement(Value):
    """The allotments of all devices that may run at once, the cores left over, and notes on compromises."""

    allotments: tuple[Allotment, ...]
    kept_cpus: tuple[int, ...] = Field(default=(), description="Cores left for the parent.")
    notes: tuple[Note, ...] = ()

    def of(self, device: str, worker: int = 0) -> Allotment:
        """Return the allotment of a worker of a device."""
        return next(a for a in self.allotments if (a.device, a.worker) == (device, worker))


def includes_level(level: Isolation, other: Isolation) -> bool:
    """Return whether a level includes another."""
    return LEVELS.index(level) >= LEVELS.index(other)


def parse_level(text: str) -> Isolation:
    """Return the isolation level with this name; raise with the list of levels if there is none."""
    for level in LEVELS:
        if text.lower() == level:
            return level
    raise BadInput(f"Unknown isolation level {text!r}; there are {', '.join(LEVELS)}.{suggest_nearest(text, LEVELS)}")


def list_devices(machine: Machine, *, cpu_groups: int | None = None) -> tuple[str, ...]:
    """Return every device of the machine: its GPUs and MIG instances, then its groups of cores (two by default)."""
    return (*gpu_targets(machine), *(f"cpu:{group}" for group in range(group_count(machine, cpu_groups))))


def allot_cores(
    machine: Machine,
    devices: tuple[str, ...],
    level: Isolation,
    *,
    cpu_groups: int | None = None,
    workers: Mapping[str, int] | None = None,
) -> Placement:
    """Return disjoint allotments for devices that may run at the same time, possibly including the host.

    They are whole physical cores, on the GPU's own memory node if known, in equal shares; those of a device are
    divided among its workers, one unless ``workers`` says otherwise. If there are fewer cores than workers, they share
    cores and a note says so.
    """
    gpus = gpu_targets(machine)
    counts = {device: (workers or {}).get(device, 1) for device in devices}
    if not includes_level(level, "cpu"):
        return Placement(
            allotments=tuple(
                Allotment(
                    device=device,
                    worker=worker,
                    level=level,
                    gpu_uuid=gpus[device].uuid if device in gpus and level == "gpu" else None,
                )
                for device, count in counts.items()
                for worker in range(count)
            )
        )
    shares, notes = share_cores(machine, counts, keep=level == "full", cpu_groups=cpu_groups)
    memory_nodes, memory_notes = _nodes_with_memory(machine) if includes_level(level, "numa") else ({}, ())
    allotments = tuple(
        _allotment(device_worker, level, cores, gpus.get(device_worker[0]), memory_nodes)
        for device_worker, cores in shares.items()
    )
    used = {cpu for a in allotments for cpu in a.cpus or ()}
    notes = (*notes, *memory_notes, *_quota_note(machine, allotments))
    reserved = tuple(cpu for cpu in machine.cpus if cpu not in used) if level == "full" else ()
    if level == "full" and not reserved:
        notes = (*notes, Note.remark("no_parent_core", "no core is left for the parent: every core is allotted"))
    return Placement(allotments=allotments, kept_cpus=reserved, notes=notes)


def _allotment(
    device_worker: DeviceWorker,
    level: Isolation,
    cores: tuple[Core, ...],
    gpu: GpuTarget | None,
    memory_nodes: dict[int, int],
) -> Allotment:
    device, worker = device_worker
    return Allotment(
        device=device,
        worker=worker,
        level=level,
        cpus=tuple(sorted(cpu for core in cores for cpu in core.cpus)),
        nodes=tuple(sorted({memory_nodes.get(core.node, core.node) for core in cores}))
        if includes_level(level, "numa")
        else None,
        threads=len(cores) if level == "full" else None,
        gpu_uuid=gpu.uuid if gpu else None,
    )


def _nodes_with_memory(machine: Machine) -> tuple[dict[int, int], tuple[Note, ...]]:
    """Return the node to take memory from for cores on nodes that have none, and a note for each such node."""
    memory_nodes: dict[int, int] = {}
    for node in machine.nodes:
        near = sorted(zip(node.distances, machine.nodes, strict=False), key=lambda pair: pair[0])
        memory_node = next((other.id for _, other in near if other.memory_mib != 0), None)
        if node.memory_mib == 0 and node.cpus and memory_node is not None:
            memory_nodes[node.id] = memory_node
    used = {core.node for core in machine.cores}
    return memory_nodes, tuple(
        Note.remark(
            "node_without_memory",
            f"NUMA node {node} has no memory: its cores use node {memory_node}, the nearest",
            node=node,
            memory_node=memory_node,
        )
        for node, memory_node in memory_nodes.items()
        if node in used
    )


def _quota_note(machine: Machine, allotments: tuple[Allotment, ...]) -> tuple[Note, ...]:
    """Return a note if a control group allows less CPU time than workers could use, as it then pauses them."""
    quota, allotted = machine.limits.cpu_quota, {cpu for a in allotments for cpu in a.cpus or ()}
    if quota is None or quota >= len(allotted):
        return ()
    message = f"the control group allows {quota:g} CPUs' worth of time on {len(allotted)} CPUs: busy workers are paused"
    return (Note.warning("cpu_quota", message, quota=quota, cpus=len(allotted)),)


CoreKey = tuple[int, int]
"""A package and a core in it."""


@dataclass(frozen=True)
class RunningWorker:
    """A worker and what it uses of a machine while it runs."""

    name: str
    level: Isolation
    cpus: tuple[int, ...]
    """Logical CPUs it may run on; all of them if it is not pinned."""
    gpus: Mapping[str, str] = field(default_factory=dict)
    """Its devices that are GPUs or MIG instances, by their UUIDs."""
    boot_id: str = ""
    """Boot id of its machine; workers on different machines share nothing."""


def overlap_limits(
    workers: Sequence[RunningWorker],
    machines: Mapping[str, Machine],
    run_together: Callable[[int, int], bool] | None = None,
) -> list[tuple[IsolationLimit, ...]]:
    """Return for each worker why its level does not hold, given the others.

    Args:
        workers: What each uses, in order.
        machines: By boot id; they determine which CPUs belong to one physical core.
        run_together: Whether two workers, by index, run at the same time; null: all do.
    """
    cores = [_cores_of_worker(worker, machines.get(worker.boot_id)) for worker in workers]
    result: list[tuple[IsolationLimit, ...]] = []
    for index, worker in enumerate(workers):
        others = [
            other
            for other in range(len(workers))
            if other != index
            and workers[other].boot_id == worker.boot_id
            and (run_together is None or run_together(index, other))
        ]
        limits = (_shared_cores(workers, cores, index, others), _shared_gpus(workers, index, others))
        result.append(tuple(limit for limit in limits if limit is not None))
    return result


def _cores_of_worker(worker: RunningWorker, machine: Machine | None) -> dict[CoreKey, tuple[int, ...]]:
    """Return the physical cores that a worker may run on, each with its CPUs; an unknown CPU counts as a core."""
    by_cpu = {cpu: (core.package, core.core) for core in machine.cores for cpu in core.cpus} if machine else {}
    cpus_by_core: dict[CoreKey, tuple[int, ...]] = {}
    for cpu in worker.cpus:
        key = by_cpu.get(cpu, (-1, cpu))
        cpus_by_core[key] = (*cpus_by_core.get(key, ()), cpu)
    return cpus_by_core


def _shared_cores(
    workers: Sequence[RunningWorker],
    cores: Sequence[Mapping[CoreKey, tuple[int, ...]]],
    index: int,
    others: Sequence[int],
) -> IsolationLimit | None:
    worker, own_cores = workers[index], cores[index]
    sharing = [other for other in others if own_cores.keys() & cores[other].keys()]
    if not includes_level(worker.level, "cpu") or not sharing:
        return None
    keys = {key for other in sharing for key in own_cores.keys() & cores[other].keys()}
    cpus = tuple(sorted(cpu for key in keys for cpu in own_cores[key]))
    names = tuple(workers[other].name for other in sharing)
    shared = f"core{'s' if len(keys) > 1 else ''} {', '.join(map(str, cpus))}"
    return IsolationLimit(
        code="shared_cores",
        level="gpu" if worker.gpus else "none",
        message=f"{worker.name} shares {shared} with {format_list(names, most=3)}",
        shared_with=names,
        cpus=cpus,
    )


def _shared_gpus(workers: Sequence[RunningWorker], index: int, others: Sequence[int]) -> IsolationLimit | None:
    worker = workers[index]
    sharing = [other for other in others if worker.gpus.keys() & workers[other].gpus.keys()]
    if not includes_level(worker.level, "gpu") or not sharing:
        return None
    shared_uuids = {uuid for other in sharing for uuid in workers[other].gpus}
    gpus = sorted(device for uuid, device in worker.gpus.items() if uuid in shared_uuids)
    names = tuple(workers[other].name for other in sharing)
    message = f"{worker.name} shares {', '.join(gpus)} with {format_list(names, most=3)}"
    return IsolationLimit(code="shared_gpu", level="none", message=message, shared_with=names)
