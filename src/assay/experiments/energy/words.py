"""What a cell's user should know, in sentences; and how numbers of energy are written."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from assay.core.units import significant
from assay.experiments.energy import answers
from assay.experiments.energy.measures import busy_share
from assay.experiments.energy.rows import FIGURES
from assay.experiments.notes import grouped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.results import Estimate
    from assay.experiments.energy.figures import Told
    from assay.experiments.energy.rows import EnergyRow
    from assay.experiments.energy.seen import CellSeen
    from assay.experiments.energy.stages import Gathered, Seen
    from assay.experiments.notes import Noted

HOST_BOUND = 0.7
"""A GPU that is busy for a smaller share of the time waits for the host."""
CLIENT_BOUND = 0.8
"""A client that takes a larger share of a core to read a server's answers has no time to stamp them."""
FEW_CALLS, UNSTEADY = 4, 1.2
"""Of so many calls at least, the longest over the shortest from which on a host is unsteady."""
STILL_TRACED = 1.08
"""A call that takes so many times as long after the profiler has looked at one is still being traced."""
OTHER_LENGTH = 0.1
"""A share: so far from what was asked for prompts may be before it is said."""
PHASES_WITHIN = 0.05
"""So far from 1 the phases' energy may be over that of whole requests before it is remarked upon."""
LEAST_SHOWN, MOST_SHOWN = 1e-4, 9.95
"""Narrower and wider intervals are not written as numbers."""
WHOLE_PERCENT = 0.0995
"""From here on an interval is written in whole percent; down to a tenth of it with one digit more."""
ONLY_METERED = "the model computes on the CPU: the GPUs are metered, and do not make its tokens"


def host_bound(busy: float, mode: str) -> str:
    """Say that the host was measured, and not the GPU."""
    text = f"host-bound: the GPU waited for the host {100 * (1 - busy):.0f} % of the time while decoding"
    graphs = "; mode graphs shows the GPU's" if mode == "eager" else ""
    return f"{text}, so that this is the loop's speed and not the GPU's{graphs}"


def notes_of(seen: CellSeen, figures: Mapping[str, Told], gathered: Gathered) -> tuple[str, ...]:
    """Return what the user should know of a cell, the gravest first, each once."""
    windows = [window for several in seen.windows.values() for window in several]
    return tuple(
        dict.fromkeys(
            [
                *_cut_short(seen, gathered),
                *_lost_gpus(windows),
                *_errors(seen),
                *answers.notes(seen),
                *_client_bound(seen),
                *_other_lengths(seen),
                *_host_bound(seen, figures),
                *_reads_slowly(seen),
                *_still_traced(windows),
                *_apart(figures),
                *(note for window in windows if window.facts is not None for note in window.facts.notes),
            ]
        )
    )


def _cut_short(seen: CellSeen, gathered: Gathered) -> list[str]:
    """Say which phases are missing, in how many processes, and why."""
    reasons: dict[tuple[str, str], int] = {}
    for missed in gathered.missed:
        if missed.place.cell == seen.cell:
            key = missed.place.phase, missed.reason
            reasons[key] = reasons.get(key, 0) + 1
    notes = [
        f"{phase} was cut short or left out in {times} process{'' if times == 1 else 'es'}: {reason.rstrip('.')}"
        for (phase, reason), times in reasons.items()
    ]
    noted_reasons = {reason for _, reason in reasons}
    lost = dict.fromkeys(r.reason for r in gathered.records if r.status != "ok" and r.reason)
    return [*notes, *(f"the run was cut short: {reason.rstrip('.')}" for reason in lost if reason not in noted_reasons)]


def _lost_gpus(windows: Sequence[Seen]) -> list[str]:
    """Say which metered GPUs were lost while the cell was measured, or before."""
    lost = {gpu.gpu: gpu.reason for window in windows for gpu in window.record.lost_gpus}
    return [f"GPU {number} was lost: {reason}" for number, reason in lost.items()]


def _errors(seen: CellSeen) -> list[str]:
    failed = sum(window.count("errors") for window in seen.whole)
    if not failed:
        return []
    answered = sum(window.count("requests") for window in seen.whole)
    return [f"{failed:.0f} request{'' if failed == 1 else 's'} failed, beside {answered:.0f} that were answered"]


def _client_bound(seen: CellSeen) -> list[str]:
    """Say that a server's client was too busy reading answers to time them well."""
    share = max((window.count("client_cpu_s") / window.window_s for window in seen.whole), default=0.0)
    if share <= CLIENT_BOUND:
        return []
    return [f"client-bound: reading the answers took {100 * share:.0f} % of a core, so that times may be the client's"]


