"""What the times mean: arithmetic on arrays, element by element, so that intervals follow from it. Pure.

    speedup     S = (work / T) / (work₁ / T₁)          efficiency  E = S / ranks
    exposed     T - compute                            overlap     1 - exposed / communication
    Karp–Flatt  (1/S - 1/R) / (1 - 1/R) of one ring of R

Efficiency is the product of five factors:

    T₁ / (R·T) =   shard   ·  contention  ·  balance  ·  exposed  ·  rest

    shard       one rank with 1/R of the sequence, alone, over R, against one rank with all of it
    contention  a rank's share alone, against the same beside its neighbours
    balance     the mean over ranks of computing, against the slowest
    exposed     the slowest computing, against it with the part of the communication that is not hidden
    rest        what neither computing nor the transfers by themselves explain
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.experiments.scaling.vectors import Times

    Samples = NDArray[np.float64]


def throughput(total_us: Samples, work: float) -> Samples:
    """Return work a second."""
    return work / (total_us / 1e6)


def speedup(total_us: Samples, work: float, alone_us: Samples, alone_work: float) -> Samples:
    """Return how many times as much work is done in the same time as by one rank."""
    return (work / total_us) / (alone_work / alone_us)


def karp_flatt(ring_speedup: Samples, ring: int) -> Samples:
    """Return the share of the work that is as if it were not shared out, from the speedup of a ring above 1."""
    return (1 / ring_speedup - 1 / ring) / (1 - 1 / ring)


@dataclass(frozen=True, eq=False)
class Communication:
    """Microseconds of the three runs of one plan, each of its slowest rank; ``sent``: whether anything is."""

    full_us: Samples
    compute_us: Samples
    communication_us: Samples
    sent: bool

    @classmethod
    def of(cls, times: Times) -> Communication:
        """Return it from what was timed; where nothing is sent, computing is all there is."""
        full = times.slowest["total"]
        if "compute" not in times.slowest:
            return cls(full, full, np.zeros_like(full), sent=False)
        return cls(full, times.slowest["compute"], times.slowest["communication"], sent=True)

    @property
    def exposed_us(self) -> Samples:
        """What the full run takes beyond computing."""
        return self.full_us - self.compute_us

    @property
    def exposed_share(self) -> Samples:
        """The same as a share of the full run."""
        return self.exposed_us / self.full_us

    @property
    def overlap(self) -> Samples:
        """The share of the communication that is hidden behind computing; below 0 where both together take longer."""
        return 1 - self.exposed_us / self.communication_us


@dataclass(frozen=True, eq=False)
class Split:
    """The factors of efficiency; their product is the efficiency."""

    shard: Samples
    contention: Samples
    balance: Samples
    exposed: Samples
    rest: Samples

    @property
    def product(self) -> Samples:
        """All of them together."""
        return self.shard * self.contention * self.balance * self.exposed * self.rest


def split(times: Times, alone_us: Samples, share_us: Samples, ring: int) -> Split:
    """Return where the efficiency goes.

    ``alone_us`` is of one rank with all of a ring's work; under weak scaling with as much as one rank of it has, and
    ``ring`` is then 1. ``share_us`` is of one rank, alone, with the last place's share. That place may have more to do
    than others; what an average share would take alone follows from how computing compares side by side.
    """
    runs = Communication.of(times)
    name = "compute" if runs.sent else "total"
    mean, last, slowest = times.mean[name], times.last[name], runs.compute_us
    unhidden = np.minimum(np.maximum(runs.exposed_us, 0.0), runs.communication_us)
    return Split(
        shard=alone_us / (ring * share_us * (mean / last)),
        contention=share_us / last,
        balance=mean / slowest,
        exposed=slowest / (slowest + unhidden),
        rest=(slowest + unhidden) / runs.full_us,
    )
