"""What to measure next: blocks until there are as many as asked for or the budget is used, then the picks in quiet."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from assay.core.plan import Done
from assay.experiments.contention.budget import LEAST_BLOCKS, RETIMING_SHARE, spent_s, trial_s
from assay.experiments.contention.cells import layout
from assay.experiments.contention.options import CROWDED
from assay.experiments.contention.plan import block_number, block_of
from assay.experiments.contention.retime import RETIMED, retiming

if TYPE_CHECKING:
    from assay.core.plan import Block
    from assay.experiments.contention.options import ContentionOptions
    from assay.machine.model import Machine
    from assay.store.records import Records


def step(machine: Machine, options: ContentionOptions, records: Records) -> Block | Done:
    """Return the next block; the same records give the same answer."""
    took_s = spent_s(records)
    if RETIMED in took_s:
        return Done(why=f"{len(took_s) - 1} blocks and the picks are measured")
    blocks = {name: s for name, s in took_s.items() if block_number(name) is not None}
    if blocks and not layout(machine, options, records).cells:
        return Done(why="nothing could be measured")
    if another(options, blocks):
        block = block_of(machine, options, 1 + len(blocks))
        return block.model_copy(update={"left_s": left_s(options, block, blocks)})
    last = retiming(machine, options, layout(machine, options, records).choices)
    if last is None:
        return Done(why=f"{len(blocks)} blocks are measured")
    return last.model_copy(update={"left_s": sum(trial_s(trial) for trial in last.trials)})


def another(options: ContentionOptions, blocks: dict[str, float]) -> bool:
    """Return whether one more block is wanted: there are fewer than asked for, or it will fit the budget."""
    done, spent = len(blocks), sum(blocks.values())
    if options.repeat is not None:
        return done < options.repeat
    if done < LEAST_BLOCKS:
        return True
    return spent + next_s(options, blocks) + kept_s(options) <= options.budget_s


def next_s(options: ContentionOptions, blocks: dict[str, float]) -> float:
    """Return how long one more block is going to take: as long as those like it, or without the tuning in them."""
    tuned = [s for name, s in blocks.items() if (block_number(name) or 0) <= (options.tuned_blocks or len(blocks))]
    if options.tuned_blocks is None or len(blocks) < options.tuned_blocks:
        return statistics.median_low(tuned)
    untuned = list(blocks.values())[len(tuned) :]
    in_turn = len(options.devices) if options.started_together else 1
    subjects = sum(map(options.tunes, range(len(options.subjects))))
    tunings = subjects * sum(1 if phase in CROWDED else in_turn for phase in options.phases)
    return statistics.median_low(untuned or [s - tunings * options.tuning_s for s in tuned])


def kept_s(options: ContentionOptions) -> float:
    """Return what of the budget is kept for timing the picks again."""
    return RETIMING_SHARE * options.budget_s if any(map(options.tunes, range(len(options.subjects)))) else 0.0


def left_s(options: ContentionOptions, block: Block, blocks: dict[str, float]) -> float:
    """Return at most how long the run still takes from this block on, as far as can be foreseen."""
    each_s = max([sum(trial_s(trial) for trial in block.trials), *blocks.values()])
    missing_blocks = (options.repeat or LEAST_BLOCKS) - len(blocks)
    least_s = max(1, missing_blocks) * each_s + kept_s(options)
    return least_s if options.repeat is not None else max(least_s, options.budget_s - sum(blocks.values()))
