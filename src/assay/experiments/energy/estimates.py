"""Every figure of a cell: what each process measured, and the estimate over all processes.

Pure arithmetic on windows. An estimate is never narrower than the sensor allows; where there is none, the reason is
returned.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate
from assay.experiments.energy.observations import (
    PROMPT_TOKENS_UNKNOWN,
    SERVER_NOT_SPLIT,
    CellObservations,
    describe_incomplete_answers,
    describe_length_mismatch,
)
from assay.experiments.energy.result import FIGURES
from assay.stats.intervals import mean_interval, median_interval, min_samples_for_quantile, quantile_interval
from assay.stats.sensor_intervals import ProcessReading, combine_processes, scope_of_processes
from assay.workloads.generation.roofline import PROFILED_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.experiments.energy.observations import DrawsOrReason, EnergyObservations, PhaseWindow
    from assay.experiments.energy.plan import CellPhase
    from assay.stats.intervals import Samples
    from assay.workloads.generation.params import Phase


GAP_QUANTILES = {"gap_p50_ms": 0.5, "gap_p95_ms": 0.95, "gap_p99_ms": 0.99}


def first_token_windows(cell: CellObservations) -> tuple[PhaseWindow, ...]:
    """Return the windows in which first tokens were waited for: of whole requests, else those of the prompt alone."""
    windows = [window for window in cell.whole if len(window.samples("first_token_us"))]
    return tuple(windows) or tuple(
        window for window in cell.windows.get("prefill", ()) if len(window.samples("first_token_us"))
    )


def _ttft(cell: CellObservations) -> DrawsOrReason:
    windows = first_token_windows(cell)
    draws = [ProcessReading(float(np.median(window.samples("first_token_us"))) / 1e3) for window in windows]
    return draws or _missing_reason(cell, "no first token came")


def gap_windows(cell: CellObservations) -> tuple[PhaseWindow, ...]:
    """Return the windows in which tokens followed one another: of whole requests, else those of decoding alone."""
    windows = [window for window in cell.whole if len(window.samples("gap_us"))]
    return tuple(windows) or tuple(window for window in cell.windows.get("decode", ()) if len(window.samples("gap_us")))


def request_gaps_us(window: PhaseWindow) -> Samples:
    """Return the mean gap of each request of a window; of all together where they cannot be told apart.

    Answers of a server come in chunks of several tokens where it likes, so that its client tells the mean itself.
    """
    samples = window.samples("tpot_us")
    if len(samples):
        return samples
    gaps, calls = window.samples("gap_us"), window.stage.calls
    if window.cell_phase.phase != "served" and len(gaps) >= calls and len(gaps) % calls == 0:
        return np.asarray(gaps.reshape(calls, -1).mean(axis=1), dtype=np.float64)
    return np.array([gaps.mean()])


def _tpot(cell: CellObservations) -> DrawsOrReason:
    draws = [ProcessReading(float(np.median(request_gaps_us(window))) / 1e3) for window in gap_windows(cell)]
    return draws or _missing_reason(cell, "no token followed another")


def _gap_quantile(share: float) -> Callable[[CellObservations], DrawsOrReason]:
    def draws(cell: CellObservations) -> DrawsOrReason:
        windows = gap_windows(cell)
        if not windows:
            return _missing_reason(cell, "no token followed another")
        enough = [window for window in windows if len(window.samples("gap_us")) >= min_samples_for_quantile(share)]
        if not enough:
            most = max(len(window.samples("gap_us")) for window in windows)
            return f"{min_samples_for_quantile(share)} gaps of one process are needed, and there are {most} at most"
        return [ProcessReading(float(np.quantile(window.samples("gap_us"), share)) / 1e3) for window in enough]

    return draws


def _missing_reason(cell: CellObservations, otherwise: str) -> str:
    windows = cell.windows_of("whole")
    return windows if isinstance(windows, str) else otherwise


LATENCY_FUNCTIONS: dict[str, Callable[[CellObservations], DrawsOrReason]] = {
    "ttft_ms": _ttft,
    "tpot_ms": _tpot,
    **{name: _gap_quantile(share) for name, share in GAP_QUANTILES.items()},
}
"""How each figure is told of one process."""


if TYPE_CHECKING:
    FigureFunction = Callable[[CellObservations], DrawsOrReason]

J_PER_WH = 3600.0
SERVER_NOT_OBSERVABLE = "a server's kernels and memory are not seen from outside"


def measure_figure(cell: CellObservations, figure: str) -> DrawsOrReason:
    """Return what each process gave of a figure, or why there is none."""
    return FIGURE_FUNCTIONS[figure](cell)


def sensor_share(estimate: Estimate) -> float | None:
    """Return how far a sensor may be off, as a share; null where it does not say."""
    return estimate.relative_half_width


def explain_missing_energy(windows: tuple[PhaseWindow, ...]) -> str:
    """Say why windows have no energy: as the first of them says."""
    return next((w.stage.energy_missing.detail for w in windows if w.stage.energy_missing), "no counter to read")


def _window_energy_figure(
    phase: Phase, counted: tuple[str, ...], value: Callable[[PhaseWindow, float], float | None]
) -> FigureFunction:
    """Return a figure that is made of the energy of each window of a phase, over what is ``counted`` in it."""

    def draws(cell: CellObservations) -> DrawsOrReason:
        windows = cell.windows_of(phase)
        if isinstance(windows, str):
            return windows
        result = [
            window.draw(number, sensor_share(window.stage.energy), *counted)
            if counted
            else ProcessReading(number, sensor_share(window.stage.energy))
            for window in windows
            if window.stage.energy is not None and (number := value(window, window.stage.energy.value)) is not None
        ]
        return result or (
            explain_missing_energy(windows) if not any(window.stage.energy for window in windows) else "no token came"
        )

    return draws


def _energy_per_count(phase: Phase, *names: str, scale: float = 1.0) -> FigureFunction:
    """Return the energy of a phase over what was counted."""

    def value(window: PhaseWindow, joules: float) -> float | None:
        count = window.count(*names)
        return scale * joules / count if count > 0 else None

    return _window_energy_figure(phase, names, value)


def _counts_per_second(phase: Phase, name: str) -> FigureFunction:
    """Return how many of something came in each second of a phase."""

    def draws(cell: CellObservations) -> DrawsOrReason:
        windows = cell.windows_of(phase)
        if isinstance(windows, str):
            return windows
        counted = [window for window in windows if window.count(name) > 0]
        return [window.draw(window.count(name) / window.window_s, None, name) for window in counted] or "no token came"

    return draws


def _complete_requests_only(draws: FigureFunction) -> FigureFunction:
    """Return a figure of whole requests, which is told only where they were what was asked for."""
    return lambda cell: describe_length_mismatch(cell) or describe_incomplete_answers(cell) or draws(cell)


def _energy_per_any_token(cell: CellObservations) -> DrawsOrReason:
    """Return the joules of a token read or made; those read are not always known."""
    if cell.whole and not any(len(window.samples("input_tokens")) for window in cell.whole):
        return PROMPT_TOKENS_UNKNOWN
    return _energy_per_count("whole", "input_tokens", "output_tokens")(cell)


def _carbon_per_requests(cell: CellObservations) -> DrawsOrReason:
    if cell.carbon_g_per_kwh is None:
        return "no carbon intensity was given (metrics.carbon_g_per_kwh)"
    draws = measure_figure(cell, "wh_per_1000_requests")
    if isinstance(draws, str):
        return draws
    return [replace(draw, value=draw.value / 1000 * cell.carbon_g_per_kwh) for draw in draws]


def _idle_power_w(cell: CellObservations) -> DrawsOrReason:
    if not cell.idle:
        return cell.missing_reasons.get("idle", "idling was not measured")
    windows = [window for window in cell.idle.values() if window.stage.energy is not None]
    draws = [
        ProcessReading(_mean_power_w(window), sensor_share(window.stage.energy))
        for window in windows
        if window.stage.energy is not None
    ]
    return draws or explain_missing_energy(tuple(cell.idle.values()))


def _mean_power_w(window: PhaseWindow) -> float:
    return window.stage.energy.value / window.window_s if window.stage.energy is not None else 0.0


def _idle_share(cell: CellObservations) -> DrawsOrReason:
    power, idle = measure_figure(cell, "power_w"), _idle_power_w(cell)
    if isinstance(power, str):
        return power
    if isinstance(idle, str):
        return idle
    usual_w = float(np.mean([draw.value for draw in idle]))
    draws = []
    for window in cell.whole:
        if window.stage.energy is None:
            continue
        own = cell.idle.get(window.process)
        idle_w = _mean_power_w(own) if own is not None and own.stage.energy is not None else usual_w
        draws.append(
            ProcessReading(
                idle_w / _mean_power_w(window), _combine_two(sensor_share(window.stage.energy), idle[0].share)
            )
        )
    return draws


def _combine_two(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else float(np.hypot(one, other))


def _fact_figure(phase: Phase, value: Callable[[PhaseWindow], float | None], why: str) -> FigureFunction:
    """Return a figure that is made of what the worker found out about a phase."""

    def draws(cell: CellObservations) -> DrawsOrReason:
        windows = cell.windows_of(phase)
        if isinstance(windows, str):
            return SERVER_NOT_OBSERVABLE if windows == SERVER_NOT_SPLIT else windows
        result = [ProcessReading(number) for window in windows if (number := value(window)) is not None]
        return result or why

    return draws


def _tokens_per_joule(window: PhaseWindow, joules: float) -> float | None:
    return window.count("output_tokens") / joules or None


def _fact_ratio(window: PhaseWindow, above: str, below: str, times: float = 1.0) -> float | None:
    first, second = window.fact(above), window.fact(below)
    return None if first is None or not second else times * first / second


def measure_busy_share(window: PhaseWindow) -> float | None:
    """Return for how much of a window some kernel ran, of decoding or of reading: kernels' time over that of tokens."""
    busy_us, cell = window.fact("busy_us"), window.cell_phase.cell
    decodes = window.cell_phase.phase == "decode"
    took_us = window.samples("gap_us" if decodes else "first_token_us")
    if busy_us is None or cell is None or not len(took_us):
        return None
    return busy_us / (min(PROFILED_STEPS, cell.output_tokens - 1) if decodes else 1) / float(took_us.mean())


