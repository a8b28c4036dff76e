"""A number with its interval, or the reason why there is none: a shape's quantities and their format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from assay.core.format import (
    RATE_SCALES,
    format_joules,
    format_percent,
    format_ratio,
    format_scaled,
    format_time,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from assay.core.results import Estimate
    from assay.experiments.scaling.timings import TimingBasis


class ScalingQuantity(NamedTuple):
    """What a number is of, in words, and its unit."""

    words: str
    unit: str


QUANTITIES: dict[str, ScalingQuantity] = {
    "time": ScalingQuantity("median time of a call over its slowest rank, forward and backward", "µs"),
    "forward": ScalingQuantity("median time of the forward pass over its slowest rank", "µs"),
    "backward": ScalingQuantity("time of both passes less that of the forward pass", "µs"),
    "throughput": ScalingQuantity("work of all ranks over the time", "/s"),
    "speedup": ScalingQuantity("throughput over that of one rank", "×"),
    "efficiency": ScalingQuantity("speedup over the number of ranks", ""),
    "karp_flatt": ScalingQuantity("share of a ring's work that is as if not shared out (Karp–Flatt)", ""),
    "compute": ScalingQuantity("median time of computing only over its slowest rank", "µs"),
    "communication": ScalingQuantity("median time of the transfers only over their slowest rank", "µs"),
    "exposed": ScalingQuantity("time beyond that of computing only", "µs"),
    "exposed_share": ScalingQuantity("time beyond that of computing only, of the time", ""),
    "overlap": ScalingQuantity("communication hidden behind computing", ""),
    "split_shard": ScalingQuantity("a share computed alone, against the whole computed alone", ""),
    "split_contention": ScalingQuantity("a share computed alone, against the same beside neighbours", ""),
    "split_balance": ScalingQuantity("mean computing, against the slowest rank's", ""),
    "split_exposed": ScalingQuantity("computing, against computing and unhidden transfers", ""),
    "split_rest": ScalingQuantity("computing and unhidden transfers, against the time", ""),
    "tflops": ScalingQuantity("least operations over the time, all ranks", "TFLOP/s"),
    "mfu_datasheet": ScalingQuantity("least operations over the time, of what the data sheet says", "%"),
    "mfu_matmul": ScalingQuantity("least operations over the time, of what a matmul reached in this run", "%"),
    "energy_per_token": ScalingQuantity("energy of the devices over the tokens that were got through", "J"),
}
"""Every number of a shape; the factors of efficiency have ``split_`` before their names."""

EFFICIENCY_FACTORS = {
    "split_shard": "shards",
    "split_contention": "contention",
    "split_balance": "imbalance",
    "split_exposed": "exposed communication",
    "split_rest": "the rest",
}
"""The factors of efficiency, and what is lost by each in a word or two."""


@dataclass(frozen=True)
class ScalingNumber:
    """A number with its interval; where there is none, the reason."""

    estimate: Estimate | None = None
    reason: str | None = None

    @property
    def value(self) -> float | None:
        """The number itself; null where there is none."""
        return None if self.estimate is None else self.estimate.value

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The interval; null where there is none."""
        if self.estimate is None or self.estimate.low is None or self.estimate.high is None:
            return None
        return self.estimate.low, self.estimate.high

    @property
    def is_over_starts(self) -> bool:
        """Whether it has an interval over several starts."""
        return self.bounds is not None and self.estimate is not None and self.estimate.scope == "run"

    @property
    def unsure_reason(self) -> str | None:
        """Why there is no number, or no interval of it; null where there are both."""
        if self.estimate is None:
            return self.reason
        return None if self.bounds is not None else self.estimate.method.partition("; ")[2]


def build_number(basis: TimingBasis, name: str, values: NDArray[np.float64]) -> ScalingNumber:
    """Return the number of that name whose array this is."""
    quantity = QUANTITIES[name]
    estimate = basis.estimate(values, quantity.unit, quantity.words)
    return ScalingNumber(estimate, None if estimate is not None else "it comes out as no number")


def format_number(number: ScalingNumber, write: Callable[[float, float | None, float | None], str]) -> str | None:
    """Write a number with its bounds; null where there is no number."""
    return None if number.value is None else write(number.value, *(number.bounds or (None, None)))


def format_time_cell(number: ScalingNumber) -> str | None:
    """Write a time: ``1.234 ms (1.220–1.251)``."""
    return format_number(number, format_time)


def format_percent_cell(number: ScalingNumber) -> str | None:
    """Write a share: ``81 % (78–85)``."""
    return format_number(number, format_percent)


def format_ratio_cell(number: ScalingNumber) -> str | None:
    """Write a ratio: ``1.62× (1.55–1.70)``."""
    return format_number(number, format_ratio)


def format_factor_cell(number: ScalingNumber) -> str | None:
    """Write a factor of efficiency; what is 1 by its nature has no more to it."""
    return "1" if number.value == 1 and number.bounds in {None, (1.0, 1.0)} else format_ratio_cell(number)


def format_rate_cell(number: ScalingNumber) -> str | None:
    """Write a rate with a prefix: ``166 k (163–170)``."""
    return format_number(number, lambda rate, low, high: format_scaled(rate, RATE_SCALES, low, high, 3))


def format_energy_cell(number: ScalingNumber) -> str | None:
    """Write joules: ``1.20 µJ (1.10–1.30)``."""
    return format_number(number, lambda joules, low, high: format_joules(joules, low, high, 3))


def without_interval(number: ScalingNumber) -> ScalingNumber:
    """Return a number without its interval, for where that is not written."""
    if number.estimate is None:
        return number
    return ScalingNumber(number.estimate.model_copy(update={"low": None, "high": None}))
