"""How physical cores are shared out: to devices, to the host's own loads, then to the workers of each.

the cores of a node   │ cuda:0              │ cuda:1              │ host │ left over
                      │ worker 0 │ worker 1 │ worker 0 │ worker 1 │      │
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot
from assay.core.plan import HOST
from assay.isolation.targets import targets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.machine.model import Core, Machine

Cores = tuple["Core", ...]
Seat = tuple[str, int]
"""A device, or the host, and the number of a worker there."""


@dataclass
class Shares:
    """Who gets which cores, and in words where there were too few."""

    of: dict[str, Cores] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def share_out(
    machine: Machine, workers: Mapping[str, int], *, keep: bool, cpu_groups: int | None = None
) -> tuple[dict[Seat, Cores], tuple[str, ...]]:
    """Return the cores of each worker, and in words where there were too few.

    Args:
        machine: Whose cores.
        workers: The devices, the host perhaps among them, and how many workers each has.
        keep: Leave a core out for the parent, where there is one to spare.
        cpu_groups: Into how many groups the cores are parted where groups of cores are the devices.
    """
    gpus = targets(machine)
    devices = [device for device in workers if device != HOST]
    on_gpus = [device in gpus for device in devices]
    if any(on_gpus) and not all(on_gpus):
        raise BadInput("GPUs and groups of cores cannot be measured side by side: their cores would overlap.")
    if devices and all(on_gpus):
        shares = _of_gpus(machine, workers, {device: gpus[device].node for device in devices}, keep=keep)
    else:
        shares = _of_groups(machine, workers, group_count(machine, cpu_groups), keep=keep)
    seats: dict[Seat, Cores] = {}
    for device, count in workers.items():
        seats.update(_among_workers(device, shares, count))
    return seats, tuple(shares.notes)


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


def equal_groups(cores: Cores, count: int, *, keep: bool = False, least: int = 1) -> list[Cores]:
    """Part cores into equal groups of neighbours; one is left out if asked, where each group keeps ``least`` then."""
    size = len(cores) // count
    if keep and (len(cores) - 1) // count >= least:
        size = (len(cores) - 1) // count
    return [cores[index * size : (index + 1) * size] for index in range(count)]


def _of_groups(machine: Machine, workers: Mapping[str, int], groups: int, *, keep: bool) -> Shares:
    """Share out to groups of cores; the host gets a group that no device is, or one more where each is a device."""
    least = max(workers.values())
    used = [f"cpu:{index}" for index in range(groups) if f"cpu:{index}" in workers]
    one_more = HOST in workers and len(used) == groups and len(machine.cores) > groups
    parts = equal_groups(machine.cores, groups + one_more, keep=keep, least=least)
    shares = Shares({f"cpu:{index}": part for index, part in enumerate(parts[:groups])})
    if HOST in workers:
        used_cores = {core for device in used for core in shares.of[device]}
        free = tuple(core for core in machine.cores if core not in used_cores)
        _give_host(shares, free[: len(parts[0])], machine.cores, used)
    return shares


def _of_gpus(machine: Machine, workers: Mapping[str, int], nodes: Mapping[str, int | None], *, keep: bool) -> Shares:
    """Share out to GPUs, each on its own node where it is known; the host gets its part of all these nodes."""
    shares = Shares()
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
        _give_host(shares, _taken_from(pools, seats, len(nodes)), everything, list(nodes))
    for node, there in members.items():
        _within(shares, tuple(pools[node]), there, node, keep=keep, least=max(workers[device] for device in there))
    return shares


def _taken_from(pools: dict[int | None, list[Core]], seats: Mapping[int | None, int], devices: int) -> Cores:
    """Take the host's part, that of one more device, from where there is the most for each worker."""
    cores: list[Core] = []
    for _ in range(max(1, sum(map(len, pools.values())) // (devices + 1))):
        spare = [node for node, pool in pools.items() if len(pool) > seats[node]]
        if not spare:
            break
        cores.append(pools[max(spare, key=lambda node: len(pools[node]) / seats[node])].pop())
    return tuple(cores)


def _give_host(shares: Shares, cores: Cores, everything: Cores, devices: list[str]) -> None:
    """Give the host its cores; where none are left it shares those of the devices."""
    if not cores:
        shares.notes.append(f"{len(everything)} cores for {', '.join(devices)} and the host: it shares their cores")
    shares.of[HOST] = cores or everything


def _within(shares: Shares, pool: Cores, devices: list[str], node: int | None, *, keep: bool, least: int) -> None:
    """Share the cores of one node out to its GPUs, equally."""
    if len(pool) < len(devices):
        where = "" if node is None else f" on node {node}"
        shares.notes.append(f"{len(pool)} cores{where} for {len(devices)} GPUs: {', '.join(devices)} share cores")
        shares.of.update({device: (pool[index % len(pool)],) for index, device in enumerate(devices)})
    else:
        parts = equal_groups(pool, len(devices), keep=keep, least=least)
        shares.of.update(zip(devices, parts, strict=True))


def _among_workers(device: str, shares: Shares, count: int) -> dict[Seat, Cores]:
    """Share a device's cores out to its workers, equally."""
    cores = shares.of[device]
    if count == 1:
        return {(device, 0): cores}
    if len(cores) < count:
        shares.notes.append(f"{len(cores)} cores of {device} for {count} workers: they share cores")
        return {(device, worker): (cores[worker % len(cores)],) for worker in range(count)}
    return {(device, worker): part for worker, part in enumerate(equal_groups(cores, count))}
