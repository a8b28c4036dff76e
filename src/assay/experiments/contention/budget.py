"""How the budget becomes durations, and how much of it is spent: pure arithmetic on what is planned and recorded."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.units import format_span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.plan import Subject, Trial
    from assay.core.results import Record

BUDGET_S, QUICK_BUDGET_S = 300.0, 60.0
BLOCKS = 6
"""Blocks that durations are planned for; fewer come out where starting takes longer than usual."""
BLOCKS_OF_A_DURATION = 4
"""Blocks where only the duration of a trial is given."""
QUICK_TUNED_BLOCKS = 2
"""On groups of cores, where starting takes most of a minute: the blocks after these are short, and more of them fit."""
LEAST_BLOCKS = 2
"""Whatever the budget: one block has no interval."""

START_S = {"torch": 4.0, "triton": 6.0, "helion": 8.0, "masked": 4.0, "flash": 4.0}
OTHER_START_S = 0.8
"""Until a worker is ready, as is usual by implementation."""
BESIDE_S = 0.4
"""Of a trial: to look around before and after, to write it down."""

COMPILED = frozenset({"triton", "helion"})
"""Implementations whose configurations are compiled when they are first tried."""

TUNING_SHARE = 0.6
"""Of the time that is left to measure in."""
RETIMING_SHARE = 0.12
"""Of the budget, for timing once more in quiet what the tuner picked."""
WARMING_SHARE = 0.15
"""Of the budget, to compile what is tuned before the first block."""
LEAST_TIMING_S, LEAST_TUNING_S = 0.25, 0.4
OVERRUN_S = 1.0
"""A run that takes so much longer than its budget says so."""
COMFORTABLE_S, COMPILED_S, FEWEST_PLANNED = LEAST_TIMING_S + LEAST_TUNING_S, 1.0, 3
"""Where less than this is left to measure in (the second where kernels are compiled), fewer blocks are planned, but not
fewer than these. Blocks are the draws of the interval, so many short ones decide more than a few long ones."""


@dataclass(frozen=True)
class Durations:
    """How long each worker of a trial is timed, and how long it tunes, in seconds."""

    timing_s: float
    tuning_s: float


@dataclass(frozen=True)
class Cast:
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
        alone_s = max(START_S.get(subject.impl, OTHER_START_S) for subject in self.subjects)
        return alone_s * max(1.0, self.processes / self.cores)


def parted(each_s: float, *, tuned: bool) -> Durations:
    """Return what a trial's time is spent on; however little it is, something is measured."""
    tuning_s = max(LEAST_TUNING_S, TUNING_SHARE * each_s)
    timing_s = each_s - tuning_s if tuned else each_s
    return Durations(max(LEAST_TIMING_S, timing_s), tuning_s)


def durations(casts: Sequence[Cast], *, budget_s: float, blocks: int, cooldown_s: float, tuned: bool) -> Durations:
    """Return how long to time and to tune so that so many blocks of these trials fit the budget, or somewhat fewer."""
    compiled = any(subject.impl in COMPILED for cast in casts for subject in cast.subjects)
    usable_s = budget_s * (1 - (RETIMING_SHARE + WARMING_SHARE * compiled) * tuned)
    beside_s = sum(cast.start_s + BESIDE_S + cooldown_s for cast in casts)
    comfortable_s = COMPILED_S if compiled else COMFORTABLE_S
    turns = sum(cast.in_turn for cast in casts)
    while (usable_s / blocks - beside_s) / turns < comfortable_s and blocks > FEWEST_PLANNED:
        blocks -= 1
    return parted((usable_s / blocks - beside_s) / turns, tuned=tuned)


def trial_s(trial: Trial) -> float:
    """Return how long a trial takes, in seconds, as far as can be foreseen."""
    tuning = [role.tuner.budget_s for role in trial.roles if role.tuner is not None]
    tuning_s = max(tuning, default=0.0) if trial.schedule == "together" else sum(tuning)
    return trial.method.duration_s + tuning_s + BESIDE_S + trial.cooldown_s


def overrun(budget_s: float, records: Iterable[Record]) -> str | None:
    """Return in words by how much a run took longer than its budget, and what starting took; null where it did not."""
    all_records = list(records)
    used_s = sum(spent_s(all_records).values())
    if used_s - budget_s < OVERRUN_S:
        return None
    starting_s = sum(max((e.setup_s for e in record.evidence), default=0.0) for record in all_records)
    return (
        f"it took {format_span(used_s)}, {format_span(used_s - budget_s)} more than the budget of "
        f"{format_span(budget_s)}; {format_span(starting_s)} of it went into starting workers"
    )


def spent_s(records: Iterable[Record]) -> dict[str, float]:
    """Return how long each block took, in seconds, from its first trial's start to its last one's end."""
    edges: dict[str, list[int]] = defaultdict(list)
    for record in records:
        edges[record.block] += [record.window.start_ns, record.window.end_ns]
    return {block: (max(times) - min(times)) / 1e9 for block, times in edges.items()}
