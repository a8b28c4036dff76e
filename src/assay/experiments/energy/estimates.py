"""What was observed of each phase of each cell, and every figure that is estimated from it.

A window is one phase of one cell in one process, with its samples, joules and facts. Each process gives its own reading
of a figure; an estimate is over all processes and never narrower than the sensor allows. Where there is none, the
reason is returned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate, Missing
from assay.experiments.energy.result import FIGURES
from assay.stats.intervals import mean_interval, median_interval, min_samples_for_quantile, quantile_interval
from assay.stats.sensor_intervals import (
    ProcessReading,
    combine_processes,
    mean_spread,
    rate_spread,
    scope_of_processes,
)
from assay.workloads.generation.roofline import PROFILED_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from assay.core.results import Record, Stage, SubjectFacts
    from assay.experiments.energy.plan import CellPhase
    from assay.experiments.energy.result import EnergyCell
    from assay.stats.intervals import Samples
    from assay.store.records import Records
    from assay.workloads.generation.params import Phase

    Bounds = tuple[float, float] | None


NOT_REACHED = "its turn did not come before the time was up"
NO_COUNTER = "no counter to read"
NO_SAMPLES = np.empty(0)
J_PER_WH = 3600.0


@dataclass(frozen=True)
class PhaseWindow:
    """One phase of one cell in one process of a record. ``facts`` are what its worker found out about it."""

    cell_phase: CellPhase
    record: Record
    stage: Stage
    facts: SubjectFacts | None
    series: Mapping[str, Samples] = field(repr=False)

    @property
    def process(self) -> tuple[str, int, int]:
        """The identity of its process."""
        return self.record.trial, self.record.take, self.stage.restart

    @property
    def window_s(self) -> float:
        """From the start of its first call to the end of the last one."""
        return (self.stage.end_ns - self.stage.start_ns) / 1e9

    @property
    def power_w(self) -> float | None:
        """Mean power of its GPUs; null where their energy is not known."""
        return None if self.stage.energy is None else self.stage.energy.value / self.window_s

    def samples(self, name: str) -> Samples:
        """Return what calls reported under a name, in order; empty where they did not."""
        return self.series.get(name, NO_SAMPLES)

    def count(self, *names: str) -> float:
        """Return the sum of what calls counted under some names."""
        return math.fsum(float(self.samples(name).sum()) for name in names)

    def reading(self, value: float, share: float | None, *counted: str) -> ProcessReading:
        """Return a value per count as a reading, with the uncertainty from the sensor (``share``) and from its calls.

        Without anything counted, calls do not matter.
        """
        if not counted:
            return ProcessReading(value, share)
        return ProcessReading(value, share, self.stage.calls, self.spread(*counted))

    def spread(self, *counted: str) -> float | None:
        """Return the uncertainty of a count per time from its calls: half an interval, as a share.

        Of a single call, from how its tokens followed each other. Null where that was not observed either.
        """
        times = self.samples("call_us")
        counts = [samples for name in counted if len(samples := self.samples(name)) == len(times)]
        if not counts:
            return None
        if len(times) == 1:
            return mean_spread(self.samples("gap_us"))
        return rate_spread(np.sum(counts, axis=0), times)

    def fact(self, name: str) -> float | None:
        """Return a number that the worker found out; null where it did not."""
        measured = self.facts.measured if self.facts is not None else None
        value = None if measured is None else measured.get(name)
        return value if value is not None and math.isfinite(value) else None

    @property
    def host_energy(self) -> Estimate | None:
        """Energy of processors and their memory in the window; null where it is not known."""
        parts = [energy for name, energy in self.stage.host_energy.items() if name.startswith("package")]
        if not parts:
            return None
        value = math.fsum(part.value for part in parts)
        off = math.fsum(part.value - part.low for part in parts if part.low is not None)
        return parts[0].model_copy(update={"value": value, "low": value - off, "high": value + off})


@dataclass(frozen=True)
class MissedPhase:
    """A phase that a process did not measure, or not to its end, and why."""

    cell_phase: CellPhase
    reason: str


@dataclass(frozen=True)
class EnergyObservations:
    """All windows, all that was missed, and the records they are of."""

    windows: tuple[PhaseWindow, ...]
    missed: tuple[MissedPhase, ...]
    records: tuple[Record, ...]


def collect_observations(
    measured: Iterable[tuple[tuple[CellPhase, ...], Record]], records: Records
) -> EnergyObservations:
    """Return the observations in records, each given with the phases of its subjects."""
    windows: list[PhaseWindow] = []
    missed: list[MissedPhase] = []
    pairs = list(measured)
    for phases, record in pairs:
        facts = {(e.restart, f.subject): f for e in record.evidence if e.rank == 0 for f in e.subjects}
        by_stage: dict[tuple[int, int], dict[str, Samples]] = {}
        for series in record.series:
            if series.rank == 0:  # where tokens arrive
                by_stage.setdefault((series.restart, series.subject), {})[series.quantity] = records.samples(series)
        for stage in record.stages:
            key = stage.restart, stage.subject
            windows.append(PhaseWindow(phases[stage.subject], record, stage, facts.get(key), by_stage.get(key, {})))
        for (_, subject), subject_facts in facts.items():
            if subject_facts.skipped is not None:
                detail = subject_facts.skipped.detail if subject_facts.is_reached else record.reason or NOT_REACHED
                missed.append(MissedPhase(phases[subject], detail))
    return EnergyObservations(tuple(windows), tuple(missed), tuple(record for _, record in pairs))


class FigureMissing(Exception):
    """There is no such figure."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.missing = Missing(code=code, detail=detail)


