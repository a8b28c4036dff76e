"""Results in words, for a terminal or a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.units import format_span, format_time

if TYPE_CHECKING:
    from assay.core.results import Estimate, Scope
    from assay.timing.values import Clock, Comparison, Measurement, Pick

MEANING = {
    "busy_us": "kernels at work",
    "span_us": "first start to last end",
    "call_us": "what a caller waits",
}


def measurement_text(measurement: Measurement) -> str:
    """Return a measurement in a few lines."""
    lines = [f"{measurement.name} on {measurement.device}, {measurement.cache} cache"]
    for quantity, meaning in MEANING.items():
        estimate = getattr(measurement, quantity)
        if estimate is not None:
            lines.append(f"  {quantity.removesuffix('_us'):<5} {time_text(estimate)}   {meaning}")
    if measurement.cycles is not None:
        clock = clock_text(measurement.clock)
        lines.append(f"  {measurement.cycles.value:,.0f} cycles{f' at {clock}' if clock else ''}")
    lines.append(f"  by {measurement.method}: {measurement.why}")
    if measurement.instrument_error_us is not None:
        lines.append(f"  the instrument itself is good to ±{format_time(measurement.instrument_error_us)}")
    lines.append(
        f"  {precision_text(measurement)}; {count_text(measurement.samples, 'sample')} in {took_text(measurement)}"
    )
    lines.append(f"  {scope_text(measurement.scope)}")
    lines.extend(f"  note: {note}" for note in measurement.notes)
    return "\n".join(lines)


def scope_text(scope: Scope) -> str:
    """Return what an interval holds for."""
    if scope == "process":
        return "the interval is of this process and this window; a fresh process may differ by more (assay time)"
    return "the interval is over fresh processes" if scope == "run" else "the interval is of this machine"


def slow_noise_text() -> str:
    """Return which noise a verdict from a single process does not cover."""
    return "noise of one side slower than a quarter of this window: only fresh processes show it (assay time)"


def time_text(estimate: Estimate) -> str:
    """Return a time with its interval: ``13.6 µs ± 0.4 %``."""
    value = format_time(estimate.value)
    half = estimate.relative_half_width
    if half is None:
        return f"{value} (no interval)"
    return f"{value} ± {percent_text(half)}"


def percent_text(share: float) -> str:
    """Return a share as a percentage of two digits: ``0.41 %``."""
    percent = 100 * share
    if 0 < percent < 0.01:
        return "under 0.01 %"
    return f"{percent:.2g} %" if percent < 99.5 else f"{percent:.0f} %"


def clock_text(clock: Clock) -> str:
    """Return the clock of a measurement, or nothing where there is none."""
    if clock.mhz is None or clock.mhz_low is None or clock.mhz_high is None:
        return ""
    if clock.mhz_high - clock.mhz_low < 0.01 * clock.mhz:
        return f"{clock.mhz:.0f} MHz"
    return f"{clock.mhz:.0f} MHz ({clock.mhz_low:.0f} to {clock.mhz_high:.0f})"


def precision_text(measurement: Measurement) -> str:
    """Return whether the precision that was wanted was reached, and why not."""
    target = f"±{percent_text(measurement.precision_wanted)}"
    if measurement.stopped == "precise enough":
        return f"{target} reached"
    if measurement.stopped == "two levels":
        return f"{target} cannot be reached: the times switch between two levels"
    if measurement.processes > 1 and measurement.precision_reached is not None:
        return f"{target} not reached, ±{percent_text(measurement.precision_reached)} over the processes"
    if measurement.precision_reached is None:
        why = measurement.no_interval or measurement.shape
        return f"{target} not reached: the samples allow no interval ({why})"
    if measurement.stopped == "sample limit":
        return f"{target} not reached, ±{percent_text(measurement.precision_reached)} with as many samples as are kept"
    return f"{target} not reached, ±{percent_text(measurement.precision_reached)} when the budget was spent"


def comparison_text(comparison: Comparison) -> str:
    """Return a comparison in a few lines."""
    lines = [f"{comparison.first}: {time_text(comparison.first_us)} ({comparison.quantity.removesuffix('_us')})"]
    for other in comparison.others:
        line = f"{other.name}: {time_text(other.time_us)}, {verdict_text(other.verdict, comparison)}"
        lines.append(f"{line}, {ratio_text(other.ratio, other.low, other.high)}")
        if other.reason:
            lines.append(f"  {other.reason}")
    rounds = count_text(comparison.pairs, "round")
    lines.append(f"  {rounds} in turns in {took_text(comparison)} on {comparison.device}; ratios are within rounds")
    if comparison.scope == "process":
        lines.append(f"  not covered: {slow_noise_text()}")
    lines.extend(f"  note: {note}" for note in comparison.notes)
    return "\n".join(lines)


def ratio_text(ratio: float, low: float | None, high: float | None) -> str:
    """Return a ratio of times with its interval."""
    within = "" if low is None or high is None else f" ({low:.4g} to {high:.4g})"
    return f"{ratio:.4g} × its time{within}"


def verdict_text(verdict: str, comparison: Comparison) -> str:
    """Return a verdict as part of a sentence."""
    effect = percent_text(comparison.minimum_effect)
    return {
        "faster": f"faster than {comparison.first} by more than {effect}",
        "slower": f"slower than {comparison.first} by more than {effect}",
        "same": f"the same as {comparison.first} within {effect}",
        "unsure": f"not decided against {comparison.first}",
    }[verdict]


def pick_text(pick: Pick) -> str:
    """Return a pick in a few lines: the winner, how sure, and the next best."""
    lines = [
        f"{pick.winner}: {format_time(pick.time_us)} ({pick.quantity.removesuffix('_us')}, {pick.cache} cache)",
    ]
    sure = f"within {percent_text(pick.tolerance)} of the best with probability {pick.probability:.3g}"
    lines.append(f"  {sure}, expected regret {percent_text(pick.expected_regret)}")
    shown = [c for c in pick.ranking if c.status == "ok" and c.name != pick.winner][:4]
    lines.extend(f"  {c.name}: {100 * (c.behind or 0):+.1f} %" for c in shown)
    failed = [c for c in pick.ranking if c.status != "ok"]
    if failed:
        first = f"first {failed[0].name}: {failed[0].reason}"
        lines.append(f"  {len(failed)} of {len(pick.ranking)} failed or were wrong, {first}")
    counts = (
        count_text(len(pick.ranking), "candidate"),
        count_text(pick.rounds, "round"),
        count_text(pick.calls, "call"),
    )
    lines.append(f"  {', '.join(counts)}, {took_text(pick)}")
    lines.extend(f"  note: {note}" for note in pick.notes)
    return "\n".join(lines)


def line_of(result: Measurement | Comparison | Pick) -> str:
    """Return a result in one line for a list of many: the decisive time, the verdicts, or the winner."""
    from assay.timing.values import Comparison, Measurement

    if isinstance(result, Measurement):
        what = f"{result.decisive.removesuffix('_us')} on {result.device}, by {result.method}"
        return f"{result.name}: {time_text(result.time)} ({what})"
    if isinstance(result, Comparison):
        others = (
            f"{other.name} is {verdict_text(other.verdict, result)}, {ratio_text(other.ratio, other.low, other.high)}"
            for other in result.others
        )
        return "\n".join(others)
    sure = f"within {percent_text(result.tolerance)} of the best with probability {result.probability:.3g}"
    return f"{result.winner}: {format_time(result.time_us)}, of {len(result.ranking)} {sure}"


def took_text(result: Measurement | Comparison | Pick) -> str:
    """Return how long it took to find out."""
    return f"{result.took_s:.2g} s" if result.took_s < 10 else format_span(result.took_s)


def count_text(number: int, what: str) -> str:
    """Return a number of things: ``1 sample``, ``16 samples``."""
    return f"{number} {what}{'' if number == 1 else 's'}"
