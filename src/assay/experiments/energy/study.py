"""From records to rows: everything known of each cell and of each metered GPU, with notes; what was not measured."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from assay.core.format import format_count, format_significant
from assay.core.results import Estimate, Missing, Note
from assay.experiments.energy.estimates import (
    NO_COUNTER,
    PROMPT_TOKENS_UNKNOWN,
    FigureReadings,
    count_requests,
    describe_incomplete_answers,
    describe_length_mismatch,
    estimate_figures,
    estimate_over_processes,
    measure_busy_share,
)
from assay.experiments.energy.plan import list_cells, observe_cell, replay_run
from assay.experiments.energy.result import EnergyResult, EnergyRow, GpuStats
from assay.experiments.reporting import overall_origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.results import GpuWindowStats
    from assay.core.values import Params, Scalar
    from assay.experiments.energy.estimates import CellObservations, EnergyObservations, PhaseWindow
    from assay.experiments.energy.options import EnergyOptions
    from assay.experiments.energy.plan import CellPhase, EnergyProgress
    from assay.machine.model import Gpu, Machine
    from assay.store.records import Records

    GpuWindows = Sequence[tuple[PhaseWindow, GpuWindowStats]]


COUNT_NAMES = ("input_tokens", "output_tokens", "requests")
ENERGY_DISABLED = "energy was not asked for (metrics.enabled is false)"
RENAMED_FIELDS = frozenset({"type", "model", "device_ids", "enabled", "gpus"})
"""Fields that have another name in a result, or are outside its configuration."""


@dataclass(frozen=True)
class EnergyStudy:
    """All that the records say, computed once for findings, page and files."""

    progress: EnergyProgress
    cells: tuple[CellObservations, ...]
    result: EnergyResult


def build_study(machine: Machine, options: EnergyOptions, records: Records) -> EnergyStudy:
    """Return what the records say; cells are in the order they were measured."""
    progress = replay_run(options, records)
    first = {planned.round: planned for planned, _ in progress.measured if planned.number == 1}
    expected = Counter(cell_phase for planned in first.values() for cell_phase in planned.phases)
    cells = [observe_cell(options, progress.observations, cell) for cell in list_cells(options.config)]
    measured = tuple(cell for cell in cells if cell.all_windows)
    by_device = {f"cuda:{gpu.index}": gpu for gpu in machine.gpus}
    gpus = [by_device[device] for device in options.gpus if device in by_device]
    names = Counter(gpu.name for gpu in gpus)
    facts = [window.facts for cell in measured for window in cell.all_windows if window.facts is not None]
    dtype = next((fact.dtype for fact in facts if fact.dtype), None)
    config = options.config
    result = EnergyResult(
        name=config.name or "energy",
        model=config.backend.model,
        backend=config.backend.type,
        config={**flatten_config(options), "dtype": dtype},
        run=records.run or None,
        gpu=", ".join(f"{count} × {name}" for name, count in names.items()) or None,
        started_at=records[0].window.started_at if len(records) else "",
        rows=tuple(_build_row(options, cell, progress.observations, expected, gpus) for cell in measured),
        skipped={cell.cell.name: cell.explain_missing(*cell.windows) for cell in cells if not cell.all_windows},
        notes=options.notes,
    )
    return EnergyStudy(progress, measured, result)


def _build_row(
    options: EnergyOptions,
    cell: CellObservations,
    observations: EnergyObservations,
    expected: Counter[CellPhase],
    gpus: Sequence[Gpu],
) -> EnergyRow:
    estimates = estimate_figures(cell if options.monitored else _with_energy_disabled(cell))
    figures = {name: value if isinstance(value, Estimate) else None for name, value in estimates.items()}
    windows = cell.all_windows
    records = {window.record.trial: window.record for window in windows}
    placements = (window.facts.placement for window in windows if window.facts and window.facts.placement)
    only_metered = bool(gpus) and not options.on_gpu and not options.is_server
    peaks_w = [window.stage.during.power_sum_max_w for window in cell.whole if window.stage.during is not None]
    return EnergyRow(
        cell=cell.cell,
        figures=figures,
        missing_reasons={name: value.detail for name, value in estimates.items() if isinstance(value, Missing)},
        gpus=collect_gpu_stats(cell, gpus),
        peak_power_w=max((power_w for power_w in peaks_w if power_w is not None), default=None),
        tokens=_count_tokens(cell.whole),
        energy_j=_sum_energy(cell.whole),
        measured_s=sum(window.window_s for window in cell.whole) if cell.whole else None,
        placement=next(placements, None),
        notes=(*collect_cell_notes(cell, figures, observations), *([GPUS_ONLY_METERED] if only_metered else [])),
        partial=_is_partial(options, cell, expected),
        records=tuple(records),
        origin=overall_origin(records.values()),
    )


def _with_energy_disabled(cell: CellObservations) -> CellObservations:
    """Return a cell whose windows have no energy because it was not requested."""
    missing = Missing(code="disabled", detail=ENERGY_DISABLED)

    def disabled(window: PhaseWindow) -> PhaseWindow:
        update = {"energy_missing": missing, "host_missing": missing}
        return replace(window, stage=window.stage.model_copy(update=update))

    windows = {phase: tuple(map(disabled, several)) for phase, several in cell.windows.items()}
    return replace(cell, windows=windows, idle={process: disabled(window) for process, window in cell.idle.items()})


def _count_tokens(windows: Sequence[PhaseWindow]) -> dict[str, int]:
    """Return what was counted in windows; what was not counted is left out."""
    names = [name for name in COUNT_NAMES if any(len(window.samples(name)) for window in windows)]
    return {name: round(sum(window.count(name) for window in windows)) for name in names}


def _sum_energy(windows: Sequence[PhaseWindow]) -> Estimate | None:
    """Return the energy of windows together; null where one of them does not have its own."""
    energies = [window.stage.energy for window in windows if window.stage.energy is not None]
    if not energies or len(energies) < len(windows):
        return None
    value = sum(energy.value for energy in energies)
    off = sum(energy.value * (energy.relative_half_width or 0.0) for energy in energies)
    method = f"sum of {len(energies)} windows, as if the sensor were off in all of them alike"
    update = {"value": value, "low": value - off, "high": value + off, "n": len(energies), "method": method}
    return energies[0].model_copy(update=update)


def _is_partial(options: EnergyOptions, cell: CellObservations, expected: Counter[CellPhase]) -> bool:
    """Return whether a process, phase or GPU is missing or cut short, or requests not as requested or not whole."""
    if describe_length_mismatch(cell) is not None or describe_incomplete_answers(cell) is not None:
        return True
    for cell_phase, times in expected.items():
        if cell_phase.cell == cell.cell and len(cell.windows.get(cell_phase.phase, ())) < times * options.restarts:
            return True
    return any(
        window.record.lost_gpus
        or window.record.status != "ok"
        or (window.facts is not None and window.facts.skipped is not None)
        for window in cell.all_windows
    )


def flatten_config(options: EnergyOptions) -> dict[str, Scalar]:
    """Return the configuration as plain values by name: lists separated by commas, maps as JSON."""
    config = options.config
    values: dict[str, Scalar] = {
        "backend_type": config.backend.type,
        "device_ids": ",".join(gpu.removeprefix("cuda:") for gpu in options.gpus) or None,
        "metrics_enabled": config.metrics.enabled,
    }
    for part in (config.backend, config.scenario, config.metrics):
        for name, value in part.as_json().items():
            if name in RENAMED_FIELDS:
                continue
            if isinstance(value, list):
                values[name] = ",".join(map(str, value))
            elif isinstance(value, dict):
                values[name] = json.dumps(value, sort_keys=True) if value else None
            else:
                values[name] = value
    return {**values, "isolation": options.isolation, "stage_s": options.stage_s, "ranks": options.ranks}


def collect_gpu_stats(cell: CellObservations, gpus: Sequence[Gpu]) -> tuple[GpuStats, ...]:
    """Return the statistics of each GPU while whole requests ran; empty where no monitor was running."""
    watched = [window for window in cell.whole if window.stage.during is not None]
    as_requested = describe_length_mismatch(cell) is None
    return tuple(_collect_one_gpu(gpu, watched, as_requested=as_requested) for gpu in gpus) if watched else ()


def _collect_one_gpu(gpu: Gpu, windows: Sequence[PhaseWindow], *, as_requested: bool) -> GpuStats:
    pairs = [
        (window, gpu_window)
        for window in windows
        if window.stage.during is not None
        for gpu_window in window.stage.during.gpus
        if gpu_window.uuid == gpu.uuid
    ]
    used_mb = _maximum(pairs, "memory_used_mib")
    readings = [
        window.reading(gpu_window.energy.value / requests, gpu_window.energy.relative_half_width, "requests")
        for window, gpu_window in pairs
        if gpu_window.energy is not None and (requests := window.count("requests")) > 0
    ]
    energy = estimate_over_processes(FigureReadings(readings), "J") if readings and as_requested else None
    return GpuStats(
        gpu=gpu.index,
        uuid=gpu.uuid,
        utilization_percent=_time_mean(pairs, "utilisation_percent"),
        utilization_percent_max=_maximum(pairs, "utilisation_max_percent"),
        memory_used_mb=used_mb,
        memory_total_mb=gpu.memory_mib,
        memory_percent=100 * used_mb / gpu.memory_mib if used_mb is not None and gpu.memory_mib else None,
        temperature_c=_time_mean(pairs, "temperature_mean_c"),
        temperature_c_max=_maximum(pairs, "temperature_c"),
        power_draw_w=_time_mean(pairs, "power_w"),
        power_draw_w_max=_maximum(pairs, "power_max_w"),
        energy_j_per_request=energy,
        note=_gpu_note(gpu, pairs, len(windows)),
    )


def _time_mean(pairs: GpuWindows, name: str) -> float | None:
    """Return the mean over time, of the windows that have a value."""
    values = [(window.window_s, value) for window, stats in pairs if (value := getattr(stats, name)) is not None]
    lasted_s = sum(window_s for window_s, _ in values)
    return sum(window_s * value for window_s, value in values) / lasted_s if lasted_s > 0 else None


def _maximum(pairs: GpuWindows, name: str) -> float | None:
    return max((value for _, stats in pairs if (value := getattr(stats, name)) is not None), default=None)


def _gpu_note(gpu: Gpu, pairs: GpuWindows, windows: int) -> str | None:
    """Say in which windows it was not observed, or why its energy is missing."""
    parts = [f"not seen in {windows - len(pairs)} of {windows} windows"] if len(pairs) < windows else []
    without = [stats.energy_missing for _, stats in pairs if stats.energy is None]
    if without:
        reason = NO_COUNTER if without[0] is None else without[0].detail
        parts.append(f"no energy in {len(without)} of {len(pairs)} windows: {reason}")
    samples = sum(stats.samples or 0 for _, stats in pairs)
    with_power = sum(stats.power_samples or 0 for _, stats in pairs if stats.samples)
    if 0 < with_power < samples:
        parts.append(f"{with_power} of {samples} samples had power")
    if pairs and all(stats.power_w is None for _, stats in pairs):
        parts.append(f"GPU {gpu.index} does not say its power")
    return "; ".join(parts) or None


HOST_BOUND = 0.7
"""A GPU that is busy for a smaller share of the time waits for the host."""
CLIENT_BOUND = 0.8
"""A client that needs a larger share of a core to read a server's answers cannot timestamp them well."""
MIN_CALLS, UNSTEADY_RATIO = 4, 1.2
"""A host is unsteady if, of at least this many calls, the longest takes this many times as long as the shortest."""
TRACING_RATIO = 1.08
"""A call that takes this many times as long after the profiler recorded one is still being traced."""
PROMPT_LENGTH_TOLERANCE = 0.1
"""Share by which the length of prompts may differ from the requested one without a note."""
PHASE_SUM_TOLERANCE = 0.05
"""How far the phases' energy over that of whole requests may be from 1 without a note."""
CHUNK_TOKENS_TOLERANCE = 1.02
"""If a chunk has at least this many tokens, a note says so."""
SERVER_STALLED = "server_stalled"
"""The code of the note on streams that were silent for far longer than usual."""
CHUNKS_COUNTED = "the server does not count its tokens (no usage): output tokens are the chunks that came"
GPUS_ONLY_METERED = Note.warning(
    "gpus_only_metered", "the model computes on the CPU: the GPUs are metered, and do not make its tokens"
)