def _bandwidth_share(window: PhaseWindow) -> float | None:
    batch = window.cell_phase.cell.batch if window.cell_phase.cell is not None else 1
    steps_per_s = window.count("output_tokens") / batch / window.window_s
    return _fact_ratio(window, "step_read_bytes", "memory_bytes_per_s", steps_per_s)


def _compute_share(window: PhaseWindow) -> float | None:
    return _fact_ratio(window, "call_flop", "compute_flop_per_s", window.stage.calls / window.window_s)


def _phases_share(cell: CellObservations) -> DrawsOrReason:
    """Return the energy of the phases apart over that of whole requests, process by process."""
    windows = cell.windows_of("whole")
    if isinstance(windows, str):
        return windows
    if cell.is_server:
        return SERVER_NOT_SPLIT
    if not any(window.stage.energy for window in windows):
        return explain_missing_energy(windows)
    draws = []
    for whole in windows:
        parts = [_window_of_process(cell, "prefill", whole), _window_of_process(cell, "decode", whole)]
        requests, made = whole.count("requests"), whole.count("output_tokens")
        energies = [
            window.stage.energy for window in (*parts, whole) if window is not None and window.stage.energy is not None
        ]
        if len(energies) < 3 or not requests or parts[0] is None or parts[1] is None:
            continue
        read_j = energies[0].value / max(1.0, parts[0].count("input_tokens")) * whole.count("input_tokens")
        made_j = energies[1].value / max(1.0, parts[1].count("output_tokens")) * max(0.0, made - requests)
        apart = read_j + made_j
        if not apart:
            continue
        shares = [sensor_share(energy) or 0.0 for energy in energies]
        spreads = [parts[0].spread("input_tokens"), parts[1].spread("output_tokens"), whole.spread("output_tokens")]
        weights = read_j / apart, made_j / apart, 1.0
        ratio, off = apart / energies[2].value, _combine_parts(shares, weights)
        draws.append(ProcessReading(ratio, off, whole.stage.calls, _combine_parts(spreads, weights)))
    return draws or "no process told the energy of both phases and of whole requests"


