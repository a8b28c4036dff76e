"""Plan the blocks of the experiment, and decide what to measure next.

A process measures the phases of all cells one after another, as subjects of one worker:

idle │ eager batch 1: prefill, decode, whole │ eager batch 8: … │ graphs batch 1: … │ graphs batch 8: …

process-1, -2, …           every phase of every cell, one after another, in a fresh process
longer-1-process-1, …      phases whose joules are not precise enough, twice as long, in as many fresh processes
longer-2-process-1, …      the same, four times as long

Each process is its own block, so that a stopped run loses no more than the process that was running. ``replay_run``
goes through the blocks from the first one each time: the same records give the same decisions.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.values import Block, Done, Role, Staged, Subject, Trial
from assay.experiments.energy.estimates import ENERGY_FIGURES, collect_cell, estimate_figure
from assay.experiments.energy.observations import collect_observations
from assay.experiments.energy.result import EnergyCell
from assay.workloads.generation.params import Generation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.results import Record
    from assay.experiments.energy.config import EnergyConfig
    from assay.experiments.energy.observations import CellObservations, EnergyObservations
    from assay.experiments.energy.options import EnergyOptions
    from assay.store.records import Records
    from assay.workloads.generation.params import Phase


WORKLOAD = "generate"
SERVER_MODE = "server"
MODES = ("eager", "graphs")
"""In the order they are measured: what needs no compiling first."""
MODEL_PHASES: tuple[Phase, ...] = ("prefill", "decode", "whole")
ONE_TOKEN_PHASES: tuple[Phase, ...] = ("prefill", "whole")
SERVER_PHASES: tuple[Phase, ...] = ("served",)


@dataclass(frozen=True)
class CellPhase:
    """A phase of a cell; without a cell it is the idle one, of the whole process."""

    cell: EnergyCell | None
    phase: Phase

    @property
    def name(self) -> str:
        """What people call it."""
        return "idle" if self.cell is None else f"{self.phase} of {self.cell.name}"


IDLE_PHASE = CellPhase(None, "idle")


def list_cells(config: EnergyConfig) -> tuple[EnergyCell, ...]:
    """Return the cells in the order they are measured: what needs most memory comes last in each mode."""
    scenario = config.scenario
    sizes = [(i, o) for i in sorted(scenario.input_tokens) for o in sorted(scenario.output_tokens)]
    if config.backend.type == "openai":
        return tuple(
            EnergyCell(mode=SERVER_MODE, batch=1, concurrency=many, input_tokens=i, output_tokens=o)
            for many in sorted(scenario.concurrency)
            for i, o in sizes
        )
    return tuple(
        EnergyCell(mode=mode, batch=batch, input_tokens=i, output_tokens=o)
        for mode in MODES
        if mode in scenario.modes
        for batch in sorted(scenario.batch_sizes)
        for i, o in sizes
    )


def list_phases(cell: EnergyCell) -> tuple[Phase, ...]:
    """Return the phases that a cell has: one output token is made when the prompt is read, and nothing is decoded."""
    if cell.mode == SERVER_MODE:
        return SERVER_PHASES
    return MODEL_PHASES if cell.output_tokens > 1 else ONE_TOKEN_PHASES


def list_cell_phases(config: EnergyConfig) -> tuple[CellPhase, ...]:
    """Return everything that one process measures, in order."""
    return (IDLE_PHASE, *(CellPhase(cell, phase) for cell in list_cells(config) for phase in list_phases(cell)))


def build_subjects(options: EnergyOptions, phases: Iterable[CellPhase]) -> tuple[Subject, ...]:
    """Return places as subjects of a worker."""
    first = list_cells(options.config)[0]
    return tuple(
        Subject(
            workload=WORKLOAD,
            impl=options.config.backend.type,
            params=build_generation(options, cell_phase.cell or first, cell_phase.phase).as_params(),
        )
        for cell_phase in phases
    )


def build_generation(options: EnergyOptions, cell: EnergyCell, phase: Phase) -> Generation:
    """Return what a worker is told; lists and maps are written as JSON."""
    backend, scenario = options.config.backend, options.config.scenario
    return Generation(
        model=backend.model,
        phase=phase,
        mode="graphs" if cell.mode == "graphs" else "eager",
        compile=scenario.compile,
        batch=cell.batch,
        input_tokens=cell.input_tokens,
        output_tokens=cell.output_tokens,
        prompts=scenario.prompts,
        text_column_name=scenario.text_column_name,
        num_samples=scenario.num_samples or 0,
        truncation=scenario.truncation,
        generate_kwargs=_to_json(scenario.generate_kwargs),
        reasoning=_to_json(scenario.reasoning_settings),
        revision=backend.revision or "",
        trust_remote_code=backend.trust_remote_code,
        torch_dtype=backend.torch_dtype,
        attn_implementation=backend.attn_implementation or "",
        device_map=backend.device_map if isinstance(backend.device_map, str) else _to_json(backend.device_map),
        max_memory=_to_json({str(where): most for where, most in backend.max_memory.items()})
        if backend.max_memory
        else "",
        device_ids=_to_json([int(gpu.removeprefix("cuda:")) for gpu in options.gpus]) if options.on_gpu else "",
        tp_plan=backend.tp_plan or "",
        endpoint=backend.endpoint or "",
        api_key_env=backend.api_key_env or "",
        request_timeout_s=backend.request_timeout_s,
        concurrency=cell.concurrency,
        warmup=scenario.warmup,
    )


def _to_json(value: object, empty: str | None = None) -> str:
    if empty is not None and not value:
        return empty
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


ROLE = "model"
ROUND_FACTORS = (1, 2, 4)
"""How many times as long each round measures."""

STARTUP_S = 60.0
"""Until a process has imported what it needs and loaded a model, at the most."""
SETUP_S, COMPILE_S = 10.0, 120.0
"""Until a phase can be called, at the most; the second where its layers are compiled first."""
TOKEN_S = 0.15
"""A token takes so long at the most, as far as can be foreseen: an eager loop waits for the host in every layer."""
PREFILL_S = 3.0
TRIAL_OVERHEAD_S = 2.0
"""Of a trial: to look around before and after, to write it down."""
SLOWDOWN_MARGIN = 1.5
"""A process takes so many times as long as those before at the most, as far as it is told of."""
MIN_MEASURE_S = 5.0
"""However small the budget: a process measures for so long."""


@dataclass(frozen=True)
class PlannedProcess:
    """A block of one trial in one process: of which round, the how manieth, and what each of its subjects is."""

    block: Block
    phases: tuple[CellPhase, ...]
    round: int
    number: int

    @property
    def trial(self) -> Trial:
        """The one that it has."""
        return self.block.trials[0]


def first_round_phases(options: EnergyOptions) -> tuple[CellPhase, ...]:
    """Return what the first round measures."""
    return list_cell_phases(options.config)


def plan_process(
    options: EnergyOptions,
    round_: int,
    number: int,
    phases: tuple[CellPhase, ...],
    why: str,
    *,
    before: Sequence[Record] = (),
) -> PlannedProcess:
    """Return the block of one process: in a round, the first of which is 0, its number, the first of which is 1."""
    name = f"process-{number}" if round_ == 0 else f"longer-{round_}-process-{number}"
    stage_s, last, spent_s = ROUND_FACTORS[round_] * options.stage_s, options.restarts - number, elapsed_s(before)
    trial = _build_trial(options, name, phases, stage_s, last=last, spent_s=spent_s)
    left_s = (last + 1) * _max_process_s(options, round_, phases, before)
    if can_measure_longer(options):
        later = range(round_ + 1, len(ROUND_FACTORS))
        left_s += options.restarts * sum(_max_process_s(options, later_round, phases, before) for later_round in later)
    left_s = min(left_s, max(_budget_left_s(options, spent_s), STARTUP_S + MIN_MEASURE_S))
    description = f"process {number} of {options.restarts}, {why}" if options.restarts > 1 else why
    block = Block(name=name, why=description, trials=(trial,), left_s=left_s)
    return PlannedProcess(block, phases, round_, number)


def _max_process_s(options: EnergyOptions, round_: int, phases: Sequence[CellPhase], before: Sequence[Record]) -> float:
    """Return what is told of how long a process of a round takes: at most, from those before where there are any."""
    compiled = [cell_phase for cell_phase in phases if cell_phase.phase == "decode"]
    bound_s = (
        bound_process_s(options, phases, ROUND_FACTORS[round_] * options.stage_s, compiled=compiled) + TRIAL_OVERHEAD_S
    )
    return min(bound_s, SLOWDOWN_MARGIN * expect_process_s(options, round_, phases, before)) if before else bound_s


def describe_first_round(options: EnergyOptions) -> str:
    """Say what the first round measures."""
    phases = first_round_phases(options)
    cells = len({cell_phase.cell for cell_phase in phases}) - 1
    return f"{cells} cell{'' if cells == 1 else 's'} in {len(phases)} stages of {options.stage_s:g} s"


def can_measure_longer(options: EnergyOptions) -> bool:
    """Return whether there are joules that a longer window would tell better."""
    return options.longer and options.monitored and bool(options.gpus)


def _budget_left_s(options: EnergyOptions, spent_s: float) -> float:
    """Return what the budget leaves, in seconds, but always enough to measure something."""
    if options.budget_s is None:
        return math.inf
    return max(options.budget_s - spent_s, MIN_MEASURE_S)


def _build_trial(
    options: EnergyOptions, name: str, phases: Sequence[CellPhase], stage_s: float, *, last: int, spent_s: float
) -> Trial:
    """Return the trial of some places; its duration is the most that it may take, without starting.

    Of what a budget leaves, ``last`` further processes of the same round have as much.
    """
    most_s = bound_process_s(options, phases, stage_s) - STARTUP_S
    role = Role(
        name=ROLE,
        subjects=build_subjects(options, phases),
        ranks=options.ranks,
        devices=options.devices,
        metered=options.metered,
        isolation=options.isolation,
    )
    return Trial(
        block=name,
        roles=(role,),
        mode=Staged(
            duration_s=min(most_s, max(MIN_MEASURE_S, _budget_left_s(options, spent_s) / (last + 1))),
            warmup_runs=options.config.scenario.warmup,
            stage_s=stage_s,
            min_calls=options.stage_calls,
            timeout_s=options.timeout_s,
        ),
        on_interference=options.on_interference,
        placed_with=options.devices,
        cpu_groups=options.cpu_groups,
        retakes=options.retakes,
        seed=options.seed,
    )


def bound_process_s(
    options: EnergyOptions, phases: Sequence[CellPhase], stage_s: float, *, compiled: Sequence[CellPhase] | None = None
) -> float:
    """Return at most how long one process takes, in seconds, as far as can be foreseen.

    What decoding has compiled is there for whole answers; any phase of graphs may have to compile, unless it is said
    which.
    """
    return STARTUP_S + sum(
        _bound_stage_s(options, cell_phase, stage_s, compiles=compiled is None or cell_phase in compiled)
        for cell_phase in phases
    )


def _bound_stage_s(options: EnergyOptions, cell_phase: CellPhase, stage_s: float, *, compiles: bool) -> float:
    """Return at most how long one stage takes: put in place, warmed up, and called until its time is up."""
    if cell_phase.cell is None:
        return stage_s + SETUP_S
    compiled = compiles and cell_phase.cell.mode == "graphs" and options.config.scenario.compile
    call_s = PREFILL_S if cell_phase.phase == "prefill" else PREFILL_S + TOKEN_S * cell_phase.cell.output_tokens
    warm_s = options.config.scenario.warmup * call_s
    return (COMPILE_S if compiled else SETUP_S) + warm_s + max(stage_s, options.stage_calls * call_s) + call_s


def elapsed_s(records: Sequence[Record]) -> float:
    """Return how long trials took, in seconds."""
    return sum(record.window.end_ns - record.window.start_ns for record in records) / 1e9


def expect_process_s(
    options: EnergyOptions, round_: int, phases: Sequence[CellPhase], before: Sequence[Record]
) -> float:
    """Return about how long one process of a round takes, in seconds, from how long those before took."""
    started_s = max((evidence.setup_s for record in before for evidence in record.evidence), default=STARTUP_S)
    stages = [stage for record in before for stage in record.stages]
    measured_s = sum(stage.end_ns - stage.start_ns for stage in stages) / 1e9
    beside_s = max(0.0, elapsed_s(before) - measured_s - len(before) * started_s) / max(1, len(stages))
    usual_s = measured_s / max(1, len(stages))
    each_s = beside_s + max(usual_s, ROUND_FACTORS[round_] * options.stage_s)
    return started_s + len(phases) * each_s + TRIAL_OVERHEAD_S


LONGER_WINDOW_HELPS = frozenset({"too_few_ticks", "too_wide"})
"""A sensor's refusals where a longer window helps."""


