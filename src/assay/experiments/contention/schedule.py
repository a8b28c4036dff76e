"""From a budget or a duration to how long each worker is timed and tunes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.contention.budget import (
    BLOCKS,
    BLOCKS_OF_A_DURATION,
    BUDGET_S,
    QUICK_BUDGET_S,
    QUICK_TUNED_BLOCKS,
    durations,
    parted,
)
from assay.experiments.contention.plan import casts_of
from assay.tuners.registry import shortest_search_s

if TYPE_CHECKING:
    from assay.experiments.contention.options import ContentionOptions
    from assay.machine.model import Machine


def scheduled(
    machine: Machine, options: ContentionOptions, *, budget_s: float | None, duration_s: float | None, quick: bool
) -> ContentionOptions:
    """Return the options with a budget, and with the durations that follow from it unless one is given.

    A duration alone asks for a few blocks of trials that long, however long that takes. A tuner that cannot be given a
    budget tunes for as long as its search takes.
    """
    on_cores = all(device.startswith("cpu") for device in options.devices)
    options = options.model_copy(update={"started_together": on_cores and len(options.devices) > 1})
    casts, tuned = casts_of(machine, options), options.tuner is not None
    blocks = options.repeat or BLOCKS
    whole_s = budget_s or (QUICK_BUDGET_S if quick else BUDGET_S)
    repeat = options.repeat
    if duration_s is None:
        trial_durations = durations(casts, budget_s=whole_s, blocks=blocks, cooldown_s=options.cooldown_s, tuned=tuned)
    else:
        trial_durations = parted(duration_s - min(cast.start_s for cast in casts), tuned=tuned)
        repeat = repeat or (None if budget_s is not None else BLOCKS_OF_A_DURATION)
    search_s = shortest_search_s(options.tuner) if options.tuner is not None else 0.0
    updates = {
        "budget_s": whole_s,
        "keeps_to_budget": budget_s is not None or duration_s is None,
        "repeat": repeat,
        "tuned_blocks": QUICK_TUNED_BLOCKS if quick and on_cores and duration_s is None else None,
        "timing_s": trial_durations.timing_s,
        "tuning_s": max(trial_durations.tuning_s, search_s),
        "search_s": search_s,
    }
    return options.model_copy(update=updates)
