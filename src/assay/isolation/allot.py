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

from assay.core.errors import BadInput, nearest
from assay.core.plan import Isolation
from assay.core.values import Value
from assay.isolation.shares import group_count, share_out
from assay.isolation.targets import targets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.isolation.shares import Seat
    from assay.isolation.targets import Target
    from assay.machine.model import Core, Machine

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


def allot(
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
    gpus = targets(machine)
    counts = {device: (workers or {}).get(device, 1) for device in devices}
    if not at_least(level, "cpu"):
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
    shares, notes = share_out(machine, counts, keep=level == "full", cpu_groups=cpu_groups)
    homes, homeless = _memory_homes(machine) if at_least(level, "numa") else ({}, ())
    allotments = tuple(_allotment(seat, level, cores, gpus.get(seat[0]), homes) for seat, cores in shares.items())
    used = {cpu for a in allotments for cpu in a.cpus or ()}
    notes = (*notes, *homeless, *_quota_note(machine, allotments))
    reserved = tuple(cpu for cpu in machine.cpus if cpu not in used) if level == "full" else ()
    if level == "full" and not reserved:
        notes = (*notes, "no core is left for the parent: every core is allotted")
    return Placement(allotments=allotments, kept_cpus=reserved, notes=notes)


def _allotment(
    seat: Seat, level: Isolation, cores: tuple[Core, ...], gpu: Target | None, homes: dict[int, int]
) -> Allotment:
    device, worker = seat
    return Allotment(
        device=device,
        worker=worker,
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
