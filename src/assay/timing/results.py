"""Results of measuring, comparing and picking: estimates, how they were obtained, and their text for a terminal."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from assay.core.format import (
    format_bounds,
    format_change,
    format_count,
    format_duration,
    format_percent,
    format_ratio,
    format_time,
)
from assay.core.results import Estimate, GpuSnapshot, Scope
from assay.core.values import Params, Value

QUANTITY_MEANINGS = {
    "busy_us": "kernels at work",
    "span_us": "first start to last end",
    "call_us": "what a caller waits",
}


def format_measurement(measurement: Measurement) -> str:
    """Return a measurement as a few lines of text."""
    lines = [f"{measurement.name} on {measurement.device}, {measurement.cache} cache"]
    for quantity, meaning in QUANTITY_MEANINGS.items():
        estimate = getattr(measurement, quantity)
        if estimate is not None:
            lines.append(f"  {quantity.removesuffix('_us'):<5} {format_time_estimate(estimate)}   {meaning}")
    if measurement.cycles is not None:
        clock = format_clock(measurement.clock)
        lines.append(f"  {measurement.cycles.value:,.0f} cycles{f' at {clock}' if clock else ''}")
    lines.append(f"  by {measurement.method}: {measurement.why}")
    if measurement.instrument_error_us is not None:
        lines.append(f"  the instrument itself is good to ±{format_time(measurement.instrument_error_us)}")
    lines.append(
        f"  {describe_precision(measurement)}; {format_count(measurement.samples, 'sample')} in "
        f"{format_elapsed(measurement)}"
    )
    lines.append(f"  {describe_scope(measurement.scope)}")
    lines.extend(f"  note: {note}" for note in measurement.notes)
    return "\n".join(lines)


def describe_scope(scope: Scope) -> str:
    """Return what an interval is valid for."""
    if scope == "process":
        return "the interval is of this process and this window; a fresh process may differ by more (assay time)"
    return "the interval is over fresh processes" if scope == "run" else "the interval is of this machine"


def describe_slow_noise() -> str:
    """Return which noise a verdict from a single process does not cover."""
    return "noise of one side slower than a quarter of this window: only fresh processes show it (assay time)"


def format_time_estimate(estimate: Estimate) -> str:
    """Return a time with its interval: ``13.60 µs (13.55–13.65)``."""
    text = format_time(estimate.value, estimate.low, estimate.high)
    return f"{text} (no interval)" if estimate.low is None else text


def format_clock(clock: ClockSummary) -> str:
    """Return the clock of a measurement; empty where there is none."""
    if clock.mhz is None or clock.mhz_low is None or clock.mhz_high is None:
        return ""
    if clock.mhz_high - clock.mhz_low < 0.01 * clock.mhz:
        return f"{clock.mhz:.0f} MHz"
    return format_bounds(f"{clock.mhz:.0f} MHz", clock.mhz_low, clock.mhz_high, "{:.0f}".format)


def describe_precision(measurement: Measurement) -> str:
    """Return whether the requested precision was reached, and if not, why."""
    target = f"±{format_percent(measurement.precision_wanted)}"
    if measurement.stopped == "precise enough":
        return f"{target} reached"
    if measurement.stopped == "two levels":
        return f"{target} cannot be reached: the times switch between two levels"
    if measurement.processes > 1 and measurement.precision_reached is not None:
        return f"{target} not reached, ±{format_percent(measurement.precision_reached)} over the processes"
    if measurement.precision_reached is None:
        why = measurement.no_interval or measurement.shape
        return f"{target} not reached: the samples allow no interval ({why})"
    if measurement.stopped == "sample limit":
        return (
            f"{target} not reached, ±{format_percent(measurement.precision_reached)} with as many samples as are kept"
        )
    return f"{target} not reached, ±{format_percent(measurement.precision_reached)} when the budget was spent"


def format_comparison(comparison: Comparison) -> str:
    """Return a comparison as a few lines of text."""
    lines = [
        f"{comparison.first}: {format_time_estimate(comparison.first_us)} ({comparison.quantity.removesuffix('_us')})"
    ]
    for other in comparison.others:
        line = f"{other.name}: {format_time_estimate(other.time_us)}, {describe_verdict(other.verdict, comparison)}"
        lines.append(f"{line}, {format_ratio(other.ratio, other.low, other.high)} its time")
        if other.reason:
            lines.append(f"  {other.reason}")
    rounds = format_count(comparison.pairs, "round")
    lines.append(
        f"  {rounds} in turns in {format_elapsed(comparison)} on {comparison.device}; ratios are within rounds"
    )
    if comparison.scope == "process":
        lines.append(f"  not covered: {describe_slow_noise()}")
    lines.extend(f"  note: {note}" for note in comparison.notes)
    return "\n".join(lines)


def describe_verdict(verdict: str, comparison: Comparison) -> str:
    """Return a verdict as part of a sentence."""
    effect = format_percent(comparison.minimum_effect)
    return {
        "faster": f"faster than {comparison.first} by more than {effect}",
        "slower": f"slower than {comparison.first} by more than {effect}",
        "same": f"the same as {comparison.first} within {effect}",
        "unsure": f"not decided against {comparison.first}",
    }[verdict]


def format_pick(pick: Pick) -> str:
    """Return a pick as a few lines of text: the winner, its probability, and the runners-up."""
    lines = [
        f"{pick.winner}: {format_time(pick.time_us)} ({pick.quantity.removesuffix('_us')}, {pick.cache} cache)",
    ]
    sure = f"within {format_percent(pick.tolerance)} of the best with probability {pick.probability:.3g}"
    lines.append(f"  {sure}, expected regret {format_percent(pick.expected_regret)}")
    shown = [c for c in pick.ranking if c.status == "ok" and c.name != pick.winner][:4]
    lines.extend(f"  {c.name}: {format_change(1 + (c.behind or 0))}" for c in shown)
    failed = [c for c in pick.ranking if c.status != "ok"]
    if failed:
        first = f"first {failed[0].name}: {failed[0].reason}"
        lines.append(f"  {len(failed)} of {len(pick.ranking)} failed or were wrong, {first}")
    counts = (
        format_count(len(pick.ranking), "candidate"),
        format_count(pick.rounds, "round"),
        format_count(pick.calls, "call"),
    )
    lines.append(f"  {', '.join(counts)}, {format_elapsed(pick)}")
    lines.extend(f"  note: {note}" for note in pick.notes)
    return "\n".join(lines)


def format_one_line(result: Measurement | Comparison | Pick) -> str:
    """Return a result as one line: the decisive time, the verdicts, or the winner."""
    if isinstance(result, Measurement):
        what = f"{result.decisive.removesuffix('_us')} on {result.device}, by {result.method}"
        return f"{result.name}: {format_time_estimate(result.time)} ({what})"
    if isinstance(result, Comparison):
        others = (
            f"{other.name} is {describe_verdict(other.verdict, result)}, "
            f"{format_ratio(other.ratio, other.low, other.high)} its time"
            for other in result.others
        )
        return "\n".join(others)
    sure = f"within {format_percent(result.tolerance)} of the best with probability {result.probability:.3g}"
    return f"{result.winner}: {format_time(result.time_us)}, of {len(result.ranking)} {sure}"


def format_elapsed(result: Measurement | Comparison | Pick) -> str:
    """Return how long it took to obtain a result."""
    return f"{result.took_s:.2g} s" if result.took_s < 10 else format_duration(result.took_s)


Cache = Literal["cold", "warm"]
Verdict = Literal["faster", "slower", "same", "unsure"]
TimeQuantity = Literal["busy_us", "span_us", "call_us"]
StopReason = Literal["precise enough", "budget spent", "two levels", "decided", "sample limit", "all processes"]
"""Why it ended; "all processes": every planned process was measured, whatever the result."""
Instability = Literal["drift", "switching"]
NoIntervalReason = Literal["too few samples", "two levels", "drift"]
Caveat = Literal["too few pairs", "too early", "ratio switches", "one side switches", "ratio wanders", "clock moved"]


class ClockSummary(Value):
    """The GPU's clock during a measurement. Null: there is none, or it could not be read."""

    mhz_low: float | None = Field(default=None, description="Lowest clock of a batch, by the device's own counters.")
    mhz: float | None = Field(default=None, description="Median over the batches.")
    mhz_high: float | None = None
    before: GpuSnapshot | None = None
    after: GpuSnapshot | None = None
    throttle: tuple[str, ...] = Field(default=(), description="Every throttle reason observed.")
    throttled_share: float | None = Field(default=None, description="Share of batches with such a reason at their end.")
    locked_mhz: int | None = Field(default=None, description="SM clock locked by Assay during the measurement.")


