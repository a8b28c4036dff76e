"""Energy in words, for a terminal or a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.units import format_time, significant

if TYPE_CHECKING:
    from assay.core.results import Estimate
    from assay.joules.values import Energy, WindowEnergy

_UNITS = ((1e-6, "µJ"), (1e-3, "mJ"), (1.0, "J"), (1e3, "kJ"))


def joules_text(joules: float) -> str:
    """Write an energy in the unit that reads best: 12.34 mJ rather than 0.01234 J."""
    for scale, unit in _UNITS:
        number = significant(joules / scale)
        if abs(float(number)) < 1000:
            return f"{number} {unit}"
    return f"{significant(joules / 1e6)} MJ"


def percent_text(share: float) -> str:
    """Write a share as a percentage of two digits."""
    percent = 100 * share
    return f"{percent:.2g} %" if percent >= 0.1 else "0.1 %"


def estimate_text(estimate: Estimate, systematic_j: float | None) -> str:
    """Write an energy with both its bounds."""
    half = estimate.relative_half_width
    statistical = "" if half is None else f" ± {percent_text(half)}"
    if not systematic_j or not estimate.value:
        return f"{joules_text(estimate.value)}{statistical}"
    return f"{joules_text(estimate.value)}{statistical}, systematic ±{percent_text(systematic_j / abs(estimate.value))}"


def energy_text(energy: Energy) -> str:
    """Return an energy per call in a few lines."""
    idle = "idle power was not seen" if energy.idle_w is None else f"{energy.idle_w:.0f} W idle"
    subtracted = "" if energy.idle_w is None else ", subtracted" if energy.net else ", not subtracted"
    running = f"{energy.power_w:.0f} W while it runs back to back, {format_time(energy.call_us)} a call"
    calls = f"{energy.calls:,} call{'' if energy.calls == 1 else 's'} in {energy.window_s:.2g} s"
    target = f"±{percent_text(energy.precision_wanted)}"
    reached = "reached" if energy.stopped == "precise enough" else "not reached"
    lines = [
        f"{energy.name} on {energy.device}: {estimate_text(energy.joules, energy.systematic_j)} a call",
        f"  {running}; {idle}{subtracted}",
        f"  by {energy.method}: {calls}, {_rests_on(energy.ticks, energy.coverage, energy.crosscheck)}",
        f"  {target} {reached} in {energy.took_s:.2g} s",
    ]
    return "\n".join([*lines, *(f"  note: {note}" for note in energy.notes)])


def _rests_on(ticks: int | None, coverage: float | None, crosscheck: float | None) -> str:
    checked = "" if crosscheck is None else f"; integrated power says {crosscheck:.2f} of it"
    return f"{ticks} ticks, coverage {coverage or 0:.0%}{checked}"


def window_text(window: WindowEnergy) -> str:
    """Return a window's energy in a line, or why there is none."""
    if window.joules is None:
        return f"refused: {window.reason}"
    spent = f"{estimate_text(window.joules, window.systematic_j)} in {window.window_s:.3g} s ({window.power_w:.0f} W)"
    return f"{spent}, by {window.method}, {_rests_on(window.ticks, window.coverage, window.crosscheck)}"
