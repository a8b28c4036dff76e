"""The numbers of a shape: names, units and words; how an estimate, or the reason for none, is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from assay.core.results import NO_INTERVAL, Estimate, Missing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from assay.core.results import Verdict
    from assay.experiments.scaling.timings import TimingBasis


class ScalingQuantity(NamedTuple):
    """What a number is of, in words, and its unit."""

    words: str
    unit: str


QUANTITIES: dict[str, ScalingQuantity] = {
    "time": ScalingQuantity("median time of a call on its slowest rank, forward and backward", "µs"),
    "forward": ScalingQuantity("median time of the forward pass on its slowest rank", "µs"),
    "backward": ScalingQuantity("time of both passes minus that of the forward pass", "µs"),
    "throughput": ScalingQuantity("work of all ranks per second", "/s"),
    "speedup": ScalingQuantity("throughput relative to one rank", "×"),
    "efficiency": ScalingQuantity("speedup per rank", ""),
    "karp_flatt": ScalingQuantity("serial fraction of a ring's work (Karp–Flatt)", ""),
    "compute": ScalingQuantity("median time of computation alone on its slowest rank", "µs"),
    "communication": ScalingQuantity("median time of the transfers alone on their slowest rank", "µs"),
    "exposed": ScalingQuantity("exposed communication: time beyond computation alone", "µs"),
    "exposed_share": ScalingQuantity("exposed communication as a share of the time", ""),
    "overlap": ScalingQuantity("share of the communication that overlaps computation", ""),
    "split_shard": ScalingQuantity("efficiency of a shard computed alone, relative to the whole sequence", ""),
    "split_contention": ScalingQuantity("a shard computed alone, relative to the same beside other ranks", ""),
    "split_balance": ScalingQuantity("mean computation time relative to the slowest rank's", ""),
    "split_exposed": ScalingQuantity("computation relative to computation and exposed transfers", ""),
    "split_rest": ScalingQuantity("computation and exposed transfers relative to the time", ""),
    "tflops": ScalingQuantity("minimum floating-point operations per second, all ranks", "TFLOP/s"),
    "mfu_datasheet": ScalingQuantity("minimum FLOP/s as a share of the data sheet's peak", "%"),
    "mfu_matmul": ScalingQuantity("minimum FLOP/s as a share of what a matmul reached in this run", "%"),
    "energy_per_token": ScalingQuantity("energy of the devices per token", "J"),
}
"""Every number of a shape; the factors of efficiency have ``split_`` before their names."""

EFFICIENCY_FACTORS = {
    "split_shard": "smaller shards",
    "split_contention": "contention",
    "split_balance": "load imbalance",
    "split_exposed": "exposed communication",
    "split_rest": "other effects",
}
"""The factors of efficiency, and the cause of each loss in a word or two."""

ShapeNumbers = dict[str, Estimate | Missing]
"""Estimates by name; where there is none, why."""


def build_number(basis: TimingBasis, name: str, values: NDArray[np.float64]) -> Estimate | Missing:
    """Return the number of that name, computed from its vector."""
    quantity = QUANTITIES[name]
    estimate = basis.estimate(values, quantity.unit, quantity.words)
    return estimate or Missing(code="not_finite", detail="the measured times give no finite number")


def is_over_starts(estimate: Estimate) -> bool:
    """Return whether it has an interval over several starts."""
    return estimate.bounds is not None and estimate.scope == "run"


def missing_interval(estimate: Estimate) -> str | None:
    """Return why an estimate has no interval; null where it has one."""
    return None if estimate.bounds is not None else f"no interval: {estimate.method.partition(NO_INTERVAL)[2]}"


def judge_at_least(estimate: Estimate | None, edge: float) -> Verdict:
    """Return whether a number is at least ``edge``; unsure without an interval, or where it contains the edge."""
    if estimate is None or estimate.bounds is None:
        return "unsure"
    low, high = estimate.bounds
    return "no" if high < edge else "yes" if low >= edge else "unsure"
