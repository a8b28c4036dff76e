"""What a worker reads back about itself: where it really ran, what it used, and what disturbed it."""

from __future__ import annotations

import os
import resource

from assay.isolation.bind import Held, bound_nodes, pages_by_node
from assay.worker import protocol as say


def still_held(held: Held, cores: tuple[int, ...] | None) -> Held:
    """Return the level that held to the end: work that moved itself to other cores was not isolated."""
    now = tuple(sorted(os.sched_getaffinity(0)))
    if cores is None or now == cores:
        return held
    return Held("none", (*held.notes, f"the work itself moved from cores {list(cores)} to {list(now)}"))


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def evidence(held: Held) -> say.Finished:
    """Read back where this process really ran and what disturbed it."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return say.Finished(
        pid=os.getpid(),
        isolation_held=held.level,
        isolation_notes=held.notes,
        allowed_cores=tuple(sorted(os.sched_getaffinity(0))),
        memory_nodes=bound_nodes(),
        pages_by_node=pages_by_node(),
        involuntary_switches=own.ru_nivcsw + children.ru_nivcsw,
        voluntary_switches=own.ru_nvcsw + children.ru_nvcsw,
        cpu_s=cpu_seconds(),
        peak_memory_mib=max(own.ru_maxrss, children.ru_maxrss) / 1024,
    )
