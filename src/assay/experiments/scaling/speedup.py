"""Speedup and efficiency of a shape against one rank, and the factors of its efficiency.

Arithmetic on arrays, element by element, so that intervals follow from it.

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

from assay.core.results import Missing
from assay.experiments.scaling.estimates import EFFICIENCY_FACTORS, build_number
from assay.experiments.scaling.plan import ScalingShape, shape_work
from assay.experiments.scaling.timings import build_basis

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.experiments.scaling.estimates import ShapeNumbers
    from assay.experiments.scaling.plan import ScalingOptions
    from assay.experiments.scaling.timings import ScalingTimings, TimeVectors


if TYPE_CHECKING:
    Vector = NDArray[np.float64]


def compute_throughput(total_us: Vector, work: float) -> Vector:
    """Return work a second."""
    return work / (total_us / 1e6)


def compute_speedup(total_us: Vector, work: float, alone_us: Vector, alone_work: float) -> Vector:
    """Return how many times as much work is done in the same time as by one rank."""
    return (work / total_us) / (alone_work / alone_us)


def compute_karp_flatt(ring_speedup: Vector, ring: int) -> Vector:
    """Return the share of the work that is as if it were not shared out, from the speedup of a ring above 1."""
    return (1 / ring_speedup - 1 / ring) / (1 - 1 / ring)


@dataclass(frozen=True, eq=False)
class CommunicationTimes:
    """Microseconds of the three runs of one plan, each of its slowest rank; ``sent``: whether anything is."""

    full_us: Vector
    compute_us: Vector
    communication_us: Vector
    sent: bool

    @classmethod
    def of(cls, times: TimeVectors) -> CommunicationTimes:
        """Return it from what was timed; where nothing is sent, computing is all there is."""
        full = times.slowest["total"]
        if "compute" not in times.slowest:
            return cls(full, full, np.zeros_like(full), sent=False)
        return cls(full, times.slowest["compute"], times.slowest["communication"], sent=True)

    @property
    def exposed_us(self) -> Vector:
        """What the full run takes beyond computing."""
        return self.full_us - self.compute_us

    @property
    def exposed_share(self) -> Vector:
        """The same as a share of the full run."""
        return self.exposed_us / self.full_us

    @property
    def overlap(self) -> Vector:
        """The share of the communication that is hidden behind computing; below 0 where both together take longer."""
        return 1 - self.exposed_us / self.communication_us


@dataclass(frozen=True, eq=False)
class EfficiencyFactors:
    """The factors of efficiency; their product is the efficiency."""

    shard: Vector
    contention: Vector
    balance: Vector
    exposed: Vector
    rest: Vector

    @property
    def product(self) -> Vector:
        """All of them together."""
        return self.shard * self.contention * self.balance * self.exposed * self.rest


def split_efficiency(times: TimeVectors, alone_us: Vector, share_us: Vector, ring: int) -> EfficiencyFactors:
    """Return where the efficiency goes.

    ``alone_us`` is of one rank with all of a ring's work; under weak scaling with as much as one rank of it has, and
    ``ring`` is then 1. ``share_us`` is of one rank, alone, with the last place's share. That place may have more to do
    than others; what an average share would take alone follows from how computing compares side by side.
    """
    runs = CommunicationTimes.of(times)
    name = "compute" if runs.sent else "total"
    mean, last, slowest = times.mean[name], times.last[name], runs.compute_us
    unhidden = np.minimum(np.maximum(runs.exposed_us, 0.0), runs.communication_us)
    return EfficiencyFactors(
        shard=alone_us / (ring * share_us * (mean / last)),
        contention=share_us / last,
        balance=mean / slowest,
        exposed=slowest / (slowest + unhidden),
        rest=(slowest + unhidden) / runs.full_us,
    )


SPEEDUP_NUMBERS = ("speedup", "efficiency", "karp_flatt", *EFFICIENCY_FACTORS)


def compare_with_one_rank(options: ScalingOptions, timings: ScalingTimings, shape: ScalingShape) -> ShapeNumbers:
    """Return the speedup of a shape over one rank, its efficiency, and the factors of that."""
    if shape.world == 1:
        return dict.fromkeys(SPEEDUP_NUMBERS, Missing(code="one_rank", detail="this is one rank"))
    return {**_speedup_numbers(options, timings, shape), **_factor_numbers(options, timings, shape)}


def _speedup_numbers(options: ScalingOptions, timings: ScalingTimings, shape: ScalingShape) -> ShapeNumbers:
    basis = build_basis(timings.timings_of("ring", shape), timings.timings_of("ring", shape.alone))
    if basis is None:
        missing = timings.missing("ring", shape.alone)
        no_baseline = Missing(code="no_baseline", detail=f"one rank alone was not measured: {missing.detail}")
        return dict.fromkeys(("speedup", "efficiency", "karp_flatt"), no_baseline)
    total, alone = (times.slowest["total"] for times in basis.times)
    speedup = compute_speedup(total, shape_work(options, shape), alone, shape_work(options, shape.alone))
    numbers: ShapeNumbers = {
        "speedup": build_number(basis, "speedup", speedup),
        "efficiency": build_number(basis, "efficiency", speedup / shape.world),
    }
    if options.mode == "weak":
        numbers["karp_flatt"] = Missing(code="weak_scaling", detail="in weak scaling the work grows with the ranks")
    elif not options.is_attention or shape.ring == 1:
        numbers["karp_flatt"] = Missing(code="not_sharded", detail="no sequence is sharded over ranks")
    else:
        numbers["karp_flatt"] = build_number(basis, "karp_flatt", compute_karp_flatt(speedup / shape.rings, shape.ring))
    return numbers


def _factor_numbers(options: ScalingOptions, timings: ScalingTimings, shape: ScalingShape) -> ShapeNumbers:
    if not options.is_attention:
        missing = Missing(code="unknown_traffic", detail=f"what {options.subject.label} sends is unknown")
        return dict.fromkeys(EFFICIENCY_FACTORS, missing)
    whole, share = timings.timings_of("ring", shape.alone), ScalingShape(shape.sequence, shape.ring, shape.ring)
    part = timings.timings_of("share", share) if shape.ring > 1 else whole
    basis = build_basis(timings.timings_of("ring", shape), whole, part)
    if basis is None:
        missing = timings.missing("share", share) if whole else timings.missing("ring", shape.alone)
        no_baseline = Missing(code="no_baseline", detail=f"the time of one rank alone is unknown: {missing.detail}")
        return dict.fromkeys(EFFICIENCY_FACTORS, no_baseline)
    times, alone, shared = basis.times
    factors = split_efficiency(
        times,
        alone.slowest["total"],
        shared.slowest["share" if shape.ring > 1 else "total"],
        1 if options.mode == "weak" else shape.ring,
    )
    return {
        name: build_number(basis, name, getattr(factors, name.removeprefix("split_"))) for name in EFFICIENCY_FACTORS
    }
