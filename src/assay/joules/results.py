"""Results of energy measurements: joules with statistical and systematic bounds, and their text for a terminal."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from assay.core.format import format_count, format_joules, format_percent, format_time
from assay.core.results import EnergyRefusal, Estimate, Origin
from assay.core.values import Value
from assay.joules.load import CallBoundary
from assay.joules.readings import MeterReading
from assay.joules.sensor_model import SensorModel


def format_energy_estimate(estimate: Estimate, systematic_j: float | None) -> str:
    """Format an energy with both its bounds."""
    text = format_joules(estimate.value, estimate.low, estimate.high)
    if not systematic_j or not estimate.value:
        return text
    return f"{text}, systematic ±{format_percent(systematic_j / abs(estimate.value))}"


def format_energy(energy: Energy) -> str:
    """Return the energy per call as a few lines of text."""
    idle = "idle power was not seen" if energy.idle_w is None else f"{energy.idle_w:.0f} W idle"
    subtracted = "" if energy.idle_w is None else ", subtracted" if energy.net else ", not subtracted"
    running = f"{energy.power_w:.0f} W while it runs back to back, {format_time(energy.call_us)} a call"
    calls = f"{format_count(energy.calls, 'call')} in {energy.window_s:.2g} s"
    target = f"±{format_percent(energy.precision_wanted)}"
    reached = "reached" if energy.stopped == "precise enough" else "not reached"
    lines = [
        f"{energy.name} on {energy.device}: {format_energy_estimate(energy.joules, energy.systematic_j)} a call",
        f"  {running}; {idle}{subtracted}",
        f"  by {energy.method}: {calls}, {_format_evidence(energy.ticks, energy.coverage, energy.crosscheck)}",
        f"  {target} {reached} in {energy.took_s:.2g} s",
    ]
    return "\n".join([*lines, *(f"  note: {note}" for note in energy.notes)])


def _format_evidence(ticks: int | None, coverage: float | None, crosscheck: float | None) -> str:
    checked = "" if crosscheck is None else f"; integrated power says {crosscheck:.2f} of it"
    return f"{ticks} ticks, coverage {format_percent(coverage or 0)}{checked}"


def format_window_energy(window: WindowEnergy) -> str:
    """Return a window's energy as one line, or why there is none."""
    if window.joules is None:
        return f"refused: {window.reason}"
    spent = (
        f"{format_energy_estimate(window.joules, window.systematic_j)} in {window.window_s:.3g} s "
        f"({window.power_w:.0f} W)"
    )
    return f"{spent}, by {window.method}, {_format_evidence(window.ticks, window.coverage, window.crosscheck)}"


EnergyStopReason = Literal["precise enough", "budget spent"]


class Energy(Value):
    """The energy of one call, made back to back with others.

    ``joules`` has the statistical interval; ``systematic_j`` is the additional error of sensor and method, which
    repeating does not reveal. The two are kept apart.
    """

    name: str
    device: str
    joules: Estimate = Field(description="Of one call; idle power is in it unless ``net``.")
    net: bool = Field(description="Whether idle power was subtracted.")
    systematic_j: float = Field(description="Error of a call's energy, in either direction, besides the interval.")
    power_w: float = Field(description="Average while calls ran, idle power included.")
    call_us: float = Field(description="From one call's end to the next one's, back to back.")
    calls: int = Field(description="In the window.")
    window_s: float
    rests_s: float = Field(description="Part of the window in which the device rested; corrected for.")
    idle_w: float | None = Field(description="Before the first call, with everything loaded. Null: not observed.")
    coverage: float = Field(description="The share of the window that the sensor's ticks cover.")
    method: str
    crosscheck: float | None = Field(description="Integrated power over the counter; null where only one is available.")
    ticks: int = Field(description="Of the sensor, in the window.")
    precision_wanted: float
    precision_reached: float = Field(description="Half the interval over the value.")
    stopped: EnergyStopReason
    sensor: SensorModel
    took_s: float
    origin: Origin = "real"
    notes: tuple[str, ...] = ()
    readings: tuple[MeterReading, ...] = Field(
        default=(), exclude=True, repr=False, description="Every reading in order, on the host's monotonic clock."
    )
    boundaries: tuple[CallBoundary, ...] = Field(
        default=(), exclude=True, repr=False, description="Moments between calls, and how many had ended by then."
    )
    open_ns: int = Field(default=0, exclude=True, repr=False, description="When the warm-up was over.")

    def __str__(self) -> str:
        return format_energy(self)


class WindowEnergy(Value):
    """The energy spent between two moments, or why it is not reported."""

    joules: Estimate | None = Field(description="Null: refused, for ``reason``.")
    reason: str | None = None
    code: EnergyRefusal | None = Field(default=None, description="Why it was refused, for programs.")
    needed_s: float | None = Field(
        default=None, description="If refused: a window that would be long enough; null: none, or unknown."
    )
    window_s: float
    systematic_j: float | None = None
    power_w: float | None = None
    coverage: float | None = Field(default=None, description="The share of the window that the sensor's ticks cover.")
    method: str | None = None
    crosscheck: float | None = Field(default=None, description="Integrated power over the counter.")
    ticks: int | None = None

    def __str__(self) -> str:
        return format_window_energy(self)