def _combine_parts(parts: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Return parts of an interval that do not know of each other as one; null where one of them is not known."""
    scaled = [weight * part for part, weight in zip(parts, weights, strict=True) if part is not None]
    return math.hypot(*scaled) if len(scaled) == len(parts) else None


def _window_of_process(cell: CellObservations, phase: Phase, like: PhaseWindow) -> PhaseWindow | None:
    return next((window for window in cell.windows.get(phase, ()) if window.process == like.process), None)


def _host_energy(cell: CellObservations) -> DrawsOrReason:
    windows = cell.windows_of("whole")
    if isinstance(windows, str):
        return windows
    draws = [
        window.draw(energy.value / window.count("output_tokens"), sensor_share(energy), "output_tokens")
        for window in windows
        if (energy := window.host_energy) is not None and window.count("output_tokens") > 0
    ]
    return draws or next((w.stage.host_missing.detail for w in windows if w.stage.host_missing), "no counter to read")


FIGURE_FUNCTIONS: dict[str, FigureFunction] = {
    "decode_j_per_token": _energy_per_count("decode", "output_tokens"),
    "prefill_j_per_token": _energy_per_count("prefill", "input_tokens"),
    "j_per_output_token": _energy_per_count("whole", "output_tokens"),
    "j_per_total_token": _energy_per_any_token,
    "j_per_request": _complete_requests_only(_energy_per_count("whole", "requests")),
    "wh_per_1000_requests": _complete_requests_only(_energy_per_count("whole", "requests", scale=1000 / J_PER_WH)),
    "carbon_g_per_1000_requests": _carbon_per_requests,
    "decode_tokens_per_s": _counts_per_second("decode", "output_tokens"),
    "prefill_tokens_per_s": _counts_per_second("prefill", "input_tokens"),
    "output_tokens_per_s": _counts_per_second("whole", "output_tokens"),
    "requests_per_s": _complete_requests_only(_counts_per_second("whole", "requests")),
    **LATENCY_FUNCTIONS,
    "tokens_per_s_per_w": _window_energy_figure("whole", ("output_tokens",), _tokens_per_joule),
    "power_w": _window_energy_figure("whole", (), lambda window, joules: joules / window.window_s),
    "idle_w": _idle_power_w,
    "idle_share": _idle_share,
    "busy_share": _fact_figure("decode", measure_busy_share, "the kernels of a GPU were not looked at"),
    "bandwidth_share": _fact_figure("decode", _bandwidth_share, "how fast memory is was not found out"),
    "compute_share": _fact_figure("prefill", _compute_share, "how fast arithmetic is was not found out"),
    "phases_share": _phases_share,
    "host_j_per_output_token": _host_energy,
}
"""How each figure is told of one process."""


ENERGY_FIGURES = {"prefill": "prefill_j_per_token", "decode": "decode_j_per_token", "whole": "j_per_output_token"}
"""The joules of a token in each phase; of a server, those of whole requests."""

RATE_PHASES: dict[str, Phase] = {
    "decode_tokens_per_s": "decode",
    "prefill_tokens_per_s": "prefill",
    "output_tokens_per_s": "whole",
    "requests_per_s": "whole",
}
"""Figures per second, and the phase they are of."""

EstimateOrReason = Estimate | str
"""An estimate, or why there is none."""
BoundsOrNone = tuple[float, float] | None


def collect_cell(
    phases: Sequence[CellPhase], observations: EnergyObservations, *, carbon_g_per_kwh: float | None = None
) -> CellObservations:
    """Return all that was seen of the cell of some places, one for each of its phases."""
    cell = next(cell_phase.cell for cell_phase in phases if cell_phase.cell is not None)
    windows = {
        cell_phase.phase: tuple(s for s in observations.windows if s.cell_phase == cell_phase) for cell_phase in phases
    }
    processes = {window.process for of_phase in windows.values() for window in of_phase}
    idle = {s.process: s for s in observations.windows if s.cell_phase.cell is None and s.process in processes}
    why_not = {
        **{missed.cell_phase.phase: missed.reason for missed in observations.missed if missed.cell_phase.cell is None},
        **{missed.cell_phase.phase: missed.reason for missed in observations.missed if missed.cell_phase.cell == cell},
    }
    failed = next((record.reason for record in observations.records if record.status != "ok" and record.reason), None)
    phase_reasons = {cell_phase.phase: why_not.get(cell_phase.phase) or failed for cell_phase in phases}
    reasons = {**why_not, **{phase: why for phase, why in phase_reasons.items() if why is not None}}
    return CellObservations(cell, windows, idle, reasons, carbon_g_per_kwh)


def estimate_figures(cell: CellObservations) -> dict[str, EstimateOrReason]:
    """Return every figure of a cell, or why it is not told."""
    return {name: estimate_figure(cell, name) for name in FIGURES}


def estimate_figure(cell: CellObservations, name: str) -> EstimateOrReason:
    """Return one figure of a cell, or why it is not told."""
    draws = measure_figure(cell, name)
    return (
        draws
        if isinstance(draws, str)
        else estimate_over_processes(draws, FIGURES[name][0], _within_process(cell, name))
    )


def estimate_over_processes(
    draws: DrawsOrReason, unit: str, within: tuple[BoundsOrNone, int] = (None, 0)
) -> EstimateOrReason:
    """Return what one or more processes say; of one alone, with the interval ``within`` it where its draw has none."""
    if isinstance(draws, str):
        return draws
    summary = combine_processes(draws)
    low, high, how = summary.low, summary.high, summary.method
    ends, n = within
    if len(draws) == 1 and low is None and ends is not None:
        low, high, how = *ends, "one process, over its calls"
    return Estimate(
        value=summary.value,
        low=low,
        high=high,
        unit=unit,
        scope=scope_of_processes(len(draws)),
        method=how,
        n=max(n, len(draws)),
    )


def _within_process(cell: CellObservations, name: str) -> tuple[BoundsOrNone, int]:
    """Return the interval of a time within its first process, and how many samples there are in all."""
    if name == "ttft_ms":
        windows, quantity = first_token_windows(cell), "first_token_us"
        ends = median_interval(windows[0].samples(quantity)) if windows else None
    elif name in GAP_QUANTILES:
        windows, quantity = gap_windows(cell), "gap_us"
        ends = quantile_interval(windows[0].samples(quantity), GAP_QUANTILES[name]) if windows else None
    elif name == "tpot_ms":
        windows, quantity = gap_windows(cell), "gap_us"
        ends = _tpot_bounds(windows[0]) if windows else None
    elif name in RATE_PHASES:
        of_phase = cell.windows_of(RATE_PHASES[name])
        return (None, 0) if isinstance(of_phase, str) else (None, sum(window.stage.calls for window in of_phase))
    else:
        return None, 0
    scaled = None if ends is None else (ends[0] / 1e3, ends[1] / 1e3)
    return scaled, sum(len(window.samples(quantity)) for window in windows)


def _tpot_bounds(window: PhaseWindow) -> BoundsOrNone:
    requests = request_gaps_us(window)
    return median_interval(requests) if len(requests) > 1 else mean_interval(window.samples("gap_us"))