def collect_cell_notes(
    cell: CellObservations, figures: Mapping[str, Estimate | None], observations: EnergyObservations
) -> tuple[Note, ...]:
    """Return the notes on a cell, the most serious first, each once."""
    windows = cell.all_windows
    lost = {gpu.gpu: gpu.reason for window in windows for gpu in window.record.lost_gpus}
    notes = [
        *_cut_short_notes(cell, observations),
        *(Note.warning("lost_gpu", f"GPU {gpu} was lost: {reason}", gpu=gpu) for gpu, reason in lost.items()),
        *_request_notes(cell),
        *_host_notes(cell, figures),
        *_tracing_notes(windows),
        *_phase_sum_notes(figures),
        *(note for window in windows if window.facts is not None for note in window.facts.notes),
    ]
    return tuple({note.message: note for note in reversed(notes)}.values())[::-1]


def _cut_short_notes(cell: CellObservations, observations: EnergyObservations) -> list[Note]:
    """Say which phases are missing, in how many processes, and why."""
    reasons = Counter(
        (missed.cell_phase.phase, missed.reason)
        for missed in observations.missed
        if missed.cell_phase.cell == cell.cell
    )
    notes = []
    for (phase, reason), times in reasons.items():
        where = f"in {times} process{'' if times == 1 else 'es'}"
        message = f"{phase} was cut short or left out {where}: {reason.rstrip('.')}"
        notes.append(Note.warning("phase_cut_short", message, processes=times))
    noted = {reason for _, reason in reasons}
    lost = dict.fromkeys(r.reason for r in observations.records if r.status != "ok" and r.reason)
    return notes + [
        Note.warning("run_cut_short", f"the run was cut short: {reason.rstrip('.')}")
        for reason in lost
        if reason not in noted
    ]


