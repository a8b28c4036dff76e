"""Where and when a process was timed and tuned, and what it gave: the values that the analysis lays out.

A **place** is a subject on a device in one of its workers. Alone there is one worker a device, and each of those side
by side is held against it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.core.values import Params
    from assay.experiments.contention.options import Phase

    Samples = NDArray[np.float64]


LEAST_US = 1e-6
"""What a sample counts at least, so that one that reads as nothing has a logarithm."""


@dataclass(frozen=True, order=True)
class Place:
    """A subject, by its number among the options, on a device, in one of the device's workers."""

    subject: int
    device: str
    worker: int = 0

    @property
    def alone(self) -> Place:
        """The same device with a single worker."""
        return Place(self.subject, self.device, 0)


@dataclass(frozen=True, eq=False)
class Cell:
    """The samples of one process: one place in one phase of one block. ``at_s`` is the middle of the timing."""

    place: Place
    block: int
    phase: Phase
    quantity: str
    samples: Samples
    at_s: float
    trial: str

    @cached_property
    def level(self) -> float:
        """The logarithm of the mean time in microseconds.

        The mean and not the median: who shares a core is interrupted in some calls and not in others, and the median
        falls on either side of that. The mean is what all calls together take.
        """
        return math.log(max(float(self.samples.mean()), LEAST_US))

    @cached_property
    def logs(self) -> Samples:
        """The logarithms of the samples."""
        return np.log(np.maximum(self.samples, LEAST_US))

    @cached_property
    def cv(self) -> float | None:
        """Standard deviation over mean of the repeats; null for a single one."""
        mean = float(self.samples.mean())
        return float(self.samples.std(ddof=1)) / mean if len(self.samples) > 1 and mean > 0 else None


@dataclass(frozen=True)
class Choice:
    """What the tuner chose in one process; without a configuration it found none, for ``reason``."""

    place: Place
    block: int
    phase: Phase
    config: Params | None
    reason: str | None
    time_us: float | None
    trial: str

    @property
    def key(self) -> str | None:
        """The configuration as text that is the same for the same one; null where none was found."""
        return None if self.config is None else key_of(self.config)


@dataclass(frozen=True)
class Missing:
    """Something that was planned and gave nothing: where and when, and why, in words; and its trial."""

    where: str
    why: str
    trial: str


def key_of(config: Params) -> str:
    """Return a configuration as text, the same for the same one."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"))