SERVER = "server"
SERVER_NOT_SPLIT = "a server is not taken apart"
SERVER_NOT_OBSERVABLE = "a server's kernels and memory are not seen from outside"
PROMPT_TOKENS_UNKNOWN = "how many tokens prompts have is not known"
NO_COMPLETE_ANSWER = "no answer was whole"
LENGTH_TOLERANCE = 0.05
"""If a larger share of answers is shorter or longer than requested, requests are not what the cell says."""


@dataclass(frozen=True)
class CellObservations:
    """All windows of a cell by phase, the idle windows of its processes, and why a phase has none."""

    cell: EnergyCell
    windows: Mapping[Phase, tuple[PhaseWindow, ...]]
    idle: Mapping[tuple[str, int, int], PhaseWindow]
    missing_reasons: Mapping[Phase, str]
    carbon_g_per_kwh: float | None = None

    @property
    def all_windows(self) -> tuple[PhaseWindow, ...]:
        """The windows of all its phases."""
        return tuple(window for several in self.windows.values() for window in several)

    @property
    def is_server(self) -> bool:
        """Whether a server made the tokens."""
        return self.cell.mode == SERVER

    @property
    def whole(self) -> tuple[PhaseWindow, ...]:
        """The windows in which whole requests ran."""
        return (*self.windows.get("whole", ()), *self.windows.get("served", ()))

    def windows_of(self, phase: Phase) -> tuple[PhaseWindow, ...]:
        """Return the windows of a phase.

        Raises:
            FigureMissing: There is none.
        """
        if phase == "whole":
            windows, phase = self.whole, "served" if self.is_server else "whole"
        elif self.is_server:
            raise FigureMissing(SERVER, SERVER_NOT_SPLIT)
        else:
            windows = self.windows.get(phase, ())
        if windows:
            return windows
        if phase == "decode" and self.cell.output_tokens == 1:
            raise FigureMissing(
                "no_decoding", "one output token is made when the prompt is read, and nothing is decoded"
            )
        raise FigureMissing("not_measured", self.explain_missing(phase))

    def explain_missing(self, *phases: Phase) -> str:
        """Return why phases were not measured: the first reason known."""
        reasons = (self.missing_reasons[phase] for phase in phases if phase in self.missing_reasons)
        return next(reasons, "it was not measured")

    def windows_with(self, quantity: str, phase: Phase) -> tuple[PhaseWindow, ...]:
        """Return the windows with samples of a quantity: of whole requests, or else of a phase alone."""
        several = (self.whole, self.windows.get(phase, ()))
        return next(filter(None, (tuple(w for w in part if len(w.samples(quantity))) for part in several)), ())


def describe_length_mismatch(cell: CellObservations) -> str | None:
    """Say that answers had another length than was requested; null where all but a few had it."""
    answered = count_requests(cell, "requests")
    if not answered or count_requests(cell, "short_requests", "long_requests") <= LENGTH_TOLERANCE * answered:
        return None
    mean = (count_requests(cell, "answer_tokens") or count_requests(cell, "output_tokens")) / answered
    return f"answers had {mean:.1f} tokens on average, not {cell.cell.output_tokens}"


def describe_incomplete_answers(cell: CellObservations) -> str | None:
    """Say that windows of a server ended before an answer did; null where some answer ended in each of them."""
    without = [window for window in cell.whole if not window.count("requests")] if cell.is_server else []
    if not without:
        return None
    length = f"{max(window.window_s for window in without):.2g} s"
    if len(without) == len(cell.whole):
        return f"{NO_COMPLETE_ANSWER} within the window of {length}"
    return f"{NO_COMPLETE_ANSWER} within {len(without)} of {len(cell.whole)} windows, of up to {length}"


