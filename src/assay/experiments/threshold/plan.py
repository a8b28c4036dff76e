"""One process after another: which points each looks at follows from what those before it found."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from assay.core.plan import Block, Done, Method, Role, Trial
from assay.experiments.contention.budget import BESIDE_S, spent_s
from assay.experiments.run.plan import start_up_s
from assay.experiments.threshold import choice
from assay.experiments.threshold.cells import judge
from assay.experiments.threshold.checked import parity_of
from assay.experiments.threshold.measured import Gathered, Seen
from assay.experiments.threshold.options import FEWEST_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Record
    from assay.experiments.threshold.cells import Judged
    from assay.experiments.threshold.options import ThresholdOptions
    from assay.store.records import Records

PAIRS = "pairs"
TRIES = 2
"""So many processes that failed, one after another, end it."""
LEAST_S = 1.0
"""A process that could measure for less than this is not started."""

Place = tuple[int, int]
"""A threshold and a point of it, by their numbers."""


@dataclass(frozen=True)
class Walk:
    """How far a run has come: what is known, the processes that found it out, and what comes next."""

    gathered: Gathered
    chosen: dict[str, tuple[Place, ...]]
    next: Block | Done

    def judged(self, options: ThresholdOptions) -> list[Judged]:
        """Return what is known about each threshold."""
        return judge_all(options, self.gathered)


def judge_all(options: ThresholdOptions, gathered: Gathered) -> list[Judged]:
    """Return what is known about each threshold."""
    return [
        judge(threshold, gathered.of(number, len(threshold.points)), options.decide_on)
        for number, threshold in enumerate(options.thresholds)
    ]


def walk(options: ThresholdOptions, records: Records) -> Walk:
    """Go through the processes of a run from the first on, each decided as it was then, up to what comes next."""
    by_trial = {record.trial: record for record in records}
    observations = Gathered()
    chosen: dict[str, tuple[Place, ...]] = {}
    before: list[Record] = []
    while True:
        step = _next(options, observations, before)
        if isinstance(step, Done):
            return Walk(observations, chosen, step)
        block, indices = step
        record = by_trial.get(block.trials[0].id)
        if record is None:
            return Walk(observations, chosen, block)
        observations.add(indices, record, records)
        chosen[record.trial] = indices
        before.append(record)


def _next(
    options: ThresholdOptions, gathered: Gathered, before: Sequence[Record]
) -> tuple[Block, tuple[Place, ...]] | Done:
    failed = [record for record in before[-TRIES:] if record.status != "ok"]
    if len(failed) == TRIES or any(record.status == "refused" for record in failed):
        return Done(why=f"nothing more can be measured: {failed[-1].reason}")
    judged_thresholds = judge_all(options, gathered)
    indices = wanted(judged_thresholds)
    if not indices:
        return Done(why="every threshold is decided, or more would not decide it")
    if len(before) >= options.blocks:
        return Done(why=f"{len(before)} processes have looked")
    start_s = start_up_s(_trial(options, "look-1", indices, 1.0))
    left_s = options.budget_s - sum(spent_s(before).values()) if options.budget_s is not None else None
    time_s = options.duration_s if left_s is None else min(options.duration_s, left_s - _started_s(before, start_s))
    if time_s < LEAST_S and len(before) >= FEWEST_BLOCKS:
        return Done(why=f"the budget of {options.budget_s:g} s is spent")
    number = len(before) + 1
    unchecked = any(not gathered.points.get(index, Seen()).checked for index in indices)
    trial = _trial(options, f"look-{number}", indices, max(time_s, LEAST_S) + start_s, parity=unchecked)
    most_s = (options.blocks - len(before)) * (options.duration_s + start_s + BESIDE_S)
    block = Block(
        name=trial.block,
        why=_why(options, judged_thresholds, indices, number),
        trials=(trial,),
        left_s=most_s if left_s is None else max(min(most_s, left_s), trial.method.duration_s),
    )
    return block, indices


def _started_s(before: Sequence[Record], usual_s: float) -> float:
    """Return how long the next process takes until it measures: as the longest so far, or as is usual."""
    startups = [evidence.setup_s + BESIDE_S for record in before for evidence in record.evidence]
    return max(startups, default=usual_s)


def wanted(judged: Sequence[Judged]) -> tuple[Place, ...]:
    """Return the points that the next process looks at: the largest first, the thresholds in turns.

    A threshold whose fast path gave a wrong result is not measured further: nothing can come of it.
    """
    by_threshold = [
        [(number, point) for index in choice.places(threshold) for point in reversed(choice.points(threshold, index))]
        if parity_of(threshold) != "failed"
        else []
        for number, threshold in enumerate(judged)
    ]
    return tuple(index for turn in zip_longest(*by_threshold) for index in turn if index is not None)


def _trial(
    options: ThresholdOptions, block: str, places: Sequence[Place], duration_s: float, *, parity: bool = True
) -> Trial:
    points = [options.thresholds[one].points[point] for one, point in places]
    number = int(block.rpartition("-")[2])
    role = Role(
        name=PAIRS,
        subjects=tuple(subject for point in points for subject in (point.reference, point.fast)),
        devices=(options.device,),
        isolation=options.isolation,
        in_pairs=True,
        parity=parity,
    )
    return Trial(
        block=block,
        roles=(role,),
        method=Method(
            duration_s=duration_s,
            rounds=options.rounds_of(number),
            cache=options.cache,
            timeout_s=options.timeout_s,
        ),
        strangers=options.strangers,
        placed_with=(options.device,),
        cpu_groups=options.cpu_groups,
        retakes=options.retakes,
        seed=options.seed + number - 1,
    )


def _why(options: ThresholdOptions, judged: Sequence[Judged], places: Sequence[Place], number: int) -> str:
    """Say what a process looks at."""
    counts = [
        (threshold.name, len({threshold.points[point].size for n, point in places if n == index}))
        for index, threshold in enumerate(options.thresholds)
    ]
    sizes = ", ".join(f"{count} size{'' if count == 1 else 's'} of {name}" for name, count in counts if count)
    how = (
        "the ends and some between"
        if not any(judged_one.measured for judged_one in judged)
        else "near the answer, and once more"
    )
    return f"process {number} of {options.blocks} at most: {sizes}; {how}"