def _request_notes(cell: CellObservations) -> list[Note]:
    """Return notes on requests: failed ones, a server's answers, the client's load, the length of prompts."""
    notes = []
    failed, answered = count_requests(cell, "errors"), count_requests(cell, "requests")
    if failed:
        message = f"{format_count(round(failed), 'request')} failed, beside {answered:.0f} that were answered"
        notes.append(Note.warning("requests_failed", message, failed=failed, answered=answered))
    if (reason := describe_incomplete_answers(cell)) is not None:
        message = f"{reason}: make scenario.window_s longer than an answer takes"
        notes.append(Note.warning("incomplete_answers", message))
    if cell.is_server:
        notes += [*_length_notes(cell, answered), *_stall_notes(cell)]
        notes += [*_count_notes(cell, answered), *_chunk_notes(cell)]
    share = max((window.count("client_cpu_s") / window.window_s for window in cell.whole), default=0.0)
    if share > CLIENT_BOUND:
        took = f"reading the answers took {100 * share:.0f} % of a core, so that times may be the client's"
        notes.append(Note.warning("client_bound", f"client-bound: {took}", core_share=share))
    prompts, tokens = sum(map(_count_prompts, cell.whole)), count_requests(cell, "input_tokens")
    requested = cell.cell.input_tokens
    if prompts and tokens and abs(tokens / prompts / requested - 1) > PROMPT_LENGTH_TOLERANCE:
        message = f"prompts had {format_significant(tokens / prompts, 3)} tokens on average, not {requested}"
        notes.append(Note.warning("prompt_length", message, tokens=tokens / prompts, requested=requested))
    return notes


