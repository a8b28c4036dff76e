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
    seats = [Seat(role, rank, 0) for role in trial.roles for rank in range(role.ranks)]
    workers = []
    for seat in seats:
        allotted = placing.allotment(seat.role, seat.rank).cpus
        anywhere = placing.machine_of(seat.role, seat.rank).cpus
        workers.append(_occupant(seat, placing, seat.role.isolation, anywhere if allotted is None else allotted))
    limits = _limits(trial, placing, seats, workers)
    return {seat.key: Held(seat.role.isolation).limited(*more) for seat, more in zip(seats, limits, strict=True)}


def held_beside_others(trial: Trial, placing: Placing, evidence: Sequence[Evidence]) -> list[Evidence]:
    """Return what the workers of one restart read back, its level lowered where they were not kept apart."""
    roles = {role.name: role for role in trial.roles}
    seats = [Seat(roles[each.role], each.rank, each.restart) for each in evidence]
    workers = [
        _occupant(seat, placing, each.isolation_held, each.allowed_cores)
        for seat, each in zip(seats, evidence, strict=True)
    ]
    found = []
    for each, more in zip(evidence, _limits(trial, placing, seats, workers), strict=True):
        held = Held(each.isolation_held, each.isolation_limits).limited(*more)
        found.append(each.model_copy(update={"isolation_held": held.level, "isolation_limits": held.limits}))
    return found


def shortfall_notes(evidence: Sequence[Evidence]) -> list[str]:
    """Return in words what did not hold, each once."""
    return list(
        dict.fromkeys(
            f"isolation {each.isolation_asked} did not hold, only {each.isolation_held}: {limit.message}"
            for each in evidence
            for limit in each.isolation_limits
        )
    )


def run_together(trial: Trial, one: Role, other: Role) -> bool:
    """Return whether workers of two roles run at the same time: loads always, timed ones as the schedule says."""
    return one.name == other.name or trial.schedule == "together" or "load" in {one.duty, other.duty}


def _limits(
    trial: Trial, placing: Placing, seats: Sequence[Seat], workers: Sequence[Occupant]
) -> list[tuple[IsolationLimit, ...]]:
    machines = [placing.machine_of(seat.role, seat.rank) for seat in seats]
    return overlap_limits(
        workers,
        {machine.boot_id: machine for machine in machines},
        lambda one, other: run_together(trial, seats[one].role, seats[other].role),
    )


def _occupant(seat: Seat, placing: Placing, level: Isolation, cpus: tuple[int, ...]) -> Occupant:
    machine = placing.machine_of(seat.role, seat.rank)
    used = [device for device in seat.role.used if device not in seat.role.devices]
    there = targets(machine)
    gpus = {there[device].uuid: device for device in (seat.role.device_of(seat.rank), *used) if device in there}
    return Occupant(seat.name, level, cpus, gpus, machine.boot_id)
