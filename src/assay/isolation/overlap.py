"""Whether workers that run at the same time are kept apart: a core or a GPU that two of them have is neither's own.

level held = what was asked, as far as it was read back and nobody else had the same

    worker a   cores 0 1          worker a   cores 0 1 │
    worker b       cores 1 2      worker b             │ cores 2 3
               ▲ shared: none                 disjoint: as it was
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.core.results import IsolationLimit
from assay.isolation.allot import at_least

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.plan import Isolation
    from assay.machine.model import Machine

CoreKey = tuple[int, int]
"""A package and a core in it."""


@dataclass(frozen=True)
class Occupant:
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
    workers: Sequence[Occupant],
    machines: Mapping[str, Machine],
    run_together: Callable[[int, int], bool] | None = None,
) -> list[tuple[IsolationLimit, ...]]:
    """Return for each worker why its level does not hold beside the others.

    Args:
        workers: What each has, in order.
        machines: By boot id; CPUs of one physical core are known from there.
        run_together: Whether two workers, by their places, run at the same time; null: all do.
    """
    cores = [_cores(worker, machines.get(worker.boot_id)) for worker in workers]
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


def _cores(worker: Occupant, machine: Machine | None) -> dict[CoreKey, tuple[int, ...]]:
    """Return the physical cores that a worker may run on, each with its CPUs there; a CPU not known is a core."""
    by_cpu = {cpu: (core.package, core.core) for core in machine.cores for cpu in core.cpus} if machine else {}
    cpus_by_core: dict[CoreKey, tuple[int, ...]] = {}
    for cpu in worker.cpus:
        key = by_cpu.get(cpu, (-1, cpu))
        cpus_by_core[key] = (*cpus_by_core.get(key, ()), cpu)
    return cpus_by_core


def _shared_cores(
    workers: Sequence[Occupant], cores: Sequence[Mapping[CoreKey, tuple[int, ...]]], at: int, others: Sequence[int]
) -> IsolationLimit | None:
    worker, mine = workers[at], cores[at]
    sharing = [other for other in others if mine.keys() & cores[other].keys()]
    if not at_least(worker.level, "cpu") or not sharing:
        return None
    keys = {key for other in sharing for key in mine.keys() & cores[other].keys()}
    cpus = tuple(sorted(cpu for key in keys for cpu in mine[key]))
    names = tuple(workers[other].name for other in sharing)
    shared = f"core{'s' if len(keys) > 1 else ''} {', '.join(map(str, cpus))}"
    return IsolationLimit(
        code="shared_cores",
        level="gpu" if worker.gpus else "none",
        message=f"{worker.name} shares {shared} with {_listed(names)}",
        shared_with=names,
        cpus=cpus,
    )


def _shared_gpus(workers: Sequence[Occupant], at: int, others: Sequence[int]) -> IsolationLimit | None:
    worker = workers[at]
    sharing = [other for other in others if worker.gpus.keys() & workers[other].gpus.keys()]
    if not at_least(worker.level, "gpu") or not sharing:
        return None
    theirs = {uuid for other in sharing for uuid in workers[other].gpus}
    gpus = sorted(device for uuid, device in worker.gpus.items() if uuid in theirs)
    names = tuple(workers[other].name for other in sharing)
    message = f"{worker.name} shares {', '.join(gpus)} with {_listed(names)}"
    return IsolationLimit(code="shared_gpu", level="none", message=message, shared_with=names)


def _listed(names: Sequence[str], most: int = 3) -> str:
    """Write "a, b and c", or "a, b, c and 5 more"."""
    shown = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))
