"""Busy cores: every thread computes, in registers and the first cache alone, so that nothing but cores is taken."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from assay.workloads import threads
from assay.workloads.base import Prepared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Params
    from assay.workloads.base import Workload

ROUNDS = 40_000
"""Rounds of PBKDF2 with SHA-256 that a thread computes in one call: some tens of milliseconds, the GIL given up."""


def compute(_number: int) -> bytes:
    """Do one thread's part of a call."""
    return hashlib.pbkdf2_hmac("sha256", b"assay", b"hog", ROUNDS)


class CpuHogPython:
    """``cpu_hog@python``: a load for the host. How much of one it was is the CPU time it used in the time it was up."""

    name = "cpu_hog"
    impl = "python"
    device_kinds = frozenset({"cpu"})
    summary = f"Keeps cores busy: each thread computes {ROUNDS} rounds of PBKDF2 a call, without touching memory"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return how many threads: as many as the CPUs it may run on."""
        return {"threads": threads.ALL}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return nothing: there is nothing to tune."""
        return ()

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Start the threads."""
        team = threads.Team(threads.count(params["threads"]))
        return Prepared(call=lambda: team.do(compute), close=team.close)


WORKLOAD: Workload = CpuHogPython()