def _count_prompts(window: PhaseWindow) -> float:
    """Return the number of prompts counted in a window: a server's when their first token came, not at their end."""
    first_tokens = len(window.samples("first_token_us")) if window.cell_phase.phase == "served" else 0
    return float(first_tokens) or window.count("requests")


def _length_notes(cell: CellObservations, answered: float) -> list[Note]:
    """Say how many answers had fewer or more tokens than requested, and what that means for requests."""
    requested, reason = cell.cell.output_tokens, describe_length_mismatch(cell)
    words = {"short": "ended before", "long": "went on beyond"}
    counts = {kind: count for kind in words if (count := count_requests(cell, f"{kind}_requests"))}
    parts = {
        kind: f"{count:.0f} of {answered:.0f} answers {words[kind]} the {requested} tokens asked for"
        for kind, count in counts.items()
    }
    params: Params = {f"{kind}_requests": count for kind, count in counts.items()}
    if reason is None:
        return [
            Note.remark(f"{kind}_answers", part, **{f"{kind}_requests": counts[kind]}) for kind, part in parts.items()
        ]
    message = f"{' and '.join(parts.values())}; figures of requests are left out, as {reason}"
    return [Note.warning("answer_length", message, **params)]


def _stall_notes(cell: CellObservations) -> list[Note]:
    """Say how long streams were silent that were so for far longer than usual."""
    lengths = [float(us) / 1e6 for window in cell.whole for us in window.samples("silence_us")]
    if not lengths:
        return []
    often, longest = "once" if len(lengths) == 1 else f"{len(lengths)} times", f"{max(lengths):.2g} s"
    message = f"the server stalled: {often} a stream was silent for far longer than usual, for up to {longest}"
    return [Note.warning(SERVER_STALLED, message, stalls=len(lengths), longest_s=max(lengths))]


