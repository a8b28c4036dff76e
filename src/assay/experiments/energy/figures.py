"""Every figure of a cell as an estimate: over its processes, and never narrower than the sensor allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Estimate
from assay.experiments.energy.latencies import GAPS, first_tokens, gap_windows, per_request_us
from assay.experiments.energy.measures import measured
from assay.experiments.energy.rows import FIGURES
from assay.experiments.energy.seen import CellSeen
from assay.stats.intervals import mean_interval, median_interval
from assay.stats.metered import scope_of, typical
from assay.stats.quantiles import quantile_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.energy.phases import Place
    from assay.experiments.energy.seen import Draws
    from assay.experiments.energy.stages import Gathered, Seen
    from assay.workloads.generation.params import Phase

ENERGY = {"prefill": "prefill_j_per_token", "decode": "decode_j_per_token", "whole": "j_per_output_token"}
"""The joules of a token in each phase; of a server, those of whole requests."""

RATES: dict[str, Phase] = {
    "decode_tokens_per_s": "decode",
    "prefill_tokens_per_s": "prefill",
    "output_tokens_per_s": "whole",
    "requests_per_s": "whole",
}
"""Figures per second, and the phase they are of."""

Told = Estimate | str
"""An estimate, or why there is none."""
Ends = tuple[float, float] | None


def cell_seen(place_of: Sequence[Place], gathered: Gathered, *, carbon_g_per_kwh: float | None = None) -> CellSeen:
    """Return all that was seen of the cell of some places, one for each of its phases."""
    cell = next(cell_phase.cell for cell_phase in place_of if cell_phase.cell is not None)
    windows = {cell_phase.phase: tuple(s for s in gathered.seen if s.place == cell_phase) for cell_phase in place_of}
    processes = {window.process for of_phase in windows.values() for window in of_phase}
    idle = {s.process: s for s in gathered.seen if s.place.cell is None and s.process in processes}
    why_not = {
        **{missed.place.phase: missed.reason for missed in gathered.missed if missed.place.cell is None},
        **{missed.place.phase: missed.reason for missed in gathered.missed if missed.place.cell == cell},
    }
    failed = next((record.reason for record in gathered.records if record.status != "ok" and record.reason), None)
    phase_reasons = {cell_phase.phase: why_not.get(cell_phase.phase) or failed for cell_phase in place_of}
    reasons = {**why_not, **{phase: why for phase, why in phase_reasons.items() if why is not None}}
    return CellSeen(cell, windows, idle, reasons, carbon_g_per_kwh)


def figures_of(seen: CellSeen) -> dict[str, Told]:
    """Return every figure of a cell, or why it is not told."""
    return {name: told(seen, name) for name in FIGURES}


def told(seen: CellSeen, name: str) -> Told:
    """Return one figure of a cell, or why it is not told."""
    draws = measured(seen, name)
    return draws if isinstance(draws, str) else over_processes(draws, FIGURES[name][0], _within(seen, name))


def over_processes(draws: Draws, unit: str, within: tuple[Ends, int] = (None, 0)) -> Told:
    """Return what one or more processes say; of one alone, with the interval ``within`` it where its draw has none."""
    if isinstance(draws, str):
        return draws
    summary = typical(draws)
    low, high, how = summary.low, summary.high, summary.method
    ends, n = within
    if len(draws) == 1 and low is None and ends is not None:
        low, high, how = *ends, "one process, over its calls"
    return Estimate(
        value=summary.value,
        low=low,
        high=high,
        unit=unit,
        scope=scope_of(len(draws)),
        method=how,
        n=max(n, len(draws)),
    )


def _within(seen: CellSeen, name: str) -> tuple[Ends, int]:
    """Return the interval of a time within its first process, and how many samples there are in all."""
    if name == "ttft_ms":
        windows, quantity = first_tokens(seen), "first_token_us"
        ends = median_interval(windows[0].samples(quantity)) if windows else None
    elif name in GAPS:
        windows, quantity = gap_windows(seen), "gap_us"
        ends = quantile_interval(windows[0].samples(quantity), GAPS[name]) if windows else None
    elif name == "tpot_ms":
        windows, quantity = gap_windows(seen), "gap_us"
        ends = _tpot_ends(windows[0]) if windows else None
    elif name in RATES:
        of_phase = seen.of(RATES[name])
        return (None, 0) if isinstance(of_phase, str) else (None, sum(window.stage.calls for window in of_phase))
    else:
        return None, 0
    scaled = None if ends is None else (ends[0] / 1e3, ends[1] / 1e3)
    return scaled, sum(len(window.samples(quantity)) for window in windows)


def _tpot_ends(window: Seen) -> Ends:
    requests = per_request_us(window)
    return median_interval(requests) if len(requests) > 1 else mean_interval(window.samples("gap_us"))
