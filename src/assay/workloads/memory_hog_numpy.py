"""Busy memory of the host: the triad a = b + 3·c over arrays that no cache holds, by several threads."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from assay.workloads import reference, threads
from assay.workloads.base import Prepared
from assay.workloads.parameters import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Check
    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.data import Floats

S = 3.0
STREAMS = 5
"""Arrays read and written by one call: numpy computes a = 3·c, then a = a + b, and no cache holds a in between."""

BEYOND_CACHE = 2
"""Each array is this many times as large as the last-level caches together, at least."""

SMALLEST_MIB = 64
_CPUS = Path("/sys/devices/system/cpu")


@cache
def last_level_mib(cpus: Path = _CPUS) -> float:
    """Return how much the last-level caches of the machine hold together; 0 where the kernel does not say."""
    cache_mib: dict[tuple[int, str], float] = {}
    for folder in cpus.glob("cpu[0-9]*/cache/index*"):
        try:
            level, amount, who = ((folder / name).read_text().strip() for name in ("level", "size", "shared_cpu_list"))
        except OSError:
            continue
        cache_mib[int(level), who] = int(amount.removesuffix("K")) / 1024
    last = max((level for level, _ in cache_mib), default=0)
    return sum(mib for (level, _), mib in cache_mib.items() if level == last)


class MemoryHogNumpy:
    """``memory_hog@numpy``: a load for the host. Its calls and their bytes tell how much it moved."""

    name = "memory_hog"
    impl = "numpy"
    device_kinds = frozenset({"cpu"})
    summary = "Keeps the host's memory busy: a = b + 3·c over arrays larger than the caches, by several threads"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the MiB of each of the three arrays, a power of two beyond this machine's caches, and the threads."""
        least_mib = max(SMALLEST_MIB, int(BEYOND_CACHE * last_level_mib()))
        return {"mib": 1 << (least_mib - 1).bit_length(), "threads": threads.ALL}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return nothing: there is nothing to tune."""
        return ()

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Set the arrays aside; each thread fills its part, so that it lies where the thread runs."""
        n = size(params, "mib") * 2**20 // 8
        team = threads.Team(threads.count(params["threads"]))
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
            return reference.check(a[ends], b[ends] + S * c[ends], "float64")

        team.do(fill)
        return Prepared(call=call, check=check, flop=2.0 * n, bytes_moved=8.0 * STREAMS * n, close=team.close)


def triad(a: Floats, b: Floats, c: Floats) -> None:
    """Write b + 3·c into a."""
    np.multiply(c, S, out=a)
    np.add(a, b, out=a)


WORKLOAD: Workload = MemoryHogNumpy()
