"""Who gets which cores: pure functions from a machine and devices to disjoint allotments.

level   GPU visibility   own cores   own memory node   thread limits   a core kept for the parent
none
gpu           ×
cpu           ×              ×
numa          ×              ×              ×
full          ×              ×              ×                ×                     ×
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from pydantic import Field

from assay.core.errors import BadInput, MachineCannot, nearest
from assay.core.plan import Isolation
from assay.core.values import Value
from assay.isolation.targets import targets

if TYPE_CHECKING:
    from assay.isolation.targets import Target
    from assay.machine.model import Core, Machine

LEVELS: tuple[Isolation, ...] = get_args(Isolation)


class Allotment(Value):
    """What one device's worker may use at a level. Null: not restricted."""

    device: str
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

    def of(self, device: str) -> Allotment:
        """Return the allotment of a device."""
        return next(a for a in self.allotments if a.device == device)


def at_least(level: Isolation, other: Isolation) -> bool:
    """Return whether a level includes another."""
    return LEVELS.index(level) >= LEVELS.index(other)


def parse_level(text: str) -> Isolation:
    """Return the isolation level of that name, or say which there are."""
    for level in LEVELS:
        if text.lower() == level:
            return level
    raise BadInput(f"Unknown isolation level {text!r}; there are {', '.join(LEVELS)}.{nearest(text, LEVELS)}")


def device_names(machine: Machine, *, cpu_groups: int | None = None) -> tuple[str, ...]:
    """Return every device of the machine: its GPUs and MIG instances, then its groups of cores (two by default)."""
    return (*targets(machine), *(f"cpu:{group}" for group in range(group_count(machine, cpu_groups))))


def group_count(machine: Machine, wanted: int | None) -> int:
    """Return how many groups the cores are parted into: as wanted, else two, else one on a single core."""
    cores = len(machine.cores)
    if wanted is None:
        return min(2, cores)
    if wanted < 1:
        raise BadInput(f"{wanted} groups of cores make no sense; ask for one or more.")
    if wanted > cores:
        raise MachineCannot(f"{wanted} groups of cores need {wanted} physical cores; this process may use {cores}.")
    return wanted


def allot(machine: Machine, devices: tuple[str, ...], level: Isolation, *, cpu_groups: int | None = None) -> Placement:
    """Return disjoint allotments for devices that may run at the same time.

    Whole physical cores, on the GPU's own memory node where it is known, in equal shares. Fewer cores than
    devices is said in the notes, and those devices then share cores.
    """
    gpus = targets(machine)
    if not at_least(level, "cpu"):
        return Placement(
            allotments=tuple(
                Allotment(device=d, level=level, gpu_uuid=gpus[d].uuid if d in gpus and level == "gpu" else None)
                for d in devices
            )
        )
    shares, notes = _shares(machine, devices, gpus, keep=level == "full", cpu_groups=cpu_groups)
    homes, homeless = _memory_homes(machine) if at_least(level, "numa") else ({}, ())
    allotments = tuple(_allotment(device, level, shares[device], gpus.get(device), homes) for device in devices)
    used = {cpu for a in allotments for cpu in a.cpus or ()}
    notes = (*notes, *homeless, *_quota_note(machine, allotments))
    kept = tuple(cpu for cpu in machine.cpus if cpu not in used) if level == "full" else ()
    if level == "full" and not kept:
        notes = (*notes, "no core is left for the parent: every core is allotted")
    return Placement(allotments=allotments, kept_cpus=kept, notes=notes)


def _allotment(
    device: str, level: Isolation, cores: tuple[Core, ...], gpu: Target | None, homes: dict[int, int]
) -> Allotment:
    return Allotment(
        device=device,
        level=level,
        cpus=tuple(sorted(cpu for core in cores for cpu in core.cpus)),
        nodes=tuple(sorted({homes.get(core.node, core.node) for core in cores})) if at_least(level, "numa") else None,
        threads=len(cores) if level == "full" else None,
        gpu_uuid=gpu.uuid if gpu else None,
    )


def _memory_homes(machine: Machine) -> tuple[dict[int, int], tuple[str, ...]]:
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


def _shares(
    machine: Machine, devices: tuple[str, ...], gpus: dict[str, Target], *, keep: bool, cpu_groups: int | None
) -> tuple[dict[str, tuple[Core, ...]], tuple[str, ...]]:
    """Return the cores of each device, and in words where there were too few."""
    if all(device not in gpus for device in devices):
        groups = equal_groups(machine.cores, group_count(machine, cpu_groups), keep=keep)
        return {f"cpu:{index}": group for index, group in enumerate(groups)}, ()
    if any(device not in gpus for device in devices):
        raise BadInput("GPUs and groups of cores cannot be measured side by side: their cores would overlap.")
    return _gpu_shares(machine, devices, gpus, keep=keep)


def equal_groups(cores: tuple[Core, ...], count: int, *, keep: bool) -> list[tuple[Core, ...]]:
    """Part cores into equal groups of neighbours, leaving at least one out when asked and possible."""
    size = len(cores) // count
    if keep and (len(cores) - 1) // count >= 1:
        size = (len(cores) - 1) // count
    return [cores[index * size : (index + 1) * size] for index in range(count)]


def _gpu_shares(
    machine: Machine, devices: tuple[str, ...], gpus: dict[str, Target], *, keep: bool
) -> tuple[dict[str, tuple[Core, ...]], tuple[str, ...]]:
    shares: dict[str, tuple[Core, ...]] = {}
    notes: list[str] = []
    by_node: dict[int | None, list[str]] = {}
    known = {core.node for core in machine.cores}
    for device in devices:
        node = gpus[device].node
        by_node.setdefault(node if node in known else None, []).append(device)
    if None in by_node and len(known) > 1:
        notes.append(f"the memory node of {', '.join(by_node[None])} is not known; cores of all nodes are shared out")
    if None in by_node:
        by_node = {None: list(devices)}
    for node, members in by_node.items():
        pool = tuple(core for core in machine.cores if node is None or core.node == node)
        if len(pool) < len(members):
            where = "" if node is None else f" on node {node}"
            notes.append(f"{len(pool)} cores{where} for {len(members)} GPUs: {', '.join(members)} share cores")
            shares.update({d: (pool[index % len(pool)],) for index, d in enumerate(members)})
        else:
            shares.update(zip(members, equal_groups(pool, len(members), keep=keep), strict=True))
    return shares, tuple(notes)