def count_requests(cell: CellObservations, *names: str) -> float:
    """Return the sum of what was counted under some names while whole requests ran."""
    return sum(window.count(*names) for window in cell.whole)


@dataclass(frozen=True)
class FigureReadings:
    """A figure in each process.

    Attributes:
        within: The interval within the first process, for a figure whose readings have none; null: unknown.
        samples: Number of samples or calls in all processes; 0 where that says nothing.
    """

    readings: list[ProcessReading]
    within: Bounds = None
    samples: int = 0


if TYPE_CHECKING:
    FigureFunction = Callable[[CellObservations], FigureReadings]


def _latency(
    quantity: str,
    phase: Phase,
    absent: str,
    measure: Callable[[PhaseWindow], float],
    bound: Callable[[PhaseWindow], Bounds],
    *,
    least: int = 1,
) -> FigureFunction:
    """Return a figure in ms from times in µs; a process needs at least ``least`` of them."""

    def figure(cell: CellObservations) -> FigureReadings:
        windows = cell.windows_with(quantity, phase)
        if not windows:
            cell.windows_of("whole")
            raise FigureMissing("no_samples", absent)
        counts = [len(window.samples(quantity)) for window in windows]
        if max(counts) < least:
            detail = f"{least} gaps of one process are needed, and there are {max(counts)} at most"
            raise FigureMissing("too_few_samples", detail)
        enough = [window for window, count in zip(windows, counts, strict=True) if count >= least]
        ends = bound(windows[0])
        within = None if ends is None else (ends[0] / 1e3, ends[1] / 1e3)
        return FigureReadings([ProcessReading(measure(window) / 1e3) for window in enough], within, sum(counts))

    return figure


def _gap_quantile(share: float) -> FigureFunction:
    return _latency(
        "gap_us",
        "decode",
        "no token followed another",
        lambda window: float(np.quantile(window.samples("gap_us"), share)),
        lambda window: quantile_interval(window.samples("gap_us"), share),
        least=min_samples_for_quantile(share),
    )


def request_gaps_us(window: PhaseWindow) -> Samples:
    """Return the mean gap of each request of a window; of all together where they cannot be told apart.

    A server may send several tokens in a chunk, so its client reports the mean itself.
    """
    samples = window.samples("tpot_us")
    if len(samples):
        return samples
    gaps, calls = window.samples("gap_us"), window.stage.calls
    if window.cell_phase.phase != "served" and len(gaps) >= calls and len(gaps) % calls == 0:
        return np.asarray(gaps.reshape(calls, -1).mean(axis=1), dtype=np.float64)
    return np.array([gaps.mean()])


def _tpot_bounds(window: PhaseWindow) -> Bounds:
    requests = request_gaps_us(window)
    return median_interval(requests) if len(requests) > 1 else mean_interval(window.samples("gap_us"))


def _explain_missing_energy(windows: Iterable[PhaseWindow]) -> FigureMissing:
    """Return why windows have no energy: as the first of them says."""
    missing = next((w.stage.energy_missing for w in windows if w.stage.energy_missing), None)
    return FigureMissing("no_sensor", NO_COUNTER) if missing is None else FigureMissing(missing.code, missing.detail)


def _energy_figure(
    phase: Phase, counted: tuple[str, ...], value: Callable[[PhaseWindow, float], float | None]
) -> FigureFunction:
    """Return a figure made of the energy of each window of a phase, in J, and what is ``counted`` in it."""

    def figure(cell: CellObservations) -> FigureReadings:
        windows = cell.windows_of(phase)
        metered = [(window, energy) for window in windows if (energy := window.stage.energy) is not None]
        if not metered:
            raise _explain_missing_energy(windows)
        readings = [
            window.reading(number, energy.relative_half_width, *counted)
            for window, energy in metered
            if (number := value(window, energy.value)) is not None
        ]
        if not readings:
            raise FigureMissing("no_tokens", "no token came")
        return FigureReadings(readings)

    return figure


def _energy_per_count(phase: Phase, *names: str, scale: float = 1.0) -> FigureFunction:
    """Return the energy of a phase per count."""

    def value(window: PhaseWindow, joules: float) -> float | None:
        count = window.count(*names)
        return scale * joules / count if count > 0 else None

    return _energy_figure(phase, names, value)


