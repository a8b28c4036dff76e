"""A kernel trace as a timeline of rows with the nearest sensor readings, its summary, and its page.

The rows are kernels where a GPU was traced, otherwise operators, otherwise calls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.format import format_time
from assay.core.page import Column, Page, Section, Table, Text
from assay.core.results import Origin
from assay.core.values import SCHEMA_VERSION, Params, Value
from assay.monitor.kernel_trace.rows import calls_as_rows, fit_clock, gpu_events, operator_events, rows_from_events
from assay.monitor.samples import GpuSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from assay.core.page import Cell, Tone
    from assay.monitor.kernel_trace.rows import CallSpan, Event, KernelRow, ProfilerClock
    from assay.monitor.samples import RecordingLine


MAX_SENSOR_OFFSET_NS = 250_000_000
"""A sample farther away than this is not assigned to a kernel; the sensors of an H200 update every 100 ms."""


def with_sensors(kernels: Sequence[KernelRow], lines: Iterable[RecordingLine], gpu: int) -> list[KernelRow]:
    """Return the rows with a GPU's sensor readings; unchanged where no sample is near, or no clock is shared."""
    samples = sorted((line for line in lines if isinstance(line, GpuSample) and line.gpu == gpu), key=lambda s: s.t_ns)
    times = [sample.t_ns for sample in samples]
    return [_with_nearest_sample(kernel, samples, times) for kernel in kernels]


def _with_nearest_sample(kernel: KernelRow, samples: Sequence[GpuSample], times: Sequence[int]) -> KernelRow:
    if kernel.start_ns is None or not samples:
        return kernel
    middle_ns = kernel.start_ns + round(kernel.duration_us * 500)
    index = bisect_left(times, middle_ns)
    nearest = min(samples[max(0, index - 1) : index + 1], key=lambda sample: abs(sample.t_ns - middle_ns))
    if abs(nearest.t_ns - middle_ns) > MAX_SENSOR_OFFSET_NS:
        return kernel
    return kernel.model_copy(
        update={
            "sm_mhz": nearest.sm_mhz,
            "temperature_c": nearest.temperature_c,
            "power_instant_w": nearest.power_instant_w,
            "power_usage_w": nearest.power_usage_w,
            "throttle": None if nearest.throttle is None else "; ".join(nearest.throttle) or "none",
            "sensor_offset_ms": (nearest.t_ns - middle_ns) / 1e6,
        }
    )


KERNEL_ROWS = "kernels, copies and fills of the GPU, by its own clock"
OPERATOR_ROWS = "PyTorch's outermost operators, by the host's clock"
CALL_ROWS = "calls, by the host's clock"


@dataclass(frozen=True)
class KernelTimeline:
    """Rows, what they represent, and their relation to the host's clock."""

    kernels: list[KernelRow]
    rows_are: str
    clock: ProfilerClock | None
    notes: tuple[str, ...] = ()


def build_timeline(name: str, spans: Sequence[CallSpan], events: Sequence[Event], *, on_gpu: bool) -> KernelTimeline:
    """Return the rows of a trace: the events of PyTorch's profiler, or the calls if it recorded none of the kind."""
    clock = fit_clock(events, spans) if events else None
    shown = gpu_events(events) if on_gpu else operator_events(events)
    if shown:
        clock_note = ("the profiler's clock could not be tied to the host's: no sensors are laid beside the rows",)
        rows = rows_from_events(shown, events, clock)
        return KernelTimeline(
            rows, KERNEL_ROWS if on_gpu else OPERATOR_ROWS, clock, () if clock is not None else clock_note
        )
    missing = "nothing on the GPU" if on_gpu else "no operator"
    missing_note = (f"PyTorch's profiler saw {missing} in these calls",) if events else ()
    return KernelTimeline(calls_as_rows(spans, name), CALL_ROWS, clock, missing_note)


def rows_with_sensors(timeline: KernelTimeline, lines: Sequence[RecordingLine], gpu: int | None) -> list[KernelRow]:
    """Return the rows with a GPU's sensor readings; unchanged where ``gpu`` is null."""
    return timeline.kernels if gpu is None else with_sensors(timeline.kernels, lines, gpu)


class KernelGroup(Value):
    """All kernels of one name; counters are time-weighted means over those that have them."""

    name: str
    count: int
    total_us: float
    mean_us: float
    share: float = Field(description="Of the time of all of them.")
    sm_efficiency_percent: float | None = None
    achieved_occupancy_percent: float | None = None
    dram_utilisation_percent: float | None = None


class TraceExtent(Value):
    """Duration from the first start to the last end, and how much of it was idle; null where nothing ran."""

    span_s: float | None = None
    busy_s: float | None = Field(default=None, description="Something ran; what ran at once counts once.")
    idle_share: float | None = None


class CountersRead(Value):
    """Which counters were read, with which tool and command; or why none were, and the fix."""

    by: str | None = None
    version: str | None = None
    command: str | None = None
    kernels: int = Field(default=0, description="That were counted.")
    matched: int = Field(default=0, description="Rows that have counters.")
    missing: tuple[str, ...] = Field(default=(), description="Metrics that this chip or this version does not have.")
    refused: str | None = None
    fix: str | None = None


