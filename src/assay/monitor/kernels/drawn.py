"""A timeline for the Perfetto UI: what the profiler saw, and under it what the sensors said, on the host's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.monitor.kernels import kineto
from assay.monitor.kernels.rows import COUNTERS, SENSORS
from assay.monitor.perfetto import events_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from assay.monitor.kernels.kineto import TraceClock
    from assay.monitor.kernels.rows import Kernel
    from assay.monitor.lines import Line
    from assay.monitor.perfetto import Event

SENSORS_FROM = 10_000_000
"""Processes from this number on are sensors: the profiler numbers processes as the system does, and GPUs from 0."""

_CALLS = SENSORS_FROM - 1
_SHOWN = {"X", "M", "s", "f", "t", "b", "e", "n"}


def events(
    kernels: Sequence[Kernel],
    profiled: Sequence[Event],
    clock: TraceClock | None,
    sensed: Iterable[Line],
    zero_ns: int,
) -> Iterator[Event]:
    """Give the events of a trace, in microseconds since a moment of the host's monotonic clock.

    Without a clock that ties the two together the sensors are left out: they would stand in a wrong place.
    """
    if profiled and clock is not None:
        shift_us = (clock.offset_ns - zero_ns) / 1e3
        noted = _noted(kernels, profiled)
        yield from (_shifted(event, shift_us, noted) for event in profiled if _is_shown(event))
    elif profiled:
        yield from (event for event in profiled if _is_shown(event))
        return
    else:
        yield {"ph": "M", "name": "process_name", "pid": _CALLS, "tid": 0, "args": {"name": "calls"}}
        yield from (_slice(kernel, zero_ns) for kernel in kernels)
    yield from events_of(sensed, zero_ns=zero_ns, first=SENSORS_FROM)


def _is_shown(event: Event) -> bool:
    return event.get("ph") in _SHOWN and event.get("cat") != "Trace" and isinstance(event.get("pid"), int)


def _noted(kernels: Sequence[Kernel], profiled: Sequence[Event]) -> dict[int, dict[str, object]]:
    """Return what is known of each of the GPU's events beyond the profiler's word, by the event's identity."""
    if not any(kernel.kind in {"kernel", "copy", "fill"} for kernel in kernels):
        return {}
    return {
        id(event): {name: value for name in (*SENSORS, *COUNTERS) if (value := getattr(kernel, name)) is not None}
        for event, kernel in zip(kineto.on_gpu(profiled), kernels, strict=True)
    }


def _shifted(event: Event, shift_us: float, noted: dict[int, dict[str, object]]) -> Event:
    more = noted.get(id(event))
    moved = event if "ts" not in event else {**event, "ts": float(event["ts"]) + shift_us}
    return moved if not more else {**moved, "args": {**event.get("args", {}), **more}}


def _slice(kernel: Kernel, zero_ns: int) -> Event:
    at_us = ((kernel.start_ns or zero_ns) - zero_ns) / 1e3
    return {"ph": "X", "name": kernel.name, "pid": _CALLS, "tid": 0, "ts": at_us, "dur": kernel.duration_us}
