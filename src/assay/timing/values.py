"""What measuring, comparing and picking give back: numbers with their intervals, and the way they were obtained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from assay.core.results import Estimate, GpuMoment, Scope
from assay.core.values import Params, Value
from assay.timing.wording import comparison_text, measurement_text, pick_text

Cache = Literal["cold", "warm"]
Verdict = Literal["faster", "slower", "same", "unsure"]
Quantity = Literal["busy_us", "span_us", "call_us"]
Stop = Literal["precise enough", "budget spent", "two levels", "decided", "sample limit", "all processes"]
"""Why it ended; "all processes": each of those planned was measured, whatever came out."""
Unsteady = Literal["drift", "switching"]
Refusal = Literal["too few samples", "two levels", "drift"]
Caveat = Literal["too few pairs", "too early", "ratio switches", "one side switches", "ratio wanders", "clock moved"]


class Clock(Value):
    """What the GPU's clock did meanwhile. Null: there is none, or it was not offered."""

    mhz_low: float | None = Field(default=None, description="Lowest clock of a batch, by the device's own counters.")
    mhz: float | None = Field(default=None, description="Median over the batches.")
    mhz_high: float | None = None
    before: GpuMoment | None = None
    after: GpuMoment | None = None
    throttle: tuple[str, ...] = Field(default=(), description="Every reason seen why the clock was not higher.")
    throttled_share: float | None = Field(default=None, description="Of the batches, with such a reason at their end.")
    locked_mhz: int | None = Field(default=None, description="Held by us for the length of the measurement.")


class ProcessTimes(Value):
    """What one fresh process of several gave; of one that failed, only why."""

    process: int = Field(ge=1)
    status: Literal["ok", "failed"] = "ok"
    reason: str | None = Field(default=None, description="Why it failed; null where it did not.")
    times: dict[str, Estimate] = Field(
        default_factory=dict, description="By quantity, or of a comparison by function; each of this process alone."
    )
    ratios: dict[str, float] = Field(default_factory=dict, description="Of a comparison: to the first, by function.")
    samples: int = Field(default=0, description="Of a comparison: rounds.")
    took_s: float = 0.0


class Measurement(Value):
    """How long one call takes.

    ``busy_us`` is the sum of what its kernels take, ``span_us`` from the first one's start to the last one's end with
    the launches queued, ``call_us`` what a caller waits. Null: not measured; ``notes`` says why.
    """

    name: str
    device: str
    cache: Cache
    method: str
    why: str
    busy_us: Estimate | None = None
    span_us: Estimate | None = None
    call_us: Estimate | None = None
    cycles: Estimate | None = None
    decisive: Quantity = Field(description="The time whose precision decided when it was enough.")
    instrument_error_us: float | None = Field(
        default=None, description="How far the instrument itself may be off, on top of the interval; null: not known."
    )
    operations: int | None = Field(default=None, description="Kernels, copies and fills a call launches.")
    precision_wanted: float
    precision_reached: float | None = Field(description="Half the interval over the value; null without an interval.")
    stopped: Stop
    shape: str = Field(description="What the samples look like in time: steady, drift, two levels, bursts, too few.")
    scope: Scope = Field(
        default="process", description="What intervals hold for: this process in this window; other processes differ."
    )
    unsteady: Unsteady | None = Field(
        default=None, description="What moved in the window by more than 0.5 %; null: nothing that can be seen."
    )
    no_interval: Refusal | None = Field(
        default=None, description="Why the decisive time has no interval; null where it has one."
    )
    warmed_up: bool = Field(description="Whether the times had settled before they counted.")
    clock: Clock = Clock()
    samples: int
    calls: int = Field(description="All calls made, warm-up included.")
    took_s: float
    notes: tuple[str, ...] = ()
    processes: int = Field(default=1, ge=1, description="Fresh ones that the estimates are over.")
    by_process: tuple[ProcessTimes, ...] = Field(default=(), description="Where there are several, also the failed.")
    series: dict[str, tuple[float, ...]] = Field(
        default_factory=dict, exclude=True, repr=False, description="Every sample in order, by quantity."
    )

    @property
    def time(self) -> Estimate:
        """The decisive time."""
        estimate = getattr(self, self.decisive)
        assert isinstance(estimate, Estimate)  # noqa: S101 - the decisive time is always measured
        return estimate

    def __str__(self) -> str:
        return measurement_text(self)


class Compared(Value):
    """One function beside the one that all are compared with: its time as a multiple of that one's."""

    name: str
    verdict: Verdict = Field(description="Of this one, against the first.")
    ratio: float
    low: float | None
    high: float | None
    cycles_verdict: Verdict | None = Field(default=None, description="The same in cycles; null where there are none.")
    cycles_ratio: float | None = None
    reason: str | None = None
    caveat: Caveat | None = Field(default=None, description="The kind of reason; null where the ratio stood still.")
    time_us: Estimate


class Comparison(Value):
    """Which of several functions is faster, measured in turns; ``others`` are against ``first``."""

    first: str
    first_us: Estimate
    others: tuple[Compared, ...]
    quantity: Quantity
    minimum_effect: float
    device: str
    cache: Cache
    methods: dict[str, str]
    pairs: int
    stopped: Stop
    scope: Scope = Field(
        default="process",
        description="What verdicts hold for: this process in this window. Noise of one side that lasts over a quarter "
        "of it only shows in fresh processes.",
    )
    clock: Clock = Clock()
    took_s: float
    notes: tuple[str, ...] = ()
    processes: int = Field(default=1, ge=1, description="Fresh ones that estimates and verdicts are over.")
    by_process: tuple[ProcessTimes, ...] = Field(default=(), description="Where there are several, also the failed.")
    series: dict[str, tuple[float, ...]] = Field(default_factory=dict, exclude=True, repr=False)

    @property
    def verdict(self) -> Verdict:
        """What is said of the second function against the first."""
        return self.others[0].verdict

    def __str__(self) -> str:
        return comparison_text(self)


class Candidate(Value):
    """How one candidate came out of a pick."""

    name: str
    config: Params | None = None
    status: Literal["ok", "failed", "wrong"] = "ok"
    reason: str | None = None
    time_us: float | None = Field(default=None, description="Median of its samples; null where it never ran.")
    behind: float | None = Field(default=None, description="Of the winner's time: 0.05 is 5 % slower.")
    behind_low: float | None = None
    behind_high: float | None = None
    rounds: int = 0


class Pick(Value):
    """The fastest of many, and how sure that is."""

    winner: str
    config: Params | None = None
    time_us: float
    probability: float = Field(description="That the winner is within the tolerance of the best.")
    expected_regret: float = Field(description="How much slower than the best it is to be expected, as a share.")
    tolerance: float
    ranking: tuple[Candidate, ...]
    quantity: Quantity
    device: str
    cache: Cache
    rounds: int
    calls: int
    stopped: Stop
    took_s: float
    clock: Clock = Clock()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return pick_text(self)
