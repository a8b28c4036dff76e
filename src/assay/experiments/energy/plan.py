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
from functools import partial
from typing import TYPE_CHECKING

from assay.core.format import format_count
from assay.core.results import Missing
from assay.core.values import Block, Done, Role, Staged, Subject, Trial
from assay.experiments.energy.estimates import SERVER, CellObservations, collect_observations, estimate_figure
from assay.experiments.energy.result import EnergyCell
from assay.workloads.generation.params import Generation

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from assay.core.results import Record
    from assay.experiments.energy.config import EnergyConfig
    from assay.experiments.energy.estimates import EnergyObservations
    from assay.experiments.energy.options import EnergyOptions
    from assay.store.records import Records
    from assay.workloads.generation.params import Phase


WORKLOAD = "generate"
MODES = ("eager", "graphs")
"""In the order they are measured: what needs no compiling first."""
MODEL_PHASES: tuple[Phase, ...] = ("prefill", "decode", "whole")
ENERGY_FIGURES = {"prefill": "prefill_j_per_token", "decode": "decode_j_per_token"}
"""The joules of a token in each phase; of all others, those of whole requests."""


@dataclass(frozen=True)
class CellPhase:
    """A phase of a cell; without a cell it is the idle one, of the whole process."""

    cell: EnergyCell | None
    phase: Phase

    @property
    def name(self) -> str:
        """The display name."""
        return "idle" if self.cell is None else f"{self.phase} of {self.cell.name}"


IDLE_PHASE = CellPhase(None, "idle")


def list_cells(config: EnergyConfig) -> tuple[EnergyCell, ...]:
    """Return the cells in the order they are measured: what needs most memory comes last in each mode."""
    scenario = config.scenario
    sizes = [(i, o) for i in sorted(scenario.input_tokens) for o in sorted(scenario.output_tokens)]
    if config.backend.type == "openai":
        return tuple(
            EnergyCell(mode=SERVER, batch=1, concurrency=concurrency, input_tokens=i, output_tokens=o)
            for concurrency in sorted(scenario.concurrency)
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
    """Return the phases of a cell: one output token is made when the prompt is read, and nothing is decoded."""
    if cell.mode == SERVER:
        return ("served",)
    return MODEL_PHASES if cell.output_tokens > 1 else ("prefill", "whole")


def list_cell_phases(config: EnergyConfig) -> tuple[CellPhase, ...]:
    """Return everything that one process measures, in order."""
    return (IDLE_PHASE, *(CellPhase(cell, phase) for cell in list_cells(config) for phase in list_phases(cell)))


def build_generation(options: EnergyOptions, cell: EnergyCell, phase: Phase) -> Generation:
    """Return the parameters of a worker's workload; lists and maps are written as JSON."""
    backend, scenario = options.config.backend, options.config.scenario
    to_json = partial(json.dumps, sort_keys=True, ensure_ascii=False)
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
        generate_kwargs=to_json(scenario.generate_kwargs),
        reasoning=to_json(scenario.reasoning_settings),
        revision=backend.revision or "",
        trust_remote_code=backend.trust_remote_code,
        torch_dtype=backend.torch_dtype,
        attn_implementation=backend.attn_implementation or "",
        device_map=backend.device_map if isinstance(backend.device_map, str) else to_json(backend.device_map),
        max_memory=to_json({str(k): most for k, most in backend.max_memory.items()}) if backend.max_memory else "",
        device_ids=to_json([int(gpu.removeprefix("cuda:")) for gpu in options.gpus]) if options.on_gpu else "",
        tp_plan=backend.tp_plan or "",
        endpoint=backend.endpoint or "",
        api_key_env=backend.api_key_env or "",
        request_timeout_s=backend.request_timeout_s,
        concurrency=cell.concurrency,
        warmup=scenario.warmup,
    )


ROLE = "model"
ROUND_FACTORS = (1, 2, 4)
"""How many times as long each round measures."""

STARTUP_S = 60.0
"""Maximum time until a process has imported its libraries and loaded a model."""
SETUP_S, COMPILE_S = 10.0, 120.0
"""Maximum time until a phase can be called; the second where its layers are compiled first."""
TOKEN_S = 0.15
"""Maximum time per token: an eager loop waits for the host in every layer."""
PREFILL_S = 3.0
TRIAL_OVERHEAD_S = 2.0
"""Of a trial: checks before and after, and writing it down."""
SLOWDOWN_MARGIN = 1.5
"""A process is assumed to take at most this many times as long as those before."""
MIN_MEASURE_S = 5.0
"""A process measures at least this long, however small the budget."""


@dataclass(frozen=True)
class PlannedProcess:
    """A block of one trial in one process: its round from 0, its number in the round from 1, its subjects' phases."""

    block: Block
    phases: tuple[CellPhase, ...]
    round: int
    number: int

    @property
    def trial(self) -> Trial:
        """Its only trial."""
        return self.block.trials[0]


