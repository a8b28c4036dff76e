"""Traces for the Perfetto UI (https://ui.perfetto.dev) in Chrome's JSON trace format.

Of a recording, or of traced kernels.

Levels are counter tracks with the values as read; cumulative quantities become rates per second. Marks are instants,
spans are slices. A kernel trace shows the profiler's events with the sensors below them, on the host's clock.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from assay.core.files import replace_from_chunks, translate_os_errors
from assay.monitor.kernel_trace.rows import COUNTER_COLUMNS, SENSOR_COLUMNS, gpu_events
from assay.monitor.samples import (
    GpuMeterSample,
    GpuSample,
    HostSample,
    Mark,
    RecordingHeader,
    quantity_info,
    sample_values,
    source_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from assay.monitor.kernel_trace.rows import KernelRow, ProfilerClock
    from assay.monitor.samples import RecordingLine, Sample


TraceEvent: TypeAlias = dict[str, Any]

_MARKS = 1
_HOST = 2
_FIRST_GPU = 10
"""Process numbers under which the UI groups the tracks."""


def write_trace(lines: Iterable[RecordingLine], path: Path) -> None:
    """Write the trace of a recording, line by line.

    Raises:
        MachineCannot: The file cannot be written.
        BadInput: The path is invalid.
    """
    write_events(recording_events(lines), path)


def write_events(events: Iterable[TraceEvent], path: Path) -> None:
    """Write events in Chrome's format as a complete file, one by one.

    Raises:
        MachineCannot: The file cannot be written.
        BadInput: The path is invalid.
    """
    replace_from_chunks(path, _encode_events(events))


def _encode_events(events: Iterable[TraceEvent]) -> Iterator[bytes]:
    between = '{"displayTimeUnit":"ms","traceEvents":[\n'
    for event in events:
        yield (between + json.dumps(event, separators=(",", ":"))).encode()
        between = ",\n"
    yield b"\n]}\n"


def check_writable(path: Path) -> None:
    """Check that a trace can be written to the path later; an existing file keeps its content.

    Raises:
        MachineCannot: It cannot.
        BadInput: The path is invalid.
    """
    with translate_os_errors(path):
        if not path.exists() or path.is_file() or path.is_dir():
            path.open("ab").close()


def recording_events(lines: Iterable[RecordingLine], *, zero_ns: int = 0, first: int = 0) -> Iterator[TraceEvent]:
    """Yield the events of a recording, in µs since ``zero_ns``, by default its beginning.

    ``first`` is added to the process numbers, so that the recording can be shown beside other processes.
    """
    rates = _Rates()
    ends_us: list[float] = []
    for line in lines:
        if isinstance(line, RecordingHeader):
            zero_ns = zero_ns or line.t_ns
            events = _process_names(line)
        elif isinstance(line, GpuSample | GpuMeterSample | HostSample):
            events = _counter_events(line, zero_ns, rates)
        elif isinstance(line, Mark):
            events = iter([_mark_event(line, zero_ns, ends_us)])
        else:
            continue
        yield from ({**event, "pid": event["pid"] + first} for event in events)


def _process_names(header: RecordingHeader) -> Iterator[TraceEvent]:
    named = {_MARKS: "marks", **({_HOST: "host"} if header.host_every is not None else {})}
    named |= {_FIRST_GPU + gpu.index: f"GPU {gpu.index} {gpu.name or ''}".rstrip() for gpu in header.gpus}
    for number, name in named.items():
        yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": name}}


class _Rates:
    """Rates of cumulative quantities since the previous reading; null for the first and after a decrease."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], tuple[int, float]] = {}

    def of(self, sample: Sample, quantity: str, value: float) -> float | None:
        key = source_of(sample), quantity
        before = self._before.get(key)
        self._before[key] = sample.t_ns, value
        if before is None or value < before[1] or sample.t_ns <= before[0]:
            return None
        return (value - before[1]) / ((sample.t_ns - before[0]) / 1e9)


