"""Notes on a cell (host-bound, cut short, unsteady, …), and how numbers of energy are formatted."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from assay.core.format import format_significant
from assay.core.results import Note
from assay.experiments.energy import observations as answers
from assay.experiments.energy.estimates import measure_busy_share
from assay.experiments.energy.result import FIGURES
from assay.experiments.reporting import group_notes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.results import Estimate
    from assay.experiments.energy.estimates import EstimateOrReason
    from assay.experiments.energy.observations import CellObservations, EnergyObservations, PhaseWindow
    from assay.experiments.energy.result import EnergyRow
    from assay.experiments.reporting import NoteGroup

HOST_BOUND = 0.7
"""A GPU that is busy for a smaller share of the time waits for the host."""
CLIENT_BOUND = 0.8
"""A client that takes a larger share of a core to read a server's answers has no time to stamp them."""
MIN_CALLS, UNSTEADY_RATIO = 4, 1.2
"""Of so many calls at least, the longest over the shortest from which on a host is unsteady."""
TRACING_RATIO = 1.08
"""A call that takes so many times as long after the profiler has looked at one is still being traced."""
PROMPT_LENGTH_TOLERANCE = 0.1
"""A share: so far from what was asked for prompts may be before it is said."""
PHASE_SUM_TOLERANCE = 0.05
"""So far from 1 the phases' energy may be over that of whole requests before it is remarked upon."""
MIN_SHOWN, MAX_SHOWN = 1e-4, 9.95
"""Narrower and wider intervals are not written as numbers."""
WHOLE_PERCENT = 0.0995
"""From here on an interval is written in whole percent; down to a tenth of it with one digit more."""
GPUS_ONLY_METERED = Note(
    code="gpus_only_metered",
    message="the model computes on the CPU: the GPUs are metered, and do not make its tokens",
    severity="warning",
)


def _warning(code: str, message: str, **params: float) -> Note:
    """Return a note without which a cell's numbers would be taken for something else."""
    return Note(code=code, message=message, severity="warning", params=dict(params))


def _host_bound_warning(busy: float, mode: str) -> Note:
    """Say that the host was measured, and not the GPU."""
    text = f"host-bound: the GPU waited for the host {100 * (1 - busy):.0f} % of the time while decoding"
    graphs = "; mode graphs shows the GPU's" if mode == "eager" else ""
    message = f"{text}, so that this is the loop's speed and not the GPU's{graphs}"
    return _warning("host_bound", message, busy_share=busy)


def collect_cell_notes(
    cell: CellObservations, figures: Mapping[str, EstimateOrReason], observations: EnergyObservations
) -> tuple[Note, ...]:
    """Return what the user should know of a cell, the gravest first, each once."""
    windows = [window for several in cell.windows.values() for window in several]
    notes = [
        *_cut_short_notes(cell, observations),
        *_lost_gpu_notes(windows),
        *_error_notes(cell),
        *answers.collect_server_notes(cell),
        *_client_bound_notes(cell),
        *_prompt_length_notes(cell),
        *_host_bound_notes(cell, figures),
        *_slow_prefill_notes(cell),
        *_tracing_notes(windows),
        *_phase_sum_notes(figures),
        *(note for window in windows if window.facts is not None for note in window.facts.notes),
    ]
    return tuple({note.message: note for note in reversed(notes)}.values())[::-1]


def _cut_short_notes(cell: CellObservations, observations: EnergyObservations) -> list[Note]:
    """Say which phases are missing, in how many processes, and why."""
    reasons: dict[tuple[str, str], int] = {}
    for missed in observations.missed:
        if missed.cell_phase.cell == cell.cell:
            key = missed.cell_phase.phase, missed.reason
            reasons[key] = reasons.get(key, 0) + 1
    notes = [
        _warning(
            "phase_cut_short",
            f"{phase} was cut short or left out in {times} process{'' if times == 1 else 'es'}: {reason.rstrip('.')}",
            processes=times,
        )
        for (phase, reason), times in reasons.items()
    ]
    noted_reasons = {reason for _, reason in reasons}
    lost = dict.fromkeys(r.reason for r in observations.records if r.status != "ok" and r.reason)
    return notes + [
        _warning("run_cut_short", f"the run was cut short: {reason.rstrip('.')}")
        for reason in lost
        if reason not in noted_reasons
    ]


def _lost_gpu_notes(windows: Sequence[PhaseWindow]) -> list[Note]:
    """Say which metered GPUs were lost while the cell was measured, or before."""
    lost = {gpu.gpu: gpu.reason for window in windows for gpu in window.record.lost_gpus}
    return [_warning("lost_gpu", f"GPU {number} was lost: {reason}", gpu=number) for number, reason in lost.items()]


def _error_notes(cell: CellObservations) -> list[Note]:
    failed = sum(window.count("errors") for window in cell.whole)
    if not failed:
        return []
    answered = sum(window.count("requests") for window in cell.whole)
    message = f"{failed:.0f} request{'' if failed == 1 else 's'} failed, beside {answered:.0f} that were answered"
    return [_warning("requests_failed", message, failed=failed, answered=answered)]


def _client_bound_notes(cell: CellObservations) -> list[Note]:
    """Say that a server's client was too busy reading answers to time them well."""
    share = max((window.count("client_cpu_s") / window.window_s for window in cell.whole), default=0.0)
    if share <= CLIENT_BOUND:
        return []
    message = f"client-bound: reading the answers took {100 * share:.0f} % of a core, so that times may be the client's"
    return [_warning("client_bound", message, core_share=share)]