def plan_process(
    options: EnergyOptions,
    round_: int,
    number: int,
    phases: tuple[CellPhase, ...],
    why: str,
    *,
    before: Sequence[Record] = (),
) -> PlannedProcess:
    """Return the block of one process, numbered from 1 in its round; rounds are numbered from 0."""
    name = f"process-{number}" if round_ == 0 else f"longer-{round_}-process-{number}"
    left, spent_s = options.restarts - number + 1, elapsed_s(before)
    budget_s = math.inf if options.budget_s is None else max(options.budget_s - spent_s, MIN_MEASURE_S)
    trial = _build_trial(options, name, phases, ROUND_FACTORS[round_] * options.stage_s, budget_s / left)
    left_s = left * _max_process_s(options, round_, phases, before)
    if can_measure_longer(options):
        later = range(round_ + 1, len(ROUND_FACTORS))
        left_s += options.restarts * sum(_max_process_s(options, later_round, phases, before) for later_round in later)
    block = Block(
        name=name,
        why=f"process {number} of {options.restarts}, {why}" if options.restarts > 1 else why,
        trials=(trial,),
        left_s=min(left_s, max(budget_s, STARTUP_S + MIN_MEASURE_S)),
    )
    return PlannedProcess(block, phases, round_, number)


def _max_process_s(options: EnergyOptions, round_: int, phases: Sequence[CellPhase], before: Sequence[Record]) -> float:
    """Return the maximum duration of a process of a round, from those before where there are any."""
    compiled = [cell_phase for cell_phase in phases if cell_phase.phase == "decode"]
    bound_s = bound_process_s(options, phases, ROUND_FACTORS[round_] * options.stage_s, compiled) + TRIAL_OVERHEAD_S
    return min(bound_s, SLOWDOWN_MARGIN * expect_process_s(options, round_, phases, before)) if before else bound_s


def describe_first_round(options: EnergyOptions) -> str:
    """Say what the first round measures."""
    stages = len(list_cell_phases(options.config))
    return f"{format_count(len(list_cells(options.config)), 'cell')} in {stages} stages of {options.stage_s:g} s"


def can_measure_longer(options: EnergyOptions) -> bool:
    """Return whether there are joules that a longer window would make more precise."""
    return options.longer and options.monitored and bool(options.gpus)


