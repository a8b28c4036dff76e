"""A number with its interval, or the reason why there is none: a shape's quantities and their format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from assay.core.units import format_significant, format_time
from assay.experiments.estimates import is_uninformative

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


_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def format_cell(number: ScalingNumber, write: Callable[[float], str], unit: str = "") -> str | None:
    """Write a number, its interval behind it and its unit last; null where there is no number."""
    if number.value is None:
        return None
    value = write(number.value)
    return f"{value}{unit}{format_interval(number, write)}"


def format_interval(number: ScalingNumber, write: Callable[[float], str]) -> str:
    """Write an interval in brackets, with a space before it; nothing where there is none."""
    if number.bounds is None or number.value is None:
        return ""
    low, high = number.bounds
    if low > 0 and is_uninformative(low, high):
        return " (or any)"
    return f" ({write(low)} – {write(high)})"


def format_time_cell(number: ScalingNumber) -> str | None:
    """Write a time, all in the unit that reads best for it: ``1.234 ms (1.220 – 1.251)``."""
    if number.value is None:
        return None
    unit = format_time(abs(number.value)).rpartition(" ")[2]
    scale = {"ns": 1e-3, "µs": 1.0, "ms": 1e3, "s": 1e6}[unit]
    return format_cell(number, lambda us: _format_signed(us / scale), f" {unit}")


def _format_signed(value: float) -> str:
    return f"−{format_significant(-value)}" if value < 0 else format_significant(value)


def format_percent_cell(number: ScalingNumber) -> str | None:
    """Write a share in percent: ``81 % (78 – 85)``."""
    return format_cell(number, lambda share: f"{_format_percent(100 * share)}", " %")


def _format_percent(percent: float) -> str:
    digits = 0 if abs(percent) >= 9.95 else 1 if abs(percent) >= 0.095 else 2
    return f"{percent:.{digits}f}".replace("-", "−")


def format_ratio_cell(number: ScalingNumber) -> str | None:
    """Write a ratio: ``1.62 (1.55 – 1.70)``."""
    return format_cell(number, lambda ratio: f"{ratio:.2f}".replace("-", "−"))


def format_factor_cell(number: ScalingNumber) -> str | None:
    """Write a factor of efficiency, very close to 1 with three decimals; what is 1 by its nature has no more to it."""
    if number.value == 1 and number.bounds in {None, (1.0, 1.0)}:
        return "1"
    far = max((abs(end - 1) for end in (number.value or 1.0, *(number.bounds or ()))), default=0.0)
    return format_cell(number, lambda factor: f"{factor:.{3 if far < 0.02 else 2}f}")


def format_rate_cell(number: ScalingNumber) -> str | None:
    """Write a rate with a prefix: ``166 k (163 – 170)``."""
    if number.value is None:
        return None
    scale, prefix = next(((s, p) for s, p in _PREFIXES if abs(number.value) >= s), _PREFIXES[-1])
    return format_cell(number, lambda rate: format_significant(rate / scale, 3), f" {prefix}" if prefix else "")


def format_small_cell(number: ScalingNumber, unit: str) -> str | None:
    """Write a small number with a prefix: ``1.2 µJ (1.1 – 1.3)``."""
    if number.value is None:
        return None
    scale, prefix = next(((s, p) for s, p in _SMALL_PREFIXES if abs(number.value) >= s), _SMALL_PREFIXES[-1])
    return format_cell(number, lambda small: format_significant(small / scale, 3), f" {prefix}{unit}")


def without_interval(number: ScalingNumber) -> ScalingNumber:
    """Return a number without its interval, for where that is not written."""
    if number.estimate is None:
        return number
    return ScalingNumber(number.estimate.model_copy(update={"low": None, "high": None}))


def format_bytes(count: float | None) -> str | None:
    """Write a number of bytes."""
    if count is None:
        return None
    scale, prefix = next(((s, p) for s, p in _PREFIXES if count >= s), _PREFIXES[-1])
    return f"{format_significant(count / scale, 4)} {prefix}B" if count else "0 B"


def format_ratio(number: ScalingNumber) -> str:
    """Write a ratio for a sentence: ``1.62× (1.55 – 1.70×)``."""
    if number.value is None:
        return "–"
    text = f"{number.value:.2f}×"
    if number.bounds is None:
        return text
    return (
        f"{text} (or any)"
        if is_uninformative(*number.bounds)
        else f"{text} ({number.bounds[0]:.2f} – {number.bounds[1]:.2f}×)"
    )


def format_share(number: ScalingNumber) -> str:
    """Write a share for a sentence: ``81 % (78 – 85 %)``."""
    if number.value is None:
        return "–"
    text = f"{_format_percent(100 * number.value)} %"
    if number.bounds is None:
        return text
    low, high = (_format_percent(100 * end) for end in number.bounds)
    return f"{text} (or any)" if is_uninformative(*number.bounds) else f"{text} ({low} – {high} %)"
