"""Which isolation holds for the workers of a trial beside each other: as placed beforehand, and as read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.isolation.bind import Held
from assay.isolation.overlap import Occupant, overlap_limits
from assay.isolation.targets import targets
from assay.launch.handle import Seat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.plan import Isolation, Role, Trial
    from assay.core.results import Evidence, IsolationLimit
    from assay.launch.placing import Placing


def can_hold(trial: Trial, placing: Placing) -> dict[tuple[str, int], Held]:
    """Return what can hold for each worker where it is to be placed, by its role and rank."""
    worker_ids = [Seat(role, rank, 0) for role in trial.roles for rank in range(role.ranks)]
    workers = []
    for worker_id in worker_ids:
        allotted = placing.allotment(worker_id.role, worker_id.rank).cpus
        anywhere = placing.machine_of(worker_id.role, worker_id.rank).cpus
        workers.append(
            _occupant(worker_id, placing, worker_id.role.isolation, anywhere if allotted is None else allotted)
        )
    limits = _limits(trial, placing, worker_ids, workers)
    return {
        worker_id.key: Held(worker_id.role.isolation).limited(*more)
        for worker_id, more in zip(worker_ids, limits, strict=True)
    }


def held_beside_others(trial: Trial, placing: Placing, evidence: Sequence[Evidence]) -> list[Evidence]:
    """Return what the workers of one restart read back, its level lowered where they were not kept apart."""
    roles = {role.name: role for role in trial.roles}
    worker_ids = [Seat(roles[entry.role], entry.rank, entry.restart) for entry in evidence]
    workers = [
        _occupant(worker_id, placing, entry.isolation_held, entry.allowed_cores)
        for worker_id, entry in zip(worker_ids, evidence, strict=True)
    ]
    lowered = []
    for entry, more in zip(evidence, _limits(trial, placing, worker_ids, workers), strict=True):
        held = Held(entry.isolation_held, entry.isolation_limits).limited(*more)
        lowered.append(entry.model_copy(update={"isolation_held": held.level, "isolation_limits": held.limits}))
    return lowered


def shortfall_notes(evidence: Sequence[Evidence]) -> list[str]:
    """Return in words what did not hold, each once."""
    return list(
        dict.fromkeys(
            f"isolation {entry.isolation_asked} did not hold, only {entry.isolation_held}: {limit.message}"
            for entry in evidence
            for limit in entry.isolation_limits
        )
    )


def run_together(trial: Trial, one: Role, other: Role) -> bool:
    """Return whether workers of two roles run at the same time: loads always, timed ones as the schedule says."""
    return one.name == other.name or trial.schedule == "together" or "load" in {one.duty, other.duty}


def _limits(
    trial: Trial, placing: Placing, seats: Sequence[Seat], workers: Sequence[Occupant]
) -> list[tuple[IsolationLimit, ...]]:
    machines = [placing.machine_of(worker_id.role, worker_id.rank) for worker_id in seats]
    return overlap_limits(
        workers,
        {machine.boot_id: machine for machine in machines},
        lambda one, other: run_together(trial, seats[one].role, seats[other].role),
    )


def _occupant(seat: Seat, placing: Placing, level: Isolation, cpus: tuple[int, ...]) -> Occupant:
    machine = placing.machine_of(seat.role, seat.rank)
    further_devices = [device for device in seat.role.used if device not in seat.role.devices]
    targets_by_device = targets(machine)
    gpus = {
        targets_by_device[device].uuid: device
        for device in (seat.role.device_of(seat.rank), *further_devices)
        if device in targets_by_device
    }
    return Occupant(seat.name, level, cpus, gpus, machine.boot_id)