def _build_trial(
    options: EnergyOptions, name: str, phases: Sequence[CellPhase], stage_s: float, budget_s: float
) -> Trial:
    """Return the trial of some phases; its duration is the maximum, without starting."""
    first = list_cells(options.config)[0]
    subjects = tuple(
        Subject(
            workload=WORKLOAD,
            impl=options.config.backend.type,
            params=build_generation(options, cell_phase.cell or first, cell_phase.phase).as_params(),
        )
        for cell_phase in phases
    )
    role = Role(
        name=ROLE,
        subjects=subjects,
        ranks=options.ranks,
        devices=options.devices,
        metered=options.metered,
        isolation=options.isolation,
    )
    max_s = bound_process_s(options, phases, stage_s, phases) - STARTUP_S
    return Trial(
        block=name,
        roles=(role,),
        mode=Staged(
            duration_s=min(max_s, max(MIN_MEASURE_S, budget_s)),
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
    options: EnergyOptions, phases: Sequence[CellPhase], stage_s: float, compiled: Collection[CellPhase]
) -> float:
    """Return the maximum duration of one process, in s; ``compiled`` are phases that may have to compile first.

    A stage is set up, warmed up, and called until its time is up.
    """
    total_s = STARTUP_S
    for cell_phase in phases:
        if cell_phase.cell is None:
            total_s += stage_s + SETUP_S
            continue
        compiles = cell_phase in compiled and cell_phase.cell.mode == "graphs" and options.config.scenario.compile
        call_s = PREFILL_S if cell_phase.phase == "prefill" else PREFILL_S + TOKEN_S * cell_phase.cell.output_tokens
        warm_s = options.config.scenario.warmup * call_s
        setup_s = COMPILE_S if compiles else SETUP_S
        total_s += setup_s + warm_s + max(stage_s, options.stage_calls * call_s) + call_s
    return total_s


def elapsed_s(records: Sequence[Record]) -> float:
    """Return the duration of trials, in seconds."""
    return sum(record.window.end_ns - record.window.start_ns for record in records) / 1e9


def expect_process_s(
    options: EnergyOptions, round_: int, phases: Sequence[CellPhase], before: Sequence[Record]
) -> float:
    """Return the expected duration of one process of a round, in s, from that of those before."""
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
    """The progress of a run: what was measured, each record with the phases of its subjects, and what comes next."""

    measured: tuple[tuple[PlannedProcess, Record], ...]
    observations: EnergyObservations
    next_step: Block | Done


def replay_run(options: EnergyOptions, records: Records) -> EnergyProgress:
    """Go through the blocks of a run from the first on, each decided as it was then, up to what comes next."""
    by_trial = {record.trial: record for record in records}
    measured: list[tuple[PlannedProcess, Record]] = []
    while True:
        observations = collect_observations([(process.phases, record) for process, record in measured], records)
        planned = _decide_next(options, measured[-1][0] if measured else None, observations)
        if isinstance(planned, Done):
            return EnergyProgress(tuple(measured), observations, planned)
        record = by_trial.get(planned.trial.id)
        if record is None:
            return EnergyProgress(tuple(measured), observations, planned.block)
        measured.append((planned, record))


def _decide_next(
    options: EnergyOptions, last: PlannedProcess | None, observations: EnergyObservations
) -> PlannedProcess | Done:
    before = observations.records
    if last is None:
        return plan_process(options, 0, 1, list_cell_phases(options.config), describe_first_round(options))
    if before[-1].status != "ok":
        return Done(why=f"nothing more can be measured: {before[-1].reason}")
    if last.number < options.restarts:
        if _exceeds_budget(options, last.round, last.phases, before, processes=1):
            return Done(why=f"the budget of {options.budget_s:g} s leaves no room for process {last.number + 1}")
        why = f"{ROUND_FACTORS[last.round]} times as long" if last.round else describe_first_round(options)
        return plan_process(options, last.round, last.number + 1, last.phases, why, before=before)
    if not can_measure_longer(options):
        return Done(why="every stage was measured")
    return _decide_longer_round(options, last.round + 1, observations)


def _decide_longer_round(
    options: EnergyOptions, round_: int, observations: EnergyObservations
) -> PlannedProcess | Done:
    """Return the first process of the round that measures some phases for longer, or why there is none."""
    imprecise = tuple(
        CellPhase(cell, phase)
        for cell in list_cells(options.config)
        for phase in list_phases(cell)
        if _needs_longer(options, observe_cell(options, observations, cell), phase)
    )
    precision = f"±{100 * options.config.scenario.precision:.3g} %"
    if not imprecise:
        return Done(why=f"the joules of every token are known to {precision}, or a longer window would not help")
    names = format_count(len(imprecise), "phase")
    if round_ >= len(ROUND_FACTORS):
        return Done(why=f"{names} measured {ROUND_FACTORS[-1]} times as long are not known to {precision} yet")
    phases = (IDLE_PHASE, *imprecise)
    if _exceeds_budget(options, round_, phases, observations.records, processes=options.restarts):
        return Done(why=f"the budget of {options.budget_s:g} s leaves no room to measure {names} for longer")
    why = f"{names} whose joules are not known to {precision}, {ROUND_FACTORS[round_]} times as long"
    return plan_process(options, round_, 1, phases, why, before=observations.records)


def _exceeds_budget(
    options: EnergyOptions, round_: int, phases: Sequence[CellPhase], before: Sequence[Record], *, processes: int
) -> bool:
    """Return whether this many more processes would exceed the budget."""
    if options.budget_s is None:
        return False
    return elapsed_s(before) + processes * expect_process_s(options, round_, phases, before) > options.budget_s


def observe_cell(options: EnergyOptions, observations: EnergyObservations, cell: EnergyCell) -> CellObservations:
    """Return all that was observed of a cell."""
    phases = list_phases(cell)
    windows = {
        phase: tuple(window for window in observations.windows if window.cell_phase == CellPhase(cell, phase))
        for phase in phases
    }
    processes = {window.process for several in windows.values() for window in several}
    idle = {w.process: w for w in observations.windows if w.cell_phase.cell is None and w.process in processes}
    reasons: dict[Phase, str] = {}
    for owner in (None, cell):
        reasons |= {m.cell_phase.phase: m.reason for m in observations.missed if m.cell_phase.cell == owner}
    failed = next((record.reason for record in observations.records if record.status != "ok" and record.reason), None)
    if failed is not None:
        reasons = {**dict.fromkeys(phases, failed), **{phase: why for phase, why in reasons.items() if why}}
    return CellObservations(cell, windows, idle, reasons, options.config.metrics.carbon_g_per_kwh)


def _needs_longer(options: EnergyOptions, cell: CellObservations, phase: Phase) -> bool:
    """Return whether a window of a phase was too short for the sensor, or its estimate is too wide."""
    windows = cell.windows.get(phase, ())
    if not windows:
        return False
    estimate = estimate_figure(cell, ENERGY_FIGURES.get(phase, "j_per_output_token"))
    if isinstance(estimate, Missing):
        refusals = {window.stage.energy_missing.code for window in windows if window.stage.energy_missing is not None}
        return not refusals.isdisjoint(LONGER_WINDOW_HELPS)
    half = estimate.relative_half_width
    return half is None or half > options.config.scenario.precision


def label_trials(measured: Sequence[tuple[PlannedProcess, Record]]) -> dict[str, str]:
    """Return the label of each trial: the name of its block."""
    return {record.trial: process.block.name.replace("-", " ") for process, record in measured}