def _counter_events(sample: Sample, zero_ns: int, rates: _Rates) -> Iterator[TraceEvent]:
    number = _HOST if isinstance(sample, HostSample) else _FIRST_GPU + sample.gpu
    for quantity, value in sample_values(sample):
        info = quantity_info(quantity, gpu=number != _HOST)
        shown = rates.of(sample, quantity, value) if info.counts else value
        if shown is None:
            continue
        unit = f"{info.unit or '1'}/s" if info.counts else info.unit
        name = f"{info.title} ({unit})" if unit else info.title
        at_us = (sample.t_ns - zero_ns) / 1e3
        yield {"ph": "C", "name": name, "pid": number, "tid": 0, "ts": at_us, "args": {"value": shown}}


def _mark_event(mark: Mark, zero_ns: int, ends_us: list[float]) -> TraceEvent:
    """Return a mark as an event; overlapping spans are shown in separate rows."""
    start_us = (mark.start_ns - zero_ns) / 1e3
    common = {"name": mark.name, "cat": "mark", "pid": _MARKS, "ts": start_us}
    if mark.end_ns is None:
        return {**common, "ph": "i", "s": "g", "tid": 0}
    row = next((row for row, end_us in enumerate(ends_us) if end_us <= start_us), len(ends_us))
    ends_us[row : row + 1] = [(mark.end_ns - zero_ns) / 1e3]
    return {**common, "ph": "X", "dur": ends_us[row] - start_us, "tid": row + 1}


SENSOR_PID_OFFSET = 10_000_000
"""Process numbers from this on are sensors: the profiler uses system PIDs, and numbers GPUs from 0."""

_CALLS_PID = SENSOR_PID_OFFSET - 1
_SHOWN_PHASES = {"X", "M", "s", "f", "t", "b", "e", "n"}


def kernel_trace_events(
    kernels: Sequence[KernelRow],
    profiled: Sequence[TraceEvent],
    clock: ProfilerClock | None,
    sensor_lines: Iterable[RecordingLine],
    zero_ns: int,
) -> Iterator[TraceEvent]:
    """Yield the events of a kernel trace, in µs since a moment of the host's monotonic clock.

    Without a clock that relates the two, the sensors are left out: they would be shown at a wrong time.
    """
    if profiled and clock is not None:
        shift_us = (clock.offset_ns - zero_ns) / 1e3
        annotations = _annotations(kernels, profiled)
        yield from (_shift_event(event, shift_us, annotations) for event in profiled if _is_shown(event))
    elif profiled:
        yield from (event for event in profiled if _is_shown(event))
        return
    else:
        yield {"ph": "M", "name": "process_name", "pid": _CALLS_PID, "tid": 0, "args": {"name": "calls"}}
        yield from (_call_slice(kernel, zero_ns) for kernel in kernels)
    yield from recording_events(sensor_lines, zero_ns=zero_ns, first=SENSOR_PID_OFFSET)


def _is_shown(event: TraceEvent) -> bool:
    return event.get("ph") in _SHOWN_PHASES and event.get("cat") != "Trace" and isinstance(event.get("pid"), int)


def _annotations(kernels: Sequence[KernelRow], profiled: Sequence[TraceEvent]) -> dict[int, dict[str, object]]:
    """Return the sensor and counter values of each GPU event, by the event's identity."""
    if not any(kernel.kind in {"kernel", "copy", "fill"} for kernel in kernels):
        return {}
    return {
        id(event): {
            name: value for name in (*SENSOR_COLUMNS, *COUNTER_COLUMNS) if (value := getattr(kernel, name)) is not None
        }
        for event, kernel in zip(gpu_events(profiled), kernels, strict=True)
    }


def _shift_event(event: TraceEvent, shift_us: float, annotations: dict[int, dict[str, object]]) -> TraceEvent:
    extra = annotations.get(id(event))
    moved = event if "ts" not in event else {**event, "ts": float(event["ts"]) + shift_us}
    return moved if not extra else {**moved, "args": {**event.get("args", {}), **extra}}


def _call_slice(kernel: KernelRow, zero_ns: int) -> TraceEvent:
    at_us = ((kernel.start_ns or zero_ns) - zero_ns) / 1e3
    return {"ph": "X", "name": kernel.name, "pid": _CALLS_PID, "tid": 0, "ts": at_us, "dur": kernel.duration_us}
