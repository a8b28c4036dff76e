"""Before anything is measured: whether what is planned will fit the budget, and what will not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.units import format_span
from assay.experiments.contention.budget import BESIDE_S, LEAST_BLOCKS, LEAST_TIMING_S, RETIMING_SHARE, Cast, trial_s
from assay.experiments.contention.plan import block_of

if TYPE_CHECKING:
    from assay.experiments.contention.options import ContentionOptions
    from assay.machine.model import Machine


def will_overrun(machine: Machine, options: ContentionOptions) -> str | None:
    """Return in a sentence by how much the fewest blocks that are measured will overrun the budget; null where not."""
    blocks = options.repeat or LEAST_BLOCKS
    first, later = block_of(machine, options, 1), block_of(machine, options, 2)
    later_s = sum(map(trial_s, later.trials))
    whole_s = sum(map(trial_s, first.trials)) + (blocks - 1) * later_s + retiming_s(machine, options)
    if not options.keeps_to_budget or whole_s <= options.budget_s:
        return None
    many = f"{blocks} block{'' if blocks == 1 else 's'}"
    reason = f"{many} {'were asked for' if options.repeat is not None else 'are the fewest that tell anything'}"
    block_text = f"{len(later.trials)} trials of about {format_span(later_s / len(later.trials))}, starting included"
    excess = f"{format_span(whole_s - options.budget_s)} more than the budget of {format_span(options.budget_s)}"
    return f"This will take about {format_span(whole_s)}, {excess}: {reason}, each of {block_text}."


def retiming_s(machine: Machine, options: ContentionOptions) -> float:
    """Return how long timing the picks again takes, in seconds, as far as can be foreseen."""
    tuned = [subject for index, subject in enumerate(options.subjects) if options.tunes(index)]
    rounds = len(tuned) * len(options.devices)
    if not rounds:
        return 0.0
    beside_s = BESIDE_S + options.cooldown_s
    share_s = RETIMING_SHARE * options.budget_s / rounds - beside_s
    least = [2 * (Cast((subject,), 1, len(machine.cores)).start_s + LEAST_TIMING_S) for subject in tuned]
    return len(options.devices) * sum(max(share_s, least_s) + beside_s for least_s in least)
