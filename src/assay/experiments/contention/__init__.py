"""The experiment behind ``assay contention run``: do concurrent processes change times and the tuner's picks?

Each device alone, all side by side, all side by side in isolation, each alone again; in blocks.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from assay.core.values import Done
from assay.experiments.base import Experiment, Report
from assay.experiments.budget import MIN_BLOCKS, RETIMING_SHARE, block_durations_s, expected_trial_s
from assay.experiments.contention.findings import analyse, build_findings
from assay.experiments.contention.layout import build_layout
from assay.experiments.contention.options import CONCURRENT_PHASES, ContentionOptions
from assay.experiments.contention.plan import RETIMED, block_number, build_block, retiming_block
from assay.experiments.contention.report import build_page, headline
from assay.experiments.reporting import gather_findings

if TYPE_CHECKING:
    from assay.core.values import Block
    from assay.machine.model import Machine
    from assay.store.records import Records


def next_block(machine: Machine, options: ContentionOptions, records: Records) -> Block | Done:
    """Return the next block, then the re-timing of what was picked; the same records give the same answer."""
    took_s = block_durations_s(records)
    if RETIMED in took_s:
        return Done(why=f"{len(took_s) - 1} blocks and the picks are measured")
    blocks = {name: s for name, s in took_s.items() if block_number(name) is not None}
    layout = build_layout(machine, options, records)
    if blocks and not layout.cells:
        return Done(why="nothing could be measured")
    if _needs_another_block(options, blocks):
        block = build_block(machine, options, 1 + len(blocks))
        return block.model_copy(update={"left_s": _max_remaining_s(options, block, blocks)})
    last = retiming_block(machine, options, layout.choices)
    if last is None:
        return Done(why=f"{len(blocks)} blocks are measured")
    return last.model_copy(update={"left_s": sum(expected_trial_s(trial) for trial in last.trials)})


def _needs_another_block(options: ContentionOptions, blocks: dict[str, float]) -> bool:
    """Return whether one more block is wanted: there are fewer than asked for, or it will fit the budget."""
    done, spent_s = len(blocks), sum(blocks.values())
    if options.repeat is not None:
        return done < options.repeat
    if done < MIN_BLOCKS:
        return True
    return spent_s + _expected_block_s(options, blocks) + _retiming_reserve_s(options) <= options.budget_s


def _expected_block_s(options: ContentionOptions, blocks: dict[str, float]) -> float:
    """Return how long one more block is going to take: as long as those like it, or without the tuning in them."""
    tuned = [s for name, s in blocks.items() if (block_number(name) or 0) <= (options.tuned_blocks or len(blocks))]
    if options.tuned_blocks is None or len(blocks) < options.tuned_blocks:
        return statistics.median_low(tuned)
    untuned = list(blocks.values())[len(tuned) :]
    in_turn = len(options.devices) if options.started_together else 1
    subjects = sum(map(options.tunes, range(len(options.subjects))))
    tunings = subjects * sum(1 if phase in CONCURRENT_PHASES else in_turn for phase in options.phases)
    return statistics.median_low(untuned or [s - tunings * options.tuning_s for s in tuned])


def _retiming_reserve_s(options: ContentionOptions) -> float:
    """Return what of the budget is kept for timing the picks again."""
    return RETIMING_SHARE * options.budget_s if any(map(options.tunes, range(len(options.subjects)))) else 0.0


def _max_remaining_s(options: ContentionOptions, block: Block, blocks: dict[str, float]) -> float:
    """Return at most how long the run still takes from this block on, as far as can be foreseen."""
    each_s = max([sum(expected_trial_s(trial) for trial in block.trials), *blocks.values()])
    missing_blocks = (options.repeat or MIN_BLOCKS) - len(blocks)
    least_s = max(1, missing_blocks) * each_s + _retiming_reserve_s(options)
    return least_s if options.repeat is not None else max(least_s, options.budget_s - sum(blocks.values()))


def build_report(machine: Machine, options: ContentionOptions, records: Records) -> Report:
    """Return what contention does to times, spreads and picks, against A/A, and the older tool's files."""
    from assay.compat.contention import build_files

    analysis = analyse(machine, options, records)
    findings = gather_findings(headline(machine, options, analysis), build_findings(options, analysis), records)
    return Report(
        findings,
        build_page(machine, options, analysis, findings, records),
        build_files(machine, options, analysis.layout, findings, records),
    )


EXPERIMENT = Experiment("contention", ContentionOptions, next_block, build_report)