def _count_notes(cell: CellObservations, answered: float) -> list[Note]:
    """Say who counted the tokens of the answers."""
    uncounted = count_requests(cell, "uncounted_requests")
    if not answered:
        return []
    if not uncounted:
        return [Note.remark("server_counted", "tokens are the server's own counts (usage)")]
    params: Params = {"uncounted": uncounted, "answered": answered}
    if uncounted < answered:
        message = f"{uncounted:.0f} of {answered:.0f} answers came without the server's count: there chunks count"
        return [Note.remark("partly_counted", message, **params)]
    per_chunk = next((ratio for window in cell.whole if (ratio := window.fact("tokens_per_chunk")) is not None), 1.0)
    several = "which may have several each" if per_chunk == 1 else f"each for {per_chunk:.3g}, as before the load"
    is_known = any(len(window.samples("input_tokens")) for window in cell.whole)
    prompts = "those of prompts are as it counted them before the load" if is_known else PROMPT_TOKENS_UNKNOWN
    return [Note.remark("chunks_counted", f"{CHUNKS_COUNTED}, {several}; {prompts}", **params)]


def _chunk_notes(cell: CellObservations) -> list[Note]:
    """Say how many tokens came at once, by the server's own count."""
    chunks = sum(len(window.samples(name)) for window in cell.whole for name in ("first_token_us", "gap_us"))
    if count_requests(cell, "uncounted_requests") or not chunks:
        return []
    per_chunk = count_requests(cell, "output_tokens") / chunks
    if 1 / CHUNK_TOKENS_TOLERANCE <= per_chunk <= CHUNK_TOKENS_TOLERANCE:
        return []
    message = (
        f"a chunk has {per_chunk:.3g} tokens on average: it counts for about so many when it comes, an answer is "
        "set right by the server's count at its end, and gaps are between chunks"
    )
    return [Note.remark("several_tokens_a_chunk", message, tokens_per_chunk=per_chunk)]


def _host_notes(cell: CellObservations, figures: Mapping[str, Estimate | None]) -> list[Note]:
    """Say that the GPU waited for the host: while decoding, and while prompts were read, which graphs do not change."""
    notes, busy = [], figures["busy_share"]
    if busy is not None and busy.value < HOST_BOUND:
        waited = f"the GPU waited for the host {100 * (1 - busy.value):.0f} % of the time while decoding"
        graphs = "; mode graphs shows the GPU's" if cell.cell.mode == "eager" else ""
        message = f"host-bound: {waited}, so that this is the loop's speed and not the GPU's{graphs}"
        notes += [Note.warning("host_bound", message, busy_share=busy.value), *_unsteady_notes(cell)]
    shares = [share for window in cell.windows.get("prefill", ()) if (share := measure_busy_share(window)) is not None]
    if shares and median(shares) < HOST_BOUND:
        waited_share = 1 - median(shares)
        waited = f"the GPU waited for it {100 * waited_share:.0f} % of that time"
        message = f"reading prompts is launched by the host, and {waited}"
        notes.append(Note.remark("host_bound_prefill", message, waited_share=waited_share))
    return notes


def _unsteady_notes(cell: CellObservations) -> list[Note]:
    """Say that the host, which a cell waits for, varied in speed, which is why intervals are wide."""
    calls_us = [us for window in cell.windows.get("decode", ()) for us in window.samples("call_us").tolist()]
    if len(calls_us) < MIN_CALLS or max(calls_us) < UNSTEADY_RATIO * min(calls_us):
        return []
    step_ms = [us / 1e3 / max(1, cell.cell.output_tokens - 1) for us in (min(calls_us), max(calls_us))]
    took = f"from call to call a step took {step_ms[0]:.3g} to {step_ms[1]:.3g} ms"
    message = f"the host did not keep its speed: {took}, so that time and joules are known less well than the GPU's own"
    return [Note.remark("unsteady_host", message, low_ms=step_ms[0], high_ms=step_ms[1])]


def _tracing_notes(windows: Sequence[PhaseWindow]) -> list[Note]:
    """Say that calls were slower after the profiler had recorded one than before."""
    facts = [(window.fact("untraced_after_us"), window.fact("untraced_us")) for window in windows]
    ratios = [after_us / before_us for after_us, before_us in facts if after_us is not None and before_us]
    if not ratios or median(ratios) <= TRACING_RATIO:
        return []
    share = median(ratios) - 1
    message = f"after the profiler had recorded a call, the same call took {100 * share:.0f} % longer than before"
    return [Note.remark("still_traced", message, longer_share=share)]


def _phase_sum_notes(figures: Mapping[str, Estimate | None]) -> list[Note]:
    share = figures["phases_share"]
    if share is None or share.low is None or share.high is None:
        return []
    if share.high >= 1 - PHASE_SUM_TOLERANCE and share.low <= 1 + PHASE_SUM_TOLERANCE:
        return []
    message = f"prefill and decode apart take {100 * share.value:.0f} % of the energy of whole requests"
    return [Note.warning("phase_sum", message, share=share.value)]
