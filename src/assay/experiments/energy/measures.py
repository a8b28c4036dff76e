"""What each process gave of each figure: pure arithmetic on windows, or in words why there is none."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.energy.answers import PROMPTS, none_whole, other_length
from assay.experiments.energy.latencies import LATENCIES
from assay.experiments.energy.seen import NOT_APART
from assay.stats.metered import Draw
from assay.workloads.generation.busy import STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.results import Estimate
    from assay.experiments.energy.seen import CellSeen, Draws
    from assay.experiments.energy.stages import Seen
    from assay.workloads.generation.params import Phase

    Figure = Callable[[CellSeen], Draws]

J_PER_WH = 3600.0
NOT_SEEN_INTO = "a server's kernels and memory are not seen from outside"


def measured(seen: CellSeen, figure: str) -> Draws:
    """Return what each process gave of a figure, or why there is none."""
    return FIGURE[figure](seen)


def share_of(estimate: Estimate) -> float | None:
    """Return how far a sensor may be off, as a share; null where it does not say."""
    return estimate.relative_half_width


def why_no_energy(windows: tuple[Seen, ...]) -> str:
    """Say why windows have no energy: as the first of them says."""
    note = next((window.stage.energy_note for window in windows if window.stage.energy_note), None)
    return (note or "no counter to read").removeprefix("not told: ")


def _per_joule(phase: Phase, counted: tuple[str, ...], value: Callable[[Seen, float], float | None]) -> Figure:
    """Return a figure that is made of the energy of each window of a phase, over what is ``counted`` in it."""

    def draws(seen: CellSeen) -> Draws:
        windows = seen.of(phase)
        if isinstance(windows, str):
            return windows
        result = [
            window.draw(number, share_of(window.stage.energy), *counted)
            if counted
            else Draw(number, share_of(window.stage.energy))
            for window in windows
            if window.stage.energy is not None and (number := value(window, window.stage.energy.value)) is not None
        ]
        return result or (
            why_no_energy(windows) if not any(window.stage.energy for window in windows) else "no token came"
        )

    return draws


def _over(phase: Phase, *names: str, scale: float = 1.0) -> Figure:
    """Return the energy of a phase over what was counted."""

    def value(seen: Seen, joules: float) -> float | None:
        count = seen.count(*names)
        return scale * joules / count if count > 0 else None

    return _per_joule(phase, names, value)


def _per_second(phase: Phase, name: str) -> Figure:
    """Return how many of something came in each second of a phase."""

    def draws(seen: CellSeen) -> Draws:
        windows = seen.of(phase)
        if isinstance(windows, str):
            return windows
        counted = [window for window in windows if window.count(name) > 0]
        return [window.draw(window.count(name) / window.window_s, None, name) for window in counted] or "no token came"

    return draws


def _per_request(draws: Figure) -> Figure:
    """Return a figure of whole requests, which is told only where they were what was asked for."""
    return lambda cell: other_length(cell) or none_whole(cell) or draws(cell)


def _in_or_out(seen: CellSeen) -> Draws:
    """Return the joules of a token read or made; those read are not always known."""
    if seen.whole and not any(len(window.samples("input_tokens")) for window in seen.whole):
        return PROMPTS
    return _over("whole", "input_tokens", "output_tokens")(seen)


def _carbon(seen: CellSeen) -> Draws:
    if seen.carbon_g_per_kwh is None:
        return "no carbon intensity was given (metrics.carbon_g_per_kwh)"
    draws = measured(seen, "wh_per_1000_requests")
    if isinstance(draws, str):
        return draws
    return [replace(draw, value=draw.value / 1000 * seen.carbon_g_per_kwh) for draw in draws]


def _idle_w(seen: CellSeen) -> Draws:
    if not seen.idle:
        return seen.why_not.get("idle", "idling was not measured")
    windows = [window for window in seen.idle.values() if window.stage.energy is not None]
    draws = [
        Draw(_watts(window), share_of(window.stage.energy)) for window in windows if window.stage.energy is not None
    ]
    return draws or why_no_energy(tuple(seen.idle.values()))


def _watts(seen: Seen) -> float:
    return seen.stage.energy.value / seen.window_s if seen.stage.energy is not None else 0.0


def _idle_share(seen: CellSeen) -> Draws:
    power, idle = measured(seen, "power_w"), _idle_w(seen)
    if isinstance(power, str):
        return power
    if isinstance(idle, str):
        return idle
    usual_w = float(np.mean([draw.value for draw in idle]))
    draws = []
    for window in seen.whole:
        if window.stage.energy is None:
            continue
        own = seen.idle.get(window.process)
        idle_w = _watts(own) if own is not None and own.stage.energy is not None else usual_w
        draws.append(Draw(idle_w / _watts(window), _both(share_of(window.stage.energy), idle[0].share)))
    return draws


def _both(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else float(np.hypot(one, other))


def _of_facts(phase: Phase, value: Callable[[Seen], float | None], why: str) -> Figure:
    """Return a figure that is made of what the worker found out about a phase."""

    def draws(seen: CellSeen) -> Draws:
        windows = seen.of(phase)
        if isinstance(windows, str):
            return NOT_SEEN_INTO if windows == NOT_APART else windows
        result = [Draw(number) for window in windows if (number := value(window)) is not None]
        return result or why

    return draws


def _per_j(seen: Seen, joules: float) -> float | None:
    return seen.count("output_tokens") / joules or None


def _ratio(seen: Seen, above: str, below: str, times: float = 1.0) -> float | None:
    first, second = seen.fact(above), seen.fact(below)
    return None if first is None or not second else times * first / second


def busy_share(seen: Seen) -> float | None:
    """Return for how much of a window some kernel ran, of decoding or of reading: kernels' time over that of tokens."""
    busy_us, cell = seen.fact("busy_us"), seen.place.cell
    decodes = seen.place.phase == "decode"
    took_us = seen.samples("gap_us" if decodes else "first_token_us")
    if busy_us is None or cell is None or not len(took_us):
        return None
    return busy_us / (min(STEPS, cell.output_tokens - 1) if decodes else 1) / float(took_us.mean())


