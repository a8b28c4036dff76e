"""What of a series can be looked at: its undisturbed values as logarithms, and on which host and driver each was."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.stats.changes import SHORTEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.store.history.points import Run
    from assay.store.history.series import Course

FEWEST_RUNS = 10
"""On one host and driver, for these to have a level of their own."""
MOST_PLACES = 5
"""Of one series: the commonest; all others share a level."""


@dataclass(frozen=True)
class Usable:
    """A series as it is looked at; run ``i`` of it is run ``places[i]`` of the course."""

    course: Course
    places: NDArray[np.int64]
    logs: NDArray[np.float64]
    hosts: NDArray[np.int64]

    @property
    def runs(self) -> list[Run]:
        """The runs that are looked at."""
        return [self.course.runs[index] for index in self.places]

    @property
    def kind(self) -> tuple[str, str]:
        """What it has in common with others that are as noisy: the quantity, and the kind of device."""
        return self.course.key.quantity, self.course.key.device_kind


@dataclass(frozen=True)
class Sorted:
    """Series that can be looked at, how many cannot, and how many runs were left out as not above zero."""

    usable: tuple[Usable, ...]
    too_short: int
    not_positive: int


def sort_out(courses: Sequence[Course]) -> Sorted:
    """Return what can be looked at. What was disturbed, not measured or not above zero is no part of it."""
    usable: list[Usable] = []
    too_short = not_positive = 0
    for course in courses:
        measured = np.isfinite(course.value) & ~course.disturbed
        there = np.flatnonzero(measured & (course.value > 0))
        not_positive += int(measured.sum()) - len(there)
        if len(there) < SHORTEST:
            too_short += 1
        else:
            runs = [course.runs[index] for index in there]
            usable.append(Usable(course, there, np.log(course.value[there]), hosts_of(runs)))
    return Sorted(tuple(usable), too_short, not_positive)


def hosts_of(runs: Sequence[Run]) -> NDArray[np.int64]:
    """Return a number for the host and driver of each run, 0 for the commonest; rare ones share the last."""
    named = [(run.host, run.driver) for run in runs]
    counted = Counter(named)
    often = [name for name, count in counted.most_common(MOST_PLACES) if count >= FEWEST_RUNS]
    numbers = {name: number for number, name in enumerate(often)}
    rare = sum(count for name, count in counted.items() if name not in numbers)
    others = len(often) if rare >= FEWEST_RUNS else 0
    return np.array([numbers.get(name, others) for name in named], dtype=np.int64)