@dataclass(frozen=True)
class EnergyProgress:
    """How far a run has come: what was measured, each record with the places of its subjects, and what comes next."""

    measured: tuple[tuple[PlannedProcess, Record], ...]
    observations: EnergyObservations
    next_step: Block | Done


def replay_run(options: EnergyOptions, records: Records) -> EnergyProgress:
    """Go through the blocks of a run from the first on, each decided as it was then, up to what comes next."""
    by_trial = {record.trial: record for record in records}
    measured: list[tuple[PlannedProcess, Record]] = []
    while True:
        observations = collect_observations([(process.phases, record) for process, record in measured], records)
        planned = _decide_next(options, [process for process, _ in measured], observations)
        if isinstance(planned, Done):
            return EnergyProgress(tuple(measured), observations, planned)
        record = by_trial.get(planned.trial.id)
        if record is None:
            return EnergyProgress(tuple(measured), observations, planned.block)
        measured.append((planned, record))


def _decide_next(
    options: EnergyOptions, planned: Sequence[PlannedProcess], observations: EnergyObservations
) -> PlannedProcess | Done:
    before = observations.records
    if not planned:
        return plan_process(options, 0, 1, first_round_phases(options), describe_first_round(options))
    last = planned[-1]
    if before[-1].status != "ok":
        return Done(why=f"nothing more can be measured: {before[-1].reason}")
    if last.number < options.restarts:
        return _decide_next_process(options, last, before)
    if not can_measure_longer(options):
        return Done(why="every stage was measured")
    return _decide_longer_round(options, last, observations)


