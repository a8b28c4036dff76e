"""The times that everything is made of, as arrays: how else those of one process could have come out, or one a repeat.

Of one repeat, the first element is what was measured and the others are draws; of several repeats there is one element
a repeat. Whatever is computed from them element by element, by the same arithmetic, is a number with its interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate
from assay.stats.resampled import among_draws, indices, medians, over_repeats, why_no_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from assay.experiments.scaling.timings import Timing

    Samples = NDArray[np.float64]

PARTS = ("slowest", "mean", "last")


@dataclass(frozen=True, eq=False)
class Times:
    """Microseconds of a trial, of each subject by name: medians over iterations.

    Attributes:
        slowest: Of the slowest rank of each iteration.
        mean: Of the mean over ranks.
        last: Of the last places of rings, which have most to do under a causal mask.
    """

    slowest: dict[str, Samples]
    mean: dict[str, Samples]
    last: dict[str, Samples]


@dataclass(frozen=True, eq=False)
class Basis:
    """What numbers rest on: the times of some trials in the repeats that have all of them, and how to judge them."""

    times: tuple[Times, ...]
    repeats: tuple[int, ...]
    samples: int
    trouble: str | None

    def estimate(self, values: Samples, unit: str, what: str) -> Estimate | None:
        """Return a number with its interval, or without one and why; null where there is no such number."""
        if not np.isfinite(values[0] if len(self.repeats) == 1 else values).all():
            return None
        if len(self.repeats) > 1:
            centre, low, high = over_repeats(values)
            how = f"{what}; mean of {len(values)} repeats, each started afresh, Student's t"
            return Estimate(value=centre, low=low, high=high, unit=unit, scope="run", method=how, n=self.samples)
        ends = among_draws(values) if self.trouble is None else None
        how = f"{what}; iterations of one start drawn anew, which says nothing of the next start"
        if ends is None:
            how = f"{what}; no interval: {self.trouble or 'some draws have no such number'}"
        return Estimate(
            value=float(values[0]),
            low=None if ends is None else ends[0],
            high=None if ends is None else ends[1],
            unit=unit,
            scope="process",
            method=how,
            n=self.samples,
        )


def basis_of(*several: Mapping[int, Timing]) -> Basis | None:
    """Return what rests on several trials of each repeat; null where no repeat has all of them."""
    repeats = sorted(set.intersection(*(set(timings) for timings in several)))
    if not repeats:
        return None
    chosen = [[timings[repeat] for repeat in repeats] for timings in several]
    trouble = None
    if len(repeats) == 1:
        trouble = next((why for (only,) in chosen if (why := why_no_interval(_deciding(only))) is not None), None)
    return Basis(
        times=tuple(_within(of_subject[0]) if len(repeats) == 1 else _over(of_subject) for of_subject in chosen),
        repeats=tuple(repeats),
        samples=sum(_deciding(timing).size for timing in chosen[0]),
        trouble=trouble,
    )


def reduced(timing: Timing, name: str) -> dict[str, Samples]:
    """Return one number an iteration: of the slowest rank, of all on average, of the last places on average."""
    rows = timing.by_rank[name]
    ring = timing.plan.shape.ring if timing.plan.kind == "ring" else 1
    return {"slowest": rows.max(axis=0), "mean": rows.mean(axis=0), "last": rows[ring - 1 :: ring].mean(axis=0)}


def _deciding(timing: Timing) -> Samples:
    """Return the samples that say whether there can be an interval."""
    name = "total" if "total" in timing.by_rank else next(iter(timing.by_rank))
    return reduced(timing, name)["slowest"]


def _within(timing: Timing) -> Times:
    chosen = indices(_deciding(timing), timing.seed)
    return _times(timing, lambda samples: medians(samples, chosen))


def _over(timings: Sequence[Timing]) -> Times:
    per_repeat = [_times(timing, lambda samples: np.array([float(np.median(samples))])) for timing in timings]
    names = tuple(timings[0].by_rank)
    return Times(*({n: np.concatenate([getattr(t, part)[n] for t in per_repeat]) for n in names} for part in PARTS))


def _times(timing: Timing, middle: Callable[[Samples], Samples]) -> Times:
    parts = {name: reduced(timing, name) for name in timing.by_rank}
    return Times(*({name: middle(of_name[part]) for name, of_name in parts.items()} for part in PARTS))
