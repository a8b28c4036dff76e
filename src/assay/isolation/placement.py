"""Place workers on cores: from a machine and devices to disjoint allotments, and whether running workers overlap.

level   GPU visibility   own cores   own memory node   thread limits   a core reserved for the parent
none
gpu           ×
cpu           ×              ×
numa          ×              ×              ×
full          ×              ×              ×                ×                     ×

the cores of a node   │ cuda:0              │ cuda:1              │ host │ left over
                      │ worker 0 │ worker 1 │ worker 0 │ worker 1 │      │

A core or a GPU that two workers use at the same time belongs to neither; the level that held is lowered accordingly:

    worker a   cores 0 1          worker a   cores 0 1 │
    worker b       cores 1 2      worker b             │ cores 2 3
               ▲ shared: none                 disjoint: unchanged
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from pydantic import Field

from assay.core.errors import BadInput, MachineCannot, suggest_nearest
from assay.core.plan import HOST, Isolation
from assay.core.results import IsolationLimit
from assay.core.values import Value
from assay.machine.cuda_devices import gpu_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.machine.cuda_devices import GpuTarget
    from assay.machine.model import Core, Machine


Cores = tuple["Core", ...]
DeviceWorker = tuple[str, int]
"""A device, or the host, and the number of a worker there."""


@dataclass
class CoreShares:
    """Who gets which cores, and in words where there were too few."""

    of: dict[str, Cores] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def share_cores(
    machine: Machine, workers: Mapping[str, int], *, keep: bool, cpu_groups: int | None = None
) -> tuple[dict[DeviceWorker, Cores], tuple[str, ...]]:
    """Return the cores of each worker, and in words where there were too few.

    Args:
        machine: Whose cores.
        workers: The devices, the host perhaps among them, and how many workers each has.
        keep: Leave a core out for the parent, where there is one to spare.
        cpu_groups: Into how many groups the cores are parted where groups of cores are the devices.
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
    seats: dict[DeviceWorker, Cores] = {}
    for device, count in workers.items():
        seats.update(_share_to_workers(device, shares, count))
    return seats, tuple(shares.notes)


def group_count(machine: Machine, requested: int | None) -> int:
    """Return how many groups the cores are parted into: as wanted, else two, else one on a single core."""
    cores = len(machine.cores)
    if requested is None:
        return min(2, cores)
    if requested < 1:
        raise BadInput(f"{requested} groups of cores make no sense; ask for one or more.")
    if requested > cores:
        raise MachineCannot(
            f"{requested} groups of cores need {requested} physical cores; this process may use {cores}."
        )
    return requested


def split_equally(cores: Cores, count: int, *, keep: bool = False, least: int = 1) -> list[Cores]:
    """Part cores into equal groups of neighbours; one is left out if asked, where each group keeps ``least`` then."""
    size = len(cores) // count
    if keep and (len(cores) - 1) // count >= least:
        size = (len(cores) - 1) // count
    return [cores[index * size : (index + 1) * size] for index in range(count)]


def _share_to_groups(machine: Machine, workers: Mapping[str, int], groups: int, *, keep: bool) -> CoreShares:
    """Share out to groups of cores; the host gets a group that no device is, or one more where each is a device."""
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
    """Share out to GPUs, each on its own node where it is known; the host gets its part of all these nodes."""
    shares = CoreShares()
    core_nodes = {core.node for core in machine.cores}
    members: dict[int | None, list[str]] = {}
    for device, node in nodes.items():
        members.setdefault(node if node in core_nodes else None, []).append(device)
    if None in members:
        if len(core_nodes) > 1:
            unknown = ", ".join(members[None])
            shares.notes.append(f"the memory node of {unknown} is not known; cores of all nodes are shared out")
        members = {None: list(nodes)}
    pools = {node: [core for core in machine.cores if node is None or core.node == node] for node in members}
    if HOST in workers:
        everything = tuple(core for pool in pools.values() for core in pool)
        seats = {node: sum(workers[device] for device in there) for node, there in members.items()}
        _give_host(shares, _take_host_cores(pools, seats, len(nodes)), everything, list(nodes))
    for node, there in members.items():
        _share_node(shares, tuple(pools[node]), there, node, keep=keep, least=max(workers[device] for device in there))
    return shares


