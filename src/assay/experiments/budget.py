"""How a time budget becomes trial durations, how long trials and worker starts are expected to take.

How much of the budget was spent.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.format import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.results import Record
    from assay.core.values import Subject, Trial

BUDGET_S, QUICK_BUDGET_S = 300.0, 60.0
PLANNED_BLOCKS = 6
"""Blocks that durations are planned for; fewer come out where starting takes longer than usual."""
BLOCKS_FOR_DURATION = 4
"""Blocks where only the duration of a trial is given."""
QUICK_TUNED_BLOCKS = 2
"""On groups of cores, where starting takes most of a minute: the blocks after these are short, and more of them fit."""
MIN_BLOCKS = 2
"""Whatever the budget: one block has no interval."""

WORKER_START_S = {"torch": 4.0, "triton": 6.0, "helion": 8.0, "masked": 4.0, "flash": 4.0}
DEFAULT_WORKER_START_S = 0.8
"""Until a worker is ready, as is usual by implementation."""
TRIAL_OVERHEAD_S = 0.4
"""Of a trial: to look around before and after, to write it down."""

COMPILED_IMPLS = frozenset({"triton", "helion"})
"""Implementations whose configurations are compiled when they are first tried."""

TUNING_SHARE = 0.6
"""Of the time that is left to measure in."""
RETIMING_SHARE = 0.12
"""Of the budget, for timing once more in quiet what the tuner picked."""
WARM_UP_SHARE = 0.15
"""Of the budget, to compile what is tuned before the first block."""
MIN_TIMING_S, MIN_TUNING_S = 0.25, 0.4
MIN_OVERRUN_S = 1.0
"""A run that takes so much longer than its budget says so."""
COMFORTABLE_TRIAL_S, COMFORTABLE_COMPILED_TRIAL_S, MIN_PLANNED_BLOCKS = MIN_TIMING_S + MIN_TUNING_S, 1.0, 3
"""Where less than this is left to measure in (the second where kernels are compiled), fewer blocks are planned, but not
fewer than these. Blocks are the draws of the interval, so many short ones decide more than a few long ones."""


@dataclass(frozen=True)
class TrialDurations:
    """How long each worker of a trial is timed, and how long it tunes, in seconds."""

    timing_s: float
    tuning_s: float


@dataclass(frozen=True)
class TrialWorkers:
    """Whose start a trial waits for: its subjects, how many processes at once, and on how many cores.

    ``in_turn`` is how many of them are timed one after another.
    """

    subjects: tuple[Subject, ...]
    processes: int
    cores: int
    in_turn: int = 1

    @property
    def start_s(self) -> float:
        """Until all are ready, in seconds; processes that share cores share their time."""
        alone_s = max(WORKER_START_S.get(subject.impl, DEFAULT_WORKER_START_S) for subject in self.subjects)
        return alone_s * max(1.0, self.processes / self.cores)


def split_duration(each_s: float, *, tuned: bool) -> TrialDurations:
    """Return what a trial's time is spent on; however little it is, something is measured."""
    tuning_s = max(MIN_TUNING_S, TUNING_SHARE * each_s)
    timing_s = each_s - tuning_s if tuned else each_s
    return TrialDurations(max(MIN_TIMING_S, timing_s), tuning_s)


def plan_durations(
    casts: Sequence[TrialWorkers], *, budget_s: float, blocks: int, cooldown_s: float, tuned: bool
) -> TrialDurations:
    """Return how long to time and to tune so that so many blocks of these trials fit the budget, or somewhat fewer."""
    compiled = any(subject.impl in COMPILED_IMPLS for cast in casts for subject in cast.subjects)
    usable_s = budget_s * (1 - (RETIMING_SHARE + WARM_UP_SHARE * compiled) * tuned)
    beside_s = sum(cast.start_s + TRIAL_OVERHEAD_S + cooldown_s for cast in casts)
    comfortable_s = COMFORTABLE_COMPILED_TRIAL_S if compiled else COMFORTABLE_TRIAL_S
    turns = sum(cast.in_turn for cast in casts)
    while (usable_s / blocks - beside_s) / turns < comfortable_s and blocks > MIN_PLANNED_BLOCKS:
        blocks -= 1
    return split_duration((usable_s / blocks - beside_s) / turns, tuned=tuned)


def expected_trial_s(trial: Trial) -> float:
    """Return how long a trial takes, in seconds, as far as can be foreseen."""
    tuning = [role.tuner.budget_s for role in trial.roles if role.tuner is not None]
    tuning_s = max(tuning, default=0.0) if trial.schedule == "together" else sum(tuning)
    return trial.mode.duration_s + tuning_s + TRIAL_OVERHEAD_S + trial.cooldown_s


def overrun_text(budget_s: float, records: Iterable[Record]) -> str | None:
    """Return in words by how much a run took longer than its budget, and what starting took; null where it did not."""
    all_records = list(records)
    used_s = sum(block_durations_s(all_records).values())
    if used_s - budget_s < MIN_OVERRUN_S:
        return None
    starting_s = sum(max((e.setup_s for e in record.evidence), default=0.0) for record in all_records)
    return (
        f"it took {format_duration(used_s)}, {format_duration(used_s - budget_s)} more than the budget of "
        f"{format_duration(budget_s)}; {format_duration(starting_s)} of it went into starting workers"
    )


def block_durations_s(records: Iterable[Record]) -> dict[str, float]:
    """Return how long each block took, in seconds, from its first trial's start to its last one's end."""
    edges: dict[str, list[int]] = defaultdict(list)
    for record in records:
        edges[record.block] += [record.window.start_ns, record.window.end_ns]
    return {block: (max(times) - min(times)) / 1e9 for block, times in edges.items()}