def _bandwidth(seen: Seen) -> float | None:
    batch = seen.place.cell.batch if seen.place.cell is not None else 1
    steps_per_s = seen.count("output_tokens") / batch / seen.window_s
    return _ratio(seen, "step_read_bytes", "memory_bytes_per_s", steps_per_s)


def _compute(seen: Seen) -> float | None:
    return _ratio(seen, "call_flop", "compute_flop_per_s", seen.stage.calls / seen.window_s)


def _phases_share(seen: CellSeen) -> Draws:
    """Return the energy of the phases apart over that of whole requests, process by process."""
    windows = seen.of("whole")
    if isinstance(windows, str):
        return windows
    if seen.is_server:
        return NOT_APART
    if not any(window.stage.energy for window in windows):
        return why_no_energy(windows)
    draws = []
    for whole in windows:
        parts = [_of_process(seen, "prefill", whole), _of_process(seen, "decode", whole)]
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
        shares = [share_of(energy) or 0.0 for energy in energies]
        spreads = [parts[0].spread("input_tokens"), parts[1].spread("output_tokens"), whole.spread("output_tokens")]
        weights = read_j / apart, made_j / apart, 1.0
        ratio, off = apart / energies[2].value, _combined(shares, weights)
        draws.append(Draw(ratio, off, whole.stage.calls, _combined(spreads, weights)))
    return draws or "no process told the energy of both phases and of whole requests"


def _combined(parts: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Return parts of an interval that do not know of each other as one; null where one of them is not known."""
    scaled = [weight * part for part, weight in zip(parts, weights, strict=True) if part is not None]
    return math.hypot(*scaled) if len(scaled) == len(parts) else None


def _of_process(seen: CellSeen, phase: Phase, like: Seen) -> Seen | None:
    return next((window for window in seen.windows.get(phase, ()) if window.process == like.process), None)


def _host(seen: CellSeen) -> Draws:
    windows = seen.of("whole")
    if isinstance(windows, str):
        return windows
    draws = [
        window.draw(energy.value / window.count("output_tokens"), share_of(energy), "output_tokens")
        for window in windows
        if (energy := window.host_energy) is not None and window.count("output_tokens") > 0
    ]
    note = next((window.stage.host_note for window in windows if window.stage.host_note), None)
    return draws or (note or "no counter to read").removeprefix("not told: ")


FIGURE: dict[str, Figure] = {
    "decode_j_per_token": _over("decode", "output_tokens"),
    "prefill_j_per_token": _over("prefill", "input_tokens"),
    "j_per_output_token": _over("whole", "output_tokens"),
    "j_per_total_token": _in_or_out,
    "j_per_request": _per_request(_over("whole", "requests")),
    "wh_per_1000_requests": _per_request(_over("whole", "requests", scale=1000 / J_PER_WH)),
    "carbon_g_per_1000_requests": _carbon,
    "decode_tokens_per_s": _per_second("decode", "output_tokens"),
    "prefill_tokens_per_s": _per_second("prefill", "input_tokens"),
    "output_tokens_per_s": _per_second("whole", "output_tokens"),
    "requests_per_s": _per_request(_per_second("whole", "requests")),
    **LATENCIES,
    "tokens_per_s_per_w": _per_joule("whole", ("output_tokens",), _per_j),
    "power_w": _per_joule("whole", (), lambda window, joules: joules / window.window_s),
    "idle_w": _idle_w,
    "idle_share": _idle_share,
    "busy_share": _of_facts("decode", busy_share, "the kernels of a GPU were not looked at"),
    "bandwidth_share": _of_facts("decode", _bandwidth, "how fast memory is was not found out"),
    "compute_share": _of_facts("prefill", _compute, "how fast arithmetic is was not found out"),
    "phases_share": _phases_share,
    "host_j_per_output_token": _host,
}
"""How each figure is told of one process."""
