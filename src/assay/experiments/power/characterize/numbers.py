"""From rows to what is told of each GPU in each case, over its repeats."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate
from assay.stats.intervals import restarts_interval
from assay.stats.metered import Draw, joules_of
from assay.stats.resampled import over_repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from assay.experiments.power.rows import GpuRow


@dataclass(frozen=True)
class GpuCase:
    """One GPU in one case, over all repeats. Null: not measured, or not told."""

    case: str
    rows: tuple[GpuRow, ...]
    time: Estimate
    energy: Estimate | None

    @property
    def one(self) -> GpuRow:
        """Any of its rows, for what is the same in all of them."""
        return self.rows[0]

    @property
    def name(self) -> str:
        """The GPU as people call it."""
        return gpu_name(self.one.device)

    @property
    def n(self) -> int:
        """Calls that were timed."""
        return sum(row.n for row in self.rows)

    @property
    def repeats(self) -> int:
        """In which it was measured."""
        return len({row.repeat for row in self.rows})

    @property
    def processes(self) -> int:
        """Fresh starts of its worker."""
        return sum(len(row.restart_medians_us) for row in self.rows)

    @property
    def cv(self) -> float | None:
        """Of the same call again and again in one process; over all of them, the root of the mean square."""
        spreads = [row.cv for row in self.rows if row.cv is not None]
        return math.sqrt(float(np.mean(np.square(spreads)))) if spreads else None

    @property
    def quartiles_us(self) -> tuple[float, float, float]:
        """The middle ones of its repeats."""
        first, middle, third = np.median([row.quartiles_us for row in self.rows], axis=0)
        return float(first), float(middle), float(third)

    def mean(self, quantity: str) -> float | None:
        """Return the mean of a quantity over the repeats that tell it."""
        values = [value for row in self.rows if (value := getattr(row, quantity)) is not None]
        return float(np.mean(values)) if values else None

    def held_back(self) -> dict[str, float]:
        """Return the share of the time that each reason kept the clock from being higher; idleness is none."""
        reasons = dict.fromkeys(reason for row in self.rows for reason in row.held_back)
        shares = {r: float(np.mean([row.held_back.get(r, 0.0) for row in self.rows])) for r in reasons}
        return {reason: share for reason, share in shares.items() if share > 0 and reason != "idle"}


def gpu_name(device: str) -> str:
    """Write a device as people call it: "GPU 0" for cuda:0; a group of cores as it is."""
    kind, _, number = device.partition(":")
    return f"GPU {number}" if kind == "cuda" else device


def per_gpu(rows: Iterable[GpuRow]) -> list[GpuCase]:
    """Return each GPU in each case, in the order the cases were first measured, and GPUs by their slot."""
    grouped: dict[tuple[str, str], list[GpuRow]] = {}
    for row in sorted(rows, key=lambda row: row.slot):
        grouped.setdefault((row.case, row.uuid), []).append(row)
    return [
        GpuCase(case, tuple(case_rows), time_of(case_rows), energy_of(case_rows))
        for (case, _), case_rows in grouped.items()
    ]


def by_repeat(rows: Iterable[GpuRow], value: Callable[[GpuRow], float | None]) -> dict[int, float]:
    """Return a positive quantity in each repeat; of several trials in one, their geometric mean."""
    values_of_repeat: dict[int, list[float]] = {}
    for row in rows:
        number = value(row)
        if number is not None and number > 0:
            values_of_repeat.setdefault(row.repeat, []).append(number)
    return {repeat: math.exp(float(np.mean(np.log(values)))) for repeat, values in values_of_repeat.items()}


def typical_us(row: GpuRow) -> float:
    """Return the typical median of the processes of a row."""
    return math.exp(float(np.mean(np.log(row.restart_medians_us)))) if row.restart_medians_us else row.median_us


def time_of(rows: Sequence[GpuRow]) -> Estimate:
    """Return the median time of a call with its interval: over repeats, else over processes, else within the one."""
    n = sum(row.n for row in rows)
    repeats = list(by_repeat(rows, typical_us).values())
    if len(repeats) > 1:
        centre, low, high = over_repeats(np.array(repeats))
        how = f"geometric mean of the medians of {len(repeats)} repeats, Student's t on their logarithms"
        return Estimate(value=centre, low=low, high=high, unit="µs", scope="run", method=how, n=n)
    processes = [median for row in rows for median in row.restart_medians_us]
    if len(processes) > 1:
        centre, low, high, how = restarts_interval(processes)
        return Estimate(value=centre, low=low, high=high, unit="µs", scope="run", method=how, n=n)
    one, how = rows[0], "median of one process, order statistics at the effective sample size, widened"
    return Estimate(value=one.median_us, low=one.low_us, high=one.high_us, unit="µs", scope="process", method=how, n=n)


def energy_of(rows: Sequence[GpuRow]) -> Estimate | None:
    """Return the energy of a call: the spread of repeats (of one, that of its times) and the sensor's interval."""
    measured = [row for row in rows if row.energy_per_call_j is not None]
    repeats = by_repeat(measured, lambda row: row.energy_per_call_j)
    if not repeats:
        return None
    estimate = joules_of(
        [_draw(value, [row for row in measured if row.repeat == repeat]) for repeat, value in repeats.items()]
    )
    method = f"the card's energy over the calls made meanwhile; {estimate.method}"
    return estimate.model_copy(update={"method": method, "n": len(measured)})


def _draw(value: float, rows: Sequence[GpuRow]) -> Draw:
    """Return what one repeat gave; how far its calls leave energy open is what they leave open of its time."""
    halves = [_half(row) for row in rows]
    present = [half for half in halves if half is not None]
    sensor = float(np.mean(present)) if len(present) == len(halves) else None
    spread = time_of(rows).relative_half_width
    return Draw(value, sensor, sum(row.n for row in rows), spread)


def _half(row: GpuRow) -> float | None:
    """Return half of the sensor's interval as a share of the energy; null where it has none."""
    if row.energy_per_call_j is None or row.energy_low_j is None or row.energy_high_j is None:
        return None
    return (row.energy_high_j - row.energy_low_j) / 2 / row.energy_per_call_j
