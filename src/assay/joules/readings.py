"""What a meter said, again and again, and the same as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Power = Literal["instant", "average", "usage"]
POWERS: tuple[Power, ...] = ("instant", "usage", "average")
"""Power readings, the best to integrate first: ``usage`` is instant on some cards and an average on others."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a meter, on the host's monotonic clock. Null: not offered.

    The power is of ``t_ns``; the counter was asked at ``begin_ns`` and had answered at ``end_ns``, up to 20 ms later.
    """

    t_ns: int
    begin_ns: int
    end_ns: int
    energy_j: float | None = None
    instant_w: float | None = None
    average_w: float | None = None
    usage_w: float | None = None


class Meter(Protocol):
    """Something that counts or shows what a device spends."""

    @property
    def lost(self) -> str | None:
        """Why the device does not answer any more; null as long as it may."""

    @property
    def last_error(self) -> str:
        """What was said last when it did not answer."""

    def read(self) -> Reading | None:
        """Return what it says; null when nothing answers."""


@dataclass(frozen=True)
class CounterSeries:
    """What a counter said: when it was asked and had answered, in s since a moment, and the energy in J."""

    begin_s: Array
    end_s: Array
    energy_j: Array

    def __len__(self) -> int:
        return len(self.energy_j)

    def part(self, chosen: slice) -> CounterSeries:
        """Return a part of it."""
        return CounterSeries(self.begin_s[chosen], self.end_s[chosen], self.energy_j[chosen])


@dataclass(frozen=True)
class PowerSeries:
    """What was said of the power: when, in s since a moment, and W."""

    t_s: Array
    watts: Array

    def __len__(self) -> int:
        return len(self.watts)


def counter_series(readings: Sequence[Reading], origin_ns: int) -> CounterSeries:
    """Return what the counter said, where it answered."""
    rows = [(r.begin_ns - origin_ns, r.end_ns - origin_ns, r.energy_j) for r in readings if r.energy_j is not None]
    table = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return CounterSeries(table[:, 0] / 1e9, table[:, 1] / 1e9, table[:, 2])


def power_series(readings: Sequence[Reading], which: Power, origin_ns: int) -> PowerSeries:
    """Return what was said of one kind of power, where it answered."""
    rows = [(r.t_ns - origin_ns, w) for r in readings if (w := getattr(r, f"{which}_w")) is not None]
    table = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return PowerSeries(table[:, 0] / 1e9, table[:, 1])
