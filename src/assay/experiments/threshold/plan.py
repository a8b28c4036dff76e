"""Plan one process after another: the points each measures follow from the results of those before.

Starting a process takes longer than timing most points, so that each measures several:

    first     the largest size, the smallest, and some between        ●───────●───────●───────●
    then      what lies between the largest that fails and the        ✗───────✗──●─●──?───────✓
              smallest that clears, and what is still open; while
              that is the largest of all, nothing else
    last      once more the points that decide the answer:                         ✗──✓
              one process does not show what differs between processes
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from assay.core.format import format_count
from assay.core.values import Block, Done, Paired, Role, Trial
from assay.experiments.budget import TRIAL_OVERHEAD_S, block_durations_s
from assay.experiments.run.plan import max_start_up_s
from assay.experiments.threshold.cells import GridObservations, PointObservations, judge_threshold
from assay.experiments.threshold.spec import MIN_BLOCKS
from assay.stats.crossover import LOOKS, next_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Record
    from assay.experiments.threshold.cells import JudgedThreshold
    from assay.experiments.threshold.spec import ThresholdOptions
    from assay.store.records import Records


FIRST_SIZES = 5
"""Sizes that are looked at first."""
NEW_SIZES = 6
"""Sizes between a failing and a clearing one that are looked at in one process."""
MIN_SETTLED = 4
"""Minimum number of sizes that two processes measure, where there are as many: it shows how processes differ."""


def choose_cells(judgement: JudgedThreshold) -> list[int]:
    """Return the places of the cells to look at next, the largest first; none where it is decided."""
    cells = judgement.cells
    if not judgement.measured:
        return pick_evenly(range(len(cells)), FIRST_SIZES)[::-1]
    decision, chosen = judgement.decision, _unsettled_cells(judgement)
    following = next_size([cell.decisive for cell in cells])
    if following is not None:
        between = range(following if following == len(cells) - 1 else decision.low, decision.index)
        chosen |= set(pick_evenly([index for index in between if cells[index].decisive is None], NEW_SIZES))
        # Of the open ones those that more pairs may close.
        bounds = ((index, cells[index].decisive) for index in between)
        chosen |= {index for index, bound in bounds if bound and bound.state == "open" and bound.pairs < LOOKS[-1]}
    return sorted(chosen, reverse=True)


def _unsettled_cells(judgement: JudgedThreshold) -> set[int]:
    """Return the cells that need a second process: both sides of the answer, the largest, and some near the margin.

    On the largest every answer rests, also that of another margin later.
    """
    cells, decision = judgement.cells, judgement.decision
    measured = [index for index, cell in enumerate(cells) if cell.decisive is not None and cell.processes]
    carrying = [index for index in {decision.index, decision.low - 1, len(cells) - 1} if index in measured]
    settled = {index for index in measured if cells[index].processes >= MIN_BLOCKS}
    chosen = {index for index in carrying if index not in settled}

    def distance_to_margin(index: int) -> float:
        bound = cells[index].decisive
        return math.inf if bound is None else abs(bound.mean - math.log(judgement.threshold.margin))

    others = sorted((index for index in measured if index not in settled | chosen), key=distance_to_margin)
    lacking = MIN_SETTLED - len(settled) - len(chosen)
    return chosen | set(others[: max(0, lacking)])


def pick_evenly(candidates: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` of the candidates: both ends, the others evenly between."""
    count = len(candidates)
    if count <= most:
        return list(candidates)
    return sorted({candidates[round(step * (count - 1) / (most - 1))] for step in range(most)})


def choose_points(judgement: JudgedThreshold, index: int) -> list[int]:
    """Return the points of a cell that are worth a look: those that fail where one does, all that are not closed."""
    points = {number: judgement.points[number] for number in judgement.cells[index].points}
    failing = [n for n, point in points.items() if point.decisive is not None and point.decisive.state == "fails"]
    if failing:
        return [n for n in failing if points[n].observations.failure is None]
    unsettled = [
        n
        for n, point in points.items()
        if point.decisive is None or point.decisive.state == "open" or point.processes < MIN_BLOCKS
    ]
    return unsettled or list(points)


PAIR_ROLE = "pairs"
MAX_FAILURES = 2
"""So many processes that failed, one after another, end it."""
MIN_MEASURE_S = 1.0
"""A process that could measure for less than this is not started."""

PointIndex = tuple[int, int]
"""A threshold and a point of it, by their numbers."""


@dataclass(frozen=True)
class ThresholdProgress:
    """How far a run has come: what is known, and what comes next."""

    observations: GridObservations
    next_step: Block | Done


def judge_thresholds(options: ThresholdOptions, observations: GridObservations) -> list[JudgedThreshold]:
    """Return what is known about each threshold."""
    nothing = PointObservations()
    return [
        judge_threshold(
            threshold,
            [observations.points.get((number, point), nothing) for point in range(len(threshold.points))],
            options.decide_on,
        )
        for number, threshold in enumerate(options.thresholds)
    ]


