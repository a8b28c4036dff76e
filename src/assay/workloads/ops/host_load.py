"""Host loads: busy cores, busy memory, and idling.

``cpu_hog`` computes in registers and the first-level cache only, so that it takes nothing but cores; ``memory_hog`` is
the triad a = b + 3·c over arrays larger than any cache. Each thread does its part of a call in C code that releases
the GIL. ``idle`` does nothing, which shows the idle power of a device.
"""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput
from assay.workloads.base import PreparedWorkload, UntunedWorkload
from assay.workloads.numpy_support import check_output
from assay.workloads.parameters import read_flag, read_size
from assay.workloads.torch_device import import_torch, open_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.results import Check
    from assay.core.values import Params, Scalar
    from assay.workloads.base import Workload
    from assay.workloads.numpy_support import Floats

LONGEST_IDLE_S = 60.0


class IdlePython(UntunedWorkload):
    """``idle@python``. A GPU with an open context draws more power than one without, so a parameter selects it."""

    name = "idle"
    impl = "python"
    device_kinds = frozenset({"cpu", "cuda"})
    summary = "Does nothing for period_s a call; on a GPU with a context open, or none"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return how long a call sleeps, and whether a GPU context is open meanwhile."""
        return {"period_s": 0.05, "context": True}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse an invalid period."""
        _period_s(params)

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Open a context if requested; a call returns after its sleep, so the host clock times it."""
        if device.startswith("cuda") and read_flag(params, "context"):
            import_torch().zeros(1, device=open_device(device))
        return PreparedWorkload(call=partial(time.sleep, _period_s(params)), synchronizes_itself=True)


def _period_s(params: Params) -> float:
    period_s = params["period_s"]
    if isinstance(period_s, bool | str) or period_s is None or not 0 < period_s <= LONGEST_IDLE_S:
        raise BadInput(f"idle: period_s is above 0 and at most {LONGEST_IDLE_S:g} s, not {period_s!r}.")
    return float(period_s)


ALL_THREADS = "all"  # as many threads as CPUs that the process may run on


def count_threads(value: Scalar) -> int:
    """Return the number of threads for ``all`` or an integer."""
    if value == ALL_THREADS:
        return len(os.sched_getaffinity(0))
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"threads is {ALL_THREADS} or a whole number of at least 1, not {value!r}.")
    return value


class ThreadTeam:
    """A fixed number of worker threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="load")

    def do(self, part: Callable[[int], object]) -> None:
        """Run ``part`` in every thread with its number, and wait until all are done."""
        for done in [self._pool.submit(part, number) for number in range(self.threads)]:
            done.result()

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()


HASH_ROUNDS = 40_000
"""Rounds of PBKDF2 with SHA-256 that a thread computes per call: some tens of milliseconds, without the GIL."""


def hash_rounds(_number: int) -> bytes:
    """Run one thread's part of a call."""
    return hashlib.pbkdf2_hmac("sha256", b"assay", b"hog", HASH_ROUNDS)


class CpuHogPython(UntunedWorkload):
    """``cpu_hog@python``: a host load; its amount is the CPU time used in its running time."""

    name = "cpu_hog"
    impl = "python"
    device_kinds = frozenset({"cpu"})
    summary = f"Keeps cores busy: each thread computes {HASH_ROUNDS} rounds of PBKDF2 a call, without touching memory"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the number of threads: one per CPU it may run on."""
        return {"threads": ALL_THREADS}

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Start the threads."""
        team = ThreadTeam(count_threads(params["threads"]))
        return PreparedWorkload(call=lambda: team.do(hash_rounds), close=team.close)


TRIAD_SCALAR = 3.0
TRIAD_STREAMS = 5
"""Arrays read and written by one call: numpy computes a = 3·c, then a = a + b, and no cache holds a in between."""

CACHE_MULTIPLE = 2  # smallest size of each array, as a multiple of all last-level caches

SMALLEST_MIB = 64
_CPU_FOLDER = Path("/sys/devices/system/cpu")


@cache
def last_level_cache_mib(cpus: Path = _CPU_FOLDER) -> float:
    """Return the total size of the machine's last-level caches; 0 where the kernel does not report it."""
    cache_mib: dict[tuple[int, str], float] = {}
    for folder in cpus.glob("cpu[0-9]*/cache/index*"):
        try:
            level, amount, who = ((folder / name).read_text().strip() for name in ("level", "size", "shared_cpu_list"))
        except OSError:
            continue
        cache_mib[int(level), who] = int(amount.removesuffix("K")) / 1024
    last = max((level for level, _ in cache_mib), default=0)
    return sum(mib for (level, _), mib in cache_mib.items() if level == last)


class MemoryHogNumpy(UntunedWorkload):
    """``memory_hog@numpy``: a host load; its amount is its number of calls times their bytes."""

    name = "memory_hog"
    impl = "numpy"
    device_kinds = frozenset({"cpu"})
    summary = "Keeps the host's memory busy: a = b + 3·c over arrays larger than the caches, by several threads"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the MiB of each of the three arrays, a power of two beyond this machine's caches, and the threads."""
        least_mib = max(SMALLEST_MIB, int(CACHE_MULTIPLE * last_level_cache_mib()))
        return {"mib": 1 << (least_mib - 1).bit_length(), "threads": ALL_THREADS}

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Allocate the arrays; each thread fills its part, which places it on the thread's NUMA node."""
        n = read_size(params, "mib") * 2**20 // 8
        team = ThreadTeam(count_threads(params["threads"]))
        a, b, c = (np.empty(n) for _ in range(3))
        edges = [n * number // team.threads for number in range(team.threads + 1)]
        parts = [slice(*pair) for pair in pairwise(edges)]

        def fill(number: int) -> None:
            for array, value in ((a, 0.0), (b, 1.0), (c, 2.0)):
                array[parts[number]].fill(value)

        def call() -> None:
            team.do(lambda number: triad(a[parts[number]], b[parts[number]], c[parts[number]]))

        def check() -> Check:
            a.fill(np.nan)
            call()
            ends = np.array(sorted({*edges[:-1], *(edge - 1 for edge in edges[1:])}))
            return check_output(a[ends], b[ends] + TRIAD_SCALAR * c[ends], "float64")

        team.do(fill)
        return PreparedWorkload(
            call=call, check=check, flop=2.0 * n, bytes_moved=8.0 * TRIAD_STREAMS * n, close=team.close
        )


def triad(a: Floats, b: Floats, c: Floats) -> None:
    """Write b + 3·c into a."""
    np.multiply(c, TRIAD_SCALAR, out=a)
    np.add(a, b, out=a)


IDLE_PYTHON: Workload = IdlePython()
CPU_HOG_PYTHON: Workload = CpuHogPython()
MEMORY_HOG_NUMPY: Workload = MemoryHogNumpy()
