"""A recording as a trace that the Perfetto UI opens (https://ui.perfetto.dev): Chrome's JSON trace format.

Levels are counters as they were read; what counts up becomes a rate per second. Marks are instants, spans are slices.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from assay.core.durable import friendly_os_errors, replace_by_parts
from assay.monitor.lines import GpuMeterSample, GpuSample, Header, HostSample, Mark
from assay.monitor.quantities import meaning, numbers, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from assay.monitor.lines import Line, Sample

Event: TypeAlias = dict[str, Any]

_MARKS = 1
_HOST = 2
_FIRST_GPU = 10
"""Numbers of the processes under which the UI shows things."""


def write_trace(lines: Iterable[Line], path: Path) -> None:
    """Write the trace of a recording, line after line.

    Raises:
        MachineCannot: The file cannot be written.
        BadInput: The path makes no sense.
    """
    write_events(events_of(lines), path)


def write_events(events: Iterable[Event], path: Path) -> None:
    """Write events of Chrome's format as a file of their own, one after the other.

    Raises:
        MachineCannot: The file cannot be written.
        BadInput: The path makes no sense.
    """
    replace_by_parts(path, _encoded(events))


def _encoded(events: Iterable[Event]) -> Iterator[bytes]:
    between = '{"displayTimeUnit":"ms","traceEvents":[\n'
    for event in events:
        yield (between + json.dumps(event, separators=(",", ":"))).encode()
        between = ",\n"
    yield b"\n]}\n"


def check_writable(path: Path) -> None:
    """Make sure that a trace can be written there later; a file that is there keeps what it holds.

    Raises:
        MachineCannot: It cannot.
        BadInput: The path makes no sense.
    """
    with friendly_os_errors(path):
        if not path.exists() or path.is_file() or path.is_dir():
            path.open("ab").close()


def events_of(lines: Iterable[Line], *, zero_ns: int = 0, first: int = 0) -> Iterator[Event]:
    """Give the events of a recording, in microseconds since a moment, by default its beginning.

    ``first`` is added to the numbers of its processes, for who shows it beside others.
    """
    rates = _Rates()
    ends_us: list[float] = []
    for line in lines:
        if isinstance(line, Header):
            zero_ns = zero_ns or line.t_ns
            events = _names(line)
        elif isinstance(line, GpuSample | GpuMeterSample | HostSample):
            events = _counters(line, zero_ns, rates)
        elif isinstance(line, Mark):
            events = iter([_mark(line, zero_ns, ends_us)])
        else:
            continue
        yield from ({**event, "pid": event["pid"] + first} for event in events)


def _names(header: Header) -> Iterator[Event]:
    named = {_MARKS: "marks", **({_HOST: "host"} if header.host_every is not None else {})}
    named |= {_FIRST_GPU + gpu.index: f"GPU {gpu.index} {gpu.name or ''}".rstrip() for gpu in header.gpus}
    for number, name in named.items():
        yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": name}}


class _Rates:
    """What counts up, as a rate since the reading before; the first has none, and so has one that went back."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], tuple[int, float]] = {}

    def of(self, sample: Sample, quantity: str, value: float) -> float | None:
        key = source_of(sample), quantity
        before = self._before.get(key)
        self._before[key] = sample.t_ns, value
        if before is None or value < before[1] or sample.t_ns <= before[0]:
            return None
        return (value - before[1]) / ((sample.t_ns - before[0]) / 1e9)


def _counters(sample: Sample, zero_ns: int, rates: _Rates) -> Iterator[Event]:
    number = _HOST if isinstance(sample, HostSample) else _FIRST_GPU + sample.gpu
    for quantity, value in numbers(sample):
        info = meaning(quantity, gpu=number != _HOST)
        shown = rates.of(sample, quantity, value) if info.counts else value
        if shown is None:
            continue
        unit = f"{info.unit or '1'}/s" if info.counts else info.unit
        name = f"{info.title} ({unit})" if unit else info.title
        at_us = (sample.t_ns - zero_ns) / 1e3
        yield {"ph": "C", "name": name, "pid": number, "tid": 0, "ts": at_us, "args": {"value": shown}}


def _mark(mark: Mark, zero_ns: int, ends_us: list[float]) -> Event:
    """Return a mark; spans that overlap are shown in rows of their own."""
    start_us = (mark.start_ns - zero_ns) / 1e3
    common = {"name": mark.name, "cat": "mark", "pid": _MARKS, "ts": start_us}
    if mark.end_ns is None:
        return {**common, "ph": "i", "s": "g", "tid": 0}
    row = next((row for row, end_us in enumerate(ends_us) if end_us <= start_us), len(ends_us))
    ends_us[row : row + 1] = [(mark.end_ns - zero_ns) / 1e3]
    return {**common, "ph": "X", "dur": ends_us[row] - start_us, "tid": row + 1}