def replay_run(options: ThresholdOptions, records: Records) -> ThresholdProgress:
    """Go through the processes of a run from the first on, each decided as it was then, up to what comes next."""
    by_trial = {record.trial: record for record in records}
    observations = GridObservations()
    before: list[Record] = []
    while True:
        step = _decide_next(options, observations, before)
        if isinstance(step, Done):
            return ThresholdProgress(observations, step)
        block, indices = step
        record = by_trial.get(block.trials[0].id)
        if record is None:
            return ThresholdProgress(observations, block)
        observations.add_record(indices, record, records)
        before.append(record)


def _decide_next(
    options: ThresholdOptions, observations: GridObservations, before: Sequence[Record]
) -> tuple[Block, tuple[PointIndex, ...]] | Done:
    failed = [record for record in before[-MAX_FAILURES:] if record.status != "ok"]
    if len(failed) == MAX_FAILURES or any(record.status == "refused" for record in failed):
        return Done(why=f"nothing more can be measured: {failed[-1].reason}")
    judgements = judge_thresholds(options, observations)
    indices = choose_next_points(judgements)
    if not indices:
        return Done(why="every threshold is decided, or more would not decide it")
    if len(before) >= options.blocks:
        return Done(why=f"{len(before)} processes have looked")
    start_s = max_start_up_s(_build_trial(options, "look-1", indices, 1.0))
    time_s, left_s = options.duration_s, None
    if options.budget_s is not None:
        startups = [evidence.setup_s + TRIAL_OVERHEAD_S for record in before for evidence in record.evidence]
        left_s = options.budget_s - sum(block_durations_s(before).values())
        time_s = min(time_s, left_s - max(startups, default=start_s))
    if time_s < MIN_MEASURE_S and len(before) >= MIN_BLOCKS:
        return Done(why=f"the budget of {options.budget_s:g} s is spent")
    number = len(before) + 1
    unchecked = any(not observations.points.get(index, PointObservations()).checked for index in indices)
    trial = _build_trial(options, f"look-{number}", indices, max(time_s, MIN_MEASURE_S) + start_s, parity=unchecked)
    most_s = (options.blocks - len(before)) * (options.duration_s + start_s + TRIAL_OVERHEAD_S)
    block = Block(
        name=trial.block,
        why=_describe_process(options, judgements, indices, number),
        trials=(trial,),
        left_s=most_s if left_s is None else max(min(most_s, left_s), trial.mode.duration_s),
    )
    return block, indices


def choose_next_points(judgements: Sequence[JudgedThreshold]) -> tuple[PointIndex, ...]:
    """Return the points that the next process looks at: the largest first, the thresholds in turns.

    A threshold whose fast path gave a wrong result is not measured further: nothing can come of it.
    """
    by_threshold = [
        [(number, point) for index in choose_cells(threshold) for point in reversed(choose_points(threshold, index))]
        if threshold.parity != "failed"
        else []
        for number, threshold in enumerate(judgements)
    ]
    return tuple(index for turn in zip_longest(*by_threshold) for index in turn if index is not None)


def _build_trial(
    options: ThresholdOptions, block: str, indices: Sequence[PointIndex], duration_s: float, *, parity: bool = True
) -> Trial:
    points = [options.thresholds[one].points[point] for one, point in indices]
    number = int(block.rpartition("-")[2])
    role = Role(
        name=PAIR_ROLE,
        subjects=tuple(subject for point in points for subject in (point.reference, point.fast)),
        devices=(options.device,),
        isolation=options.isolation,
    )
    return Trial(
        block=block,
        roles=(role,),
        mode=Paired(
            duration_s=duration_s,
            rounds=options.rounds_of(number),
            parity=parity,
            cache=options.cache,
            timeout_s=options.timeout_s,
        ),
        on_interference=options.on_interference,
        placed_with=(options.device,),
        cpu_groups=options.cpu_groups,
        retakes=options.retakes,
        seed=options.seed + number - 1,
    )


def _describe_process(
    options: ThresholdOptions, judgements: Sequence[JudgedThreshold], indices: Sequence[PointIndex], number: int
) -> str:
    """Say what a process looks at."""
    counts = [
        (threshold.name, len({threshold.points[point].size for n, point in indices if n == index}))
        for index, threshold in enumerate(options.thresholds)
    ]
    sizes = ", ".join(f"{format_count(count, 'size')} of {name}" for name, count in counts if count)
    begun = any(judgement.measured for judgement in judgements)
    how = "near the answer, and once more" if begun else "the ends and some between"
    return f"process {number} of {options.blocks} at most: {sizes}; {how}"
