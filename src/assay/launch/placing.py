"""Who gets which cores and which GPU, on every machine that a trial's ranks live on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.isolation.allot import allot
from assay.isolation.devices import kind_of
from assay.isolation.targets import targets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.core.plan import Isolation, Role, Trial
    from assay.isolation.allot import Allotment, Placement
    from assay.machine.model import Machine

Placements = dict["Isolation", "Placement"]


class Placing:
    """The placements of one trial: here, and on the machines of the ranks that live elsewhere.

    Args:
        trial: Whose workers are placed.
        machine: The one that this process, and every role of a single rank, is on.
        elsewhere: The machine of each rank that lives on another node; ranks of one node share the very same value.
    """

    def __init__(self, trial: Trial, machine: Machine, elsewhere: Mapping[int, Machine]) -> None:
        most = max(role.ranks for role in trial.roles)
        self._trial = trial
        self._here = machine
        self._elsewhere = {rank: other for rank, other in elsewhere.items() if rank < most}
        self._machines = {id(node): node for node in (machine, *self._elsewhere.values())}
        self._refuse_missing_gpus()
        self._placements = {key: placements_of(node, trial) for key, node in self._machines.items()}

    def machine_of(self, role: Role, rank: int) -> Machine:
        """Return the machine that a rank lives on."""
        return self._elsewhere.get(rank, self._here) if role.ranks > 1 else self._here

    def allotment(self, role: Role, rank: int) -> Allotment:
        """Return what a rank may use of its own machine."""
        machine = self.machine_of(role, rank)
        allotment = self._placements[id(machine)][role.isolation].of(role.device_of(rank), role.worker)
        if allotment.gpu_uuid is None or role.used == role.devices:
            return allotment
        further = [targets(machine)[device].uuid for device in role.metered]
        return allotment.model_copy(update={"gpu_uuid": ",".join([allotment.gpu_uuid, *further])})

    @property
    def kept_cpus(self) -> set[int]:
        """The cores here that no worker got."""
        return {cpu for placement in self._placements[id(self._here)].values() for cpu in placement.kept_cpus}

    def notes(self) -> list[str]:
        """Return what had to be given up, each once."""
        given_up = [
            note for levels in self._placements.values() for placement in levels.values() for note in placement.notes
        ]
        return list(dict.fromkeys([*given_up, *self._crowds(), *self._doubles()]))

    def _refuse_missing_gpus(self) -> None:
        targets_by_device = {key: targets(machine) for key, machine in self._machines.items()}
        for role in self._trial.roles:
            missing = [device for device in role.metered if device not in targets_by_device[id(self._here)]]
            if missing:
                raise MachineCannot(f"{missing[0]} is to be metered, but there is no such GPU here.")
            for rank in self._elsewhere if role.ranks > 1 else ():
                device = role.device_of(rank)
                if kind_of(device) == "cuda" and device not in targets_by_device[id(self._elsewhere[rank])]:
                    raise MachineCannot(f"Rank {rank} would work on {device}, but its node has no such GPU.")

    def _crowds(self) -> Iterator[str]:
        for role in self._trial.roles:
            for key, ranks in Counter(id(self.machine_of(role, rank)) for rank in range(role.ranks)).items():
                most = len(self._machines[key].cpus)
                if ranks > most:
                    yield f"{ranks} ranks of {role.name} share {most} CPUs"

    def _doubles(self) -> Iterator[str]:
        """Say when nodes are not machines of their own: who is alone on its node is then not alone."""
        if len({machine.boot_id for machine in self._machines.values()}) < len(self._machines):
            yield "several nodes are one machine, and their ranks share its cores"


def placements_of(machine: Machine, trial: Trial) -> Placements:
    """Return, for each isolation level the trial's roles ask for, who gets which cores."""
    workers = trial.workers
    levels = dict.fromkeys(role.isolation for role in trial.roles)
    return {
        level: allot(machine, tuple(workers), level, cpu_groups=trial.cpu_groups, workers=workers) for level in levels
    }
