"""The blocks of the experiment: everything in each of some processes, then what is not known well enough, for longer.

process-1, -2, …           every phase of every cell, one after another, in a fresh process
longer-1-process-1, …      phases whose joules are not known well enough, twice as long, in as many fresh processes
longer-2-process-1, …      the same, four times as long

Each process is a block of its own, so that a run that is stopped has lost no more than the one that ran.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.plan import Block, Method, Role, Trial
from assay.experiments.energy.phases import places_of, subjects_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Record
    from assay.experiments.energy.options import EnergyOptions
    from assay.experiments.energy.phases import Place

ROLE = "model"
TIMES = (1, 2, 4)
"""How many times as long each round measures."""

START_S = 60.0
"""Until a process has imported what it needs and loaded a model, at the most."""
IN_PLACE_S, COMPILED_S = 10.0, 120.0
"""Until a phase can be called, at the most; the second where its layers are compiled first."""
TOKEN_S = 0.15
"""A token takes so long at the most, as far as can be foreseen: an eager loop waits for the host in every layer."""
PREFILL_S = 3.0
BESIDE_S = 2.0
"""Of a trial: to look around before and after, to write it down."""
SLOWER = 1.5
"""A process takes so many times as long as those before at the most, as far as it is told of."""
LEAST_S = 5.0
"""However small the budget: a process measures for so long."""


@dataclass(frozen=True)
class Planned:
    """A block of one trial in one process: of which round, the how manieth, and what each of its subjects is."""

    block: Block
    places: tuple[Place, ...]
    round: int
    number: int

    @property
    def trial(self) -> Trial:
        """The one that it has."""
        return self.block.trials[0]


def everything(options: EnergyOptions) -> tuple[Place, ...]:
    """Return what the first round measures."""
    return places_of(options.config)


def process(
    options: EnergyOptions,
    round_: int,
    number: int,
    places: tuple[Place, ...],
    why: str,
    *,
    before: Sequence[Record] = (),
) -> Planned:
    """Return the block of one process: in a round, the first of which is 0, its number, the first of which is 1."""
    name = f"process-{number}" if round_ == 0 else f"longer-{round_}-process-{number}"
    stage_s, last, spent_s = TIMES[round_] * options.stage_s, options.restarts - number, taken_s(before)
    trial = _trial(options, name, places, stage_s, last=last, spent_s=spent_s)
    left_s = (last + 1) * _at_most_s(options, round_, places, before)
    if measures_longer(options):
        later = range(round_ + 1, len(TIMES))
        left_s += options.restarts * sum(_at_most_s(options, later_round, places, before) for later_round in later)
    left_s = min(left_s, max(_rest_s(options, spent_s), START_S + LEAST_S))
    description = f"process {number} of {options.restarts}, {why}" if options.restarts > 1 else why
    block = Block(name=name, why=description, trials=(trial,), left_s=left_s)
    return Planned(block, places, round_, number)


def _at_most_s(options: EnergyOptions, round_: int, places: Sequence[Place], before: Sequence[Record]) -> float:
    """Return what is told of how long a process of a round takes: at most, from those before where there are any."""
    compiled = [cell_phase for cell_phase in places if cell_phase.phase == "decode"]
    bound_s = process_s(options, places, TIMES[round_] * options.stage_s, compiled=compiled) + BESIDE_S
    return min(bound_s, SLOWER * expected_s(options, round_, places, before)) if before else bound_s


def of_everything(options: EnergyOptions) -> str:
    """Say what the first round measures."""
    phases = everything(options)
    cells = len({cell_phase.cell for cell_phase in phases}) - 1
    return f"{cells} cell{'' if cells == 1 else 's'} in {len(phases)} stages of {options.stage_s:g} s"


def measures_longer(options: EnergyOptions) -> bool:
    """Return whether there are joules that a longer window would tell better."""
    return options.longer and options.monitored and bool(options.gpus)


def _rest_s(options: EnergyOptions, spent_s: float) -> float:
    """Return what the budget leaves, in seconds, but always enough to measure something."""
    if options.budget_s is None:
        return math.inf
    return max(options.budget_s - spent_s, LEAST_S)


def _trial(
    options: EnergyOptions, name: str, places: Sequence[Place], stage_s: float, *, last: int, spent_s: float
) -> Trial:
    """Return the trial of some places; its duration is the most that it may take, without starting.

    Of what a budget leaves, ``last`` further processes of the same round have as much.
    """
    most_s = process_s(options, places, stage_s) - START_S
    role = Role(
        name=ROLE,
        subjects=subjects_of(options, places),
        ranks=options.ranks,
        devices=options.devices,
        metered=options.metered,
        isolation=options.isolation,
        in_stages=True,
    )
    return Trial(
        block=name,
        roles=(role,),
        method=Method(
            duration_s=min(most_s, max(LEAST_S, _rest_s(options, spent_s) / (last + 1))),
            warmup_runs=options.config.scenario.warmup,
            stage_s=stage_s,
            stage_calls=options.stage_calls,
            timeout_s=options.timeout_s,
        ),
        strangers=options.strangers,
        placed_with=options.devices,
        cpu_groups=options.cpu_groups,
        retakes=options.retakes,
        seed=options.seed,
    )


def process_s(
    options: EnergyOptions, places: Sequence[Place], stage_s: float, *, compiled: Sequence[Place] | None = None
) -> float:
    """Return at most how long one process takes, in seconds, as far as can be foreseen.

    What decoding has compiled is there for whole answers; any phase of graphs may have to compile, unless it is said
    which.
    """
    return START_S + sum(
        _place_s(options, cell_phase, stage_s, compiles=compiled is None or cell_phase in compiled)
        for cell_phase in places
    )


def _place_s(options: EnergyOptions, place: Place, stage_s: float, *, compiles: bool) -> float:
    """Return at most how long one stage takes: put in place, warmed up, and called until its time is up."""
    if place.cell is None:
        return stage_s + IN_PLACE_S
    compiled = compiles and place.cell.mode == "graphs" and options.config.scenario.compile
    call_s = PREFILL_S if place.phase == "prefill" else PREFILL_S + TOKEN_S * place.cell.output_tokens
    warm_s = options.config.scenario.warmup * call_s
    return (COMPILED_S if compiled else IN_PLACE_S) + warm_s + max(stage_s, options.stage_calls * call_s) + call_s


def taken_s(records: Sequence[Record]) -> float:
    """Return how long trials took, in seconds."""
    return sum(record.window.end_ns - record.window.start_ns for record in records) / 1e9


def expected_s(options: EnergyOptions, round_: int, places: Sequence[Place], before: Sequence[Record]) -> float:
    """Return about how long one process of a round takes, in seconds, from how long those before took."""
    started_s = max((evidence.setup_s for record in before for evidence in record.evidence), default=START_S)
    stages = [stage for record in before for stage in record.stages]
    measured_s = sum(stage.end_ns - stage.start_ns for stage in stages) / 1e9
    beside_s = max(0.0, taken_s(before) - measured_s - len(before) * started_s) / max(1, len(stages))
    usual_s = measured_s / max(1, len(stages))
    each_s = beside_s + max(usual_s, TIMES[round_] * options.stage_s)
    return started_s + len(places) * each_s + BESIDE_S
