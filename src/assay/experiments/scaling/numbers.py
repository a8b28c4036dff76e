"""A number with its interval, or the reason why there is none; and which numbers a shape has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from assay.core.results import Estimate
    from assay.experiments.scaling.vectors import Basis


class Quantity(NamedTuple):
    """What a number is of, in words, and its unit."""

    words: str
    unit: str


QUANTITIES: dict[str, Quantity] = {
    "time": Quantity("median time of a call over its slowest rank, forward and backward", "µs"),
    "forward": Quantity("median time of the forward pass over its slowest rank", "µs"),
    "backward": Quantity("time of both passes less that of the forward pass", "µs"),
    "throughput": Quantity("work of all ranks over the time", "/s"),
    "speedup": Quantity("throughput over that of one rank", "×"),
    "efficiency": Quantity("speedup over the number of ranks", ""),
    "karp_flatt": Quantity("share of a ring's work that is as if not shared out (Karp–Flatt)", ""),
    "compute": Quantity("median time of computing only over its slowest rank", "µs"),
    "communication": Quantity("median time of the transfers only over their slowest rank", "µs"),
    "exposed": Quantity("time beyond that of computing only", "µs"),
    "exposed_share": Quantity("time beyond that of computing only, of the time", ""),
    "overlap": Quantity("communication hidden behind computing", ""),
    "split_shard": Quantity("a share computed alone, against the whole computed alone", ""),
    "split_contention": Quantity("a share computed alone, against the same beside neighbours", ""),
    "split_balance": Quantity("mean computing, against the slowest rank's", ""),
    "split_exposed": Quantity("computing, against computing and unhidden transfers", ""),
    "split_rest": Quantity("computing and unhidden transfers, against the time", ""),
    "tflops": Quantity("least operations over the time, all ranks", "TFLOP/s"),
    "mfu_datasheet": Quantity("least operations over the time, of what the data sheet says", "%"),
    "mfu_matmul": Quantity("least operations over the time, of what a matmul reached in this run", "%"),
    "energy_per_token": Quantity("energy of the devices over the tokens that were got through", "J"),
}
"""Every number of a shape; the factors of efficiency have ``split_`` before their names."""

SPLIT = {
    "split_shard": "shards",
    "split_contention": "contention",
    "split_balance": "imbalance",
    "split_exposed": "exposed communication",
    "split_rest": "the rest",
}
"""The factors of efficiency, and what is lost by each in a word or two."""


@dataclass(frozen=True)
class Known:
    """A number with its interval; where there is none, the reason."""

    estimate: Estimate | None = None
    reason: str | None = None

    @property
    def value(self) -> float | None:
        """The number itself; null where there is none."""
        return None if self.estimate is None else self.estimate.value

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval; null where there is none."""
        if self.estimate is None or self.estimate.low is None or self.estimate.high is None:
            return None
        return self.estimate.low, self.estimate.high

    @property
    def is_over_starts(self) -> bool:
        """Whether it has an interval over several starts."""
        return self.ends is not None and self.estimate is not None and self.estimate.scope == "run"

    @property
    def why_unsure(self) -> str | None:
        """Why there is no number, or no interval of it; null where there are both."""
        if self.estimate is None:
            return self.reason
        return None if self.ends is not None else self.estimate.method.partition("; ")[2]


def known(basis: Basis, name: str, values: NDArray[np.float64]) -> Known:
    """Return the number of that name whose array this is."""
    quantity = QUANTITIES[name]
    estimate = basis.estimate(values, quantity.unit, quantity.words)
    return Known(estimate, None if estimate is not None else "it comes out as no number")