def _decide_next_process(
    options: EnergyOptions, last: PlannedProcess, before: Sequence[Record]
) -> PlannedProcess | Done:
    """Return the next process of a round, or that the budget has no room for it."""
    number = last.number + 1
    if _exceeds_budget(options, last.round, last.phases, before, processes=1):
        return Done(why=f"the budget of {options.budget_s:g} s leaves no room for process {number}")
    why = describe_first_round(options) if last.round == 0 else f"{ROUND_FACTORS[last.round]} times as long"
    return plan_process(options, last.round, number, last.phases, why, before=before)


def _decide_longer_round(
    options: EnergyOptions, last: PlannedProcess, observations: EnergyObservations
) -> PlannedProcess | Done:
    """Return the first process of the round that measures some phases for longer, or why there is none."""
    before = observations.records
    wide = find_imprecise_phases(options, observations)
    precision = f"±{100 * options.config.scenario.precision:.3g} %"
    if not wide:
        return Done(why=f"the joules of every token are known to {precision}, or more time would not tell them")
    number = last.round + 1
    names = f"{len(wide)} phase{'' if len(wide) == 1 else 's'}"
    if number >= len(ROUND_FACTORS):
        return Done(why=f"{names} measured {ROUND_FACTORS[-1]} times as long are not known to {precision} yet")
    phases = (IDLE_PHASE, *wide)
    if _exceeds_budget(options, number, phases, before, processes=options.restarts):
        return Done(why=f"the budget of {options.budget_s:g} s leaves no room to measure {names} for longer")
    why = f"{names} whose joules are not known to {precision}, {ROUND_FACTORS[number]} times as long"
    return plan_process(options, number, 1, phases, why, before=before)


