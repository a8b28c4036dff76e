"""Rows of a kernel trace, and the traces of the PyTorch profiler (Kineto) that they are read from.

A row is a kernel, copy or fill on a GPU; on a CPU a PyTorch operator, or a whole call.

Every call is enclosed in a mark. The host's clock is read just before and just after a mark is set, which bounds the
offset between the trace's clock, whatever its zero, and the host's:

    host    entered ──┬── began                      the offset lies between entered - mark and began - mark;
    trace           mark ├── call ── launch …        the narrowest bounds of all calls are used
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import Field

from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


RowKind = Literal["kernel", "copy", "fill", "operator", "call"]
Dim3 = tuple[int, int, int]


class CallSpan(Value):
    """A call in ns of the host's monotonic clock: before its mark was set, just after, and when it returned."""

    entered_ns: int
    began_ns: int
    ended_ns: int


class KernelRow(Value):
    """One row. What is unknown is null: sensors where none was read, counters where they are not permitted."""

    index: int = Field(description="In the order of their starts, from 0.")
    call: int | None = Field(default=None, description="The call that launched it, from 0.")
    kind: RowKind
    name: str
    start_s: float = Field(description="Since the first traced call began.")
    start_ns: int | None = Field(default=None, description="On the host's monotonic clock.")
    duration_us: float
    grid: Dim3 | None = None
    block: Dim3 | None = None
    registers: int | None = Field(default=None, description="Per thread.")
    shared_memory_bytes: int | None = Field(default=None, description="Per block.")
    stream: int | None = None
    correlation: int | None = Field(default=None, description="Grows from launch to launch.")
    occupancy_estimate_percent: float | None = Field(
        default=None, description="By the profiler, from registers, shared memory and the grid; nothing is measured."
    )
    copied_bytes: int | None = None

    sm_mhz: int | None = Field(default=None, description="This and the next five: of the look nearest to its middle.")
    temperature_c: int | None = None
    power_instant_w: float | None = Field(default=None, description="Of the card, as of its sensor's last tick.")
    power_usage_w: float | None = Field(default=None, description="Of a card that does not offer the instant value.")
    throttle: str | None = Field(
        default=None, description='Why the clock was not higher; "none": nothing held it back.'
    )
    sensor_offset_ms: float | None = Field(default=None, description="From its middle to that look.")

    sm_efficiency_percent: float | None = Field(default=None, description="This and the rest: in a run of their own.")
    achieved_occupancy_percent: float | None = None
    dram_utilisation_percent: float | None = None
    l2_hit_percent: float | None = None
    sysmem_read_bytes: float | None = None
    sysmem_write_bytes: float | None = None
    sysmem_utilisation_percent: float | None = Field(
        default=None, description="Of what the card's PCIe link carries one way, the busier way."
    )

    @property
    def end_s(self) -> float:
        """When the row ended, in s since the first traced call began."""
        return self.start_s + self.duration_us / 1e6


SENSOR_COLUMNS = ("sm_mhz", "temperature_c", "power_instant_w", "power_usage_w", "throttle", "sensor_offset_ms")
COUNTER_COLUMNS = (
    "sm_efficiency_percent",
    "achieved_occupancy_percent",
    "dram_utilisation_percent",
    "l2_hit_percent",
    "sysmem_read_bytes",
    "sysmem_write_bytes",
    "sysmem_utilisation_percent",
)


def calls_as_rows(spans: Sequence[CallSpan], name: str) -> list[KernelRow]:
    """Return a row for each call, by the host's clock."""
    return [
        KernelRow(
            index=number,
            call=number,
            kind="call",
            name=name,
            start_s=(span.began_ns - spans[0].began_ns) / 1e9,
            start_ns=span.began_ns,
            duration_us=(span.ended_ns - span.began_ns) / 1e3,
        )
        for number, span in enumerate(spans)
    ]


def format_csv(kernels: Iterable[KernelRow], *, origin: str) -> str:
    """Return rows as CSV with a heading; null is empty, and each row states its origin, e.g. a fake driver."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*KernelRow.model_fields, "origin"])
    for kernel in kernels:
        writer.writerow([*(_csv_cell(getattr(kernel, name)) for name in KernelRow.model_fields), origin])
    return buffer.getvalue()


def _csv_cell(value: object) -> object:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    return "" if value is None else value


Event: TypeAlias = dict[str, Any]
"""An event of Chrome's trace format: ``ts`` and ``dur`` are microseconds."""

CALL_MARK = "assay call"

_GPU_CATEGORIES: dict[str, RowKind] = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "fill"}
_LAUNCH_CATEGORIES = {"cuda_runtime", "cuda_driver"}
_NOT_OPERATORS = ("autograd::", "profiler::")


@dataclass(frozen=True)
class ProfilerClock:
    """Converts trace time in µs to ns of the host's monotonic clock, with the error of the conversion."""

    offset_ns: float
    error_us: float

    def host_ns(self, trace_us: float) -> int:
        """Return a trace timestamp on the host's clock."""
        return round(trace_us * 1e3 + self.offset_ns)


def call_mark(number: int) -> str:
    """Return the name of a call's mark."""
    return f"{CALL_MARK} {number}"


