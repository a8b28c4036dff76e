"""What a worker reads back about itself: where it really ran, what it used, and what disturbed it."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from assay.isolation.bind import allowed_cpus, bound_nodes, pages_by_node
from assay.worker import protocol as say

if TYPE_CHECKING:
    from assay.isolation.bind import Held


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def evidence(held: Held) -> say.Finished:
    """Read back where this process really ran and what disturbed it."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return say.Finished(
        pid=os.getpid(),
        isolation_held=held.level,
        isolation_limits=held.limits,
        allowed_cores=allowed_cpus(),
        memory_nodes=bound_nodes(),
        pages_by_node=pages_by_node(),
        involuntary_switches=own.ru_nivcsw + children.ru_nivcsw,
        voluntary_switches=own.ru_nvcsw + children.ru_nvcsw,
        cpu_s=cpu_seconds(),
        peak_memory_mib=max(own.ru_maxrss, children.ru_maxrss) / 1024,
    )