def _counts_per_second(phase: Phase, name: str) -> FigureFunction:
    """Return a count per second of a phase."""

    def figure(cell: CellObservations) -> FigureReadings:
        windows = cell.windows_of(phase)
        counted = [window for window in windows if window.count(name) > 0]
        if not counted:
            raise FigureMissing("no_tokens", "no token came")
        readings = [window.reading(window.count(name) / window.window_s, None, name) for window in counted]
        return FigureReadings(readings, samples=sum(window.stage.calls for window in windows))

    return figure


def _complete_requests_only(figure: FigureFunction) -> FigureFunction:
    """Return a figure of whole requests, which exists only where they were what was asked for."""

    def checked(cell: CellObservations) -> FigureReadings:
        reason = describe_length_mismatch(cell) or describe_incomplete_answers(cell)
        if reason is not None:
            raise FigureMissing("other_requests", reason)
        return figure(cell)

    return checked


def _energy_per_any_token(cell: CellObservations) -> FigureReadings:
    """Return the joules of a token read or made; the number of those read is not always known."""
    if cell.whole and not any(len(window.samples("input_tokens")) for window in cell.whole):
        raise FigureMissing("prompt_tokens_unknown", PROMPT_TOKENS_UNKNOWN)
    return _energy_per_count("whole", "input_tokens", "output_tokens")(cell)


def _carbon_per_requests(cell: CellObservations) -> FigureReadings:
    carbon = cell.carbon_g_per_kwh
    if carbon is None:
        raise FigureMissing("no_carbon_intensity", "no carbon intensity was given (metrics.carbon_g_per_kwh)")
    readings = FIGURE_FUNCTIONS["wh_per_1000_requests"](cell).readings
    return FigureReadings([replace(reading, value=reading.value / 1000 * carbon) for reading in readings])


def _idle_power_w(cell: CellObservations) -> FigureReadings:
    if not cell.idle:
        raise FigureMissing("not_measured", cell.missing_reasons.get("idle", "idling was not measured"))
    readings = [
        ProcessReading(window.power_w, window.stage.energy.relative_half_width)
        for window in cell.idle.values()
        if window.power_w is not None and window.stage.energy is not None
    ]
    if not readings:
        raise _explain_missing_energy(cell.idle.values())
    return FigureReadings(readings)


def _idle_share(cell: CellObservations) -> FigureReadings:
    power, idle = FIGURE_FUNCTIONS["power_w"](cell).readings, _idle_power_w(cell).readings
    usual_w = float(np.mean([reading.value for reading in idle]))
    metered = [(window, power_w) for window in cell.whole if (power_w := window.power_w) is not None]
    readings = []
    for reading, (window, power_w) in zip(power, metered, strict=True):
        own = cell.idle.get(window.process)
        idle_w = own.power_w if own is not None and own.power_w is not None else usual_w
        share, idle_error = reading.share, idle[0].share
        error = None if share is None or idle_error is None else float(np.hypot(share, idle_error))
        readings.append(ProcessReading(idle_w / power_w, error))
    return FigureReadings(readings)


def _fact_figure(phase: Phase, value: Callable[[PhaseWindow], float | None], why: str) -> FigureFunction:
    """Return a figure made of what the worker found out about a phase."""

    def figure(cell: CellObservations) -> FigureReadings:
        if cell.is_server:
            raise FigureMissing(SERVER, SERVER_NOT_OBSERVABLE)
        readings = [ProcessReading(x) for window in cell.windows_of(phase) if (x := value(window)) is not None]
        if not readings:
            raise FigureMissing("not_measured", why)
        return FigureReadings(readings)

    return figure


def _fact_ratio(window: PhaseWindow, above: str, below: str, times: float) -> float | None:
    first, second = window.fact(above), window.fact(below)
    return None if first is None or not second else times * first / second


def measure_busy_share(window: PhaseWindow) -> float | None:
    """Return for which share of a phase some kernel ran: the time of kernels over that of the tokens they make."""
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


def _phases_share(cell: CellObservations) -> FigureReadings:
    """Return the energy of the phases apart over that of whole requests, process by process."""
    windows = cell.windows_of("whole")
    if cell.is_server:
        raise FigureMissing(SERVER, SERVER_NOT_SPLIT)
    if not any(window.stage.energy for window in windows):
        raise _explain_missing_energy(windows)
    readings = [reading for whole in windows if (reading := _phases_reading(cell, whole)) is not None]
    if not readings:
        detail = "no process has the energy of both phases and of whole requests"
        raise FigureMissing("not_measured", detail)
    return FigureReadings(readings)


