"""Conditions during a measurement: the GPU's clock (read or locked), throttling, and involuntary context switches."""

from __future__ import annotations

import contextlib
import math
import resource
import time
from typing import TYPE_CHECKING

import numpy as np

from assay.core import leases
from assay.core.errors import MachineCannot
from assay.core.guardian import Guardian
from assay.timing.results import ClockSummary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.results import GpuSnapshot
    from assay.timing.options import ClockReader


READ_INTERVAL_S = 0.02
"""Minimum interval between two readings; each costs some 50 µs after the first."""

HARMLESS_REASONS = {"idle", "clocks set by the user"}


class ClockWatch:
    """Reads a GPU's clock before, during and after a measurement; without a reader it records nothing."""

    def __init__(self, reader: ClockReader | None) -> None:
        self._reader = reader
        self._before: GpuSnapshot | None = None
        self._after: GpuSnapshot | None = None
        self._during: list[GpuSnapshot] = []
        self._next_s = 0.0
        self.labels: list[float] = []
        """One per labelled batch: 1 where the clock was throttled, 0 where not, NaN where unknown."""

    @property
    def uuid(self) -> str | None:
        """UUID of the GPU that is read; null without one."""
        snapshot = self._reader() if self._reader is not None else None
        return snapshot.uuid if snapshot is not None else None

    def begin(self) -> None:
        """Read the clock before the first sample."""
        self._before = self._read()

    def label_batch(self) -> None:
        """Read the clock if the last reading is old enough, and label the batch by the last reading."""
        now = time.perf_counter()
        if self._reader is not None and now >= self._next_s:
            snapshot = self._read()
            if snapshot is not None:
                self._during.append(snapshot)
            self._next_s = now + READ_INTERVAL_S
        last = self._during[-1] if self._during else None
        has_reasons = last is not None and last.throttle is not None
        self.labels.append(float(bool(_throttle_reasons(last))) if has_reasons and last is not None else math.nan)

    def end(self) -> None:
        """Read the clock after the last sample."""
        self._after = self._read()

    @property
    def throttled(self) -> tuple[str, ...]:
        """Every throttle reason seen during sampling."""
        return tuple(dict.fromkeys(reason for snapshot in self._during for reason in _throttle_reasons(snapshot)))

    def summary(self, locked_mhz: int | None, counted_mhz: list[float]) -> ClockSummary:
        """Return a summary of all readings, with the clocks counted by the device itself, batch by batch."""
        mhz = np.array(counted_mhz) if counted_mhz else None
        reported = [snapshot for snapshot in self._during if snapshot.throttle is not None]
        return ClockSummary(
            mhz_low=float(mhz.min()) if mhz is not None else None,
            mhz=float(np.median(mhz)) if mhz is not None else None,
            mhz_high=float(mhz.max()) if mhz is not None else None,
            before=self._before,
            after=self._after,
            throttle=self.throttled,
            throttled_share=sum(bool(_throttle_reasons(m)) for m in reported) / len(reported) if reported else None,
            locked_mhz=locked_mhz,
        )

    def _read(self) -> GpuSnapshot | None:
        return self._reader() if self._reader is not None else None


def _throttle_reasons(snapshot: GpuSnapshot) -> list[str]:
    return [reason for reason in snapshot.throttle or () if reason not in HARMLESS_REASONS]


@contextlib.contextmanager
def locked_clock(watch: ClockWatch, mhz: int | None) -> Iterator[None]:
    """Lock a GPU's SM clock under a lease, if requested; it is unlocked even if this process is killed.

    Raises:
        MachineCannot: NVML does not know the GPU, or this process may not set its clock.
    """
    if mhz is None:
        yield
        return
    uuid = watch.uuid
    if uuid is None:
        raise MachineCannot("The clock cannot be locked: NVML does not know this GPU.")
    from assay.machine.nvidia import lock_sm_clocks

    with Guardian():
        lease = lock_sm_clocks(uuid, mhz, mhz)
        try:
            yield
        finally:
            leases.release_lease(lease)


FREQUENT_PER_S = 20.0
MIN_SWITCHES = 5


class ContextSwitchCounter:
    """Counts involuntary context switches of this process since the counter was created."""

    def __init__(self) -> None:
        self._switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        self._since = time.perf_counter()

    def notes(self) -> tuple[str, ...]:
        """Return a note where they were frequent; empty where not."""
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - self._switches
        return describe_switches(switches, time.perf_counter() - self._since)


def describe_switches(switches: int, within_s: float) -> tuple[str, ...]:
    """Return a note on a number of involuntary switches in a period; empty where they were rare."""
    if switches < MIN_SWITCHES or switches < FREQUENT_PER_S * within_s:
        return ()
    return (
        f"other processes interfere: {switches} involuntary context switches in {within_s:.2g} s; see assay doctor",
    )
