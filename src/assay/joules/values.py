"""What asking for energy gives back: joules with both their bounds, and what they rest on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from assay.core.results import EnergyRefusal, Estimate, Origin
from assay.core.values import Value
from assay.joules.course import Knot
from assay.joules.model import SensorModel
from assay.joules.readings import Reading
from assay.joules.wording import energy_text, window_text

Stop = Literal["precise enough", "budget spent"]


class Energy(Value):
    """What one call costs, made back to back with others.

    ``joules`` has the statistical interval; ``systematic_j`` is how far sensor and method may be off beside it, which
    no repeating shows. The two are kept apart.
    """

    name: str
    device: str
    joules: Estimate = Field(description="Of one call; idle power is in it unless ``net``.")
    net: bool = Field(description="Whether idle power was subtracted.")
    systematic_j: float = Field(description="How far a call's energy may be off, either way, beside the interval.")
    power_w: float = Field(description="Average while calls ran, idle power included.")
    call_us: float = Field(description="From one call's end to the next one's, back to back.")
    calls: int = Field(description="In the window.")
    window_s: float
    rests_s: float = Field(description="Of the window, in which the device was left alone; corrected for.")
    idle_w: float | None = Field(description="Before the first call, with everything loaded. Null: not seen.")
    coverage: float = Field(description="The share of the window that the sensor's ticks cover.")
    method: str
    crosscheck: float | None = Field(description="Integrated power over the counter; null where only one is there.")
    ticks: int = Field(description="Of the sensor, in the window.")
    precision_wanted: float
    precision_reached: float = Field(description="Half the interval over the value.")
    stopped: Stop
    sensor: SensorModel
    took_s: float
    origin: Origin = "real"
    notes: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = Field(
        default=(), exclude=True, repr=False, description="Every reading in order, on the host's monotonic clock."
    )
    knots: tuple[Knot, ...] = Field(
        default=(), exclude=True, repr=False, description="Moments between calls, and how many had ended by then."
    )
    open_ns: int = Field(default=0, exclude=True, repr=False, description="When the warm-up was over.")

    def __str__(self) -> str:
        return energy_text(self)


class WindowEnergy(Value):
    """What was spent between two moments, or why that cannot be said."""

    joules: Estimate | None = Field(description="Null: refused, for ``reason``.")
    reason: str | None = None
    code: EnergyRefusal | None = Field(default=None, description="Why it was refused, for programs.")
    needed_s: float | None = Field(
        default=None, description="Where refused: a window that would be long enough; null: none, or not known."
    )
    window_s: float
    systematic_j: float | None = None
    power_w: float | None = None
    coverage: float | None = Field(default=None, description="The share of the window that the sensor's ticks cover.")
    method: str | None = None
    crosscheck: float | None = Field(default=None, description="Integrated power over the counter.")
    ticks: int | None = None

    def __str__(self) -> str:
        return window_text(self)
