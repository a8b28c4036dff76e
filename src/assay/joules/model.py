"""How a card's energy counter and power readings see: found once for a GPU and its driver, and kept."""

from __future__ import annotations

from pydantic import Field

from assay.core.values import SCHEMA_VERSION, Value


class CounterModel(Value):
    """How an energy counter counts."""

    period_s: float = Field(description="From one tick to the next.")
    jitter_s: float = Field(description="How far a tick may be from its even place.")
    quantum_j: float = Field(description="What it counts in.")
    lag_s: float = Field(description="At a tick it shows the energy as it was so long before.")
    lag_error_s: float = Field(description="How far that may be off, as a standard deviation.")
    read_s: float = Field(description="How long the card takes to say it; the median.")


class PowerModel(Value):
    """How a power reading sees: at each tick the mean over a window that ended a while before."""

    period_s: float = Field(description="From one tick to the next.")
    window_s: float = Field(description="Over which it is the mean.")
    lag_s: float = Field(description="Between the window's end and the tick that shows it.")
    lag_error_s: float = Field(description="How far that may be off, as a standard deviation.")
    with_counter: bool = Field(description="Whether it ticks when the energy counter does.")
    explained: float = Field(description="How much of the readings' variance this explains: 1 is all.")

    @property
    def seen_share(self) -> float:
        """The share of the time that it sees: 0.25 where 25 ms of each 100 ms are."""
        return min(1.0, self.window_s / self.period_s)


class SensorModel(Value):
    """How one device's sensors see. Null: the device does not offer it, or it could not be found out."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    device: str = Field(description="UUID of the GPU, or the domains of a processor.")
    driver: str
    counter: CounterModel | None = None
    instant: PowerModel | None = None
    average: PowerModel | None = None
    usage: PowerModel | None = Field(default=None, description="Of cards that name neither instant nor average power.")

    def in_words(self) -> str:
        """Return it in one line, for the doctor."""
        parts = []
        if self.counter is not None:
            lag = f", lag {1e3 * self.counter.lag_s:.0f} ms"
            parts.append(f"the energy counter ticks every {_ms(self.counter.period_s)}{lag}")
        for name in ("instant", "average", "usage"):
            power: PowerModel | None = getattr(self, name)
            if power is not None:
                named = {"instant": "instant power", "average": "average power", "usage": "power"}[name]
                averaging = f"the mean of {_ms(power.window_s)} every {_ms(power.period_s)}"
                parts.append(f"{named} is {averaging}, lag {1e3 * power.lag_s:.0f} ms")
        return "; ".join(parts) or "it shows neither energy nor power"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