def _prompt_length_notes(cell: CellObservations) -> list[Note]:
    """Say that prompts were not as long as the cell is called."""
    prompts = sum(_count_prompts(window) for window in cell.whole)
    tokens = sum(window.count("input_tokens") for window in cell.whole)
    requested = cell.cell.input_tokens
    if not prompts or not tokens or abs(tokens / prompts / requested - 1) <= PROMPT_LENGTH_TOLERANCE:
        return []
    message = f"prompts had {format_significant(tokens / prompts, 3)} tokens on average, not {requested}"
    return [_warning("prompt_length", message, tokens=tokens / prompts, requested=requested)]


def _count_prompts(window: PhaseWindow) -> float:
    """Return how many prompts were counted in a window: a server's when their first token came, not at their end."""
    first_tokens = len(window.samples("first_token_us")) if window.cell_phase.phase == "served" else 0
    return float(first_tokens) or window.count("requests")


def _host_bound_notes(cell: CellObservations, figures: Mapping[str, EstimateOrReason]) -> list[Note]:
    busy = figures["busy_share"]
    if isinstance(busy, str) or busy.value >= HOST_BOUND:
        return []
    return [_host_bound_warning(busy.value, cell.cell.mode), *_unsteady_notes(cell)]


def _slow_prefill_notes(cell: CellObservations) -> list[Note]:
    """Say that the GPU waited for the host while prompts were read, which graphs do not change."""
    shares = [share for window in cell.windows.get("prefill", ()) if (share := measure_busy_share(window)) is not None]
    if not shares or median(shares) >= HOST_BOUND:
        return []
    waited = 1 - median(shares)
    message = f"reading prompts is launched by the host, and the GPU waited for it {100 * waited:.0f} % of that time"
    return [Note(code="host_bound_prefill", message=message, params={"waited_share": waited})]


def _unsteady_notes(cell: CellObservations) -> list[Note]:
    """Say that the host, which a cell waits for, did not keep its speed, which is why intervals are wide."""
    calls_us = [us for window in cell.windows.get("decode", ()) for us in window.samples("call_us").tolist()]
    if len(calls_us) < MIN_CALLS or max(calls_us) < UNSTEADY_RATIO * min(calls_us):
        return []
    step_ms = [us / 1e3 / max(1, cell.cell.output_tokens - 1) for us in (min(calls_us), max(calls_us))]
    took = f"from call to call a step took {step_ms[0]:.3g} to {step_ms[1]:.3g} ms"
    message = f"the host did not keep its speed: {took}, so that time and joules are known less well than the GPU's own"
    return [Note(code="unsteady_host", message=message, params={"low_ms": step_ms[0], "high_ms": step_ms[1]})]


def _tracing_notes(windows: Sequence[PhaseWindow]) -> list[Note]:
    """Say that calls were slower after the profiler had looked at one than before."""
    facts = [(window.fact("untraced_after_us"), window.fact("untraced_us")) for window in windows]
    ratios = [after_us / before_us for after_us, before_us in facts if after_us is not None and before_us]
    if not ratios or median(ratios) <= TRACING_RATIO:
        return []
    share = median(ratios) - 1
    message = f"after the profiler had looked at a call, the same call took {100 * share:.0f} % longer than before"
    return [Note(code="still_traced", message=message, params={"longer_share": share})]


def _phase_sum_notes(figures: Mapping[str, EstimateOrReason]) -> list[Note]:
    share = figures["phases_share"]
    if isinstance(share, str) or share.low is None or share.high is None:
        return []
    if share.high >= 1 - PHASE_SUM_TOLERANCE and share.low <= 1 + PHASE_SUM_TOLERANCE:
        return []
    message = f"prefill and decode apart take {100 * share.value:.0f} % of the energy of whole requests"
    return [_warning("phase_sum", message, share=share.value)]


def end_sentence(text: str) -> str:
    """Return words with one mark at their end: a full stop, unless they ask or call."""
    stem = text.rstrip(".")
    return stem if stem.endswith(("?", "!")) else f"{stem}."


def format_half_width(estimate: Estimate) -> str:
    """Write how sure a number is: "±1.2 %", or that it has no interval."""
    half = estimate.relative_half_width
    if half is None:
        return "no interval"
    if half < MIN_SHOWN:
        return f"±<{100 * MIN_SHOWN:g} %"
    if half >= MAX_SHOWN:
        return f"±>{100 * MAX_SHOWN:.0f} %"
    return f"±{100 * half:.{0 if half >= WHOLE_PERCENT else 1 if half >= WHOLE_PERCENT / 10 else 2}f} %"


def format_estimate(estimate: Estimate | None, digits: int = 3) -> str | None:
    """Write a number with its interval for a cell of a table: "1.23 ±1.2 %"; null where it was not measured."""
    if estimate is None:
        return None
    if not estimate.unit:
        return format_share(estimate)
    value = format_significant(estimate.value, digits)
    return value if estimate.relative_half_width is None else f"{value} {format_half_width(estimate)}"


def format_share(estimate: Estimate, *, rest: bool = False) -> str:
    """Write a share, or with ``rest`` what it leaves of the whole, with the ends of its interval: "40 % (38–42)"."""
    value, low, high = (
        None if end is None else 100 * (max(0.0, 1 - end) if rest else end)
        for end in (estimate.value, estimate.low, estimate.high)
    )
    text = f"{value:.3g} %"
    if low is None or high is None:
        return text
    ends = [f"{end:.3g}" for end in sorted((low, high))]
    return text if ends[0] == ends[1] else f"{text} ({ends[0]}–{ends[1]})"


def group_missing_reasons(rows: Sequence[EnergyRow]) -> list[NoteGroup]:
    """Return why figures are missing: each reason with the figures it is of, over all cells."""
    return group_notes(
        (row.missing_reasons[name].rstrip("."), name) for name in FIGURES for row in rows if name in row.missing_reasons
    )