def fit_clock(events: Iterable[Event], spans: Sequence[CallSpan]) -> ProfilerClock | None:
    """Return the offset between the two clocks; null where the trace contains none of the marks."""
    marks = _call_marks(events)
    low = [spans[n].entered_ns - begin * 1e3 for n, (begin, _) in marks.items() if n < len(spans)]
    high = [spans[n].began_ns - begin * 1e3 for n, (begin, _) in marks.items() if n < len(spans)]
    if not low:
        return None
    if max(low) <= min(high):
        return ProfilerClock((max(low) + min(high)) / 2, (min(high) - max(low)) / 2e3)
    drifting = (max(high) - min(low)) / 2e3
    return ProfilerClock((median(low) + median(high)) / 2, drifting)


def gpu_events(events: Iterable[Event]) -> list[Event]:
    """Return the GPU's events, by start time."""
    return sorted(
        (e for e in events if e.get("cat") in _GPU_CATEGORIES and e.get("ph") == "X"), key=lambda e: float(e["ts"])
    )


def operator_events(events: Iterable[Event]) -> list[Event]:
    """Return the outermost PyTorch operators on each thread; nested operators are part of them."""
    candidates = [e for e in events if e.get("cat") == "cpu_op" and e.get("ph") == "X" and _is_operator(str(e["name"]))]
    candidates.sort(key=lambda e: (str(e["tid"]), float(e["ts"]), -float(e["dur"])))
    outermost: list[Event] = []
    for _, thread in groupby(candidates, key=lambda e: str(e["tid"])):
        until = float("-inf")
        for event in thread:
            if float(event["ts"]) >= until:
                outermost.append(event)
                until = float(event["ts"]) + float(event["dur"])
    return sorted(outermost, key=lambda e: float(e["ts"]))


def rows_from_events(shown: Sequence[Event], events: Sequence[Event], clock: ProfilerClock | None) -> list[KernelRow]:
    """Return the events of ``shown`` as rows; ``events``, all of them, determine the call each belongs to."""
    calls = _CallIndex(events)
    zero_us = calls.first_us if calls.first_us is not None else min((float(e["ts"]) for e in shown), default=0.0)
    return [_row(number, event, calls, zero_us, clock) for number, event in enumerate(shown)]


def _row(index: int, event: Event, calls: _CallIndex, zero_us: float, clock: ProfilerClock | None) -> KernelRow:
    start_us, args = float(event["ts"]), event.get("args", {})
    correlation = _integer(args.get("correlation"))
    kind = _GPU_CATEGORIES.get(str(event["cat"]), "operator")
    return KernelRow(
        index=index,
        call=calls.of(correlation, start_us),
        kind=kind,
        name=str(event["name"]),
        start_s=(start_us - zero_us) / 1e6,
        start_ns=None if clock is None else clock.host_ns(start_us),
        duration_us=float(event.get("dur", 0.0)),
        grid=_dim3(args.get("grid")),
        block=_dim3(args.get("block")),
        registers=_integer(args.get("registers per thread")),
        shared_memory_bytes=_integer(args.get("shared memory")),
        stream=_integer(args.get("stream")),
        correlation=correlation,
        occupancy_estimate_percent=_number(args.get("est. achieved occupancy %")),
        copied_bytes=_integer(args.get("bytes")),
    )


class _CallIndex:
    """Maps an event to a call: the one within whose mark it was launched, or started if nothing launched it."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._begins = sorted((begin, end, number) for number, (begin, end) in _call_marks(events).items())
        self._launches = {
            _integer(e["args"]["correlation"]): float(e["ts"])
            for e in events
            if e.get("cat") in _LAUNCH_CATEGORIES and "correlation" in e.get("args", {})
        }
        self.first_us = self._begins[0][0] if self._begins else None

    def of(self, correlation: int | None, start_us: float) -> int | None:
        """Return the call's number; null if the event lies in none."""
        at_us = start_us if correlation is None else self._launches.get(correlation, start_us)
        index = bisect_right(self._begins, (at_us, float("inf"), 0)) - 1
        if index < 0 or at_us > self._begins[index][1]:
            return None
        return self._begins[index][2]


def _call_marks(events: Iterable[Event]) -> dict[int, tuple[float, float]]:
    """Return when each call's mark began and ended, by its number; the GPU's copies of the marks do not count."""
    marks: dict[int, tuple[float, float]] = {}
    for event in events:
        name, number = str(event.get("name", "")).rpartition(" ")[::2]
        if (
            name == CALL_MARK
            and number.isdecimal()
            and event.get("cat") == "user_annotation"
            and event.get("ph") == "X"
        ):
            begin = float(event["ts"])
            marks[int(number)] = begin, begin + float(event["dur"])
    return marks


def _is_operator(name: str) -> bool:
    return "::" in name and not name.startswith(_NOT_OPERATORS)


def _dim3(value: object) -> Dim3 | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    x, y, z = (int(side) for side in value)
    return x, y, z


def _number(value: object) -> float | None:
    try:
        return None if value is None else float(str(value))
    except ValueError:
        return None


def _integer(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
