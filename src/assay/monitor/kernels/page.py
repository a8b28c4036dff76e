"""What a trace comes to, on a screen: kernels by the time they took, and what must be known of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Page, Section, Table, Text
from assay.core.units import format_time
from assay.monitor.kernels.timeline import CALLS, KERNELS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.page import Cell, Tone
    from assay.monitor.kernels.summary import ByName, TraceSummary

MOST_ROWS = 20
LONGEST_NAME = 60
_COUNTED = {
    "sm_efficiency_percent": "SM busy (%)",
    "achieved_occupancy_percent": "occupancy (%)",
    "dram_utilisation_percent": "memory (%)",
}


def page_of(summary: TraceSummary) -> Page:
    """Return the page of a trace."""
    where = summary.device if summary.gpu is None else f"{summary.device} ({summary.gpu})"
    remarks = tuple(Text(text=text, tone=tone) for text, tone in _worth_knowing(summary))
    sections = [Section(title="By time", elements=(_table(summary),))] if summary.by_name else []
    sections += [Section(title="Worth knowing", elements=remarks)] if remarks else []
    return Page(
        title=f"{summary.workload} on {where}, traced",
        lead=_lead(summary),
        sections=tuple(sections),
        origin=summary.origin,
    )


def _what(summary: TraceSummary) -> str:
    """Return what the rows are in a word."""
    return {KERNELS: "kernel", CALLS: "call"}.get(summary.rows_are, "operator")


def _lead(summary: TraceSummary) -> str:
    calls = f"{summary.calls} call{'' if summary.calls == 1 else 's'}"
    extent = summary.extent
    if extent.span_s is None or extent.busy_s is None:
        return f"Nothing was seen to run in {calls}."
    what = _what(summary)
    ran = calls if what == "call" else f"{summary.rows} {what}{'' if summary.rows == 1 else 's'} of {calls}"
    idle = "" if extent.idle_share is None else f"; for {100 * extent.idle_share:.1f} % of that none ran"
    return f"{ran} took {format_time(extent.span_s * 1e6)} from the first start to the last end{idle}."


def _table(summary: TraceSummary) -> Table:
    counted = [name for name in _COUNTED if any(getattr(row, name) is not None for row in summary.by_name)]
    shown = summary.by_name[:MOST_ROWS]
    left = len(summary.by_name) - len(shown)
    return Table(
        title=f"{_what(summary).capitalize()}s by total time",
        columns=(
            Column(title=_what(summary)),
            Column(title="times", numeric=True),
            Column(title="total (µs)", numeric=True),
            Column(title="mean (µs)", numeric=True),
            Column(title="share (%)", numeric=True),
            *(Column(title=_COUNTED[name], numeric=True) for name in counted),
        ),
        rows=tuple(_cells(row, counted) for row in shown),
        note=f"{left} more names are in the files." if left else None,
    )


def _cells(row: ByName, counted: list[str]) -> tuple[Cell, ...]:
    name = row.name if len(row.name) <= LONGEST_NAME else f"{row.name[: LONGEST_NAME - 1]}…"
    return (name, row.count, row.total_us, row.mean_us, 100 * row.share, *(getattr(row, column) for column in counted))


def _worth_knowing(summary: TraceSummary) -> Iterator[tuple[str, Tone]]:
    refused = summary.counters.refused
    if refused is not None and summary.gpu is not None:
        fix = summary.counters.mend
        yield f"No counters: {refused}.{f' What mends it: {fix}.' if fix else ''}", "unsure" if fix else "plain"
    for note in summary.notes:
        yield f"{note[:1].upper()}{note[1:]}.", "plain"
