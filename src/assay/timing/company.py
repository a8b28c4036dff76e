"""Whether others wanted the core while something was timed: how often the kernel took it away."""

from __future__ import annotations

import resource
import time

OFTEN_PER_S = 20.0
FEWEST = 5


class Company:
    """Counts from when it is made how often the kernel took the core away from this process."""

    def __init__(self) -> None:
        self._switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        self._since = time.perf_counter()

    def notes(self) -> tuple[str, ...]:
        """Return what to say where that was often; nothing where it was not."""
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - self._switches
        return told(switches, time.perf_counter() - self._since)


def told(taken: int, within_s: float) -> tuple[str, ...]:
    """Return what to say of so many involuntary switches in so many seconds."""
    if taken < FEWEST or taken < OFTEN_PER_S * within_s:
        return ()
    return (f"others are busy here: the core was taken away {taken} times in {within_s:.2g} s; assay doctor says more",)