def _exceeds_budget(
    options: EnergyOptions, round_: int, phases: Sequence[CellPhase], before: Sequence[Record], *, processes: int
) -> bool:
    """Return whether so many processes more would take longer than the budget allows."""
    if options.budget_s is None:
        return False
    return elapsed_s(before) + processes * expect_process_s(options, round_, phases, before) > options.budget_s


def find_imprecise_phases(options: EnergyOptions, observations: EnergyObservations) -> tuple[CellPhase, ...]:
    """Return the phases whose joules a longer window would tell better, in the order they are measured."""
    phases = []
    for cell in list_cells(options.config):
        cell_observations = observe_cell(options, observations, cell)
        phases += [
            CellPhase(cell, phase) for phase in list_phases(cell) if _needs_longer(options, cell_observations, phase)
        ]
    return tuple(phases)


def observe_cell(options: EnergyOptions, observations: EnergyObservations, cell: EnergyCell) -> CellObservations:
    """Return all that was seen of a cell."""
    phases = [CellPhase(cell, phase) for phase in list_phases(cell)]
    carbon = options.config.metrics.carbon_g_per_kwh
    return collect_cell(phases, observations, carbon_g_per_kwh=carbon)


def _needs_longer(options: EnergyOptions, cell: CellObservations, phase: str) -> bool:
    """Return whether a window of a phase was too short for the sensor, or what is known of it is too wide."""
    windows = [window for name, several in cell.windows.items() if name == phase for window in several]
    if not windows:
        return False
    estimate = estimate_figure(cell, ENERGY_FIGURES.get(phase, ENERGY_FIGURES["whole"]))
    if isinstance(estimate, str):
        return any(
            window.stage.energy_missing is not None and window.stage.energy_missing.code in LONGER_WINDOW_HELPS
            for window in windows
        )
    half = estimate.relative_half_width
    return half is None or half > options.config.scenario.precision


def label_trials(measured: Sequence[tuple[PlannedProcess, Record]]) -> dict[str, str]:
    """Return what each trial is called: the name of its block."""
    return {record.trial: process.block.name.replace("-", " ") for process, record in measured}