def _phases_reading(cell: CellObservations, whole: PhaseWindow) -> ProcessReading | None:
    """Return that of one process; null where one of the three energies is missing. A prompt makes the first token."""
    same = [next((w for w in cell.windows.get(p, ()) if w.process == whole.process), None) for p in SPLIT_PHASES]
    parts = [window for window in (*same, whole) if window is not None]
    energies = [window.stage.energy for window in parts if window.stage.energy is not None]
    requests, made = whole.count("requests"), whole.count("output_tokens")
    if len(energies) < 3 or not requests:
        return None
    prefill, decode, _ = parts
    read_j = energies[0].value / max(1.0, prefill.count("input_tokens")) * whole.count("input_tokens")
    made_j = energies[1].value / max(1.0, decode.count("output_tokens")) * max(0.0, made - requests)
    apart = read_j + made_j
    if not apart:
        return None
    shares = [energy.relative_half_width or 0.0 for energy in energies]
    spreads = [prefill.spread("input_tokens"), decode.spread("output_tokens"), whole.spread("output_tokens")]
    weights = read_j / apart, made_j / apart, 1.0
    return ProcessReading(
        apart / energies[2].value, _hypot(shares, weights), whole.stage.calls, _hypot(spreads, weights)
    )


def _hypot(parts: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Return independent parts of an interval as one; null where one of them is not known."""
    scaled = [weight * part for part, weight in zip(parts, weights, strict=True) if part is not None]
    return math.hypot(*scaled) if len(scaled) == len(parts) else None


def _host_energy(cell: CellObservations) -> FigureReadings:
    windows = cell.windows_of("whole")
    readings = [
        window.reading(energy.value / tokens, energy.relative_half_width, "output_tokens")
        for window in windows
        if (energy := window.host_energy) is not None and (tokens := window.count("output_tokens")) > 0
    ]
    if not readings:
        missing = next((w.stage.host_missing for w in windows if w.stage.host_missing), None)
        raise FigureMissing(*(("no_sensor", NO_COUNTER) if missing is None else (missing.code, missing.detail)))
    return FigureReadings(readings)


SPLIT_PHASES: tuple[Phase, Phase] = ("prefill", "decode")
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
    "ttft_ms": _latency(
        "first_token_us",
        "prefill",
        "no first token came",
        lambda window: float(np.median(window.samples("first_token_us"))),
        lambda window: median_interval(window.samples("first_token_us")),
    ),
    "tpot_ms": _latency(
        "gap_us",
        "decode",
        "no token followed another",
        lambda window: float(np.median(request_gaps_us(window))),
        _tpot_bounds,
    ),
    "gap_p50_ms": _gap_quantile(0.5),
    "gap_p95_ms": _gap_quantile(0.95),
    "gap_p99_ms": _gap_quantile(0.99),
    "tokens_per_s_per_w": _energy_figure(
        "whole", ("output_tokens",), lambda window, joules: window.count("output_tokens") / joules or None
    ),
    "power_w": _energy_figure("whole", (), lambda window, joules: joules / window.window_s),
    "idle_w": _idle_power_w,
    "idle_share": _idle_share,
    "busy_share": _fact_figure("decode", measure_busy_share, "GPU kernels were not profiled"),
    "bandwidth_share": _fact_figure("decode", _bandwidth_share, "peak memory bandwidth was not measured"),
    "compute_share": _fact_figure("prefill", _compute_share, "peak FLOP/s was not measured"),
    "phases_share": _phases_share,
    "host_j_per_output_token": _host_energy,
}
"""How each figure is measured in one process."""


def estimate_figures(cell: CellObservations) -> dict[str, Estimate | Missing]:
    """Return every figure of a cell, or why there is none."""
    return {name: estimate_figure(cell, name) for name in FIGURES}


def estimate_figure(cell: CellObservations, name: str) -> Estimate | Missing:
    """Return one figure of a cell, or why there is none."""
    try:
        figure = FIGURE_FUNCTIONS[name](cell)
    except FigureMissing as error:
        return error.missing
    return estimate_over_processes(figure, FIGURES[name][0])


def estimate_over_processes(figure: FigureReadings, unit: str) -> Estimate:
    """Return the estimate over one or more processes; of one without an interval, with that within it."""
    readings = figure.readings
    summary = combine_processes(readings)
    low, high, method = summary.low, summary.high, summary.method
    if len(readings) == 1 and low is None and figure.within is not None:
        low, high, method = *figure.within, "one process, over its calls"
    return Estimate(
        value=summary.value,
        low=low,
        high=high,
        unit=unit,
        scope=scope_of_processes(len(readings)),
        method=method,
        n=max(figure.samples, len(readings)),
    )
