"""A measurement or a comparison in a terminal: a small table, and how it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table as RichTable
from rich.text import Text as Words

from assay.core.format import format_count, format_percent, format_time
from assay.reports.terminal import TONE_STYLES, Grid, print_encodable, print_grid
from assay.reports.text import DASH, TONE_MARKS, one_line, visible_text
from assay.timing.results import (
    QUANTITY_MEANINGS,
    Measurement,
    describe_precision,
    describe_slow_noise,
    format_clock,
    format_elapsed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from assay.core.page import Text, Tone
    from assay.core.results import Estimate
    from assay.reports.terminal import ColumnKind
    from assay.timing.results import ComparedFunction, Comparison

_VERDICT_TONES: Mapping[str, Tone] = {"faster": "good", "slower": "bad", "same": "plain", "unsure": "unsure"}
Facts = list[tuple[str, str]]


def print_measurement(measurement: Measurement, console: Console, quality: Text | None = None) -> None:
    """Print the times of a call with their intervals, how far they can be trusted, and how they were measured."""
    print_encodable(console, lambda target: _print_measurement(measurement, target, quality))


def print_comparison(comparison: Comparison, console: Console, quality: Text | None = None) -> None:
    """Print which functions are faster than the first, how far to trust that, and how it was measured."""
    print_encodable(console, lambda target: _print_comparison(comparison, target, quality))


def _print_measurement(measurement: Measurement, console: Console, quality: Text | None) -> None:
    _print_title(f"{measurement.name} on {measurement.device}, {measurement.cache} cache", quality, console)
    rows: list[tuple[str, ...]] = []
    styles = []
    for quantity, meaning in QUANTITY_MEANINGS.items():
        estimate: Estimate | None = getattr(measurement, quantity)
        if estimate is not None:
            rows.append((quantity.removesuffix("_us"), *_estimate_cells(estimate), meaning))
            styles.append("bold" if quantity == measurement.decisive else "")
    kinds: tuple[ColumnKind, ...] = ("text", "number", "number", "number", "text")
    centre = "median" if measurement.processes == 1 else "typical"
    _print_table(("time", centre, "±", "interval", "what it is"), kinds, rows, styles, console)
    facts = [
        _interval_fact(measurement),
        ("precision", _precision(measurement)),
        ("samples", f"{measurement.samples:,} in {format_elapsed(measurement)}"),
        ("method", f"{measurement.method}: {measurement.why}"),
    ]
    if measurement.operations is not None and measurement.operations > 1:
        facts.append(("a call is", f"{measurement.operations} kernels, copies and fills"))
    if measurement.instrument_error_us is not None:
        facts.append(("instrument", f"good to ±{format_time(measurement.instrument_error_us)}, on top of the interval"))
    clock = format_clock(measurement.clock)
    if clock:
        cycles = f", {measurement.cycles.value:,.0f} cycles" if measurement.cycles is not None else ""
        facts.append(("clock", f"{clock}{cycles}"))
    _print_facts(facts, measurement.notes, console)


def _print_comparison(comparison: Comparison, console: Console, quality: Text | None) -> None:
    quantity = comparison.quantity.removesuffix("_us")
    many = format_count(1 + len(comparison.others), "function")
    _print_title(f"{many} in turns on {comparison.device}, {comparison.cache} cache", quality, console)
    rows: list[tuple[str, ...]] = [(comparison.first, *_estimate_cells(comparison.first_us)[:2], "1", "", "the first")]
    rows += [_comparison_row(other) for other in comparison.others]
    tones: list[Tone] = ["plain", *(_VERDICT_TONES[other.verdict] for other in comparison.others)]
    kinds: tuple[ColumnKind, ...] = ("text", "number", "number", "number", "number", "text")
    heads = ("function", quantity, "±", "ratio", "interval", "verdict")
    marks = tuple(f"{TONE_MARKS[tone] or ' '} " for tone in tones)
    _print_table(heads, kinds, rows, [TONE_STYLES[tone] for tone in tones], console, marks=marks)
    methods = sorted(set(comparison.methods.values()))
    facts = [
        _interval_fact(comparison),
        ("compared by", f"{quantity}, {QUANTITY_MEANINGS[comparison.quantity]}; method {' and '.join(methods)}"),
        ("rounds", f"{comparison.pairs:,} in {format_elapsed(comparison)}, {comparison.stopped}"),
        ("the same", f"what differs by less than {format_percent(comparison.minimum_effect)}"),
    ]
    facts += [("not covered", describe_slow_noise())] if comparison.scope == "process" else []
    clock = format_clock(comparison.clock)
    facts += [("clock", clock)] if clock else []
    reasons = [f"{other.name}: {other.reason}" for other in comparison.others if other.reason]
    _print_facts(facts, (*reasons, *comparison.notes), console)


def _comparison_row(other: ComparedFunction) -> tuple[str, ...]:
    within = DASH if other.low is None or other.high is None else f"{other.low:.4g} {DASH} {other.high:.4g}"
    return (other.name, *_estimate_cells(other.time_us)[:2], f"{other.ratio:.4g}", within, other.verdict)


def _estimate_cells(estimate: Estimate) -> tuple[str, str, str]:
    """Return an estimate's value, its relative half-width and its interval."""
    half = estimate.relative_half_width
    if half is None or estimate.low is None or estimate.high is None:
        return format_time(estimate.value), DASH, DASH
    low, high = format_time(estimate.low), format_time(estimate.high)
    if low.split()[-1] == high.split()[-1]:
        low = low.split()[0]
    return format_time(estimate.value), format_percent(half), f"{low} {DASH} {high}"


def _print_title(text: str, quality: Text | None, console: Console) -> None:
    console.print(Words(one_line(text), style="bold"))
    if quality is not None:
        mark = f"{TONE_MARKS[quality.tone]} " if TONE_MARKS[quality.tone] else ""
        console.print(Words(f"{mark}{visible_text(quality.text)}", style=TONE_STYLES[quality.tone]))
    console.print()


def _print_table(
    heads: tuple[str, ...],
    kinds: tuple[ColumnKind, ...],
    rows: list[tuple[str, ...]],
    styles: list[str],
    console: Console,
    *,
    marks: tuple[str, ...] = (),
) -> None:
    cells = tuple(
        tuple(Words(visible_text(cell), style=style) for cell in row) for row, style in zip(rows, styles, strict=True)
    )
    print_grid(Grid(heads, kinds, cells, marks), console)


def _print_facts(facts: Facts, notes: tuple[str, ...], console: Console) -> None:
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(Words(name), Words(visible_text(value)))
    for note in notes:
        grid.add_row(Words("note", style="yellow"), Words(visible_text(note)))
    console.print()
    console.print(grid)


def _interval_fact(result: Measurement | Comparison) -> tuple[str, str]:
    """Return what the intervals cover: fresh starts, or this one process."""
    if result.scope == "process":
        return "interval", "of this one process and this window: a fresh start may differ by more (--processes 5)"
    name = result.decisive if isinstance(result, Measurement) else result.first
    values = [process.times[name].value for process in result.by_process if name in process.times]
    low, high = format_time(min(values)), format_time(max(values))
    of = "" if isinstance(result, Measurement) else f" of {result.first}"
    return "interval", f"over {result.processes} fresh processes, whose medians{of} are {low} to {high}"


def _precision(measurement: Measurement) -> str:
    """Return whether the precision was reached; with the confidence, where there is an interval."""
    sure = ", with 95 % confidence" if measurement.precision_reached is not None else ""
    return f"{describe_precision(measurement)}{sure}"