def _take_host_cores(pools: dict[int | None, list[Core]], seats: Mapping[int | None, int], devices: int) -> Cores:
    """Take the host's part, that of one more device, from where there is the most for each worker."""
    cores: list[Core] = []
    for _ in range(max(1, sum(map(len, pools.values())) // (devices + 1))):
        spare = [node for node, pool in pools.items() if len(pool) > seats[node]]
        if not spare:
            break
        cores.append(pools[max(spare, key=lambda node: len(pools[node]) / seats[node])].pop())
    return tuple(cores)


def _give_host(shares: CoreShares, cores: Cores, everything: Cores, devices: list[str]) -> None:
    """Give the host its cores; where none are left it shares those of the devices."""
    if not cores:
        shares.notes.append(f"{len(everything)} cores for {', '.join(devices)} and the host: it shares their cores")
    shares.of[HOST] = cores or everything


def _share_node(
    shares: CoreShares, pool: Cores, devices: list[str], node: int | None, *, keep: bool, least: int
) -> None:
    """Share the cores of one node out to its GPUs, equally."""
    if len(pool) < len(devices):
        where = "" if node is None else f" on node {node}"
        shares.notes.append(f"{len(pool)} cores{where} for {len(devices)} GPUs: {', '.join(devices)} share cores")
        shares.of.update({device: (pool[index % len(pool)],) for index, device in enumerate(devices)})
    else:
        parts = split_equally(pool, len(devices), keep=keep, least=least)
        shares.of.update(zip(devices, parts, strict=True))


def _share_to_workers(device: str, shares: CoreShares, count: int) -> dict[DeviceWorker, Cores]:
    """Share a device's cores out to its workers, equally."""
    cores = shares.of[device]
    if count == 1:
        return {(device, 0): cores}
    if len(cores) < count:
        shares.notes.append(f"{len(cores)} cores of {device} for {count} workers: they share cores")
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
    """The allotments of all devices that may run at once, the cores nobody got, and what had to be given up."""

    allotments: tuple[Allotment, ...]
    kept_cpus: tuple[int, ...] = Field(default=(), description="Cores left for the parent.")
    notes: tuple[str, ...] = ()

    def of(self, device: str, worker: int = 0) -> Allotment:
        """Return the allotment of a worker of a device."""
        return next(a for a in self.allotments if (a.device, a.worker) == (device, worker))


def includes_level(level: Isolation, other: Isolation) -> bool:
    """Return whether a level includes another."""
    return LEVELS.index(level) >= LEVELS.index(other)


def parse_level(text: str) -> Isolation:
    """Return the isolation level of that name, or say which there are."""
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
    """Return disjoint allotments for devices that may run at the same time, the host perhaps among them.

    Whole physical cores, on the GPU's own memory node where it is known, in equal shares; those of a device are shared
    out to its workers, one unless ``workers`` says how many. Fewer cores than workers is said in the notes, and they
    then share cores.
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
    homes, homeless = _nodes_with_memory(machine) if includes_level(level, "numa") else ({}, ())
    allotments = tuple(_allotment(seat, level, cores, gpus.get(seat[0]), homes) for seat, cores in shares.items())
    used = {cpu for a in allotments for cpu in a.cpus or ()}
    notes = (*notes, *homeless, *_quota_note(machine, allotments))
    reserved = tuple(cpu for cpu in machine.cpus if cpu not in used) if level == "full" else ()
    if level == "full" and not reserved:
        notes = (*notes, "no core is left for the parent: every core is allotted")
    return Placement(allotments=allotments, kept_cpus=reserved, notes=notes)


def _allotment(
    seat: DeviceWorker, level: Isolation, cores: tuple[Core, ...], gpu: GpuTarget | None, homes: dict[int, int]
) -> Allotment:
    device, worker = seat
    return Allotment(
        device=device,
        worker=worker,
        level=level,
        cpus=tuple(sorted(cpu for core in cores for cpu in core.cpus)),
        nodes=tuple(sorted({homes.get(core.node, core.node) for core in cores}))
        if includes_level(level, "numa")
        else None,
        threads=len(cores) if level == "full" else None,
        gpu_uuid=gpu.uuid if gpu else None,
    )


def _nodes_with_memory(machine: Machine) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return the node to take memory from for cores on nodes that have none, and a note for each such node."""
    homes: dict[int, int] = {}
    for node in machine.nodes:
        near = sorted(zip(node.distances, machine.nodes, strict=False), key=lambda pair: pair[0])
        home = next((other.id for _, other in near if other.memory_mib != 0), None)
        if node.memory_mib == 0 and node.cpus and home is not None:
            homes[node.id] = home
    used = {core.node for core in machine.cores}
    notes = [f"node {node} has no memory: that of node {home}, the nearest, is used" for node, home in homes.items()]
    return homes, tuple(note for node, note in zip(homes, notes, strict=True) if node in used)


def _quota_note(machine: Machine, allotments: tuple[Allotment, ...]) -> tuple[str, ...]:
    """Say when a control group gives less CPU time than workers could use: it then stops them now and again."""
    quota, allotted = machine.limits.cpu_quota, {cpu for a in allotments for cpu in a.cpus or ()}
    if quota is None or quota >= len(allotted):
        return ()
    return (f"the control group allows {quota:g} CPUs' worth of time on {len(allotted)} CPUs: busy workers are paused",)


CoreKey = tuple[int, int]
"""A package and a core in it."""


@dataclass(frozen=True)
class RunningWorker:
    """A worker and what it has of a machine while it runs."""

    name: str
    level: Isolation
    cpus: tuple[int, ...]
    """Logical CPUs it may run on; one that is not pinned may run on all."""
    gpus: Mapping[str, str] = field(default_factory=dict)
    """The devices it works on that are GPUs or MIG instances, by their UUIDs."""
    boot_id: str = ""
    """Of its machine; workers of different machines share nothing."""


def overlap_limits(
    workers: Sequence[RunningWorker],
    machines: Mapping[str, Machine],
    run_together: Callable[[int, int], bool] | None = None,
) -> list[tuple[IsolationLimit, ...]]:
    """Return for each worker why its level does not hold beside the others.

    Args:
        workers: What each has, in order.
        machines: By boot id; CPUs of one physical core are known from there.
        run_together: Whether two workers, by their places, run at the same time; null: all do.
    """
    cores = [_cores_of_worker(worker, machines.get(worker.boot_id)) for worker in workers]
    result: list[tuple[IsolationLimit, ...]] = []
    for at, worker in enumerate(workers):
        others = [
            other
            for other in range(len(workers))
            if other != at
            and workers[other].boot_id == worker.boot_id
            and (run_together is None or run_together(at, other))
        ]
        limits = (_shared_cores(workers, cores, at, others), _shared_gpus(workers, at, others))
        result.append(tuple(limit for limit in limits if limit is not None))
    return result


def _cores_of_worker(worker: RunningWorker, machine: Machine | None) -> dict[CoreKey, tuple[int, ...]]:
    """Return the physical cores that a worker may run on, each with its CPUs there; a CPU not known is a core."""
    by_cpu = {cpu: (core.package, core.core) for core in machine.cores for cpu in core.cpus} if machine else {}
    cpus_by_core: dict[CoreKey, tuple[int, ...]] = {}
    for cpu in worker.cpus:
        key = by_cpu.get(cpu, (-1, cpu))
        cpus_by_core[key] = (*cpus_by_core.get(key, ()), cpu)
    return cpus_by_core


def _shared_cores(
    workers: Sequence[RunningWorker], cores: Sequence[Mapping[CoreKey, tuple[int, ...]]], at: int, others: Sequence[int]
) -> IsolationLimit | None:
    worker, mine = workers[at], cores[at]
    sharing = [other for other in others if mine.keys() & cores[other].keys()]
    if not includes_level(worker.level, "cpu") or not sharing:
        return None
    keys = {key for other in sharing for key in mine.keys() & cores[other].keys()}
    cpus = tuple(sorted(cpu for key in keys for cpu in mine[key]))
    names = tuple(workers[other].name for other in sharing)
    shared = f"core{'s' if len(keys) > 1 else ''} {', '.join(map(str, cpus))}"
    return IsolationLimit(
        code="shared_cores",
        level="gpu" if worker.gpus else "none",
        message=f"{worker.name} shares {shared} with {_join_names(names)}",
        shared_with=names,
        cpus=cpus,
    )


def _shared_gpus(workers: Sequence[RunningWorker], at: int, others: Sequence[int]) -> IsolationLimit | None:
    worker = workers[at]
    sharing = [other for other in others if worker.gpus.keys() & workers[other].gpus.keys()]
    if not includes_level(worker.level, "gpu") or not sharing:
        return None
    theirs = {uuid for other in sharing for uuid in workers[other].gpus}
    gpus = sorted(device for uuid, device in worker.gpus.items() if uuid in theirs)
    names = tuple(workers[other].name for other in sharing)
    message = f"{worker.name} shares {', '.join(gpus)} with {_join_names(names)}"
    return IsolationLimit(code="shared_gpu", level="none", message=message, shared_with=names)


def _join_names(names: Sequence[str], most: int = 3) -> str:
    """Write "a, b and c", or "a, b, c and 5 more"."""
    shown = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))
