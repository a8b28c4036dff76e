"""The cores and the GPU of each worker of a trial on its machine, and the isolation level that they give.

The isolation level is predicted from the placement, and lowered afterwards where the evidence shows that workers
overlapped.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.core.results import Note
from assay.isolation.binding import HeldIsolation
from assay.isolation.devices import kind_of
from assay.isolation.placement import RunningWorker, allot_cores, overlap_limits
from assay.launch.workers import WorkerId
from assay.machine.cuda_devices import gpu_targets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from assay.core.results import Evidence, IsolationLimit
    from assay.core.values import Isolation, Role, Trial
    from assay.isolation.placement import Allotment, Placement
    from assay.machine.model import Machine


PlacementsByLevel = dict["Isolation", "Placement"]


class TrialPlacement:
    """The placements of one trial: here, and on the machines of remote ranks.

    Args:
        trial: The trial whose workers are placed.
        machine: The machine of this process, and of every role with a single rank.
        elsewhere: The machine of each rank on another node; ranks of one node share the very same value.
    """

    def __init__(self, trial: Trial, machine: Machine, elsewhere: Mapping[int, Machine]) -> None:
        max_ranks = max(role.ranks for role in trial.roles)
        self._trial = trial
        self._here = machine
        self._elsewhere = {rank: other for rank, other in elsewhere.items() if rank < max_ranks}
        self._machines = {id(node): node for node in (machine, *self._elsewhere.values())}
        self._refuse_missing_gpus()
        self._placements = {key: compute_placements(node, trial) for key, node in self._machines.items()}

    def machine_of(self, role: Role, rank: int) -> Machine:
        """Return the machine of a rank."""
        return self._elsewhere.get(rank, self._here) if role.ranks > 1 else self._here

    def allotment(self, role: Role, rank: int) -> Allotment:
        """Return what a rank may use of its own machine."""
        machine = self.machine_of(role, rank)
        allotment = self._placements[id(machine)][role.isolation].of(role.device_of(rank), role.worker)
        if allotment.gpu_uuid is None or role.used == role.devices:
            return allotment
        metered_uuids = [gpu_targets(machine)[device].uuid for device in role.metered]
        return allotment.model_copy(update={"gpu_uuid": ",".join([allotment.gpu_uuid, *metered_uuids])})

    @property
    def kept_cpus(self) -> set[int]:
        """The local CPUs that no worker got."""
        return {cpu for placement in self._placements[id(self._here)].values() for cpu in placement.kept_cpus}

    def notes(self) -> list[Note]:
        """Return the compromises of the placement, each once."""
        placement_notes = [
            note for levels in self._placements.values() for placement in levels.values() for note in placement.notes
        ]
        return list(dict.fromkeys([*placement_notes, *self._oversubscribed_ranks(), *self._shared_machines()]))

    def _refuse_missing_gpus(self) -> None:
        targets_by_device = {key: gpu_targets(machine) for key, machine in self._machines.items()}
        for role in self._trial.roles:
            missing = [device for device in role.metered if device not in targets_by_device[id(self._here)]]
            if missing:
                raise MachineCannot(f"{missing[0]} is to be metered, but there is no such GPU here.")
            for rank in self._elsewhere if role.ranks > 1 else ():
                device = role.device_of(rank)
                if kind_of(device) == "cuda" and device not in targets_by_device[id(self._elsewhere[rank])]:
                    raise MachineCannot(f"Rank {rank} would work on {device}, but its node has no such GPU.")

    def _oversubscribed_ranks(self) -> Iterator[Note]:
        for role in self._trial.roles:
            for key, ranks in Counter(id(self.machine_of(role, rank)) for rank in range(role.ranks)).items():
                cpus = len(self._machines[key].cpus)
                if ranks > cpus:
                    message = f"{ranks} ranks of {role.name} share {cpus} CPUs"
                    yield Note.warning("ranks_share_cpus", message, ranks=ranks, cpus=cpus)

    def _shared_machines(self) -> Iterator[Note]:
        """Note when several nodes are one machine: a rank alone on its node is then not alone on its machine."""
        if len({machine.boot_id for machine in self._machines.values()}) < len(self._machines):
            yield Note.warning("nodes_share_machine", "several nodes are one machine: their ranks share its cores")


def compute_placements(machine: Machine, trial: Trial) -> PlacementsByLevel:
    """Return the placement of workers on cores, by each isolation level that the trial's roles ask for."""
    workers = trial.workers
    levels = dict.fromkeys(role.isolation for role in trial.roles)
    return {
        level: allot_cores(machine, tuple(workers), level, cpu_groups=trial.cpu_groups, workers=workers)
        for level in levels
    }


