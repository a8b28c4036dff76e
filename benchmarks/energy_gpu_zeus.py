"""Zeus beside: what its windows around about 50 ms of back-to-back calls say, on a device that has been busy.

    busy │ begin_window │ calls for 50 ms │ end_window │ busy for a random while │ begin_window │ …

Both ends of a window wait for the GPU and read its energy counter as it stands, as Zeus does by default.
"""

from __future__ import annotations

import random
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from assay.joules.devices import CallLoad

WINDOW_S, WINDOWS = 0.05, 16
WARM_S = 1.0
BUSY_S = (0.1, 0.2)
"""Between two windows, at random: each begins anywhere between two ticks of the sensor."""
Kept = dict[str, Any]


class Measured(Protocol):
    """What a window of Zeus's gives back: seconds, and joules of each GPU by its index."""

    time: float
    gpu_energy: dict[int, float]


class Monitor(Protocol):
    """Zeus's monitor of a GPU's energy."""

    def begin_window(self, key: str) -> None:
        """Wait for the GPU and read its counter."""

    def end_window(self, key: str) -> Measured:
        """Wait for the GPU, read its counter again, and return the difference."""


def zeus_monitor(index: int = 0) -> tuple[Monitor | None, str]:
    """Return Zeus's monitor of one GPU, and which Zeus it is; null and the reason where it cannot be had."""
    try:
        version = import_module("zeus").__version__
        return import_module("zeus.monitor").ZeusMonitor(gpu_indices=[index], cpu_indices=[]), f"version {version}"
    except Exception as error:  # noqa: BLE001 - what is not there is named, and costs the rest nothing
        return None, f"{type(error).__name__}: {error}"


def windows(monitor: Monitor, keeper: CallLoad, index: int = 0, seed: int = 0) -> list[Kept]:
    """Return what each window said, and how many calls were made in it."""
    chance = random.Random(seed)
    keeper.run(WARM_S)
    per_put = _calls_of_a_put(keeper)
    puts = max(1, round(WINDOW_S / (per_put * keeper.call_s)))
    results = []
    for number in range(WINDOWS):
        keeper.run(chance.uniform(*BUSY_S))
        monitor.begin_window(f"window {number}")
        for _ in range(puts):
            keeper.run(0.0)
        with warnings.catch_warnings(action="ignore"):  # that a window shows no energy at all is kept, not said
            measured = monitor.end_window(f"window {number}")
        results.append({"joules": measured.gpu_energy[index], "s": measured.time, "calls": puts * per_put})
    return results


def _calls_of_a_put(keeper: CallLoad) -> int:
    """Return how many calls are made at least at a time."""
    keeper.rest(0.0)
    before = keeper.boundaries()[-1].calls
    keeper.run(0.0)
    keeper.rest(0.0)
    return keeper.boundaries()[-1].calls - before