class TraceSummary(Value):
    """The content of ``summary.json``."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    workload: str
    params: Params
    device: str
    gpu: str | None = Field(default=None, description="Its name.")
    gpu_uuid: str | None = None
    calls: int
    warmup: int
    rows: int
    rows_are: str
    clock_error_us: float | None = Field(
        default=None, description="The rows' starts lie on the host's monotonic clock to within this."
    )
    extent: TraceExtent
    by_name: tuple[KernelGroup, ...]
    counters: CountersRead
    notes: tuple[str, ...] = ()
    origin: Origin = "real"


def group_by_name(kernels: Sequence[KernelRow]) -> tuple[KernelGroup, ...]:
    """Return the kernels grouped by name, most total time first."""
    groups: defaultdict[str, list[KernelRow]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.name].append(kernel)
    all_us = sum(kernel.duration_us for kernel in kernels)
    kernel_groups = [_kernel_group(name, group, all_us) for name, group in groups.items()]
    return tuple(sorted(kernel_groups, key=lambda group: -group.total_us))


def _kernel_group(name: str, group: Sequence[KernelRow], all_us: float) -> KernelGroup:
    total_us = sum(kernel.duration_us for kernel in group)
    return KernelGroup(
        name=name,
        count=len(group),
        total_us=total_us,
        mean_us=total_us / len(group),
        share=total_us / all_us if all_us > 0 else 0.0,
        sm_efficiency_percent=_weighted_mean(group, "sm_efficiency_percent"),
        achieved_occupancy_percent=_weighted_mean(group, "achieved_occupancy_percent"),
        dram_utilisation_percent=_weighted_mean(group, "dram_utilisation_percent"),
    )


def _weighted_mean(group: Sequence[KernelRow], column: str) -> float | None:
    weighted = [(getattr(k, column), k.duration_us) for k in group if getattr(k, column) is not None]
    weight = sum(duration for _, duration in weighted)
    return sum(value * duration for value, duration in weighted) / weight if weight > 0 else None


def trace_extent(kernels: Sequence[KernelRow]) -> TraceExtent:
    """Return how long the rows span, and for how much of it nothing ran."""
    if not kernels:
        return TraceExtent()
    spans = sorted((kernel.start_s, kernel.end_s) for kernel in kernels)
    busy_s, until = 0.0, spans[0][0]
    for start, end in spans:
        busy_s += max(0.0, end - max(start, until))
        until = max(until, end)
    span_s = until - spans[0][0]
    return TraceExtent(span_s=span_s, busy_s=busy_s, idle_share=1 - busy_s / span_s if span_s > 0 else None)


MAX_ROWS = 20
MAX_NAME_LENGTH = 60
_COUNTER_TITLES = {
    "sm_efficiency_percent": "SM busy (%)",
    "achieved_occupancy_percent": "occupancy (%)",
    "dram_utilisation_percent": "memory (%)",
}


def trace_page(summary: TraceSummary) -> Page:
    """Return the page of a trace."""
    where = summary.device if summary.gpu is None else f"{summary.device} ({summary.gpu})"
    remarks = tuple(Text(text=text, tone=tone) for text, tone in _remarks(summary))
    sections = [Section(title="By time", elements=(_table(summary),))] if summary.by_name else []
    sections += [Section(title="Worth knowing", elements=remarks)] if remarks else []
    return Page(
        title=f"{summary.workload} on {where}, traced",
        lead=_lead(summary),
        sections=tuple(sections),
        origin=summary.origin,
    )


def _row_noun(summary: TraceSummary) -> str:
    """Return the noun for the rows."""
    return {KERNEL_ROWS: "kernel", CALL_ROWS: "call"}.get(summary.rows_are, "operator")


def _lead(summary: TraceSummary) -> str:
    calls = f"{summary.calls} call{'' if summary.calls == 1 else 's'}"
    extent = summary.extent
    if extent.span_s is None or extent.busy_s is None:
        return f"Nothing was seen to run in {calls}."
    what = _row_noun(summary)
    ran = calls if what == "call" else f"{summary.rows} {what}{'' if summary.rows == 1 else 's'} of {calls}"
    idle = "" if extent.idle_share is None else f"; for {100 * extent.idle_share:.1f} % of that none ran"
    return f"{ran} took {format_time(extent.span_s * 1e6)} from the first start to the last end{idle}."


def _table(summary: TraceSummary) -> Table:
    counted = [name for name in _COUNTER_TITLES if any(getattr(row, name) is not None for row in summary.by_name)]
    shown = summary.by_name[:MAX_ROWS]
    left = len(summary.by_name) - len(shown)
    return Table(
        title=f"{_row_noun(summary).capitalize()}s by total time",
        columns=(
            Column(title=_row_noun(summary)),
            Column(title="times", numeric=True),
            Column(title="total (µs)", numeric=True),
            Column(title="mean (µs)", numeric=True),
            Column(title="share (%)", numeric=True),
            *(Column(title=_COUNTER_TITLES[name], numeric=True) for name in counted),
        ),
        rows=tuple(_cells(row, counted) for row in shown),
        note=f"{left} more names are in the files." if left else None,
    )


def _cells(row: KernelGroup, counted: list[str]) -> tuple[Cell, ...]:
    name = row.name if len(row.name) <= MAX_NAME_LENGTH else f"{row.name[: MAX_NAME_LENGTH - 1]}…"
    return (name, row.count, row.total_us, row.mean_us, 100 * row.share, *(getattr(row, column) for column in counted))


def _remarks(summary: TraceSummary) -> Iterator[tuple[str, Tone]]:
    refused = summary.counters.refused
    if refused is not None and summary.gpu is not None:
        fix = summary.counters.fix
        yield f"No counters: {refused}.{f' To fix it: {fix}.' if fix else ''}", "unsure" if fix else "plain"
    for note in summary.notes:
        yield f"{note[:1].upper()}{note[1:]}.", "plain"