class ProcessTimes(Value):
    """The result of one fresh process of several; of a failed one, only the reason."""

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

    ``busy_us`` is the sum of its kernels' durations, ``span_us`` is from the start of the first to the end of the last
    with the launches queued, ``call_us`` is what a caller waits. Null: not measured; ``notes`` gives the reason.
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
    decisive: TimeQuantity = Field(description="The time whose precision decided when to stop.")
    instrument_error_us: float | None = Field(
        default=None, description="Error bound of the instrument itself, in addition to the interval; null: unknown."
    )
    operations: int | None = Field(default=None, description="Kernels, copies and fills a call launches.")
    precision_wanted: float
    precision_reached: float | None = Field(description="Half the interval over the value; null without an interval.")
    stopped: StopReason
    shape: str = Field(description="What the samples look like in time: steady, drift, two levels, bursts, too few.")
    scope: Scope = Field(
        default="process", description="What intervals hold for: this process in this window; other processes differ."
    )
    unsteady: Instability | None = Field(
        default=None, description="What moved in the window by more than 0.5 %; null: nothing detectable."
    )
    no_interval: NoIntervalReason | None = Field(
        default=None, description="Why the decisive time has no interval; null where it has one."
    )
    warmed_up: bool = Field(description="Whether the times had settled before sampling.")
    clock: ClockSummary = ClockSummary()
    samples: int
    calls: int = Field(description="All calls made, warm-up included.")
    took_s: float
    notes: tuple[str, ...] = ()
    processes: int = Field(default=1, ge=1, description="Number of fresh processes behind the estimates.")
    by_process: tuple[ProcessTimes, ...] = Field(
        default=(), description="If there are several processes, including failed ones."
    )
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
        return format_measurement(self)


