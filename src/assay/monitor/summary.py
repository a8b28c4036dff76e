"""What a recording, or a window of it, says in numbers, as values.

mean            of the samples
time mean       of the straight lines between samples: right also where ticks were missed
difference      of what counts up: the last reading less the first, over the time between the two
"""

from __future__ import annotations

from pydantic import Field

from assay.core.results import Origin
from assay.core.values import SCHEMA_VERSION, Value
from assay.monitor.lines import BusyProcess


class Level(Value):
    """What was seen of something that goes up and down."""

    quantity: str
    unit: str
    n: int = Field(description="Samples that had it; the statistics are of these alone.")
    mean: float
    time_mean: float | None = Field(description="Weighted by time, without gaps; null: of one sample.")
    minimum: float
    maximum: float
    silent_s: float = Field(default=0.0, description="From when it was last read to the last sample.")


class Counted(Value):
    """How far something that counts up went from the first sample to the last."""

    quantity: str
    unit: str
    n: int
    difference: float | None = Field(description="Null: one sample, it went back meanwhile, or too few ticks.")
    per_s: float | None
    over_s: float = Field(description="From the first sample to the last.")
    note: str | None = None
    silent_s: float = Field(default=0.0, description="From when it was last read to the last sample.")


class SourceStatistics(Value):
    """What the samples of one GPU or of the host say."""

    source: str = Field(description="gpu:0 or host")
    title: str
    uuid: str | None = None
    n: int
    lasted_s: float = Field(default=0.0, description="From the first sample to the last.")
    missed: int = Field(description="Samples that should lie between the first and the last and do not.")
    levels: tuple[Level, ...] = ()
    counted: tuple[Counted, ...] = ()
    throttle_share: dict[str, float] = Field(
        default_factory=dict, description="Share of the time in which a reason held the clock back."
    )
    most_processes: int | None = None
    ended: str | None = Field(default=None, description="Why it answered no more.")

    def level(self, quantity: str) -> Level | None:
        """Return what was seen of a quantity; null where nothing was."""
        return next((level for level in self.levels if level.quantity == quantity), None)

    def difference(self, quantity: str) -> float | None:
        """Return how far a counter went; null where that is not known."""
        counted = self.counter(quantity)
        return None if counted is None else counted.difference

    def counter(self, quantity: str) -> Counted | None:
        """Return what was seen of a counter; null where nothing was."""
        return next((counted for counted in self.counted if counted.quantity == quantity), None)


class Together(Value):
    """All GPUs taken together. Null: not every one of them says."""

    peak_power_w: float | None = Field(description="The highest sum of their power at one tick.")
    peak_power_of: str | None = Field(description="Which readings were summed: of each GPU the one that follows best.")
    energy_j: float | None = Field(
        description="The sum of their counter differences; null also where these are not of the same time."
    )


class Span(Value):
    """A moment or a span that was named, in s since the recording began."""

    name: str
    start_s: float
    end_s: float | None


class MonitorStatistics(Value):
    """What a recording, or a window of it, says."""

    schema_version: int = Field(default=SCHEMA_VERSION, serialization_alias="schema", validation_alias="schema")
    started_at_ns: int = Field(description="Monotonic, of the first sample.")
    wall_ns: int = Field(description="Since 1970, at the same moment.")
    lasted_s: float
    interval_s: float
    sources: tuple[SourceStatistics, ...]
    together: Together
    marks: tuple[Span, ...] = ()
    busiest: tuple[BusyProcess, ...] = Field(default=(), description="Mean over all looks at every process.")
    notes: tuple[str, ...] = ()
    finished: bool = Field(description="Whether the recording was ended in good order.")
    partial: bool = Field(default=False, description="Whether a GPU was lost before the end.")
    origin: Origin

    def of(self, source: str) -> SourceStatistics | None:
        """Return what the samples of one source say; null where there were none."""
        return next((candidate for candidate in self.sources if candidate.source == source), None)
