"""Threads of a load on the host: each does its part of a call, in C code that lets the others run."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.values import Scalar

ALL = "all"
"""As many threads as there are CPUs that the process may run on, where it runs."""


def count(value: Scalar) -> int:
    """Return how many threads are meant by ``all`` or a whole number."""
    if value == ALL:
        return len(os.sched_getaffinity(0))
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"threads is {ALL} or a whole number of at least 1, not {value!r}.")
    return value


class Team:
    """So many threads that wait for work."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="load")

    def do(self, part: Callable[[int], object]) -> None:
        """Have every thread do its part, by its number, and wait until all have."""
        for done in [self._pool.submit(part, number) for number in range(self.threads)]:
            done.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
