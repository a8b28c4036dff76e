"""What to measure next: everything once, then what is not known well enough, while the budget lasts.

The walk is made again from the first block each time, decided as it was then: the same records give the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.plan import Done
from assay.experiments.energy import plan
from assay.experiments.energy.figures import ENERGY, cell_seen, told
from assay.experiments.energy.phases import IDLE, Place, cells_of, phases_of
from assay.experiments.energy.stages import gather

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.plan import Block
    from assay.core.results import Record
    from assay.experiments.energy.options import EnergyOptions
    from assay.experiments.energy.plan import Planned
    from assay.experiments.energy.rows import Cell
    from assay.experiments.energy.seen import CellSeen
    from assay.experiments.energy.stages import Gathered
    from assay.store.records import Records

TOO_SHORT = frozenset({"too_few_ticks", "too_wide"})
"""A sensor's refusals where a longer window helps."""


@dataclass(frozen=True)
class Walk:
    """How far a run has come: what was measured, each record with the places of its subjects, and what comes next."""

    taken: tuple[tuple[Planned, Record], ...]
    gathered: Gathered
    next: Block | Done


def walk(options: EnergyOptions, records: Records) -> Walk:
    """Go through the blocks of a run from the first on, each decided as it was then, up to what comes next."""
    by_trial = {record.trial: record for record in records}
    measured: list[tuple[Planned, Record]] = []
    while True:
        observations = gather([(process.places, record) for process, record in measured], records)
        planned = _next(options, [process for process, _ in measured], observations)
        if isinstance(planned, Done):
            return Walk(tuple(measured), observations, planned)
        record = by_trial.get(planned.trial.id)
        if record is None:
            return Walk(tuple(measured), observations, planned.block)
        measured.append((planned, record))


def _next(options: EnergyOptions, planned: Sequence[Planned], gathered: Gathered) -> Planned | Done:
    before = gathered.records
    if not planned:
        return plan.process(options, 0, 1, plan.everything(options), plan.of_everything(options))
    last = planned[-1]
    if before[-1].status != "ok":
        return Done(why=f"nothing more can be measured: {before[-1].reason}")
    if last.number < options.restarts:
        return _next_process(options, last, before)
    if not plan.measures_longer(options):
        return Done(why="every stage was measured")
    return _for_longer(options, last, gathered)


def _next_process(options: EnergyOptions, last: Planned, before: Sequence[Record]) -> Planned | Done:
    """Return the next process of a round, or that the budget has no room for it."""
    number = last.number + 1
    if _is_over(options, last.round, last.places, before, processes=1):
        return Done(why=f"the budget of {options.budget_s:g} s leaves no room for process {number}")
    why = plan.of_everything(options) if last.round == 0 else f"{plan.TIMES[last.round]} times as long"
    return plan.process(options, last.round, number, last.places, why, before=before)


def _for_longer(options: EnergyOptions, last: Planned, gathered: Gathered) -> Planned | Done:
    """Return the first process of the round that measures some phases for longer, or why there is none."""
    before = gathered.records
    wide = unsure(options, gathered)
    precision = f"±{100 * options.config.scenario.precision:.3g} %"
    if not wide:
        return Done(why=f"the joules of every token are known to {precision}, or more time would not tell them")
    number = last.round + 1
    names = f"{len(wide)} phase{'' if len(wide) == 1 else 's'}"
    if number >= len(plan.TIMES):
        return Done(why=f"{names} measured {plan.TIMES[-1]} times as long are not known to {precision} yet")
    phases = (IDLE, *wide)
    if _is_over(options, number, phases, before, processes=options.restarts):
        return Done(why=f"the budget of {options.budget_s:g} s leaves no room to measure {names} for longer")
    why = f"{names} whose joules are not known to {precision}, {plan.TIMES[number]} times as long"
    return plan.process(options, number, 1, phases, why, before=before)


def _is_over(
    options: EnergyOptions, round_: int, places: Sequence[Place], before: Sequence[Record], *, processes: int
) -> bool:
    """Return whether so many processes more would take longer than the budget allows."""
    if options.budget_s is None:
        return False
    return plan.taken_s(before) + processes * plan.expected_s(options, round_, places, before) > options.budget_s


def unsure(options: EnergyOptions, gathered: Gathered) -> tuple[Place, ...]:
    """Return the phases whose joules a longer window would tell better, in the order they are measured."""
    phases = []
    for cell in cells_of(options.config):
        cell_observations = seen_of(options, gathered, cell)
        phases += [Place(cell, phase) for phase in phases_of(cell) if _wants_longer(options, cell_observations, phase)]
    return tuple(phases)


def seen_of(options: EnergyOptions, gathered: Gathered, cell: Cell) -> CellSeen:
    """Return all that was seen of a cell."""
    phases = [Place(cell, phase) for phase in phases_of(cell)]
    carbon = options.config.metrics.carbon_g_per_kwh
    return cell_seen(phases, gathered, carbon_g_per_kwh=carbon)


def _wants_longer(options: EnergyOptions, seen: CellSeen, phase: str) -> bool:
    """Return whether a window of a phase was too short for the sensor, or what is known of it is too wide."""
    windows = [window for name, several in seen.windows.items() if name == phase for window in several]
    if not windows:
        return False
    estimate = told(seen, ENERGY.get(phase, ENERGY["whole"]))
    if isinstance(estimate, str):
        return any(window.stage.energy_refusal in TOO_SHORT for window in windows)
    half = estimate.relative_half_width
    return half is None or half > options.config.scenario.precision


def blocks_of(taken: Sequence[tuple[Planned, Record]]) -> dict[str, str]:
    """Return what each trial is called: the name of its block."""
    return {record.trial: process.block.name.replace("-", " ") for process, record in taken}