def predict_isolation(trial: Trial, placing: TrialPlacement) -> dict[tuple[str, int], HeldIsolation]:
    """Return the isolation that can hold for each placed worker, by its role and rank."""
    worker_ids = [WorkerId(role, rank, 0) for role in trial.roles for rank in range(role.ranks)]
    workers = []
    for worker_id in worker_ids:
        allotted_cpus = placing.allotment(worker_id.role, worker_id.rank).cpus
        machine_cpus = placing.machine_of(worker_id.role, worker_id.rank).cpus
        workers.append(
            _occupant(
                worker_id, placing, worker_id.role.isolation, machine_cpus if allotted_cpus is None else allotted_cpus
            )
        )
    limits = _find_limits(trial, placing, worker_ids, workers)
    return {
        worker_id.key: HeldIsolation(worker_id.role.isolation).limited(*worker_limits)
        for worker_id, worker_limits in zip(worker_ids, limits, strict=True)
    }


def apply_overlap_limits(trial: Trial, placing: TrialPlacement, evidence: Sequence[Evidence]) -> list[Evidence]:
    """Return the evidence of one restart, with the isolation level lowered where workers overlapped."""
    roles = {role.name: role for role in trial.roles}
    worker_ids = [WorkerId(roles[entry.role], entry.rank, entry.restart) for entry in evidence]
    workers = [
        _occupant(worker_id, placing, entry.isolation_held, entry.allowed_cores)
        for worker_id, entry in zip(worker_ids, evidence, strict=True)
    ]
    lowered = []
    for entry, worker_limits in zip(evidence, _find_limits(trial, placing, worker_ids, workers), strict=True):
        held = HeldIsolation(entry.isolation_held, entry.isolation_limits).limited(*worker_limits)
        lowered.append(entry.model_copy(update={"isolation_held": held.level, "isolation_limits": held.limits}))
    return lowered


def shortfall_notes(evidence: Sequence[Evidence]) -> list[Note]:
    """Return descriptions of the isolation that did not hold, each once."""
    return list(
        dict.fromkeys(
            Note.warning(
                limit.code,
                f"isolation {entry.isolation_asked} did not hold, only {entry.isolation_held}: {limit.message}",
                requested=entry.isolation_asked,
                held=entry.isolation_held,
            )
            for entry in evidence
            for limit in entry.isolation_limits
        )
    )


def roles_overlap(trial: Trial, one: Role, other: Role) -> bool:
    """Return whether workers of two roles run concurrently: loads always, timed ones depending on the schedule."""
    return one.name == other.name or trial.schedule == "together" or "load" in {one.duty, other.duty}


def _find_limits(
    trial: Trial, placing: TrialPlacement, worker_ids: Sequence[WorkerId], workers: Sequence[RunningWorker]
) -> list[tuple[IsolationLimit, ...]]:
    machines = [placing.machine_of(worker_id.role, worker_id.rank) for worker_id in worker_ids]
    return overlap_limits(
        workers,
        {machine.boot_id: machine for machine in machines},
        lambda one, other: roles_overlap(trial, worker_ids[one].role, worker_ids[other].role),
    )


def _occupant(worker_id: WorkerId, placing: TrialPlacement, level: Isolation, cpus: tuple[int, ...]) -> RunningWorker:
    machine = placing.machine_of(worker_id.role, worker_id.rank)
    further_devices = [device for device in worker_id.role.used if device not in worker_id.role.devices]
    targets_by_device = gpu_targets(machine)
    gpus = {
        targets_by_device[device].uuid: device
        for device in (worker_id.role.device_of(worker_id.rank), *further_devices)
        if device in targets_by_device
    }
    return RunningWorker(worker_id.name, level, cpus, gpus, machine.boot_id)