def _other_lengths(seen: CellSeen) -> list[str]:
    """Say that prompts were not as long as the cell is called."""
    prompts = sum(_prompts(window) for window in seen.whole)
    tokens = sum(window.count("input_tokens") for window in seen.whole)
    requested = seen.cell.input_tokens
    if not prompts or not tokens or abs(tokens / prompts / requested - 1) <= OTHER_LENGTH:
        return []
    return [f"prompts had {significant(tokens / prompts, 3)} tokens on average, not {requested}"]


def _prompts(seen: Seen) -> float:
    """Return how many prompts were counted in a window: a server's when their first token came, not at their end."""
    first_tokens = len(seen.samples("first_token_us")) if seen.place.phase == "served" else 0
    return float(first_tokens) or seen.count("requests")


def _host_bound(seen: CellSeen, figures: Mapping[str, Told]) -> list[str]:
    busy = figures["busy_share"]
    if isinstance(busy, str) or busy.value >= HOST_BOUND:
        return []
    return [host_bound(busy.value, seen.cell.mode), *_unsteady(seen)]


def _reads_slowly(seen: CellSeen) -> list[str]:
    """Say that the GPU waited for the host while prompts were read, which graphs do not change."""
    shares = [share for window in seen.windows.get("prefill", ()) if (share := busy_share(window)) is not None]
    if not shares or median(shares) >= HOST_BOUND:
        return []
    waited = 100 * (1 - median(shares))
    return [f"reading prompts is launched by the host, and the GPU waited for it {waited:.0f} % of that time"]


def _unsteady(seen: CellSeen) -> list[str]:
    """Say that the host, which a cell waits for, did not keep its speed, which is why intervals are wide."""
    calls_us = [us for window in seen.windows.get("decode", ()) for us in window.samples("call_us").tolist()]
    if len(calls_us) < FEW_CALLS or max(calls_us) < UNSTEADY * min(calls_us):
        return []
    step_ms = [us / 1e3 / max(1, seen.cell.output_tokens - 1) for us in (min(calls_us), max(calls_us))]
    took = f"from call to call a step took {step_ms[0]:.3g} to {step_ms[1]:.3g} ms"
    return [f"the host did not keep its speed: {took}, so that time and joules are known less well than the GPU's own"]


def _still_traced(windows: Sequence[Seen]) -> list[str]:
    """Say that calls were slower after the profiler had looked at one than before."""
    facts = [(window.fact("untraced_after_us"), window.fact("untraced_us")) for window in windows]
    ratios = [after_us / before_us for after_us, before_us in facts if after_us is not None and before_us]
    if not ratios or median(ratios) <= STILL_TRACED:
        return []
    share = 100 * (median(ratios) - 1)
    return [f"the profiler did not let go: after it had looked, the same call took {share:.0f} % longer than before"]


def _apart(figures: Mapping[str, Told]) -> list[str]:
    share = figures["phases_share"]
    if isinstance(share, str) or share.low is None or share.high is None:
        return []
    if share.high >= 1 - PHASES_WITHIN and share.low <= 1 + PHASES_WITHIN:
        return []
    return [f"prefill and decode apart take {100 * share.value:.0f} % of the energy of whole requests"]


def sentence(text: str) -> str:
    """Return words with one mark at their end: a full stop, unless they ask or call."""
    stem = text.rstrip(".")
    return stem if stem.endswith(("?", "!")) else f"{stem}."


def half_width(estimate: Estimate) -> str:
    """Write how sure a number is: "±1.2 %", or that it has no interval."""
    half = estimate.relative_half_width
    if half is None:
        return "no interval"
    if half < LEAST_SHOWN:
        return f"±<{100 * LEAST_SHOWN:g} %"
    if half >= MOST_SHOWN:
        return f"±>{100 * MOST_SHOWN:.0f} %"
    return f"±{100 * half:.{0 if half >= WHOLE_PERCENT else 1 if half >= WHOLE_PERCENT / 10 else 2}f} %"


def number(estimate: Estimate | None, digits: int = 3) -> str | None:
    """Write a number with its interval for a cell of a table: "1.23 ±1.2 %"; null where it was not measured."""
    if estimate is None:
        return None
    if not estimate.unit:
        return share(estimate)
    value = significant(estimate.value, digits)
    return value if estimate.relative_half_width is None else f"{value} {half_width(estimate)}"


def share(estimate: Estimate, *, rest: bool = False) -> str:
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


def reasons_of(rows: Sequence[EnergyRow]) -> list[Noted]:
    """Return why figures are missing: each reason with the figures it is of, over all cells."""
    return grouped((row.why_not[name].rstrip("."), name) for name in FIGURES for row in rows if name in row.why_not)