class ComparedFunction(Value):
    """One function compared with the baseline: its time as a multiple of the baseline's."""

    name: str
    verdict: Verdict = Field(description="Of this one, against the first.")
    ratio: float
    low: float | None
    high: float | None
    cycles_verdict: Verdict | None = Field(default=None, description="The same in cycles; null where there are none.")
    cycles_ratio: float | None = None
    reason: str | None = None
    caveat: Caveat | None = Field(default=None, description="The kind of reason; null where the ratio was stable.")
    time_us: Estimate


class Comparison(Value):
    """Which of several functions is faster, measured in interleaved rounds; ``others`` are compared with ``first``."""

    first: str
    first_us: Estimate
    others: tuple[ComparedFunction, ...]
    quantity: TimeQuantity
    minimum_effect: float
    device: str
    cache: Cache
    methods: dict[str, str]
    pairs: int
    stopped: StopReason
    scope: Scope = Field(
        default="process",
        description="What verdicts hold for: this process in this window. Noise of one side that lasts over a quarter "
        "of it only shows in fresh processes.",
    )
    clock: ClockSummary = ClockSummary()
    took_s: float
    notes: tuple[str, ...] = ()
    processes: int = Field(default=1, ge=1, description="Number of fresh processes behind estimates and verdicts.")
    by_process: tuple[ProcessTimes, ...] = Field(
        default=(), description="If there are several processes, including failed ones."
    )
    series: dict[str, tuple[float, ...]] = Field(default_factory=dict, exclude=True, repr=False)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the second function against the first."""
        return self.others[0].verdict

    def __str__(self) -> str:
        return format_comparison(self)


class PickCandidate(Value):
    """The outcome of one candidate of a pick."""

    name: str
    config: Params | None = None
    status: Literal["ok", "failed", "wrong"] = "ok"
    reason: str | None = None
    time_us: float | None = Field(default=None, description="Median of its samples; null where it never ran.")
    behind: float | None = Field(default=None, description="Relative to the winner's time: 0.05 is 5 % slower.")
    behind_low: float | None = None
    behind_high: float | None = None
    rounds: int = 0


class Pick(Value):
    """The fastest of many candidates, and the probability that it is."""

    winner: str
    config: Params | None = None
    time_us: float
    probability: float = Field(description="That the winner is within the tolerance of the best.")
    expected_regret: float = Field(description="Expected slowdown relative to the best, as a share.")
    tolerance: float
    ranking: tuple[PickCandidate, ...]
    quantity: TimeQuantity
    device: str
    cache: Cache
    rounds: int
    calls: int
    stopped: StopReason
    took_s: float
    clock: ClockSummary = ClockSummary()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return format_pick(self)
